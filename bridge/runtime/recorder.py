"""The only writer of tasks. It applies events to a task, and publishes their updates."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial

from bridge.adapter.input import AdapterInput
from bridge.store.changes import (
    Change,
    EventBatch,
    InputRecorded,
    OutputRead,
    TaskBegun,
    TaskCreated,
    TaskShown,
)
from bridge.store.handle import ENTRY, TaskHandle, TaskHandles
from bridge.store.protocol import StoreError
from bridge.store.serialization import dump, dump_events, micros
from bridge.task.events import BOUNDED, Answer, Answered, Event, Question, Text, bounded
from bridge.task.message import Message
from bridge.task.state import StatusUpdate, Update
from bridge.telemetry.audit import Audit
from bridge.telemetry.observation import TaskObserver

log = logging.getLogger(__name__)


class Recorder:
    """`on_status` gets the status updates of a task after their commit. `on_end` gets each task
    that has ended. `on_lost` gets each task with changes that the store rejected, because another
    server owns it. `observers` see each event when it is applied."""

    def __init__(
        self,
        tasks: TaskHandles,
        audit: Audit,
        *,
        on_status: Callable[[TaskHandle, Sequence[StatusUpdate]], None],
        on_end: Callable[[TaskHandle], None],
        on_lost: Callable[[TaskHandle], None],
        observers: Sequence[TaskObserver] = (),
    ) -> None:
        self._tasks = tasks
        self._store = tasks.store
        self._audit = audit
        self._on_status = on_status
        self._on_end = on_end
        self._on_lost = on_lost
        self._observers = observers

    @property
    def durable(self) -> bool:
        """Whether another server can read the records."""
        return self._store.durable

    def begin(
        self,
        handle: TaskHandle,
        prompt: Message,
        accepted: Sequence[Change] = (),
        *,
        hidden: bool = False,
    ) -> None:
        """Create the task, in one commit with the `accepted` changes. `hidden`: it may still become
        a direct Message, so other servers do not show it before this one does, or before output
        of another kind."""
        for observer in self._observers:
            observer.began(handle.task)
        written = dump(prompt)
        handle.size += len(written)
        handle.log.visible = -1
        self._tasks.add(handle)
        hidden = hidden and self._tasks.cluster is not None
        created = created_by(handle, written, hidden)
        if hidden:
            shown = [TaskShown(handle.task.id)]
            handle.reveal = partial(self._append, handle, shown, _nothing)
        self._append(handle, [created, *accepted], lambda: handle.log.publish(0))

    def record(
        self, handle: TaskHandle, events: Sequence[Event], *, read: OutputRead | None = None
    ) -> None:
        """Apply `events` to the task, up to its end. Their updates become visible after the commit.
        `read` is committed with them. Raises the errors of Task.apply, after it has recorded the
        events before the error."""
        task = handle.task
        if task.state.terminal or handle.lost:
            log.debug("event after the end", extra={"task": task.id, "events": len(events)})
            return
        now = datetime.now(UTC)
        updates: list[Update] = []
        happened: list[Event] = []
        try:
            for event in events:
                if not task.state.terminal:
                    # Most events are text. An adapter gets its question back unchanged.
                    large = type(event) in BOUNDED and not isinstance(event, Question)
                    one = bounded(event) if large else event
                    updates += task.apply(one, now)
                    happened.append(one)
        finally:
            if happened:
                self._write(handle, happened, updates, now, read)
        if task.state.terminal:
            self._on_end(handle)

    def _write(
        self,
        handle: TaskHandle,
        events: Sequence[Event],
        updates: Sequence[Update],
        now: datetime,
        read: OutputRead | None,
    ) -> None:
        task = handle.task
        if self._audit.active:
            handle.audited += self._audit.events(task, events)
        for observer in self._observers:
            if observer.texts or any(type(event) is not Text for event in events):
                observer.recorded(task, events, now)
        written = dump_events(events)
        size = len(written)
        number = handle.log.add(updates, ENTRY + size // (len(updates) or 1))
        ended = task.state.terminal
        if ended:
            handle.log.close()
        handle.batches += 1
        handle.size += size
        time = micros(now)
        states: Sequence[StatusUpdate] = ()
        batch = EventBatch(task.id, handle.batches, time, written, number)
        if task.status_time is now:  # one of the events has set the status
            states = [update for update in updates if isinstance(update, StatusUpdate)]
            batch = batch._replace(state=task.state, changed=time)
        changes: tuple[Change, ...] = (batch, read) if read else (batch,)
        if handle.reveal and task.reply is None:  # with the first output that is not a Message
            handle.reveal = None
            changes = (TaskShown(task.id), *changes)
        # A closure takes twice as many objects, which wait for the commit and cost collections.
        then = partial(self._committed, handle, number, states)
        self._store.append(changes, fence=handle.fence, then=then)

    def _committed(
        self,
        handle: TaskHandle,
        number: int,
        states: Sequence[StatusUpdate],
        error: StoreError | None,
    ) -> None:
        if error:
            self._reject(handle, error)
            return
        handle.log.publish(number)
        if states:
            self._on_status(handle, states)
            if states[-1].state.terminal:
                self._tasks.evict(handle)

    def _append(
        self, handle: TaskHandle, changes: Sequence[Change], then: Callable[[], None]
    ) -> None:
        def committed(error: StoreError | None) -> None:
            if error:
                self._reject(handle, error)
            else:
                then()

        self._store.append(changes, fence=handle.fence, then=committed)

    def _reject(self, handle: TaskHandle, error: StoreError) -> None:
        if not handle.lost:
            handle.lost = True
            handle.log.abandon()
            log.error("a task is lost", extra={"task": handle.task.id, "error": error})
            self._on_lost(handle)

    def record_input(
        self,
        handle: TaskHandle,
        given: AdapterInput,
        *,
        session_id: str | None,
        then: Callable[[], None],
    ) -> None:
        """Record an input of the adapter. `then` gives the input after the commit. `session_id`:
        None for a session that does not survive the server."""
        changes: list[Change] = []
        if session_id:
            changes.append(InputRecorded(session_id, dump(given)))
        if not handle.begun:
            handle.begun = True
            changes.append(TaskBegun(handle.task.id))
        self._append(handle, changes, then)

    def note_decision(self, handle: TaskHandle, question: Question, answer: Answer) -> None:
        """Audit a question that the operator's rules answered."""
        self._audit.events(handle.task, (question, Answered(answer)))

    def after_commit(self, then: Callable[[], None]) -> None:
        """Call `then` after the commit of all records; at once if a store problem may delay it."""
        if self._store.problem:
            then()
        else:
            self._store.append((), fence=None, then=lambda error: then())

    def slow_down(self, pause: Callable[[bool], None]) -> None:
        """If the queue of commits is too long, call `pause(True)` now and `pause(False)` later."""
        if self._store.congested:
            pause(True)
            self._store.on_relief(lambda: pause(False))


def created_by(handle: TaskHandle, prompt: bytes, hidden: bool = False) -> TaskCreated:
    """The change that creates the task of the handle. `hidden`: see TaskCreated."""
    task = handle.task
    return TaskCreated(
        task.id,
        handle.context,
        micros(task.created),
        prompt,
        thoughts=task.show_thoughts,
        attended=task.attended,
        hidden=hidden,
    )


def _nothing() -> None: ...
