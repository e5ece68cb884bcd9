"""The questions of one context: answers by rules, by clients, and by a timer."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from bridge.task.answers import HASTY, denial, hint, is_hasty, permission, read_answer
from bridge.task.events import (
    Answer,
    Answered,
    Failed,
    NotUnderstood,
    Option,
    Question,
    Status,
    TimedOut,
)
from bridge.task.message import Message
from bridge.task.rules.approval_policy import Rule, decide
from bridge.task.state import Task
from bridge.task.subject import text_of
from bridge.workspace.line_numbers import numbered_in
from bridge.workspace.project_config import ProjectConfigPolicy

PROJECT_CONFIG = "project-config"  # id of the question whether a repository is trusted
IGNORED = "ignored"  # the type of the status about project files that the CLI does not use
NAMED, LISTED = 5, 100  # of these files, in its text and in its object
TOO_MANY = "More questions were open than the server keeps (BRIDGE_MAX_WAITING_SESSIONS)"
OnTimeout = Callable[[str, str], None]
"""Called with the cause of a timeout: a sentence, and a keyword."""


class Questions:
    """`rules`: the operator's decisions. `timeout`: seconds that the next questions wait for their
    answers; 0 = unlimited. `watched`: the question of the current timer."""

    def __init__(
        self, rules: Sequence[Rule], trust: ProjectConfigPolicy, *, timeout: float
    ) -> None:
        self._rules = rules
        self._trust = trust
        self._timeout = timeout
        self.watched: Question | None = None
        self._timer: asyncio.TimerHandle | None = None

    def change_rules(self, rules: Sequence[Rule]) -> None:
        """Decide the next questions by these rules."""
        self._rules = rules

    def prepared(self, question: Question, cwd: str) -> Question:
        """The question with the time that it waits, and the numbers of the changed lines in the
        files of the directory."""
        return self.timed(_with_numbers(question, cwd))

    def timed(self, question: Question) -> Question:
        """The question with the time that it waits."""
        return replace(question, patience=self._timeout) if self._timeout else question

    def decide(self, question: Question, cwd: str) -> Answer | None:
        """The answer of the operator's rules; None: ask the client."""
        if not self._rules or question.kind != "permission":
            return None
        match decide(self._rules, question.subject or {}, cwd, os.path.realpath):
            case "allow":
                return permission(question, "rule")
            case "deny":
                return denial(question, "rule")
        return None

    def read(
        self, task: Task, message: Message, *, by: str, now: datetime
    ) -> Answered | NotUnderstood:
        """Read the message of the principal `by` as the answer to the open question of the task."""
        assert task.question
        if is_hasty(message, task.asked, now - (task.asked_at or now)):
            return NotUnderstood(message, HASTY)
        answer = read_answer(task.question, message)
        if answer is None:
            return NotUnderstood(message, hint(task.question, message))
        return Answered(replace(answer, by=by))

    def project_question(self, cwd: str) -> Question | None:
        """The question whether the CLI may use the project files in `cwd`; None: not necessary."""
        doubts = self._trust.doubts(cwd)
        if not doubts:
            return None
        text = (
            f"The agent would run files of this repository by itself: {', '.join(doubts)}."
            " May it use them?"
        )
        options = (
            Option("use", "Use it", "allow_once"),
            Option("ignore", "Go on without it", "reject_once"),
        )
        subject = {"name": "project configuration", "input": {"files": doubts}}
        return self.timed(Question(PROJECT_CONFIG, "permission", text, options, subject))

    def project_report(self, cwd: str) -> Failed | Status | None:
        """The failure of a CLI that must not use the project files in `cwd`; the status about files
        that it does not use; None: there are none."""
        obstacles, files = self._trust.unused(cwd)
        if obstacles:
            text = (
                f"The agent would run files of this repository by itself: {', '.join(obstacles)}. "
                "Remove them, or allow their use (AGENT_PROJECT_CONFIG=allow)."
            )
            return Failed(text, PROJECT_CONFIG, {"files": obstacles})
        more = f" and {len(files) - NAMED} more" if len(files) > NAMED else ""
        text = (
            f"The agent does not use {', '.join(files[:NAMED])}{more} of this project "
            "(AGENT_PROJECT_CONFIG=allow: it does)."
        )
        return Status(text, {"type": IGNORED, "files": files[:LISTED]}) if files else None

    def watch(self, question: Question | None, waited: timedelta, on_timeout: OnTimeout) -> None:
        """Start the timer for the open question, which has `waited`, and stop the previous timer.
        Neither a restart of the server nor another setting prolongs the time: clients know its
        end."""
        self.watched = question
        self.close()
        promised = (question.patience if question else 0.0) or math.inf
        within = min(promised, self._timeout or math.inf)
        if question and within < math.inf:
            text = f"No answer arrived within {within:g} s (BRIDGE_QUESTION_TIMEOUT_MS)"
            left = max(0.0, min(within, promised - waited.total_seconds()))
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(left, on_timeout, text, "timeout")

    def close(self) -> None:
        """Stop the timer."""
        if self._timer:
            self._timer.cancel()
            self._timer = None


def _with_numbers(question: Question, cwd: str) -> Question:
    subject = question.subject or {}
    changes = subject.get("changes")
    if not isinstance(changes, list):
        return question
    known = [numbered_in(one, cwd) if isinstance(one, str) else one for one in changes]
    if known == changes or question.text != text_of(subject):
        return question
    subject = {**subject, "changes": known}
    return replace(question, subject=subject, text=text_of(subject))


def give_up(question: Question, text: str, by: str) -> tuple[Answer, Status] | TimedOut:
    """The denial of a question without an answer, and a status that reports it. If the question
    cannot be denied: the end of the turn. `text` is the cause as a sentence, `by` as a keyword."""
    answer = denial(question, by)
    if answer:
        return answer, Status(f"{text}; the request was denied.", _facts(answer))
    return TimedOut(f"{text}, and the agent cannot continue without an answer.", by)


def decision(question: Question, answer: Answer) -> Status:
    """The status that reports an answer by the operator's rules."""
    facts = _facts(answer)
    verb = {"deny": "Denied", "allow": "Allowed"}[facts["decision"]]
    return Status(f"{verb} by a rule of the operator: {question.text}", facts)


def allows(answer: Answer) -> bool:
    return answer.option is not None and not answer.option.kind.startswith("reject")


def _facts(answer: Answer) -> dict[str, str]:
    verdict = "allow" if allows(answer) else "deny"
    facts = {"questionId": answer.question_id, "decision": verdict, "by": answer.by}
    return {"type": "decision", **facts}
