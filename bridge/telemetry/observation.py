"""The observers of requests and of the events of tasks: metrics, logs and traces implement them.
Without an observer, nothing is measured."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from bridge.task.events import Event
from bridge.task.message import MessageTrace
from bridge.task.state import Task
from bridge.telemetry.tracing.catalog import METHODS
from bridge.telemetry.tracing.context import TRACES, TraceContext

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


def new_request_id() -> str:
    """16 hex digits."""
    return secrets.token_hex(8)


@dataclass(slots=True)
class RequestSubject:
    """The object of a request, as far as its operation knows it. `operation`: the value of an
    Operation; `agent`: the id of the agent of the task; `message`: the id of its message. `waits`:
    it is answered at the first question or the end of the task."""

    operation: str = ""
    task: Task | None = None
    agent: str = ""
    message: str | None = None
    tenant: str | None = None
    waits: bool = False


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """Facts of a request for logs, metrics and traces. `id`: 1 to 64 characters of
    `[A-Za-z0-9._-]`. `binding`: jsonrpc, rest, grpc, websocket, stdio, redis or mcp. `peer`: the
    address of the client. `trace`: its span, if the server has traces. `principal`: its id, after
    the sender is identified. The operation fills `subject`."""

    binding: str
    id: str = field(default_factory=new_request_id)
    peer: str | None = None
    trace: TraceContext | None = None
    principal: str | None = None
    subject: RequestSubject = field(default_factory=RequestSubject, compare=False)

    @classmethod
    def named(
        cls, binding: str, given: str | None, peer: str | None, traceparent: str | None = None
    ) -> RequestInfo:
        """`given`: the id that the client has chosen; an unsuitable one is replaced.
        `traceparent`: the header of W3C Trace Context, not validated."""
        chosen = given if given and _REQUEST_ID.fullmatch(given) else new_request_id()
        return cls(binding, chosen, peer, TRACES.request(traceparent))


def unknown_request() -> RequestInfo:
    """The facts of a request about which nothing is known."""
    return RequestInfo("unknown", "-")


REQUEST: ContextVar[RequestInfo | None] = ContextVar("request", default=None)
"""The request that the current code serves. Each binding sets it at the begin of a request; code
that a request starts, and that outlives it, still sees it."""


def observed() -> RequestInfo:
    """The facts of the current request."""
    return REQUEST.get() or unknown_request()


def message_trace() -> MessageTrace | None:
    """The trace of a message that the current request brings; None without traces."""
    request = REQUEST.get()
    if request is None:
        alone = TRACES.alone()
        return MessageTrace(alone.header) if alone else None
    if request.trace is None:
        return None
    trace, subject = request.trace, request.subject
    return MessageTrace(
        trace.header,
        trace.parent,
        method=METHODS.get(subject.operation, ""),
        binding=request.binding,
        request_id=request.id,
        waits=subject.waits,
    )


@dataclass(slots=True)
class AnsweredRequest:
    """A request that has its result, or the first item of its stream. `operation`: the value of an
    Operation; `version`: of the protocol, empty for MCP; `seconds`: up to the result; `error`: that
    it has raised, CancelledError if the client has left."""

    info: RequestInfo
    operation: str
    version: str
    principal: str
    seconds: float
    error: BaseException | None


class RequestObserver(Protocol):
    def answered(self, request: AnsweredRequest) -> None: ...


class Observation:
    """A request that begins now. Each of `observers` gets it once, with its result."""

    def __init__(
        self,
        observers: Sequence[RequestObserver],
        info: RequestInfo,
        operation: str,
        version: str,
        principal: str,
    ) -> None:
        self._observers = observers
        self._info = info
        self._names = operation, version, principal
        self._begun = time.monotonic()

    def end(self, error: BaseException | None) -> None:
        """The request has its result or, unless None, has raised this error."""
        seconds = time.monotonic() - self._begun
        request = AnsweredRequest(self._info, *self._names, seconds, error)
        for observer in self._observers:
            observer.answered(request)
        self._info.subject.task = None  # work that outlives the request holds its facts


class TaskObserver(Protocol):
    """`texts`: it also gets batches with nothing but text, which are most."""

    texts: bool

    def began(self, task: Task) -> None:
        """The task is accepted. It is not committed yet."""

    def recorded(self, task: Task, events: Sequence[Event], time: datetime) -> None:
        """The events were applied to the task. They are not committed yet."""
