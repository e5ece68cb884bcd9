"""The thread items and errors of Codex as events, without the state of a turn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from bridge.adapter import model_failure
from bridge.adapter.diff import unified_diff
from bridge.adapter.fields import Json, as_dict, as_list, as_string, as_word
from bridge.task.events import Failed, FileChange, Retracted, Text, Usage
from bridge.task.text import json_object

from ._tools import joined, number, tokens

LOGIN = (
    "Codex is not logged in on the server, or its key is not accepted: run `codex login` there "
    "once, or give its model provider a valid key (OPENAI_API_KEY)."
)
# Types of items that are not tool calls. An unknown type counts as a tool call.
NO_TOOLS = {
    *("userMessage", "agentMessage", "plan", "reasoning", "hookPrompt", "contextCompaction"),
    *("enteredReviewMode", "exitedReviewMode", "subAgentActivity", "functionCallOutput"),
}
_COMMON = {"id", "type", "status", "startedAtMs", "completedAtMs", "durationMs"}


# --- text ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class AnswerText:
    """The text of the answer. Its items may be streamed alternately (a plan inside a message)."""

    whole: str = ""  # the text of the last completed item
    _open: dict[str, list[str]] = field(default_factory=dict)  # streamed text of items, by id
    _blocks: list[tuple[str, int]] = field(default_factory=list)  # item and length, in order

    def delta(self, item: str, text: str) -> Iterator[Text]:
        if text:
            new_block = not self._blocks or self._blocks[-1][0] != item
            before = 0 if new_block else self._blocks.pop()[1]
            self._open.setdefault(item, []).append(text)
            self._blocks.append((item, before + len(text)))
            yield Text(text, new_block)

    def completed(self, item: str, text: str) -> Iterator[Text | Retracted]:
        """The complete item replaces its streamed text: yields the rest."""
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
        """Retract the streamed text of incomplete items: the model starts again."""
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
    """The name of the tool and its input."""
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


def has_input(item: Json) -> bool:
    """Whether the input of the tool is known."""
    given = tool_of(item)[1]
    return any(given.values()) if isinstance(given, dict) else bool(given)


def output_of(item: Json) -> Any:
    """The output of the tool call, as text if it is text."""
    match item.get("type"):
        case "commandExecution":
            output, code = as_word(item.get("aggregatedOutput")) or "", item.get("exitCode")
            return f"{output}(exit code {code})" if code else output
        case "mcpToolCall" if item.get("error"):
            return as_dict(item["error"]).get("message")
        case "mcpToolCall":
            return joined(as_list(as_dict(item.get("result")).get("content")))
        case "dynamicToolCall":
            return joined(as_list(item.get("contentItems")))
        case "collabAgentToolCall":
            return item.get("agentsStates")
        case "webSearch":
            return item.get("results")
    return ""


def has_failed(item: Json) -> bool:
    return item.get("status") in ("failed", "declined") or item.get("success") is False


def changes_of(item: Json) -> Iterator[FileChange]:
    """A new or deleted file has its content as the diff, an update has hunks without a header."""
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


# --- usage ---------------------------------------------------------------------------------------


def less(left: Mapping[str, int], right: Mapping[str, int]) -> dict[str, int]:
    return {name: n - right.get(name, 0) for name, n in left.items()}


def usage_of(used: dict[str, int], window: Any) -> Usage:
    """`used` of one turn. The input tokens include tokens that were read from the cache."""
    known = tokens(used)
    extra = {**used, "contextSize": window} if isinstance(window, int) else used
    return Usage(*known, None, extra)


# --- errors --------------------------------------------------------------------------------------


def failure(error: Any, limits: Json) -> Failed:
    """The failure for a TurnError. `limits`: the windows of a subscription. An exceeded usage limit
    may be a full window, or an account without credit: only the window tells them apart."""
    error = as_dict(error)
    info, text = error.get("codexErrorInfo"), message_of(error)
    kind, facts = next(iter(as_dict(info).items()), (as_word(info) or "", None))
    status = as_dict(facts).get("httpStatusCode")
    details = {"codexErrorInfo": info, "httpStatus": status}
    if "Missing environment variable" in text:
        kind = "unauthorized"
    own = re.sub(r"[A-Z]", lambda letter: f"-{letter[0].lower()}", kind)
    if kind == "usageLimitExceeded":
        full = _full_window(limits)
        kind, own = ("rateLimitExceeded", own) if full else ("", "quota")
    else:
        full = None
    otherwise = "model-error" if facts else "agent-error" if own in ("", "other") else own
    failed = model_failure(
        text, kinds=(kind,), status=status, resets_at=full, details=details, otherwise=otherwise
    )
    if failed.reason == "auth":
        return replace(failed, text=f"{LOGIN} It said: {text}")
    return failed


def _full_window(limits: Json) -> Any:
    """When the last full window of a subscription ends, in seconds since 1970."""
    windows = [as_dict(limits.get(name)) for name in ("primary", "secondary")]
    full = [one.get("resetsAt") for one in windows if number(one.get("usedPercent")) >= 100]
    return max((one for one in full if isinstance(one, int)), default=None)


def message_of(error: Json) -> str:
    """The text of the error. The message may be the JSON answer of the model's server."""
    text = as_word(error.get("message")) or "Codex gave no reason."
    inner = as_dict((json_object(text.encode()) or {}).get("error"))
    text = as_word(inner.get("message")) or text
    more = as_word(error.get("additionalDetails"))
    return f"{text} ({more})" if more else text
