"""Hints by LISTEN and NOTIFY of the database. Two sessions carry them: one listens, the other one
notifies. Neither takes part in a commit of the store: a notification within a writing transaction
would serialize all commits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import aclosing

import psycopg

from bridge.store.postgres.bus import Bus
from bridge.store.postgres.connect import Connection, DatabaseAddress, cut, limited

_SESSION = b"SET synchronous_commit = off"  # nothing that a hint says is lost with it
_NOTIFY = (
    b"SELECT pg_notify(channel, payload) FROM unnest(%s::text[], %s::text[]) AS u(channel, payload)"
)
_SEEN = b"UPDATE node SET seen = now() WHERE id = %s AND epoch = %s"


class NotifyBus(Bus):
    """Needs sessions of the database: a pooler in transaction mode drops LISTEN."""

    kind = "notify"
    errors = (psycopg.Error, OSError, TimeoutError)

    def __init__(
        self,
        address: DatabaseAddress,
        *,
        heard: Callable[[str], None],
        restored: Callable[[], None],
    ) -> None:
        super().__init__(heard=heard, restored=restored)
        self._address = address
        self._sender: Connection | None = None

    def cut(self) -> None:
        if self._sender:
            cut(self._sender)

    async def listen(self) -> None:
        connection: Connection | None = None
        try:
            connection = await self._address.connect()
            with limited(connection):
                await connection.execute(f'LISTEN "{self.channel}"'.encode())
            self.established()
            self.answered = True
            while self.answered:
                self.ask()
                async with aclosing(connection.notifies(timeout=self.probe)) as found:
                    async for one in found:
                        self.take(one.payload)
        finally:
            await _close(connection)

    async def deliver(self, channels: Sequence[str], payloads: Sequence[str]) -> None:
        if self._sender is None:
            self._sender = await self._address.connect()
            with limited(self._sender):
                await self._sender.execute(_SESSION)
        with limited(self._sender):
            await self._sender.execute(_NOTIFY, (list(channels), list(payloads)), prepare=True)
            if self.alive in payloads:
                await self._sender.execute(_SEEN, self.identity)

    async def hang_up(self) -> None:
        sender, self._sender = self._sender, None
        await _close(sender)


async def _close(connection: Connection | None) -> None:
    if connection:
        with contextlib.suppress(psycopg.Error, OSError):
            await connection.close()
