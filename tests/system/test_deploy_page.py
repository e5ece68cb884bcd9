"""The blocks of docs/deploy.md, and the files of deploy/ that no other test runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.cli.client.arguments import is_client
from bridge.server.settings.load import load
from tests import CHECKOUT
from tests.support import programs
from tests.support.cases import each
from tests.support.command_line import run
from tests.support.reverse_proxies import tool

PAGE = (CHECKOUT / "docs/deploy.md").read_text("utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
OPERATE = {"backup", "health", "reload", "restore", "rollback"}
"""Commands that this release adds."""
VALIDATOR = CHECKOUT / ".venvs/kubernetes/bin/kubernetes-validate"


def of(kind: str) -> list[str]:
    found = [text for name, text in BLOCKS if name == kind]
    assert found
    return found


def test_the_page_is_short_and_has_only_blocks_that_are_tested() -> None:
    assert len(PAGE.splitlines()) <= 300
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


@each("block", of("sh"))
def test_the_commands_exist(block: str, tmp_path: Path) -> None:
    done = subprocess.run(["sh", "-n"], input=block, text=True, timeout=60, check=False)
    assert done.returncode == 0
    words = [re.split(r"\s+", line) for line in block.splitlines()]
    own = [line[1] for line in words if line[0].endswith("coding-agent-bridge")]
    known = run("help", cwd=tmp_path).stdout
    for name in set(own) - OPERATE:
        assert is_client([name]) or re.search(rf"^ +{name}\s", known, re.MULTILINE), name


def test_the_command_of_the_token_works(tmp_path: Path) -> None:
    """The token has the form of the operator's."""
    line = next(one for one in of("sh")[1].splitlines() if "secrets" in one)
    command = line.replace("/etc/coding-agent-bridge/team.token", str(tmp_path / "token"))
    command = command.replace("python3", sys.executable)
    subprocess.run(["sh", "-c", command], timeout=60, check=True)
    assert re.fullmatch(r"[\w-]{43}\n", (tmp_path / "token").read_text())


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
