"""The watchdog, with an event loop that really stands still."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from bridge.telemetry.watchdog import Watchdog


async def test_a_blocked_event_loop_is_logged_during_and_after_the_block() -> None:
    told = threading.Event()
    records: list[logging.LogRecord] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)
            told.set()

    listener = Listener()
    logging.getLogger("bridge.telemetry.watchdog").addHandler(listener)
    watchdog = Watchdog(stuck=0.3)
    try:
        assert watchdog.problem is None
        assert told.wait(10)  # on the loop: nothing else happens meanwhile
        assert "told.wait" in records[0].__dict__["where"]
        async with asyncio.timeout(10):
            while watchdog.problem is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert "stood still for" in watchdog.problem
    finally:
        logging.getLogger("bridge.telemetry.watchdog").removeHandler(listener)
        watchdog.close()


async def test_a_working_event_loop_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    watchdog = Watchdog(stuck=5.0)
    await asyncio.sleep(0.6)
    watchdog.close()
    assert watchdog.problem is None
    assert caplog.records == []
