"""The two sessions that carry hints: one listens, the other one notifies. Neither takes part in a
commit of the store: a notification within a writing transaction would serialize all commits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from contextlib import aclosing

import psycopg

from bridge.store.journal import RETRY_FIRST, RETRY_LONGEST
from bridge.store.postgres.connect import Connection, DatabaseAddress, cut, limited

log = logging.getLogger(__name__)

PROBE = 5.0  # seconds between two notifications of a server to itself
MOST_WAITING = 4 * 1024 * 1024  # characters of payloads that are not sent yet
ALIVE = "alive"  # the payload of a probe

_SESSION = b"SET synchronous_commit = off"  # nothing that a hint says is lost with it
_NOTIFY = (
    b"SELECT pg_notify(channel, payload) FROM unnest(%s::text[], %s::text[]) AS u(channel, payload)"
)
_SEEN = b"UPDATE node SET seen = now() WHERE id = %s AND epoch = %s"


class Bus:
    """`heard` gets each payload for `channel`. `restored` is called after each start of listening:
    earlier payloads may be lost. A session that does not bring the probe of this server back within
    `probe` seconds is replaced, because a broken connection can stay silent."""

    def __init__(
        self,
        address: DatabaseAddress,
        *,
        heard: Callable[[str], None],
        restored: Callable[[], None],
    ) -> None:
        self._address = address
        self._heard = heard
        self._restored = restored
        self.probe = PROBE
        self._channel = ""
        self._identity: tuple[str, int] = ("", 0)
        self._channels: list[str] = []
        self._payloads: list[str] = []
        self._size = 0
        self._wake = asyncio.Event()
        self._answered = False
        self._sender: Connection | None = None
        self._listener: Connection | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._failed = False

    def start(self, channel: str, node: str, epoch: int) -> None:
        """Listen to `channel`, as this incarnation of the node."""
        self._channel, self._identity = channel, (node, epoch)
        self._tasks = [asyncio.create_task(one()) for one in (self._listen, self._notify)]

    async def close(self) -> None:
        self._failed = True  # nothing to report from now on
        if self._sender:
            cut(self._sender)  # a wait for an answer ends
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def send(self, channel: str, payload: str) -> None:
        """Notify the channel soon. The payload is dropped if too many wait."""
        if self._size < MOST_WAITING:
            self._channels.append(channel)
            self._payloads.append(payload)
            self._size += len(payload)
            self._wake.set()

    # --- listening -----------------------------------------------------------------------------

    async def _listen(self) -> None:
        pause = RETRY_FIRST
        while True:
            try:
                self._listener = await self._address.connect()
                with limited(self._listener):
                    await self._listener.execute(f'LISTEN "{self._channel}"'.encode())
                self._restored()
                await self._hear(self._listener)
                pause = RETRY_FIRST
            except (psycopg.Error, OSError, TimeoutError) as error:
                self._report(error)
            finally:
                await _close(self._listener)
                self._listener = None
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_LONGEST)

    async def _hear(self, connection: Connection) -> None:
        """Take the payloads, as long as the probes come back."""
        self._answered = True
        while self._answered:
            self._answered = False
            self.send(self._channel, ALIVE)
            async with aclosing(connection.notifies(timeout=self.probe)) as found:
                async for one in found:
                    if one.payload == ALIVE:
                        self._answered = True
                        self._recovered()
                    else:
                        self._heard(one.payload)
        self._report(TimeoutError("a notification did not arrive"))
        if self._sender:
            cut(self._sender)  # the fault may be there

    # --- notifying -----------------------------------------------------------------------------

    async def _notify(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                given = self._channels, self._payloads
                self._channels, self._payloads, self._size = [], [], 0
                try:
                    await self._attempt(*given)
                except (psycopg.Error, OSError, TimeoutError) as error:
                    self._report(error)
                    await _close(self._sender)
                    self._sender = None
                    await asyncio.sleep(RETRY_FIRST)
        finally:
            await _close(self._sender)

    async def _attempt(self, channels: list[str], payloads: list[str]) -> None:
        if self._sender is None:
            self._sender = await self._address.connect()
            with limited(self._sender):
                await self._sender.execute(_SESSION)
        with limited(self._sender):
            await self._sender.execute(_NOTIFY, (channels, payloads), prepare=True)
            if ALIVE in payloads:
                await self._sender.execute(_SEEN, self._identity)

    # --- the log -------------------------------------------------------------------------------

    def _report(self, error: Exception) -> None:
        """Once, until hints arrive again: the store reports a database that is away itself."""
        if not self._failed:
            self._failed = True
            text = "hints of other servers do not arrive: their tasks are up to a second late here"
            log.warning(text, extra={"error": str(error).strip() or repr(error)})

    def _recovered(self) -> None:
        if self._failed:
            self._failed = False
            log.warning("hints of other servers arrive again")


async def _close(connection: Connection | None) -> None:
    if connection:
        with contextlib.suppress(psycopg.Error, OSError):
            await connection.close()
