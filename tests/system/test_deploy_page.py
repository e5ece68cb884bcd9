"""The blocks of docs/deploy.md, and the files of deploy/ that no other test runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bridge.cli.client.arguments import is_client
from bridge.server.settings.load import load
from tests import CHECKOUT
from tests.support import programs
from tests.support.cases import each
from tests.support.command_line import run
from tests.support.deploy_page import BLOCKS, PAGE, block_with, of
from tests.support.real_clis import CLAUDE_CODE
from tests.support.reverse_proxies import tool

VALIDATOR = CHECKOUT / ".venvs/kubernetes/bin/kubernetes-validate"


def test_the_page_is_short_and_has_only_blocks_that_are_tested() -> None:
    assert len(PAGE.splitlines()) <= 330
    assert {kind for kind, _ in BLOCKS} == {"sh", "toml", "ini"}


@each("block", of("toml"))
def test_the_settings_are_accepted(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "workspace").mkdir(exist_ok=True)
    file = tmp_path / "team.toml"
    file.write_text(block.replace("/srv/team", str(tmp_path / "workspace")))
    monkeypatch.chdir(tmp_path / "workspace")
    loaded = load({"config_file": str(file), "bridge_state_dir": str(tmp_path / "state")})
    assert loaded.warnings == []


@programs.needed("systemd-analyze")
def test_the_drop_in_is_accepted(reachable: Path) -> None:
    if str(reachable).startswith("/home"):
        pytest.skip("the folder is hidden from services")
    unit = (CHECKOUT / "deploy/systemd/coding-agent-bridge@.service").read_text()
    text = unit.replace("/opt/coding-agent-bridge/bin/coding-agent-bridge", "/bin/true")
    (reachable / "coding-agent-bridge@.service").write_text(text)
    folder = reachable / "coding-agent-bridge@team.service.d"
    folder.mkdir()
    (folder / "override.conf").write_text(of("ini")[0])
    command = ["systemd-analyze", "verify", str(reachable / "coding-agent-bridge@team.service")]
    (reachable / "coding-agent-bridge@team.service").symlink_to("coding-agent-bridge@.service")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_commands_exist(tmp_path: Path) -> None:
    """In blocks and in tables. tests/system/test_new_machine.py and test_image.py run the blocks,
    but one, in a new machine."""
    script = "\n".join(of("sh"))
    done = subprocess.run(["sh", "-n"], input=script, text=True, timeout=60, check=False)
    assert done.returncode == 0
    text = script + "\n".join(re.findall(r"`([^`\n]+)`", PAGE))
    own = set(re.findall(r"(?:^|[\s/])(?:coding-agent-bridge|cab) ([a-z][a-z-]*)", text, re.M))
    assert {"backup", "health", "reload", "restore", "rollback"} <= own
    known = run("help", cwd=tmp_path).stdout
    for name in own:
        assert is_client([name]) or re.search(rf"^ +{name}\s", known, re.MULTILINE), name


def test_the_table_of_alerts_is_complete() -> None:
    """In the order of the file."""
    alerts = (CHECKOUT / "deploy/prometheus/alerts.yml").read_text()
    assert re.findall(r"^\| `(Bridge\w+)`", PAGE, re.M) == re.findall(r"- alert: (\w+)", alerts)
    for row in re.findall(r"^\| `Bridge.*", PAGE, re.M):
        assert len([cell for cell in row.strip("|").split("|") if cell.strip()]) == 3, row


def test_the_settings_of_the_page_exist() -> None:
    names = set(re.findall(r"`((?:BRIDGE|AGENT|LOG|PUBLIC)_[A-Z_]+)\b", PAGE))
    known = (CHECKOUT / "docs/settings.md").read_text("utf-8")
    assert [name for name in names if f"`{name}`" not in known] == []


def test_help_and_a_refusal_name_the_page(tmp_path: Path) -> None:
    assert "docs/deploy.md" in run("--help", cwd=tmp_path).stdout
    for name in ("HOST", "BRIDGE_GRPC_HOST"):
        env = {"AGENT_ADAPTER": "replay", "BRIDGE_GRPC_PORT": "1", name: "0.0.0.0"}
        done = run("health", cwd=tmp_path, **env)
        assert done.returncode == 2
        assert f"{name}=0.0.0.0 accepts" in done.stderr
        assert "docs/deploy.md" in done.stderr


def test_the_command_of_the_token_works(tmp_path: Path) -> None:
    """The token has the form of the operator's."""
    line = next(one for one in block_with("useradd").splitlines() if "secrets" in one)
    command = line.replace("/etc/coding-agent-bridge/team.token", str(tmp_path / "token"))
    command = command.replace("python3", sys.executable)
    subprocess.run(["sh", "-c", command], timeout=60, check=True)
    assert re.fullmatch(r"[\w-]{43}\n", (tmp_path / "token").read_text())
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600


def test_logrotate_renames_audit_logs(tmp_path: Path) -> None:
    """A line is in the old file or in the new one: the file is renamed and not copied."""
    program = tool("logrotate", "usr/sbin/logrotate")
    text = (CHECKOUT / "deploy/logrotate/coding-agent-bridge").read_text()
    reload = "systemctl reload 'coding-agent-bridge@*.service'"
    assert reload in text
    text = text.replace(reload, f"touch {tmp_path}/reloaded")
    text = text.replace("/var/lib/coding-agent-bridge", str(tmp_path))
    for team in ("a", "b"):
        (tmp_path / team / "state").mkdir(parents=True)
        (tmp_path / team / "state/audit.jsonl").write_text(f"{team}\n")
    inode = (tmp_path / "a/state/audit.jsonl").stat().st_ino
    (tmp_path / "config").write_text(text)
    (tmp_path / "config").chmod(0o644)
    command = [program, "--force", "--state", str(tmp_path / "status"), str(tmp_path / "config")]
    env = {**os.environ, "LD_LIBRARY_PATH": str(Path(program).parents[1] / "lib/x86_64-linux-gnu")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "reloaded").exists()
    for team in ("a", "b"):
        assert os.listdir(tmp_path / team / "state") == ["audit.jsonl.1"]
    assert (tmp_path / "a/state/audit.jsonl.1").stat().st_ino == inode


def test_files_use_the_pages_and_commands_of_the_server() -> None:
    """The image and the new machine of the soak tier run them."""
    shipped = CHECKOUT / "deploy"
    pod = (shipped / "kubernetes/statefulset.yaml").read_text()
    probes = re.findall(r"(\w+)Probe:\n +httpGet: \{path: (\S+), port: http\}", pod)
    assert probes == [("startup", "/ready"), ("readiness", "/ready"), ("liveness", "/health")]
    for name in ("coding-agent-bridge@.service", "coding-agent-bridge.service"):
        unit = (shipped / "systemd" / name).read_text()
        assert re.search(r"^ExecReload=\S+/coding-agent-bridge reload$", unit, re.MULTILINE)
    image = (shipped / "Containerfile").read_text()
    assert 'CMD ["coding-agent-bridge", "health"]' in image
    system = (shipped / "systemd/coding-agent-bridge@.service").read_text()
    assert "Environment=LOG_FORMAT=json\n" in system and " LOG_FORMAT=json " in image


def test_the_image_has_the_programs_that_the_tests_run() -> None:
    """Node.js, and the CLI in the command of the page."""
    image = (CHECKOUT / "deploy/Containerfile").read_text()
    pinned = (CHECKOUT / "tests/clis/requirements-node.txt").read_text().splitlines()[-1]
    assert re.search(rf'^ARG NODE="{re.escape(pinned)} --hash=sha256:[0-9a-f]{{64}}"$', image, re.M)
    (cli,) = re.findall(r"--build-arg CLIS=(\S+) ", block_with("buildah bud"))
    assert cli == f"{CLAUDE_CODE.package}@{CLAUDE_CODE.version}"


def test_the_image_has_the_packages_of_all_extras() -> None:
    """Otherwise run scripts/lock."""
    lines = (CHECKOUT / "deploy/requirements.txt").read_text().splitlines()
    locked = re.findall(r"^(\S+)==(\S+) --hash=sha256:[0-9a-f]{64}$", "\n".join(lines), re.M)
    assert len(locked) == sum(not line.startswith("#") for line in lines)
    versions = {canonicalize_name(name): version for name, version in locked}
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for extra, requirements in project["optional-dependencies"].items():
        wanted += requirements if extra not in ("dev", "tests", "fuzz") else []
    for text in wanted:
        one = Requirement(text)
        if one.marker is None or one.marker.evaluate():
            assert one.specifier.contains(versions.get(canonicalize_name(one.name), "0")), text


@pytest.mark.soak
def test_kubernetes_accepts_the_manifests(tmp_path: Path) -> None:
    """By the schemas of its API; the validator has those of all versions, 72 MB. A misspelt member
    is refused."""
    if not VALIDATOR.exists():
        pytest.skip(programs.missing("kubernetes-validate"))
    folder = CHECKOUT / "deploy/kubernetes"
    files = sorted(path for path in folder.glob("*.yaml") if path.stem != "kustomization")
    assert len(files) == 3
    assert validated(*files) == 0
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text((folder / "statefulset.yaml").read_text().replace("fsGroup:", "fsGruop:"))
    assert validated(wrong) != 0
    named = (folder / "kustomization.yaml").read_text()
    assert set(re.findall(r"^  - (\S+\.yaml)$", named, re.MULTILINE)) == {one.name for one in files}


def validated(*files: Path) -> int:
    command = [str(VALIDATOR), "--strict", *map(str, files)]
    return subprocess.run(command, capture_output=True, timeout=120, check=False).returncode
