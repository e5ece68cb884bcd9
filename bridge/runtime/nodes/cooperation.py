"""The work of a server for the other servers of its store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from bridge.runtime.nodes.inbox import Inbox
from bridge.runtime.nodes.placement import Placement
from bridge.runtime.tasks import TaskManager
from bridge.session.pool import SessionPool
from bridge.store.cluster import Cluster
from bridge.store.handle import TaskHandle
from bridge.store.protocol import Store


class Deliveries(Protocol):
    """Push notifications."""

    async def resume(self, handle: TaskHandle, config_id: str | None = None) -> None: ...


class Cooperation:
    """Executes the commands of other servers, and takes contexts that no server has, or that lost
    servers had. `managers` are by agent id."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        managers: Mapping[str, TaskManager],
        pool: SessionPool,
        push: Deliveries,
    ) -> None:
        self._cluster = cluster
        self._inbox = Inbox(cluster, store, managers, push.resume)
        self._placement = Placement(cluster, managers, pool)

    def start(self) -> None:
        """Begin. The tasks of an earlier server must be restored."""
        self._inbox.start()
        self._placement.start()
        self._cluster.take_over()

    async def close(self) -> None:
        parts = (self._inbox.close(), self._placement.close(), self._cluster.keep_own())
        await asyncio.gather(*parts)
