"""Whether this server should get new work: /ready, and the health service of gRPC.

A server is not ready for a fault of its own that another server does not have. Saturation is none:
a balancer would lose tasks to retries. A shared store that does not answer is none either: all its
servers have that fault.

A server that starts reads its store before it accepts connections: until then a probe waits in the
queue of the listener and gets no answer. The reason `starting` holds from the first accepted
connection until all listeners serve.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from aiohttp import web

from bridge.runtime.tasks import TaskManager
from bridge.sandbox.profile import Sandbox
from bridge.server.agents.cli_info import is_logged_in
from bridge.server.agents.configured import ConfiguredAgent
from bridge.server.agents.node import NodeAgents
from bridge.session.pool import SessionPool
from bridge.store.handle import TaskHandle
from bridge.store.protocol import Store
from bridge.task.events import Failed, TimedOut
from bridge.task.state import StatusUpdate
from bridge.task.transitions import TaskState
from bridge.telemetry.watchdog import Watchdog

RETRY_AFTER = 5  # seconds, for a client of /ready
LOOK_AGAIN = 300.0  # seconds between two checks of an agent that could not start
FAULTS = frozenset({"auth", "launch", "start"})
"""The reasons of a failed task after which its agent is unusable."""
_WORKED = frozenset({TaskState.COMPLETED, TaskState.INPUT_REQUIRED})


class AgentFaults:
    """The agents that cannot begin a task: the program is missing, or the last start ended with a
    reason of FAULTS. Such an agent is usable again after a task that works, or after the login
    check of `doctor`, every `look_again` seconds; without such a check, after that time.

    Needs a running event loop. `agents` and `sandboxes`, by agent id, may change. `watch` adds the
    tasks of one more agent, and `forget` the fault of one that was changed or removed.
    """

    def __init__(
        self,
        agents: Sequence[ConfiguredAgent],
        managers: Mapping[str, TaskManager],
        sandboxes: Mapping[str, Sandbox | None],
        look_again: float = LOOK_AGAIN,
    ) -> None:
        self._agents = agents
        self._sandboxes = sandboxes
        self._look_again = look_again
        self._faults: dict[str, str] = {}  # reasons by agent id
        self._checks: dict[str, asyncio.Task[None]] = {}
        for agent, manager in managers.items():
            self.watch(agent, manager)

    def watch(self, agent: str, manager: TaskManager) -> None:
        manager.watch(partial(self._changed, agent))

    def forget(self, agent: str) -> None:
        self._faults.pop(agent, None)

    def close(self) -> None:
        for check in self._checks.values():
            check.cancel()

    def found(self) -> dict[str, str]:
        """The reasons of the unusable agents by their id."""
        missing = {
            one.id: "binary"
            for one in self._agents
            if one.config.binary and not os.access(one.config.binary, os.X_OK)
        }
        return {**self._faults, **missing}

    @property
    def everywhere(self) -> bool:
        """Whether no agent is usable."""
        return bool(self._agents) and len(self.found()) == len(self._agents)

    def _changed(self, agent: str, handle: TaskHandle, updates: Sequence[StatusUpdate]) -> None:
        if self._of(agent) is None:
            return  # a removed agent ends its tasks
        for update in updates:
            if isinstance(update.event, Failed | TimedOut) and update.event.reason in FAULTS:
                self._faults[agent] = update.event.reason
                if agent not in self._checks:
                    self._checks[agent] = asyncio.create_task(self._check(agent))
            elif update.state in _WORKED:
                self._faults.pop(agent, None)

    async def _check(self, agent: str) -> None:
        try:
            while agent in self._faults:
                await asyncio.sleep(self._look_again)
                one = self._of(agent)
                if one is None or await is_logged_in(one, self._sandboxes.get(agent)):
                    self._faults.pop(agent, None)
        finally:
            del self._checks[agent]

    def _of(self, agent: str) -> ConfiguredAgent | None:
        return next((one for one in self._agents if one.id == agent), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyParts:
    """The parts of the server that decide. `folder`: the state folder, if there is one. `free`: the
    least free bytes of its disk; 0 = no check. `shared`: other servers use the store, too."""

    store: Store
    shared: bool
    folder: Path | None
    free: int
    watchdog: Watchdog
    node: NodeAgents
    pool: SessionPool
    faults: AgentFaults


class Readiness:
    """`phase`: starting, serving or draining."""

    def __init__(self, parts: ReadyParts) -> None:
        self._parts = parts
        self.phase = "starting"

    @property
    def ready(self) -> bool:
        return not self.reasons()

    def reasons(self) -> list[str]:
        """Why the server should get no new work; empty if it should. Each is a word: starting,
        draining, fenced, journal, state_folder, disk, event_loop or agents."""
        parts = self._parts
        checks: Mapping[str, Callable[[], bool]] = {
            "starting": lambda: self.phase == "starting",
            "draining": lambda: self.phase == "draining",
            "fenced": lambda: parts.node.state == "fenced",
            "journal": lambda: not parts.shared and parts.store.problem is not None,
            "state_folder": lambda: parts.folder is not None and not parts.folder.is_dir(),
            "disk": self._full,
            "event_loop": lambda: parts.watchdog.stuck,
            "agents": lambda: parts.pool.limit > 0 and parts.faults.everywhere,
        }
        return [reason for reason, holds in checks.items() if holds()]

    def free_bytes(self) -> int | None:
        """The free bytes of the disk with the state folder; None without one."""
        if self._parts.folder is None:
            return None
        try:
            found = os.statvfs(self._parts.folder)
        except OSError:
            return None
        return found.f_bavail * found.f_frsize

    def _full(self) -> bool:
        free = self.free_bytes()
        return free is not None and free < self._parts.free

    def problems(self) -> dict[str, str]:
        """The problems that only this class knows, with texts for people."""
        figures, found = self._parts.pool.figures(), {}
        if figures["saturated"] and figures["queued"]:
            found["saturated"] = f"all slots are in use, and {figures['queued']} tasks wait"
        if self._full():
            found["disk"] = "the disk of the state folder is nearly full (BRIDGE_MIN_FREE_BYTES)"
        faults = self._parts.faults.found()
        if faults:
            named = ", ".join(f"{agent} ({reason})" for agent, reason in sorted(faults.items()))
            found["agents"] = f"agents cannot begin tasks: {named}"
        return found

    @property
    def problem(self) -> str | None:
        """For /health."""
        return "; ".join(self.problems().values()) or None

    async def answer(self, request: web.Request) -> web.Response:
        """GET /ready. Needs no identity."""
        reasons = self.reasons()
        body = {"status": "not_ready" if reasons else "ready", "reasons": reasons}
        headers = {"Cache-Control": "no-store"}
        if reasons:
            headers["Retry-After"] = str(RETRY_AFTER)
        return web.json_response(body, status=503 if reasons else 200, headers=headers)
