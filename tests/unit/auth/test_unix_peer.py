"""The process at the other end of a Unix socket."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.auth.unix_peer import is_unix, look_at_peer, names_processes, peer_uid

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="SO_PEERCRED of Linux"),
    pytest.mark.skipif(not names_processes(), reason="this kernel has no SO_PEERPIDFD"),
]


CONNECTS = """
import os, socket, sys
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
os.fork()  # the child keeps the connection
sys.stdin.read()
"""


class Child:
    """A process that connects to a socket, and whose own child keeps the connection open."""

    def __init__(self, path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen()
            listening.settimeout(20)
            command = [sys.executable, "-I", "-S", "-c", CONNECTS, str(path)]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE)
            self.pid = self._process.pid
            self.connection, _ = listening.accept()

    def end(self) -> bool:
        self._process.kill()
        self._process.wait(20)
        return True

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(20)
        self.connection.close()


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    child = Child(tmp_path / "s")
    yield child
    child.close()


def test_the_process_and_its_user_are_known(child: Child) -> None:
    assert peer_uid(child.connection) == os.geteuid()
    assert look_at_peer(child.connection, lambda pid: pid) == child.pid
    opened = os.listdir("/proc/self/fd")
    look_at_peer(child.connection, lambda pid: pid)
    assert os.listdir("/proc/self/fd") == opened


def test_a_process_that_has_ended_is_unknown(child: Child) -> None:
    """Although its child has the connection. Its pid could belong to another process now."""
    child.end()
    assert look_at_peer(child.connection, lambda pid: pid) is None


def test_a_process_that_ends_while_it_is_looked_at_is_unknown(child: Child) -> None:
    assert look_at_peer(child.connection, lambda _: child.end()) is None


def test_a_lack_of_descriptors_is_no_answer(child: Child) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(free, 3), before[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            look_at_peer(child.connection, lambda pid: pid)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_other_sockets_have_no_such_process() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
    ):
        assert look_at_peer(client, lambda pid: pid) is None
        assert peer_uid(client) is None
    assert not is_unix(None)
