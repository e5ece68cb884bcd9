"""What Codex's thread items and errors mean, without regard to a turn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bridge.adapter.diff import unified_diff
from bridge.adapter.fields import as_dict, as_list, as_string, as_word
from bridge.task.events import (
    Failed,
    FileChange,
    Plan,
    PlanEntry,
    PlanStatus,
    Retracted,
    Text,
    Usage,
)
from bridge.task.text import json_object

Json = Mapping[str, Any]

LOGIN = (
    "Codex is not logged in on the server, or its key is not accepted: run `codex login` there "
    "once, or give its model provider a valid key (OPENAI_API_KEY)."
)
# Items that are no tool calls; a new kind of item is taken for one.
NO_TOOLS = {
    *("userMessage", "agentMessage", "plan", "reasoning", "hookPrompt", "contextCompaction"),
    *("enteredReviewMode", "exitedReviewMode", "subAgentActivity", "functionCallOutput"),
}
_COMMON = {"id", "type", "status", "startedAtMs", "completedAtMs", "durationMs"}


# --- text ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Words:
    """The answer, whose items may be streamed by turns (a plan in the midst of a message)."""

    whole: str = ""  # the text of the last item that was completed
    _open: dict[str, list[str]] = field(default_factory=dict)  # what was said of items, by id
    _blocks: list[tuple[str, int]] = field(default_factory=list)  # who said how much, in order

    def delta(self, item: str, text: str) -> Iterator[Text]:
        if text:
            new_block = not self._blocks or self._blocks[-1][0] != item
            before = 0 if new_block else self._blocks.pop()[1]
            self._open.setdefault(item, []).append(text)
            self._blocks.append((item, before + len(text)))
            yield Text(text, new_block)

    def completed(self, item: str, text: str) -> Iterator[Text | Retracted]:
        """The item in full, which is the truth: say what was not said of it."""
        said = "".join(self._open.get(item, ()))
        if text.startswith(said):
            yield from self.delta(item, text[len(said) :])
        else:
            yield from self._take_back({item})
            self._blocks.append((item, len(text)))
            yield Text(text, new_block=True)
        self._open.pop(item, None)
        self.whole = text or self.whole

    def give_up(self) -> Iterator[Retracted]:
        """What is not completed by now never will be: the model says it anew, or something else."""
        yield from self._take_back(set(self._open))
        self._open.clear()

    def _take_back(self, items: set[str]) -> Iterator[Retracted]:
        length = 0
        while self._blocks and self._blocks[-1][0] in items:
            length += self._blocks.pop()[1]
        if length:
            yield Retracted(length)


# --- tools ---------------------------------------------------------------------------------------


def tool_of(item: Json) -> tuple[str, Any]:
    """The name of the tool and what it was given."""
    match item.get("type"):
        case "commandExecution":
            return "exec_command", {"command": item.get("command"), "cwd": item.get("cwd")}
        case "fileChange":
            return "apply_patch", {"changes": as_list(item.get("changes"))}
        case "mcpToolCall":
            return f"{item.get('server')}.{item.get('tool')}", item.get("arguments")
        case "dynamicToolCall":
            return str(item.get("tool")), item.get("arguments")
        case "collabAgentToolCall":
            asked = {name: item.get(name) for name in ("prompt", "model") if item.get(name)}
            return str(item.get("tool")), asked
        case "webSearch":
            return "web_search", {"query": item.get("query"), "action": item.get("action")}
        case "imageView":
            return "view_image", {"path": item.get("path")}
    return str(item.get("type")), {k: v for k, v in item.items() if k not in _COMMON}


def output_of(item: Json) -> Any:
    """What came of the tool call, as text where it is text."""
    match item.get("type"):
        case "commandExecution":
            output, code = as_word(item.get("aggregatedOutput")) or "", item.get("exitCode")
            return f"{output}(exit code {code})" if code else output
        case "mcpToolCall" if item.get("error"):
            return as_dict(item["error"]).get("message")
        case "mcpToolCall":
            return _texts(as_dict(item.get("result")).get("content"))
        case "dynamicToolCall":
            return _texts(item.get("contentItems"))
        case "collabAgentToolCall":
            return item.get("agentsStates")
        case "webSearch":
            return item.get("results")
    return ""


def has_failed(item: Json) -> bool:
    return item.get("status") in ("failed", "declined") or item.get("success") is False


def _texts(content: Any) -> Any:
    parts = [as_dict(one) for one in as_list(content)]
    texts = [one.get("text", f"[{one.get('type')}]") for one in parts]
    return "\n".join(map(str, texts))


def changes_of(item: Json) -> Iterator[FileChange]:
    """A new or deleted file comes as its content, an update as hunks without a header."""
    for change in map(as_dict, as_list(item.get("changes"))):
        path, kind = as_string(change["path"]), as_dict(change.get("kind"))
        diff = as_word(change.get("diff")) or ""
        what = _KINDS.get(str(kind.get("type")), "update")
        match what:
            case "create":
                diff = unified_diff(path, "", diff)
            case "delete":
                diff = unified_diff(path, diff, "")
            case _ if diff.startswith("@@"):
                moved = as_word(kind.get("move_path"))
                diff = re.sub(r"\n\nMoved to: [^\n]*$", "", diff)
                diff = f"--- {path}\n+++ {moved or path}\n{diff}"
        yield FileChange(path, what, diff)


_KINDS: dict[str, Literal["create", "update", "delete"]] = {"add": "create", "delete": "delete"}


# --- plans and usage -----------------------------------------------------------------------------


def plan_of(steps: Any) -> Plan:
    return Plan(tuple(_plan_entry(as_dict(step)) for step in steps))


def _plan_entry(step: Json) -> PlanEntry:
    known: dict[Any, PlanStatus] = {"inProgress": "in_progress", "completed": "completed"}
    return PlanEntry(str(step.get("step") or ""), known.get(step.get("status"), "pending"))


def counts(tokens: Any) -> dict[str, int]:
    return {name: n for name, n in as_dict(tokens).items() if isinstance(n, int)}


def less(left: Mapping[str, int], right: Mapping[str, int]) -> dict[str, int]:
    return {name: n - right.get(name, 0) for name, n in left.items()}


def usage_of(used: dict[str, int], window: Any) -> Usage:
    """`used` of one turn. Tokens that were read from the cache are among those of the input."""
    known = [used.pop(f"{name}Tokens", None) for name in ("input", "output", "total")]
    extra = {**used, "contextSize": window} if isinstance(window, int) else used
    return Usage(known[0], known[1], known[2], None, extra)


# --- errors --------------------------------------------------------------------------------------


def failure(error: Any) -> Failed:
    """A TurnError, with a reason of one word."""
    error = as_dict(error)
    info, text = error.get("codexErrorInfo"), message_of(error)
    kind, facts = next(iter(as_dict(info).items()), (as_word(info) or "", None))
    status = as_dict(facts).get("httpStatusCode")
    details = {"codexErrorInfo": info, "httpStatus": status}
    details = {name: value for name, value in details.items() if value is not None}
    if kind == "unauthorized" or status in (401, 403) or "Missing environment variable" in text:
        return Failed(f"{LOGIN} It said: {text}", "auth", details)
    if status == 429:
        return Failed(text, "rate-limit-exceeded", details)
    if status is not None or facts or kind in ("internalServerError", "badRequest"):
        return Failed(text, "api-error", details)
    reason = re.sub(r"[A-Z]", lambda letter: f"-{letter[0].lower()}", kind)
    return Failed(text, "agent-error" if reason in ("", "other") else reason, details)


def message_of(error: Json) -> str:
    """The message for people; it may be the JSON that the model's server has answered with."""
    text = as_word(error.get("message")) or "Codex gave no reason."
    inner = as_dict((json_object(text.encode()) or {}).get("error"))
    text = as_word(inner.get("message")) or text
    more = as_word(error.get("additionalDetails"))
    return f"{text} ({more})" if more else text
