"""Adapters in a turn, for tests of what all of them have in common: the test plays the CLI."""

from __future__ import annotations

import json
from typing import Any

from bridge.adapter import Adapter, AgentConfig, Lines, Prompt, SessionOptions, SessionStart
from bridge.server import registry
from bridge.task.events import AgentEvent
from bridge.task.message import Message, Role, TextPart

Json = dict[str, Any]
SESSION = "11111111-2222-3333-4444-555555555555"


class Cli:
    """The CLI behind an adapter."""

    def __init__(self, name: str, **config: Any) -> None:
        known: Json = {"runner": ("/runner",), **config}
        self.adapter: Adapter = registry.load(name)(
            AgentConfig("/opt/cli", **known), SessionStart("/workspace", SESSION)
        )
        self._received: list[Json] = []

    def say(self, **line: Any) -> list[AgentEvent]:
        return list(self.adapter.receive_line(json.dumps(line).encode()))

    def received(self) -> list[Json]:
        """The lines that the test has not read yet."""
        self._received += map(json.loads, self.adapter.data_to_send().splitlines())
        received, self._received = self._received, []
        return received

    def prompt(self, **options: Any) -> None:
        message = Message("m", Role.USER, (TextPart("go"),))
        self.adapter.prompt(Prompt("task", "context", message, SessionOptions(**options)))

    def begin(self) -> None:
        """A turn runs."""
        self.prompt()

    def end(self) -> list[AgentEvent]:
        """The turn ends well."""
        raise NotImplementedError


class OfClaude(Cli):
    """2.1.330: it says when it takes up a prompt."""

    def __init__(self, **config: Any) -> None:
        super().__init__("claude-code", **config)

    def state(self, state: str) -> list[AgentEvent]:
        return self.say(type="system", subtype="session_state_changed", state=state)

    def command(self, state: str, command: str, **more: Any) -> list[AgentEvent]:
        return self.say(type="command_lifecycle", state=state, command_uuid=command, **more)

    def text(self, text: str) -> list[AgentEvent]:
        message = {"id": text, "content": [{"type": "text", "text": text}]}
        return self.say(type="assistant", message=message)

    def begin(self) -> None:
        self.prompt()
        self.take()

    def take(self) -> None:
        """It takes up the prompt that it has got."""
        self.of_prompt = self.received()[-1]["uuid"]
        for state in ("queued", "started"):
            self.command(state, self.of_prompt)

    def result(self) -> list[AgentEvent]:
        facts: Json = {"result": "ok", "user_message_uuids": [self.of_prompt]}
        return self.say(type="result", subtype="success", **facts)

    def end(self) -> list[AgentEvent]:
        return [*self.result(), *self.state("idle")]


class OfRpc(Cli):
    """Dialects of JSON-RPC."""

    def reply(self, method: str, result: Any = None, **members: Any) -> list[AgentEvent]:
        """To the request that the adapter has sent."""
        found = [one for one in self.received() if one.get("method") == method]
        members = members or {"result": result or {}}
        return self.say(id=found[-1]["id"], **members)


class OfCodex(OfRpc):
    def __init__(self, **config: Any) -> None:
        super().__init__("codex", **config)

    def told(self, method: str, **params: Any) -> list[AgentEvent]:
        return self.say(method=method, params={"threadId": "th", "turnId": "tu", **params})

    def begin(self) -> None:
        self.prompt()
        if self.adapter.handshaking:
            self.reply("initialize")
            self.reply("thread/start", {"thread": {"id": "th"}})
        self.reply("turn/start", {"turn": {"id": "tu"}})

    def end(self, status: str = "completed", **turn: Any) -> list[AgentEvent]:
        return self.told("turn/completed", turn={"id": "tu", "status": status, **turn})


class OfAcp(OfRpc):
    def __init__(self, name: str = "acp", can: Json | None = None, **config: Any) -> None:
        super().__init__(name, **config)
        self._can = can or {}

    def update(self, kind: str, session: str = "s", **update: Any) -> list[AgentEvent]:
        params = {"sessionId": session, "update": {"sessionUpdate": kind, **update}}
        return self.say(method="session/update", params=params)

    def text(self, text: str) -> list[AgentEvent]:
        return self.update("agent_message_chunk", content={"type": "text", "text": text})

    def begin(self) -> None:
        self.prompt()
        if self.adapter.handshaking:
            self.reply("initialize", {"protocolVersion": 1, "agentCapabilities": self._can})
            self.reply("session/new", {"sessionId": "s"})
        self.turn = next(one["id"] for one in self.received() if one["method"] == "session/prompt")

    def end(self, **answer: Any) -> list[AgentEvent]:
        """The end of the turn, after the quiet for which the session waits."""
        said = self.say(id=self.turn, **(answer or {"result": {"stopReason": "end_turn"}}))
        return [*(said and self.adapter.conclude())]


class OfJsonl(Cli):
    def __init__(self, **config: Any) -> None:
        super().__init__("jsonl", **config)

    def end(self) -> list[AgentEvent]:
        return self.say(type="done")


class OfGeneric(Cli):
    """A program that asks for one prompt after the other."""

    def __init__(self, **config: Any) -> None:
        lines = Lines(question=r"\[y/n\]$", end="^> $")
        super().__init__("generic", lines=lines, **config)

    def begin(self) -> None:
        self.prompt()
        self.say(tail="> ")
        self.say(line="> ")

    def end(self) -> list[AgentEvent]:
        return self.say(tail="> ")
