"""The tiers of the test suite, and the system packages that scripts/install installs for them."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.conftest import LIMITS

CASES = """
import pytest
from tests.support import programs

@programs.needed("no-such-program")
def test_with_a_program(): pass

def test_that_asks_late(): programs.require("no-such-program")

@pytest.mark.skip(reason="only root may")
def test_as_root(): pass

def test_here(): pass

@pytest.mark.soak
def test_for_hours(): assert 0
"""
TIME = re.compile(r"unit +\d+ s \(limit 30 s\)")


def run(folder: Path, *arguments: str, **env: str) -> tuple[int, list[str]]:
    """Exit status and output of a run of CASES in another process, which takes two seconds."""
    (folder / "test_cases.py").write_text(CASES)
    unused = ("-p", "no:cacheprovider", "-p", "no:schemathesis", "-p", "no:anyio")
    options = ("-p", "tests.conftest", "--confcutdir", str(folder), *unused)
    argv = [sys.executable, "-m", "pytest", *options, "-q", *arguments, str(folder)]
    given = {name: value for name, value in os.environ.items() if name != "CI"} | env
    done = subprocess.run(
        argv, cwd=CHECKOUT, env=given, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout.splitlines()


def test_a_run_ends_with_a_line_for_each_tier(tmp_path: Path) -> None:
    code, lines = run(tmp_path, "-n", "0")
    assert code == 0
    missing = "2 x missing program: no-such-program; scripts/install installs it"
    assert lines[-2] == f"default 1 passed, 0 failed, 3 skipped ({missing}; 1 x only root may)"
    assert lines[-1] == "soak    not run (scripts/soak)"
    assert any(map(TIME.fullmatch, lines)), lines


def test_the_soak_tier_runs_only_if_it_is_asked_for(tmp_path: Path) -> None:
    code, lines = run(tmp_path, "--soak")
    assert code == 1
    assert lines[-2:] == ["default not run (scripts/test)", "soak    0 passed, 1 failed, 0 skipped"]


@pytest.mark.soak
def test_a_missing_program_fails_ci_and_no_other_skip_does(tmp_path: Path) -> None:
    """With a process of pytest-xdist, as in CI."""
    code, lines = run(tmp_path, "-n", "1", CI="true")
    assert code == 1
    assert lines[-2] == "default 1 passed, 2 failed, 1 skipped (1 x only root may)"
    assert any("missing program: no-such-program" in line for line in lines)


def test_the_ci_command_says_that_it_is_ci() -> None:
    assert "\nexport CI=true" in (CHECKOUT / ".ci/run").read_text("utf-8")


def test_skips_for_a_missing_program_have_one_source() -> None:
    """CI can only recognise the skips of tests/support/programs.py."""
    files = [path for path in CHECKOUT.glob("tests/**/*.py") if "node_modules" not in path.parts]
    assert len(files) > 100
    wrong = [line for path in files if path.name != "programs.py" for line in other_skips(path)]
    assert wrong == [], "use tests.support.programs"


def other_skips(path: Path) -> Iterator[str]:
    """The lines of a file that skip a test for a missing program."""
    text = path.read_text("utf-8")
    if "skip" not in text:  # most files: a parser takes long
        return
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        name, text = ast.unparse(node.func), ""
        if name in ("pytest.skip", "pytest.mark.skipif"):
            text = ast.unparse(node)
        words = ("which(", "not installed", "apt-get")
        if name.endswith("importorskip") or any(word in text for word in words):
            yield f"{path.name}:{node.lineno}"


SHORT = re.compile(
    r"asyncio\.timeout\((?:[0-5]|[0-5]\.\d+)\)|wait_for\(.*, (?:[0-4]|[0-4]\.\d+)\)"
    r"|assert .*(?:monotonic\(\)|\.time\(\)) - .* <=? (?:[0-4]|[0-4]\.\d+)$"
)


def test_no_test_has_a_limit_near_a_second() -> None:
    """A busy machine exceeds it. Only a wait that has to end with TimeoutError may be short."""
    files = [path for path in CHECKOUT.glob("tests/**/*.py") if "node_modules" not in path.parts]
    found = [
        f"{path.name}: {line.strip()}"
        for path in files
        for before, line in pairwise(path.read_text("utf-8").splitlines())
        if SHORT.search(line.partition("  #")[0]) and "(TimeoutError)" not in before
    ]
    assert not found, "\n".join(found)


# --- CONTRIBUTING.md -----------------------------------------------------------------------------

PAGE = CHECKOUT / "CONTRIBUTING.md"


def test_the_page_for_contributors_is_short_and_has_the_limits() -> None:
    text = PAGE.read_text("utf-8")
    assert len(text.split()) <= 1500
    rows = re.findall(r"(?m)^\| `tests/(\w+)` \|.* \| (\d+) s \|$", text)
    assert {name: int(limit) for name, limit in rows} == LIMITS


def test_the_page_for_contributors_names_what_exists() -> None:
    text = PAGE.read_text("utf-8")
    named = set(re.findall(r"\b(?:adapters|bridge|deploy|docs|scripts|tests)/[\w./-]*\w", text))
    names = [name for name in named if not re.search("NAME|ROOM", name)]
    assert len(names) > 30
    assert not [name for name in names if not (CHECKOUT / name).exists()]
    modules = re.findall(r"python -m (tests[\w.]+)", text)
    assert all((CHECKOUT / f"{name.replace('.', '/')}.py").exists() for name in modules)
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {"dev", "tests"} <= project["optional-dependencies"].keys()


# --- scripts/install --system --------------------------------------------------------------------

APT = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/called"
case "$*" in *install*bubblewrap) exit 100 ;; esac
"""
PROGRAMS = (
    *("bwrap", "cc", "chromium", "curl", "fusermount3", "git", "postgres", "redis-server"),
    "systemd-analyze",
)
# The real machine may have it outside of PATH.
POSTGRESQL = [] if list(Path("/usr/lib/postgresql").glob("*/bin/postgres")) else ["postgresql"]


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """The only folder on PATH, of a machine that has nothing but a shell and Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "env", "dirname", "cat", "sha256sum", "true", "sed", "grep", "tail"):
        (folder / name).symlink_to(shutil.which(name) or "")
    (folder / "python3").symlink_to(sys.executable)
    return folder


def program(folder: Path, name: str, script: str = "#!/bin/sh\n") -> None:
    (folder / name).write_text(script)
    (folder / name).chmod(0o755)


def install(machine: Path, option: str = "--system") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CHECKOUT / "scripts/install", option],
        env={"PATH": str(machine)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("user", ["root", "sudo"])
def test_missing_packages_are_installed_where_that_is_possible(machine: Path, user: str) -> None:
    program(machine, "apt-get", APT)
    program(machine, "id", f"#!/bin/sh\necho {0 if user == 'root' else 1000}\n")
    if user == "sudo":
        program(machine, "sudo", '#!/bin/sh\n[ "$1" = -n ] && shift && exec "$@"\n')
    program(machine, "git")
    done = install(machine)
    assert done.returncode == 0
    assert "apt-get install --no-install-recommends bubblewrap\n" in done.stderr  # it is refused
    called = (machine / "called").read_text().splitlines()
    assert called[0].endswith(" update")
    packages = [line.split()[-1] for line in called[1:]]
    expected = [
        "bubblewrap",
        "gcc",
        "libc6-dev",
        "chromium",
        "curl",
        "fuse3",
        *POSTGRESQL,
        "redis-server",
        "systemd",
    ]
    assert packages == expected


def test_without_permission_the_command_is_shown(machine: Path) -> None:
    program(machine, "apt-get", APT)
    program(machine, "id", "#!/bin/sh\necho 1000\n")
    program(machine, "sudo", "#!/bin/sh\nexit 1\n")  # it wants a password
    done = install(machine)
    assert done.returncode == 0
    expected = " ".join(
        ["bubblewrap gcc libc6-dev chromium curl fuse3 git", *POSTGRESQL, "redis-server systemd"]
    )
    assert f"as root, run:\n    apt-get install --no-install-recommends {expected}\n" in done.stderr
    assert not (machine / "called").exists()


def test_nothing_is_installed_where_all_is_there(machine: Path) -> None:
    for name in PROGRAMS:
        program(machine, name)
    program(machine, "apt-get", APT)
    done = install(machine)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (machine / "called").exists()


def test_the_program_alone_needs_no_system_package(machine: Path) -> None:
    program(machine, "apt-get", APT)
    program(machine, "id", "#!/bin/sh\necho 0\n")
    done = install(machine, "--runtime")
    assert (done.returncode, done.stderr) == (0, "")
    assert not (machine / "called").exists()


# --- the quick installation ----------------------------------------------------------------------

RECORD = '#!/bin/sh\necho "$(basename "$0") $*" >> "$(dirname "$0")/../called"\n'


def called(folder: Path, script: str, *arguments: str) -> list[str]:
    """The calls of a script in a checkout whose installation and tools only record their calls."""
    (folder / "scripts").mkdir(parents=True)
    (folder / ".venv").mkdir()
    (folder / ".venv/bin").symlink_to(folder / "scripts")
    (folder / "tests/unit").mkdir(parents=True)
    (folder / "CHANGELOG.md").write_text("## \n")
    for name in ("install", "python", "ruff", "mypy"):
        program(folder / "scripts", name, RECORD)
    shutil.copy(CHECKOUT / "scripts" / script, folder / "scripts")
    subprocess.run([folder / "scripts" / script, *arguments], check=True, timeout=60)
    return (folder / "called").read_text().splitlines()


@pytest.mark.parametrize(
    ("call", "installation"),
    [
        (["check"], "install --quick"),
        (["check", "--fix"], "install --quick"),
        (["test", "--tier", "unit"], "install --quick"),
        (["test", "--tier", "unit", "--quick"], "install --quick"),
        (["test", "--quick"], "install --packages"),
        (["test"], "install "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_script_installs_only_what_it_needs(
    tmp_path: Path, call: list[str], installation: str
) -> None:
    first, *then = called(tmp_path / "checkout", *call)
    assert first == installation
    assert then


def test_the_unit_tier_needs_no_program_and_no_package_of_another_tier() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    names = [re.split(r"[^\w-]", line)[0].replace("-", "_") for line in extras["tests"]]
    packages = [name for name in names if name != "coding_agent_bridge"]
    assert packages == ["grpcio_tools", "mfusepy", "schemathesis"]
    words = (r"import.*\bprograms\b", "promtool", r"scripts/proto\b", r"\.venvs", "grpc_tools")
    pattern = re.compile("|".join((*words, "jsonschema_rs", *packages)))
    files = sorted((CHECKOUT / "tests/unit").rglob("test_*.py"))
    assert len(files) > 50
    wrong = [
        f"{path.name}: {line}"
        for path in files
        for line in path.read_text("utf-8").splitlines()
        if pattern.search(line)
    ]
    assert not wrong, "\n".join(wrong)


# --- scripts/test --tier --------------------------------------------------------------------------


def test_an_unknown_tier_is_an_error() -> None:
    argv = [str(CHECKOUT / "scripts/test"), "--tier", "nightly"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    tiers = "unit, component, server, system or real"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"scripts/test: unknown tier 'nightly': {tiers}\n"


def test_a_machine_without_another_python_says_so_and_does_not_fail(machine: Path) -> None:
    done = subprocess.run(
        [CHECKOUT / "scripts/test", "--pythons"],
        env={"PATH": str(machine)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")
    line = r"scripts/install: this machine has no Python 3\.\d+ in PATH, pyenv or uv\n"
    assert re.fullmatch(line, done.stderr)


def test_every_place_names_the_same_versions_of_python() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"]
    named = [re.fullmatch(r".* :: Python :: 3\.(\d+)", one) for one in project["classifiers"]]
    minors = [int(one[1]) for one in named if one]
    oldest, newest = minors[0], minors[-1]
    assert minors == list(range(oldest, newest + 1))
    assert project["requires-python"] == f">=3.{oldest}"
    readme = (CHECKOUT / "README.md").read_text("utf-8")
    assert f"You need Python 3.{oldest} or newer (tested up to 3.{newest})" in readme
    assert "\nstep scripts/test --pythons\n" in (CHECKOUT / ".ci/run").read_text("utf-8")


def test_every_test_is_in_a_tier() -> None:
    """The tests of the rules for the whole project run with the unit tier."""
    tiers = {"unit", "component", "server", "system", "real"}
    outside = {
        path.relative_to(CHECKOUT / "tests").as_posix()
        for path in (CHECKOUT / "tests").rglob("test_*.py")
        if "node_modules" not in path.parts
        and path.relative_to(CHECKOUT / "tests").parts[0] not in tiers
    }
    assert outside == {
        "test_architecture.py",
        "test_features.py",
        "test_figures.py",
        "test_language.py",
    }
