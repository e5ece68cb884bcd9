"""One event of each kind."""

from __future__ import annotations

import random
import typing

from bridge.task.events import (
    ENDINGS,
    Answer,
    Answered,
    ArtifactChunk,
    Canceled,
    Done,
    Event,
    Failed,
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
)
from bridge.task.message import Message, Role, TextPart
from bridge.task.state import Task
from bridge.task.transitions import TRANSITIONS

YES = Option("yes", "Yes", "allow_once")


def ask(name: str = "q", kind: typing.Literal["permission", "auth"] = "permission") -> Question:
    return Question(name, kind, f"{name}?", (YES,))


def client(text: str, name: str = "a") -> Message:
    return Message(name, Role.USER, (TextPart(text),))


def answer(name: str = "q", text: str = "yes") -> Answered:
    return Answered(Answer(name, text, (YES,), client(text, f"answer-{name}")))


SAMPLES: dict[type, Event] = {
    type(event): event
    for event in (
        Started("s", "m"),
        Text("text "),
        Retracted(3),
        Thought("thought"),
        Status("status", {"type": "x"}),
        ToolCall("c", "Bash", {"command": "x"}),
        ToolResult("c", "out", name="Bash"),
        Plan((PlanEntry("p", "pending"),)),
        ArtifactChunk("x", (TextPart("x"),), append=True, last_chunk=False),
        ask("q1"),
        QuestionWithdrawn("q1"),
        Usage(1, 2, 3),
        Done("done", "summary"),
        Failed("failed"),
        Rejected("rejected"),
        Reply((TextPart("reply"),)),
        answer("q1"),
        NotUnderstood(client("?"), "hint"),
        Queued(3, 2),
        Prompted(),
        Steered(client("this, too")),
        Canceled(),
        TimedOut("late"),
        Interrupted("bye"),
    )
}


def some_event(chance: random.Random, of: Task, number: int) -> Event:
    kind = chance.choice(sorted(TRANSITIONS[of.state], key=lambda one: one.__name__))
    if kind in ENDINGS and chance.random() < 0.8:
        kind = Text
    if kind is Question:
        return ask(f"q{number}", chance.choice(["permission", "auth"]))
    if kind is Answered:
        return answer(of.questions[0].id)
    if kind is QuestionWithdrawn and of.questions:
        return QuestionWithdrawn(chance.choice(of.questions).id)
    if kind is Text:
        return Text(f"{number} ", chance.random() < 0.3, chance.choice([None, None, "sub"]))
    return SAMPLES[kind]
