"""The principal of a client on the Unix socket: its user, unless its process is one of an agent."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import resource
import shlex
import signal
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge.auth.config import AuthConfig
from bridge.auth.credentials import users_of
from bridge.auth.principal import OPERATOR, Grant, Token
from bridge.auth.unix_peer import names_processes
from bridge.errors import ConfigurationError
from bridge.process import cgroup, procfs
from bridge.sandbox import mark
from bridge.sandbox.profile import best
from bridge.sandbox.seccomp import SESSION_MARK
from bridge.server.local_peer import LocalOrigin
from tests.support import programs
from tests.support.bridge_process import bridge, environment, scripted
from tests.support.cab import Cab
from tests.support.client import Client, artifact_text, state, task_id
from tests.support.forked_command import run_forked
from tests.support.refusals import refused
from tests.support.sandboxed import needs_root
from tests.support.served import serving
from tests.support.unprivileged import NOBODY

GROUP = cgroup.home()
PROVED = best() == "landlock" and GROUP is not None and names_processes()
needs_proof = pytest.mark.skipif(
    not PROVED, reason="without Landlock, control groups and SO_PEERPIDFD, all need a token"
)
LEAKED = "the-operators-own-token"  # BRIDGE_TOKEN, as if an agent had come to know it
WITHIN = 60.0
# Sends a request as another user, and prints the status and the body.
AS_ANOTHER = """
import http.client, json, os, socket, sys
path, uid, gid, method, params, headers = sys.argv[1:]
"x".encode("idna")
os.setgroups([])
os.setgid(int(gid))
os.setuid(int(uid))
connection = http.client.HTTPConnection("localhost", timeout=20)
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.settimeout(20)
connection.sock.connect(path)
body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": json.loads(params)})
every = {"Content-Type": "application/json", "A2A-Version": "1.0", **json.loads(headers)}
connection.request("POST", "/a2a", body, every)
response = connection.getresponse()
print(json.dumps([response.status, json.loads(response.read())]))
"""


def socket_in(folder: Path, mode: int = 0o700) -> Path:
    (folder / "run").mkdir(mode=mode)
    (folder / "run").chmod(mode)
    return folder / "run/s"


async def ran(*command: str) -> tuple[str, str]:
    """stdout and stderr."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    async with asyncio.timeout(WITHIN):
        out, err = await process.communicate()
    return out.decode(), err.decode()


async def curl(path: Path, resource: str = "tasks", *options: str) -> tuple[int, str]:
    words = ("curl", "-s", "-w", "\n%{http_code}", "--unix-socket", str(path), *options)
    out, _ = await ran(*words, "-H", "A2A-Version: 1.0", f"http://localhost/{resource}")
    body, _, status = out.rpartition("\n")
    return int(status), body


async def as_another(
    path: Path,
    uid: int,
    *,
    gid: int = NOBODY,
    method: str = "ListTasks",
    params: Mapping[str, Any] = {},
    headers: Mapping[str, str] = {},
) -> tuple[int, Any]:
    given = (str(path), str(uid), str(gid), method, json.dumps(params), json.dumps(dict(headers)))
    out, err = await ran(sys.executable, "-I", "-S", "-c", AS_ANOTHER, *given)
    assert out, err
    status, body = json.loads(out)
    return status, body


# --- programs of the same user -------------------------------------------------------------------


@needs_proof
@programs.needed("curl")
async def test_programs_of_the_operator_need_no_token(workspace: Path) -> None:
    """Over a second: it starts three servers and some clients. The server has no TCP port."""
    path, home = socket_in(workspace.parent), workspace.parent / "home"
    env = {**scripted(workspace), "BRIDGE_AUTH": "auto", "BRIDGE_SANDBOX": "auto"}
    env |= {"PORT": "none", "BRIDGE_UNIX_SOCKET": str(path)}
    async with bridge(workspace, **env) as server:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert f"socket     {path}, where programs of this user need no token\n" in server.log
        assert server.url == "http://localhost"
        assert (await curl(path))[0] == 200
        for header in ("Forwarded", "X-Forwarded-For", "X-Forwarded-Proto", "X-Real-IP", "Via"):
            assert (await curl(path, "tasks", "-H", f"{header}: x"))[0] == 401
        credentials = f"Authorization: {server.credentials['Authorization']}"
        assert (await curl(path, "tasks", "-H", "Via: x", "-H", credentials))[0] == 200
        assert (await curl(path, "tasks", "-H", "Authorization: Bearer x"))[0] == 401
        for name in (".well-known/agent-card.json", "agents"):
            code, body = await curl(path, name, "-H", "Host: 127.0.0.1:99")
            assert code == 200 and "http://localhost/" in body
            assert "127.0.0.1" not in body and str(path.parent) not in body
        audit = (workspace.parent / "state/audit.jsonl").read_text().splitlines()
        assert {json.loads(line)["peer"] for line in audit} == {f"uid:{os.geteuid()}"}
        await check_client(workspace, path, home)
        second = await second_server(workspace, {**env, "BRIDGE_STATE_DIR": str(home / "other")})
        assert f"cannot listen on {path}: another server listens there" in second
        assert (await curl(path))[0] == 200
        server.process.send_signal(signal.SIGKILL)
        await server.ended()
    assert path.is_socket()
    async with bridge(workspace, **env):
        assert (await curl(path))[0] == 200
    assert not path.exists()


async def check_client(workspace: Path, path: Path, home: Path) -> None:
    """Of the command line: it finds the server, and takes the path of the socket."""
    finds = Cab(workspace, home, BRIDGE_STATE_DIR=str(workspace.parent / "state"))
    sent = await finds.run("send", "text hello")
    assert sent.field("State") == "completed", sent.error
    named = Cab(workspace, home)
    listed = await named.run("task", "list", "-a", f"unix:{path}", "-o", "json")
    assert len(listed.json["tasks"]) == 1
    assert (await named.run("agents", "-a", f"unix:{path}")).status == 0
    missing = await named.run("task", "list", "-a", "unix:/none")
    assert "cannot reach unix:/none: No such file or directory" in missing.err


async def second_server(workspace: Path, env: dict[str, Any]) -> str:
    home, variables = environment(workspace, env)
    done = await asyncio.to_thread(run_forked, (), cwd=home, env=variables)
    assert done.returncode == 1
    return done.stderr


# --- other users ---------------------------------------------------------------------------------


@needs_root
@needs_proof
async def test_other_users_are_those_of_the_configuration(reachable: Path) -> None:
    """Over a second: it starts a server and an interpreter for each request."""
    path, workspace = socket_in(reachable, 0o755), reachable / "workspace"
    workspace.mkdir()
    listed, admin, unlisted = NOBODY, 1, 2
    config = reachable / "config.toml"
    config.write_text(
        f"""
        [unix_users.nobody]
        tasks = 5
        [unix_users.{pwd.getpwuid(admin).pw_name}]
        scopes = ["admin"]
        """
    )
    env = {**scripted(workspace), "BRIDGE_AUTH": "auto", "BRIDGE_SANDBOX": "auto"}
    env |= {"BRIDGE_UNIX_SOCKET": str(path), "BRIDGE_UNIX_GROUP": "nogroup"}
    async with bridge(workspace, **env, CONFIG_FILE=str(config)) as server:
        async with aiohttp.ClientSession(headers=server.credentials) as http:
            own = task_id(await Client(http, server.url).send("text of the operator"))
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "text x"}]}
        code, sent = await as_another(
            path, listed, method="SendMessage", params={"message": message}
        )
        assert code == 200 and sent["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        theirs = sent["result"]["task"]["id"]
        assert await tasks_of(path, listed) == {theirs}
        assert await tasks_of(path, admin) == {own, theirs}
        assert (await as_another(path, listed, headers={"Via": "1.1 proxy"}))[0] == 401
        assert (await as_another(path, unlisted))[0] == 401  # a member of the group
        assert (await as_another(path, unlisted, headers=server.credentials))[0] == 200
        with pytest.raises(AssertionError, match="PermissionError"):
            await as_another(path, listed, gid=unlisted)


async def tasks_of(path: Path, uid: int) -> set[str]:
    code, body = await as_another(path, uid)
    assert code == 200
    return {one["id"] for one in body["result"]["tasks"]}


@needs_root
async def test_users_share_neither_their_connections_nor_their_rights(reachable: Path) -> None:
    """A server without authentication has the user of the server as its operator, and no other."""
    path, workspace = socket_in(reachable, 0o755), reachable / "workspace"
    workspace.mkdir()
    settings = {"bridge_unix_socket": str(path), "bridge_max_connections_per_peer": 2}
    async with serving(workspace, **settings):  # type: ignore[arg-type]
        path.chmod(0o666)
        opened = [await asyncio.open_unix_connection(str(path)) for _ in range(3)]
        refusals = [await refusal_of(reader) for reader, _ in opened[2:]]
        assert refusals == [b"HTTP/1.1 503 Service Unavailable\r\n"]
        assert (await as_another(path, NOBODY))[0] == 401
        for _, writer in opened:
            writer.close()


async def refusal_of(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(WITHIN):
        return await reader.readline()


@pytest.mark.parametrize(
    ("config", "about"),
    [
        (AuthConfig(unix_users={"no-such-user": Grant()}), "unknown user no-such-user"),
        (AuthConfig(unix_users={"4294967295": Grant()}), "unknown user 4294967295"),
        (AuthConfig(unix_users={str(os.geteuid()): Grant()}), "the user of the server"),
        (AuthConfig(unix_users={"nobody": Grant(), str(NOBODY): Grant()}), "are one user"),
        (AuthConfig(unix_users={"timeout": Grant()}), "unknown user"),
        (
            AuthConfig(unix_users={"nobody": Grant()}, tokens={"nobody": Token(hash="x")}),
            "have the same name",
        ),
    ],
)
def test_ambiguous_users_are_refused(config: AuthConfig, about: str) -> None:
    with pytest.raises(ConfigurationError, match=about):
        users_of(config)


def test_a_listed_user_is_no_admin_unless_this_is_written() -> None:
    found = users_of(AuthConfig(unix_users={"nobody": Grant(workspaces=("/usr",))}))
    assert found.pop(os.geteuid()) == OPERATOR
    (other,) = found.values()
    assert (other.id, other.workspaces) == ("nobody", ("/usr",))
    assert other.scopes == {"run", "read", "cancel", "approve"}
    assert users_of(AuthConfig(same_user=False)) == {}


@pytest.mark.parametrize(
    ("env", "about"),
    [
        ({"PORT": "none"}, "PORT=none requires BRIDGE_UNIX_SOCKET"),
        ({"BRIDGE_UNIX_GROUP": "nogroup"}, "BRIDGE_UNIX_GROUP requires BRIDGE_UNIX_SOCKET"),
        ({"BRIDGE_UNIX_SOCKET": "WORKSPACE/s"}, "can be changed by agents"),
        ({"BRIDGE_UNIX_SOCKET": "/dev/null/s"}, "cannot use the folder /dev/null"),
    ],
)
def test_wrong_settings_are_refused(workspace: Path, env: dict[str, str], about: str) -> None:
    given = {name: text.replace("WORKSPACE", str(workspace)) for name, text in env.items()}
    assert about in refused(workspace, **scripted(workspace), **given)


# --- agents --------------------------------------------------------------------------------------

# For the adapter `jsonl`: the prompt is a program. Each user can run this interpreter.
RUNS = """#!/usr/bin/python3 -IS
import json, subprocess, sys
for line in sys.stdin:
    prompt = json.loads(line)
    if prompt["type"] == "prompt":
        command = ["/bin/sh", "-c", prompt["text"]]
        done = subprocess.run(command, stdout=-1, stderr=-2, stdin=-3, timeout=30)
        print(json.dumps({"type": "text", "text": done.stdout.decode()}))
        print(json.dumps({"type": "done"}), flush=True)
"""
ATTEMPTS = """
status() { curl -s -o /dev/null -w '%{http_code} ' --unix-socket SOCKET -H 'A2A-Version: 1.0' \
"$@" http://localhost/tasks; }
status
status -H 'Authorization: Bearer TOKEN'
mkfifo orphan
for header in 'X: x' 'Authorization: Bearer TOKEN'; do
    (env -i setsid CURL -s -o /dev/null -w '%{http_code} ' --unix-socket SOCKET \
-H 'A2A-Version: 1.0' -H "$header" http://localhost/tasks > orphan &)
    cat orphan
done
({ echo 0 > GROUP/cgroup.procs; } 2> /dev/null && status -H 'Authorization: Bearer TOKEN' \
|| printf 'stays ')
test -e SOCKET && echo visible || echo hidden
"""
EXPECTED = {
    ("none", "auto"): ["401", "403", "401", "403", "403" if GROUP else "stays", "visible"],
    ("none", "none"): ["403", "403", "403", "403", "403" if GROUP else "stays", "visible"],
    ("landlock", "auto"): ["401", "403", "401", "403", "stays", "visible"],
    ("bwrap", "auto"): ["000", "000", "000", "000", "stays", "hidden"],
}
"""The attempts by profile and BRIDGE_AUTH. Landlock does not hide names. An agent that leaves its
control group keeps its mark."""


@programs.needed("curl")
@pytest.mark.parametrize(
    "profile",
    [
        pytest.param({"BRIDGE_SANDBOX": "none"}, id="none"),
        pytest.param({"BRIDGE_SANDBOX": "none", "BRIDGE_AUTH": "none"}, id="open"),
        pytest.param({"BRIDGE_SANDBOX": "landlock"}, id="landlock", marks=needs_proof),
        pytest.param({"BRIDGE_SANDBOX": "bwrap"}, id="bwrap", marks=programs.needed("bwrap")),
        pytest.param(
            {"BRIDGE_SANDBOX_USER": "nobody", "BRIDGE_SANDBOX": "landlock"},
            id="user",
            marks=[needs_proof, needs_root],
        ),
    ],
)
async def test_an_agent_is_no_user(reachable: Path, profile: dict[str, str]) -> None:
    """Over a second: it starts a server and clients. The agent may use all Unix sockets, and its
    user is one of the configuration."""
    path, workspace = socket_in(reachable, 0o755), reachable / "workspace"
    workspace.mkdir(mode=0o777)
    workspace.chmod(0o777)
    (reachable / "config.toml").write_text("[unix_users.nobody]\n")
    program = reachable / "cli"
    program.write_text(RUNS)
    program.chmod(0o755)
    env: dict[str, Any] = {"AGENT_ADAPTER": "jsonl", "AGENT_BINARY": str(program)}
    env |= {"BRIDGE_AUTH": "auto", "BRIDGE_TOKEN": LEAKED, **profile}
    env |= {"BRIDGE_UNIX_SOCKET": str(path), "BRIDGE_STATE_DIR": str(reachable / "state")}
    if os.geteuid() == 0:
        env |= {"BRIDGE_UNIX_GROUP": "nogroup", "CONFIG_FILE": str(reachable / "config.toml")}
    if profile["BRIDGE_SANDBOX"] != "none":
        env["BRIDGE_SANDBOX_UNIX_SOCKETS"] = "allow"
    values = {"SOCKET": str(path), "TOKEN": LEAKED, "GROUP": str(GROUP or "/none")}
    script = ATTEMPTS.replace("CURL", (await ran("which", "curl"))[0].strip())
    for name, value in values.items():
        script = script.replace(name, shlex.quote(value) if name != "TOKEN" else value)
    async with bridge(workspace, **env) as server:
        headers = {"Authorization": f"Bearer {LEAKED}"}
        async with aiohttp.ClientSession(headers=headers) as http:
            told = await Client(http, server.url).send(script)
            assert state(told) == "completed", server.log
        assert artifact_text(told).split() == EXPECTED[env["BRIDGE_SANDBOX"], env["BRIDGE_AUTH"]]
        # A program of the operator, for comparison. Agents without walls can leave their group.
        needs_token = (env["BRIDGE_SANDBOX"], env["BRIDGE_AUTH"]) == ("none", "auto")
        assert (await curl(path))[0] == (401 if needs_token else 200)
        assert (await curl(path, "tasks", "-H", f"Authorization: Bearer {LEAKED}"))[0] == 200


CONNECTS = """
import socket, sys
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
client.recv(1)
"""


@needs_proof
@pytest.mark.parametrize(
    ("marker", "marked", "walled", "session"),
    [
        ("ours.", "ours.one", False, "ours.one"),
        ("ours.", "ours.one", True, "ours.one"),
        ("ours.", "ours.two", False, ""),  # it has changed its environment
        ("others.", "ours.one", False, ""),
        ("ours.", None, True, None),
    ],
)
async def test_the_session_of_a_process_is_known(
    tmp_path: Path, marker: str, marked: str | None, walled: bool, session: str | None
) -> None:
    """A child of this process, which has the part of the server, in the control group of the
    server. MCP limits the depth of delegations by the session."""
    writers: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    server = await asyncio.start_unix_server(
        lambda _, writer: writers.put_nowait(writer), tmp_path / "s"
    )
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-c", CONNECTS, str(tmp_path / "s")),
        env={procfs.MARKER: "ours.one"},
    )
    if marked:
        resource.prlimit(child.pid, SESSION_MARK, mark.of(marked))
    origin = LocalOrigin(marker, walled)
    async with asyncio.timeout(WITHIN):
        writer = await writers.get()
        transport = writer.transport
        assert await origin.session(transport) == session
        assert await origin.is_outside(transport) is (session is None)
        assert await origin.is_proved_outside(transport) is (session is None)
        child.kill()
        await child.wait()
        assert await LocalOrigin(marker, walled).is_outside(transport) is False
    writer.close()
    server.close()
