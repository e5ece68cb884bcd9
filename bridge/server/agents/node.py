"""The agents of a server that is one of several, and the effects on their contexts: a lease ends,
other servers take this server for lost, or this server takes the contexts of a lost one."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from bridge.process import spawn
from bridge.process.cgroup import home
from bridge.runtime.tasks import TaskManager
from bridge.server.settings.root import Settings
from bridge.store.changes import ContextKey, Fence
from bridge.store.cluster import Take

log = logging.getLogger(__name__)

COPIED, LOST = os.EX_CONFIG, os.EX_TEMPFAIL
"""Exit statuses. COPIED: another server uses the identity of this one, in a copy of its state
folder; a restart would stop that server. LOST: another server took this one for lost; a restart
continues."""


class NodeAgents:
    """The host of the store on PostgreSQL; see store/postgres/membership.py. `managers` are by
    agent id. `name`: of the server; `state`: up, doubt or fenced. `ended` is set when this
    incarnation has ended; `status` is the exit status then."""

    def __init__(self) -> None:
        self.managers: Mapping[str, TaskManager] = {}
        self.name = ""
        self.state = "up"
        self.ended = asyncio.Event()
        self.status = 0

    def about(self) -> dict[str, Any]:
        """The members of /health about this server; none if it is the only one."""
        return {"node": {"name": self.name, "state": self.state}} if self.name else {}

    def fenced(self, copied: bool) -> None:
        self.status, self.state = COPIED if copied else LOST, "fenced"
        for manager in self.managers.values():
            manager.lose(copied)
        self.ended.set()

    def renewed(self, until: float) -> None:
        spawn.renew(until)

    def doubt(self, doubtful: bool) -> None:
        spawn.freeze(doubtful)
        self.state = "doubt" if doubtful else "up"
        for manager in self.managers.values():
            manager.contexts.doubt(doubtful)

    async def adopt(self, key: ContextKey, take: Take) -> None:
        manager = self.managers.get(key.agent)
        if manager:
            await manager.contexts.take_over(key, take)

    async def finish(self, key: ContextKey, take: Take) -> Fence | None:
        manager = self.managers.get(key.agent)
        return await manager.contexts.finish(key, take) if manager else None


def shares_of(settings: Settings, *, resumes_elsewhere: bool) -> dict[str, list[str]]:
    """The shares with contexts that other servers can continue. Without control groups, a server
    could not stop their CLIs in time."""
    if not (settings.store.share and resumes_elsewhere):
        return {}
    if not (spawn.LAUNCHES and home()):
        log.warning("BRIDGE_SHARE has no effect: this server has no control groups of version 2")
        return {}
    return settings.shares


def digest(settings: Settings, agents: Sequence[str]) -> bytes:
    """Of the settings that all servers of a database must share; without secrets. `agents`: ids."""
    tokens = sorted(settings.auth.tokens)
    shared = [sorted(agents), tokens, settings.store.lease_ms, settings.constants.node_grace_ms]
    return hashlib.sha256(orjson.dumps(shared)).digest()[:16]
