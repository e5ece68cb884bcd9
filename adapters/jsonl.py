"""Any program as an agent: the bridge's own line protocol, version 1 (docs/jsonl-protocol.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import orjson

from bridge.a2a.v1_0 import V1_0
from bridge.adapter import Adapter, AgentConfig, Launch, Prompt, SessionStart
from bridge.errors import InvalidParams
from bridge.events import (
    AgentEvent,
    Answer,
    ArtifactChunk,
    Done,
    Failed,
    Option,
    Question,
    QuestionKind,
    Rejected,
    Reply,
    Status,
    Text,
    Thought,
    ToolCall,
    ToolResult,
    Usage,
)
from bridge.message import Message, Part, TextPart

Json = Mapping[str, Any]
PROTOCOL = 1


class Jsonl(Adapter):
    name: ClassVar[str] = "jsonl"
    title: ClassVar[str] = "The agent"
    input_modes: ClassVar[tuple[str, ...]] = ("*/*",)
    takes_urls: ClassVar[bool] = True
    may_reply: ClassVar[bool] = True

    def __init__(self, config: AgentConfig, start: SessionStart) -> None:
        super().__init__(config, start)
        self._task_id = ""
        self._first = True  # nothing has been said in this turn yet
        self._names: dict[str, str] = {}  # of the turn's tool calls
        self._handlers: dict[Any, Callable[[Json], Iterable[AgentEvent]]] = {
            "text": lambda line: [Text(_text(line))],
            "thought": lambda line: [Thought(_text(line))],
            "status": lambda line: [Status(_text(line))],
            "tool_call": self._tool_call,
            "tool_result": self._tool_result,
            "artifact": self._artifact,
            "question": self._question,
            "auth_required": lambda line: [_auth(line)],
            "usage": lambda line: [_usage(line)],
            "done": lambda line: [Done(line.get("text"))],
            "failed": lambda line: [Failed(_text(line) or "The agent failed.")],
            "rejected": lambda line: [Rejected(_text(line) or "The agent rejected the task.")],
            "message": self._message,
        }

    def launch(self) -> Launch:
        return Launch((self.config.binary, *self.config.args))

    def prompt(self, prompt: Prompt) -> None:
        self._task_id, self._first, self._names = prompt.task_id, True, {}
        self._send(
            type="prompt",
            protocol=PROTOCOL,
            taskId=prompt.task_id,
            contextId=prompt.context_id,
            messageId=prompt.message.id,
            text=prompt.text,
            **_carried(prompt.message),
        )

    def answer(self, question: Question, answer: Answer) -> None:
        message = answer.message
        self._send(
            type="answer",
            taskId=self._task_id,
            questionId=question.id,
            messageId=message.id if message else "",
            text=message.text if message else answer.text,
            optionId=answer.option.id if answer.option else None,
            **_carried(message),
        )

    def interrupt(self) -> bool:
        self._send(type="cancel", taskId=self._task_id)
        return False  # the program may end its own children, but it need not say that it did

    def receive_line(self, line: bytes) -> Iterable[AgentEvent]:
        if not line.strip():
            return
        try:
            said = orjson.loads(line)
        except orjson.JSONDecodeError:
            said = None
        if not isinstance(said, dict):
            text = line.decode(errors="replace")
            yield Status(text, {"type": "output", "text": text[:2000]})
            return
        handler = self._handlers.get(said.get("type"))
        if handler:
            yield from handler(said)
            self._first = False

    def _tool_call(self, line: Json) -> Iterator[AgentEvent]:
        call_id, name = str(line.get("id", "")), str(line.get("name", ""))
        self._names[call_id] = name
        yield ToolCall(call_id, name, line.get("input"))

    def _tool_result(self, line: Json) -> Iterator[AgentEvent]:
        call_id = str(line.get("id", ""))
        failed = line.get("isError") is True
        yield ToolResult(call_id, line.get("output"), failed, self._names.get(call_id))

    def _artifact(self, line: Json) -> Iterator[AgentEvent]:
        parts = _parts(line)
        if not parts:
            yield Status("The agent sent an artifact without valid parts", {"type": "output"})
            return
        artifact_id = str(line.get("artifactId") or line.get("name") or "artifact")
        yield ArtifactChunk(
            artifact_id,
            parts,
            line.get("name"),
            line.get("description"),
            append=line.get("append") is True,
            last_chunk=line.get("lastChunk", True) is True,
            metadata=line.get("metadata"),
        )

    def _question(self, line: Json) -> Iterator[AgentEvent]:
        options = tuple(_options(line))
        kind: QuestionKind = "choice" if options else "text"
        if any(option.kind != "choice" for option in options):
            kind = "permission"
        yield Question(
            str(line.get("id", "")),
            kind,
            _text(line),
            options,
            line.get("data"),
            free_text=True,  # the program gets the words, and may ask again
        )

    def _message(self, line: Json) -> Iterator[AgentEvent]:
        parts = _parts(line) or (TextPart(_text(line)),)
        if self._first:
            yield Reply(parts)
        else:
            yield Status("The agent sent a message after its turn had begun", {"type": "output"})

    def _send(self, **line: Any) -> None:
        self.send(orjson.dumps(line) + b"\n")


def _carried(message: Message | None) -> dict[str, Any]:
    """The members of a message that pass through as they are, parts in A2A 1.0 shape."""
    parts = message.parts if message else ()
    encoded = [V1_0().encode_part(part) for part in parts]
    return {"parts": encoded, "metadata": (message.metadata if message else None) or {}}


def _text(line: Json) -> str:
    text = line.get("text")
    return text if isinstance(text, str) else ""


def _parts(line: Json) -> tuple[Part, ...]:
    try:
        return V1_0().decode_parts(line.get("parts"))
    except InvalidParams:
        return ()


def _options(line: Json) -> Iterator[Option]:
    kinds = {"allow_once", "allow_always", "reject_once", "reject_always", "choice"}
    for option in line.get("options") or ():
        if isinstance(option, dict):
            kind = option.get("kind")
            option_id = str(option.get("id", ""))
            name = str(option.get("name") or option_id)
            yield Option(option_id, name, kind if kind in kinds else "choice")


def _auth(line: Json) -> Question:
    return Question(str(line.get("id", "")), "auth", _text(line), free_text=True)


def _usage(line: Json) -> Usage:
    return Usage(extra={name: value for name, value in line.items() if name != "type"})


ADAPTER = Jsonl
