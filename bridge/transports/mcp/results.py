"""The results of tools: their shapes, and the limits of their size.

Each result has structured content for programs, and a text with the same content for models that
get no structured content.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.errors.program import command
from bridge.store.handle import TaskHandle
from bridge.task.artifact import ANSWER_ID, LAST_WORDS
from bridge.task.events import Failed, Interrupted, Question, TimedOut
from bridge.task.message import TextPart
from bridge.task.state import StatusUpdate, Task
from bridge.task.subject import question_text
from bridge.task.text import exact, one_line, readable
from bridge.task.transitions import TaskState
from bridge.transports.mcp.artifacts import SHOWN, named, words_of
from bridge.transports.mcp.news import Item, update_text

Json = dict[str, Any]

MOST = 20 * 1024  # bytes of a result, the text and the structured copy together
MOST_WORDS = 8 * 1024  # bytes of news and last words together
PIECE = 9 * 1024  # bytes of a piece of a task's outcome
ENVELOPE = 1024  # bytes of a result besides its words
QUESTION_CHARS = 3_000  # characters of the text of a question
OPTION_CHARS = 200  # characters of the name of an option
OPTIONS = 16  # options of a question that are shown
ENDED_BADLY = (TaskState.FAILED, TaskState.REJECTED)


def size_of(value: Any) -> int:
    """The bytes of `value` as JSON in a response, which has ASCII only."""
    return len(json.dumps(value, separators=(",", ":")))


def cut(text: str, limit: int) -> str:
    """The longest beginning of `text` that takes at most `limit` bytes as JSON. It ends at the end
    of a line if that keeps half of it."""
    if size_of(text[:limit]) - 2 <= limit:
        kept = text[:limit]
    else:
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if size_of(text[:middle]) - 2 <= limit else (low, middle - 1)
        kept = text[:low]
    if len(kept) == len(text):
        return kept
    line = kept.rfind("\n") + 1
    return kept[:line] if 2 * line > len(kept) else kept


def state_name(state: TaskState) -> str:
    value: str = state.value
    return value.replace("-", "_")


def link(task_id: str) -> str:
    """How a person can answer the question of a task."""
    return command("answer", task_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A task as a tool shows it. `news`: its newest items, and `after` the number of the newest
    update. `answered_by`: the party that may answer its question."""

    handle: TaskHandle
    task: Task
    news: Sequence[Item] = ()
    after: int = 0
    answered_by: str = "person"


def task_result(view: View) -> Json:
    """The result of a tool that shows a task."""
    words, question = MOST_WORDS, QUESTION_CHARS
    while True:
        shown = _task(view, words, question)
        text = _text_of(shown)
        if size_of(shown) + size_of(text) <= MOST - ENVELOPE or words < ENVELOPE:
            return result(shown, text, is_error=view.task.state in ENDED_BADLY)
        words, question = words // 2, question // 2


def result(structured: Mapping[str, Any], text: str, *, is_error: bool = False) -> Json:
    return {
        "resultType": "complete",
        "content": [{"type": "text", "text": text}],
        "structuredContent": dict(structured),
        "isError": is_error,
    }


def error_result(sentence: str) -> Json:
    """The result of a call that was refused."""
    content = [{"type": "text", "text": readable(sentence, 2_000)}]
    return {"resultType": "complete", "content": content, "isError": True}


def _task(view: View, words: int, question_chars: int) -> Json:
    task = view.task
    shown: Json = {
        "task_id": task.id,
        "context_id": task.context_id,
        "agent": view.handle.agent,
        "state": state_name(task.state),
    }
    if reason := reason_of(task):
        shown["reason"] = reason
    last = last_words(task) or (words_of(task) if task.state.terminal else "")
    kept = cut(last, words) if last else ""
    if kept:
        shown["text"] = kept
    artifacts = list(named(task))[:SHOWN]
    if artifacts:
        shown["artifacts"] = [cut(name, OPTION_CHARS) for name in artifacts]
    if view.news:
        shown["news"] = [item.encode() for item in _newest(view.news, words - size_of(kept))]
    if not task.state.terminal or view.news:
        shown["next_after"] = view.after
    if task.question:
        shown["question"] = _question(task, task.question, view.answered_by, question_chars)
    if usage := _usage(task):
        shown["usage"] = usage
    shown["next"] = _next(view, whole=len(kept) == len(last))
    return shown


def _newest(news: Sequence[Item], limit: int) -> Sequence[Item]:
    """The newest items that take at most `limit` bytes; the first one says if others are left
    out."""
    kept: list[Item] = []
    for item in reversed(news):
        limit -= size_of(item.encode())
        if limit < 0:
            left = len(news) - len(kept)
            text = f"{left} older items are not shown; call result with part log."
            kept.append(Item(item.number, "notice", text))
            break
        kept.append(item)
    return kept[::-1]


def reason_of(task: Task) -> str:
    """The cause of a bad end, as a word."""
    event = task.status.event if task.status else None
    if isinstance(event, Failed | Interrupted | TimedOut):
        return event.reason
    return task.state.value if task.state in ENDED_BADLY else ""


def last_words(task: Task) -> str:
    """The last words of a task that has ended."""
    if not task.state.terminal or task.status is None:
        return ""
    return update_text(task, task.status, 2 * LAST_WORDS) if task.status.number else ""


def answer_of(task: Task) -> str:
    """The whole answer of the agent."""
    artifact = task.artifacts.get(ANSWER_ID)
    said = (
        "".join(part.text for part in artifact.parts if isinstance(part, TextPart))
        if artifact
        else ""
    )
    return said or words_of(task) or last_words(task)


def _question(task: Task, asked: Question, answered_by: str, chars: int) -> Json:
    shown: Json = {"question_id": asked.id, "kind": asked.kind, "text": question_text(asked, chars)}
    if asked.options:
        shown["options"] = [
            {"id": option.id, "name": exact(option.name, OPTION_CHARS), "kind": option.kind}
            for option in asked.options[:OPTIONS]
        ]
    shown["free_text"] = takes_text(asked)
    shown["multiple"] = asked.multiple
    shown["answered_by"] = answered_by
    if answered_by == "person":
        shown["link"] = link(task.id)
    return shown


def takes_text(asked: Question) -> bool:
    """Whether words may answer the question. A permission needs a choice: words could be read as an
    approval."""
    return asked.free_text and asked.kind != "permission"


def _usage(task: Task) -> Json:
    if not task.state.terminal:
        return {}
    used = task.status.usage if task.status else None
    seconds = round((task.status_time - task.created).total_seconds(), 3)
    facts = {
        "input_tokens": used and used.input_tokens,
        "output_tokens": used and used.output_tokens,
        "cost_usd": used and used.cost_usd,
        "seconds": seconds,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _next(view: View, whole: bool) -> str:
    """One sentence that tells the model how to go on."""
    task, quoted = view.task, f'task_id "{view.task.id}"'
    if task.state.terminal:
        if not whole:
            return f'Call result with {quoted} and part "text" to read the whole answer.'
        follow = f'call delegate with context_id "{task.context_id}"'
        if task.state is TaskState.COMPLETED:
            return f"The task is done; to continue this conversation, {follow}."
        return f'Call result with {quoted} and part "log" to see the steps, or {follow} to go on.'
    wait = f"wait with {quoted} and after {view.after}"
    if task.question and view.answered_by == "model":
        return f'Call answer with {quoted} and question_id "{task.question.id}".'
    if task.question:
        return f"A person must answer: {link(task.id)}. Then call {wait}."
    return f"Call {wait}."


def _text_of(shown: Mapping[str, Any]) -> str:
    """The text of a task: its state, then the words, then the next step."""
    head = f"Task {shown['task_id']} ({shown['agent']}) is {shown['state']}"
    lines = [f"{head}: {shown['reason']}." if "reason" in shown else f"{head}."]
    lines += [f"[{item['kind']}] {item['text']}" for item in shown.get("news", ())]
    if "text" in shown:
        lines.append(shown["text"])
    if "artifacts" in shown:
        names = ", ".join(shown["artifacts"])
        lines.append(f'Artifacts (call result with part "artifact" and a name): {names}')
    if question := shown.get("question"):
        lines.append(question["text"])
        lines += [f"- {one['name']} (option_id {one['id']})" for one in question.get("options", ())]
    return "\n".join([*lines, shown["next"]])


def status_line(task: Task) -> str:
    """One line about the current step of a task."""
    if task.question:
        return one_line(f"{exact(task.question.text, 100)} Answer: {link(task.id)}")
    recent = (task.status, *reversed(task.history[-8:]))
    for one in recent:
        text = update_text(task, one) if isinstance(one, StatusUpdate) else ""
        if text:
            return one_line(text)
    return state_name(task.state)
