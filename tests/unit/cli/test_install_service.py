"""The units of systemd: written with the path of the program, and checked by systemd itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.support import programs
from tests.support.unprivileged import NOBODY

DEPLOY = CHECKOUT / "deploy/systemd"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program of this name, as pip installs it."""
    path = tmp_path / "bin/coding-agent-bridge"
    path.parent.mkdir()
    path.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(CHECKOUT)!r})\n"
        "from bridge.cli.main import main\nsys.exit(main())\n"
    )
    path.chmod(0o755)
    return path


def install(program: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program), "install-service", *options],
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *map(str, arguments)]
    env = {**os.environ, "XDG_RUNTIME_DIR": "/run"}  # `--user` requires one
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_the_unit_of_a_user_has_the_path_of_the_program(program: Path, tmp_path: Path) -> None:
    done = install(program, "--user", HOME=str(tmp_path))
    unit = tmp_path / ".config/systemd/user/coding-agent-bridge.service"
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == str(unit)
    lines = unit.read_text().splitlines()
    assert f"ExecReload={program} reload" in lines
    assert "/opt/" not in unit.read_text()


def test_the_system_does_not_get_a_program_that_it_hides(program: Path, tmp_path: Path) -> None:
    """pytest's folder is below /tmp, which PrivateTmp= hides."""
    done = install(program, "--to", str(tmp_path / "units"))
    if str(program).startswith("/tmp/"):
        assert done.returncode == 2
        assert "PrivateTmp" in done.stderr
        assert not (tmp_path / "units").exists()


@pytest.mark.parametrize("options", [("--user", "--keep"), ("--user", "--to", "/proc/x")])
def test_what_cannot_be_written_is_an_error(program: Path, options: tuple[str, ...]) -> None:
    done = install(program, *options, HOME="/proc")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_a_path_with_a_meaning_in_units_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "100% mine"
    folder.mkdir()
    (folder / "coding-agent-bridge").symlink_to(sys.executable)
    code = (
        "import sys; sys.argv[0] = sys.argv.pop(1); sys.path.insert(0, sys.argv.pop(1))\n"
        "from bridge.cli.main import main; sys.exit(main())"
    )
    argv = [sys.executable, "-c", code, str(folder / "coding-agent-bridge"), str(CHECKOUT)]
    done = subprocess.run(
        [*argv, "install-service", "--user", "--to", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "characters with a meaning in units" in done.stderr


@pytest.fixture
def units(reachable: Path) -> Path:
    """The units as the system gets them, with a program outside of /tmp."""
    if str(reachable).startswith("/home") or os.geteuid() in (NOBODY,):
        pytest.skip("the folder is hidden from services")
    program = reachable / "coding-agent-bridge"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(CHECKOUT)!r})\n"
        "from bridge.cli.main import main\nsys.exit(main())\n"
    )
    program.chmod(0o755)
    done = install(program, "--keep", "--to", str(reachable / "units"))
    assert (done.returncode, done.stderr) == (0, "")
    names = {
        str(path.relative_to(reachable / "units")) for path in (reachable / "units").rglob("*")
    }
    assert names >= {"coding-agent-bridge@.socket", "coding-agent-bridge@.service.d/keep.conf"}
    return reachable / "units"


@programs.needed("systemd-analyze")
def test_systemd_accepts_the_units(units: Path) -> None:
    """Without a warning, the drop-in included."""
    files = [path for path in units.iterdir() if path.is_file()]
    assert len(files) == 4
    done = analyze("verify", *files)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    user = units / "user"
    assert (
        install(units.parent / "coding-agent-bridge", "--user", "--to", str(user)).returncode == 0
    )
    done = analyze("--user", "verify", user / "coding-agent-bridge.service")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@programs.needed("systemd-analyze")
def test_the_unit_is_hardened(units: Path) -> None:
    """systemd rates the exposure of a service from 0 to 10; without the hardening it is 8.2."""
    unit = units / "coding-agent-bridge@.service"
    done = analyze("security", "--offline=true", "--threshold=20", unit)
    assert done.returncode == 0, done.stdout[-500:]


def test_agents_keep_their_sandbox_and_groups() -> None:
    """systemd 252 would refuse the calls of Landlock without their names, and a read-only tree of
    control groups or a refused executable memory would break the server or a CLI."""
    text = (DEPLOY / "coding-agent-bridge@.service").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    calls = next(line for line in lines if line.startswith("SystemCallFilter=")).split()
    needed = {"landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self", "seccomp"}
    assert needed <= set(calls)
    assert {"Delegate=yes", "Type=notify", "Environment=BRIDGE_SANDBOX=landlock"} <= set(lines)
    assert not any(line.startswith(("ProtectControl", "MemoryDenyWrite")) for line in lines)
