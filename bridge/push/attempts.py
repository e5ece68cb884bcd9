"""The number, the pauses and the connections of attempts to notify receivers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakValueDictionary

from bridge.push import egress
from bridge.store.protocol import WRITE_WITHIN


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`attempts`: per notification. `timeout`: seconds of one request. `first_pause`,
    `longest_pause`: seconds between attempts. `per_host`, `overall`: open connections.
    `write_within`: seconds for the commit of a config."""

    attempts: int = 10
    timeout: float = egress.TIMEOUT
    first_pause: float = 1.0
    longest_pause: float = 300.0
    per_host: int = 2
    overall: int = 32
    write_within: float = WRITE_WITHIN

    def pause(self, failures: int, random: Callable[[], float]) -> float:
        """Seconds to wait after so many failures. The pause doubles each time; its upper half is
        random, so that the retries to a recovered receiver do not coincide."""
        longest = min(self.first_pause * 2.0 ** min(failures - 1, 60), self.longest_pause)
        return longest * (0.5 + random() / 2)


USUAL = RetryPolicy()


class HostLimits:
    """Limits of open connections, per host and in total."""

    def __init__(self, per_host: int, overall: int) -> None:
        self._per_host = per_host
        self._overall = asyncio.Semaphore(overall)
        self._hosts: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def take(self, host: str) -> AsyncIterator[None]:
        """Hold a connection. Waits for the limit of the host first, so that it holds no connection
        of the total limit meanwhile."""
        of_host = self._hosts.get(host) or asyncio.Semaphore(self._per_host)
        self._hosts[host] = of_host
        async with of_host, self._overall:
            yield


class Relay(Protocol):
    """Carries notifications to the process that sends them: bridge/push/relay.py."""

    def start(self) -> None: ...

    async def post(
        self, job: str, url: str, body: bytes, headers: Mapping[str, str], secret: str | None = None
    ) -> int:
        """The status of the answer. Raises RequestFailed without an answer. `job`: a name of this
        attempt. `secret` signs the request."""

    def bury(self, facts: Mapping[str, str]) -> None:
        """The notification gets no further attempt."""

    def leave(self) -> None:
        """The server stops: a wait that is cancelled does not withdraw its job."""

    async def close(self) -> None: ...
