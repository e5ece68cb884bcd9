"""The sockets that keep the ports of a server (server/operate/ports.py, port_users.py), and those
that a launcher holds for the next server (process/held_ports.py)."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import psutil
import pytest

from bridge.process import spawn
from bridge.process.held_ports import BOUND, HeldPorts, make_door, own, take, tidy
from bridge.process.spawn import KeptPorts
from bridge.server.operate.port_users import reason
from bridge.server.operate.ports import Ports
from tests import CHECKOUT
from tests.support.free_port import free_port
from tests.support.port_thief import ADDRESSES, GOT, OPTIONS, listen

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the rules of Linux")
WITHIN = 60.0  # seconds


@contextlib.contextmanager
def kept(*given: Ports) -> Iterator[Ports]:
    ports = given[0] if given else Ports()
    try:
        yield ports
    finally:
        ports.close()


def free_for(port: int) -> list[str]:
    """The addresses on which another program can listen."""
    found = set[str]()
    for (family, host), option in product(ADDRESSES, OPTIONS):
        if listen(family, host, port, option):
            GOT.pop().close()
            found.add(host)
    return sorted(found)


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


@pytest.mark.parametrize(
    ("host", "also"),
    [("127.0.0.1", "::1"), ("::1", "127.0.0.1"), ("0.0.0.0", "::1"), ("::", "127.0.0.1")],
)
def test_a_server_of_localhost_listens_on_both_of_its_addresses(host: str, also: str) -> None:
    if not has_ipv6():
        pytest.skip("this machine has no ::1")
    with kept() as ports:
        first, second = ports.listen(host, 0)
        port = first.getsockname()[1]
        assert (first.getsockname()[0], second.getsockname()[0]) == (host, also)
        assert second.getsockname()[1] == port
        assert free_for(port) == []
        first.close()
        second.close()
        ports.refuse()
        assert free_for(port) == []  # also when the sockets listen no more
    assert "127.0.0.1" in free_for(port)


def test_a_server_of_one_address_keeps_the_port_on_all() -> None:
    with kept() as ports:
        (one,) = ports.listen("127.0.0.3", 0)
        assert free_for(one.getsockname()[1]) == []
        one.close()


def test_a_port_that_another_program_has_on_one_address_is_kept_on_the_others() -> None:
    with socket.create_server(("127.0.0.7", 0)) as other, kept() as ports:
        port = other.getsockname()[1]
        for one in ports.listen("127.0.0.1", port):
            one.close()
        assert free_for(port) == ["127.0.0.2"]  # IPv4 has no guard here


SHARES = """
import socket, sys
kept = [socket.socket() for _ in range(int(sys.argv[2]))]
for one in kept:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    one.bind(("127.0.0.1", int(sys.argv[1])))
    one.listen()
print(flush=True)
input()
"""


def search_time(sockets: int) -> float:
    """The least CPU time in seconds for the name of a program with so many listening sockets."""
    port, taken = free_port(), OSError(errno.EADDRINUSE, "in use")
    command = [sys.executable, "-I", "-S", "-c", SHARES, str(port), str(sockets)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as program:
        assert program.stdin and program.stdout
        program.stdout.readline()
        times = []
        for _ in range(3):
            began = time.process_time()
            assert f"pid {program.pid} " in reason(taken, port)
            times.append(time.process_time() - began)
        program.stdin.close()
    return min(times)


def test_a_program_with_many_sockets_on_the_port_is_found_as_quickly() -> None:
    """An agent can share its own port with itself, as often as it has descriptors. Each program of
    the machine is looked at once: once for each socket would be 200 times."""
    assert search_time(200) <= 20 * search_time(1)


def test_a_port_with_another_program_is_not_shared() -> None:
    """Neither is a program ended that is no agent of this folder."""
    with socket.create_server(("127.0.0.1", 0)) as other, kept() as ports:
        with pytest.raises(OSError) as refused:
            ports.listen("127.0.0.1", other.getsockname()[1])
        assert refused.value.errno == errno.EADDRINUSE


# --- a launcher without a server -----------------------------------------------------------------


def test_waiting_connections_are_refused_after_a_while() -> None:
    """The kernel would release a port that it has chosen; servers name theirs."""
    held, address = HeldPorts(patience=0.01), ("127.0.0.1", free_port())
    listening = socket.create_server(address)
    held.hold(listening.detach(), "")
    assert held.pause is None
    with socket.create_connection(address) as waiting:
        held.leave()
        while held.pause is not None:
            held.serve(set(), tuple)
        waiting.settimeout(WITHIN)
        with pytest.raises(ConnectionResetError):
            waiting.recv(1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    assert "127.0.0.1" not in free_for(address[1])
    held.hold(None, "")


SERVER = """
import os, signal, socket, sys
from pathlib import Path
from bridge.process import pump, spawn
from bridge.process.spawn import KeptPorts, Start, start_child
state = Path(sys.argv[1])
pump.attend(str(state))
listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[2]))]
spawn.hold(KeptPorts(listening, state, "markers."))
(state / "sessions").mkdir()
child = start_child(Start(sys.argv[3:], {"PATH": os.environ["PATH"]}, "/"), state / "sessions/s")
os.lseek(child.stdin, 3, os.SEEK_SET)
print(child.pid, *(one.getsockname()[1] for one in listening), flush=True)
signal.pause()
"""
AGENT = """
import os, socket, sys, time
state, out = sys.argv[1:]
while True:
    for name in os.listdir(state + "/launchers"):
        with socket.socket(socket.AF_UNIX) as one, open(out, "a") as file:
            one.connect(state + "/launchers/" + name)
            data, fds, _, _ = socket.recv_fds(one, 1, 10)
            file.write(f"{len(data)} {len(fds)}\\n")
"""


@pytest.fixture
def server(
    tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[subprocess.Popen[str], Path, int, int]]:
    """A process with a port and with an agent that asks its launcher for it. A parameter 0: without
    a port."""
    ports = str(getattr(request, "param", 1))
    state = tmp_path / "s"
    state.mkdir(0o700)
    agent = [sys.executable, "-I", "-S", "-c", AGENT, str(state), str(tmp_path / "out")]
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(state), ports, *agent],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        pid, port = map(int, (process.stdout.readline() + " 0").split()[:2])
        launcher = psutil.Process(pid).parent()
        assert launcher
        yield process, state, pid, port
        process.kill()
        for one in (psutil.Process(pid), launcher) if psutil.pid_exists(pid) else (launcher,):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()


def until(condition: Callable[[], object]) -> None:
    """For a condition without an event."""
    deadline = time.monotonic() + WITHIN
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def stopped(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


def test_only_the_next_server_gets_the_ports(
    server: tuple[subprocess.Popen[str], Path, int, int],
) -> None:
    """Neither another process while the server runs, nor an agent. The agents stand still while the
    next server binds its ports."""
    process, state, agent, port = server
    assert take(state) == ([], {})  # the server runs
    process.kill()
    process.wait(WITHIN)
    with socket.create_connection(("127.0.0.1", port)) as waiting:
        (listening,), launchers = take(state)
        (launcher,) = launchers.values()
        assert stopped(agent)
        launcher.close()  # this server did not start
        until(lambda: not stopped(agent))
        listening.close()
        (listening,), launchers = take(state)
        (launcher,) = launchers.values()
        launcher.send(BOUND)
        until(lambda: not stopped(agent))
        files = own(launcher)
        assert position(files.pop("s")) == 3
        accepted, _ = listening.accept()
        assert accepted.getpeername() == waiting.getsockname()
        accepted.close()
        assert files == {}
    listening.close()
    out = state.parent / "out"
    asked = len(out.read_text()) if out.exists() else 0
    until(lambda: out.exists() and len(out.read_text()) > asked)
    assert set(out.read_text().splitlines()) == {"0 0"}


def position(file: int) -> int:
    """Of a file that is closed then."""
    try:
        return os.lseek(file, 0, os.SEEK_CUR)
    finally:
        os.close(file)


@pytest.mark.parametrize("server", [0, 1], indirect=True)
def test_a_server_that_began_before_the_end_of_the_last_one_gets_the_inputs(
    server: tuple[subprocess.Popen[str], Path, int, int],
) -> None:
    """It waited for the lock of the state folder. A server without ports hands them over, too."""
    process, state, _, _ = server
    with kept(Ports(state)) as ports:
        process.kill()
        process.wait(WITHIN)
        try:
            files = ports.own(state, "markers.")
        finally:
            spawn.hold(KeptPorts())
        assert position(files.pop("s")) == 3
        assert files == {}


def test_a_door_without_a_launcher_is_removed(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)  # longer than the path of a socket
    long.mkdir()
    make_door(long).close()
    assert len(os.listdir(long / "launchers")) == 1
    assert take(long) == ([], {})
    assert os.listdir(long / "launchers") == []


def test_a_launcher_ends_with_the_last_process_of_its_agents(
    server: tuple[subprocess.Popen[str], Path, int, int],
) -> None:
    process, state, agent, port = server
    process.kill()
    process.wait(WITHIN)
    with pytest.raises(OSError):
        socket.create_server(("127.0.0.1", port))
    os.kill(agent, signal.SIGKILL)

    def released() -> bool:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return True
        return False

    until(released)
    until(lambda: take(state) == ([], {}))


def test_the_socket_of_a_launcher_that_is_just_killed_is_removed(tmp_path: Path) -> None:
    """The kernel closes it some time later. Here another process has it, which ends."""
    with make_door(tmp_path) as door:
        holder = subprocess.Popen(["sleep", "0.1"], pass_fds=[door.fileno()])
    tidy(tmp_path)
    assert os.listdir(tmp_path / "launchers") == []
    holder.wait()
