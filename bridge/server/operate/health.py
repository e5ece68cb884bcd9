"""The health of the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from aiohttp import web

from bridge import __version__
from bridge.runtime.tasks import TaskManager
from bridge.store.cluster import HintCarrier
from bridge.transports.operation import PRINCIPAL


class HealthCheck(Protocol):
    """A part of the server that can fail for a while. `problem`: the text for /health, or None."""

    @property
    def problem(self) -> str | None: ...


@runtime_checkable
class _Shared(Protocol):
    """A store that has a carrier of hints. Its fault makes no status: reads are late."""

    @property
    def bus(self) -> HintCarrier: ...


async def health(
    agents: Mapping[str, TaskManager],
    checks: Sequence[HealthCheck],
    about: Callable[[], Mapping[str, Any]],
    request: web.Request,
) -> web.Response:
    """Degraded: a part fails or is saturated, maybe for a while, and running tasks continue. A
    client without a known identity gets only the status and the version."""
    figures = {agent: manager.figures() for agent, manager in agents.items()}
    found = [one.problem for one in checks]
    problems = sorted({problem for problem in found if problem})
    status = {"status": "degraded", "problems": problems} if problems else {"status": "ok"}
    bus = next((one.bus for one in checks if isinstance(one, _Shared)), None)
    hints = {"bus": {"kind": bus.kind, "ok": bus.works}} if bus else {}
    if request.get(PRINCIPAL) is None:
        return web.json_response({"status": status["status"], "version": __version__})
    known = {"version": __version__, "agents": figures, **about(), **hints}
    return web.json_response({**status, **known})
