"""The listeners of tasks. A task without a listener may be canceled (BRIDGE_ON_DISCONNECT)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bridge.store.handle import TaskHandle

log = logging.getLogger(__name__)


class Listener:
    """A stream, or a request that waits. `left`: the client left before the answer ended."""

    left = False


class Audience:
    """Calls `gone` with an `attended` task if its last listener left and no client returned within
    `grace` seconds. The end of an answer by the server does not count as a client that left."""

    def __init__(self, grace: float, gone: Callable[[TaskHandle], None]) -> None:
        self._grace = grace
        self._gone = gone
        self._listening: dict[str, int] = {}
        self._leaving: dict[str, asyncio.TimerHandle] = {}
        self._closed = False

    @contextmanager
    def listen(self, handle: TaskHandle) -> Iterator[Listener]:
        """The context in which a client listens to the task."""
        task_id, listener = handle.task.id, Listener()
        self._stay(task_id)
        self._listening[task_id] = self._listening.get(task_id, 0) + 1
        try:
            yield listener
        finally:
            self._listening[task_id] -= 1
            if not self._listening[task_id]:
                del self._listening[task_id]
                if listener.left:
                    self.leave(handle)

    def change(self, grace: float) -> None:
        """Wait so many seconds for clients that leave from now on."""
        self._grace = grace

    def touch(self, handle: TaskHandle) -> None:
        """A client asked for the task: restart the time in which it must return."""
        if handle.task.id in self._leaving:
            self.leave(handle)

    def leave(self, handle: TaskHandle) -> None:
        """The last client stopped listening to the task: start the timer."""
        task_id = handle.task.id
        self._stay(task_id)
        if handle.elsewhere or self._closed:
            return
        if handle.task.attended and not handle.task.state.terminal:
            loop = asyncio.get_running_loop()
            self._leaving[task_id] = loop.call_later(self._grace, self._give_up, handle)

    def close(self) -> None:
        """Stop all timers. From now on, streams end because the server stops."""
        self._closed = True
        for task_id in list(self._leaving):
            self._stay(task_id)

    def _stay(self, task_id: str) -> None:
        timer = self._leaving.pop(task_id, None)
        if timer:
            timer.cancel()

    def _give_up(self, handle: TaskHandle) -> None:
        del self._leaving[handle.task.id]
        if not handle.task.state.terminal:
            log.info("the client of a task has gone", extra={"task": handle.task.id})
            self._gone(handle)
