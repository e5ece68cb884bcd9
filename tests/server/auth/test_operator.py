"""The operator's token, and that nothing which the server has started can use it."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import re
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge.process import cgroup
from bridge.sandbox.profile import best
from tests.support import intruder
from tests.support.agent import PROGRAM
from tests.support.bridge_process import bridge
from tests.support.client import Client, artifact_text, said, state, task_id

AUTO: dict[str, Any] = {"BRIDGE_AUTH": "auto"}
SCRIPTED: dict[str, Any] = {
    **AUTO,
    "AGENT_ADAPTER": "jsonl",
    "AGENT_BINARY": sys.executable,
    "AGENT_ARGS": f"-I -S {PROGRAM}",
}
LEAKED = "the-operators-own-token"  # BRIDGE_TOKEN, as if an agent had come to know it
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


async def status(url: str, **headers: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"{url}/tasks", headers={"A2A-Version": "1.0", **headers}) as response,
    ):
        return response.status, await response.text()


# --- agents --------------------------------------------------------------------------------------


@pytest.fixture
def ground() -> Iterator[Path]:
    """A workspace that every user can reach and the user `nobody` can write."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o755)
    workspace = folder / "workspace"
    workspace.mkdir()
    workspace.chmod(0o777)
    shutil.copy(intruder.PROGRAM, workspace)
    yield workspace
    shutil.rmtree(folder)


def config(ground: Path, **spy: str) -> str:
    program = str(ground / "intruder.py")
    path = ground.parent / "config.toml"
    path.write_text(
        f"""
        [agents.{intruder.OTHER}]
        adapter = "jsonl"
        binary = {sys.executable!r}
        args = ["-I", "-S", {PROGRAM!r}]
        sandbox = "none"
        [agents.spy]
        adapter = "jsonl"
        binary = "/usr/bin/python3"
        args = ["-I", "-S", {program!r}]
        """
        + "".join(f"{name} = {value!r}\n" for name, value in spy.items())
    )
    return str(path)


PROFILES = [
    pytest.param({"sandbox": "none"}, id="none"),
    pytest.param({"sandbox": "landlock"}, id="landlock"),
    pytest.param({"sandbox": "bwrap"}, id="bwrap"),
    pytest.param({"sandbox_user": "nobody"}, id="user", marks=needs_root),
]


@pytest.mark.parametrize("spy", PROFILES)
async def test_an_agent_is_never_the_operator(ground: Path, spy: dict[str, str]) -> None:
    """Over a second: it starts two CLIs and makes fifteen requests, some from new interpreters."""
    if spy.get("sandbox") == "landlock" and best() != "landlock":
        pytest.skip("this kernel has no Landlock")
    env = {
        **AUTO,
        "CONFIG_FILE": config(ground, **spy),
        "HOST": "0.0.0.0",
        "BRIDGE_TOKEN": LEAKED,
        "BRIDGE_STATE_DIR": str(ground.parent / "state"),
    }
    async with bridge(ground, **env) as server:
        async with aiohttp.ClientSession(headers=server.credentials) as http:
            client = Client(http, server.url.replace("0.0.0.0", "127.0.0.1"))
            waiting = await client.send("permit q May I?")
            assert state(waiting) == "input-required"
            group = cgroup.home()
            at = {
                "address": own_address(),
                "port": int(server.url.rpartition(":")[2]),
                "tokens": [str(server.token_file), LEAKED],
                "task": task_id(waiting),
                "group": str(group or ""),
            }
            told = await client.send(json.dumps(at), metadata={"bridge": {"agent": "spy"}})
            assert state(told) == "completed", said(told)
            results = json.loads(artifact_text(told))
            assert state(await client.get(task_id(waiting))) == "input-required"
            tasks = (await client.call("ListTasks", {}))["tasks"]
            assert {one["id"] for one in tasks} == {task_id(waiting), task_id(told)}
    walls = spy != {"sandbox": "none"}
    refused = {name: found for name, found in results.items() if "without" in name}
    assert set(refused.values()) == {401} and len(refused) == 3
    if walls:
        assert results["read 0"]  # the reason
    numbers = (1,) if walls else (0, 1)
    for number in numbers:
        for name in ("list", "answer", "delegate", "half-closed", "own address"):
            assert results[f"{name} {number}"] in (403, "RemoteDisconnected"), results
        assert results[f"orphan {number}"] == "403"
        assert results[f"hidden socket {number}"] == 403
        if group:
            left = results[f"out of its group {number}"]
            assert left == ("it cannot leave it" if walls else 403), results


@pytest.mark.parametrize("spy", PROFILES)
async def test_an_agent_is_not_the_operator_where_no_token_is_needed(
    ground: Path, spy: dict[str, str]
) -> None:
    """Over a second: it starts two CLIs, and processes that make the requests."""
    if spy.get("sandbox") == "landlock" and best() != "landlock":
        pytest.skip("this kernel has no Landlock")
    async with bridge(ground, CONFIG_FILE=config(ground, **spy), BRIDGE_AUTH="none") as server:
        async with aiohttp.ClientSession() as http:
            client = Client(http, server.url)
            waiting = await client.send("permit q May I?")
            at = {
                "address": "127.0.0.1",
                "port": int(server.url.rpartition(":")[2]),
                "tokens": ["any"],
                "task": task_id(waiting),
                "group": str(cgroup.home() or "") if spy != {"sandbox": "none"} else "",
            }
            told = await client.send(json.dumps(at), metadata={"bridge": {"agent": "spy"}})
            assert state(told) == "completed", said(told)
            assert state(await client.get(task_id(waiting))) == "input-required"
        assert (await status(server.url))[0] == 200
    results = json.loads(artifact_text(told))
    assert results.pop("out of its group 0") in ("it cannot leave it", "there are no groups", 403)
    assert len(results) == 10
    assert {str(one) for one in results.values()} <= {"403", "RemoteDisconnected"}, results


# --- the file ------------------------------------------------------------------------------------


async def test_the_token_is_made_once_and_is_private(workspace: Path) -> None:
    env = {**SCRIPTED, "BRIDGE_STATE_DIR": str(workspace.parent / "state")}
    async with bridge(workspace, **env) as server:
        path = server.token_file
        first = server.credentials
        assert path == workspace.parent / "state/token"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert (await status(server.url, **first))[0] == 200
        code, text = await status(server.url)
        assert code == 401
        assert f'curl -H \\"Authorization: Bearer $(cat {path})\\"' in text  # in JSON
        for header in ("Forwarded", "X-Forwarded-For", "Via"):
            code, text = await status(server.url, **{header: "192.0.2.1"})
            assert (
                code == 401 and str(path.parent) not in text and "coding-agent-bridge token" in text
            )
        assert (await status(server.url, Authorization="Bearer x"))[0] == 401
    async with bridge(workspace, **env) as server:
        assert server.credentials == first
        assert (await status(server.url, **first))[0] == 200


@pytest.mark.parametrize("way", ["wide", "linked", "symbolic", "foreign", "empty", "folder"])
async def test_a_token_that_others_may_know_is_replaced(workspace: Path, way: str) -> None:
    folder = workspace.parent / "state"
    folder.mkdir(mode=0o700)
    path, other = folder / "token", workspace.parent / "another"
    known = "k" * 43
    other.write_text(f"{known}\n")
    other.chmod(0o600)
    match way:
        case "wide":
            shutil.copy(other, path)
            path.chmod(0o644)
        case "linked":
            os.link(other, path)
        case "symbolic":
            path.symlink_to(other)
        case "foreign":
            if os.geteuid() != 0:
                pytest.skip("only root can give a file away")
            shutil.copy(other, path)
            path.chmod(0o600)
            os.chown(path, pwd.getpwnam("nobody").pw_uid, -1)
        case "empty":
            path.touch(0o600)
        case "folder":
            path.mkdir()
    env = {**SCRIPTED, "BRIDGE_STATE_DIR": str(folder)}
    if way == "folder":
        with pytest.raises(AssertionError, match="cannot store the operator token"):
            async with bridge(workspace, **env):
                pass
        return
    async with bridge(workspace, **env) as server:
        assert "the operator token was replaced" in server.log
        assert (await status(server.url, Authorization=f"Bearer {known}"))[0] == 401
        assert (await status(server.url, **server.credentials))[0] == 200
    assert other.read_text() == f"{known}\n"
    assert not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("env", [{}, {"BRIDGE_STORE": "memory", "BRIDGE_STATE_DIR": "{state}"}])
async def test_a_server_without_state_has_its_token_as_long_as_it_runs(
    workspace: Path, env: dict[str, str]
) -> None:
    state_dir = str(workspace.parent / "state")
    every = {**SCRIPTED, **{name: text.format(state=state_dir) for name, text in env.items()}}
    beside = workspace.parent / "home/.local/state/coding-agent-bridge"
    async with bridge(workspace, **every) as server:
        path = server.token_file
        assert path.parent == beside / f"pid-{server.process.pid}"
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert (await status(server.url, **server.credentials))[0] == 200
        async with bridge(workspace, **every) as another:
            assert another.credentials != server.credentials
            assert (await status(another.url, **server.credentials))[0] == 401
            another.process.kill()
            await another.ended()
            assert another.token_file.exists()
        async with bridge(workspace, **every):
            assert not another.token_file.parent.exists()
            assert path.exists()
    assert os.listdir(beside) == ["places"]


async def test_the_error_for_an_unusable_state_folder_names_the_remedy(workspace: Path) -> None:
    (workspace.parent / "file").touch()
    with pytest.raises(AssertionError, match="set BRIDGE_STATE_DIR to a writable folder"):
        async with bridge(workspace, **SCRIPTED, XDG_STATE_HOME=str(workspace.parent / "file")):
            pass


# --- clients -------------------------------------------------------------------------------------


async def test_the_command_in_the_banner_works(workspace: Path) -> None:
    """In a folder whose name needs quotes in a shell."""
    env = {**SCRIPTED, "BRIDGE_STATE_DIR": str(workspace.parent / "the $(state) 'of' it")}
    async with bridge(workspace, **env) as server:
        line = re.search(r"try it +(.+)", server.log)
        assert line
        home = {"PATH": os.environ["PATH"], "HOME": str(workspace.parent / "home")}
        process = await asyncio.create_subprocess_exec(
            *("sh", "-c", line[1]),
            env=home,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert b"State: completed" in out


def own_address() -> str:
    """One of this machine that is not loopback's; loopback's where it has no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # which sends nothing
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0"])
@pytest.mark.parametrize("sandbox", ["none", "auto"])
async def test_programs_of_the_operator_are_distinguished_from_agents(
    workspace: Path, host: str, sandbox: str
) -> None:
    """Over either family, with and without an agent that could leave its group."""
    everywhere = host == "0.0.0.0"
    env = {**SCRIPTED, "HOST": host, "BRIDGE_SANDBOX": sandbox, "BRIDGE_TOKEN": LEAKED}
    async with bridge(workspace, **env) as server:
        port = server.url.rpartition(":")[2]
        for name in ("127.0.0.1", own_address()) if everywhere else (host,):
            url = f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"
            assert (await status(url))[0] == 401
            for token in (server.credentials, {"Authorization": f"Bearer {LEAKED}"}):
                assert (await status(url, **token))[0] == 200


async def test_a_proxy_passes_on_the_credentials_of_a_client(workspace: Path) -> None:
    """A forwarder on this machine, such as that of ssh -R, gives its clients no rights of the
    operator."""
    async with bridge(workspace, **SCRIPTED) as server:
        for header in ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via"):
            assert (await status(server.url, **{header: "192.0.2.1"}))[0] == 401
            headers = {header: "192.0.2.1", **server.credentials}
            assert (await status(server.url, **headers))[0] == 200


async def test_a_token_that_an_agent_has_opened_to_others_is_replaced(workspace: Path) -> None:
    """At its next use, also over an open connection."""
    async with bridge(workspace, **AUTO, BRIDGE_STATE_DIR=str(workspace.parent / "s")) as server:
        file = workspace.parent / "s" / "token"
        old = file.read_text().strip()
        assert (await status(server.url, Authorization=f"Bearer {old}"))[0] == 200
        file.chmod(0o644)
        assert (await status(server.url, Authorization=f"Bearer {old}"))[0] == 401
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        await server.logged("others had access to the operator token")
        new = file.read_text().strip()
        assert (await status(server.url, Authorization=f"Bearer {new}"))[0] == 200
        assert (await status(server.url, Authorization=f"Bearer {old}"))[0] == 401
