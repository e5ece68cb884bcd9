"""The only writer of tasks: events happen to a task here, and their updates become visible here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from bridge.adapter.input import AdapterInput
from bridge.store.tasks import Record, TaskStore
from bridge.task.events import Answer, Answered, Event, Question
from bridge.task.state import StatusUpdate, Update
from bridge.task.text import bounded
from bridge.telemetry.audit import Audit

log = logging.getLogger(__name__)

OutputRead = tuple[str, int]
"""The id of a session, and the bytes of its output that the recorded events account for."""


class Recorder:
    """`on_status` gets the status updates of a task after their commit, `on_end` each task that
    has ended."""

    def __init__(
        self,
        store: TaskStore,
        audit: Audit,
        *,
        on_status: Callable[[Record, Sequence[StatusUpdate]], None],
        on_end: Callable[[Record], None],
    ) -> None:
        self._store = store
        self._audit = audit
        self._on_status = on_status
        self._on_end = on_end

    @property
    def durable(self) -> bool:
        """Whether another server can read the records."""
        return self._store.durable

    def record(
        self, record: Record, events: Sequence[Event], *, read: OutputRead | None = None
    ) -> None:
        """Let `events` happen to the task, up to its end. Their updates become visible after the
        commit. `read` is committed with them. Raises what Task.apply raises, after it has recorded
        the events before that."""
        task = record.task
        if task.state.terminal:
            log.debug("event after the end", extra={"task": task.id, "events": len(events)})
            return
        now = datetime.now(UTC)
        updates: list[Update] = []
        happened: list[Event] = []
        try:
            for event in events:
                if not task.state.terminal:
                    # An adapter gets its question back as it was.
                    one = event if isinstance(event, Question) else bounded(event)
                    updates += task.apply(one, now)
                    happened.append(one)
        finally:
            if happened:
                self._write(record, happened, updates, now, read)
        if task.state.terminal:
            self._on_end(record)

    def _write(
        self,
        record: Record,
        events: Sequence[Event],
        updates: Sequence[Update],
        now: datetime,
        read: OutputRead | None,
    ) -> None:
        if self._audit.active:
            self._audit.events(record.task, events)
        number = record.log.add(updates)
        if record.task.state.terminal:
            record.log.close()
        states = [update for update in updates if isinstance(update, StatusUpdate)]

        def committed() -> None:
            record.log.publish(number)
            if states:
                self._on_status(record, states)

        self._store.write(record, events, now, read, committed)

    def record_input(
        self,
        record: Record,
        given: AdapterInput,
        *,
        session_id: str | None,
        then: Callable[[], None],
    ) -> None:
        """Record that the adapter gets an input; `then` gives it, after the commit. `session_id`:
        None for a session that does not survive the server."""
        self._store.tell(session_id, given, record, then)

    def note_decision(self, record: Record, question: Question, answer: Answer) -> None:
        """Audit a question that the operator's rules answered."""
        self._audit.events(record.task, (question, Answered(answer)))

    def after_commit(self, then: Callable[[], None]) -> None:
        """Call `then` after the commit of all that was recorded; at once if that may take long."""
        self._store.when_durable(then)

    def slow_down(self, pause: Callable[[bool], None]) -> None:
        """If too much waits for its commit, call `pause(True)`, and `pause(False)` later."""
        if self._store.congested:
            pause(True)
            self._store.when_relieved(lambda: pause(False))
