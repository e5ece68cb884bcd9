"""The output of a task on a screen: the answer as it arrives, a line for each tool, a footer."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from bridge.cli.client.output import TextOutput, plan_text, show_reason, show_usage
from bridge.cli.client.screen import Screen, ScreenFields
from bridge.cli.client.tasks import word_of
from bridge.client.questions import closed_by, facts_of, question_of, text_of
from bridge.client.shapes import Json, short, state_of
from bridge.task.events import Plan, Question, Queued, ToolCall, ToolResult
from bridge.task.facts import event_of
from bridge.task.text import one_line, readable

_SUBJECTS = ("command", "cmd", "file_path", "path", "pattern", "url", "query", "description")


class Transcript(TextOutput):
    """`own`: the ids of the messages of this client."""

    def __init__(
        self,
        screen: Screen,
        verbose: bool = False,
        directory: str | None = None,
        own: set[str] | None = None,
    ) -> None:
        super().__init__(stream=True, verbose=verbose, directory=directory)
        self.fields = ScreenFields(screen)
        self.own = set() if own is None else own
        self._screen = screen
        self._began = time.monotonic()
        self._word = "Running"
        self._usage: Mapping[str, Any] = {}
        self._tools: dict[str, str] = {}
        self._plan = ""
        self._answered: set[str] = set()
        self._names: dict[str, str] = {}  # of the options of the open question

    def item(self, item: Json) -> None:
        found = item.get("task") or item.get("statusUpdate") or {}
        if found:
            self._show_ids(found)
        self._note_question(found)
        self._usage = (found.get("metadata") or {}).get("usage") or self._usage
        super().item(item)
        self._screen.draw()

    def footer(self, width: int) -> str:
        """The state, the time, the usage and the directory in one line."""
        seconds = int(time.monotonic() - self._began)
        parts = [self._word, f"{seconds // 60}:{seconds % 60:02}"]
        tokens, cost = self._usage.get("totalTokens"), self._usage.get("costUsd")
        if isinstance(tokens, int):
            parts.append(f"{tokens} tokens")
        if isinstance(cost, int | float):
            parts.append(f"{cost:.2f} USD")
        running = list(self._tools.values())
        parts += [running[-1]] if running else []
        return " · ".join([*parts, self.directory or ""])[:width].rstrip(" ·")

    # --- one update -----------------------------------------------------------------------------

    def _note_question(self, found: Json) -> None:
        """Report the answer to a question, with its author if another client gave it."""
        closed = closed_by(found)
        if closed and closed.question_id not in self._answered:
            self._answered.add(closed.question_id)
            names = ", ".join(self._names.get(one, one) for one in closed.option_ids)
            author = "you" if closed.message_id in self.own else closed.by or "another client"
            self.fields.field("Question", f"answered by {author}" + (f": {names}" if names else ""))
        question = question_of(found)
        if question and question.id:
            self._answered.discard(question.id)
            self._names = {one.id: one.name for one in question.options}

    def _show_progress(self, found: Json) -> None:
        state = short(state_of(found))
        message = (found.get("status") or {}).get("message") or {}
        facts = facts_of(message)
        self._state = state
        self._word = word_of(found)
        match event := event_of(facts):
            case ToolCall():
                self._tools[event.id] = _tool(event)
            case ToolResult():
                self.fields.close()
                label = self._tools.pop(event.id, event.name or "Tool")
                self._screen.print(*_result(event, label))
            case Plan():
                self._show_plan(event)
            case Queued() | Question():
                self.fields.close()
            case _ if state in ("working", "submitted"):
                text = one_line(text_of(message.get("parts") or ()))
                if text:
                    self.fields.close()
                    self._screen.print(f"· {text}", "dim")

    def _show_plan(self, plan: Plan) -> None:
        text = plan_text(plan)
        if text != self._plan:
            self._plan = text
            self.fields.block("Plan", text)


class ConversationTranscript(Transcript):
    """The output of one task of several. The conversation has its own end."""

    def finish(self, answer: Json, resume: str) -> None:
        if "message" in answer:
            self.fields.block("Message", text_of(answer["message"].get("parts") or ()))
            return
        task = answer["task"]
        for artifact in task.get("artifacts") or ():
            self._show_artifact(artifact, whole=True)
        self._show_words(task)
        self.fields.field("State", short(state_of(task)))
        show_reason(self.fields, task)
        show_usage(self.fields, task)

    def _show_ids(self, found: Json) -> None:
        ids = (found.get("taskId") or found.get("id"), found.get("contextId"))
        if ids != self._ids:
            self._ids = ids
            self.fields.field("Task", ids[0])


def _tool(call: ToolCall) -> str:
    """`Bash pytest -q`: the name of a tool and its subject."""
    given = call.input
    if isinstance(given, dict):
        found = next((given[name] for name in _SUBJECTS if given.get(name)), None)
        given = found if isinstance(found, str) else json.dumps(given) if given else ""
    subject = given if isinstance(given, str) else ""
    return one_line(f"{call.name or 'Tool'} {subject}").strip()


def _result(result: ToolResult, label: str) -> tuple[str, str]:
    """A line for a finished tool, and its style."""
    if result.is_error:
        reason = one_line(result.output) if isinstance(result.output, str) else ""
        return f"✗ {label}" + (f" ({readable(reason, 80)})" if reason else ""), "red"
    counts = ""
    if result.changes:
        lines = [line for one in result.changes for line in one.diff.splitlines()]
        added = sum(line.startswith("+") and not line.startswith("+++") for line in lines)
        removed = sum(line.startswith("-") and not line.startswith("---") for line in lines)
        counts = f" +{added} \N{MINUS SIGN}{removed}"
    return f"✓ {label}{counts}", "green"
