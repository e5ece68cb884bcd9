"""Server reflection: clients without the .proto files read them from the server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from bridge.auth.token_bucket import RateLimitedLogs
from bridge.errors import ParseError, RequestError
from bridge.transports.grpc.messages import POOL, message_class

log = logging.getLogger(__name__)
log.addFilter(RateLimitedLogs())

VERSIONS = ("v1", "v1alpha")
SERVICES = tuple(f"grpc.reflection.{version}.ServerReflection" for version in VERSIONS)
Admit = Callable[[Any], Awaitable[object]]
"""Checks the sender of a call. Raises RequestError."""
Refuse = Callable[[Any, Exception], Awaitable[None]]
"""Ends a call with the status of an error."""


class Reflection:
    """Answers from the descriptors of this server. `services`: all services of the server, without
    those of this class. Clients need credentials."""

    def __init__(self, services: tuple[str, ...], admit: Admit, refuse: Refuse) -> None:
        self._services = (*services, *SERVICES)
        self._admit = admit
        self._refuse = refuse

    def handlers(self) -> Iterator[Any]:
        """The handler of each version; the versions differ in their names only."""
        for service in SERVICES:
            answer = partial(self._answer, service)
            method = grpc.stream_stream_rpc_method_handler(answer)
            yield grpc.method_handlers_generic_handler(service, {"ServerReflectionInfo": method})

    async def _answer(self, prefix: str, requests: Any, context: Any) -> None:
        kind = message_class(f"{prefix}Request")
        try:
            await self._admit(context)
            async for data in requests:
                try:
                    request = kind.FromString(data)
                except DecodeError:
                    raise ParseError("The request is malformed.") from None
                response = message_class(f"{prefix}Response")(
                    valid_host=request.host, original_request=request
                )
                self._fill(response, request)
                await context.write(response.SerializeToString())
            return
        except grpc.aio.InternalError:  # the client has left
            raise asyncio.CancelledError from None
        except RequestError as error:
            problem: Exception = error
        except Exception as error:  # grpcio would send its text to the client
            log.exception("request failed", extra={"event": "request.failed"})
            problem = error
        await self._refuse(context, problem)

    def _fill(self, response: Any, request: Any) -> None:
        wanted = request.WhichOneof("message_request")
        if wanted == "list_services":
            for name in self._services:
                response.list_services_response.service.add().name = name
            return
        try:
            if wanted == "file_by_filename":
                file = POOL.FindFileByName(request.file_by_filename)
            elif wanted == "file_containing_symbol":
                file = POOL.FindFileContainingSymbol(request.file_containing_symbol)
            elif wanted == "file_containing_extension":
                asked = request.file_containing_extension
                extended = POOL.FindMessageTypeByName(asked.containing_type)
                file = POOL.FindExtensionByNumber(extended, asked.extension_number).file
            else:
                extended = POOL.FindMessageTypeByName(request.all_extension_numbers_of_type)
                numbers = [one.number for one in POOL.FindAllExtensions(extended)]
                found = response.all_extension_numbers_response
                found.base_type_name = extended.full_name
                found.extension_number.extend(numbers)
                return
        except KeyError:
            code, _ = grpc.StatusCode.NOT_FOUND.value
            response.error_response.error_code = code
            response.error_response.error_message = "Not found."
            return
        response.file_descriptor_response.file_descriptor_proto.extend(_with_imports(file))


def _with_imports(file: Any) -> Iterator[bytes]:
    """The file and the files that it needs, each once."""
    seen = {file.name: file}
    for one in (waiting := [file]):
        for needed in one.dependencies:
            if needed.name not in seen:
                seen[needed.name] = needed
                waiting.append(needed)
    yield from (one.serialized_pb for one in seen.values())
