"""The lines of the log about the requests of clients."""

from __future__ import annotations

import logging
from asyncio import CancelledError
from typing import Any

from bridge.errors import RequestError
from bridge.telemetry.log_context import trace_ids
from bridge.telemetry.metrics.requests import code_of
from bridge.telemetry.observation import AnsweredRequest

log = logging.getLogger(__name__)
answers = log.getChild("answers")
"""Has a line for each request, which no filter of `log` limits."""


class RequestLog:
    """Observes requests. Refused ones are logged, with `all_of_them`, which may change, also those
    that succeed. The binding logs an internal error, since it also sees those outside of
    operations."""

    def __init__(self, all_of_them: bool = False) -> None:
        self.all_of_them = all_of_them

    def answered(self, request: AnsweredRequest) -> None:
        error, operation = request.error, request.operation
        if isinstance(error, RequestError):
            text = f"{operation} was refused: {code_of(error)}"
            log.info(text, extra={"event": "request.refused", **_facts(request)})
        elif self.all_of_them and (error is None or isinstance(error, CancelledError)):
            text = f"{operation} was answered" if error is None else f"{operation} was abandoned"
            answers.info(text, extra={"event": "request.answered", **_facts(request)})


def _facts(request: AnsweredRequest) -> dict[str, Any]:
    info = request.info
    return {
        "request_id": info.id,
        "principal": request.principal,
        "binding": info.binding,
        "peer": info.peer,
        "operation": request.operation,
        "version": request.version,
        "code": code_of(request.error),
        "seconds": round(request.seconds, 3),
        **trace_ids(info.trace),
    }
