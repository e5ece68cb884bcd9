"""The task: its table of states, and the updates of each event."""

from __future__ import annotations

import dataclasses
import random
import re
import typing
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from bridge.a2a.codecs import CODECS
from bridge.task.artifact import LAST_WORDS, ArtifactUpdate
from bridge.task.events import (
    ENDINGS,
    AgentEvent,
    Answer,
    Answered,
    ArtifactChunk,
    Canceled,
    Done,
    Event,
    Failed,
    FileChange,
    Interrupted,
    NotUnderstood,
    Option,
    Plan,
    PlanEntry,
    Prompted,
    Question,
    QuestionWithdrawn,
    Queued,
    Rejected,
    Reply,
    Retracted,
    Started,
    Status,
    Steered,
    Text,
    Thought,
    TimedOut,
    ToolCall,
    ToolResult,
    Usage,
    bounded,
    merge_text,
)
from bridge.task.message import Message, Role, TextPart
from bridge.task.render import history, status_message, status_metadata, task_metadata
from bridge.task.state import WORDLESS, StatusUpdate, Task, Update
from bridge.task.transitions import TRANSITIONS, IllegalTransition, TaskState
from tests import CHECKOUT
from tests.support.cases import each
from tests.support.diagram import edges, mermaid
from tests.support.samples import SAMPLES, YES, answer, ask, client, some_event

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
DESIGN = CHECKOUT / "docs" / "design.md"
EVENTS: tuple[type, ...] = typing.get_args(Event)
TERMINAL = {TaskState.COMPLETED, TaskState.CANCELED, TaskState.FAILED, TaskState.REJECTED}


def task(*events: Event, show_thoughts: bool = False) -> Task:
    made = Task("t", "c", NOW, show_thoughts=show_thoughts)
    made.history.append(Message("m", Role.USER, (TextPart("go"),), "t", "c"))
    apply(made, *events)
    return made


def apply(to: Task, *events: Event) -> list[Update]:
    return [update for event in events for update in to.apply(bounded(event), NOW)]


def statuses(updates: Iterable[Update]) -> list[StatusUpdate]:
    return [update for update in updates if isinstance(update, StatusUpdate)]


def chunks(updates: Iterable[Update]) -> list[ArtifactUpdate]:
    return [update for update in updates if isinstance(update, ArtifactUpdate)]


def states(updates: Iterable[Update]) -> list[TaskState]:
    return [update.state for update in statuses(updates)]


def shown(update: Update | None) -> Message:
    """The message of a status, as clients get it."""
    assert isinstance(update, StatusUpdate)
    message = status_message(Task("t", "c", NOW), update)
    assert message
    return message


def said(update: Update) -> str:
    return shown(update).text.removesuffix("\n")


def data(update: Update) -> Any:
    """The facts of a status, for programs."""
    return shown(update).facts


def metadata(update: Update) -> Any:
    assert isinstance(update, StatusUpdate)
    return status_metadata(update)


def texts(parts: Sequence[Any]) -> list[str]:
    return [part.text for part in parts if isinstance(part, TextPart)]


# --- the table -----------------------------------------------------------------------------------


def test_every_state_has_a_row_and_only_events_are_in_it() -> None:
    assert set(TRANSITIONS) == set(TaskState)
    for exits in TRANSITIONS.values():
        assert set(exits) <= set(EVENTS)


def test_exactly_the_four_terminal_states_have_no_exits() -> None:
    assert {state for state in TaskState if not TRANSITIONS[state]} == TERMINAL
    assert {state for state in TaskState if state.terminal} == TERMINAL


def test_every_state_can_be_reached() -> None:
    reached = {TaskState.SUBMITTED}
    for _ in TaskState:
        reached |= {target for source, target in edges() if source in reached}
    assert reached == set(TaskState)


def test_all_endings_lead_out_of_every_open_state() -> None:
    for state in set(TaskState) - TERMINAL:
        for ending in ENDINGS:
            assert set(TRANSITIONS[state][ending]) <= TERMINAL


@each("state", [TaskState.SUBMITTED, TaskState.WORKING])
def test_every_event_but_an_answer_can_happen_to_a_working_task(state: TaskState) -> None:
    answers_a_question = {Answered, NotUnderstood}
    assert set(EVENTS) - set(TRANSITIONS[state]) == answers_a_question


@each("state", [TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED])
def test_every_event_can_happen_while_a_question_is_open(state: TaskState) -> None:
    assert set(EVENTS) - set(TRANSITIONS[state]) == {
        Queued,
        Steered,
    }  # it has a slot; a message is the answer


def test_the_diagram_in_the_docs_is_the_table() -> None:
    text = DESIGN.read_text(encoding="utf-8")
    found = re.search(r"<!-- states -->\n(.*?)\n?<!-- /states -->", text, re.DOTALL)
    assert found, "docs/design.md has no block <!-- states -->"
    assert found[1].strip() == mermaid(), "to update it: .venv/bin/python -m tests.support.diagram"


# --- text ----------------------------------------------------------------------------------------


def test_the_answer_is_one_artifact_that_grows() -> None:
    one = task()
    updates = apply(one, Text("a"), Text("b"), Text("c", new_block=True))
    assert states(updates) == [TaskState.WORKING]
    assert [chunk.append for chunk in chunks(updates)] == [False, True, True]
    assert [chunk.artifact_id for chunk in chunks(updates)] == ["assistant-response"] * 3
    assert "".join(texts([part for chunk in chunks(updates) for part in chunk.parts])) == "ab\n\nc"
    assert one.artifacts["assistant-response"].parts == [TextPart("ab"), TextPart("\n\nc")]


@each(
    ("before", "after"), [("a", "\n\nb"), ("a\n", "b"), ("a\n\n", "b"), ("a ", "\n\nb"), ("", "b")]
)
def test_a_blank_line_parts_two_blocks_where_the_first_ends_in_no_newline(
    before: str, after: str
) -> None:
    updates = apply(task(Text(before)), Text("b", new_block=True), Text("c"))
    assert [texts(chunk.parts) for chunk in chunks(updates)] == [[after], ["c"]]


def test_a_long_text_that_is_dropped_leaves_the_same_updates_and_the_same_last_words() -> None:
    one, lean = task(Text("a" * LAST_WORDS), Text("b")), task(Text("a" * LAST_WORDS), Text("b"))
    lean.drop_content()
    for event in (Text("c", new_block=True), Status("x"), Text("d" * 9), Text("e" * LAST_WORDS)):
        assert apply(one, event) == apply(lean, event)
        lean.drop_content()
    assert apply(one, Done()) == apply(lean, Done())
    assert shown(one.status).text == "[…] " + "e" * LAST_WORDS


@each("before", ["", "x", "x\n", "x\n\n \n"])
@each("after", ["", "\n", " \n\n"])
@each("size", [LAST_WORDS - 1, LAST_WORDS, LAST_WORDS + 1])
def test_white_space_around_dropped_text_leaves_the_same_last_words(
    before: str, after: str, size: int
) -> None:
    whole, lean = task(Text(before + "e" * size + after)), task(Text(before + "e" * size + after))
    lean.drop_content()
    assert apply(whole, Done()) == apply(lean, Done())


def test_the_answer_is_closed_before_the_end() -> None:
    one = task(Text("a"))
    last_chunk, end = apply(one, Done())
    assert last_chunk == ArtifactUpdate(
        "assistant-response",
        (TextPart(""),),
        "Assistant response",
        append=True,
        last_chunk=True,
    )
    assert isinstance(end, StatusUpdate)
    assert one.artifacts["assistant-response"].parts == [TextPart("a")]


def test_reading_an_artifact_does_not_change_it() -> None:
    one = task(Text("a"), Text("b"))
    artifact = one.artifacts["assistant-response"]
    assert artifact.parts == [TextPart("ab")]
    assert artifact.parts == [TextPart("ab")]
    apply(one, Text("c"))
    assert artifact.parts == [TextPart("abc")]


@each(
    ("length", "left"),
    [
        (1, ["ab", "\n\nc"]),
        (2, ["ab"]),
        (3, ["a"]),
        (4, []),
        (99, []),
    ],
)
def test_retracted_text_does_not_count(length: int, left: list[str]) -> None:
    one = task(Text("ab"), Text("cd", new_block=True))
    (update,) = apply(one, Retracted(length))
    assert isinstance(update, ArtifactUpdate)
    assert not update.append  # the artifact is replaced as a whole
    assert texts(update.parts) == (left or [""])
    assert texts(one.artifacts["assistant-response"].parts) == left


def test_text_continues_after_a_retraction() -> None:
    one = task(Text("ab"), Retracted(1), Text("x"))
    assert texts(one.artifacts["assistant-response"].parts) == ["ax"]


def test_text_after_a_block_that_was_retracted_is_a_block() -> None:
    one = task(Text("ab"), Text("cd", new_block=True), Retracted(2), Text("x"))
    assert texts(one.artifacts["assistant-response"].parts) == ["ab", "\n\nx"]


def test_nothing_is_retracted_where_nothing_was_said() -> None:
    assert chunks(apply(task(), Retracted(5))) == []


def test_the_words_of_a_sub_agent_are_kept_apart() -> None:
    one = task(Text("mine"), Text("its", parent="call-1"), Text(" own"))
    assert {name: texts(artifact.parts) for name, artifact in one.artifacts.items()} == {
        "assistant-response": ["mine own"],
        "subagent-call-1": ["its"],
    }
    closed = {chunk.artifact_id for chunk in chunks(apply(one, Done())) if chunk.last_chunk}
    assert closed == {"assistant-response", "subagent-call-1"}


def test_a_retraction_does_not_touch_a_sub_agents_words() -> None:
    one = task(Text("mine"), Text("its", parent="call-1"), Retracted(9))
    assert texts(one.artifacts["subagent-call-1"].parts) == ["its"]
    assert texts(one.artifacts["assistant-response"].parts) == []


def test_pieces_are_merged_without_losing_a_byte_or_a_border() -> None:
    events: list[AgentEvent] = [
        Text("a"),
        Text("b"),
        Text("c", new_block=True),
        Text("d"),
        Text("e", parent="p"),
        Text("f", parent="p"),
        Thought("g"),
        Thought("h"),
        Text("i"),
    ]
    assert merge_text(events) == [
        Text("ab"),
        Text("cd", new_block=True),
        Text("ef", parent="p"),
        Thought("gh"),
        Text("i"),
    ]


# --- other artifacts -----------------------------------------------------------------------------


def chunk(text: str, *, append: bool = False, last_chunk: bool = True) -> ArtifactChunk:
    parts = (TextPart(text),)
    return ArtifactChunk("x", parts, "X", "some x", append, last_chunk, {"k": 1})


def test_an_artifact_is_passed_on_as_it_is() -> None:
    one = task()
    _, update = apply(one, chunk("a"))
    assert update == ArtifactUpdate("x", (TextPart("a"),), "X", "some x", False, True, {"k": 1})
    stored = one.artifacts["x"]
    assert (stored.name, stored.description, stored.metadata) == ("X", "some x", {"k": 1})
    assert chunks(apply(one, Done())) == []  # it said itself that it is complete


def test_an_artifact_is_appended_to_or_replaced() -> None:
    one = task(chunk("a"), chunk("b", append=True))
    assert one.artifacts["x"].parts == [TextPart("a"), TextPart("b")]
    apply(one, chunk("c"))
    assert one.artifacts["x"].parts == [TextPart("c")]


def test_a_part_that_cannot_be_appended_begins_an_artifact() -> None:
    (update,) = chunks(apply(task(), chunk("a", append=True)))
    assert not update.append


# --- progress ------------------------------------------------------------------------------------


def test_the_first_event_sets_the_task_to_work_and_tells_the_session() -> None:
    one = task()
    (update,) = apply(one, Started("s", "model", "2.1", "plan"))
    facts = {"sessionId": "s", "model": "model", "cliVersion": "2.1", "mode": "plan"}
    assert update == StatusUpdate(TaskState.WORKING, NOW, Started("s", "model", "2.1", "plan"))
    assert metadata(update) == task_metadata(one) == {"bridge": facts}
    apply(one, Started("s2"))
    assert task_metadata(one) == {"bridge": {**facts, "sessionId": "s2"}}


def test_a_tool_call_has_one_line_of_text_and_its_data() -> None:
    (update,) = apply(task(), ToolCall("c1", "Bash", {"command": "make"}))
    assert said(update) == "Using tool: Bash"
    assert data(update) == {
        "type": "tool_call",
        "id": "c1",
        "name": "Bash",
        "status": "running",
        "input": {"command": "make"},
    }


@each(
    ("result", "text", "status"),
    [
        (ToolResult("c1", "hi\nthere", name="Bash"), "Tool Bash finished: hi there", "completed"),
        (ToolResult("c1", "no", True, "Bash"), "Tool Bash failed: no", "failed"),
        (ToolResult("c1", {"a": 1}), "Tool c1 finished", "completed"),
        (ToolResult("c1", "  \n"), "Tool c1 finished", "completed"),
    ],
)
def test_a_tool_result_says_how_it_went(result: ToolResult, text: str, status: str) -> None:
    (update,) = apply(task(), result)
    assert said(update) == text
    assert data(update)["status"] == status
    assert data(update)["output"] == result.output


def test_a_tool_of_a_sub_agent_names_its_parent() -> None:
    (call,) = apply(task(), ToolCall("c2", "Bash", {}, parent="c1"))
    (result,) = apply(task(), ToolResult("c2", "", parent="c1"))
    assert data(call)["parentId"] == data(result)["parentId"] == "c1"


def test_changed_files_come_with_the_result_of_the_tool() -> None:
    change = FileChange("/w/a", "create", "+a\n")
    (update,) = apply(task(), ToolResult("c1", "ok", changes=(change,)))
    assert data(update)["changes"] == [{"path": "/w/a", "kind": "create", "diff": "+a\n"}]


@each(
    "event",
    [
        ToolCall("c", "n" * 500, {}),
        ToolResult("c", "o" * 500),
        ToolResult("c", "\x1b[31m" + "o " * 500, True),
        Status("s" * 500),
        Plan((PlanEntry("p" * 500, "pending"),)),
    ],
)
def test_a_status_text_has_at_most_200_characters_in_one_line(event: Event) -> None:
    (update,) = apply(task(), event)
    assert len(said(update)) <= 200
    assert "\n" not in said(update)
    assert "\x1b" not in said(update)


def test_large_data_is_cut_and_said_to_be() -> None:
    value = {"content": "x" * 100_000, "path": "/w/a"}
    size = len(orjson.dumps(value))
    (call,) = apply(task(), ToolCall("c", "Write", value))
    assert data(call)["truncated"] == {"input": size}
    assert data(call)["input"]["path"] == "/w/a"  # what is small survives
    assert len(orjson.dumps(data(call))) < 20_000
    (result,) = apply(task(), ToolResult("c", ["y" * 3000] * 100))
    assert data(result)["truncated"]["output"] > 300_000
    assert len(orjson.dumps(data(result))) < 20_000


def test_a_plan_says_how_far_it_is() -> None:
    entries = (PlanEntry("a", "completed"), PlanEntry("b", "pending"))
    (update,) = apply(task(), Plan(entries))
    assert said(update) == "Plan: 1 of 2 done"
    assert data(update) == {
        "type": "plan",
        "entries": [
            {"text": "a", "status": "completed"},
            {"text": "b", "status": "pending"},
        ],
    }


def test_thoughts_are_hidden_unless_they_are_wanted() -> None:
    assert apply(task(), Thought("hm")) == []
    (update,) = apply(task(show_thoughts=True), Thought("hm"))
    assert said(update) == "hm"
    assert data(update) == {"type": "thought", "text": "hm"}


# --- questions -----------------------------------------------------------------------------------


def test_a_question_is_asked_in_words_and_in_data() -> None:
    no = Option("no", "No", "reject_once")
    asked = Question("q", "permission", "May I?", (YES, no), {"name": "Bash"})
    one = task()
    (update,) = apply(one, asked)
    assert states([update]) == [TaskState.INPUT_REQUIRED]
    assert said(update) == 'May I?\nReply with exactly one of: "Yes", "No".'
    assert data(update) == {
        "type": "question",
        "questionId": "q",
        "kind": "permission",
        "options": [
            {"id": "yes", "name": "Yes", "kind": "allow_once"},
            {"id": "no", "name": "No", "kind": "reject_once"},
        ],
        "freeText": False,
        "multiple": False,
        "subject": {"name": "Bash"},
    }
    assert one.question is asked


def test_a_question_says_until_when_it_waits_and_what_happens_then() -> None:
    no = Option("no", "No", "reject_once", "and tell it why")
    one = task()
    (update,) = apply(one, Question("q", "permission", "May I?", (YES, no), patience=90.5))
    assert (data(update)["until"], data(update)["then"]) == ("2026-01-02T03:05:35.500Z", "deny")
    assert data(update)["options"][1]["description"] == "and tell it why"
    assert "\n- No: and tell it why\n" in said(update)
    again = NotUnderstood(Message("m", Role.USER, (TextPart("eh"),)), "Not understood.")
    (update,) = one.apply(again, NOW + timedelta(seconds=60))
    assert isinstance(update, StatusUpdate)
    assert data(update)["until"] == "2026-01-02T03:05:35.500Z"
    (update,) = apply(task(), Question("q", "text", "Which?", free_text=True, patience=60))
    assert data(update)["then"] == "end"
    (update,) = apply(task(), Question("q", "text", "Which?", free_text=True))
    assert not {"until", "then"} & data(update).keys()


def test_one_refusal_closes_all_questions_of_a_form() -> None:
    no = Option("no", "No", "reject_once")
    form = [Question(name, "text", name, (YES, no), form="f") for name in "abc"]
    one = task()
    apply(one, *form, Question("d", "text", "d"))
    apply(one, Answered(Answer("a", "yes", (YES,))))
    assert [question.id for question in one.questions] == ["b", "c", "d"]
    apply(one, Answered(Answer("b", "no", (no,))))
    assert [question.id for question in one.questions] == ["d"]


def test_a_subject_that_is_too_large_stays_an_object() -> None:
    given = {f"m{number}": "x" * 3_000 for number in range(100)}
    for subject in (
        {"name": "Bash", "input": given},
        {"name": "Bash", "input": ["y" * 90] * 9_000},
    ):
        (update,) = apply(task(), Question("q", "permission", "?", subject=subject))
        assert data(update)["subject"]["name"] == "Bash"
        assert len(orjson.dumps(data(update))) < 20_000


def test_nothing_in_a_question_can_hide_anything_else() -> None:
    text = "run: echo \x1b]0;rm -rf /\x07 \x1b[8mhidden\x1b[0m \u202eback"
    (update,) = apply(task(), Question("q", "permission", text))
    shown = said(update)
    assert "rm -rf /" in shown
    assert not re.search(r"[\x1b\x07\u202e]", shown)
    assert shown.count("\ufffd") == 5


def test_a_question_that_is_too_long_says_how_much_is_missing() -> None:
    (update,) = apply(task(), Question("q", "permission", "x" * 9000))
    assert said(update).endswith("… (1000 more characters are not shown)")


def test_a_large_subject_is_cut_and_said_to_be() -> None:
    asked = Question("q", "permission", "?", subject={"input": "x" * 50_000})
    (update,) = apply(task(), asked)
    assert data(update)["truncated"]["subject"] > 50_000


def test_a_login_is_waited_for_in_a_state_of_its_own() -> None:
    one = task()
    assert states(apply(one, ask("login", "auth"))) == [TaskState.AUTH_REQUIRED]
    assert states(apply(one, answer("login"))) == [TaskState.WORKING]


def test_questions_are_asked_one_after_the_other() -> None:
    one = task(ask("q1"))
    assert apply(one, ask("q2"), ask("login", "auth")) == []
    (second,) = apply(one, answer("q1"))
    assert said(second).startswith("q2?")
    (third,) = apply(one, answer("q2"))
    assert states([third]) == [TaskState.AUTH_REQUIRED]
    assert states(apply(one, answer("login"))) == [TaskState.WORKING]
    assert one.question is None


def test_a_withdrawn_question_need_not_be_answered() -> None:
    one = task(ask("q1"), ask("q2"))
    assert apply(one, QuestionWithdrawn("q2")) == []  # it had not been asked yet
    assert states(apply(one, QuestionWithdrawn("q1"))) == [TaskState.WORKING]


def test_withdrawing_a_closed_question_has_no_effect() -> None:
    one = task(ask("q1"))
    assert apply(one, QuestionWithdrawn("other")) == []
    assert one.state is TaskState.INPUT_REQUIRED
    working = task(Text("a"))
    assert apply(working, QuestionWithdrawn("other")) == []


def test_progress_waits_while_a_question_is_open_and_keeps_its_order() -> None:
    one = task(ask("q1"), ask("q2"))
    calls = [ToolCall(str(number), "Read", {}) for number in range(3)]
    assert apply(one, calls[0], Status("s"), calls[1]) == []
    assert states(apply(one, answer("q1"))) == [TaskState.INPUT_REQUIRED]
    assert apply(one, calls[2]) == []
    go_on, *held = apply(one, answer("q2"))
    assert states([go_on]) == [TaskState.WORKING]
    assert [said(update) for update in held] == [
        "Using tool: Read",
        "s",
        "Using tool: Read",
        "Using tool: Read",
    ]
    ids = [data(update)["id"] for update in held if "tool" in said(update)]
    assert ids == ["0", "1", "2"]
    assert states(apply(one, Done())) == [TaskState.COMPLETED]  # none of it is told again


def test_text_does_not_wait_and_does_not_answer_the_question() -> None:
    one = task(ask())
    updates = apply(one, Text("meanwhile"), chunk("x"))
    assert statuses(updates) == []
    assert len(chunks(updates)) == 2
    assert one.state is TaskState.INPUT_REQUIRED


def test_held_progress_is_shown_when_the_turn_ends() -> None:
    one = task(ask(), ToolCall("c", "Read", {}))
    tool, end = apply(one, Canceled())
    assert said(tool) == "Using tool: Read"
    assert states([end]) == [TaskState.CANCELED]
    assert one.question is None


def test_a_value_that_is_not_understood_is_asked_again_with_a_hint() -> None:
    one = task(ask())
    (update,) = apply(one, NotUnderstood(client("perhaps"), "Say yes or no."))
    assert states([update]) == [TaskState.INPUT_REQUIRED]
    assert said(update) == 'Say yes or no.\nq?\nReply with exactly one of: "Yes".'
    assert one.question is not None


# --- history -------------------------------------------------------------------------------------


def test_history_has_everything_that_was_said_in_order() -> None:
    one = task(Status("first"), ask(), NotUnderstood(client("what?", "b"), "Yes or no."), answer())
    apply(one, Status("last"), Done("bye"))
    spoken = [
        (message.role.value, message.text.partition("\n")[0]) for message in history(one, None)
    ]
    assert spoken == [
        ("user", "go"),
        ("agent", "first"),
        ("agent", "q?"),
        ("user", "what?"),
        ("agent", "Yes or no."),
        ("user", "yes"),
        ("agent", "last"),
        ("agent", "bye"),
    ]


def test_a_message_on_progress_is_history_when_the_next_status_takes_its_place() -> None:
    one = task(Status("first"))
    assert [message.text for message in history(one, None)] == ["go"]
    apply(one, Status("second"))
    assert [message.text for message in history(one, None)] == ["go", "first\n"]


@each("event", [ask(), ask(kind="auth"), Done("c"), Failed("d"), Canceled()])
def test_a_question_and_the_end_are_history_at_once(event: Event) -> None:
    one = task(event)
    assert one.history[-1] is one.status
    assert len(one.history) == 2


def test_all_messages_belong_to_the_task_and_have_ids_of_their_own() -> None:
    one = task(Status("a"), ask(), answer(), Status("b"), Done("c"))
    told = history(one, None)
    assert {(message.task_id, message.context_id) for message in told} == {("t", "c")}
    assert len({message.id for message in told}) == len(told) == 6


# --- the end -------------------------------------------------------------------------------------


def test_the_last_update_has_the_usage_and_the_details_of_the_cli() -> None:
    used = Usage(1, 2, 3, 0.5, {"cacheReadTokens": 0})
    one = task(Text("a"), used)
    closing, end = apply(one, Done(details={"turns": 2}))
    assert closing == ArtifactUpdate(
        "assistant-response", (TextPart(""),), "Assistant response", append=True, last_chunk=True
    )
    tokens = {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3}
    facts = {**tokens, "costUsd": 0.5, "cacheReadTokens": 0}
    assert metadata(end) == {"usage": facts, "bridge": {"result": {"turns": 2}}}


@each(
    ("events", "done", "last", "answered"),
    [
        ([Text("a"), Text("b", new_block=True)], Done(), "b", "a\n\nb"),
        ([Text("a"), Text(" b "), ToolCall("c", "Bash", {})], Done(), "a b", "a b "),
        ([Text("a"), Text("b", new_block=True)], Done(summary="b"), "b", "a\n\nb"),
        ([Text("a"), Text("note", new_block=True)], Done(summary="a"), "a", "a\n\nnote"),
        ([Text("a")], Done("thanks"), "a\n\nthanks", "a"),
        ([Text("a")], Done("a"), "a", "a"),
        ([], Done("thanks"), "thanks", "thanks"),
        ([], Done(summary="42"), "42", "42"),
        ([Text(" ")], Done(summary="42"), "42", " \n\n42"),
        ([Text("its", parent="p")], Done("thanks"), "thanks", "thanks"),
    ],
)
def test_the_last_words_are_in_the_final_status_and_in_the_artifact(
    events: list[Event], done: Done, last: str, answered: str
) -> None:
    one = task(*events)
    updates = apply(one, done)
    assert said(updates[-1]) == last
    assert "".join(texts(one.artifacts["assistant-response"].parts)) == answered
    closing = [chunk for chunk in chunks(updates) if chunk.artifact_id == "assistant-response"]
    assert [chunk.last_chunk for chunk in closing] == [False] * (len(closing) - 1) + [True]


def test_a_turn_without_a_word_says_so() -> None:
    one = task(ToolCall("c", "Bash", {}))
    (end,) = apply(one, Done(summary=" "))
    assert isinstance(end, StatusUpdate)
    message = status_message(one, end)
    assert message and message.text == WORDLESS
    assert not one.artifacts


@each("event", [ArtifactChunk("a", (TextPart("words"),)), Status("words")])
def test_a_turn_whose_words_are_elsewhere_ends_without_a_message(event: Event) -> None:
    one = task(event)
    end = apply(one, Done())[-1]
    assert isinstance(end, StatusUpdate)
    assert status_message(one, end) is None


@each(
    ("event", "state", "reason"),
    [
        (Failed("broke", "exit"), TaskState.FAILED, "exit"),
        (TimedOut("late"), TaskState.FAILED, "timeout"),
        (Interrupted("bye"), TaskState.FAILED, "shutdown"),
        (Rejected("no"), TaskState.REJECTED, None),
        (Canceled(), TaskState.CANCELED, None),
    ],
)
def test_a_bad_end_says_why(
    event: Failed | TimedOut | Interrupted | Rejected | Canceled,
    state: TaskState,
    reason: str | None,
) -> None:
    (end,) = apply(task(), event)
    assert isinstance(end, StatusUpdate)
    assert end.state is state
    assert said(end) == event.text
    assert metadata(end) == ({"bridge": {"reason": reason}} if reason else None)


def test_the_details_of_a_failure_are_data_and_its_text_is_for_people() -> None:
    (end,) = apply(task(), Failed("\x1b[31mbroke", "exit", {"exitCode": 1}))
    assert said(end) == "broke"
    assert data(end) == {"type": "error", "reason": "exit", "exitCode": 1}


def test_a_failure_has_the_usage_before_it() -> None:
    (end,) = apply(task(Usage(cost_usd=0.5)), Failed("broke", "exit"))
    assert metadata(end) == {"bridge": {"reason": "exit"}, "usage": {"costUsd": 0.5}}


def test_a_direct_reply_completes_the_task_with_its_message() -> None:
    one = task()
    (end,) = apply(one, Reply((TextPart("hello"),)))
    assert end is one.reply
    assert (one.reply.state, shown(end).role) == (TaskState.COMPLETED, Role.AGENT)
    assert (shown(end).text, shown(end).task_id) == ("hello", None)  # it is no task's message
    assert [message.task_id for message in history(one, None)] == ["t", "t"]


@each("ending", [Done(), Failed("x"), Rejected("x"), Canceled()])
def test_nothing_happens_after_the_end(ending: Event) -> None:
    one = task(ending)
    before = (one.state, one.status, list(one.history))
    for event in SAMPLES.values():
        with pytest.raises(IllegalTransition):
            one.apply(event, NOW)
    assert (one.state, one.status, list(one.history)) == before


@each("event", [answer(), NotUnderstood(client("x"), "h")])
def test_a_question_that_was_not_asked_cannot_be_answered(event: Event) -> None:
    with pytest.raises(IllegalTransition):
        task(Text("a")).apply(event, NOW)


# --- any order of events -------------------------------------------------------------------------


def test_every_event_has_a_sample() -> None:
    assert set(SAMPLES) == set(EVENTS)


class Reader:
    """A client that knows the task only from its updates."""

    def __init__(self) -> None:
        self.artifacts: dict[str, list[Any]] = {}
        self.states: list[TaskState] = []

    def read(self, update: Update) -> None:
        if isinstance(update, StatusUpdate):
            self.states.append(update.state)
        elif update.append:
            self.artifacts[update.artifact_id] += update.parts  # KeyError: it was never begun
        else:
            self.artifacts[update.artifact_id] = list(update.parts)

    def text(self, artifact_id: str) -> str:
        return "".join(texts(self.artifacts.get(artifact_id, [])))


class Blocks:
    """A second computation of the text: its blocks, and the gaps between them."""

    def __init__(self) -> None:
        self.blocks: list[str] = []
        self.goes_on = False

    def hear(self, event: Event) -> None:
        match event:
            case Text(parent=None):
                self.add(event)
            case Retracted():
                self.retract(event.length)
            case Done() if not self.blocks:
                self.add(Text("summary\n\ndone"))

    def add(self, event: Text) -> None:
        if event.new_block or not self.goes_on:
            self.blocks.append("")
        self.blocks[-1] += event.text
        self.goes_on = True

    def retract(self, length: int) -> None:
        for _ in range(length):
            if self.blocks:
                self.blocks[-1] = self.blocks[-1][:-1]
                self.goes_on = self.blocks[-1] != ""
                if not self.goes_on:
                    self.blocks.pop()

    @property
    def text(self) -> str:
        joined = ""
        for block in self.blocks:
            joined += "\n\n" if joined and not joined.endswith("\n") else ""
            joined += block
        return joined


@each("seed", range(300))
def test_the_updates_contain_every_change_of_the_task(seed: int) -> None:
    chance = random.Random(seed)
    one, reader, answer = task(show_thoughts=seed % 2 == 0), Reader(), Blocks()
    allowed = edges().keys() | {(state, state) for state in TaskState}
    for number in range(200):
        if one.state.terminal:
            break
        event, before = some_event(chance, one, number), one.state
        updates = apply(one, event)
        assert (before, one.state) in allowed, event
        assert one.state in (before, *TRANSITIONS[before][type(event)])
        assert states(updates)[-1:] in ([], [one.state])
        for update in updates:
            reader.read(update)
        answer.hear(event)
        assert one.state.interrupted == bool(one.questions)
    if not one.state.terminal:
        for update in apply(one, Canceled()):
            reader.read(update)
    assert reader.text("assistant-response") == answer.text
    assert [state for state in reader.states if state.terminal] == [one.state]
    assert reader.states[-1] is one.state
    for name, artifact in one.artifacts.items():
        assert reader.text(name) == "".join(texts(artifact.parts))
    for codec in CODECS:
        orjson.dumps(codec.encode_task(one))


def test_the_metadata_of_a_task_name_the_author_of_the_last_answer() -> None:
    asked = task(Prompted(), ask("one"), ask("two"))
    answers = [Answer(name, "yes", (YES,), client("yes", f"m-{name}"), by="anna") for name in "xy"]
    first, second = (
        Answered(dataclasses.replace(given, question_id=name))
        for given, name in zip(answers, ("one", "two"), strict=True)
    )
    for given, name, message_id in ((first, "one", "m-x"), (second, "two", "m-y")):
        (told,) = statuses(apply(asked, given))
        facts = {"questionId": name, "optionIds": ["yes"], "by": "anna", "messageId": message_id}
        assert status_metadata(told) == {"bridge": {"answered": facts}}
        assert task_metadata(asked) == {"bridge": {"answered": facts}}
