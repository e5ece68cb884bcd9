"""Takes contexts that no server has, while this server has free slots."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping

from bridge.errors import Unavailable
from bridge.runtime.nodes.commands import Elsewhere
from bridge.runtime.tasks import TaskManager
from bridge.session.pool import SessionPool
from bridge.store.cluster import Cluster

log = logging.getLogger(__name__)

POLL = 1.0  # seconds between two looks, if no hint arrives


class Placement:
    """`managers` are by agent id."""

    def __init__(
        self, cluster: Cluster, managers: Mapping[str, TaskManager], pool: SessionPool
    ) -> None:
        self._cluster = cluster
        self._managers = managers
        self._pool = pool
        self._work = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        cluster.on_work(self._work.set)

    def start(self) -> None:
        self._running = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._running:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL):
                    await self._work.wait()
            self._work.clear()
            try:
                await self._take()
            except Unavailable:  # the store has logged it
                continue
            except Exception:
                log.exception("contexts without a server cannot be taken")

    async def _take(self) -> None:
        free = self._pool.free
        if free:
            for key in await self._cluster.unplaced(list(self._managers), free):
                with contextlib.suppress(Elsewhere):  # another server was faster
                    await self._managers[key.agent].contexts.take(key)
