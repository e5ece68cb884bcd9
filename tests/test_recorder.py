"""The recorder of tasks, over a store that commits when the test says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from bridge.adapter.input import AdapterInput
from bridge.runtime.recorder import Recorder
from bridge.store.tasks import Record, TaskStore
from bridge.task.events import Answered, Canceled, Done, Event, Question, Status, Text, ToolCall
from bridge.task.state import IllegalTransition, StatusUpdate, Task, TaskState
from bridge.task.text import bounded
from bridge.telemetry.audit import NO_AUDIT

LARGE = {"content": "x" * 100_000}


class Store:
    """Keeps what it gets, and commits on demand."""

    durable = True

    def __init__(self) -> None:
        self.written: list[tuple[Sequence[Event], object]] = []
        self.inputs: list[tuple[str | None, AdapterInput]] = []
        self.congested = False
        self.relief: list[Callable[[], None]] = []
        self._waiting: list[Callable[[], None]] = []

    def write(
        self,
        record: Record,
        events: Sequence[Event],
        now: datetime,
        session: object,
        then: Callable[[], None],
    ) -> None:
        self.written.append((list(events), session))
        self._waiting.append(then)

    def tell(
        self,
        session_id: str | None,
        told: AdapterInput,
        record: Record,
        then: Callable[[], None],
    ) -> None:
        self.inputs.append((session_id, told))
        self._waiting.append(then)

    def when_durable(self, then: Callable[[], None]) -> None:
        self._waiting.append(then)

    def when_relieved(self, then: Callable[[], None]) -> None:
        self.relief.append(then)

    def commit(self) -> None:
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()


class Watched:
    """A recorder, its store, and its calls about one task."""

    def __init__(self) -> None:
        self.store = Store()
        self.states: list[TaskState] = []
        self.ended: list[Record] = []
        self.recorder = Recorder(
            cast(TaskStore, self.store),
            NO_AUDIT,
            on_status=self._on_status,
            on_end=self.ended.append,
        )
        self.record = Record(Task("t", "c", datetime.now(UTC)))

    def _on_status(self, record: Record, updates: Sequence[StatusUpdate]) -> None:
        assert record is self.record
        self.states += [update.state for update in updates]

    def happen(self, *events: Event, **more: Any) -> None:
        self.recorder.record(self.record, events, **more)


def test_an_update_is_visible_after_its_commit() -> None:
    one = Watched()
    one.happen(Text("a"), Status("b"), read=("session", 7))
    assert one.record.task.state is TaskState.WORKING
    assert (one.record.log.last, one.record.log.visible, one.states) == (3, 0, [])
    one.store.commit()
    assert one.record.log.visible == 3
    assert one.states == [TaskState.WORKING, TaskState.WORKING]
    assert one.store.written == [([Text("a"), Status("b")], ("session", 7))]


def test_the_end_closes_the_log_and_nothing_happens_after_it() -> None:
    one = Watched()
    one.happen(Canceled(), Text("late"))
    assert one.ended == [one.record]
    assert not one.record.log.closed  # its readers have not seen the end
    one.store.commit()
    assert one.record.log.closed
    one.happen(Text("later"))
    assert [events for events, _ in one.store.written] == [[Canceled()]]
    assert one.ended == [one.record]


def test_events_before_an_illegal_one_are_recorded() -> None:
    one = Watched()
    asked = Question("q", "text", "?")
    with pytest.raises(IllegalTransition):
        one.happen(Text("a"), Answered(cast(Any, None)), asked)
    assert [events for events, _ in one.store.written] == [[Text("a")]]


def test_a_tool_value_is_cut_and_a_question_is_stored_as_it_was() -> None:
    one = Watched()
    call = ToolCall("c", "Write", LARGE)
    asked = Question("q", "permission", "?", subject=LARGE)
    one.happen(call, asked)
    assert one.store.written == [([bounded(call), asked], None)]
    assert one.record.task.question is asked
    published = one.record.task.status
    assert published and published.event == bounded(asked)


def test_an_input_is_given_after_its_commit() -> None:
    one, given = Watched(), AdapterInput("prompt", 0)
    said: list[str] = []
    one.recorder.record_input(one.record, given, session_id="s", then=lambda: said.append("prompt"))
    one.recorder.after_commit(lambda: said.append("stop"))
    assert (one.store.inputs, said) == ([("s", given)], [])
    one.store.commit()
    assert said == ["prompt", "stop"]


def test_a_session_is_paused_while_too_much_waits_for_its_commit() -> None:
    one = Watched()
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
    one = Watched()
    one.happen(Text("a"))
    one.store.commit()
    one.states.clear()
    one.happen(Text("b"))
    one.store.commit()
    assert one.states == []
    one.happen(Done())
    one.store.commit()
    assert one.states == [TaskState.COMPLETED]
