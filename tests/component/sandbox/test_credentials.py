"""The credentials of the operator that an agent in a sandbox can read: those of its own CLI."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bridge.sandbox.credentials import HIDDEN
from bridge.sandbox.homes import resolve
from bridge.sandbox.landlock import abi as landlock_abi
from bridge.server import registry
from bridge.server.agents.sandboxes import hidden_paths
from tests import CHECKOUT
from tests.support import programs
from tests.support.cases import each
from tests.support.client import artifact_text, said, state
from tests.support.sandboxed import serving_shell

needs_landlock = pytest.mark.skipif(
    landlock_abi() < 3, reason="this kernel has no Landlock of ABI 3"
)
OWN = "coding-agent-bridge"  # the server makes it


def stored(home: Path) -> list[Path]:
    """A file for each of the hidden paths, with its path as the secret."""
    found = []
    for written in HIDDEN:
        path = Path(resolve(written, {"HOME": str(home)}))
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.name != OWN:
            path.write_text(f"secret:{path}\n")
            found.append(path)
    return found


@needs_landlock
async def test_credentials_are_hidden_and_can_be_shown(workspace: Path) -> None:
    home = workspace.parent / "home"
    paths = stored(home)
    (home / ".gitconfig").write_text("[user]\nname = me\n")
    line = f"cat {' '.join(map(str, paths))} ~/.gitconfig 2> /dev/null; true"
    async with serving_shell(workspace) as (client, _):
        task = await client.send(line)
        assert artifact_text(task) == "[user]\nname = me\n", said(task)
    async with serving_shell(workspace, BRIDGE_SANDBOX_READ="~/.kube:~/.config/gh") as (client, _):
        seen = artifact_text(await client.send(line)).splitlines()
    assert f"secret:{home}/.kube" in seen
    assert f"secret:{home}/.config/gh" in seen
    assert len(seen) == 4


@needs_landlock
async def test_other_folders_of_configuration_are_honoured(workspace: Path) -> None:
    home = workspace.parent / "home"
    (home / "conf/gh").mkdir(parents=True)
    (home / "conf/gh/hosts.yml").write_text("token")
    env = {"XDG_CONFIG_HOME": str(home / "conf")}
    async with serving_shell(workspace, **env) as (client, _):
        task = await client.send(f"cat {home}/conf/gh/hosts.yml 2> /dev/null; echo done")
        assert artifact_text(task) == "done\n"


TOOLS = {
    "npm": "mkdir tiny && cd tiny && npm init -y > /dev/null && npm config get registry",
    "pip": "python3 -m pip config list && echo listed",
    "git": "git init -q . && git config user.name",
}


@needs_landlock
@pytest.mark.timeout(90)  # npm starts slowly
@pytest.mark.parametrize("tool", TOOLS)
async def test_tools_work_without_the_credentials(workspace: Path, tool: str) -> None:
    programs.require("python3" if tool == "pip" else tool)
    home = workspace.parent / "home"
    (home / ".config/pip").mkdir(parents=True)
    (home / ".config/pip/pip.conf").write_text("[global]\nindex-url = https://token@host/\n")
    (home / ".npmrc").write_text("//registry/:_authToken=secret\n")
    (home / ".git-credentials").write_text("https://me:secret@host\n")
    (home / ".gitconfig").write_text("[user]\nname = me\n[credential]\nhelper = store\n")
    folders = f"{CHECKOUT / '.venv/bin'}:{os.environ['PATH']}"
    async with serving_shell(workspace, PATH=folders) as (client, _):
        task = await client.send(TOOLS[tool])
        assert state(task) == "completed", said(task)
        assert "secret" not in artifact_text(task)
        assert "token" not in artifact_text(task)
        assert artifact_text(task).strip()


OWN_PATHS = {
    "claude-code": {"~/.claude", "~/.claude.json"},
    "claude-agent-acp": {"~/.claude", "~/.claude.json"},
    "codex": {"~/.codex"},
    "gemini": {"~/.gemini"},
    "qwen": {"~/.qwen"},
    "copilot": {"~/.copilot", "${XDG_CONFIG_HOME:-~/.config}/gh"},
    "opencode": {"${XDG_DATA_HOME:-~/.local/share}/opencode"},
    "kilo": {"${XDG_DATA_HOME:-~/.local/share}/kilo"},
    "cursor": {"~/.cursor", "${XDG_CONFIG_HOME:-~/.config}/cursor"},
    "aider": {"~/.aider/oauth-keys.env"},
    "generic": set(),
}


@each("name", OWN_PATHS)
def test_a_cli_reads_its_own_login_and_no_others(name: str) -> None:
    shown = set(HIDDEN) - set(hidden_from(name))
    assert shown == OWN_PATHS[name]


def hidden_from(name: str, *reads: str, **env: str) -> tuple[str, ...]:
    return hidden_paths(registry.load(name), {"HOME": "/home/me", **env}, reads)


@each(
    ("variable", "path"),
    [("AWS_REGION", "~/.aws"), ("AZURE_CLIENT_ID", "~/.azure")],
)
def test_a_cli_with_the_variables_of_a_cloud_reads_its_credentials(
    variable: str, path: str
) -> None:
    assert path in hidden_from("generic")
    assert path not in hidden_from("generic", **{variable: "x"})


def test_paths_below_a_shown_folder_are_shown() -> None:
    assert not [one for one in hidden_from("generic", "~/.config") if "/.config}/" in one]
