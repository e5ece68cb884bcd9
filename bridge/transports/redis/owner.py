"""The owner of a prefix: one store, with all its servers. A server of another store must not take
requests, because it does not know their tasks."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from bridge.push.broker import Broker

log = logging.getLogger(__name__)

TTL = 30.0  # seconds after which Redis forgets an owner that does not renew
SHARE = 3  # renewals within that time


class Ownership:
    """Holds the owner key. `identity`: the id of the store. `ttl`: seconds."""

    def __init__(self, broker: Broker, key: str, identity: str, ttl: float = TTL) -> None:
        self._broker = broker
        self._key = key
        self._identity = identity.encode()
        self._ttl = ttl
        self._until = 0.0
        self._held = asyncio.Event()
        self.other: str | None = None
        """The id of another store that has the prefix."""

    @property
    def problem(self) -> str | None:
        """The problem for /health."""
        is_other = self.other is not None
        return "redis: another store owns BRIDGE_REDIS_PREFIX" if is_other else None

    @property
    def is_held(self) -> bool:
        """Whether no other store can own the prefix now."""
        return asyncio.get_running_loop().time() < self._until

    async def hold(self) -> None:
        """Claim the key and renew it, until this call is cancelled."""
        while True:
            await self._broker.do(self.claim, adds=True)
            await asyncio.sleep(self._ttl / SHARE)

    async def claim(self, client: Any) -> None:
        """Claim or renew the key once. Raises errors of Redis."""
        began = asyncio.get_running_loop().time()
        milliseconds = int(1000 * self._ttl)
        found = await client.get(self._key)
        if found is None:
            ours = await client.set(self._key, self._identity, nx=True, px=milliseconds)
        else:
            ours = found == self._identity and await client.pexpire(self._key, milliseconds)
        if ours:
            self._until = began + self._ttl
            self.other = None
            self._held.set()
            return
        self._until = 0.0
        self._held.clear()
        if found is not None and found != self._identity:
            if self.other is None:
                log.error("another store owns the prefix in Redis", extra={"key": self._key})
            self.other = found.decode(errors="replace")

    async def wait(self) -> None:
        """Return as soon as the key is held."""
        while not self.is_held:
            self._held.clear()
            await self._held.wait()

    async def release(self) -> None:
        """Delete the key, if it is held: the next owner need not wait. Raises errors of Redis."""

        async def remove(client: Any) -> None:
            if await client.get(self._key) == self._identity:
                await client.delete(self._key)

        if self.is_held:
            await self._broker.once(remove)
