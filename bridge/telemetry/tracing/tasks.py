"""The spans of the tasks of one agent: an observer of their events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime

from bridge.task.events import Event
from bridge.task.state import Task
from bridge.telemetry.tracing.content import Content
from bridge.telemetry.tracing.context import TraceContext, traced
from bridge.telemetry.tracing.spans import Emit
from bridge.telemetry.tracing.turns import TracedAgent, TurnSpans

log = logging.getLogger(__name__)

MOST_TURNS = 20_000  # that are followed; the end of a lost task is not seen
Journal = Callable[[str], AsyncIterator[tuple[Sequence[Event], datetime]]]
"""The committed events of a task from its begin, each batch with its time."""


class TaskSpans:
    """Observes the tasks of an agent. The spans of a task of an earlier server are made at its end,
    from `journal`."""

    def __init__(
        self, agent: TracedAgent, emit: Emit, journal: Journal, content: Content | None = None
    ) -> None:
        self.agent = agent
        self.texts = content is not None
        self._emit = emit
        self._journal = journal
        self._content = content
        self._turns: dict[str, TurnSpans] = {}
        self._reading: set[asyncio.Task[None]] = set()

    def began(self, task: Task) -> None:
        context = traced(task)
        if context and context.sampled:
            if len(self._turns) >= MOST_TURNS:
                del self._turns[next(iter(self._turns))]
            self._turns[task.id] = TurnSpans(
                self.agent, task, context, self._emit, content=self._content
            )

    def recorded(self, task: Task, events: Sequence[Event], time: datetime) -> None:
        turn = self._turns.get(task.id)
        if turn and turn.task is task:
            turn.apply(events, time)
        elif task.state.terminal:
            self.restore(task)
        if turn and task.state.terminal:
            del self._turns[task.id]

    def restore(self, task: Task) -> None:
        """Make the spans of an ended task from its stored events."""
        context = traced(task)
        if context and context.sampled:
            reading = asyncio.create_task(self._read(task, context))
            self._reading.add(reading)  # the loop holds only weak references
            reading.add_done_callback(self._reading.discard)

    async def _read(self, task: Task, context: TraceContext) -> None:
        turn = TurnSpans(
            self.agent, task, context, self._emit, content=self._content, restored=True
        )
        try:
            async for events, time in self._journal(task.id):
                turn.apply(events, time)
        except Exception as error:  # the store cannot be read, or the task was removed
            log.warning("a trace is incomplete", extra={"task": task.id, "error": error})

    async def settle(self, within: float) -> None:
        """Wait for the spans of restored tasks, for this time in seconds."""
        if self._reading:
            await asyncio.wait(self._reading, timeout=within)
