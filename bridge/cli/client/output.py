"""The output of commands: labelled text, the bytes of the answer, or the JSON of A2A 1.0."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

import orjson

from bridge.cli.client.folding import folded, message, width_of
from bridge.client.questions import OpenQuestion, facts_of, question_of, text_of
from bridge.client.shapes import Json, short, state_of
from bridge.task.events import Plan
from bridge.task.facts import event_of
from bridge.task.text import exact, one_line, readable

ANSWER = "assistant-response"
"""The id of the artifact with the answer of an agent of this bridge."""
_UNSAFE = re.compile("[\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_WHOLE = 10**8  # characters: a text that a person decides about is not cut
_NOT_ASCII = re.compile("[^\x00-\x7e]")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
WARNINGS = {
    "failed": "the task failed",
    "rejected": "the agent rejected the task",
    "canceled": "the task was canceled",
    "input-required": "the task waits for an answer",
    "auth-required": "the task waits for an authentication",
}


class Output:
    """The output of a command. `resume`: the command that continues."""

    def item(self, item: Json) -> None:
        """An item of a stream, as it arrives."""

    def finish(self, answer: Json, resume: str) -> None:
        """The answer at the end: a SendMessageResponse."""

    def note(self, text: str) -> None:
        """A line for people, beside the result."""
        shown = message(f"coding-agent-bridge: {readable(text)}", width_of(sys.stderr))
        print(shown, file=sys.stderr, flush=True)


class JsonOutput(Output):
    """`stream`: one object a line; otherwise one document. `bare`: the task without its wrapper."""

    def __init__(self, stream: bool, bare: bool = False) -> None:
        self._stream = stream
        self._bare = bare

    def item(self, item: Json) -> None:
        if self._stream:
            print_json(item, lines=True)

    def finish(self, answer: Json, resume: str) -> None:
        if not self._stream:
            print_json(answer["task"] if self._bare and "task" in answer else answer)


def print_json(value: Any, lines: bool = False) -> None:
    """Print one document, or one line of JSON Lines."""
    print(safe_json(value, 0 if lines else orjson.OPT_INDENT_2), flush=True)


def safe_json(value: Any, option: int = orjson.OPT_INDENT_2) -> str:
    """JSON in which no character controls a terminal, or is one that stdout cannot write."""
    data = orjson.dumps(value, option=option).decode()
    writes_all = sys.stdout.encoding.lower().replace("-", "") == "utf8"
    unsafe = _UNSAFE if writes_all else _NOT_ASCII
    return unsafe.sub(lambda found: json.dumps(found[0])[1:-1], data)


class QuietOutput(Output):
    """Prints the bytes of the answer; the ids go to stderr. On a terminal without control
    characters."""

    def __init__(self, stream: bool) -> None:
        self._stream = stream
        self._printed = ""
        self._fields = Fields(sys.stderr)

    def item(self, item: Json) -> None:
        if not self._stream:
            return
        update = item.get("artifactUpdate") or {}
        whole = (item.get("task") or {}).get("artifacts") or ()
        for artifact in (update["artifact"],) if update.get("artifact") else whole:
            text = text_of(artifact.get("parts") or ())
            if artifact.get("artifactId") != ANSWER:
                continue
            if update.get("append"):
                self._write(text)
            elif text.startswith(self._printed):  # otherwise finish() prints the new answer
                self._write(text[len(self._printed) :])

    def finish(self, answer: Json, resume: str) -> None:
        whole = answer_text(answer)
        if whole.startswith(self._printed):
            self._write(whole[len(self._printed) :])
        else:
            self.note("the agent replaced a part of its answer; the new answer follows")
            self._write(whole)
        sys.stdout.flush()
        summarize(self._fields, answer, resume)

    def _write(self, text: str) -> None:
        if not text:
            return
        self._printed += text
        if sys.stdout.isatty():
            print(readable(text, len(text) + 1), end="", flush=True)
            return
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))
        sys.stdout.buffer.flush()


def answer_text(answer: Mapping[str, Any]) -> str:
    """The answer of the agent: its artifact, else the texts of all artifacts, else its message."""
    if "message" in answer:
        return text_of(answer["message"].get("parts") or ())
    task = answer.get("task") or {}
    artifacts = task.get("artifacts") or ()
    own = [one for one in artifacts if one.get("artifactId") == ANSWER]
    said = "".join(text_of(one.get("parts") or ()) for one in own or artifacts)
    if said or own:
        return said
    return "" if question_of(task) else text_of(_status_parts(task))


def _status_parts(task: Mapping[str, Any]) -> Sequence[Json]:
    return ((task.get("status") or {}).get("message") or {}).get("parts") or ()


class Fields:
    """Fields `Label: value`, and blocks: lines with an indent, closed by an empty line. The text of
    an agent cannot look like a field."""

    def __init__(self, file: IO[str] | None = None) -> None:
        self._file = file or sys.stdout
        self._block: str | None = None
        self._at_start = True
        self._width = width_of(self._file)
        self._column = 0  # behind the text of a block

    def field(self, label: str, value: object) -> None:
        self.close()
        line, _ = folded(f"{label}: {' '.join(exact(str(value), 100_000).split())}", self._width)
        print(line, file=self._file)
        self._file.flush()

    def block(self, label: str, text: str) -> None:
        self.close()
        self.add(label, text)
        self.close()

    def add(self, label: str, text: str) -> None:
        """Add to the block with this label, or begin it."""
        if not text:
            return
        if self._block != label:
            self.close()
            self._block, self._at_start, self._column = label, True, 0
            print(f"{exact(label)}:", file=self._file)
        for line in _LINE.findall(readable(text, len(text) + 1)):
            indent = "  " if self._at_start else ""
            shown, self._column = folded(indent + line, self._width, self._column)
            self._file.write(shown)
            self._at_start = line.endswith("\n")
        self._file.flush()

    def close(self) -> None:
        if self._block is not None:
            self._file.write("\n" if self._at_start else "\n\n")
            self._file.flush()
        self._block, self._at_start = None, True


class TextOutput(Output):
    """Labelled text. `stream`: items as they arrive; otherwise the ids at once, and the rest at the
    end. `directory`: the working directory that was sent. `verbose`: also the metadata."""

    def __init__(self, stream: bool, verbose: bool = False, directory: str | None = None) -> None:
        self.fields = Fields()
        self.directory = directory
        self._stream = stream
        self._verbose = verbose
        self._ids: tuple[Any, Any] | None = None
        self._state = ""
        self._printed: dict[str, str] = {}
        self._others: dict[str, int] = {}

    def item(self, item: Json) -> None:
        found = item.get("task") or item.get("statusUpdate") or item.get("artifactUpdate")
        if not found:
            return
        self._show_ids(found)
        if not self._stream:
            return
        if "task" in item:
            self._show_task(found)
        elif "artifactUpdate" in item:
            artifact = found.get("artifact") or {}
            self._show_artifact(artifact, whole=not found.get("append"))
        if "task" in item or "statusUpdate" in item:
            self._show_progress(found)

    def finish(self, answer: Json, resume: str) -> None:
        if "message" in answer:
            message = answer["message"]
            self.fields.block("Message", text_of(message.get("parts") or ()))
            self._show_others("Message", message.get("parts") or ())
            if message.get("contextId"):
                self.fields.field("Context", message["contextId"])
            self.fields.field("Resume", resume)
            return
        task = answer["task"]
        self._show_ids(task)
        for artifact in task.get("artifacts") or ():
            self._show_artifact(artifact, whole=True)
        if self._stream:
            self._ids = None
            self._show_ids(task)
        self._show_words(task)
        if self._verbose:
            self.fields.block("Metadata", json.dumps(task.get("metadata") or {}, indent=2))
        summarize(self.fields, answer, resume, ids=False)

    def _show_words(self, task: Json) -> None:
        """Show the last message of an agent without artifacts."""
        if not task.get("artifacts") and not question_of(task):
            self.fields.block("Message", text_of(_status_parts(task)))

    def _show_ids(self, found: Json) -> None:
        ids = (found.get("taskId") or found.get("id"), found.get("contextId"))
        if ids != self._ids:
            self._ids = ids
            self.fields.field("Task", ids[0])
            self.fields.field("Context", ids[1])
            if self.directory:
                self.fields.field("Directory", self.directory)

    def _show_task(self, task: Json) -> None:
        if ((task.get("metadata") or {}).get("bridge") or {}).get("reset"):
            self.fields.field("Restarted", "the whole task follows")
            self._printed, self._others = {}, {}
        for artifact in task.get("artifacts") or ():
            self._show_artifact(artifact, whole=True)

    def _show_progress(self, found: Json) -> None:
        state = short(state_of(found))
        if state != self._state:
            self._state = state
            self.fields.field("State", state)
        message = (found.get("status") or {}).get("message") or {}
        event = event_of(facts_of(message))
        if isinstance(event, Plan):
            self.fields.block("Plan", plan_text(event))
        elif state in ("working", "submitted"):
            text = one_line(text_of(message.get("parts") or ()))
            if text:
                self.fields.field("Progress", text)

    def _show_artifact(self, artifact: Json, whole: bool) -> None:
        """Print the new text of an artifact. `whole`: it has all text, not a further piece."""
        identity = str(artifact.get("artifactId"))
        label = f"Artifact {one_line(str(artifact.get('name') or identity))}"
        parts = artifact.get("parts") or ()
        text, printed = text_of(parts), self._printed.get(identity, "")
        if whole and not text.startswith(printed):
            self.fields.field("Restarted", label)
            printed = ""
        new = text[len(printed) :] if whole else text
        self._printed[identity] = text if whole else printed + text
        self.fields.add(label, new)
        others = [one for one in parts if "text" not in one]
        seen = self._others.get(identity, 0) if whole else 0
        self._show_others(label, others[seen:])
        self._others[identity] = self._others.get(identity, 0) + len(others[seen:])

    def _show_others(self, label: str, parts: Sequence[Json]) -> None:
        for part in parts:
            if "data" in part:
                self.fields.block("Data", json.dumps(part["data"], indent=2, ensure_ascii=False))
            elif "raw" in part or "url" in part:
                self.fields.field("File", file_label(part))


def plan_text(plan: Plan) -> str:
    """A line for each step of a plan."""
    marks = {"completed": "✓", "in_progress": "→"}
    lines = [f"{marks.get(one.status, '·')} {one_line(one.text)}" for one in plan.entries]
    return "\n".join(lines)


def file_label(part: Json) -> str:
    """The name, the media type and the size of a file part."""
    if "url" in part:
        size = str(part["url"])
    else:
        raw = str(part["raw"])
        size = f"{len(raw) * 3 // 4 - raw[-2:].count('=')} bytes"
    named = (part.get("filename") or "unnamed", part.get("mediaType") or "unknown type", size)
    return ", ".join(map(str, named))


def summarize(fields: Fields, answer: Json, resume: str, ids: bool = True) -> None:
    """The state of a task, with everything that the next command needs. `ids`: print them, too."""
    task = answer.get("task")
    if task is None:
        fields.field("Resume", resume)
        return
    if ids:
        fields.field("Task", task.get("id"))
        fields.field("Context", task.get("contextId"))
    state = short(state_of(task))
    fields.field("State", state)
    if reason := reason_of(task):
        fields.field("Reason", reason)
    question = question_of(task)
    if question:
        show_question(fields, question)
    show_usage(fields, task)
    fields.field("Resume", resume)
    warn(state)


def reason_of(task: Json) -> str:
    """The reason of a failure; empty for any other task."""
    if short(state_of(task)) not in ("failed", "rejected"):
        return ""
    reason = ((task.get("metadata") or {}).get("bridge") or {}).get("reason")
    text = text_of(_status_parts(task)).strip()
    return f"{reason}: {text}" if reason else text


def show_usage(fields: Fields, task: Json) -> None:
    """The counters of a task, such as `400 inputTokens, 80 outputTokens`."""
    usage = (task.get("metadata") or {}).get("usage") or {}
    known = [f"{value} {name}" for name, value in usage.items() if isinstance(value, int | float)]
    if known:
        fields.field("Usage", ", ".join(known))


def warn(state: str) -> None:
    if state in WARNINGS:
        print(f"coding-agent-bridge: {WARNINGS[state]}", file=sys.stderr, flush=True)


def show_question(fields: Fields, question: OpenQuestion) -> None:
    meanings = [f"- {one.name}: {one.description}" for one in question.options if one.description]
    fields.block("Question", "\n".join(exact(one, _WHOLE) for one in (question.request, *meanings)))
    if question.options:
        options = (f'{one.id} "{one.name}"' for one in question.options)
        fields.field("Options", ", ".join(options))
