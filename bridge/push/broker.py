"""Commands to a Redis server that may be away or full for a while. Needs the extra `redis`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from random import SystemRandom
from typing import Any, TypeVar

from redis.exceptions import OutOfMemoryError, RedisError, ResponseError

from bridge.store.redis_address import ANSWER_WITHIN, REDIS_ERRORS, RedisAddress, cause_of

log = logging.getLogger(__name__)

T = TypeVar("T")
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0  # seconds between attempts
BLOCK = 5.0  # seconds for which a read waits for an entry
_WAITS = (
    *("OOM", "MISCONF", "NOREPLICAS", "READONLY", "LOADING", "BUSY ", "MASTERDOWN", "CLUSTERDOWN"),
    *("NOPERM", "NOAUTH", "WRONGPASS", "TRYAGAIN", "UNBLOCKED"),
)
"""The beginnings of errors that end without a change of the command."""
_chance = SystemRandom().random


class Broker:
    """Repeats each command until Redis answers. `connections`: at most so many at once."""

    def __init__(self, address: RedisAddress, connections: int = 4) -> None:
        self.shown = address.shown
        self._address = address
        self._client = address.client(connections, repeats=False)
        self._readers: list[Any] = []
        self._down: float | None = None  # since when, by the wall clock
        self._full = False
        self.losses = 0
        """The number of failed attempts."""

    @property
    def problem(self) -> str | None:
        """The problem for /health, without secrets."""
        if self._down:
            since = datetime.fromtimestamp(self._down, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            return f"redis: down since {since}"
        return "redis: full (maxmemory), so answers and notifications wait" if self._full else None

    async def close(self) -> None:
        for one in (self._client, *self._readers):
            await one.aclose()

    def reader(self) -> Any:
        """A client with a connection of its own, for reads that block."""
        made = self._address.client(1, repeats=False)
        self._readers.append(made)
        return made

    async def do(
        self,
        command: Callable[[Any], Awaitable[T]],
        *,
        client: Any = None,
        within: float = ANSWER_WITHIN,
        adds: bool = False,
    ) -> T:
        """The result of a command, which may run several times. `client`: of reader(), else the
        common one. `within`: seconds for an answer. `adds`: the command needs memory. Raises
        ResponseError for an error that a later attempt cannot change."""
        failures = 0
        while True:
            try:
                async with asyncio.timeout(within):
                    result = await command(client or self._client)
            except REDIS_ERRORS as error:
                if not _passes(error):
                    self._up()
                    raise
                self._failed(error)
                failures += 1
                await asyncio.sleep(pause(failures))
            else:
                self._up()
                self._full = self._full and not adds
                return result

    async def once(self, command: Callable[[Any], Awaitable[T]]) -> T:
        """The result of one attempt. Raises REDIS_ERRORS."""
        async with asyncio.timeout(ANSWER_WITHIN):
            return await command(self._client)

    def _failed(self, error: BaseException) -> None:
        self.losses += 1
        if is_full(error):
            if not self._full:
                log.error("Redis is full; answers wait", extra={"redis": self.shown})
            self._full = True
        elif self._down is None:
            self._down = time.time()
            facts = {"redis": self.shown, "error": cause_of(error)}
            log.warning("Redis does not answer", extra=facts)

    def _up(self) -> None:
        if self._down:
            seconds = round(time.time() - self._down, 1)
            log.warning("Redis answers again", extra={"redis": self.shown, "seconds": seconds})
        self._down = None


def pause(failures: int) -> float:
    """Seconds after so many failures, at most 10; the upper half is random."""
    longest = min(FIRST_PAUSE * 2.0 ** min(failures, 20), LONGEST_PAUSE)
    return longest * (0.5 + _chance() / 2)


def is_full(error: BaseException) -> bool:
    """Whether Redis has refused a command because of maxmemory."""
    return isinstance(error, OutOfMemoryError) or str(error).startswith("OOM")


def is_known(result: object) -> bool:
    """Whether Redis has refused an entry because a stream has one with this or a larger id."""
    return isinstance(result, ResponseError) and "equal or smaller than the target" in str(result)


def _passes(error: BaseException) -> bool:
    """Whether a later attempt may succeed."""
    return type(error) is not ResponseError or str(error).startswith(_WAITS)


def checked(results: Sequence[Any]) -> Sequence[Any]:
    """The results of a pipeline without raise_on_error. Raises its first error; it ignores
    entries that the stream already has."""
    for one in results:
        if isinstance(one, RedisError) and not is_known(one):
            raise one
    return results


async def make_group(client: Any, stream: str, group: str) -> None:
    """Create the consumer group with all entries of the stream, unless it exists."""
    try:
        await client.xgroup_create(stream, group, id="0", mkstream=True)
    except ResponseError as error:
        if not str(error).startswith("BUSYGROUP"):
            raise
