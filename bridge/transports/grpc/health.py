"""The service grpc.health.v1.Health. It needs no credentials, like /health over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from bridge.transports.grpc.messages import message_class

HEALTH = "grpc.health.v1.Health"
MOST_WATCHERS = 100  # open calls of Watch; they have no principal with a quota
POLL = 1.0  # seconds between two checks of the state for Watch
_REQUEST = message_class(f"{HEALTH}CheckRequest")
_RESPONSE = message_class(f"{HEALTH}CheckResponse")


class Health:
    """`serves`: whether the server accepts tasks now. `services`: the names that clients may ask
    for, besides the empty name."""

    def __init__(self, serves: Callable[[], bool], services: frozenset[str]) -> None:
        self._serves = serves
        self._services = services | {""}
        self._watchers = 0
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Report NOT_SERVING from now on."""
        self._stopped.set()

    def handler(self) -> Any:
        return grpc.method_handlers_generic_handler(
            HEALTH,
            {
                "Check": grpc.unary_unary_rpc_method_handler(self._check),
                "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
            },
        )

    async def _check(self, data: bytes, context: Any) -> bytes:
        service = await _service(data, context)
        if service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "Unknown service.")
        return self._status(service)

    async def _watch(self, data: bytes, context: Any) -> None:
        service = await _service(data, context)
        if self._watchers >= MOST_WATCHERS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "Too many calls of Watch.")
        self._watchers += 1
        try:
            await self._report(service, context)
        finally:
            self._watchers -= 1

    async def _report(self, service: str, context: Any) -> None:
        """Send the status at once, and after each change, until the server stops."""
        sent = b""
        while True:
            last = self._stopped.is_set()
            status = self._status(service)
            if status != sent:
                await context.write(status)
                sent = status
            if last:
                return
            try:
                await asyncio.wait_for(self._stopped.wait(), POLL)
            except TimeoutError:
                continue

    def _status(self, service: str) -> bytes:
        name = "SERVICE_UNKNOWN"
        if service in self._services:
            serves = self._serves() and not self._stopped.is_set()
            name = "SERVING" if serves else "NOT_SERVING"
        data: bytes = _RESPONSE(status=name).SerializeToString()
        return data


async def _service(data: bytes, context: Any) -> str:
    """The service that a request names; ends the call if the request is malformed."""
    try:
        name: str = _REQUEST.FromString(data).service
    except DecodeError:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "The request is malformed.")
        raise AssertionError from None  # abort() raises
    return name
