"""The answers of this server to the requests of a connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from bridge.a2a.codec import STREAMING, Operation
from bridge.auth.principal import Principal
from bridge.telemetry.observation import REQUEST, RequestInfo
from bridge.transports.envelope.request import EnvelopeRequest
from bridge.transports.json_body import dumped
from bridge.transports.negotiation import shows_retry
from bridge.transports.operation import Caller, Operations, Pending
from bridge.transports.stream import Stream


@dataclass(frozen=True, slots=True)
class EnvelopeAgent:
    """The agent of a connection. `address`: its URL as the client knows it, without /a2a."""

    operations: Operations
    address: str


class OwnAnswers:
    """`identify` returns the sender of a request, or raises Unauthenticated. `binding` and `peer`
    are for observers."""

    def __init__(
        self,
        agent: EnvelopeAgent,
        identify: Callable[[], Awaitable[Principal]],
        binding: str,
        peer: str | None = None,
    ) -> None:
        self._agent = agent
        self._identify = identify
        self._binding = binding
        self._peer = peer

    async def call(self, asked: EnvelopeRequest) -> bytes:
        """The JSON of the result. Raises RequestError."""
        caller = await self._caller(asked)
        operations = self._agent.operations
        result = await operations.call(asked.codec, asked.operation, asked.params, caller)
        if isinstance(result, Pending):
            result = await result.answer()
        return await dumped(result)

    async def stream(self, asked: EnvelopeRequest) -> Stream:
        """Raises RequestError."""
        caller = await self._caller(asked)
        return await self._agent.operations.stream(
            asked.codec, asked.operation, asked.params, caller, asked.seen
        )

    async def notify(self, asked: EnvelopeRequest) -> None:
        """Execute a request that has no answer. Raises RequestError."""
        caller = replace(await self._caller(asked), stays=False)
        operations, codec = self._agent.operations, asked.codec
        if asked.operation in (Operation.SEND, Operation.STREAM):  # a stream does not block
            await operations.stream(codec, Operation.STREAM, asked.params, caller)
        elif asked.operation not in STREAMING:
            await operations.call(codec, asked.operation, asked.params, caller)

    async def _caller(self, asked: EnvelopeRequest) -> Caller:
        """The sender. Each request identifies it again. Raises RequestError."""
        headers = asked.parameters.headers
        info = RequestInfo.named(
            self._binding, headers.get("X-Request-Id"), self._peer, headers.get("traceparent")
        )
        REQUEST.set(info)
        principal = await self._identify()
        REQUEST.set(replace(info, principal=principal.id))
        return Caller(self._agent.address, principal, shows_retry(asked.parameters), info=info)
