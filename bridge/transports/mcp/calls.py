"""One call of a client: its sender, its abilities and its ways back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from bridge.auth.principal import Principal
from bridge.store.handle import TaskHandle
from bridge.telemetry.observation import Observation, observed
from bridge.telemetry.tracing.context import TRACES

Json = dict[str, Any]
Elicit = Callable[[Json], Awaitable[Mapping[str, Any]]]
"""Asks the client with these parameters of elicitation/create, on the stream of its request.
Returns the ElicitResult."""
Progress = Callable[[float, str], Awaitable[None]]


class CallResponse(Protocol):
    """The response to the request of a call. `on_end` is called once: with True after the
    result was written to the connection, otherwise with False."""

    on_end: Callable[[bool], None] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """`client`: the name and version of the client. `revision`: of the protocol; `modern`: it has
    no sessions. `tasks`, `forms`: the client declares the extension, or elicitation in form mode.
    `key`: identifies the call if the client repeats it. `cwd`: the default directory.
    `depth`: the number of agents that the call passed, by its own words. `caller` finds the marker
    of the session whose agent sends it: see Identity.session(). `elicit` is None unless the server
    can ask during the call. `state`: the requestState that the client repeats, opened; `answers`:
    the responses to its forms."""

    principal: Principal
    client: str
    revision: str
    modern: bool
    tasks: bool = False
    forms: bool = False
    key: str | None = None
    cwd: str | None = None
    depth: int = 0
    caller: Callable[[], Awaitable[str | None]]
    response: CallResponse
    elicit: Elicit | None = None
    progress: Progress | None = None
    state: str | None = None
    answers: Mapping[str, Any] = field(default_factory=dict)


_OPERATIONS = {
    "delegate": "send",
    "answer": "send",
    "wait": "subscribe",
    "result": "get",
    "cancel": "cancel",
    "list_tasks": "list",
}
"""The value of the Operation that a tool executes."""


@contextmanager
def observed_tool(name: str, principal: str) -> Iterator[None]:
    """Execute a tool as the current request. It has a span like that of its operation."""
    info, operation = observed(), _OPERATIONS.get(name, "")
    observers = [TRACES.observer] if TRACES.observer and operation else []
    call = Observation(observers, info, operation, "", principal)
    info.subject.operation = operation
    try:
        yield
    except BaseException as error:
        call.end(error)
        raise
    call.end(None)


def note_task(handle: TaskHandle, message: str | None = None) -> None:
    """The current request is about this task. `message`: the id of its message."""
    subject = observed().subject
    if observed().trace:
        subject.task, subject.agent = handle.task, handle.agent
    subject.message = message or subject.message
