"""A CLI between two turns. No task waits for it then: each request is refused, and a CLI that works
on by itself is told once to stop. If it still works after a grace, or asks too often, its session
ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from bridge.adapter.unasked import UNASKED
from bridge.task.events import AgentEvent, ArtifactChunk, Question, Status, Text, Thought, ToolCall

LATE = 1.0  # seconds
NAME = 100  # characters of the name of a tool or a request
MOST = 100  # reports between two turns, so that a CLI cannot fill the logs and the audit log
_WORDS = (Text, Thought, ArtifactChunk)


@dataclass(frozen=True, slots=True)
class Unasked:
    """`kind`: see adapter/unasked.py. `act`: the request was `refused`, the output `ignored`, the
    CLI must be `stopped`, or its session `ended`. `question`: a request to refuse."""

    kind: str
    name: str
    act: Literal["refused", "ignored", "stopped", "ended"]
    input: Any = None
    question: Question | None = None


class BetweenTurns:
    """`report` gets all that the CLI does. `grace`: seconds in which it must stop after it was
    told. `late`: seconds after a turn in which output can still belong to it."""

    def __init__(self, grace: float, late: float = LATE) -> None:
        self.report: Callable[[Unasked], None] = lambda one: None
        self._grace = grace
        self._late = late
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()  # the end of the last turn
        self._worked = 0.0  # when the CLI worked last
        self._told: float | None = None  # when it was told to stop
        self._reports = 0  # since the last turn
        self._unanswered = False  # there were too many requests

    @property
    def busy(self) -> bool:
        """Whether the CLI may still work by itself, so that it cannot take a prompt."""
        return self._told is not None and self._loop.time() - self._worked < self._grace

    def begin(self) -> None:
        """A turn has ended."""
        self._since, self._reports, self._unanswered = self._loop.time(), 0, False

    def receive(self, events: Iterable[AgentEvent]) -> None:
        """Events that belong to no turn."""
        for event in events:
            match event:
                case Question(subject=subject):
                    given = subject or {}
                    name = str(given.get("name") or event.kind)
                    self._tell(Unasked("request", name, "refused", given.get("input"), event))
                    self._work("request", name)
                case Status(data={"type": kind, **facts}) if kind == UNASKED:
                    self._note(str(facts["kind"]), str(facts["name"]), facts.get("input"))
                case ToolCall():
                    self._note("output", event.name, event.input or {})
                case _ if isinstance(event, _WORDS) and not self._reports:
                    self._tell(Unasked("output", type(event).__name__, "ignored"))

    def _note(self, kind: str, name: str, given: Any) -> None:
        """Report requests, turns and tools, and of all other output the first piece."""
        if kind != "output" or given is not None or not self._reports:
            self._tell(Unasked(kind, name, "refused" if kind == "request" else "ignored", given))
        self._work(kind, name)

    def _work(self, kind: str, name: str) -> None:
        """The CLI works by itself, unless this is late output of its last turn."""
        now = self._loop.time()
        if kind == "output" and now - self._since < self._late:
            return
        self._worked = now
        if self._told is None:
            self._told = now
            self.report(Unasked(kind, name[:NAME], "stopped"))
        elif now - self._told > self._grace:
            self._told = now  # once for each grace
            self.report(Unasked(kind, name[:NAME], "ended"))

    def _tell(self, one: Unasked) -> None:
        self._reports += 1
        one = replace(one, name=one.name[:NAME])
        if self._reports <= MOST:
            self.report(one)
        elif one.question and not self._unanswered:
            self._unanswered = True  # it would wait for an answer
            self.report(replace(one, act="ended", question=None))
