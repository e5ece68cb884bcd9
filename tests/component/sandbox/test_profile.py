"""BRIDGE_SANDBOX through the real server: the resources that a CLI can reach. The boundary itself
is tested in tests/component/sandbox/test_confine.py, one attempt after the other."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import pwd
import re
import shutil
import signal
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge.errors import ConfigurationError
from bridge.process import cgroup
from bridge.sandbox.profile import Sandbox, find_user, let_through
from bridge.server import registry
from bridge.task.message import Message, RawPart, Role, UrlPart
from bridge.workspace.attachments import Attachments
from bridge.workspace.paths import Workspaces
from tests import CHECKOUT
from tests.support import programs
from tests.support.bridge_process import bridge
from tests.support.cases import each
from tests.support.client import Client, RpcError, artifact_text, context_id, said, state
from tests.support.confined import CONFINED
from tests.support.real_claude_code import reason
from tests.support.sandboxed import (
    SHELL,
    needs_landlock,
    needs_root,
    refused_shell,
    serving_shell,
    shell,
)

# Speaks as tests/support/agent.py does, for a user who cannot read that, or our Python.
SPEAKS = """#!/usr/bin/python3 -IS
import json, os, sys
def say(**members):
    print(json.dumps(members), flush=True)
for line in sys.stdin:
"""
AS_SOMEBODY = (
    SPEAKS
    + """
    open(os.environ["TMPDIR"] + "/x", "w").close()
    open("written", "w").close()
    try:
        seen = open("/proc/%d/environ" % os.getppid()).read()
    except OSError as error:
        seen = error.strerror
    told = {"uid": os.getuid(), "groups": os.getgroups(), "home": os.environ["HOME"]}
    told |= {"owner": os.stat("written").st_uid, "environ": seen}
    say(type="text", text=json.dumps(told))
    say(type="done")
"""
)
MANY = (
    SPEAKS
    + """
    count = 0
    try:
        while count < 100:
            if os.fork() == 0:
                os.execv("/bin/sleep", ["sleep", "60"])
            count += 1
    except OSError:
        pass
    say(type="text", text=str(count))
    say(type="done")
"""
)


@needs_landlock
async def test_it_writes_in_its_workspace_and_its_own_folder_for_scratch(workspace: Path) -> None:
    home = workspace.parent / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/id").write_text("the key")
    attempts = """
        echo x > inside && echo inside
        echo x > "$TMPDIR/scratch" && echo scratch
        (echo x > ~/outside) 2>/dev/null && echo home
        (echo x > ../beside) 2>/dev/null && echo beside
        cat ~/.ssh/id 2>/dev/null
        cat ~/readable
        true
    """
    (home / "readable").write_text("readable\n")
    async with shell(workspace) as client:
        task = await client.send(attempts)
        assert (state(task), artifact_text(task)) == ("completed", "inside\nscratch\nreadable\n")


@needs_landlock
async def test_further_paths_can_be_allowed(workspace: Path) -> None:
    other = workspace.parent / "other"
    other.mkdir()
    async with shell(workspace, BRIDGE_SANDBOX_WRITE=str(other)) as client:
        task = await client.send(f"echo x > {other}/file && echo written")
        assert artifact_text(task) == "written\n"


@pytest.mark.parametrize("profile", ["none", *CONFINED])
async def test_a_cli_on_a_terminal_works_in_each_sandbox(workspace: Path, profile: str) -> None:
    """Over a second: it starts a server, the runner and the terminal of a CLI."""
    async with shell(workspace, BRIDGE_SANDBOX=profile, AGENT_PTY="true") as client:
        for _ in range(2):
            task = await client.send("tty && echo here >/dev/tty")
            assert state(task) == "completed", said(task)
            device, said_there = artifact_text(task).splitlines()
            assert device.startswith("/dev/pts/")
            assert said_there == "here"


@needs_landlock
async def test_it_connects_only_to_the_ports_that_are_allowed(workspace: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as open_,
        socket.create_server(("127.0.0.1", 0)) as closed,
    ):
        allowed, refused = (one.getsockname()[1] for one in (open_, closed))
        connect = "python3 -c 'import socket,sys; socket.create_connection((\"127.0.0.1\", {}), 5)'"
        async with shell(workspace, BRIDGE_SANDBOX_PORTS=str(allowed)) as client:
            assert state(await client.send(connect.format(allowed))) == "completed"
            task = await client.send(connect.format(refused))
            assert state(task) == "failed"
            assert "PermissionError" in said(task)


async def test_external_is_the_operators_own_wrapper(workspace: Path) -> None:
    env = {"BRIDGE_SANDBOX": "external", "BRIDGE_SANDBOX_WRAPPER": "env WRAPPED=yes"}
    async with shell(workspace, **env) as client:
        assert artifact_text(await client.send("echo $WRAPPED")) == "yes\n"


# --- the default ---------------------------------------------------------------------------------

# As on a kernel without Landlock.
NO_LANDLOCK = {"PYTHONPATH": f"{CHECKOUT / 'tests/no_landlock'}:{CHECKOUT}"}


@needs_landlock
async def test_landlock_is_the_default_and_is_in_the_banner(workspace: Path) -> None:
    async with serving_shell(workspace) as (client, server):
        task = await client.send("(echo x > ../beside) 2> /dev/null || echo kept in")
        assert artifact_text(task) == "kept in\n"
        assert "\n  sandbox    landlock\n" in server.log
        assert "warning" not in server.log


@pytest.mark.parametrize("env", [{"BRIDGE_SANDBOX": "none"}, NO_LANDLOCK], ids=["none", "auto"])
async def test_without_a_sandbox_the_banner_says_so(workspace: Path, env: dict[str, str]) -> None:
    async with serving_shell(workspace, **env) as (client, server):
        assert artifact_text(await client.send("echo x > ../beside && echo out")) == "out\n"
        assert "\n  sandbox    none: agents can do all that this user can do\n" in server.log
        assert server.log.count("no Landlock") == (env == NO_LANDLOCK)


@pytest.mark.parametrize(
    ("env", "about"),
    [
        ({"AGENT_FORCE": "true"}, "BRIDGE_SANDBOX=none if the CLI may do all"),
        ({"BRIDGE_SANDBOX": "landlock"}, "the kernel has no Landlock"),
        ({"BRIDGE_SANDBOX_PORTS": "443"}, "BRIDGE_SANDBOX_PORTS"),
    ],
)
async def test_without_landlock_settings_that_need_it_are_refused(
    workspace: Path, env: dict[str, str], about: str
) -> None:
    with pytest.raises(AssertionError, match=about):
        async with serving_shell(workspace, **NO_LANDLOCK, **env):
            pass


async def test_agent_force_is_accepted_with_an_explicit_sandbox_none(
    workspace: Path,
) -> None:
    env = {**NO_LANDLOCK, "AGENT_FORCE": "true", "BRIDGE_SANDBOX": "none"}
    async with serving_shell(workspace, **env) as (client, _):
        assert state(await client.send("true")) == "completed"


@needs_landlock
async def test_the_error_names_a_program_that_cannot_run(workspace: Path) -> None:
    program = workspace.parent / "cli"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    env = {"AGENT_ADAPTER": "jsonl", "AGENT_BINARY": str(program), "AGENT_ARGS": ""}
    async with serving_shell(workspace, **env) as (client, server):
        task = await client.send("x")
        assert (state(task), reason(task)) == ("failed", "launch")
        assert str(program) not in json.dumps(task)
        await server.logged(f"{program}: No such file")


@needs_landlock
async def test_scratch_of_a_server_without_a_folder_goes_with_it(workspace: Path) -> None:
    folder = workspace.parent / "tmp"
    folder.mkdir()
    async with serving_shell(workspace, TMPDIR=str(folder)) as (client, _):
        task = await client.send('touch "$TMPDIR/file"; echo "$TMPDIR"')
        assert Path(artifact_text(task).strip()).parent.parent == folder
    assert os.listdir(folder) == []


@needs_landlock
async def test_temporary_folders_are_removed_after_two_signals(workspace: Path) -> None:
    folder = workspace.parent / "tmp"
    folder.mkdir()
    env = {"TMPDIR": str(folder), "BRIDGE_DRAIN_MS": "60000"}
    async with serving_shell(workspace, **env) as (client, server):
        message = client.message("sleep 60")
        wait = {"returnImmediately": True}
        await client.call("SendMessage", {"message": message, "configuration": wait})
        assert len(os.listdir(folder)) == 1
        server.process.send_signal(signal.SIGTERM)
        await server.logged("stopping")
        assert await server.stop() == 128 + signal.SIGTERM
    assert os.listdir(folder) == []


NPM = """
mkdir -p tiny app && echo '{"name": "tiny", "version": "1.0.0"}' > tiny/package.json
cd app && echo '{"dependencies": {"tiny": "file:../tiny"}}' > package.json
npm install --offline --no-audit --no-fund > /dev/null && ls node_modules
case $(npm config get cache) in "$TMPDIR"/*) ls -d "$TMPDIR/npm" > /dev/null && echo own ;; esac
"""
PIP = r"""
mkdir -p tiny/tiny && touch tiny/tiny/__init__.py tiny/tiny/py.typed
cat > tiny/pyproject.toml << END
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
END
cat > tiny/backend.py << END
import zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(folder + "/tiny-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny.py", "SIZE = 1")
        info = "Metadata-Version: 2.1\nName: tiny\nVersion: 1\n"
        wheel.writestr("tiny-1.dist-info/METADATA", info)
        wheel.writestr("tiny-1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("tiny-1.dist-info/RECORD", "")
    return "tiny-1-py3-none-any.whl"
END
python3 -m venv venv && venv/bin/pip install -q --no-index ./tiny && venv/bin/python -c '
import tiny; print(tiny.SIZE)'
venv/bin/pip cache dir | grep -q "^$TMPDIR/" && echo own
"""
POOL = """
cat > pool.py << END
from concurrent.futures import ProcessPoolExecutor
if __name__ == "__main__":
    with ProcessPoolExecutor(2) as pool:
        print(sum(pool.map(abs, [-1, -2])))
END
python3 pool.py
"""
NODE = """
echo x > /dev/null
node -e 'new (require("worker_threads").Worker)("console.log(1)", {eval: true})'
node -e 'require("child_process").execFileSync("sh", ["-c", "echo 2"], {stdio: "inherit"})'
"""
GIT = """
git init -q . && echo x > file && git add file
git -c user.name=a -c user.email=a@b commit -qm first && git worktree add -q inner 2> /dev/null
cd inner && echo y > file && git -c user.name=a -c user.email=a@b commit -qam second
git log --format=%s
"""
TESTS = """
echo 'def test_it(tmp_path): (tmp_path / "x").touch()' > test_it.py
python3 -m pytest -q test_it.py | tail -1 | cut -c1-8
"""


@needs_landlock
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("needed", "line", "answer"),
    [
        ("git", GIT, "second\nfirst\n"),
        ("npm", NPM, "tiny\nown\n"),
        ("node", NODE, "1\n2\n"),
        pytest.param("python3", PIP, "1\nown\n", marks=pytest.mark.soak),
        ("python3", POOL, "3\n"),
        ("pytest", TESTS, "1 passed\n"),
    ],
    ids=["git", "npm", "node", "pip", "pool", "pytest"],
)
async def test_the_work_of_every_day_can_be_done(
    workspace: Path, needed: str, line: str, answer: str
) -> None:
    folders = f"{CHECKOUT / '.venv/bin'}:{os.environ['PATH']}"
    programs.require(needed, folders)
    async with serving_shell(workspace, PATH=folders) as (client, _):
        task = await client.send(line)
        assert (state(task), artifact_text(task)) == ("completed", answer), said(task)
    assert set(os.listdir(workspace.parent / "home")) <= {".local", ".config"}  # of the server


@needs_landlock
async def test_a_worktree_needs_the_path_of_its_repository(workspace: Path) -> None:
    main = workspace.parent / "main"
    make = f"""
        git init -q {main} && cd {main} && git -c user.name=a -c user.email=a@b commit -q \
        --allow-empty -m first && git worktree add -q {workspace}
    """
    made = await asyncio.create_subprocess_shell(make)
    assert await made.wait() == 0
    commit = "echo x > f; git add f && git -c user.name=a -c user.email=a@b commit -qm second"
    async with serving_shell(workspace) as (client, _):
        assert state(await client.send(commit)) == "failed"
    async with serving_shell(workspace, BRIDGE_SANDBOX_WRITE=f"{main}/.git") as (client, _):
        assert state(await client.send(commit)) == "completed"


@needs_landlock
@pytest.mark.parametrize(
    ("env", "seen"),
    [
        ({}, ""),
        ({"BRIDGE_SANDBOX_READ": "~/.ssh"}, "of ssh\n"),
        ({"AGENT_ENV": "AWS_REGION", "AWS_REGION": "eu-west-1"}, "of aws\n"),
    ],
)
async def test_the_hidden_paths_and_their_exceptions(
    workspace: Path, env: dict[str, str], seen: str
) -> None:
    home = workspace.parent / "home"
    for name in ("ssh", "aws"):
        (home / f".{name}").mkdir(parents=True)
        (home / f".{name}/file").write_text(f"of {name}\n")
    line = "cat ~/.ssh/file ~/.aws/file 2> /dev/null; echo x 2> /dev/null > ~/.ssh/new; true"
    async with serving_shell(workspace, **env) as (client, _):
        assert artifact_text(await client.send(line)) == seen
    assert not (home / ".ssh/new").exists()


@each("name", registry.names())
def test_every_known_cli_has_writable_folders(name: str) -> None:
    """By default it writes nowhere else, and most do not work without."""
    adapter = registry.load(name)
    assert adapter.writable_paths or adapter.homes or not adapter.binary


@needs_landlock
async def test_the_servers_own_files_are_hidden(workspace: Path) -> None:
    """They hold its tokens. A repository's own `.env` is none of them."""
    home = workspace.parent / "home"
    home.mkdir()
    for path in (home / ".env", home / "settings.toml", workspace / ".env"):
        path.write_text(f"# {path.parent.name}\n")
    line = "cat .env ../home/.env ../home/settings.toml 2> /dev/null; true"
    env = {"CONFIG_FILE": str(home / "settings.toml")}
    async with serving_shell(workspace, **env) as (client, _):
        assert artifact_text(await client.send(line)) == "# workspace\n"


@needs_landlock
async def test_a_workspace_that_contains_hidden_files_is_refused(workspace: Path) -> None:
    (workspace / ".ssh").mkdir()
    assert "use another workspace" in refused_shell(workspace, HOME=str(workspace))


@needs_landlock
@needs_root
async def test_root_works_in_a_workspace_of_another_principal(workspace: Path) -> None:
    os.chown(workspace, 65534, 65534)
    async with serving_shell(workspace) as (client, _):
        task = await client.send("echo x > file && (echo x > ../beside) 2> /dev/null; ls")
        assert artifact_text(task) == "file\n"


# --- limits --------------------------------------------------------------------------------------


async def test_a_file_that_is_too_big_ends_its_writer(workspace: Path) -> None:
    async with serving_shell(workspace, BRIDGE_SESSION_FILE_BYTES="1000000") as (client, server):
        assert "at most 1000000 bytes a file" in server.log
        task = await client.send("exec yes > big")
        assert (state(task), reason(task)) == ("failed", "limit"), said(task)
        assert "file size" in said(task)
        task = await client.send("yes > big; echo $(($? - 128))")  # a command of the agent
        assert (state(task), artifact_text(task)) == ("completed", "25\n")
    assert (workspace / "big").stat().st_size == 1000000


async def test_limits_need_no_boundary(workspace: Path) -> None:
    env = {"BRIDGE_SANDBOX": "none", "BRIDGE_SESSION_FILE_BYTES": "5120"}
    async with serving_shell(workspace, **env) as (client, _):
        assert artifact_text(await client.send("ulimit -f; ulimit -c")) == "10\n0\n"


@pytest.mark.parametrize("name", ["MEMORY_BYTES", "CPU_PERCENT", "PROCESSES"])
async def test_unavailable_limits_of_control_groups_are_refused(workspace: Path, name: str) -> None:
    controller = {"MEMORY_BYTES": "memory", "CPU_PERCENT": "cpu", "PROCESSES": "pids"}[name]
    if controller in cgroup.controllers():
        pytest.skip(f"{controller} is delegated here")
    assert "Delegate=yes" in refused_shell(workspace, **{f"BRIDGE_SESSION_{name}": "1000"})


# --- another user --------------------------------------------------------------------------------


@pytest.fixture
def nobody() -> Iterator[Path]:
    """A workspace of a user other than root, which this user can reach."""
    user = pwd.getpwnam("nobody")
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o755)
    workspace = folder / "workspace"
    workspace.mkdir()
    os.chown(workspace, user.pw_uid, user.pw_gid)
    yield workspace
    shutil.rmtree(folder)


AS_NOBODY = {"BRIDGE_SANDBOX_USER": "nobody", "AGENT_ADAPTER": "jsonl"}


@needs_root
@pytest.mark.parametrize("profile", ["none", pytest.param("landlock", marks=needs_landlock)])
@pytest.mark.parametrize("durable", [False, True])
async def test_clis_run_as_another_user(nobody: Path, profile: str, durable: bool) -> None:
    program = nobody.parent / "cli"
    program.write_text(AS_SOMEBODY)
    program.chmod(0o755)
    env = {**AS_NOBODY, "BRIDGE_SANDBOX": profile, "AGENT_BINARY": str(program), "AGENT_ARGS": ""}
    if durable:
        env["BRIDGE_STATE_DIR"] = str(nobody.parent / "state")
    async with serving_shell(nobody, **env) as (client, server):
        assert f"\n  sandbox    {profile}, as nobody\n" in server.log
        task = await client.send("x")
        assert state(task) == "completed", said(task)
        told = json.loads(artifact_text(task))
        assert told["uid"] == told["owner"] == pwd.getpwnam("nobody").pw_uid
        assert told["groups"] == [pwd.getpwnam("nobody").pw_gid]
        assert (told["home"], told["environ"]) == ("/nonexistent", "Permission denied")
    if durable:  # it can be used again
        async with serving_shell(nobody, **env) as (client, _):
            assert state(await client.send("x")) == "completed"
            assert stat.S_IMODE((nobody.parent / "state").stat().st_mode) == 0o710


@needs_root
@pytest.mark.parametrize(
    ("env", "about"),
    [
        ({"BRIDGE_SANDBOX_USER": "no-such-user"}, "unknown user no-such-user"),
        ({"BRIDGE_SANDBOX_USER": "root"}, "is root"),
        ({"AGENT_BINARY": "/root/cli"}, "was not found|cannot be run inside"),
        ({"AGENT_REPO_PATH": "/usr"}, "/usr cannot be written inside"),
    ],
)
async def test_a_user_that_cannot_run_the_cli_is_refused(
    nobody: Path, env: dict[str, str], about: str
) -> None:
    assert re.search(
        about, refused_shell(nobody, **{**AS_NOBODY, "AGENT_BINARY": "/bin/sh", **env})
    )


@needs_root
@pytest.mark.parametrize("private", [True, False])
def test_a_user_that_cannot_run_the_program_around_its_cli_is_refused(
    nobody: Path, private: bool
) -> None:
    """As with a Python that was installed in the home of root."""
    home = nobody.parent / "private"
    home.mkdir(mode=0o700 if private else 0o755)
    python = home / "python"
    python.write_text("#!/bin/sh\nexec /usr/bin/true\n")
    python.chmod(0o755)
    scratch = nobody.parent / "scratch"
    sandbox = Sandbox("none", {"HOME": "/"}, str(scratch), user=find_user("nobody"))
    runner = (str(python), "-I", "runner.py")
    if not private:
        sandbox.check("/bin/sh", str(nobody), runner)
        return
    with pytest.raises(ConfigurationError, match="which run the CLI, cannot be used inside"):
        sandbox.check("/bin/sh", str(nobody), runner)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can")
async def test_only_root_can_have_another_user(workspace: Path) -> None:
    assert re.search(
        "only a server that is root", refused_shell(workspace, BRIDGE_SANDBOX_USER="nobody")
    )


@needs_root
@pytest.mark.parametrize("durable", [False, True])
async def test_attached_files_are_his(nobody: Path, durable: bool) -> None:
    user = find_user("nobody")
    state = nobody.parent / "state"
    (state / "files/agent").mkdir(mode=0o700, parents=True)
    for one in (state, state / "files", state / "files/agent"):
        let_through(one, user)
    folder = state / "files/agent" if durable else None
    workspaces = Workspaces(str(nobody), ())
    given = Attachments(workspaces, (), takes_urls=False, folder=folder, group=user.gid)
    try:
        content = RawPart(base64.b64encode(b"attached").decode(), "x/y")
        message = Message("1", Role.USER, (content,), "task", "context")
        (part,) = (await given.save("context", "task", message)).parts
        assert isinstance(part, UrlPart)
        path = part.url.removeprefix("file://")
        cat = await asyncio.create_subprocess_exec(
            "cat", path, stdout=asyncio.subprocess.PIPE, user=user.uid, group=user.gid
        )
        out, _ = await cat.communicate()
        assert out == b"attached"
    finally:
        given.close()


@needs_root
async def test_a_user_of_his_own_bounds_how_many_processes_there_are(nobody: Path) -> None:
    """Where no control group can."""
    if "pids" in cgroup.controllers():
        pytest.skip("they are counted by control groups here")
    program = nobody.parent / "cli"
    program.write_text(MANY)
    program.chmod(0o755)
    env = {**AS_NOBODY, "AGENT_BINARY": str(program), "AGENT_ARGS": ""}
    env["BRIDGE_SESSION_PROCESSES"] = "40"
    async with serving_shell(nobody, **env) as (client, _):
        task = await client.send("x")
        assert state(task) == "completed", said(task)
        assert 10 < int(artifact_text(task)) < 40


# --- what cannot be had --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "about"),
    [
        ({"BRIDGE_SANDBOX": "external"}, "BRIDGE_SANDBOX=external"),
        ({"BRIDGE_SANDBOX": "external", "BRIDGE_SANDBOX_WRAPPER": "/nowhere/wrap"}, "external"),
        ({"BRIDGE_SANDBOX_PORTS": "https"}, "BRIDGE_SANDBOX_PORTS"),
        ({"BRIDGE_SANDBOX_WRITE": "relative"}, "BRIDGE_SANDBOX=landlock"),
        ({"BRIDGE_SANDBOX": "none", "BRIDGE_SANDBOX_PORTS": "443"}, "BRIDGE_SANDBOX_PORTS"),
    ],
)
async def test_an_unavailable_sandbox_is_refused_at_the_start(
    workspace: Path, env: dict[str, Any], about: str
) -> None:
    assert re.search(about, refused_shell(workspace, **{"BRIDGE_SANDBOX": "landlock", **env}))


# --- what is left open ---------------------------------------------------------------------------

SOCKET = """
import socket, sys
try:
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(sys.argv[1])
    print("connected")
except OSError as error:
    print(error.strerror)
"""


@needs_landlock
@pytest.mark.parametrize("allowed", [False, True])
async def test_services_of_the_machine_are_not_reached_by_their_sockets(
    workspace: Path, allowed: bool
) -> None:
    """A terminal multiplexer, D-Bus and Docker run commands for every program that connects."""
    path = str(workspace.parent / "service")
    (workspace / "connect.py").write_text(SOCKET)
    env = {"BRIDGE_SANDBOX_UNIX_SOCKETS": "allow"} if allowed else {}
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(path)
        service.listen()
        async with serving_shell(workspace, **env) as (client, server):
            answer = artifact_text(await client.send(f"python3 connect.py {path}"))
            assert (answer == "connected\n") is allowed, answer
            (line,) = (one for one in server.log.splitlines() if "left open" in one)
            assert ("UNIX sockets" in line) is allowed
            assert "UDP" in line and "TCP" in line


@needs_landlock
@pytest.mark.parametrize(
    ("abi", "profile", "sockets", "rule"),
    [
        (7, "landlock", False, False),
        (9, "landlock", False, None),
        (9, "landlock", True, True),
        (9, "bwrap", False, False),
        (7, "bwrap", True, True),
    ],
)
def test_sockets_are_for_the_kernel_where_it_knows_them(
    workspace: Path,
    abi: int,
    profile: str,
    sockets: bool,
    rule: bool | None,
) -> None:
    sandbox = Sandbox(profile, {"HOME": "/"}, str(workspace), sockets=sockets, abi=abi)
    assert sandbox.rules(str(workspace))["unix"] is rule
    assert any("UNIX" in one for one in sandbox.left_open) is sockets


def test_the_gaps_of_an_old_kernel_are_named(workspace: Path) -> None:
    left = Sandbox("landlock", {}, str(workspace), ports=(443,), abi=5).left_open
    names = [one.partition(" ")[0].rstrip(",") for one in left]
    assert names == ["UDP", "signals", "/dev/shm", "names", "locks"]


@each(("profile", "extra"), [("landlock", 0), ("bwrap", 0), ("none", None)])
def test_a_cli_has_no_higher_priority_than_the_server(
    workspace: Path, profile: str, extra: int | None
) -> None:
    """Also if its user may raise it, as users of the group `audio` often may."""
    limits = Sandbox(profile, {"HOME": "/"}, str(workspace)).rules(str(workspace))["limits"]
    assert (limits.get("nice"), limits.get("rtprio"), limits["core"]) == (extra, extra, 0)


@pytest.mark.parametrize("profile", ["landlock", "bwrap"])
def test_system_v_is_allowed_by_a_setting_and_named(workspace: Path, profile: str) -> None:
    """Under bwrap, there is nothing to name: a session has its own."""
    sandbox = Sandbox(profile, {"HOME": "/"}, str(workspace), system_v=True)
    assert sandbox.rules(str(workspace))["system_v"] is True
    named = [one for one in sandbox.left_open if one.startswith("System V")]
    assert len(named) == (profile == "landlock")
    assert (
        Sandbox(profile, {"HOME": "/"}, str(workspace)).rules(str(workspace))["system_v"] is False
    )


# --- paths that are no longer what they were -----------------------------------------------------


@needs_landlock
@pytest.mark.parametrize("profile", CONFINED)
@pytest.mark.parametrize("by", ["link", "folder", "link above"])
async def test_a_path_that_became_another_gets_no_session(
    reachable: Path, profile: str, by: str
) -> None:
    """An agent that works in the workspace replaces a folder there, which BRIDGE_SANDBOX_WRITE
    names, so that the next session would write elsewhere."""
    workspace, outside = reachable / "workspace", reachable / "outside"
    allowed = workspace / "above" / "cache"
    for one in (allowed, outside / "cache"):
        one.mkdir(parents=True)
    swap = {
        "link": f"rmdir above/cache && ln -s {outside} above/cache",
        "folder": "mv above/cache above/old && mkdir above/cache",
        "link above": f"mv above old && ln -s {outside} above",
    }
    env = {"BRIDGE_SANDBOX": profile, "BRIDGE_SANDBOX_WRITE": str(allowed)}
    async with serving_shell(workspace, **env) as (client, server):
        if profile == "landlock":
            assert state(await client.send(swap[by])) == "completed"
        else:  # inside, it is a mount point, which stays where it is
            shell = await asyncio.create_subprocess_shell(swap[by], cwd=workspace)
            assert await shell.wait() == 0
        task = await client.send("touch above/cache/new")
        assert (state(task), reason(task)) == ("failed", "launch"), said(task)
        await server.logged(f"{allowed} was replaced by another folder or a link")
    assert not list(outside.rglob("new"))
    if by != "folder":  # what is there at the next start is no better
        assert re.search(r"BRIDGE_SANDBOX_WRITE: .* symbolic link", refused_shell(workspace, **env))


@needs_landlock
async def test_a_nested_workspace_that_became_a_link_is_refused(workspace: Path) -> None:
    inner, outside = workspace / "inner", workspace.parent / "outside"
    for one in (inner, outside):
        one.mkdir()
    env = {"AGENT_ALLOWED_REPO_ROOTS": f"{workspace}:{inner}"}
    async with serving_shell(workspace, **env) as (client, _):
        there = {"metadata": {"bridge": {"cwd": "inner"}}}
        first = await client.send("touch first", **there)
        assert state(first) == "completed", said(first)
        task = await client.send(f"mv inner old && ln -s {outside} inner")
        assert state(task) == "completed", said(task)
        with pytest.raises(RpcError):  # a new conversation there
            await client.send("touch second", **there)
        await client.send("touch second", contextId=context_id(first))
    assert os.listdir(outside) == []
    assert re.search(r"AGENT_ALLOWED_REPO_ROOTS: .* symbolic link", refused_shell(workspace, **env))


# --- programs that run outside of it -------------------------------------------------------------


@needs_landlock
@pytest.mark.parametrize(
    ("setting", "path"),
    [
        ("AGENT_REPO_PATH", CHECKOUT),
        ("AGENT_REPO_PATH", CHECKOUT / "bridge"),
        ("BRIDGE_SANDBOX_WRITE", CHECKOUT / "bridge/a2a"),
        ("AGENT_ALLOWED_REPO_ROOTS", CHECKOUT.parent),
        ("BRIDGE_SANDBOX_WRITE", Path(sys.prefix)),
        ("BRIDGE_SANDBOX_WRITE", Path(sys.prefix) / "bin"),
        ("BRIDGE_SANDBOX_WRITE", Path(os.__file__).parent),
        ("BRIDGE_SANDBOX_WRITE", Path(pytest.__file__).parent),
        ("BRIDGE_SANDBOX_WRITE", Path(os.path.realpath("/bin/sh")).parent),
    ],
    ids=str,
)
async def test_a_server_whose_agents_could_change_it_does_not_start(
    workspace: Path, setting: str, path: Path
) -> None:
    real = os.path.realpath(path)  # noqa: ASYNC240 - one path
    assert re.search(
        f"{setting} lets agents write in {real}, ", refused_shell(workspace, **{setting: str(path)})
    )


@needs_landlock
@pytest.mark.parametrize(
    "way",
    ["program", "link", "link target", "shebang", "env shebang", "package", "PATH", "libraries"],
)
async def test_programs_that_agents_could_change_are_not_started(workspace: Path, way: str) -> None:
    """Each of them is in the workspace, or is reached through it."""
    outside, env = workspace.parent / "cli", dict[str, str]()
    for folder in (outside, workspace / "bin"):
        folder.mkdir()
    inside = workspace / "bin/cli"
    program = {"link": outside / "cli", "package": outside / "cli", "PATH": outside / "cli"}.get(
        way, outside / "cli"
    )
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    binary = str(program)
    match way:
        case "program":
            binary = str(shutil.copy(program, inside))
        case "link":  # in the workspace, to a program outside
            inside.symlink_to(program)
            binary = str(inside)
        case "link target":
            shutil.copy(program, inside)
            program.unlink()
            program.symlink_to(inside)
        case "shebang":
            shutil.copy("/bin/sh", inside)
            program.write_text(f"#!{inside}\nexec sleep 60\n")
        case "env shebang":
            shutil.copy("/bin/sh", workspace / "bin/shell")
            program.write_text("#!/usr/bin/env shell\nexec sleep 60\n")
            env["PATH"] = f"{os.environ['PATH']}:{workspace}/bin"
        case "package":
            package = workspace / "node_modules/cli/bin"
            package.mkdir(parents=True)
            shutil.copy(program, package / "cli")
            program.unlink()
            program.symlink_to(package / "cli")
        case "PATH":
            binary, env["PATH"] = "cli", f"{workspace}/bin:{outside}:{os.environ['PATH']}"
        case "libraries":
            env["LD_LIBRARY_PATH"] = f"{workspace}/bin"
    env |= {"AGENT_ADAPTER": "jsonl", "AGENT_ARGS": "", "AGENT_BINARY": binary}
    assert re.search(
        r"AGENT_REPO_PATH lets agents write in .* is there: ", refused_shell(workspace, **env)
    )


@needs_landlock
async def test_the_program_of_one_agent_in_the_workspace_of_another_is_found(
    workspace: Path,
) -> None:
    program = workspace / "cli"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    other = workspace.parent / "other"
    other.mkdir()
    config = workspace.parent / "settings.toml"
    config.write_text(
        f"""
        [agents.one]
        AGENT_ADAPTER = "jsonl"
        AGENT_BINARY = "{program}"
        AGENT_REPO_PATH = "{other}"
        [agents.two]
        AGENT_ADAPTER = "jsonl"
        AGENT_BINARY = "/bin/cat"
        """
    )
    env = {"CONFIG_FILE": str(config), "AGENT_ADAPTER": "", "AGENT_BINARY": "", "AGENT_ARGS": ""}
    assert f"the agent's program is there: {program}" in refused_shell(workspace, **env)


async def test_from_a_checkout_agents_work_beside_the_code(tmp_path: Path) -> None:
    """As README's first command has it: no AGENT_REPO_PATH, and the current directory is that of
    the bridge's own code."""
    for name in ("bridge", "adapters"):
        shutil.copytree(CHECKOUT / name, tmp_path / "checkout" / name)
    env = {"PYTHONPATH": "", "AGENT_REPO_PATH": "", "BRIDGE_SANDBOX": "auto", **SHELL}
    unused = tmp_path / "unused"
    unused.mkdir()
    async with (
        bridge(unused, cwd=tmp_path / "checkout", **env) as server,
        aiohttp.ClientSession() as http,
    ):
        task = await Client(http, server.url).send(
            "pwd; (echo x > ../bridge/sandbox/confine.py) 2>&1"
        )
        text = artifact_text(task) or said(task)
        assert text.startswith(f"{tmp_path}/checkout/workspace\n")
        assert "note       this directory contains the code of the bridge" in server.log
    made = tmp_path / "checkout/workspace"
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert (tmp_path / "checkout/bridge/sandbox/confine.py").read_text() != "x\n"


# --- one principal and another -------------------------------------------------------------------


@needs_landlock
@pytest.mark.parametrize("profile", CONFINED)
@pytest.mark.parametrize("durable", [True, False], ids=["durable", "temporary"])
async def test_temporary_files_are_private_to_a_principal(
    workspace: Path, profile: str, durable: bool
) -> None:
    """Also if another principal knows the path of the folder; a principal has one folder for all of
    its conversations."""
    config = workspace.parent / "settings.toml"
    digest = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("one", "two")}
    config.write_text("".join(f'[tokens.{k}]\nhash = "sha256:{v}"\n' for k, v in digest.items()))
    env = {"BRIDGE_SANDBOX": profile, "CONFIG_FILE": str(config), **SHELL}
    if durable:
        env["BRIDGE_STATE_DIR"] = str(workspace.parent / "state")
    async with bridge(workspace, **env) as server, aiohttp.ClientSession() as http:
        one, two = (
            Client(http, server.url, headers={"Authorization": f"Bearer {name}"})
            for name in ("one", "two")
        )
        first = await one.send('echo secret > "$TMPDIR/file"; echo "$TMPDIR"')
        folder = artifact_text(first).strip()
        again = await one.send('cat "$TMPDIR/file"')
        assert artifact_text(again) == "secret\n"
        other = await two.send(f'echo "$TMPDIR"; cat {folder}/file 2>&1; ls {folder}/.. 2>&1')
        text = artifact_text(other) or said(other)
        assert "secret" not in text and os.path.basename(folder) not in text.partition("\n")[0]
        other = await two.send(f"echo mine > {folder}/file; true")
        assert artifact_text(await one.send('cat "$TMPDIR/file"')) == "secret\n"
