"""A client of the gRPC binding that sends and receives the JSON of the other bindings."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from google.protobuf.json_format import MessageToDict, ParseDict

from bridge.transports.grpc.messages import POOL, message_class
from bridge.transports.grpc.service import SERVICE, Method, methods
from tests.support.client import Json

STATUS = message_class("google.rpc.Status")


class GrpcError(Exception):
    """A call that failed. `details` are those of google.rpc.Status as JSON."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        self.code: grpc.StatusCode = error.code()
        self.text: str = error.details()
        trailing = dict(error.trailing_metadata() or ())
        status = STATUS.FromString(trailing.get("grpc-status-details-bin", b""))
        self.details: list[Json] = to_json(status).get("details", [])
        super().__init__(f"{self.code.name}: {self.text}")


class GrpcClient:
    """`metadata` goes with each call, besides the version."""

    def __init__(self, channel: grpc.aio.Channel, **metadata: str) -> None:
        self.channel = channel
        self.metadata = {"a2a_version": "1.0", **metadata}
        self.methods: dict[str, Method] = {one.name: one for one in methods()}

    async def call(self, method: str, params: Json, **metadata: str) -> Json:
        one = self.methods[method]
        call = self.channel.unary_unary(path(method))
        try:
            data = await call(to_bytes(one, params), metadata=self._sent(metadata))
        except grpc.aio.AioRpcError as error:
            raise GrpcError(error) from None
        return to_json(one.response.FromString(data))

    async def items(self, method: str, params: Json, **metadata: str) -> AsyncGenerator[Json]:
        one = self.methods[method]
        open_call = self.channel.unary_stream(path(method))
        call = open_call(to_bytes(one, params), metadata=self._sent(metadata))
        try:
            async for data in call:
                yield to_json(one.response.FromString(data))
        except grpc.aio.AioRpcError as error:
            raise GrpcError(error) from None
        finally:
            call.cancel()

    def _sent(self, metadata: dict[str, str]) -> tuple[tuple[str, str], ...]:
        """Names with _ in place of -."""
        chosen = {**self.metadata, **metadata}
        return tuple((name.replace("_", "-"), value) for name, value in chosen.items())


def path(method: str) -> str:
    return f"/{SERVICE}/{method}"


def to_bytes(method: Method, params: Json) -> bytes:
    """Raises ParseError of json_format for params that protobuf cannot represent."""
    message = ParseDict(params, method.request(), ignore_unknown_fields=True, descriptor_pool=POOL)
    data: bytes = message.SerializeToString()
    return data


def to_json(message: Any) -> Json:
    found: Json = MessageToDict(message, descriptor_pool=POOL)
    return found


@asynccontextmanager
async def connected(
    address: str | None, credentials: Any = None, **metadata: str
) -> AsyncIterator[GrpcClient]:
    """A client with a connection of its own."""
    assert address
    options = [("grpc.use_local_subchannel_pool", 1)]
    if credentials:
        channel = grpc.aio.secure_channel(address, credentials, options)
    else:
        channel = grpc.aio.insecure_channel(address, options)
    async with channel:
        yield GrpcClient(channel, **metadata)
