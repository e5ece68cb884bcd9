"""The service grpc.health.v1.Health. It needs no credentials, like /health over HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from bridge.auth.token_bucket import RateLimitedLogs
from bridge.errors import InvalidRequest, TooManyRequests
from bridge.transports.grpc.messages import message_class
from bridge.transports.grpc.request import Messages, address_of

log = logging.getLogger(__name__)
log.addFilter(RateLimitedLogs())

HEALTH = "grpc.health.v1.Health"
MOST_WATCHERS = 100  # open calls of Watch; they have no principal with a quota
MESSAGE_WITHIN = 10.0  # seconds for the message of a call
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
        self._messages = Messages(MESSAGE_WITHIN)
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Report NOT_SERVING from now on."""
        self._stopped.set()

    def handler(self) -> Any:
        return grpc.method_handlers_generic_handler(
            HEALTH,
            {
                "Check": grpc.stream_stream_rpc_method_handler(partial(self._guarded, self._check)),
                "Watch": grpc.stream_stream_rpc_method_handler(partial(self._guarded, self._watch)),
            },
        )

    async def _guarded(
        self, answer: Callable[[str, Any], Awaitable[None]], messages: object, context: Any
    ) -> None:
        """The answer of a method, without the text of an exception."""
        try:
            peer = address_of(context.peer()) or ("", 0)
            data = await self._messages.read(context, peer[0])
            return await answer(_REQUEST.FromString(data).service, context)
        except grpc.aio.InternalError:  # the client has left
            raise asyncio.CancelledError from None
        except DecodeError:
            code, text = grpc.StatusCode.INVALID_ARGUMENT, "The request is malformed."
        except InvalidRequest as error:
            code, text = grpc.StatusCode.INVALID_ARGUMENT, str(error)
        except KeyError:
            code, text = grpc.StatusCode.NOT_FOUND, "Unknown service."
        except TooManyRequests as error:
            code, text = grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)
        except Exception:
            log.exception("request failed", extra={"event": "request.failed"})
            code, text = grpc.StatusCode.INTERNAL, "Internal error; the server's log has it."
        await context.abort(code, text)

    async def _check(self, service: str, context: Any) -> None:
        if service not in self._services:
            raise KeyError(service)
        await context.write(self._status(service))

    async def _watch(self, service: str, context: Any) -> None:
        if self._watchers >= MOST_WATCHERS:
            raise TooManyRequests("Too many calls of Watch.")
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
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), POLL)

    def _status(self, service: str) -> bytes:
        name = "SERVICE_UNKNOWN"
        if service in self._services:
            serves = self._serves() and not self._stopped.is_set()
            name = "SERVING" if serves else "NOT_SERVING"
        data: bytes = _RESPONSE(status=name).SerializeToString()
        return data
