"""The client reads each event as the server has written it."""

from __future__ import annotations

import io
import typing
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from bridge.a2a.codecs import CODECS, EXTENDED
from bridge.cli.client.output import Fields, TextOutput
from bridge.client.questions import closed_by, facts_of, question_of
from bridge.client.shapes import upgrade
from bridge.task import facts
from bridge.task.events import (
    Answer,
    Answered,
    Event,
    FileChange,
    Option,
    Plan,
    PlanEntry,
    Question,
    Queued,
    Thought,
    ToolCall,
    ToolResult,
    Usage,
)
from bridge.task.message import Message, Role, TextPart
from bridge.task.state import StatusUpdate, Task
from tests.support.cases import each

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ALLOW = Option("o1", "Allow", "allow_once", "this time")
NO = Option("o2", "No", "reject_once")
PLAN = Plan((PlanEntry("Read it", "completed"), PlanEntry("Change it", "in_progress")))
CHANGE = FileChange("/w/a", "create", "--- /dev/null\n+++ /w/a\n@@ -0,0 +1,1 @@\n+x\n")
TOLD: dict[type, facts.Told] = {
    type(event): event
    for event in (
        Thought("hm"),
        PLAN,
        Queued(3, 2),
        ToolCall("c1", "Bash", {"command": "ls"}, "parent"),
        ToolResult("c1", "out\n", True, "Bash", "parent", (CHANGE,)),
        Question(
            "q1",
            "choice",
            "",
            (ALLOW, NO),
            {"tool": "Bash", "input": {"command": "ls"}},
            free_text=True,
            multiple=True,
        ),
    )
}
Json = dict[str, Any]


def written(*events: Event) -> Iterator[Json]:
    """The last update in each version, with and without the extension, as the client has it."""
    for codec in (*CODECS, *EXTENDED):
        task = Task("t", "c", NOW, show_thoughts=True)
        updates = [update for event in events for update in task.apply(event, NOW)]
        last = [one for one in updates if isinstance(one, StatusUpdate)][-1]
        encoded = codec.encode_update(task, last, False)
        item = encoded if "statusUpdate" in encoded else upgrade(encoded)
        yield item["statusUpdate"]


def test_each_kind_of_object_has_a_sample() -> None:
    assert set(TOLD) == set(typing.get_args(facts.Told))


@each("kind", TOLD, ids=lambda kind: kind.__name__)
def test_an_event_is_read_as_it_was_written(kind: type) -> None:
    for update in written(TOLD[kind]):
        assert facts.event_of(facts_of(update["status"]["message"])) == TOLD[kind]


def test_a_question_has_its_options_with_descriptions_and_its_end() -> None:
    for update in written(Question("q", "permission", "May I?", (ALLOW, NO), patience=60)):
        asked = question_of(update)
        assert asked and asked.options == (ALLOW, NO)
        assert (asked.then, asked.until) == ("deny", "2026-01-02T03:05:05.000Z")


def test_an_answer_and_the_usage_are_read_as_they_were_written() -> None:
    message = Message("m1", Role.USER, (TextPart("yes"),))
    answer = Answered(Answer("q", "yes", (ALLOW,), message, "anna"))
    used = Usage(1, 2, 3, 0.5, {"cacheReadTokens": 4})
    for update in written(Question("q", "permission", "May I?", (ALLOW, NO)), answer):
        assert closed_by(update) == facts.Closed("q", "anna", ("o1",), "m1")
    assert facts.usage_of(facts.facts_of_usage(used)) == used


def test_a_plan_is_shown_with_its_texts() -> None:
    for update in written(PLAN):
        output = TextOutput(stream=True, verbose=False)
        output.fields = Fields(shown := io.StringIO())
        output.item({"statusUpdate": update})
        assert "Plan:\n  ✓ Read it\n  → Change it\n" in shown.getvalue()


@each("wrong", [None, 3, "x", [], {}, [None], {"a": {}}], ids=repr)
def test_members_of_a_wrong_type_count_as_absent(wrong: Any) -> None:
    """An agent of another server may send any object."""
    for event in TOLD.values():
        found = dict(facts.facts_of(event))
        for name in set(found) - {"type"}:
            assert type(facts.event_of({**found, name: wrong})) is type(event)
    members = ("questionId", "optionIds", "by", "messageId")
    assert facts.closed_of(dict.fromkeys(members, wrong)).question_id in ("", "x")


def test_the_end_of_a_question_is_the_time_of_the_server() -> None:
    task = Task("t", "c", NOW)
    (update,) = task.apply(Question("q", "text", "?", patience=60), NOW + timedelta(hours=1))
    encoded = CODECS[0].encode_update(task, update, False)["statusUpdate"]
    asked = question_of(encoded)
    assert asked and (asked.then, asked.until) == ("end", "2026-01-02T04:05:05.000Z")
