"""The lines about requests."""

from __future__ import annotations

import logging
from asyncio import CancelledError
from typing import Any

import pytest

from bridge.errors import TaskNotFound
from bridge.telemetry.observation import AnsweredRequest, RequestInfo
from bridge.telemetry.request_log import RequestLog
from bridge.telemetry.tracing.context import TraceContext

INFO = RequestInfo("rest", "r1", "::1", TraceContext("a" * 32, "b" * 16, False))


def lines(
    caplog: pytest.LogCaptureFixture, error: BaseException | None, all_of_them: bool
) -> list[dict[str, Any]]:
    caplog.set_level(logging.INFO)
    request = AnsweredRequest(INFO, "GetTask", "1.0", "ide", seconds=0.12345, error=error)
    RequestLog(all_of_them).answered(request)
    return [vars(record) for record in caplog.records]


def test_a_refused_request_has_a_line(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = lines(caplog, TaskNotFound("unknown: secret"), False)
    assert (line["event"], line["code"], line["levelname"]) == (
        *("request.refused", "task_not_found", "INFO"),
    )
    assert (line["request_id"], line["binding"], line["peer"]) == ("r1", "rest", "::1")
    assert (line["principal"], line["operation"], line["seconds"]) == ("ide", "GetTask", 0.123)
    assert (line["trace_id"], line["span_id"]) == ("a" * 32, "b" * 16)
    assert "secret" not in str(line)


@pytest.mark.parametrize("error", [None, CancelledError()])
def test_other_requests_have_a_line_on_demand(
    error: BaseException | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert lines(caplog, error, False) == []
    (line,) = lines(caplog, error, True)
    assert line["event"] == "request.answered"
    assert line["code"] == ("canceled" if error else "ok")


def test_the_binding_logs_an_internal_error(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(caplog, ValueError("x"), True) == []
