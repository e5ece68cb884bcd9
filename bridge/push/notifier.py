"""Push notifications: every update of a task to each configured receiver, in order.

Each config has a loop: it reads the updates after the cursor of the config, delivers them one by
one, and commits the new cursor after each. It holds no updates while it waits, and it cannot delay
the task. The next server continues at the cursor, so a receiver gets a notification twice (with the
same id) if the server ended between its delivery and the commit.

The loop retries after temporary failures. After the last attempt, or a permanent failure, the
notification becomes a dead letter (delivery.py) and the next one follows.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from random import SystemRandom

from aiohttp.abc import AbstractResolver

from bridge.errors import PushNotificationNotSupported, Unavailable
from bridge.push import egress
from bridge.push.attempts import USUAL, HostLimits, RetryPolicy
from bridge.push.configs import check, repeated
from bridge.push.delivery import SECOND, Delivery, Encode, commit, now
from bridge.push.updates import TaskUpdates
from bridge.store.changes import PushChange, PushConfig, PushRemoved, PushSaved
from bridge.store.handle import TaskHandle
from bridge.store.protocol import CANNOT_WRITE, Store, TaskHead

log = logging.getLogger(__name__)

Find = Callable[[TaskHead], Awaitable[TaskHandle | None]]
Tell = Callable[[TaskHandle, str], Awaitable[None]]
"""Gets a task of another server, and the id of its config."""
Key = tuple[str, str]
"""The ids of a task and of its config. Clients choose the second one."""

EXPIRED, REVOKED = "expired", "revoked"
_chance = SystemRandom().random


class Push:
    """Sends the updates of tasks. `random`: returns a number between 0 and 1. Unless it is
    `supported`, all operations of clients raise PushNotificationNotSupported. `delivery` makes the
    attempts. `pending`: the configs with undelivered notifications. `admits`: whether the owner of
    a task has valid credentials; its configs rest otherwise."""

    def __init__(
        self,
        store: Store,
        encode: Encode,
        *,
        allow_private: bool = False,
        policy: RetryPolicy = USUAL,
        resolver: AbstractResolver | None = None,
        random: Callable[[], float] = _chance,
        supported: bool = True,
    ) -> None:
        self._supported = supported
        self.admits: Callable[[str], bool] = lambda owner: True
        self._tell: Tell | None = None
        self._store = store
        self._pause: Callable[[int], float] = lambda failures: policy.pause(failures, random)
        self.delivery = Delivery(
            store,
            encode,
            allow_private=allow_private,
            policy=policy,
            resolver=resolver,
            pause=self._pause,
        )
        self._allow_private = allow_private
        self._policy = policy
        self._connections = HostLimits(policy.per_host, policy.overall)
        self.pending: set[Key] = set()
        self._changing = asyncio.Lock()  # of the set of configs
        self._loops: dict[Key, asyncio.Task[None]] = {}
        self._leaving: dict[str, Callable[[], None]] = {}  # calls after the delivery, by task
        self._find_task: Find

    async def start(self, find: Find, tell: Tell | None = None) -> None:
        """Continue the deliveries of an earlier server. The store must be open. `tell`: how the
        server that has a task learns that a config of it has changed."""
        self._tell, self._find_task = tell, find
        self.delivery.open()
        await self.restart()

    async def restart(self) -> None:
        """Continue the deliveries of all configs whose owner has valid credentials."""
        for config in await self._store.push_configs():
            head = await self._store.head(config.task_id)
            unfinished = head and (config.cursor < head.last or not head.state.terminal)
            if head and unfinished and self.admits(head.context.owner):
                handle = await self._find_task(head)
                if handle:
                    self._begin((config.task_id, config.id), handle)

    async def revoke(self) -> int:
        """Stop the configs of owners without valid credentials. Their undelivered notifications
        become dead letters. Returns the number of these configs. Raises Unavailable if the store
        cannot be read."""
        stopped = 0
        for config in await self._store.push_configs():
            head = await self._store.head(config.task_id)
            if head is None or self.admits(head.context.owner):
                continue
            async with self._changing:
                await self._halt([(config.task_id, config.id)])
                found = await self._store.push_configs(config.task_id)
                current = next((one for one in found if one.id == config.id), None)
                if current and current.cursor < head.last:
                    await self.delivery.bury(current, head.last, REVOKED)
            self._leave(config.task_id)
            stopped += 1
        return stopped

    async def resume(self, handle: TaskHandle, config_id: str | None = None) -> None:
        """Continue the deliveries of a task with its stored configs, or with this one: another
        server has had the task, or has changed the config."""
        async with self._changing:
            configs = await self._store.push_configs(handle.task.id)
            if config_id is not None:
                await self._halt([(handle.task.id, config_id)])
            for config in configs:
                if config_id in (None, config.id):
                    self._begin((config.task_id, config.id), handle)

    async def close(self) -> None:
        """Stop. The next server continues the deliveries."""
        if self.delivery.relay:
            self.delivery.relay.leave()
        await _stop([*self._loops.values()])
        await self.delivery.close()

    # --- configs -------------------------------------------------------------------------------

    async def check(self, config: PushConfig, task_id: str | None) -> None:
        """Raise InvalidParams if create() would. `task_id` None: for a new task."""
        self._require_support()
        known = [one.id for one in await self._store.push_configs(task_id)] if task_id else []
        check(config, known, self._allow_private)

    async def create(
        self,
        config: PushConfig,
        handle: TaskHandle,
        after: int | None = None,
        *,
        default_id: bool = False,
        again: bool = False,
    ) -> PushConfig:
        """Notify `config` of the updates of the task after number `after`, by default from now on.
        Replaces a config with the same id. Returns the config with its id. `default_id`: the first
        config without an id gets the id of the task. `again`: the client may repeat a config; if
        that has no id, the task keeps the config that it has for this URL.

        Raises InvalidParams for an invalid config, or if the task has too many configs, and
        Unavailable if it cannot be stored now.
        """
        self._require_support()
        if self._store.problem:
            raise Unavailable(CANNOT_WRITE)
        task_id = handle.task.id
        cursor = handle.log.last if after is None else after
        config = replace(config, task_id=task_id, cursor=cursor)
        async with self._changing:
            configs = await self._store.push_configs(task_id)
            if again and (kept := repeated(config, configs)):
                return kept
            known = {one.id for one in configs}
            check(config, known, self._allow_private)
            if not config.id:
                named = default_id and task_id not in known
                config = replace(config, id=task_id if named else uuid.uuid4().hex)
            key = (task_id, config.id)
            try:
                # First stop the attempt at the old address: its failure must not count.
                await self._halt([key])
                await self._commit_soon([PushSaved(config)], lambda: self._begin(key, handle))
            except Unavailable:
                if config.id not in known:
                    self._store.append([PushRemoved(*key)], fence=None)  # the client has an error
                raise
            finally:
                self._begin(key, handle)
        await self.tell(handle, config.id)
        return config

    async def tell(self, handle: TaskHandle, config_id: str) -> None:
        """Tell the server that has the task that this config has changed."""
        if handle.elsewhere and self._tell:
            await self._tell(handle, config_id)

    async def list(self, task_id: str) -> Sequence[PushConfig]:
        """The configs without their secrets, in the order of their creation."""
        self._require_support()
        configs = await self._store.push_configs(task_id)
        return [replace(config, token=None, credentials=None) for config in configs]

    async def delete(self, task_id: str, config_id: str) -> None:
        """Delete a config with its undelivered notifications. The config need not exist. Raises
        Unavailable if the store cannot be written now."""
        self._require_support()
        async with self._changing:
            await self._commit_soon([PushRemoved(task_id, config_id)])
            await self._halt([(task_id, config_id)])
        self._leave(task_id)

    def _require_support(self) -> None:
        if not self._supported:
            text = "This server has no push notifications (BRIDGE_PUSH_KEY)."
            raise PushNotificationNotSupported(text)

    def after_delivery(self, task_id: str, call: Callable[[], None]) -> None:
        """Call `call` after the last notification of a task that has ended. The task has a config,
        or gets it soon."""
        self._leaving[task_id] = call

    async def expire(self, task_id: str) -> bool:
        """Make a dead letter of the undelivered notifications of a finished task, for each config.
        Returns whether there are any."""
        self._leaving.pop(task_id, None)
        await self._halt([key for key in self._loops if key[0] == task_id])
        head = await self._store.head(task_id)
        found = False
        for config in await self._store.push_configs(task_id):
            if head and config.cursor < head.last:
                await self.delivery.bury(config, head.last, EXPIRED)
                found = True
        return found

    async def _halt(self, keys: Collection[Key]) -> None:
        await _stop([self._loops.pop(key) for key in keys if key in self._loops])

    # --- the loop of a config ------------------------------------------------------------------

    def _begin(self, key: Key, handle: TaskHandle) -> None:
        """Start the loop of the config, unless it runs, another server has the task, or its owner
        has no valid credentials."""
        if key not in self._loops and not handle.elsewhere and self.admits(handle.task.owner):
            loop = self._loops[key] = asyncio.create_task(self._run(key, handle))
            loop.add_done_callback(lambda loop: self._ended(key, loop))

    def _ended(self, key: Key, loop: asyncio.Task[None]) -> None:
        if self._loops.get(key) in (None, loop):  # else another one has begun
            self.pending.discard(key)
        if loop.cancelled():
            return
        if error := loop.exception():
            self._loops.pop(key, None)
            log.error("push notifications of task %s stopped", key[0], exc_info=error)
        self._leave(key[0])

    def _leave(self, task_id: str) -> None:
        if task_id in self._leaving and not any(key[0] == task_id for key in self._loops):
            self._leaving.pop(task_id)()

    async def _run(self, key: Key, handle: TaskHandle) -> None:
        """Deliver the notifications of a config, up to the end of the task."""
        updates, position = TaskUpdates(self._store, handle), 0
        while config := await self._find(key, updates):
            position = max(position, config.cursor)
            if position >= handle.log.visible:
                self.pending.discard(key)
                if handle.log.closed:
                    break
                await handle.log.changed()
                continue
            self.pending.add(key)
            if config.due:
                updates.release()
                pause = (config.due - now()) / SECOND
                await asyncio.sleep(min(pause, self._policy.longest_pause))  # clocks change
            try:
                async with self._connections.take(egress.host_of(config.url)):
                    entries = await updates.after(position)
                    position = await self.delivery.deliver(config, handle, entries)
            except Unavailable:
                updates.release()
                await asyncio.sleep(self._pause(1))
        # No await since the last check: a change of the config finds this loop, or starts another.
        del self._loops[key]

    async def _find(self, key: Key, updates: TaskUpdates) -> PushConfig | None:
        """The config, as soon as the store can be read."""
        failures = 0
        while True:
            try:
                configs = await self._store.push_configs(key[0])
                return next((config for config in configs if config.id == key[1]), None)
            except Unavailable:
                updates.release()
                failures += 1
                await asyncio.sleep(self._pause(failures))

    async def _commit_soon(
        self, changes: Sequence[PushChange], then: Callable[[], None] | None = None
    ) -> None:
        """As commit(), for a client that waits. Raises Unavailable after that time;
        the store then commits the changes later."""
        try:
            async with asyncio.timeout(self._policy.write_within):
                await commit(self._store, changes, then)
        except TimeoutError:
            raise Unavailable(CANNOT_WRITE) from None


async def _stop(loops: Sequence[asyncio.Task[None]]) -> None:
    """Cancel the loops and wait for their end."""
    for loop in loops:
        loop.cancel()
    await asyncio.gather(*loops, return_exceptions=True)
