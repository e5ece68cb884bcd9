"""Waiting for a change of a task, with reports of progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from bridge.runtime.router import Router
from bridge.store.handle import TaskHandle
from bridge.transports.mcp.calls import Call
from bridge.transports.mcp.results import status_line

REPORT_EVERY = 2.0  # seconds between two reports of progress, at least
REPORT_AT_LEAST = 10.0  # seconds between two reports of progress, at most


async def wait_until(handle: TaskHandle, condition: Callable[[], bool], deadline: float) -> bool:
    """Wait until `condition` holds, the log ends or the loop's clock reaches `deadline`. Returns
    whether it holds."""
    try:
        async with asyncio.timeout_at(deadline):
            while not condition() and not handle.log.closed:
                await handle.log.changed()
    except TimeoutError:
        pass
    return condition()


@asynccontextmanager
async def reporting(router: Router, handle: TaskHandle, call: Call) -> AsyncIterator[None]:
    """The context in which a call waits: it counts as a stream of its principal, and its client
    gets reports of progress if it asked for them."""
    with router.quotas.stream(call.principal.id):
        if call.progress is None:
            yield
            return
        reports = asyncio.create_task(_report(handle, call))
        try:
            yield
        finally:
            reports.cancel()
            await asyncio.gather(reports, return_exceptions=True)


async def _report(handle: TaskHandle, call: Call) -> None:
    assert call.progress
    loop = asyncio.get_running_loop()
    count, seen = 0, -1

    def is_behind() -> bool:
        return handle.log.visible > seen

    while not handle.log.closed:
        count, seen = count + 1, handle.log.visible
        await call.progress(float(count), status_line(handle.task))
        begun = loop.time()
        await asyncio.sleep(REPORT_EVERY)
        await wait_until(handle, is_behind, begun + REPORT_AT_LEAST)
