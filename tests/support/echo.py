"""An adapter for a program that repeats its input."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Iterable
from typing import Any, ClassVar, cast

from bridge.adapter import Adapter, AgentConfig, ExitStatus, Launch, Prompt, SessionStart
from bridge.session.redaction import NO_SECRETS, Secrets
from bridge.session.session import Session
from bridge.session.turn import TurnLimits
from bridge.task.events import (
    AgentEvent,
    Answer,
    Done,
    Failed,
    Question,
    Status,
    Text,
    Thought,
)

WITHIN = 60.0


class Echo(Adapter):
    """A dialect of words: `text …`, `ask`, `done`; those that begin with `raise` are bugs."""

    name: ClassVar[str] = "echo"
    title: ClassVar[str] = "Echo"
    interruptible = False
    bug: str | None = None  # the method that has one
    result: Any = None  # of that method, instead of an exception

    def __init__(self, config: AgentConfig, start: SessionStart) -> None:
        super().__init__(config, start)
        self.begun = False  # a line was received
        self.late = asyncio.Event()  # a line `done late` was received

    @property
    def handshaking(self) -> bool:
        if self.begun:
            self._bug("handshaking")
        return self.bug == "handshaking"

    @property
    def spent(self) -> bool:
        self._bug("spent")
        return False

    def launch(self) -> Launch:
        self._bug("launch")
        return Launch((self.config.binary, *self.config.args))

    def prompt(self, prompt: Prompt) -> None:
        self._bug("prompt")
        self.send(prompt.text.encode() + b"\n")

    def receive_line(self, line: bytes) -> Iterable[AgentEvent]:
        if self.bug == "receive_line" and self.result:
            return cast(Iterable[AgentEvent], self.result[0])
        self._bug("receive_line")
        self.begun = True
        if line == b"done late":
            self.late.set()
        word, _, rest = line.decode().partition(" ")
        events: dict[str, AgentEvent] = {
            "text": Text(rest),
            "thought": Thought(rest),
            "status": Status(rest),
            "ask": Question(rest, "text", "?", free_text=True),
            "done": Done(rest or None),
            "interrupted": Failed("The turn was interrupted.", "interrupted"),
        }
        return [events[word]] if word in events else []

    def receive_exit(self, status: ExitStatus) -> Iterable[AgentEvent]:
        if self.bug == "receive_exit" and self.result:
            return cast(Iterable[AgentEvent], self.result[0])
        self._bug("receive_exit")
        return super().receive_exit(status)

    def answer(self, question: Question, answer: Answer) -> None:
        self._bug("answer")
        self.send(answer.text.encode() + b"\n")

    def interrupt(self) -> bool:
        self._bug("interrupt")
        if self.interruptible:
            self.send(b"interrupted\n")
        return self.interruptible

    def data_to_send(self) -> bytes:
        self._bug("data_to_send")
        return super().data_to_send()

    def _bug(self, method: str) -> None:
        if self.bug == method:
            raise KeyError("a bug of the adapter")


class Sessions:
    def __init__(self) -> None:
        self.all: list[Session] = []

    async def __call__(
        self,
        *argv: str,
        limits: TurnLimits | None = None,
        bug: str | None = None,
        result: Any = None,
        secrets: Secrets = NO_SECRETS,
    ) -> Session:
        binary, *args = argv or ("/bin/cat",)
        config = AgentConfig(binary, tuple(args))
        adapter = Echo(config, SessionStart("/", "session-1"))
        adapter.bug, adapter.result = bug, result
        marker = uuid.uuid4().hex
        environment = {"PATH": os.environ["PATH"]}
        session = Session(adapter, environment, limits or TurnLimits(), marker, secrets=secrets)
        self.all.append(session)
        await session.open()
        return session
