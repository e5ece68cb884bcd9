"""The tasks that other servers write: each is a copy of its committed events, which follows the
store while someone reads it. A copy has the same updates with the same numbers as the original.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import Any

from bridge.errors import Unavailable
from bridge.store.changes import EventBatch
from bridge.store.cluster import SharedStore
from bridge.store.event_log import EventLog
from bridge.store.handle import ENTRY, MOST_BEHIND, NEWEST, TaskHandle, TaskHandles
from bridge.store.protocol import CANNOT_READ, Store, TaskHead
from bridge.store.replay import apply_batch, blank_task, read_errors, replay_updates
from bridge.store.serialization import load
from bridge.task.message import Message
from bridge.task.state import Update

log = logging.getLogger(__name__)

LINGERS = 10.0  # seconds for which a copy stays after its last reader
MOST_IDLE, MOST_IDLE_BYTES = 64, 32 * 1024 * 1024  # copies without a reader, and their stored bytes
MOST_ENDED = 1000  # finished tasks in memory
RETRY = 1.0  # seconds


class Mirror:
    """The copy of a task. `handle` shows it to readers. `number`: of the newest batch in it.
    `used`: when someone used it last. `followed` gets the copy when it begins to follow."""

    def __init__(self, store: Store, head: TaskHead, followed: Callable[[Mirror], None]) -> None:
        task = blank_task(head)
        self.handle = TaskHandle(
            task, head.context.agent, _Log(self._follow), shown=True, elsewhere=True
        )
        self.handle.begun = head.begun
        self.handle.log.bound(NEWEST, MOST_BEHIND, partial(replay_updates, store, task.head()))
        self.number = 0
        self.used = 0.0
        self._store = store
        self._followed = followed
        self._loading = asyncio.Lock()
        self._problem: ValueError | None = None
        self._following: asyncio.Task[None] | None = None

    @property
    def wanted(self) -> bool:
        return self.handle.log.wanted or self._loading.locked()

    @property
    def following(self) -> bool:
        return self._following is not None

    async def catch_up(self, number: int) -> None:
        """Read the batches up to `number`. Raises as read_errors() does."""
        task = self.handle.task
        with read_errors(task.id):
            async with self._loading:
                if not task.history:
                    prompt = await self._store.prompt(task.id)
                    task.history.append(load(Message, prompt))
                    self.handle.size = len(prompt)
                while self.number < number:
                    if self.handle.log.closed:  # it is damaged, or the server stops
                        raise self._problem or Unavailable(CANNOT_READ)
                    for batch in await self._store.read(task.id, self.number):
                        self._apply(batch)
                    await asyncio.sleep(0)

    def end(self) -> None:
        """Follow no longer, and end the readers. They can subscribe again."""
        self.stop()
        self.handle.log.close()

    def stop(self) -> None:
        """Follow no longer, until someone waits for news."""
        if self._following:
            self._following.cancel()
            self._following = None

    def _apply(self, batch: EventBatch) -> None:
        """Show the updates of the batch, unless it is already applied. Raises ValueError."""
        if batch.number != self.number + 1:
            return
        handle, task = self.handle, self.handle.task
        try:
            updates, size = apply_batch(task, batch), len(batch.events)
        except ValueError as error:
            self._problem = error
            handle.log.close()
            raise
        task.reply = None  # clients of this server get the task instead
        self.number = handle.batches = batch.number
        handle.size += size
        number = handle.log.add(updates, ENTRY + size // (len(updates) or 1))
        if number != batch.last and not handle.renumbered:  # the server has another version
            handle.renumbered = True
            log.warning("updates have other numbers than at their server", extra={"task": task.id})
        handle.log.publish(number)
        if task.state.terminal:
            handle.log.close()

    # --- following -----------------------------------------------------------------------------

    def _follow(self) -> None:
        """Someone waits for news."""
        if self._following is None and not self.handle.log.closed:
            self._following = asyncio.create_task(self._run())
            self._followed(self)

    async def _run(self) -> None:
        """Apply the batches as they are committed, up to the end of the task."""
        task_id = self.handle.task.id
        while not self.handle.log.closed:
            try:
                # The copy may be ahead of these batches, because requests read them, too.
                pieces = self._store.follow(task_id, self.number)
                async with aclosing(pieces) as found:  # type: ignore[type-var]
                    async for piece in found:
                        for batch in piece:
                            self._apply(batch)
                        if self.handle.log.closed:
                            break
                break
            except Unavailable:  # the store has logged it
                await asyncio.sleep(RETRY)
            except Exception:
                log.exception(
                    "a task of another server cannot be followed", extra={"task": task_id}
                )
                break
        self._following = None
        self.handle.log.close()  # also if the task was removed


class _Log(EventLog[Update]):
    """`wait` is called before someone waits for news."""

    def __init__(self, wait: Callable[[], None]) -> None:
        super().__init__()
        self._wait = wait

    async def _changed(self, reader: Any, timeout: float = math.inf) -> bool:
        self._wait()
        return await super()._changed(reader, timeout)


class SharedTaskHandles(TaskHandles):
    """The tasks of one agent in a store that other servers use, too. A task that this server does
    not write is a Mirror, with one copy for all readers. `lingers`: seconds for which a copy stays
    after its last reader. `most_idle`: copies without a reader. `mirrors` are by task id;
    `following`: those that follow the store now."""

    def __init__(
        self,
        agent: str,
        store: SharedStore,
        freed: Callable[[], None] = lambda: None,
        *,
        lingers: float = LINGERS,
        most_idle: int = MOST_IDLE,
    ) -> None:
        super().__init__(agent, store, freed)
        self.cluster = store.cluster
        self._lingers = lingers
        self._most_idle = most_idle
        self.mirrors: dict[str, Mirror] = {}  # the last used one is the last
        self.following: set[Mirror] = set()
        self._finished: dict[str, None] = {}  # the tasks in memory, in the order of their use
        self._sweeping: asyncio.TimerHandle | None = None

    async def find(self, task_id: str) -> TaskHandle | None:
        """The task as it is committed now, or None if the agent does not have it. Raises
        Unavailable or DataLoss if a task of another server cannot be read, and Unavailable while
        another server may have taken this one."""
        if self.in_doubt:
            raise Unavailable(CANNOT_READ)
        known = self._handles.get(task_id)
        if known and not known.log.closed:
            return known
        head = await self.store.head(task_id)
        if head is None:
            self.remove(task_id)  # another server may have removed it
            return None
        if head.context.agent != self.agent:
            return None
        known = self._handles.get(task_id)
        if known:
            return known
        if head.state.terminal:
            return self._ended(head)
        return await self._mirrored(head)

    def remove(self, task_id: str) -> None:
        super().remove(task_id)
        self._finished.pop(task_id, None)
        mirror = self.mirrors.pop(task_id, None)
        if mirror:
            mirror.end()

    def evict(self, handle: TaskHandle) -> None:
        super().evict(handle)
        self._bound_ended(handle.task.id)

    def close(self) -> None:
        for mirror in {*self.mirrors.values(), *self.following}:
            mirror.end()
        self.mirrors.clear()
        self.following.clear()
        if self._sweeping:
            self._sweeping.cancel()
            self._sweeping = None

    def _ended(self, head: TaskHead) -> TaskHandle:
        handle = super()._ended(head)
        self._bound_ended(head.task_id)
        return handle

    def _bound_ended(self, task_id: str) -> None:
        """Keep the task with this id and the last finished ones, because other servers may remove
        them from the store."""
        if task_id in self._handles:
            self._finished[task_id] = None
        while len(self._finished) > MOST_ENDED:
            oldest = next(iter(self._finished))
            del self._finished[oldest]
            super().remove(oldest)

    # --- mirrors -------------------------------------------------------------------------------

    async def _mirrored(self, head: TaskHead) -> TaskHandle | None:
        """The copy of the task, with all batches that the head counts."""
        known = self.mirrors.pop(head.task_id, None)
        if known is None or known.handle.log.closed:
            known = Mirror(self.store, head, self._follows)
        self.mirrors[head.task_id] = known
        known.used = asyncio.get_running_loop().time()
        try:
            await known.catch_up(head.batches)
        except BaseException:
            if self.mirrors.get(head.task_id) is known:
                del self.mirrors[head.task_id]
            raise
        self._bound_mirrors()
        self._sweep_later()
        return known.handle

    def _follows(self, mirror: Mirror) -> None:
        self.following.add(mirror)
        self._sweep_later()

    def _bound_mirrors(self) -> None:
        idle = [(key, one) for key, one in self.mirrors.items() if not one.wanted]
        size = sum(one.handle.size for _, one in idle)
        for number, (key, one) in enumerate(idle[:-1]):  # the newest one is about to be read
            if len(idle) - number <= self._most_idle and size <= MOST_IDLE_BYTES:
                return
            size -= one.handle.size
            del self.mirrors[key]

    def _sweep_later(self) -> None:
        if self._sweeping is None and (self.mirrors or self.following):
            loop = asyncio.get_running_loop()
            self._sweeping = loop.call_later(self._lingers / 4, self._sweep)

    def _sweep(self) -> None:
        """Forget the copies that were not used for a while."""
        now = asyncio.get_running_loop().time()
        for one in {*self.mirrors.values(), *self.following}:
            if one.wanted:
                one.used = now
            elif now - one.used > self._lingers:
                one.stop()
                if self.mirrors.get(one.handle.task.id) is one:
                    del self.mirrors[one.handle.task.id]
        self.following = {one for one in self.following if one.following}
        self._sweeping = None
        self._sweep_later()
