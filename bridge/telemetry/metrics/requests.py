"""The metrics of the requests of clients."""

from __future__ import annotations

import re
from asyncio import CancelledError
from collections import Counter
from typing import Protocol

from bridge.errors import Forbidden, RequestError, TooManyRequests, Unavailable
from bridge.telemetry.metrics.catalog import BINDINGS, OTHER
from bridge.telemetry.observation import AnsweredRequest

_REFUSED: dict[type, str] = {
    TooManyRequests: "limit",
    Forbidden: "forbidden",
    Unavailable: "unavailable",
}
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")
_KNOWN = frozenset(BINDINGS)


class RequestSink(Protocol):
    """Takes the figures of one request."""

    def answered(self, names: tuple[str, str, str, str], seconds: float) -> None:
        """`names`: the binding, the operation, the version and the code."""


class RequestMetrics:
    """Observes requests. `refused` gets their number by the reason of the refusal."""

    def __init__(self, sink: RequestSink, refused: Counter[str]) -> None:
        self._sink = sink
        self._refused = refused

    def answered(self, request: AnsweredRequest) -> None:
        binding, code = request.info.binding, "ok"
        if binding not in _KNOWN:
            binding = OTHER
        if request.error is not None:
            code = code_of(request.error)
            if reason := _REFUSED.get(type(request.error)):
                self._refused[reason] += 1
        self._sink.answered((binding, request.operation, request.version, code), request.seconds)


def code_of(error: BaseException | None) -> str:
    """A word for the result: `ok`, `canceled` if the client has left, the name of a RequestError in
    snake case, or `internal_error`."""
    if error is None:
        return "ok"
    if isinstance(error, CancelledError):
        return "canceled"
    if isinstance(error, RequestError):
        return _WORD.sub("_", type(error).__name__).lower()
    return "internal_error"
