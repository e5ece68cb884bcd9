"""Hints by Redis, one stream for each server. Needs the extra `redis`; server/extras.py imports it
when a setting asks for it.

Streams, not publish and subscribe: a slow server is not cut off, and a reconnect continues after
the last entry. Every user of Redis can send entries, so hints have authentication codes, and
a stream that another program has made useless is deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from redis.exceptions import ResponseError

from bridge.store.postgres.bus import Bus
from bridge.store.redis_address import ANSWER_WITHIN, REDIS_ERRORS, RedisAddress

MOST_ENTRIES = 10_000  # of a stream, about
MOST_READ = 200  # entries of one answer
EXPIRES = 3600  # seconds after which Redis forgets the stream of a server that has gone
SLACK = 1.0  # seconds by which an answer may be later than the end of a bounded wait
FIELD = b"h"  # of an entry: the payload


class RedisBus(Bus):
    kind = "redis"
    errors = REDIS_ERRORS

    def __init__(
        self,
        address: RedisAddress,
        *,
        heard: Callable[[str], None],
        restored: Callable[[], None],
        alive: Callable[[], Awaitable[object]],
    ) -> None:
        super().__init__(heard=heard, restored=restored)
        self._address = address
        self._show_life = alive
        self._sender: Any = None  # a Redis
        self._last: bytes | None = None  # id of the newest entry that was read

    async def listen(self) -> None:
        client = self._address.client()
        try:
            await self._begin(client)
            self.established()
            self.answered = True
            while self.answered:
                self.ask()
                await self._hear(client)
                if self.answered:
                    await self._show_life()
        finally:
            await client.aclose()

    async def _begin(self, client: Any) -> None:
        """Find the entry after which to read: the last one that was read, as long as the stream is
        the same. Raises RedisError if this server may not use it."""
        key = self._key(self.channel)
        async with asyncio.timeout(ANSWER_WITHIN):
            try:
                newest = await _add(client, key)
            except ResponseError:  # no stream, or one with the largest id
                await client.delete(key)
                newest = await _add(client, key)
        if self._last is None:
            self._last = newest
        elif _order(newest) <= _order(self._last):  # Redis has lost it
            self._last = b"0-0"

    async def _hear(self, client: Any) -> None:
        """Take the entries of the next `probe` seconds."""
        loop, key = asyncio.get_running_loop(), self._key(self.channel)
        due = loop.time() + self.probe
        while (left := due - loop.time()) > 0:
            async with asyncio.timeout(left + SLACK):  # the answer may never come
                found = await client.xread(
                    {key: self._last or b"$"}, count=MOST_READ, block=max(1, int(1000 * left))
                )
            for _, entries in found:
                for number, fields in entries:
                    self._last = number
                    self._take(fields)

    def _take(self, fields: Mapping[bytes, bytes] | None) -> None:
        try:
            payload = (fields or {}).get(FIELD, b"").decode()
        except UnicodeDecodeError:
            return
        if payload:
            self.take(payload)

    async def deliver(self, channels: Sequence[str], payloads: Sequence[str]) -> None:
        if self._sender is None:
            self._sender = self._address.client()
        async with asyncio.timeout(ANSWER_WITHIN):
            pipeline = self._sender.pipeline(transaction=False)
            for channel, payload in zip(channels, payloads, strict=True):
                fields = {FIELD: payload.encode()}
                pipeline.xadd(self._key(channel), fields, maxlen=MOST_ENTRIES, approximate=True)
            for key in self._keys(channels):
                pipeline.expire(key, EXPIRES)
            # An entry that Redis refuses does not concern the others; the probe shows the own ones.
            await pipeline.execute(raise_on_error=False)

    async def hang_up(self) -> None:
        sender, self._sender = self._sender, None
        if sender:
            await sender.aclose()

    def _keys(self, channels: Iterable[str]) -> Iterable[str]:
        return {self._key(channel) for channel in channels}

    def _key(self, channel: str) -> str:
        return f"bridge:{self.cluster}:{channel}"


async def _add(client: Any, key: str) -> bytes:
    """Add an entry without a hint. Returns its id."""
    added = await client.xadd(key, {FIELD: b""}, maxlen=MOST_ENTRIES, approximate=True)
    return bytes(added)


def _order(number: bytes) -> tuple[int, int]:
    """The time and the counter in the id of an entry."""
    time, _, counter = number.partition(b"-")
    return int(time), int(counter or 0)
