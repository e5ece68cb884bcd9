"""The questions of a context, over a fake project."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bridge.runtime.questions import PROJECT_CONFIG, Questions, allows, decision, give_up
from bridge.task.events import Answer, Answered, Failed, NotUnderstood, Option, Question, TimedOut
from bridge.task.message import Message, Role, TextPart
from bridge.task.rules.approval_policy import Rule
from bridge.task.state import Task
from bridge.task.subject import text_of
from bridge.workspace.project_config import TRUSTING, ProjectConfigPolicy
from tests.support.cases import each

NOW = datetime(2026, 1, 2, tzinfo=UTC)
WITHIN = 60.0
NEW = timedelta(0)  # since the question was asked
ALLOW, DENY = Option("yes", "Yes", "allow_once"), Option("no", "No", "reject_once")
COMMAND = {"name": "Bash", "input": {"command": "make"}}
BASH = Question("q", "permission", "Run make?", (ALLOW, DENY), COMMAND)
OPEN = Question("q", "text", "Which one?", free_text=True)


class Project(ProjectConfigPolicy):
    """A repository with one file that an agent would run, and one that it always loads."""

    def doubts(self, cwd: str) -> list[str]:
        return [f"{cwd}/hooks.json"]

    def unused(self, cwd: str) -> tuple[list[str], list[str]]:
        return [f"{cwd}/.env"], [f"{cwd}/hooks.json", f"{cwd}/.env"]


def client(text: str) -> Message:
    return Message("m", Role.USER, (TextPart(text),))


def asked(question: Question) -> Task:
    task = Task("t", "c", NOW)
    task.apply(question, NOW)
    return task


@each(
    ("rules", "chosen"),
    [
        ((Rule("allow", command="make"),), ALLOW),
        ((Rule("deny", tool="Bash"),), DENY),
        ((Rule("ask", tool="Bash"),), None),
        ((), None),
    ],
)
def test_rules_answer_a_permission(rules: tuple[Rule, ...], chosen: Option | None) -> None:
    answer = Questions(rules, TRUSTING, timeout=0.0).decide(BASH, "/w")
    assert (answer and answer.option) == chosen
    if answer:
        data = decision(BASH, answer).data
        assert data and data["by"] == "rule"
        assert data["decision"] == ("allow" if allows(answer) else "deny")


def test_rules_do_not_answer_other_questions() -> None:
    rules = (Rule("allow", tool="*"),)
    assert Questions(rules, TRUSTING, timeout=0.0).decide(OPEN, "/w") is None


def test_a_message_is_read_as_an_answer_of_its_sender() -> None:
    questions = Questions((), TRUSTING, timeout=0.0)
    later = NOW + timedelta(minutes=1)
    read = questions.read(asked(BASH), client("yes"), by="alice", now=later)
    assert isinstance(read, Answered)
    assert (read.answer.option, read.answer.by) == (ALLOW, "alice")
    read = questions.read(asked(BASH), client("perhaps"), by="alice", now=later)
    assert isinstance(read, NotUnderstood)


def test_project_files_are_asked_about_and_may_be_an_obstacle() -> None:
    questions = Questions((), Project(), timeout=0.0)
    question, failure = questions.project_question("/w"), questions.project_report("/w")
    assert question and isinstance(failure, Failed)
    assert (question.id, failure.reason) == (PROJECT_CONFIG, PROJECT_CONFIG)
    assert "/w/hooks.json" in question.text
    assert failure.details == {"files": ["/w/.env"]}
    trusting = Questions((), TRUSTING, timeout=0.0)
    assert trusting.project_question("/w") is None
    assert trusting.project_report("/w") is None


async def test_a_question_without_an_answer_times_out_once() -> None:
    questions = Questions((), TRUSTING, timeout=0.01)
    heard: asyncio.Queue[str] = asyncio.Queue()
    asked = questions.timed(BASH)
    questions.watch(asked, NEW, lambda text, by: heard.put_nowait(by))
    assert questions.watched is asked
    async with asyncio.timeout(WITHIN):
        assert await heard.get() == "timeout"
    assert heard.empty()


async def test_the_timer_stops_with_its_question() -> None:
    questions = Questions((), TRUSTING, timeout=0.01)
    heard: asyncio.Queue[str] = asyncio.Queue()
    questions.watch(questions.timed(BASH), NEW, lambda text, by: heard.put_nowait("first"))
    questions.watch(None, NEW, lambda text, by: None)
    questions.watch(questions.timed(OPEN), NEW, lambda text, by: heard.put_nowait("second"))
    async with asyncio.timeout(WITHIN):
        assert await heard.get() == "second"
    assert heard.empty()
    questions.watch(questions.timed(BASH), NEW, lambda text, by: heard.put_nowait("closed"))
    questions.close()
    other = Questions((), TRUSTING, timeout=0.02)
    other.watch(other.timed(BASH), NEW, lambda text, by: heard.put_nowait("last"))
    async with asyncio.timeout(WITHIN):
        assert await heard.get() == "last"


async def test_a_restart_does_not_prolong_the_time_of_a_question() -> None:
    """An hour is left of the patience, or nothing: the question has waited for all of it."""
    hour = Questions((), TRUSTING, timeout=3600.0)
    heard: asyncio.Queue[str] = asyncio.Queue()
    hour.watch(hour.timed(BASH), timedelta(hours=2), lambda text, by: heard.put_nowait(text))
    async with asyncio.timeout(WITHIN):
        assert "within 3600 s" in await heard.get()


def test_a_timeout_denies_or_ends_the_turn() -> None:
    denied = give_up(BASH, "Too late", "timeout")
    assert not isinstance(denied, TimedOut)
    answer, note = denied
    assert (answer.option, answer.by) == (DENY, "timeout")
    assert note.data == {
        "type": "decision",
        "questionId": "q",
        "decision": "deny",
        "by": "timeout",
    }
    assert isinstance(give_up(OPEN, "Too late", "timeout"), TimedOut)


@each(("options", "allowed"), [((ALLOW,), True), ((DENY,), False), ((), False)])
def test_only_a_chosen_option_allows(options: tuple[Option, ...], allowed: bool) -> None:
    assert allows(Answer("q", "text", options)) is allowed


def test_a_question_has_the_numbers_of_the_changed_lines(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one\ntwo\nthree\n")
    diff = "--- a.py\n+++ a.py\n@@ -1,1 +1,1 @@\n-three\n+3\n"
    subject = {"title": "Edit it?", "changes": [diff], "input": {}}
    edit = Question("q", "permission", text_of(subject), (), subject)
    shown = Questions((), TRUSTING, timeout=0.0).prepared(edit, str(tmp_path))
    assert shown.text.endswith("\n    3 -three\n    3 +3")
    assert shown.subject and shown.subject["changes"] == [diff.replace("-1,1 +1,1", "-3,1 +3,1")]
    other = replace(edit, text="Another text")
    assert Questions((), TRUSTING, timeout=0.0).prepared(other, str(tmp_path)) == other
