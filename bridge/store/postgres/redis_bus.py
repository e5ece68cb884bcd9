"""Hints by Redis, one stream for each server. Needs the extra `redis`; server/extras.py imports it
when a setting asks for it.

Streams, not publish and subscribe: a slow server is not cut off, and a reconnect continues after
the last entry. Every user of Redis can send entries, so hints have authentication codes, and
a stream that another program has made useless is deleted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import ConnectionPool, Redis, UnixDomainSocketConnection
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import RedisError, ResponseError

from bridge.errors import ConfigurationError
from bridge.store.postgres.bus import Bus
from bridge.store.postgres.connect import is_local

MOST_ENTRIES = 10_000  # of a stream, about
MOST_READ = 200  # entries of one answer
EXPIRES = 3600  # seconds after which Redis forgets the stream of a server that has gone
ANSWER_WITHIN = 5.0  # seconds for an answer
SLACK = 1.0  # seconds by which an answer may be later than the end of a bounded wait
RETRIES, FIRST, LONGEST = 3, 0.05, 0.5  # of redis-py, for a connection that is lost; in seconds
FIELD = b"h"  # of an entry: the payload


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """`options`: of a connection, with the password; `shown` is without it. `exposed`: hints cross
    a network without TLS and a verified server."""

    options: Mapping[str, Any]
    shown: str
    exposed: bool

    def client(self) -> Any:  # its types describe all versions of the protocol at once
        """A client that repeats a command on a new connection for about a second."""
        backoff = ExponentialBackoff(cap=LONGEST, base=FIRST)
        fixed = {
            "protocol": 2,
            "decode_responses": False,
            "retry": Retry(backoff, RETRIES),
            "socket_connect_timeout": ANSWER_WITHIN,
            "socket_timeout": None,  # asyncio bounds each wait, also one that blocks on purpose
            "max_connections": 1,
        }
        return Redis.from_pool(ConnectionPool(**{**self.options, **fixed}))


def parse_redis(url: str) -> RedisAddress:
    """The address in a URL redis://, rediss:// or unix://. Raises ConfigurationError, without the
    password."""
    try:
        options: dict[str, Any] = dict(parse_url(url))
        kind = options.get("connection_class")
        given = {name: value for name, value in options.items() if name != "connection_class"}
        pool: Any = ConnectionPool(**options)
        pool.make_connection()  # it checks the names of the options
    except (TypeError, ValueError, RedisError):  # their texts have parts of the URL
        raise ConfigurationError(
            "BRIDGE_BUS: a URL such as rediss://user:password@host:6379/0 is expected; write "
            "reserved characters of a password as %XX"
        ) from None
    if kind is UnixDomainSocketConnection:
        return RedisAddress(options, f"Redis at {given.get('path')}", exposed=False)
    host = given.get("host", "localhost")
    verified = url.startswith("rediss://") and (
        given.get("ssl_cert_reqs", "required") == "required"
        and given.get("ssl_check_hostname", True)
    )
    shown = f"Redis at {host}:{given.get('port', 6379)}"
    return RedisAddress(options, shown, not verified and not is_local(host))


async def ping(address: RedisAddress) -> float:
    """The milliseconds of an answer. Raises ConfigurationError if there is none."""
    client = address.client()
    try:
        async with asyncio.timeout(ANSWER_WITHIN):
            await client.ping()
            begun = time.perf_counter()
            await client.ping()
            return 1000 * (time.perf_counter() - begun)
    except (RedisError, OSError, TimeoutError) as error:
        cause = str(error).strip().rstrip(".") or type(error).__name__
        raise ConfigurationError(f"cannot use {address.shown}: {cause}") from error
    finally:
        await client.aclose()


class RedisBus(Bus):
    kind = "redis"
    errors = (RedisError, OSError, TimeoutError)

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
