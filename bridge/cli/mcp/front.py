"""The messages of an MCP client: answered here while no bridge runs, else passed to the proxy.

So a client that only lists its servers starts no bridge, and loads no library for HTTP.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import orjson

from bridge.cli.mcp.finder import BridgeFinder
from bridge.transports.mcp.announced import INVALID_REQUEST, answer

PARSE_ERROR = -32700
Json = dict[str, Any]


class Forwards(Protocol):
    """The proxy."""

    def receive(self, message: Json) -> None: ...

    def adopt(self, initialize: Json) -> None: ...


class Front:
    """`write` gets each message for the client; `connect` makes the proxy."""

    def __init__(
        self,
        finder: BridgeFinder,
        write: Callable[[Json], None],
        connect: Callable[[], Forwards],
    ) -> None:
        self._finder = finder
        self._write = write
        self._connect = connect
        self._proxy: Forwards | None = None
        self._initialize: Json | None = None  # of the session that the client has begun

    def receive(self, line: bytes) -> None:
        """Answer a message of the client, or begin to forward it."""
        try:
            message = orjson.loads(line)
        except orjson.JSONDecodeError:
            return self._write(error_message(None, PARSE_ERROR, "The line is not JSON."))
        if not isinstance(message, dict):
            text = "The line is not a JSON object."
            return self._write(error_message(None, INVALID_REQUEST, text))
        if self._finder.is_there():
            return self._forward(message)
        if "id" not in message or "method" not in message:
            if self._proxy:  # else no bridge has asked, or has a request that the message names
                self._proxy.receive(message)
            return None
        found = answer(message, in_session=self._initialize is not None)
        if found is None:
            return self._forward(message)
        if message["method"] == "initialize" and "result" in found:
            self._initialize = message
            if self._proxy:
                self._proxy.adopt(message)
        return self._write(found)

    def _forward(self, message: Json) -> None:
        if self._proxy is None:
            self._proxy = self._connect()
            if self._initialize:
                self._proxy.adopt(self._initialize)
        if message.get("method") == "initialize":
            self._initialize = message
        self._proxy.receive(message)


def error_message(identity: Any, code: int, text: str) -> Json:
    return {"jsonrpc": "2.0", "id": identity, "error": {"code": code, "message": text}}
