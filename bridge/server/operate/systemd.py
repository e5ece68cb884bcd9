"""The server as a service of systemd: notifications about its state, and inherited sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bridge.auth.config import LOOPBACK
from bridge.errors import ConfigurationError
from bridge.server.settings.supervision import Supervision, supervision

FIRST = 3
"""The descriptor of the first inherited socket (SD_LISTEN_FDS_START)."""
STATUS_EVERY = 10.0  # seconds
EXTENDED_EVERY, EXTENDED_BY = 5.0, 20.0  # seconds; a stop may take longer than TimeoutStopSec
_INTERNET = (socket.AF_INET, socket.AF_INET6)


@dataclass(frozen=True, slots=True)
class InheritedSockets:
    """Listening sockets that systemd has made. They replace HOST and PORT, and
    BRIDGE_UNIX_SOCKET."""

    http: Sequence[socket.socket] = ()
    unix: socket.socket | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that describe the sockets: an address that other machines reach has
        precedence, so that the checks of HOST apply to it. With a Unix socket alone, the server
        opens no TCP port."""
        found: dict[str, Any] = {}
        places = [one.getsockname() for one in self.http]
        if places:
            exposed = (place for place in places if place[0] not in LOOPBACK)
            host, port = next(exposed, places[0])[:2]
            found |= {"host": host, "port": port}
        if self.unix:
            found |= {"bridge_unix_socket": self.unix.getsockname()}
            found |= {} if places else {"port": "none"}
        return found


@dataclass(frozen=True, slots=True)
class SystemdService:
    """The side of systemd of one server; empty for a server without systemd."""

    supervision: Supervision = field(default_factory=Supervision)
    sockets: InheritedSockets = field(default_factory=InheritedSockets)

    @classmethod
    def take(cls) -> SystemdService:
        """Take over the variables and the sockets of this process. Raises ConfigurationError."""
        found = supervision()
        return cls(found, inherit(found.names))


ALONE = SystemdService()


def inherit(names: Sequence[str], first: int = FIRST) -> InheritedSockets:
    """The sockets of the descriptors from `first` on, by their names: `http` is TCP, `unix` is a
    Unix socket with a path. No child inherits them. Raises ConfigurationError for a descriptor that
    is not such a socket."""
    http: list[socket.socket] = []
    unix: list[socket.socket] = []
    with contextlib.ExitStack() as unused:
        for fd, name in enumerate(names, first):
            try:
                os.set_inheritable(fd, False)
                one = unused.enter_context(socket.socket(fileno=fd))
                _check(name, one)
            except OSError as error:
                raise _refused(name, f"is not a socket: {error.strerror}") from None
            one.setblocking(False)
            (unix if one.family == socket.AF_UNIX else http).append(one)
        if len(unix) > 1:
            raise _refused("unix", "is there more than once")
        unused.pop_all()
    return InheritedSockets(http, unix[0] if unix else None)


def _check(name: str, one: socket.socket) -> None:
    family = {"http": _INTERNET, "unix": (socket.AF_UNIX,)}.get(name)
    if family is None:
        text = "is unknown: set FileDescriptorName= of its unit to http or unix"
        raise _refused(name, text)
    if one.family not in family or one.type != socket.SOCK_STREAM:
        kind = "a Unix socket" if name == "unix" else "a TCP socket"
        raise _refused(name, f"is not {kind}: use ListenStream=")
    if not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise _refused(name, "does not listen: its unit has Accept=yes")
    if name == "unix" and not str(one.getsockname()).startswith("/"):
        raise _refused(name, "has no absolute path")


def _refused(name: str, problem: str) -> ConfigurationError:
    return ConfigurationError(f"the socket {name!r} of systemd {problem}.")


class Supervisor:
    """Reports the state of the server to systemd: that it is ready, that its event loop works, that
    it stops, and the figures of its sessions. Without systemd it does nothing. `figures`: see
    SessionPool.figures. Requires a running event loop."""

    def __init__(
        self,
        found: Supervision,
        figures: Callable[[], Mapping[str, int | bool]],
        *,
        status_every: float = STATUS_EVERY,
        extended_every: float = EXTENDED_EVERY,
    ) -> None:
        self._address = found.notify
        self._watchdog = found.watchdog
        self._figures = figures
        self._status_every = status_every
        self._extended_every = extended_every
        self._shown = ""
        self._serving = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ready(self) -> None:
        """All listeners accept connections."""
        if self._address is None:
            return
        self._serving = True
        self._shown = self._status()
        self._send("READY=1", f"STATUS={self._shown}")
        self._repeat("status", self._status_every, self._show)
        if self._watchdog:
            self._repeat("watchdog", self._watchdog / 2, self._live)
            self._live()

    @contextlib.contextmanager
    def reloading(self) -> Iterator[None]:
        """The server reads its settings again. Nothing is sent before ready() and after stopping():
        READY would be wrong."""
        if not self._serving:
            yield
            return
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={now}")
        try:
            yield
        finally:
            if self._serving:
                self._send("READY=1")

    def stopping(self) -> None:
        """The server stops. Until close(), systemd grants it more time again and again, as long as
        the event loop works."""
        self._serving = False
        self._cancel("status")
        self._send("STOPPING=1", "STATUS=stopping")
        self._extend()
        if self._address:
            self._repeat("extension", self._extended_every, self._extend)

    def close(self) -> None:
        for name in tuple(self._timers):
            self._cancel(name)

    def _status(self) -> str:
        now = self._figures()
        return f"{now['working']} running, {now['waiting']} asking, {now['queued']} queued"

    def _show(self) -> None:
        status = self._status()
        if status != self._shown:
            self._shown = status
            self._send(f"STATUS={status}")

    def _live(self) -> None:
        self._send("WATCHDOG=1")

    def _extend(self) -> None:
        self._send(f"EXTEND_TIMEOUT_USEC={round(EXTENDED_BY * 1_000_000)}")

    def _repeat(self, name: str, seconds: float, act: Callable[[], None]) -> None:
        def again() -> None:
            act()
            self._timers[name] = self._loop.call_later(seconds, again)

        self._cancel(name)
        self._timers[name] = self._loop.call_later(seconds, again)

    def _cancel(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer:
            timer.cancel()

    def _send(self, *lines: str) -> None:
        """Send one datagram. A failure is not reported: systemd acts on missing datagrams."""
        if self._address is None:
            return
        place = self._address
        address = "\0" + place[1:] if place.startswith("@") else place
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as one,
        ):
            one.setblocking(False)
            one.sendto("\n".join(lines).encode(), address)
