"""The lines of the log about the requests of clients."""

from __future__ import annotations

import logging
from asyncio import CancelledError

from bridge.errors import RequestError
from bridge.telemetry.log_context import trace_ids
from bridge.telemetry.metrics.requests import code_of
from bridge.telemetry.observation import RequestInfo

log = logging.getLogger(__name__)
answers = log.getChild("answers")
"""Has a line for each request, which no filter of `log` limits."""


class RequestLog:
    """Observes requests. Refused ones are logged, with `all_of_them` also those that succeed. The
    binding logs an internal error, since it also sees those outside of operations."""

    def __init__(self, all_of_them: bool = False) -> None:
        self._all = all_of_them

    def answered(
        self,
        info: RequestInfo,
        operation: str,
        version: str,
        *,
        principal: str,
        seconds: float,
        error: BaseException | None,
    ) -> None:
        facts = {
            "request_id": info.id,
            "principal": principal,
            "binding": info.binding,
            "peer": info.peer,
            "operation": operation,
            "version": version,
            "code": code_of(error),
            "seconds": round(seconds, 3),
            **trace_ids(info.trace),
        }
        if isinstance(error, RequestError):
            text = f"{operation} was refused: {facts['code']}"
            log.info(text, extra={"event": "request.refused", **facts})
        elif self._all and (error is None or isinstance(error, CancelledError)):
            text = f"{operation} was answered" if error is None else f"{operation} was abandoned"
            answers.info(text, extra={"event": "request.answered", **facts})
