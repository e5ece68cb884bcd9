"""The delivery of one notification: an attempt, and the commit of its result.

An attempt fails temporarily without a connection, after a timeout, and with 5xx, 408, 425 and 429.
After the last attempt, or at once after a permanent failure (a refused address, any other status),
the notification becomes a dead letter.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

import aiohttp
from aiohttp.abc import AbstractResolver

from bridge.push import egress
from bridge.push.attempts import Relay, RetryPolicy
from bridge.push.signature import ID, secret_of, signed, signs
from bridge.store.changes import PushAdvanced, PushChange, PushConfig, PushFailed
from bridge.store.event_log import Entry
from bridge.store.handle import TaskHandle
from bridge.store.protocol import Store
from bridge.task.state import Task, Update

log = logging.getLogger(__name__)

Encode = Callable[[PushConfig, Task, Entry[Update]], tuple[str, bytes] | None]
"""The media type and the body of the notification of an update; None for no notification."""
Attempted = Callable[[Task, str, float, int | None, str], None]
"""Gets the task, the URL, the begin (seconds since 1970), the status of the answer and the class of
the failure, "" for none."""

ENCODING_FAILED = "internal error"
SECOND = 1_000_000  # microseconds


class Delivery:
    """Makes attempts. `relay`: sends the notifications, from open() on, in place of this process.
    `pause`: the seconds to wait after so many failures. `outcomes` counts the attempts:
    `delivered`, `retry` or `dead`; `attempted` gets each."""

    def __init__(
        self,
        store: Store,
        encode: Encode,
        *,
        allow_private: bool,
        policy: RetryPolicy,
        resolver: AbstractResolver | None,
        pause: Callable[[int], float],
    ) -> None:
        self.relay: Relay | None = None
        self.attempted: Attempted = lambda task, url, begin, status, error: None
        self.outcomes: Counter[str] = Counter()
        self._store = store
        self._encode = encode
        self._allow_private = allow_private
        self._policy = policy
        self._resolver = resolver
        self._pause = pause
        self._session: aiohttp.ClientSession

    def open(self) -> None:
        if self.relay:
            self.relay.start()
        self._session = egress.open_session(
            allow_private=self._allow_private, timeout=self._policy.timeout, resolver=self._resolver
        )

    async def close(self) -> None:
        if self.relay:
            await self.relay.close()
        await self._session.close()

    async def deliver(
        self, config: PushConfig, handle: TaskHandle, entries: Sequence[Entry[Update]]
    ) -> int:
        """Make one attempt for the first entry that has a notification. Returns the number of the
        last entry that is delivered or skipped."""
        position = 0
        for entry in entries:
            task = await handle.whole()
            try:
                encoded = self._encode(config, task, entry)
            except Exception:  # a bug costs one notification
                log.exception("update %d of task %s could not be encoded", entry.number, task.id)
                await self.bury(config, entry.number, ENCODING_FAILED)
                return entry.number
            position = entry.number
            if encoded:
                return await self._attempt(config, task, position, *encoded)
        return position

    async def _attempt(
        self, config: PushConfig, task: Task, number: int, media_type: str, body: bytes
    ) -> int:
        """Make one attempt, and commit its result. Returns the new cursor."""
        begin = time.time()
        status, error = await self._post(config, number, media_type, body)
        self.attempted(task, config.url, begin, status, error)
        final = egress.is_final(status) if status is not None else error == egress.REFUSED
        attempts = config.attempts + 1
        if error and (final or attempts >= self._policy.attempts):
            await self.bury(config, number, error, attempts)
        elif error:
            self.outcomes["retry"] += 1
            due = now() + int(SECOND * self._pause(attempts))
            number -= 1
            advanced = PushAdvanced(config.task_id, config.id, number, attempts, due)
            await commit(self._store, [advanced])
        else:
            self.outcomes["delivered"] += 1
            await commit(self._store, [PushAdvanced(config.task_id, config.id, number)])
        return number

    async def _post(
        self, config: PushConfig, number: int, media_type: str, body: bytes
    ) -> tuple[int | None, str]:
        """The status of the answer, if there is one, and the class of the failure, empty for
        none."""
        headers = {"Content-Type": media_type, ID: _name(config, number)}
        if config.scheme and config.credentials and not signs(config):
            headers["Authorization"] = f"{config.scheme} {config.credentials}"
        if config.token:
            headers["X-A2A-Notification-Token"] = config.token
        secret = secret_of(config)
        try:
            if self.relay:
                job = f"{config.task_id}/{config.id}/{number}/{config.attempts + 1}"
                status = await self.relay.post(job, config.url, body, headers, secret)
            else:
                complete = signed(headers, body, secret)
                status = await egress.post(self._session, config.url, body, complete)
        except egress.RequestFailed as failure:
            return None, str(failure)
        return status, "" if 200 <= status < 300 else f"status {status}"

    async def bury(self, config: PushConfig, number: int, error: str, attempts: int = 0) -> None:
        """Make a dead letter of the notifications up to this update."""
        self.outcomes["dead"] += 1
        where = {"event": "push.dead", "task": config.task_id, "config": config.id}
        name = _name(config, number)
        log.warning(
            "notification %s is a dead letter: %s", name, error, extra={**where, "error": error}
        )
        names = (config.task_id, config.id, number)
        if self.relay:
            facts = {"task": config.task_id, "config": config.id, "number": str(number)}
            self.relay.bury({**facts, "attempts": str(attempts), "error": error})
        failed = PushFailed(*names, attempts, error, time=now())
        await commit(self._store, [failed, PushAdvanced(*names)])


async def commit(
    store: Store, changes: Sequence[PushChange], then: Callable[[], None] | None = None
) -> None:
    """Append the changes, and wait for their commit. `then` is called even if the wait ends
    early."""
    committed = asyncio.Event()

    def done(error: object) -> None:
        committed.set()
        if then:
            then()

    store.append(changes, fence=None, then=done)
    await committed.wait()


def now() -> int:
    return int(time.time() * SECOND)


def _name(config: PushConfig, number: int) -> str:
    """The id of a notification, the same for each attempt. Ids of configs are not unique."""
    return f"{config.task_id}:{config.id}:{number}"
