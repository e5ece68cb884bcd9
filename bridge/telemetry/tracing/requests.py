"""The spans of requests and of push attempts."""

from __future__ import annotations

import time
from asyncio import CancelledError
from collections.abc import Callable, Mapping
from secrets import token_hex
from urllib.parse import urlsplit

from bridge.task.state import Task
from bridge.telemetry.observation import AnsweredRequest, RequestInfo
from bridge.telemetry.tracing import catalog
from bridge.telemetry.tracing.catalog import Value
from bridge.telemetry.tracing.context import TraceContext, traced
from bridge.telemetry.tracing.spans import Emit, EndedSpan

SECOND = 1_000_000_000  # nanoseconds
NO_ADDRESS = ("", 0)


class RequestSpans:
    """Observes requests. `code_of` returns the JSON-RPC code of an error. `names` are those of the
    agents, by id, and `versions` of their CLIs. `place`: address and port of the server."""

    def __init__(
        self,
        emit: Emit,
        code_of: Callable[[BaseException], int],
        names: Mapping[str, str],
        versions: Mapping[str, str],
    ) -> None:
        self._emit = emit
        self._code_of = code_of
        self._names = names
        self._versions = versions
        self.place = NO_ADDRESS

    def answered(self, request: AnsweredRequest) -> None:
        info, error = request.info, request.error
        if info.trace is None or not info.trace.sampled:
            return
        if error is None and info.trace.parent is None and request.operation in catalog.READS:
            return
        facts: dict[str, Value] = {
            "a2a.method.name": catalog.METHODS[request.operation],
            "bridge.binding": info.binding,
            "bridge.request_id": info.id,
            **self._subject(info),
        }
        if request.version:
            facts["a2a.protocol.version"] = request.version
        if info.peer:
            facts["client.address"] = info.peer
        if self.place != NO_ADDRESS:
            facts["server.address"], facts["server.port"] = self.place
        failed = error is not None and not isinstance(error, CancelledError)
        if error is not None:
            facts["error.type"] = str(self._code_of(error)) if failed else "canceled"
        end = time.time_ns()
        begin = end - int(request.seconds * SECOND)
        self._emit(EndedSpan(catalog.REQUEST, info.trace, begin, end, facts, failed=failed))

    def _subject(self, info: RequestInfo) -> dict[str, Value]:
        subject, facts = info.subject, dict[str, Value]()
        if subject.message:
            facts["a2a.message.id"] = subject.message
        if subject.tenant:
            facts["a2a.tenant"] = subject.tenant
        if subject.task is None:
            return facts
        facts["a2a.task.id"] = subject.task.id
        facts["a2a.task.state"] = subject.task.state.value
        facts["gen_ai.conversation.id"] = subject.task.context_id
        facts["gen_ai.agent.name"] = self._names.get(subject.agent, subject.agent)
        if found := self._versions.get(subject.agent):
            facts["gen_ai.agent.version"] = found
        return facts


class PushSpans:
    """The attempts to deliver push notifications."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit

    def attempted(self, task: Task, url: str, begin: float, status: int | None, error: str) -> None:
        """An attempt has ended. `begin`: seconds since 1970; `status`: of the answer; `error`: the
        class of the failure, empty for none."""
        turn = traced(task)
        if turn is None or not turn.sampled:
            return
        facts: dict[str, Value] = {"http.request.method": "POST"}
        try:
            facts["server.address"] = urlsplit(url).hostname or ""
        except ValueError:
            facts["server.address"] = ""
        if status is not None:
            facts["http.response.status_code"] = status
        if error:
            facts["error.type"] = str(status) if status is not None else error
        context = TraceContext(turn.trace_id, token_hex(8), True, turn.span_id)
        first, last = int(begin * SECOND), time.time_ns()
        self._emit(
            EndedSpan(catalog.PUSH, context, first, max(first, last), facts, failed=bool(error))
        )
