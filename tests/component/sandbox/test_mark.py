"""The mark of a session (bridge/sandbox/mark.py), and what a server does where it can give none."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence

import pytest

from bridge.process.process_tree import kill_session, marked
from bridge.sandbox import confine, mark
from bridge.sandbox.profile import best
from bridge.sandbox.seccomp import SESSION_MARK
from tests import CHECKOUT

WITHIN = 60.0  # seconds
pytestmark = pytest.mark.skipif(
    mark.problem() is not None, reason="no process can be marked on this machine"
)
HIDES = """
import ctypes, os, resource, sys
uid, number, soft, hard = map(int, sys.argv[1:])
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
resource.setrlimit(number, (soft, hard))
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
print(flush=True)
sys.stdin.read()
"""
LOOKS = """
import os, sys
sys.path.insert(0, sys.argv[1])
from bridge.sandbox import mark
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)
print(mark.read(sys.argv[2]) == mark.of("server.session"))
"""


def python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-I", "-c", code, *map(str, arguments)]


def test_marks_tell_servers_and_sessions_apart() -> None:
    one, two, other = map(mark.of, ("server.one", "server.two", "other.one"))
    assert one.server == two.server != other.server
    assert len({one.session, two.session, other.session}) == 3
    for found in (one, two, other):
        assert found.session < found.server < 2**63  # a soft limit is never above the hard one
        assert found.server >> 48 == mark.TAG
    assert mark.of("server.").server == one.server
    assert mark.read("self") is None and mark.read(2**22 + 1) is None


@pytest.mark.parametrize("uid", [65534, 65533])
def test_the_mark_of_a_process_that_hides_is_seen_and_the_process_is_ended(uid: int) -> None:
    """Also by another user than its own."""
    command = python(HIDES, uid, SESSION_MARK, *mark.of("server.session"))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env={}, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == b"\n"
        looks = python(LOOKS, CHECKOUT, process.pid)
        done = subprocess.run(looks, capture_output=True, text=True, timeout=WITHIN, check=True)
        assert done.stdout == "True\n"
        assert marked("server.session") == {process.pid}
        assert marked("server.other") == set()
        assert kill_session("server.session") == 1
        process.wait(WITHIN)
    assert mark.read(process.pid) is None


# Two processes without parents connect to a server whose children cannot have marks.
UNMARKED = """
import asyncio, json, os, resource, sys
sys.path.insert(0, sys.argv[1])
resource.setrlimit(int(sys.argv[2]), (1000, 1000))
from bridge.process import process_tree
from bridge.sandbox import mark
from bridge.server.local_peer import LocalOrigin
CONNECT = '''
import socket, sys
socket.create_connection(("127.0.0.1", int(sys.argv[1]))).recv(1)
'''
async def main():
    writers = asyncio.Queue()
    origin = LocalOrigin("server.", walled=False)
    server = await asyncio.start_server(
        lambda _, writer: writers.put_nowait(writer), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    found = {}
    for name in ("confined", "free"):
        command = [sys.executable, "-I", "-S", "-c", CONNECT, str(port)]
        if name == "confined":
            command = [*json.loads(sys.argv[3]), *command]
        leaves = await asyncio.create_subprocess_exec("setsid", "--fork", *command, env={})
        await leaves.wait()
        writer = await writers.get()
        found[name] = await origin.is_outside(writer.transport)
        writer.close()
    found["problem"] = mark.problem()
    print(json.dumps(found))
asyncio.run(main())
"""


def unmarked(confine_command: Sequence[str]) -> dict[str, object]:
    command = python(UNMARKED, CHECKOUT, SESSION_MARK, json.dumps([*confine_command]))
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.skipif(best() != "landlock", reason="this kernel has no Landlock")
def test_without_marks_a_confined_process_is_never_the_operator() -> None:
    """Only control groups would tell it from a program of the operator."""
    rules = json.dumps({"profile": "landlock"})
    found = unmarked([sys.executable, "-I", "-S", confine.__file__, rules, "--"])
    assert "RLIMIT_LOCKS" in str(found["problem"])
    assert (found["confined"], found["free"]) == (False, True)


def test_a_process_cannot_be_marked_twice() -> None:
    """A server inside an agent keeps the mark of that agent: its children have it, too."""
    code = f"""
import resource, sys
sys.path.insert(0, {str(CHECKOUT)!r})
from bridge.sandbox import mark
resource.setrlimit({SESSION_MARK}, {tuple(mark.of("outer.agent"))!r})
print(mark.problem() is not None, mark.read("self") is not None, mark.foreign("self"))
"""
    done = subprocess.run(python(code), capture_output=True, text=True, timeout=WITHIN, check=True)
    assert done.stdout == "True True None\n"
    assert resource.getrlimit(SESSION_MARK)[1] == resource.RLIM_INFINITY
    assert os.getpid() not in marked("outer.agent")
