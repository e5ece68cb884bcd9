"""Requests and push notifications through Redis, as a part of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.auth.credentials import redis_users_of
from bridge.auth.quotas import Quotas
from bridge.server.app.sites import ServedAgent
from bridge.server.extras import push_relay, redis_report, redis_transport
from bridge.server.settings.broker import redis_principals
from bridge.server.settings.root import Settings
from bridge.server.state_dir import State

if TYPE_CHECKING:
    from bridge.push.relay import RedisRelay
    from bridge.transports.redis.server import RedisTransport


class RedisPort:
    """The transport and the relay of the settings, which do not run yet; either may be missing.
    Raises ConfigurationError."""

    def __init__(self, settings: Settings, state: State) -> None:
        self._settings = settings
        self._node = state.markers.rstrip(".")
        self._identity = state.shared.cluster_id if state.shared else self._node
        self._base = ""
        self._quotas: Quotas | None = None
        self._transport = self._made(settings)
        self.relay: RedisRelay | None = None
        if settings.push.relay:
            self.relay = push_relay(settings, self._node)

    def _made(self, settings: Settings) -> RedisTransport | None:
        if not redis_principals(settings.auth.tokens):
            return None
        return redis_transport(settings, identity=self._identity, consumer=self._node)

    @property
    def problem(self) -> str | None:
        """The problem for /health."""
        parts = (self._transport, self.relay)
        return next((one.problem for one in parts if one and one.problem), None)

    @property
    def is_used(self) -> bool:
        return bool(self._transport or self.relay)

    async def claim(self) -> None:
        """Claim the prefix. Raises ConfigurationError if a server with another store has it."""
        if self._transport:
            await self._transport.claim()

    async def lines(self) -> list[str]:
        """Lines for the banner: the place, and the properties of Redis that an operator should
        know."""
        if not self.is_used:
            return []
        place, report = await redis_report(self._settings)
        found = report.notes if report else ["it does not answer now"]
        names = redis_principals(self._settings.auth.tokens)
        uses = [f"requests of {', '.join(names)}"] if names else []
        uses += ["push notifications"] if self.relay else []
        lines = [f"  redis      {place}, prefix {self._settings.redis.prefix}: {'; '.join(uses)}"]
        return lines + [f"             {one}" for one in found]

    def start(self, root: ServedAgent, base: str, quotas: Quotas) -> None:
        """Serve requests. `base`: the URL of the HTTP port."""
        self._base, self._quotas = base, quotas
        self.change(root, self._settings)

    async def prepare(self, settings: Settings) -> None:
        """Make the transport, if only these settings need one. Raises ConfigurationError."""
        made = None if self._transport else self._made(settings)
        if made:
            await made.claim()
            self._transport = made

    def change(self, root: ServedAgent, settings: Settings) -> None:
        """Serve the principals of these settings from the next request on."""
        if self._transport and self._quotas:
            self._transport.serve(
                root.operations,
                (settings.server.public_url or self._base).rstrip("/"),
                self._quotas,
                redis_users_of(settings.auth.config),
                most=settings.server.max_body_bytes,
            )

    async def drain(self) -> None:
        """Read no more requests."""
        if self._transport:
            await self._transport.drain()

    async def stop(self, grace: float) -> None:
        """End the answers after at most `grace` seconds. The next server continues them."""
        if self._transport:
            await self._transport.stop(grace)
