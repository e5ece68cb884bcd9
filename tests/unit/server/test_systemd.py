"""Inherited sockets, and notifications to a real datagram socket."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from bridge.errors import ConfigurationError
from bridge.server.operate.systemd import Supervisor, inherit
from bridge.server.settings.supervision import Supervision
from tests.support.systemd import NotifySocket, notify_socket

FIGURES = {"working": 3, "waiting": 1, "queued": 2}


@pytest.fixture
def notify(tmp_path: Path) -> Iterator[NotifySocket]:
    with notify_socket(tmp_path) as made:
        yield made


def supervisor(notify: NotifySocket, watchdog: float | None = None) -> Supervisor:
    found = Supervision(notify.address, watchdog)
    return Supervisor(found, lambda: FIGURES, status_every=0.01, extended_every=0.01)


async def test_a_ready_server_reports_its_figures(notify: NotifySocket) -> None:
    with supervisor(notify) as systemd:
        systemd.ready()
        assert notify.waiting() == ["READY=1", "STATUS=3 running, 1 asking, 2 queued"]


async def test_a_status_is_sent_when_it_changes(notify: NotifySocket) -> None:
    figures = dict(FIGURES)
    with Supervisor(Supervision(notify.address), lambda: figures, status_every=0.01) as systemd:
        systemd.ready()
        figures["working"] = 4
        assert await notify.until("STATUS=4") == "STATUS=4 running, 1 asking, 2 queued"
        figures["working"] = 5
        await notify.until("STATUS=5")
        assert [one for one in notify.received if one.startswith("STATUS=4")] == [
            "STATUS=4 running, 1 asking, 2 queued"
        ]


async def test_the_watchdog_gets_a_sign_of_life_at_half_of_its_time(notify: NotifySocket) -> None:
    """The event loop runs timers in the order of their times, however late it is."""
    loop, seen = asyncio.get_running_loop(), loop_future()
    with supervisor(notify, watchdog=0.2) as systemd:
        systemd.ready()
        loop.call_later(0.15, lambda: seen.set_result(notify.waiting().count("WATCHDOG=1")))
        assert await asyncio.wait_for(seen, 30) == 2  # at once, and after 0.1 s


def loop_future() -> asyncio.Future[int]:
    return asyncio.get_running_loop().create_future()


async def test_without_a_watchdog_there_is_no_sign_of_life(notify: NotifySocket) -> None:
    with supervisor(notify) as systemd:
        systemd.ready()
        systemd.stopping()
        await notify.until("EXTEND_TIMEOUT_USEC=20000000")
        await notify.until("EXTEND_TIMEOUT_USEC=20000000")  # again and again
    assert "WATCHDOG=1" not in notify.received
    assert "STOPPING=1" in notify.received


async def test_a_reload_ends_also_after_an_error(notify: NotifySocket) -> None:
    with Supervisor(Supervision(notify.address), lambda: FIGURES) as systemd:
        systemd.ready()
        notify.waiting()
        with suppress(ConfigurationError), systemd.reloading():
            raise ConfigurationError("a broken file")
        first, time, last = notify.waiting()
        assert (first, last) == ("RELOADING=1", "READY=1")
        assert time.removeprefix("MONOTONIC_USEC=").isdigit()


async def test_a_reload_does_not_make_a_server_ready(notify: NotifySocket) -> None:
    """Neither before its start has ended, nor when it stops."""
    with Supervisor(Supervision(notify.address), lambda: FIGURES) as systemd:
        with systemd.reloading():
            pass
        assert notify.waiting() == []
        systemd.ready()
        with systemd.reloading():
            systemd.stopping()
        with systemd.reloading():
            pass
        lines = notify.waiting()
    assert lines.count("READY=1") == lines.count("RELOADING=1") == 1
    assert lines.index("READY=1") < lines.index("RELOADING=1") < lines.index("STOPPING=1")


async def test_an_abstract_address_and_a_missing_socket(tmp_path: Path) -> None:
    abstract = NotifySocket(f"@bridge-test-{os.getpid()}")
    try:
        Supervisor(Supervision(abstract.address), lambda: FIGURES).ready()
        assert "READY=1" in abstract.waiting()
    finally:
        abstract.close()
    Supervisor(Supervision(str(tmp_path / "missing")), lambda: FIGURES).stopping()


async def test_without_systemd_no_timer_runs() -> None:
    with Supervisor(Supervision(), dict) as systemd:  # figures() would raise KeyError
        systemd.ready()
        systemd.stopping()


# --- sockets --------------------------------------------------------------------------------------


def passed(*sockets: socket.socket) -> int:
    """The first of consecutive inheritable descriptors of these sockets, as systemd passes them."""
    first = 100 + sockets[0].fileno()
    for number, one in enumerate(sockets, first):
        os.dup2(one.fileno(), number)
        one.close()
    return first


def listening(host: str = "127.0.0.1") -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, 0), family=family)


def at(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    made.listen()
    return made


def test_sockets_are_private_and_replace_settings(tmp_path: Path) -> None:
    tcp = listening()
    port = tcp.getsockname()[1]
    found = inherit(["http", "unix"], passed(tcp, at(tmp_path / "s")))
    with ExitStack() as stack:
        for one in (*found.http, found.unix):
            assert one is not None
            stack.enter_context(one)
            assert not one.get_inheritable()
            assert not one.getblocking()
        settings = found.settings
    expected = {"host": "127.0.0.1", "port": port, "bridge_unix_socket": str(tmp_path / "s")}
    assert settings == expected


def test_an_exposed_address_decides_about_host() -> None:
    found = inherit(["http", "http"], passed(listening(), listening("0.0.0.0")))
    assert found.settings["host"] == "0.0.0.0"
    for one in found.http:
        one.close()


def test_a_unix_socket_alone_means_no_tcp(tmp_path: Path) -> None:
    found = inherit(["unix"], passed(at(tmp_path / "s")))
    assert found.settings == {"port": "none", "bridge_unix_socket": str(tmp_path / "s")}
    assert found.unix
    found.unix.close()


def _datagram() -> socket.socket:
    made = socket.socket(type=socket.SOCK_DGRAM)
    made.bind(("127.0.0.1", 0))
    return made


def _abstract() -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(f"\0bridge-test-{os.getpid()}")
    made.listen()
    return made


@pytest.mark.parametrize(
    ("name", "make", "problem"),
    [
        ("connection", listening, "FileDescriptorName"),
        ("unix", listening, "not a Unix socket"),
        ("http", _abstract, "not a TCP socket"),
        ("http", _datagram, "not a TCP socket"),
        ("http", socket.socket, "does not listen"),
        ("unix", _abstract, "absolute path"),
    ],
)
def test_another_socket_is_refused(name: str, make: type[socket.socket], problem: str) -> None:
    first = passed(make())
    with pytest.raises(ConfigurationError, match=problem):
        inherit([name], first)
    with suppress(OSError):
        os.close(first)


def test_a_file_is_no_socket(tmp_path: Path) -> None:
    file = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(ConfigurationError, match="is not a socket"):
            inherit(["http"], file)
    finally:
        os.close(file)
