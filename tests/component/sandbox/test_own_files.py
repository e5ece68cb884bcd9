"""Files of the server: the forbidden places, and the programs that cannot read them."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge.sandbox.own_files import reachable
from bridge.sandbox.profile import best
from tests import CHECKOUT
from tests.support.agent import PROGRAM
from tests.support.bridge_process import bridge
from tests.support.client import Client, artifact_text, said, state
from tests.support.refusals import refused

SCRIPTED: dict[str, Any] = {
    "AGENT_ADAPTER": "jsonl",
    "AGENT_BINARY": sys.executable,
    "AGENT_ARGS": f"-I -S {PROGRAM}",
    "BRIDGE_AUTH": "auto",
}
TOKEN = "the-token-in-the-file"
CONTENT = {
    "CONFIG_FILE": "log_level = 'INFO'",
    "BRIDGE_TOKEN_FILE": TOKEN,
    "BRIDGE_STORE_FILE": "memory",
    "BRIDGE_BUS_FILE": "notify",
    "BRIDGE_PUSH_KEY_FILE": "a key that the embedded store does not use",
    "BRIDGE_AUDIT_FILE": "",
    "BRIDGE_CARD_KEYS": '{"keys": []}',
    "BRIDGE_OIDC_JWKS": '{"keys": []}',
    "--env-file": "LOG_LEVEL=INFO",
}
"""What the server reads, or writes to, with something that it takes."""
MORE = {
    "BRIDGE_OIDC_JWKS": {
        "BRIDGE_OIDC_ISSUER": "https://issuer.example",
        "BRIDGE_OIDC_AUDIENCE": "bridge",
    }
}


def given(name: str, path: Path) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The command line and the variables that name the file."""
    if name.startswith("--"):
        return (name, str(path)), {}
    return (), {name: str(path), **MORE.get(name, {})}


def place(name: str, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if name.endswith("_DIR"):
        path.mkdir(mode=0o700)
    else:
        path.write_text(CONTENT[name])
        path.chmod(0o600)
    return path


@pytest.mark.parametrize("way", ["inside", "link inside", "link to it", "folder", "may write"])
@pytest.mark.parametrize("name", [*CONTENT, "BRIDGE_STATE_DIR"])
def test_a_file_that_agents_could_change_is_refused(workspace: Path, name: str, way: str) -> None:
    """In the workspace, as a link there, by a link to it, through a linked folder of it, and in
    paths of BRIDGE_SANDBOX_WRITE."""
    outside, env = workspace.parent / "outside", dict(SCRIPTED)
    match way:
        case "inside":
            path = place(name, workspace / "sub/file")
        case "link inside":
            path = workspace / "link"
            path.symlink_to(place(name, outside / "file"))
        case "link to it":
            place(name, workspace / "file")
            path = workspace.parent / "link"
            path.symlink_to(workspace / "file")
        case "folder":
            place(name, outside / "file")
            (workspace / "folder").symlink_to(outside)
            path = workspace / "folder/file"
        case _:
            path = place(name, outside / "file")
            env["BRIDGE_SANDBOX_WRITE"] = str(outside)
    arguments, variables = given(name, path)
    before = path.read_text() if path.is_file() else ""
    log = refused(workspace, *arguments, **{**env, **variables})
    assert "can be changed by agents" in log and f"{name}: {path}" in log, log
    assert not path.is_file() or path.read_text() == before


def test_a_workspace_that_has_the_state_folder_is_refused(workspace: Path) -> None:
    env = {**SCRIPTED, "XDG_STATE_HOME": str(workspace / "state")}
    for port in ("0", "41999"):
        assert "AGENT_REPO_PATH). Move it" in refused(workspace, **env, PORT=port)


def test_each_folder_on_the_way_counts(tmp_path: Path) -> None:
    work, other = tmp_path / "work", tmp_path / "other"
    for folder in (work, other):
        folder.mkdir()
    (other / "file").touch()
    (work / "back").symlink_to("../other")
    (tmp_path / "first").symlink_to("work/back/file")
    (other / "loop").symlink_to("loop")
    assert reachable(str(tmp_path / "first"), [str(work)]) == str(work)
    assert reachable(str(work / "../other/file"), [str(work)]) is None
    assert reachable(str(other / "file"), [str(work)]) is None
    assert reachable(str(other / "loop"), [str(work)]) is None
    assert reachable(str(other / "file"), [str(other / "file")]) == str(other / "file")
    assert reachable(str(work / "not/there"), [str(work)]) == str(work)


@pytest.mark.skipif(best() != "landlock", reason="this kernel has no Landlock")
async def test_agents_read_none_of_them(workspace: Path) -> None:
    outside = workspace.parent / "outside"
    paths = {name: place(name, outside / name.strip("-")) for name in CONTENT}
    arguments: tuple[str, ...] = ()
    env = {**SCRIPTED, "BRIDGE_SANDBOX": "landlock", "BRIDGE_CARD": "1.0"}
    env |= {"AGENT_ADAPTER": "generic", "AGENT_BINARY": "/bin/sh", "AGENT_ARGS": "-c '{prompt}' sh"}
    del paths["BRIDGE_CARD_KEYS"]  # keys that work are another test's
    for name, path in paths.items():
        more, variables = given(name, path)
        arguments, env = arguments + more, {**env, **variables}
    readable = workspace.parent / "readable"
    readable.write_text("this one")
    script = "".join(f"cat {one} 2>&1\n" for one in (*paths.values(), readable))
    async with bridge(workspace, *arguments, **env) as server:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with aiohttp.ClientSession(headers=headers) as http:
            task = await Client(http, server.url).send(
                f"{script}\ncat {server.token_file} 2>&1\ntrue"
            )
    assert state(task) == "completed", said(task)
    lines = artifact_text(task).strip().splitlines()
    denied = [line for line in lines if "Permission denied" in line]
    assert len(denied) == len(paths) + 1 and "this one" in artifact_text(task), lines


# --- BRIDGE_TOKEN_FILE -------------------------------------------------------------------------


async def asked(url: str) -> int:
    headers = {"A2A-Version": "1.0", "Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession() as http, http.get(f"{url}/tasks", headers=headers) as got:
        return got.status


async def test_a_token_comes_from_a_file_and_from_nowhere_in_the_process_list(
    workspace: Path,
) -> None:
    path = place("BRIDGE_TOKEN_FILE", workspace.parent / "token")
    async with bridge(workspace, "--token-file", str(path), **SCRIPTED) as server:
        assert await asked(server.url) == 200
    path.chmod(0o640)  # as a service manager or Kubernetes gives it to a group
    async with bridge(workspace, **SCRIPTED, BRIDGE_TOKEN_FILE=str(path)) as server:
        assert await asked(server.url) == 200


@pytest.mark.parametrize(
    ("content", "mode", "about"),
    [
        (TOKEN, 0o602, "every user may write"),
        (TOKEN, 0o644, "0644, wider than 0640"),
        (TOKEN, 0o660, "0660, wider than 0640"),
        ("", 0o600, "exactly one line"),
        (f"{TOKEN}\n{TOKEN}", 0o600, "exactly one line"),
        ("short", 0o600, "BRIDGE_TOKEN"),
        (None, 0o600, "cannot read"),
    ],
)
def test_a_token_file_that_cannot_be_taken(
    workspace: Path, content: str | None, mode: int, about: str
) -> None:
    path = workspace.parent / "token"
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    log = refused(workspace, **SCRIPTED, BRIDGE_TOKEN_FILE=str(path))
    assert about in log and TOKEN not in log


def test_two_tokens_of_the_operator_are_refused(workspace: Path) -> None:
    path = place("BRIDGE_TOKEN_FILE", workspace.parent / "token")
    env = {**SCRIPTED, "BRIDGE_TOKEN_FILE": str(path), "BRIDGE_TOKEN": "another-one-of-16"}
    assert "both set" in refused(workspace, **env)


async def test_the_error_for_a_token_on_the_command_line_names_the_alternative() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bridge", "--token", TOKEN),
        cwd=CHECKOUT,
        stderr=asyncio.subprocess.PIPE,
    )
    _, problem = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 2
    assert b"--token-file FILE" in problem and TOKEN.encode() not in problem


# --- variables that are no settings ------------------------------------------------------------


async def test_misspelt_variables_are_said(workspace: Path) -> None:
    dotenv = workspace.parent / "env"
    dotenv.write_text("BRIDGE_SANDBOX_WRITES=/x\n")
    env: dict[str, Any] = {
        **{"BRIDGE_TOKN": TOKEN, "AGENT_ADAPTOR": "jsonl", "BRIDGE_NOTHING_LIKE_IT": "1"},
        **{"AGENT_TOOLSDIRECTORY": "/opt", "BRIDGE_URL": "http://x", "BRIDGE_MCP": "auto"},
        **{"A2ACLI_BEARER": "x", "AGENT_MINE": "x", "AGENT_ENV": "AGENT_MINE"},
    }
    async with bridge(workspace, "--env-file", str(dotenv), **SCRIPTED, **env) as server:
        log = server.log
    said = json.dumps([line for line in log.splitlines() if "Unknown setting" in line])
    assert "Unknown setting BRIDGE_TOKN was ignored. Did you mean BRIDGE_TOKEN?" in said
    assert "Did you mean AGENT_ADAPTER?" in said
    assert "Did you mean BRIDGE_SANDBOX_WRITE?" in said
    assert "Unknown setting BRIDGE_NOTHING_LIKE_IT" in said
    for name in ("TOOLSDIRECTORY", "BRIDGE_URL", "BRIDGE_MCP", "A2ACLI", "AGENT_MINE"):
        assert name not in said
    assert TOKEN not in log
