"""A call as a request of the other bindings, and the agents that it can reach. This module does not
need the libraries of the extra `grpc`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from multidict import CIMultiDict

from bridge.errors import InvalidRequest, TooManyRequests
from bridge.transports.operation import Operations

MOST_SILENT = 100  # calls of one sender whose message has not arrived yet


@dataclass(frozen=True, slots=True)
class GrpcAgent:
    """An agent and its operations. `address`: the URL of the agent on the HTTP port, without
    /a2a."""

    operations: Operations
    address: str


class _Connection(asyncio.BaseTransport):
    """The ends of a connection, for the search for the process at its other end."""


class RpcRequest:
    """A call: its metadata as headers, and its connection. `metadata` and `peer` are those of
    grpcio. `ours`: the address of the listener; None if it listens on all addresses of the machine.
    Then the kernel cannot name the process of a client on this machine. Each call has a connection
    object of its own, because grpcio does not report the end of a connection, and a later
    connection may have the same port."""

    query: Mapping[str, Any] = {}

    def __init__(self, metadata: Any, peer: str, ours: tuple[str, int] | None) -> None:
        pairs = ((str(name), value) for name, value in metadata or ())
        self.headers: CIMultiDict[str] = CIMultiDict(
            (name, value) for name, value in pairs if isinstance(value, str)
        )
        theirs = address_of(peer)
        self.remote = theirs[0] if theirs else None
        self.transport = _Connection({"sockname": ours, "peername": theirs})


class Messages:
    """Reads the single message of a call within `seconds`. grpcio would begin a call with a handler
    for one message only when it has that, and count it until then: calls without a message could
    use up the server. At most MOST_SILENT calls of one sender wait for theirs."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._silent: Counter[str] = Counter()

    async def read(self, context: Any, sender: str) -> bytes:
        """Raises InvalidRequest and TooManyRequests."""
        if self._silent[sender] >= MOST_SILENT:
            raise TooManyRequests("Too many calls wait for their message.")
        self._silent[sender] += 1
        try:
            async with asyncio.timeout(self._seconds):
                data = await context.read()
        except TimeoutError:
            raise InvalidRequest(f"The call had no message for {self._seconds:g} s.") from None
        finally:
            self._silent[sender] -= 1
            if not self._silent[sender]:
                del self._silent[sender]
        if not isinstance(data, bytes):
            raise InvalidRequest("The call has no message.")
        return data


def address_of(peer: str) -> tuple[str, int] | None:
    """Host and port of `ipv4:127.0.0.1:80` or `ipv6:%5B::1%5D:80`; None for other forms."""
    kind, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return host.strip("[]"), int(port)
