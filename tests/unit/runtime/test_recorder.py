"""The recorder of tasks, over a store whose commits the test controls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from bridge.adapter.input import AdapterInput
from bridge.runtime.recorder import Recorder
from bridge.store.changes import Change, EventBatch, Fence, InputRecorded, OutputRead, TaskBegun
from bridge.store.handle import TaskHandle, TaskHandles
from bridge.store.memory import MemoryStore
from bridge.store.protocol import OnCommit, StoreError
from bridge.store.serialization import dump, load_events
from bridge.task.events import (
    Answered,
    Canceled,
    Done,
    Event,
    Question,
    Status,
    Text,
    ToolCall,
    bounded,
)
from bridge.task.state import StatusUpdate, Task
from bridge.task.transitions import IllegalTransition, TaskState
from bridge.telemetry.audit import NO_AUDIT

LARGE = {"content": "x" * 100_000}


class Controlled(MemoryStore):
    """Keeps the changes, and commits on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.appended: list[Change] = []
        self.congested = False
        self.relief: list[Callable[[], None]] = []
        self._waiting: list[OnCommit] = []

    def append(
        self, changes: Sequence[Change], *, fence: Fence | None, then: OnCommit | None = None
    ) -> None:
        self.appended += changes
        if then:
            self._waiting.append(then)

    def on_relief(self, call: Callable[[], None]) -> None:
        self.relief.append(call)

    def commit(self, error: StoreError | None = None) -> None:
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then(error)

    @property
    def written(self) -> list[list[Event]]:
        batches = [change for change in self.appended if isinstance(change, EventBatch)]
        return [load_events(batch.events) for batch in batches]


class ObservedRecorder:
    """A recorder, its store, and its calls about one task."""

    def __init__(self) -> None:
        self.store = Controlled()
        self.states: list[TaskState] = []
        self.ended: list[TaskHandle] = []
        self.lost: list[TaskHandle] = []
        self.recorder = Recorder(
            TaskHandles("a", self.store),
            NO_AUDIT,
            on_status=self._on_status,
            on_end=self.ended.append,
            on_lost=self.lost.append,
        )
        self.handle = TaskHandle(Task("t", "c", datetime.now(UTC)))

    def _on_status(self, handle: TaskHandle, updates: Sequence[StatusUpdate]) -> None:
        assert handle is self.handle
        self.states += [update.state for update in updates]

    def happen(self, *events: Event, **more: Any) -> None:
        self.recorder.record(self.handle, events, **more)


def test_an_update_is_visible_after_its_commit() -> None:
    one = ObservedRecorder()
    one.happen(Text("a"), Status("b"), read=OutputRead("session", 7))
    assert one.handle.task.state is TaskState.WORKING
    assert (one.handle.log.last, one.handle.log.visible, one.states) == (3, 0, [])
    one.store.commit()
    assert one.handle.log.visible == 3
    assert one.states == [TaskState.WORKING, TaskState.WORKING]
    assert one.store.written == [[Text("a"), Status("b")]]
    assert one.store.appended[-1] == OutputRead("session", 7)


def test_the_end_closes_the_log_and_nothing_happens_after_it() -> None:
    one = ObservedRecorder()
    one.happen(Canceled(), Text("late"))
    assert one.ended == [one.handle]
    assert not one.handle.log.closed  # its readers have not seen the end
    one.store.commit()
    assert one.handle.log.closed
    one.happen(Text("later"))
    assert one.store.written == [[Canceled()]]
    assert one.ended == [one.handle]


def test_events_before_an_illegal_one_are_recorded() -> None:
    one = ObservedRecorder()
    asked = Question("q", "text", "?")
    with pytest.raises(IllegalTransition):
        one.happen(Text("a"), Answered(cast(Any, None)), asked)
    assert one.store.written == [[Text("a")]]


def test_a_tool_value_is_cut_and_a_question_is_stored_as_it_was() -> None:
    one = ObservedRecorder()
    call = ToolCall("c", "Write", LARGE)
    asked = Question("q", "permission", "?", subject=LARGE)
    one.happen(call, asked)
    assert one.store.written == [[bounded(call), asked]]
    assert one.handle.task.question is asked
    published = one.handle.task.status
    assert published and published.event == bounded(asked)


def test_an_input_is_given_after_its_commit() -> None:
    one, given = ObservedRecorder(), AdapterInput("prompt", 0)
    said: list[str] = []
    one.recorder.record_input(one.handle, given, session_id="s", then=lambda: said.append("prompt"))
    one.recorder.after_commit(lambda: said.append("stop"))
    assert one.store.appended == [InputRecorded("s", dump(given)), TaskBegun("t")]
    assert said == []
    one.store.commit()
    assert said == ["prompt", "stop"]


def test_a_session_is_paused_while_too_much_waits_for_its_commit() -> None:
    one = ObservedRecorder()
    paused: list[bool] = []
    one.recorder.slow_down(paused.append)
    assert paused == []
    one.store.congested = True
    one.recorder.slow_down(paused.append)
    assert paused == [True]
    (relief,) = one.store.relief
    relief()
    assert paused == [True, False]


def test_status_listeners_hear_nothing_of_text_alone() -> None:
    one = ObservedRecorder()
    one.happen(Text("a"))
    one.store.commit()
    one.states.clear()
    one.happen(Text("b"))
    one.store.commit()
    assert one.states == []
    one.happen(Done())
    one.store.commit()
    assert one.states == [TaskState.COMPLETED]
