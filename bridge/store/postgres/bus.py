"""The carrier of hints between the servers of a database: what all carriers have in common. Its
loss costs time only.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from bridge.store.journal import RETRY_FIRST, RETRY_LONGEST

log = logging.getLogger(__name__)

PROBE = 5.0  # seconds between two hints of a server to itself
MOST_WAITING = 4 * 1024 * 1024  # characters of payloads that are not sent yet


class MakeBus(Protocol):
    """Makes a carrier; for the arguments see Bus. `alive` is awaited after each probe that comes
    back, and raises nothing."""

    def __call__(
        self,
        *,
        heard: Callable[[str], None],
        restored: Callable[[], None],
        alive: Callable[[], Awaitable[object]],
    ) -> Bus: ...


class Bus(ABC):
    """`heard` gets each payload for the channel of this server. `restored` is called after each
    start of listening: earlier payloads may be lost. A session that does not bring the probe of
    this server back within `probe` seconds is replaced, because a broken connection can stay
    silent. `kind`: of the carrier; `works`: whether hints arrive, as far as it is known."""

    kind: str
    errors: tuple[type[Exception], ...]
    """The errors of a session that ends. They are reported, and another session begins."""

    def __init__(self, *, heard: Callable[[str], None], restored: Callable[[], None]) -> None:
        self._heard = heard
        self._restored = restored
        self.probe = PROBE
        self.works = True
        self.channel = self.cluster = ""
        self.identity: tuple[str, int] = ("", 0)
        self.answered = False
        # Random, so that no one else can answer the probe.
        self.alive = f"alive {secrets.token_hex(16)}"
        self._channels: list[str] = []
        self._payloads: list[str] = []
        self._size = 0
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._pause = RETRY_FIRST
        self._closing = False
        self._suspect = False  # the session that sends may be broken

    def start(self, channel: str, cluster: str, node: str, epoch: int) -> None:
        """Listen to `channel`, as this incarnation of the node. `cluster`: the name of all servers
        of the database, for a carrier that has others, too."""
        self.channel, self.cluster, self.identity = channel, cluster, (node, epoch)
        self._tasks = [asyncio.create_task(one()) for one in (self._listen, self._deliver)]

    async def close(self) -> None:
        self._closing = True  # nothing to report from now on
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def send(self, channel: str, payload: str) -> None:
        """Send the payload soon. It is dropped if too many wait."""
        if self._size < MOST_WAITING:
            self._channels.append(channel)
            self._payloads.append(payload)
            self._size += len(payload)
            self._wake.set()

    # --- sessions ------------------------------------------------------------------------------

    @abstractmethod
    async def listen(self) -> None:
        """A session that listens: call established(), and take() with each payload, as long as the
        probes come back. Raises one of `errors`."""

    @abstractmethod
    async def deliver(self, channels: Sequence[str], payloads: Sequence[str]) -> None:
        """Send the payloads, each to its channel. Raises one of `errors`."""

    @abstractmethod
    async def hang_up(self) -> None:
        """End the session that sends. The next payloads get a new one."""

    def cut(self) -> None:  # noqa: B027
        """End the wait of the session that sends for an answer, if a cancellation would not."""

    def established(self) -> None:
        """Listening has begun."""
        self._pause = RETRY_FIRST
        self._restored()

    def take(self, payload: str) -> None:
        if payload != self.alive:
            self._heard(payload)
            return
        self.answered = True
        if not self.works:
            self.works = True
            log.warning("hints of other servers arrive again")

    def ask(self) -> None:
        """Send the probe."""
        self.answered = False
        self.send(self.channel, self.alive)

    # --- the loops -----------------------------------------------------------------------------

    async def _listen(self) -> None:
        while True:
            try:
                await self.listen()
                self._report(TimeoutError("a hint to this server did not arrive"))
                self._suspect = True  # the fault may be there
                self.cut()
            except self.errors as error:
                self._report(error)
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, RETRY_LONGEST)

    async def _deliver(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                given = self._channels, self._payloads
                self._channels, self._payloads, self._size = [], [], 0
                if self._suspect:  # else the next probe would be lost with it
                    self._suspect = False
                    await self.hang_up()
                try:
                    await self.deliver(*given)
                except self.errors as error:
                    self._report(error)
                    await self.hang_up()
                    await asyncio.sleep(RETRY_FIRST)
        finally:
            await self.hang_up()

    def _report(self, error: Exception) -> None:
        """Once, until hints arrive again: the store reports a database that is away itself."""
        if self.works and not self._closing:
            text = "hints of other servers do not arrive: their tasks are up to a second late here"
            log.warning(text, extra={"error": str(error).strip() or repr(error)})
        self.works = False
