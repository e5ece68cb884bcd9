"""Push notifications: every update of a task, to each receiver that was configured, in order.

Per config there is a follower, which puts the updates of the task's log into the queue, and a
lane, which delivers what the queue holds, one after the other. A follower reads the log as any
subscriber does, so that nothing here can delay the task.

What may change by itself is attempted again: no connection, a timeout, 5xx, 408, 425 and 429.
After the last attempt, and at once where repeating is useless (a refused address, any other
status), the notification becomes a dead letter, and the next one has its turn: receivers keep the
order, may see a notification twice (its id says so), and can see in the numbers what is missing.
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
    Version,
    check_room,
)
from bridge.store.event_log import Entry, EventLog
from bridge.store.tasks import Record
from bridge.task.state import Task, Update

log = logging.getLogger(__name__)

T = TypeVar("T")
Encode = Callable[[PushConfig, Task, Entry[Update]], bytes | None]
"""The body that tells the receiver of an entry; None where it is told nothing."""

CONTENT_TYPES: dict[Version, str] = {"1.0": "application/a2a+json", "0.3": "application/json"}
RETRIED = {408, 425, 429}
ENCODING_FAILED = "internal error"
BATCH_BYTES = 1024 * 1024  # put down at once: one commit for many updates, but no flood of memory
CLOSE_WAIT = 5.0  # seconds for the end of tasks to be put down when the server stops
MAX_CREDENTIALS = 8192  # characters: room for signed tokens
_chance = SystemRandom().random
_ID = re.compile(r"[!-~]{1,128}")  # it is part of a header, too
_SCHEME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")  # a token (RFC 9110 §11.1)
_SECRET = re.compile(r"[!-~](?:[ -~]*[!-~])?")  # what every HTTP implementation takes as it is


@dataclass(frozen=True, slots=True)
class Limits:
    """Attempts per notification, seconds between the first two and at most, connections."""

    attempts: int = 10
    first_pause: float = 1.0
    longest_pause: float = 300.0
    per_host: int = 2
    overall: int = 32

    def pause(self, failures: int, random: Callable[[], float]) -> float:
        """Seconds after so many failures: doubled each time, of which the upper half is chance,
        so that receivers that come back are not met by everybody at once."""
        longest = min(self.first_pause * 2.0 ** min(failures - 1, 60), self.longest_pause)
        return longest * (0.5 + random() / 2)


class Push:
    """Sends what happens to tasks. `random` is between 0 and 1; `timeout` is of one request."""

    def __init__(
        self,
        queue: PushQueue,
        encode: Encode,
        *,
        allow_private: bool = False,
        limits: Limits = Limits(),
        timeout: float = egress.TIMEOUT,
        resolver: AbstractResolver | None = None,
        random: Callable[[], float] = _chance,
    ) -> None:
        self._queue = queue
        self._encode = encode
        self._allow_private = allow_private
        self._limits = limits
        self._timeout = timeout
        self._resolver = resolver
        self._random = random
        self._places = _Places(limits.per_host, limits.overall)
        self._changing = asyncio.Lock()  # one change of configs at a time
        self._followers: dict[Key, asyncio.Task[None]] = {}
        self._logs: dict[asyncio.Task[None], EventLog[Update]] = {}  # by follower
        self._lanes: dict[Key, asyncio.Task[None]] = {}
        self._again: set[Key] = set()  # lanes that have to look into the queue once more
        self._leaving: set[str] = set()  # tasks of an earlier run, until all is delivered
        self._session: aiohttp.ClientSession

    async def start(self, known: Collection[str] = ()) -> None:
        """Open the queue and go on with what waits there.

        Configs of tasks that are not `known` any more are forgotten after their last delivery.
        Raises ConfigurationError if the queue cannot be opened.
        """
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
        """Stop; what waits is delivered after the next start. Tasks that have ended are put down
        before, so let them end first."""
        ending = [follower for follower, followed in self._logs.items() if followed.closed]
        if ending:
            await asyncio.wait(ending, timeout=CLOSE_WAIT)
        await _stop([*self._followers.values(), *self._lanes.values()])
        await self._session.close()
        await self._queue.close()

    # --- configs -------------------------------------------------------------------------------

    async def check(self, config: PushConfig, task_id: str | None) -> None:
        """Raise InvalidParams if create() would, for this task or for one that is yet to begin."""
        check(replace(config, id=config.id or "new"), self._allow_private)
        known = [one.id for one in await self._queue.configs(task_id)] if task_id else []
        if config.id not in known:
            check_room(len(known))

    async def create(
        self, config: PushConfig, record: Record, after: int | None = None
    ) -> PushConfig:
        """Notify `config` of all that happens to the task after update `after`, or from now on.
        Returns it as clients may see it, with an id if it had none; one with its id is replaced.
        The first one without an id in 0.3 gets the task's id: it is the task's default config.

        Raises InvalidParams if it is wrong, or one too many.
        """
        cursor = record.log.last if after is None else after
        config = replace(config, task_id=record.task.id)
        check(replace(config, id=config.id or "new"), self._allow_private)
        async with self._changing:
            config = replace(config, id=config.id or await self._new_id(config))
            try:
                # First, lest an attempt at the old address has the last word on what waits.
                await self._halt({config.key})
                await self._queue.put(config, cursor)
            finally:  # whatever happened: the new config begins, or the old one goes on
                self._follow(config.key, record)
                self._kick(config.key)
        return config.shown()

    async def get(self, task_id: str, config_id: str) -> PushConfig | None:
        """Without its secrets, as in all that follows."""
        found = await self._queue.get(Key(task_id, config_id))
        return found[0].shown() if found else None

    async def list(self, task_id: str) -> Sequence[PushConfig]:
        """In the order in which they were created."""
        return [config.shown() for config in await self._queue.configs(task_id)]

    async def list_dead(self, task_id: str) -> Sequence[DeadLetter]:
        """What could not be delivered."""
        return await self._queue.dead(task_id)

    async def delete(self, task_id: str, config_id: str) -> None:
        """Send nothing more to it, not even what waits. It need not exist."""
        key = Key(task_id, config_id)
        async with self._changing:
            await self._queue.remove(key)
            await self._halt({key})

    async def forget(self, task_id: str) -> None:
        """The task is deleted, and with it its configs and what waits for them."""
        async with self._changing:
            await self._queue.forget(task_id)
            running = self._followers.keys() | self._lanes.keys()
            await self._halt({key for key in running if key.task_id == task_id})

    def leave(self, task_id: str) -> None:
        """Nobody will ask for the task: forget its configs when all is delivered. It has ended."""
        self._leaving.add(task_id)
        for key in {*self._followers, *self._lanes}:
            if key.task_id == task_id:
                self._kick(key)

    async def watch(self, record: Record) -> None:
        """Go on notifying the configs of a task that an earlier run has left, from where they
        were. Nothing is sent twice by this."""
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
        groups = (self._followers, self._lanes)
        self._again.difference_update(keys)
        await _stop([group.pop(key) for group in groups for key in keys if key in group])

    # --- from the log into the queue -----------------------------------------------------------

    def _follow(self, key: Key, record: Record) -> None:
        follower = self._run(self._followers, key, self._put_down(key, record))
        self._logs[follower] = record.log
        follower.add_done_callback(self._logs.pop)
        follower.add_done_callback(lambda _: self._put_down_all(key))

    def _put_down_all(self, key: Key) -> None:
        if key.task_id in self._leaving:
            self._kick(key)

    async def _put_down(self, key: Key, record: Record) -> None:
        found = await self._insist(partial(self._queue.get, key))
        if found is None:
            return
        config, cursor = found
        task: Task | None = None
        async for entries in record.log.follow(cursor, pause=3600):
            task = task or await record.whole()  # which it stays here when it is put away
            for outgoing, last in self._outgoing(config, task, entries):
                await self._insist(partial(self._queue.add, key, outgoing, last))
                self._kick(key)

    def _outgoing(
        self, config: PushConfig, task: Task, entries: Iterable[Entry[Update]]
    ) -> Iterable[tuple[Sequence[Outgoing], int]]:
        """The bodies of `entries`, in portions, each with the number of its last entry."""
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
        """A bug in the encoding costs one notification, which is seen, and not those after it."""
        try:
            body = self._encode(config, task, entry)
        except Exception:
            log.exception("update %d of task %s could not be encoded", entry.number, task.id)
            return Outgoing(entry.number, b"", ENCODING_FAILED)
        return None if body is None else Outgoing(entry.number, body)

    # --- from the queue to the receiver --------------------------------------------------------

    def _kick(self, key: Key) -> None:
        """There may be something to deliver."""
        self._again.add(key)
        if key not in self._lanes:
            self._run(self._lanes, key, self._lane(key))

    async def _lane(self, key: Key) -> None:
        while key in self._again:
            self._again.discard(key)
            while waiting := await self._insist(partial(self._queue.first, key)):
                await self._deliver(*waiting)
            if key.task_id in self._leaving:
                await self._leave(key.task_id)
        # Here, with nothing awaited since: a kick finds a lane that will look, or none.
        if self._lanes.get(key) is asyncio.current_task():
            del self._lanes[key]

    async def _deliver(self, config: PushConfig, delivery: Delivery) -> None:
        """One attempt, when it is due, and what follows from it."""
        pause = min(delivery.due - time.time(), self._limits.longest_pause)  # a clock may be set
        await asyncio.sleep(max(pause, 0))
        error, final = await self._attempt(config, delivery)
        failures = delivery.attempts + 1
        if not error:
            await self._insist(partial(self._queue.delivered, delivery))
        elif final or failures >= self._limits.attempts:
            await self._insist(partial(self._queue.bury, delivery, error))
            log.warning("notification %s is given up: %s", _name(delivery), error)
        else:
            due = time.time() + self._limits.pause(failures, self._random)
            await self._insist(partial(self._queue.postpone, delivery, due, error))

    async def _attempt(self, config: PushConfig, delivery: Delivery) -> tuple[str, bool]:
        """The class of the failure, empty for none, and whether another attempt is useless."""
        async with self._places.take(egress.host_of(config.url)):
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
        """Forget a task that nobody knows any more, unless something waits for another config."""
        if any(key.task_id == task_id for key in self._followers):
            return
        waiting = await self._insist(self._queue.pending)
        if all(key.task_id != task_id for key in waiting):
            self._leaving.discard(task_id)
            await self._insist(partial(self._queue.forget, task_id))

    # --- tasks ---------------------------------------------------------------------------------

    async def _insist(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do `work`, as often as it takes the queue to be available again."""
        for failures in itertools.count(1):
            try:
                return await work()
            except QueueUnavailable as error:
                log.error("%s", error)
                await asyncio.sleep(self._limits.pause(failures, self._random))
        raise AssertionError("unreachable")

    def _run(
        self, group: dict[Key, asyncio.Task[None]], key: Key, work: Coroutine[None, None, None]
    ) -> asyncio.Task[None]:
        """Run `work` as the task of `key`; once it has ended, it is so no more."""

        def ended(task: asyncio.Task[None]) -> None:
            if group.get(key) is task:
                del group[key]
            if not task.cancelled() and (error := task.exception()):
                log.error("push notifications of task %s stopped", key.task_id, exc_info=error)

        task = group[key] = asyncio.create_task(work)
        task.add_done_callback(ended)
        return task


class _Places:
    """Connections that may be open at once: so many to a host, and so many to all."""

    def __init__(self, per_host: int, overall: int) -> None:
        self._per_host = per_host
        self._overall = asyncio.Semaphore(overall)
        self._hosts: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def take(self, host: str) -> AsyncIterator[None]:
        """Wait for a place at the host first, which keeps none of the others waiting."""
        of_host = self._hosts.get(host) or asyncio.Semaphore(self._per_host)
        self._hosts[host] = of_host
        async with of_host, self._overall:
            yield


def check(config: PushConfig, allow_private: bool = False) -> None:
    """Raise InvalidParams if `config` says what cannot be sent, or must not be sent there."""
    if not _ID.fullmatch(config.id):
        raise _invalid("id", "must be 1 to 128 printable ASCII characters without spaces")
    egress.check_url(config.url, allow_private)
    if config.scheme and not _SCHEME.fullmatch(config.scheme):
        raise _invalid("scheme", "is no name of an HTTP authentication scheme")
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
        "Content-Type": CONTENT_TYPES[delivery.version],
        "A2A-Notification-Id": _name(delivery),
    }
    if config.scheme and config.credentials:
        headers["Authorization"] = f"{config.scheme} {config.credentials}"
    if config.token:
        headers["X-A2A-Notification-Token"] = config.token
    return headers


def _name(delivery: Delivery) -> str:
    """The same at each attempt, and unique: ids of configs alone are not."""
    return f"{delivery.key.task_id}:{delivery.key.config_id}:{delivery.number}"


async def _stop(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel them and wait until they have ended."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
