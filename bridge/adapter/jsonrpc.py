"""JSON-RPC 2.0 over lines as pure code: two peers that both ask and both answer.

It is told what line came, and owes what it writes to the `send` that it was given. What decides
the code (measured with agents that speak ACP, and with `codex app-server`):

* Both sides number their requests on their own: the same id may be in flight both ways. Ours are
  integers from 1 on; theirs are integers or strings, and go back as they came.
* Some leave the member `jsonrpc` out, so that nothing depends on it.
* A request must be answered, or the other side waits for ever: one that nobody knows gets -32601,
  one that its handler cannot read -32602. What needs no answer may be ignored.
* Messages are dispatched one after the other, in the order of the lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import orjson

from bridge.task.text import json_object

Json = Mapping[str, Any]
Id = int | str
T = TypeVar("T")

INVALID_PARAMS = -32602
METHOD_NOT_FOUND = -32601
MISREAD = (LookupError, TypeError, ValueError, AttributeError)
"""What a handler raises that was given a known message in an unknown shape."""


@dataclass(frozen=True, slots=True)
class RpcError:
    code: int
    message: str
    data: Any = None


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to a request of ours; `error` is None where it went well."""

    result: Any = None
    error: RpcError | None = None

    @property
    def members(self) -> Json:
        """The result as an object; an empty one where it is none."""
        return self.result if isinstance(self.result, dict) else {}


@dataclass(frozen=True, slots=True)
class Request:
    """What the other side wants to know; to be given to answer() or refuse() once."""

    id: Id
    method: str
    params: Json


class Peer(Generic[T]):
    """Our end of a connection. Handlers return what the line means to the one who called
    receive(): `requests` and `notifications` by method, and one for each request of ours.

    `tagged`: whether what we send has the member `jsonrpc`.
    """

    def __init__(self, send: Callable[[bytes], None], *, tagged: bool = True) -> None:
        self.requests: dict[str, Callable[[Request], Iterable[T]]] = {}
        self.notifications: dict[str, Callable[[Json], Iterable[T]]] = {}
        self._send = send
        self._tag = {"jsonrpc": "2.0"} if tagged else {}
        self._sent = 0
        self._waiting: dict[int, Callable[[Response], Iterable[T]]] = {}
        self._open: dict[Id, Request] = {}  # requests of the other side

    # --- what we say ---------------------------------------------------------------------------

    def request(self, method: str, params: Json, then: Callable[[Response], Iterable[T]]) -> int:
        """Ask; `then` is called with the answer, if one ever comes. Returns the id."""
        self._sent += 1
        self._waiting[self._sent] = then
        self._write(id=self._sent, method=method, params=params)
        return self._sent

    def notify(self, method: str, params: Json) -> None:
        self._write(method=method, params=params)

    def answer(self, request: Request, result: Any) -> None:
        """Nothing is sent for a request that has been answered already."""
        if self._settle(request):
            self._write(id=request.id, result=result)

    def refuse(self, request: Request, code: int, message: str) -> None:
        """Answer with an error; nothing is sent for what has been answered already."""
        if self._settle(request):
            self._write(id=request.id, error={"code": code, "message": message})

    def _settle(self, request: Request) -> bool:
        mine = self._open.get(request.id) is request
        if mine:
            del self._open[request.id]
        return mine

    def _write(self, **members: Any) -> None:
        self._send(orjson.dumps({**self._tag, **members}) + b"\n")

    def close(self) -> None:
        """Nothing is heard or said any more, and nobody kept for that."""
        self.requests, self.notifications, self._waiting = {}, {}, {}
        self._send = lambda data: None

    # --- what we hear --------------------------------------------------------------------------

    def receive(self, line: bytes) -> list[T] | None:
        """What the line means, by its handler; None where it is no message, or is one in a shape
        that its handler cannot read."""
        message = json_object(line)
        if message is None:
            return None
        method, id_ = message.get("method"), _id(message.get("id"))
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
        """Exceptions of the handler are raised: what we asked for cannot be done without."""
        then = self._waiting.pop(id_, None) if isinstance(id_, int) else None
        if then is None:
            return []
        return list(then(Response(message.get("result"), _error(message.get("error")))))


def _id(value: Any) -> Id | None:
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


def _error(value: Any) -> RpcError | None:
    """The error object of an answer, whatever it is made of."""
    if value is None:
        return None
    if not isinstance(value, dict):
        return RpcError(0, str(value))
    code, message = value.get("code"), value.get("message")
    number = code if isinstance(code, int) else 0
    return RpcError(number, str(message or "no reason given"), value.get("data"))
