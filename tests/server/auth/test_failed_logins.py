"""Any number of failed logins: the log and the audit log stay small, and all of them count."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from bridge.auth.authentication import FAILURES, Identity
from bridge.auth.config import AuthConfig
from bridge.auth.token_bucket import RateLimitedLogs
from bridge.errors import TooManyRequests, Unauthenticated
from bridge.telemetry.log_context import context
from bridge.telemetry.logging import JsonFormatter
from tests.support.log_lines import problems

LOGINS, MOST_LINES = 10_000, 100
SECRET = "not-the-token-1234"


@dataclass
class Request:
    """See Signed."""

    remote: str | None
    headers: Mapping[str, str] = field(
        default_factory=lambda: {"Authorization": f"Bearer {SECRET}"}
    )
    transport: asyncio.BaseTransport | None = None


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    """The log in JSON."""
    logger = logging.getLogger("bridge.auth.authentication")
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(JsonFormatter(str, context))
    logger.addHandler(handler)
    yield handler.stream
    logger.removeHandler(handler)


async def test_failed_logins_fill_no_log(output: io.StringIO) -> None:
    identity = Identity(AuthConfig(operator_token="the-token-of-the-test"))
    reports: list[Mapping[str, Any]] = []
    identity.report = lambda *about, **facts: reports.append({"about": about, **facts})
    suppressed, throttled = RateLimitedLogs.suppressed_lines, 0
    for number in range(LOGINS):
        try:
            with pytest.raises(Unauthenticated):
                await identity(Request(f"192.0.2.{number % 100}"))
        except TooManyRequests:
            throttled += 1
    lines = [json.loads(line) for line in output.getvalue().splitlines()]
    assert 0 < len(lines) <= MOST_LINES and 0 < len(reports) <= MOST_LINES
    assert [problem for line in lines for problem in problems(line)] == []
    assert len(lines) + RateLimitedLogs.suppressed_lines - suppressed == LOGINS
    assert sum(identity.failures.values()) == LOGINS
    assert identity.failures["bearer", "throttled"] == throttled > 0
    assert identity.failures["bearer", "unknown"] >= 100 * FAILURES
    assert SECRET not in output.getvalue() and SECRET not in str(reports)
