"""Any program as an agent: the bridge's own line protocol, version 1 (docs/jsonl-protocol.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import orjson

from bridge.a2a.v1_0 import V1_0
from bridge.adapter import (
    Ability,
    AgentConfig,
    Handlers,
    JsonLines,
    Launch,
    Prompt,
    SessionStart,
)
from bridge.adapter.fields import Json, Said
from bridge.adapter.question_ids import QuestionIds
from bridge.errors import InvalidParams
from bridge.task.events import (
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
from bridge.task.message import Message, Part, TextPart
from bridge.task.subject import text_of

from ._tools import is_count

PROTOCOL = 1
FIGURES = {
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "totalTokens": "total_tokens",
    "costUsd": "cost_usd",
}
"""The members of a usage that the bridge counts, with their names in Usage."""


class Jsonl(JsonLines):
    name = "jsonl"
    title = "The agent"
    input_modes = ("*/*",)
    takes_urls = True
    may_reply = True
    # Models are not listed: the program gets the client's choice in the metadata of the message.
    changes = ("model",)
    limitations: ClassVar[Mapping[Ability, str]] = {
        "interrupt": "the program gets a cancel line and is then ended"
    }

    def __init__(self, config: AgentConfig, start: SessionStart) -> None:
        super().__init__(config, start)
        self._task_id = ""
        self._first = True  # this turn has no event yet
        self._names: dict[str, str] = {}  # of the turn's tool calls
        self._nameless = 0  # artifacts of the turn without id and name
        self._broke_off = False  # another event came after the last text of the turn
        self._ids = QuestionIds()
        self._theirs: dict[str, str] = {}  # the program's ids of the turn's questions, by ours

    def launch(self) -> Launch:
        return Launch((self.config.binary, *self.config.args))

    def prompt(self, prompt: Prompt) -> None:
        self._task_id, self._first, self._names = prompt.task_id, True, {}
        self._nameless, self._broke_off, self._theirs = 0, False, {}
        self._ids.begin(prompt.task_id)
        line = {
            "type": "prompt",
            "protocol": PROTOCOL,
            "taskId": prompt.task_id,
            "contextId": prompt.context_id,
            "messageId": prompt.message.id,
            "text": prompt.message.text,
        }
        self.send_line(line | _carried(prompt.message))

    def answer(self, question: Question, answer: Answer) -> None:
        message = answer.message
        line = {
            "type": "answer",
            "taskId": self._task_id,
            "questionId": self._theirs.get(question.id, question.id),
            "messageId": message.id if message else "",
            "text": message.text if message else answer.text,
            "optionId": answer.option.id if answer.option else None,
        }
        self.send_line(line | _carried(message))

    def interrupt(self) -> bool:
        self.send_line({"type": "cancel", "taskId": self._task_id})
        return False  # the program may ignore the line

    def stop_unasked(self) -> bool:
        self.interrupt()
        return True

    def receive_object(self, value: Json, line: bytes) -> Said:
        handler = self._handlers.get(str(value.get("type")))
        if handler is None:
            return ()
        events = list(handler(self, value))
        self._first = False
        return events

    def _said(self, line: Json) -> Said:
        new_block, self._broke_off = self._broke_off, False
        return (Text(_text(line), new_block=new_block),)

    def _tool_call(self, line: Json) -> Said:
        call_id, name = _text(line, "id"), _text(line, "name")
        self._names[call_id] = name
        self._broke_off = True
        yield ToolCall(call_id, name, line.get("input"))

    def _tool_result(self, line: Json) -> Said:
        call_id = _text(line, "id")
        failed = line.get("isError") is True
        yield ToolResult(call_id, line.get("output"), failed, self._names.get(call_id))

    def _artifact(self, line: Json) -> Said:
        parts = _parts(line)
        if not parts:
            yield Status("The agent sent an artifact without valid parts", {"type": "output"})
            return
        append, name, metadata = (
            line.get("append") is True,
            _text(line, "name"),
            _object(line.get("metadata")),
        )
        artifact_id = _text(line, "artifactId") or name
        if not artifact_id:  # a new artifact, unless the chunk appends
            self._nameless += not (append and self._nameless)
            artifact_id = f"artifact-{self._nameless}"
        yield ArtifactChunk(
            artifact_id,
            parts,
            name or None,
            _text(line, "description") or None,
            append=append,
            last_chunk=line.get("lastChunk") is not False,
            metadata=metadata if isinstance(metadata, dict) else None,
        )

    def _question(self, line: Json) -> Said:
        self._broke_off = True
        options = tuple(_options(line))
        kind: QuestionKind = "choice" if options else "text"
        if any(option.kind != "choice" for option in options):
            kind = "permission"
        # The program gets own words, and may ask again.
        yield self._asked(line, kind, options, _object(line.get("data")))

    def _asked(
        self,
        line: Json,
        kind: QuestionKind,
        options: tuple[Option, ...] = (),
        data: Json | None = None,
    ) -> Question:
        ours, text = self._ids.next_id(), _text(line)
        self._theirs[ours] = _text(line, "id")
        shown = text_of({**data, "title": text}) if data and kind == "permission" else text
        return Question(ours, kind, shown, options, data, free_text=True)

    def _message(self, line: Json) -> Said:
        parts = _parts(line) or (TextPart(_text(line)),)
        if self._first:
            yield Reply(parts)
        else:
            yield Status("The agent sent a message after its turn had begun", {"type": "output"})

    _handlers: ClassVar[Handlers] = {
        "text": _said,
        "thought": lambda self, line: [Thought(_text(line))],
        "status": lambda self, line: [Status(_text(line))],
        "tool_call": _tool_call,
        "tool_result": _tool_result,
        "artifact": _artifact,
        "question": _question,
        "auth_required": lambda self, line: [self._asked(line, "auth")],
        "usage": lambda self, line: [_usage(line)],
        "done": lambda self, line: [Done(_text(line) or None)],
        "failed": lambda self, line: [Failed(_text(line) or "The agent failed.")],
        "rejected": lambda self, line: [Rejected(_text(line) or "The agent rejected the task.")],
        "message": _message,
    }


def _carried(message: Message | None) -> dict[str, Any]:
    """The members of a message that the program gets unchanged; parts have the A2A 1.0 shape."""
    parts = message.parts if message else ()
    encoded = [V1_0().encode_part(part) for part in parts]
    return {"parts": encoded, "metadata": (message.metadata if message else None) or {}}


def _usage(line: Json) -> Usage:
    """The usage with the members of FIGURES that have valid numbers. All others are its `extra`."""
    extra = {name: value for name, value in line.items() if name != "type"}
    known: dict[str, Any] = {}
    for theirs, ours in FIGURES.items():
        value = extra.get(theirs)
        if is_count(value) or (ours == "cost_usd" and isinstance(value, float)):
            if 0 <= value < 2**53:
                known[ours] = extra.pop(theirs)
    return Usage(**known, extra=extra or None)


def _object(value: Any) -> Json | None:
    return value if isinstance(value, dict) else None


def _text(line: Json, name: str = "text") -> str:
    """A member as text. A value that is not a string is given as JSON."""
    value = line.get(name)
    if value is None or isinstance(value, str):
        return value or ""
    return orjson.dumps(value).decode()


def _parts(line: Json) -> tuple[Part, ...]:
    try:
        return V1_0().decode_parts(line.get("parts"))
    except InvalidParams:
        return ()


def _options(line: Json) -> Iterator[Option]:
    kinds = ("allow_once", "allow_always", "reject_once", "reject_always", "choice")
    options = line.get("options")
    for option in options if isinstance(options, list) else ():
        if isinstance(option, dict):
            kind = option.get("kind")
            option_id = _text(option, "id")
            name = _text(option, "name") or option_id
            described = _text(option, "description")
            yield Option(option_id, name, kind if kind in kinds else "choice", described)


ADAPTER = Jsonl
