"""Push notifications: every update of a task to each configured receiver, in order.

Each config has a follower, which copies the updates of the task's log into the queue, and a
sender, which delivers the notifications of the queue in order. A follower reads the log like any
subscriber, so that it cannot delay the task.

The sender retries after temporary failures: no connection, a timeout, 5xx, 408, 425 and 429. After
the last attempt, or at once after a permanent failure (a refused address, any other status), the
notification becomes a dead letter and the next one follows. Receivers get notifications in order,
may get one twice (with the same id), and can detect missing ones by their numbers.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import time
import uuid
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from random import SystemRandom
from typing import TypeVar
from weakref import WeakValueDictionary

import aiohttp
from aiohttp.abc import AbstractResolver

from bridge.errors import InvalidParams
from bridge.push import egress
from bridge.push.configs import (
    DeadLetter,
    Delivery,
    Key,
    Outgoing,
    PushConfig,
    PushQueue,
    QueueUnavailable,
    check_room,
)
from bridge.store.event_log import Entry, EventLog
from bridge.store.handle import TaskHandle
from bridge.task.state import Task, Update

log = logging.getLogger(__name__)

T = TypeVar("T")
Encode = Callable[[PushConfig, Task, Entry[Update]], bytes | None]
"""The body of the notification of an entry; None for no notification."""

CONTENT_TYPE = "application/a2a+json"
CONTENT_TYPES = {"0.3": "application/json"}  # of versions with another type
RETRIED = {408, 425, 429}
ENCODING_FAILED = "internal error"
BATCH_BYTES = 1024 * 1024  # bytes of the bodies of one commit; limits the memory
CLOSE_WAIT = 5.0  # seconds at the stop of the server to queue the ends of tasks
MAX_CREDENTIALS = 8192  # characters: room for signed tokens
_chance = SystemRandom().random
_ID = re.compile(r"[!-~]{1,128}")  # it is part of a header
_SCHEME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")  # a token (RFC 9110 §11.1)
_SECRET = re.compile(r"[!-~](?:[ -~]*[!-~])?")  # no HTTP implementation changes such a value


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`attempts`: per notification. `first_pause`, `longest_pause`: seconds between attempts.
    `per_host`, `overall`: open connections."""

    attempts: int = 10
    first_pause: float = 1.0
    longest_pause: float = 300.0
    per_host: int = 2
    overall: int = 32

    def pause(self, failures: int, random: Callable[[], float]) -> float:
        """Seconds to wait after so many failures. The pause doubles each time; its upper half is
        random, so that the retries to a recovered receiver do not coincide."""
        longest = min(self.first_pause * 2.0 ** min(failures - 1, 60), self.longest_pause)
        return longest * (0.5 + random() / 2)


class Push:
    """Sends the updates of tasks. `random`: returns a number between 0 and 1. `timeout`: seconds of
    one request."""

    def __init__(
        self,
        queue: PushQueue,
        encode: Encode,
        *,
        allow_private: bool = False,
        policy: RetryPolicy = RetryPolicy(),
        timeout: float = egress.TIMEOUT,
        resolver: AbstractResolver | None = None,
        random: Callable[[], float] = _chance,
    ) -> None:
        self._queue = queue
        self._encode = encode
        self._allow_private = allow_private
        self._policy = policy
        self._timeout = timeout
        self._resolver = resolver
        self._random = random
        self._connections = _Connections(policy.per_host, policy.overall)
        self._changing = asyncio.Lock()  # one change of configs at a time
        self._followers: dict[Key, asyncio.Task[None]] = {}
        self._logs: dict[asyncio.Task[None], EventLog[Update]] = {}  # by follower
        self._senders: dict[Key, asyncio.Task[None]] = {}
        self._again: set[Key] = set()  # senders that must read the queue again
        self._leaving: set[str] = set()  # removed tasks with undelivered notifications
        self._session: aiohttp.ClientSession

    async def start(self, known: Collection[str] = ()) -> None:
        """Open the queue and deliver its notifications. `known`: the ids of all stored tasks;
        configs of other tasks are deleted after their last delivery. Raises ConfigurationError if
        the queue cannot be opened."""
        await self._queue.open()
        try:
            waiting = await self._queue.pending()
            self._leaving = await self._queue.tasks() - set(known)
            for task_id in self._leaving - {key.task_id for key in waiting}:
                await self._queue.forget(task_id)
        except BaseException:
            await self._queue.close()
            raise
        self._session = egress.open_session(
            allow_private=self._allow_private, timeout=self._timeout, resolver=self._resolver
        )
        for key in waiting:
            self._kick(key)

    async def close(self) -> None:
        """Stop. The next start delivers the queued notifications. The updates of tasks that have
        ended are queued first."""
        ending = [follower for follower, followed in self._logs.items() if followed.closed]
        if ending:
            await asyncio.wait(ending, timeout=CLOSE_WAIT)
        await _stop([*self._followers.values(), *self._senders.values()])
        await self._session.close()
        await self._queue.close()

    # --- configs -------------------------------------------------------------------------------

    async def check(self, config: PushConfig, task_id: str | None) -> None:
        """Raise InvalidParams if create() would. `task_id` None: for a new task."""
        check(replace(config, id=config.id or "new"), self._allow_private)
        known = [one.id for one in await self._queue.configs(task_id)] if task_id else []
        if config.id not in known:
            check_room(len(known))

    async def create(
        self, config: PushConfig, record: TaskHandle, after: int | None = None
    ) -> PushConfig:
        """Notify `config` of the updates of the task after number `after`, by default from now on.
        Replaces a config with the same id. Returns the config without secrets and with an id; the
        first config of 0.3 without an id gets the id of the task and is the default config.

        Raises InvalidParams for an invalid config, or if the task has too many configs.
        """
        cursor = record.log.last if after is None else after
        config = replace(config, task_id=record.task.id)
        check(replace(config, id=config.id or "new"), self._allow_private)
        async with self._changing:
            config = replace(config, id=config.id or await self._new_id(config))
            try:
                # First stop the attempt at the old address: its result would change the queue.
                await self._halt({config.key})
                await self._queue.put(config, cursor)
            finally:  # start the new config or, after an error, resume the old one
                self._follow(config.key, record)
                self._kick(config.key)
        return config.shown()

    async def get(self, task_id: str, config_id: str) -> PushConfig | None:
        """The config without its secrets."""
        found = await self._queue.get(Key(task_id, config_id))
        return found[0].shown() if found else None

    async def list(self, task_id: str) -> Sequence[PushConfig]:
        """The configs without their secrets, in the order of their creation."""
        return [config.shown() for config in await self._queue.configs(task_id)]

    async def list_dead(self, task_id: str) -> Sequence[DeadLetter]:
        """The undeliverable notifications of the task."""
        return await self._queue.dead(task_id)

    async def delete(self, task_id: str, config_id: str) -> None:
        """Delete a config and its queued notifications. The config need not exist."""
        key = Key(task_id, config_id)
        async with self._changing:
            await self._queue.remove(key)
            await self._halt({key})

    async def forget(self, task_id: str) -> None:
        """Delete the configs and the queued notifications of a deleted task."""
        async with self._changing:
            await self._queue.forget(task_id)
            running = self._followers.keys() | self._senders.keys()
            await self._halt({key for key in running if key.task_id == task_id})

    def leave(self, task_id: str) -> None:
        """Delete the configs of a task that has ended after the delivery of its notifications."""
        self._leaving.add(task_id)
        for key in {*self._followers, *self._senders}:
            if key.task_id == task_id:
                self._kick(key)

    async def watch(self, record: TaskHandle) -> None:
        """Resume the notifications of a task of an earlier server process, after the last queued
        update."""
        async with self._changing:
            self._leaving.discard(record.task.id)
            for config in await self._queue.configs(record.task.id):
                if config.key not in self._followers:
                    self._follow(config.key, record)

    async def _new_id(self, config: PushConfig) -> str:
        if config.version == "0.3":
            known = await self._queue.configs(config.task_id)
            if config.task_id not in [one.id for one in known]:
                return config.task_id
        return uuid.uuid4().hex

    async def _halt(self, keys: Collection[Key]) -> None:
        groups = (self._followers, self._senders)
        self._again.difference_update(keys)
        await _stop([group.pop(key) for group in groups for key in keys if key in group])

    # --- from the log into the queue -----------------------------------------------------------

    def _follow(self, key: Key, record: TaskHandle) -> None:
        follower = self._run(self._followers, key, self._follow_log(key, record))
        self._logs[follower] = record.log
        follower.add_done_callback(self._logs.pop)
        follower.add_done_callback(lambda _: self._queued_all(key))

    def _queued_all(self, key: Key) -> None:
        if key.task_id in self._leaving:
            self._kick(key)

    async def _follow_log(self, key: Key, record: TaskHandle) -> None:
        found = await self._retry(partial(self._queue.get, key))
        if found is None:
            return
        config, cursor = found
        task: Task | None = None
        async for entries in record.log.follow(cursor, pause=3600):
            task = task or await record.whole()  # a strong reference: the task may be evicted
            for outgoing, last in self._outgoing(config, task, entries):
                await self._retry(partial(self._queue.add, key, outgoing, last))
                self._kick(key)

    def _outgoing(
        self, config: PushConfig, task: Task, entries: Iterable[Entry[Update]]
    ) -> Iterable[tuple[Sequence[Outgoing], int]]:
        """The bodies of `entries` in portions, each with the number of its last entry."""
        portion: list[Outgoing] = []
        size = last = 0
        for entry in entries:
            outgoing, last = self._body(config, task, entry), entry.number
            if outgoing:
                portion.append(outgoing)
                size += len(outgoing.payload)
            if size >= BATCH_BYTES:
                yield portion, last
                portion, size = [], 0
        if portion:
            yield portion, last

    def _body(self, config: PushConfig, task: Task, entry: Entry[Update]) -> Outgoing | None:
        """A bug in the encoding costs one notification, which becomes a dead letter."""
        try:
            body = self._encode(config, task, entry)
        except Exception:
            log.exception("update %d of task %s could not be encoded", entry.number, task.id)
            return Outgoing(entry.number, b"", ENCODING_FAILED)
        return None if body is None else Outgoing(entry.number, body)

    # --- from the queue to the receiver --------------------------------------------------------

    def _kick(self, key: Key) -> None:
        """Let the sender of the config read the queue."""
        self._again.add(key)
        if key not in self._senders:
            self._run(self._senders, key, self._send(key))

    async def _send(self, key: Key) -> None:
        while key in self._again:
            self._again.discard(key)
            while waiting := await self._retry(partial(self._queue.first, key)):
                await self._deliver(*waiting)
            if key.task_id in self._leaving:
                await self._leave(key.task_id)
        # No await since the check: a kick finds a sender that reads the queue again, or none.
        if self._senders.get(key) is asyncio.current_task():
            del self._senders[key]

    async def _deliver(self, config: PushConfig, delivery: Delivery) -> None:
        """Make one attempt at its time, and record its result."""
        pause = min(delivery.due - time.time(), self._policy.longest_pause)  # the clock may change
        await asyncio.sleep(max(pause, 0))
        error, final = await self._attempt(config, delivery)
        failures = delivery.attempts + 1
        if not error:
            await self._retry(partial(self._queue.delivered, delivery))
        elif final or failures >= self._policy.attempts:
            await self._retry(partial(self._queue.bury, delivery, error))
            log.warning("notification %s is a dead letter: %s", _name(delivery), error)
        else:
            due = time.time() + self._policy.pause(failures, self._random)
            await self._retry(partial(self._queue.postpone, delivery, due, error))

    async def _attempt(self, config: PushConfig, delivery: Delivery) -> tuple[str, bool]:
        """The class of the failure (empty: success), and whether it is permanent."""
        async with self._connections.take(egress.host_of(config.url)):
            try:
                status = await egress.post(
                    self._session, config.url, delivery.payload, _headers(config, delivery)
                )
            except egress.RequestFailed as failure:
                error = str(failure)
                return error, error == egress.REFUSED
        if 200 <= status < 300:
            return "", False
        return f"status {status}", status < 500 and status not in RETRIED

    async def _leave(self, task_id: str) -> None:
        """Delete the configs of a removed task, unless it has undelivered notifications."""
        if any(key.task_id == task_id for key in self._followers):
            return
        waiting = await self._retry(self._queue.pending)
        if all(key.task_id != task_id for key in waiting):
            self._leaving.discard(task_id)
            await self._retry(partial(self._queue.forget, task_id))

    # --- tasks ---------------------------------------------------------------------------------

    async def _retry(self, work: Callable[[], Awaitable[T]]) -> T:
        """Retry `work` until the queue is available."""
        for failures in itertools.count(1):
            try:
                return await work()
            except QueueUnavailable as error:
                log.error("%s", error)
                await asyncio.sleep(self._policy.pause(failures, self._random))
        raise AssertionError("unreachable")

    def _run(
        self, group: dict[Key, asyncio.Task[None]], key: Key, work: Coroutine[None, None, None]
    ) -> asyncio.Task[None]:
        """Run `work` as the asyncio task of `key` in `group`, until it ends."""

        def ended(task: asyncio.Task[None]) -> None:
            if group.get(key) is task:
                del group[key]
            if not task.cancelled() and (error := task.exception()):
                log.error("push notifications of task %s stopped", key.task_id, exc_info=error)

        task = group[key] = asyncio.create_task(work)
        task.add_done_callback(ended)
        return task


class _Connections:
    """Limits of open connections, per host and in total."""

    def __init__(self, per_host: int, overall: int) -> None:
        self._per_host = per_host
        self._overall = asyncio.Semaphore(overall)
        self._hosts: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def take(self, host: str) -> AsyncIterator[None]:
        """Hold a connection. Waits for the limit of the host first, so that it holds no connection
        of the total limit meanwhile."""
        of_host = self._hosts.get(host) or asyncio.Semaphore(self._per_host)
        self._hosts[host] = of_host
        async with of_host, self._overall:
            yield


def check(config: PushConfig, allow_private: bool = False) -> None:
    """Raise InvalidParams for an invalid config or a forbidden URL."""
    if not _ID.fullmatch(config.id):
        raise _invalid("id", "must be 1 to 128 printable ASCII characters without spaces")
    egress.check_url(config.url, allow_private)
    if config.scheme and not _SCHEME.fullmatch(config.scheme):
        raise _invalid("scheme", "must be the name of an HTTP authentication scheme")
    if config.credentials and not config.scheme:
        raise _invalid("scheme", "is missing")
    for name, secret in (("token", config.token), ("credentials", config.credentials)):
        if secret and not (_SECRET.fullmatch(secret) and len(secret) <= MAX_CREDENTIALS):
            limits = f"up to {MAX_CREDENTIALS} printable ASCII characters, no space at the ends"
            raise _invalid(name, f"must be {limits}")


def _invalid(name: str, problem: str) -> InvalidParams:
    return InvalidParams(f"The push notification config's {name} {problem}.", [(name, problem)])


def _headers(config: PushConfig, delivery: Delivery) -> dict[str, str]:
    headers = {
        "Content-Type": CONTENT_TYPES.get(delivery.version, CONTENT_TYPE),
        "A2A-Notification-Id": _name(delivery),
    }
    if config.scheme and config.credentials:
        headers["Authorization"] = f"{config.scheme} {config.credentials}"
    if config.token:
        headers["X-A2A-Notification-Token"] = config.token
    return headers


def _name(delivery: Delivery) -> str:
    """The id of a notification, the same for each attempt. Ids of configs are not unique."""
    return f"{delivery.key.task_id}:{delivery.key.config_id}:{delivery.number}"


async def _stop(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel the tasks and wait for their end."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
