"""JSON-RPC 2.0 over lines as pure code: two peers that both ask and both answer.

The caller passes the object of each line to receive(), and `send` gets the bytes to write. Facts
that decide the code (measured with agents that speak ACP, and with `codex app-server`):

* Each side numbers its own requests: the same id may be in flight both ways. This side uses
  integers from 1 on; the other side uses integers or strings, which are returned unchanged.
* Some agents omit the member `jsonrpc`, so the code does not depend on it.
* A request must be answered, or the other side waits for ever: an unknown method gets -32601, a
  request that its handler cannot read -32602. An unknown notification is ignored.
* Messages are dispatched one after the other, in the order of the lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import orjson

Json = Mapping[str, Any]
Id = int | str
T = TypeVar("T")

INVALID_PARAMS = -32602
METHOD_NOT_FOUND = -32601
MISREAD = (LookupError, TypeError, ValueError, AttributeError)
"""The exceptions of a handler for a known message in an unknown shape."""


@dataclass(frozen=True, slots=True)
class RpcError:
    code: int
    message: str
    data: Any = None


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to a request of this side; `error` is None if it succeeded."""

    result: Any = None
    error: RpcError | None = None

    @property
    def members(self) -> Json:
        """The result as an object; an empty one for any other value."""
        return self.result if isinstance(self.result, dict) else {}


@dataclass(frozen=True, slots=True)
class Request:
    """A request of the other side; pass it to answer() or refuse() once."""

    id: Id
    method: str
    params: Json


def is_request(message: Json) -> bool:
    """Whether the other side waits for an answer to the message."""
    return isinstance(message.get("method"), str) and message.get("id") is not None


class Peer(Generic[T]):
    """One side of a connection. Handlers return the results of receive(): `requests` and
    `notifications` by method, and the `then` of each request of this side.

    `tagged`: whether sent messages have the member `jsonrpc`.
    """

    def __init__(self, send: Callable[[bytes], None], *, tagged: bool = True) -> None:
        self.requests: dict[str, Callable[[Request], Iterable[T]]] = {}
        self.notifications: dict[str, Callable[[Json], Iterable[T]]] = {}
        self._send = send
        self._tag = {"jsonrpc": "2.0"} if tagged else {}
        self._sent = 0
        self._waiting: dict[int, Callable[[Response], Iterable[T]]] = {}
        self._open: dict[Id, Request] = {}  # requests of the other side

    # --- sent messages ---------------------------------------------------------------------------

    def request(self, method: str, params: Json, then: Callable[[Response], Iterable[T]]) -> int:
        """Send a request; `then` is called with the answer. Returns the id."""
        self._sent += 1
        self._waiting[self._sent] = then
        self._write(id=self._sent, method=method, params=params)
        return self._sent

    def notify(self, method: str, params: Json) -> None:
        self._write(method=method, params=params)

    def answer(self, request: Request, result: Any) -> None:
        """Nothing is sent for a request that has an answer."""
        self._settle(request, result=result)

    def refuse(self, request: Request, code: int, message: str) -> None:
        """Answer with an error; nothing is sent for a request that has an answer."""
        self._settle(request, error={"code": code, "message": message})

    def _settle(self, request: Request, **members: Any) -> None:
        if self._open.get(request.id) is request:
            del self._open[request.id]
            self._write(id=request.id, **members)

    def _write(self, **members: Any) -> None:
        self._send(orjson.dumps({**self._tag, **members}) + b"\n")

    # --- received messages -----------------------------------------------------------------------

    def receive(self, message: Json) -> list[T] | None:
        """The results of the message's handler; None if the object is not a message, or if its
        handler cannot read it."""
        method, id_ = message.get("method"), message.get("id")
        id_ = id_ if isinstance(id_, int | str) and not isinstance(id_, bool) else None
        if isinstance(method, str):
            params = message.get("params")
            params = params if isinstance(params, dict) else {}
            if id_ is None:
                return self._told(method, params)
            return self._asked(Request(id_, method, params))
        if id_ is not None and ("result" in message or "error" in message):
            return self._answered(id_, message)
        return None

    def _asked(self, request: Request) -> list[T] | None:
        self._open[request.id] = request
        handler = self.requests.get(request.method)
        if handler is None:
            self.refuse(request, METHOD_NOT_FOUND, f"Method not found: {request.method}")
            return []
        try:
            return list(handler(request))
        except MISREAD as error:
            self.refuse(request, INVALID_PARAMS, f"Invalid params: {error}")
            return None

    def _told(self, method: str, params: Json) -> list[T] | None:
        handler = self.notifications.get(method)
        try:
            return list(handler(params)) if handler else []
        except MISREAD:
            return None

    def _answered(self, id_: Id, message: Json) -> list[T]:
        """Exceptions of the handler are raised: the answer is required."""
        then = self._waiting.pop(id_, None) if isinstance(id_, int) else None
        if then is None:
            return []
        return list(then(Response(message.get("result"), _error(message.get("error")))))


def _error(value: Any) -> RpcError | None:
    """The error object of an answer, of any shape."""
    if value is None:
        return None
    if not isinstance(value, dict):
        return RpcError(0, str(value))
    code, message = value.get("code"), value.get("message")
    number = code if isinstance(code, int) else 0
    return RpcError(number, str(message or "no reason given"), value.get("data"))
