"""A task as Markdown. Every foreign text stands in a fence that is longer than its own, or in a
code span. So it cannot look like a part of the document, or load an image from elsewhere when a
person looks at the document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote

from bridge.cli.client.output import ANSWER, file_label
from bridge.cli.client.tools import head_of, label_of
from bridge.client.questions import OpenQuestion, closed_by, facts_of, question_of, text_of
from bridge.client.shapes import INTERRUPTED, Json, short, state_of
from bridge.task.events import ToolCall, ToolResult
from bridge.task.facts import Closed, event_of
from bridge.task.text import one_line, readable

_ASKS = "TASK_STATE_INPUT_REQUIRED"
_TICKS = re.compile("`+")


@dataclass(slots=True)
class Told:
    """Facts of the stream of a task that the task lacks: the times of its messages by their ids,
    and the answers to its questions by theirs. `begun`: the time of its first update."""

    begun: str = ""
    times: dict[str, str] = field(default_factory=dict)
    answers: dict[str, Closed] = field(default_factory=dict)

    def note(self, found: Json) -> None:
        """Remember a status update, or the task itself."""
        status = found.get("status") or {}
        time = str(status.get("timestamp") or "")
        self.begun = self.begun or time
        self.times.setdefault(str((status.get("message") or {}).get("messageId")), time)
        if closed := closed_by(found):
            self.answers.setdefault(closed.question_id, closed)


def fence(text: str, kind: str = "text") -> str:
    """`text` as a block of code."""
    clean = readable(text, len(text) + 1).rstrip("\n")
    ticks = "`" * max(3, 1 + max(map(len, _TICKS.findall(clean)), default=0))
    return f"{ticks}{kind}\n{clean}\n{ticks}"


def span(text: str) -> str:
    """`text` as code within a line."""
    clean = one_line(text)
    ticks = "`" * (1 + max(map(len, _TICKS.findall(clean)), default=0))
    gap = " " if clean.startswith("`") or clean.endswith("`") else ""
    return f"{ticks}{gap}{clean}{gap}{ticks}" if clean else "-"


class TaskMarkdown:
    """The blocks of one task. Items of a list stand together."""

    def __init__(self, task: Json, told: Told) -> None:
        self._task = task
        self._told = told
        self._blocks: list[str] = []
        self._tools: dict[str, str] = {}  # labels of those that run
        self._open: OpenQuestion | None = None
        self._prompted = False

    def text(self) -> str:
        """The whole page. Call it once."""
        self._heading()
        for message in self._messages():
            if message.get("role") == "ROLE_USER":
                self._user(message)
            else:
                self._agent(message)
        for label in self._tools.values():
            self._item(f"{span(label)} has no result")
        if self._open:
            self._item("The question is open." if self._waits else "The question was closed.")
        for artifact in self._task.get("artifacts") or ():
            self._artifact(artifact)
        return "\n\n".join(self._blocks) + "\n"

    # --- parts of the page ----------------------------------------------------------------------

    def _heading(self) -> None:
        task, status = self._task, self._task.get("status") or {}
        metadata = task.get("metadata") or {}
        bridge, usage = metadata.get("bridge") or {}, metadata.get("usage") or {}
        begun, ended = _time(self._told.begun), _time(str(status.get("timestamp") or ""))
        self._blocks.append(f"## Task {span(str(task.get('id')))}")
        self._item(f"State: {span(short(state_of(task)))}")
        if ended:
            self._item(f"Time: {begun} to {ended} UTC" if begun else f"Time: {ended} UTC")
        for label in ("model", "mode"):
            if bridge.get(label):
                self._item(f"{label.capitalize()}: {span(str(bridge[label]))}")
        known = [f"{value} {name}" for name, value in usage.items() if _is_number(value)]
        if known:
            self._item(f"Usage: {span(', '.join(known))}")
        if short(state_of(task)) in ("failed", "rejected") and bridge.get("reason"):
            self._item(f"Reason: {span(str(bridge['reason']))}")

    def _messages(self) -> Iterator[Json]:
        """The messages, without the last one if that repeats the answer."""
        task = self._task
        last = (task.get("status") or {}).get("message") or {}
        history = list(task.get("history") or ())
        if last and last.get("messageId") not in [one.get("messageId") for one in history]:
            history.append(last)
        answered = any(one.get("artifactId") == ANSWER for one in task.get("artifacts") or ())
        repeats = answered and short(state_of(task)) == "completed"
        for message in history:
            if not (repeats and message.get("messageId") == last.get("messageId")):
                yield message

    def _user(self, message: Json) -> None:
        parts = message.get("parts") or ()
        question, self._open = self._open, None
        if question:
            closed = self._told.answers.get(question.id or "")
            self._item(_answered(closed, question, parts))
        else:
            self._title("Message" if self._prompted else "Prompt", message)
            self._prompted = True
        text = text_of(parts)
        if text:
            self._blocks.append(fence(text))
        self._files(parts)

    def _agent(self, message: Json) -> None:
        facts, text = facts_of(message), text_of(message.get("parts") or ())
        kind = facts.get("type")
        is_last = message.get("messageId") == self._last_id
        if kind == "question" or (is_last and self._waits):
            self._open = question_of({"status": {"state": _ASKS, "message": message}})
            self._title("Question", message)
            self._blocks.append(fence(text))
        elif is_last:
            self._title("End", message)
            self._blocks.append(fence(text))
        else:
            self._tool_or_text(kind, event_of(facts), text)

    def _tool_or_text(self, kind: object, event: object, text: str) -> None:
        match event:
            case ToolCall():
                self._tools[event.id] = label_of(event, None)
            case ToolResult():
                label = self._tools.pop(event.id, event.name or "Tool")
                self._item(span(head_of(event, label, None)[0]))
            case _:
                self._open = None if kind == "decision" else self._open
                self._item(span(text))

    def _artifact(self, artifact: Json) -> None:
        parts, name = artifact.get("parts") or (), str(artifact.get("name") or "")
        identity = str(artifact.get("artifactId"))
        self._blocks.append("### Answer" if identity == ANSWER else f"### Artifact {span(name)}")
        text = text_of(parts)
        if text:
            self._blocks.append(fence(text, "markdown" if identity == ANSWER else "text"))
        self._files(parts)

    def _files(self, parts: Sequence[Mapping[str, object]]) -> None:
        for part in parts:
            if "raw" in part or "url" in part:
                self._item(f"File: {_file(dict(part))}")
            elif "data" in part and not self._is_choice(part["data"]):
                self._blocks.append(
                    fence(json.dumps(part["data"], indent=2, ensure_ascii=False), "json")
                )

    # --- the blocks -----------------------------------------------------------------------------

    @property
    def _waits(self) -> bool:
        return state_of(self._task) in INTERRUPTED

    @property
    def _last_id(self) -> str | None:
        found: str | None = ((self._task.get("status") or {}).get("message") or {}).get("messageId")
        return found

    def _is_choice(self, data: object) -> bool:
        return isinstance(data, dict) and "questionId" in data

    def _title(self, word: str, message: Json) -> None:
        time = _time(self._told.times.get(str(message.get("messageId")), ""))
        self._blocks.append(f"### {word}" + (f" ({time})" if time else ""))

    def _item(self, text: str) -> None:
        last = self._blocks[-1] if self._blocks else ""
        if last.startswith("- "):
            self._blocks[-1] = f"{last}\n- {text}"
        else:
            self._blocks.append(f"- {text}")


def _answered(
    closed: Closed | None, question: OpenQuestion, parts: Sequence[Mapping[str, object]]
) -> str:
    """The author of an answer, and the chosen options."""
    data = [one["data"] for one in parts if isinstance(one.get("data"), dict)]
    ids = list(closed.option_ids) if closed else []
    for one in data if not ids else ():
        assert isinstance(one, dict)
        ids += [str(each) for each in one.get("optionIds") or [one.get("optionId")] if each]
    names = {option.id: option.name for option in question.options}
    author = f"Answered by {span(closed.by)}" if closed and closed.by else "Answered"
    return ": ".join([author, *filter(None, [", ".join(span(names.get(one, one)) for one in ids)])])


def _file(part: Json) -> str:
    """A link to a file, or its name, its type and its size."""
    url = str(part.get("url") or "")
    if url.startswith(("https://", "http://")):
        safe = quote(url, safe="/:?#[]@!$&'*+,;=%~._-")
        return f"[{span(str(part.get('filename') or url))}](<{safe}>)"
    return span(file_label(part))


def _time(stamp: str) -> str:
    """`2026-01-31 12:00:00`, in UTC; "" for no time."""
    try:
        found = datetime.fromisoformat(stamp)
    except ValueError:
        return ""
    return found.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
