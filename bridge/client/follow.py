"""A task until it ends or asks: over a stream that resumes after a break, or by polling."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

from bridge.a2a import OLDEST
from bridge.client import bindings
from bridge.client.agent import RemoteAgent
from bridge.client.failure import ClientError, ConnectionLost
from bridge.client.questions import OpenQuestion, question_of
from bridge.client.shapes import INTERRUPTED, TERMINAL, Json, state_of
from bridge.client.snapshot import Snapshot

PATIENCE = 600.0  # seconds of retries after a break, without a limit of the caller
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
_CANNOT_STREAM = ("UnsupportedOperationError", "MethodNotFoundError")
Source = Callable[[], AsyncGenerator[tuple[str | None, Json]]]
T = TypeVar("T")


class Follower:
    """The view of one task. `last_id`: the id of the last event. `on_break` is called once for each
    break. `final`: the task at the end, or the message that the agent answered with."""

    def __init__(
        self,
        agent: RemoteAgent,
        *,
        poll_interval: float = 2.0,
        patience: float = PATIENCE,
        on_break: Callable[[ClientError], None] = lambda error: None,
    ) -> None:
        self._agent = agent
        self._poll_interval = poll_interval
        self._patience = patience
        self._on_break = on_break
        self._broken_since: float | None = None
        self._pause = FIRST_PAUSE
        self.snapshot = Snapshot()
        self.task_id: str | None = None
        self.context_id: str | None = None
        self.last_id: str | None = None
        self.known = asyncio.Event()  # set as soon as task_id is known
        self._over = False

    @property
    def final(self) -> Json:
        """The answer as a SendMessageResponse."""
        if self.snapshot.message is not None:
            return {"message": self.snapshot.message}
        return {"task": self.snapshot.task or {}}

    async def send(self, params: Json) -> AsyncGenerator[Json]:
        """The items of the stream of a send. Raises ClientError."""
        if self._agent.streams:
            begin = partial(self._agent.stream, bindings.STREAM, params)
            async with aclosing(self._follow(begin)) as items:
                async for item in items:
                    yield item
            return
        item = await self.start(params)
        yield item
        if not await self._is_over(item):
            async for item in self._poll():
                yield item

    async def start(self, params: Json) -> Json:
        """Send without waiting for the end of the task. The answer has `task` or `message`."""
        configuration = {**(params.get("configuration") or {}), "returnImmediately": True}
        params = {**params, "configuration": configuration}
        work = partial(self._agent.call, bindings.SEND, params)
        item: Json = await (self._retried(work) if self._agent.card.is_bridge else work())
        self._note(None, item)
        return item

    async def subscribe(self, task_id: str, after: str | None = None) -> AsyncGenerator[Json]:
        """The items of a subscription, after the event `after` if given. Raises ClientError."""
        self.task_id, self.last_id = task_id, after
        if not self._agent.streams:
            async for item in self._poll():
                yield item
            return
        async with aclosing(self._follow(self._resume)) as items:
            async for item in items:
                yield item

    async def poll(self, task_id: str) -> AsyncGenerator[Json]:
        """The task each time that it has changed."""
        self.task_id = task_id
        async for item in self._poll():
            yield item

    async def cancel(self) -> None:
        """Cancel the task. Raises ClientError."""
        await self._agent.call(bindings.CANCEL, {"id": self.task_id})

    # --- streams --------------------------------------------------------------------------------

    async def _follow(self, begin: Source) -> AsyncGenerator[Json]:
        source = begin
        while not self._over:
            try:
                async with aclosing(source()) as items:
                    async for event_id, item in items:
                        self._note(event_id, item)
                        yield item
                        if await self._is_over(item):
                            return
                # The server ended the stream: it stops, or the question has been answered.
                await self._wait_before_retry(ConnectionLost("the stream ended early"))
            except ConnectionLost as error:
                if self.task_id is None and not self._agent.card.is_bridge:
                    raise
                await self._wait_before_retry(error)
            except ClientError as error:
                if self.task_id is None or error.code not in _CANNOT_STREAM:
                    raise
                async for item in self._poll():
                    yield item
            source = self._resume if self.task_id else begin

    async def _resume(self) -> AsyncGenerator[tuple[str | None, Json]]:
        agent = self._agent
        if agent.binding.version == OLDEST and not agent.card.is_bridge:
            yield None, {"task": await self._get()}  # a stream of 0.3 begins with the next update
        params = {"id": self.task_id}
        async with aclosing(agent.stream(bindings.SUBSCRIBE, params, self.last_id)) as items:
            async for item in items:
                yield item

    def _note(self, event_id: str | None, item: Json) -> None:
        self._broken_since, self._pause = None, FIRST_PAUSE
        self.last_id = event_id or self.last_id
        self.snapshot.apply(item)
        task = self.snapshot.task or self.snapshot.message or {}
        self.task_id = task.get("id") or task.get("taskId") or self.task_id
        self.context_id = task.get("contextId") or self.context_id
        if self.task_id:
            self.known.set()

    async def _is_over(self, item: Json) -> bool:
        """Whether the task has ended or asks. A question in a resumed stream may be answered, so
        that the task itself decides."""
        if "message" in item:
            self._over = True
            return True
        current = item.get("task") or item.get("statusUpdate")
        if not current or state_of(current) not in TERMINAL | INTERRUPTED:
            return False
        try:
            task = await self._retried(self._get)
        except ConnectionLost:
            raise
        except ClientError:  # the server has forgotten the task
            self._over = True
            return True
        if state_of(task) in TERMINAL | INTERRUPTED:
            self.snapshot.apply({"task": task})
            self._over = True
        return self._over

    async def _get(self) -> Json:
        # Without the history, which can be much larger than the result.
        params = {"id": self.task_id, "historyLength": 0}
        task: Json = await self._agent.call(bindings.GET, params)
        return task

    # --- retries and polling --------------------------------------------------------------------

    async def _poll(self) -> AsyncGenerator[Json]:
        pause, shown = self._poll_interval, None
        while not self._over:
            task = await self._retried(self._get)
            if task != shown:
                shown, pause = task, self._poll_interval
                self._note(None, {"task": task})
                self._over = state_of(task) in TERMINAL | INTERRUPTED
                yield {"task": task}
                continue
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, max(self._poll_interval, 10.0))

    async def _retried(self, work: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                result = await work()
            except ConnectionLost as error:
                await self._wait_before_retry(error)
            else:
                self._broken_since, self._pause = None, FIRST_PAUSE
                return result

    async def _wait_before_retry(self, error: ConnectionLost) -> None:
        """Raises `error` if the connection is broken for too long."""
        now = asyncio.get_running_loop().time()
        if self._broken_since is None:
            self._broken_since = now
            self._on_break(error)
        if now - self._broken_since > self._patience:
            raise error
        await asyncio.sleep(self._pause * (0.5 + secrets.randbelow(500) / 1000))
        self._pause = min(2 * self._pause, LONGEST_PAUSE)


async def until_closed(agent: RemoteAgent, task_id: str, question: OpenQuestion) -> None:
    """Return when the question of the task is not open any more."""
    streams = agent.streams
    while True:
        try:
            if streams:
                async with aclosing(agent.stream(bindings.SUBSCRIBE, {"id": task_id})) as items:
                    async for _, item in items:
                        if _closes(item, question):
                            return
            elif _closes({"task": await agent.call(bindings.GET, {"id": task_id})}, question):
                return
        except ConnectionLost:
            pass
        except ClientError as error:
            if error.code not in _CANNOT_STREAM or not streams:
                return
            streams = False
        await asyncio.sleep(2.0)


def _closes(item: Json, question: OpenQuestion) -> bool:
    """Whether the question is not open after an item of a stream."""
    current = item.get("task") or item.get("statusUpdate")
    asked = question_of(current) if current else question
    return asked is None or asked.id != question.id


def params_of(message: Json, metadata: Any = None, **configuration: Any) -> Json:
    """The parameters of a send."""
    params: Json = {"message": message}
    if configuration:
        params["configuration"] = configuration
    if metadata:
        params["metadata"] = metadata
    return params
