"""A turn of Claude Code: the text, tools and results between a prompt and its end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from bridge.adapter import INTERRUPTED, model_failure
from bridge.adapter.fields import Json, Said, as_dict, as_list, as_string, as_word
from bridge.task.events import (
    AgentEvent,
    Done,
    Failed,
    FileChange,
    Retracted,
    Text,
    Thought,
    ToolCall,
    ToolResult,
    Usage,
)

from ._tools import joined, number, plan

LOOSE = 256  # pieces of a text that are joined at once: each costs more than its few letters
LOGIN = (
    "Claude Code is not logged in on the server, or its key is not accepted: run `claude` there "
    "once and log in, or start the bridge with a valid ANTHROPIC_API_KEY."
)
LOST = "No conversation found"


class ClaudeTurn:
    """`started`: the CLI has taken up a prompt of the turn. `over`: its end was reported."""

    def __init__(self) -> None:
        self.started = self.over = False
        self.results: list[Json] = []  # `result` lines of the turn: more than one if steered
        self._prompts: set[str] = set()  # ids of the turn's prompts
        self._unheard: set[str] = set()  # those that no `result` has covered yet
        self._streaming: str | None = None  # id of the message whose text is being streamed
        self._streamed: list[str] = []  # its text that no `assistant` message has confirmed yet
        self._loose = 0  # pieces at its end that are not joined yet
        self._new_block = True
        self._tools: dict[str, Json] = {}  # the turn's tool_use blocks by id
        self._changed: dict[str, None] = {}  # paths, in order
        self._api_error: str | None = None
        self._resets_at: Any = None  # of the limit that the turn met, in seconds since 1970

    def add_prompt(self, prompt_id: str) -> None:
        self._prompts.add(prompt_id)
        self._unheard.add(prompt_id)

    def start(self, prompt_id: Any) -> None:
        """The CLI has taken up a prompt, perhaps one of the turn."""
        self.started = self.started or prompt_id in self._prompts

    def tool_input(self, tool_id: str) -> Json:
        return as_dict(self._tools.get(tool_id, {}).get("input"))

    # --- text ------------------------------------------------------------------------------------

    def stream_event(self, event: Json) -> Said:
        if event.get("parent_tool_use_id"):
            return ()  # a sub-agent's text comes complete, with its `assistant` message
        inner = event["event"]
        match inner.get("type"):
            case "content_block_delta":
                return self._delta(inner["delta"])
            case "content_block_start":
                self._new_block = True
            case "message_start":
                return self._next_message(inner["message"].get("id"))
        return ()

    def _delta(self, delta: Json) -> Said:
        match delta.get("type"):
            case "text_delta":
                text = as_string(delta["text"])
                self._streamed.append(text)
                self._loose += 1
                if self._loose == LOOSE:
                    self._streamed[-LOOSE:] = ["".join(self._streamed[-LOOSE:])]
                    self._loose = 0
                new_block, self._new_block = self._new_block, False
                return (Text(text, new_block),)
            case "thinking_delta":
                return (Thought(as_string(delta["thinking"])),)
        return ()

    def _next_message(self, message_id: str | None) -> Said:
        """Another message begins: the CLI has given up streamed text without a confirmation."""
        if self._streamed and message_id != self._streaming:
            yield Retracted(len(self._take_streamed()))
        self._streaming = message_id
        self._new_block = True

    def _take_streamed(self) -> str:
        streamed = "".join(self._streamed)
        self._streamed, self._loose = [], 0
        return streamed

    def assistant(self, event: Json) -> Said:
        message = event["message"]
        parent = as_word(event.get("parent_tool_use_id"))  # the tool call of a sub-agent
        if event.get("error"):
            self._api_error = str(event["error"])
            self.rate_limit(as_dict(event.get("api_error_params")))
            return  # its text is that of the result, not the model's answer
        for block in message.get("content", ()):
            match block.get("type"):
                case "text":
                    text = as_string(block["text"])
                    yield from self._whole_text(message.get("id"), text, parent)
                case "tool_use":
                    yield from self._tool_use(block, parent)

    def _whole_text(self, message_id: str, text: str, parent: str | None) -> Said:
        """A complete text block: yields the part that was not streamed."""
        if parent:
            yield Text(text, new_block=True, parent=parent)
            return
        if self._streaming not in (None, message_id) and "".join(self._streamed) != text:
            yield from self._next_message(message_id)
        streamed = self._take_streamed()
        if not streamed:
            yield Text(text, new_block=True)
        elif text.startswith(streamed):
            rest = text[len(streamed) :]
            if rest:
                yield Text(rest)
        else:
            yield Retracted(len(streamed))
            yield Text(text, new_block=True)
        self._new_block = True

    def rate_limit(self, event: Json) -> Said:
        """The state of the windows of a subscription."""
        info = as_dict(event.get("rate_limit_info"))
        if info.get("status", "rejected") == "rejected":
            self._resets_at = info.get("resetsAt") or self._resets_at
        return ()

    # --- tools -----------------------------------------------------------------------------------

    def _tool_use(self, block: Json, parent: str | None) -> Said:
        tool_id, name = as_string(block["id"]), str(block.get("name") or "")
        arguments = block.get("input") or {}
        self._tools[tool_id] = block
        yield ToolCall(tool_id, name, arguments, parent)
        todos = as_dict(arguments).get("todos")
        if name == "TodoWrite" and isinstance(todos, list):
            yield plan(todos)

    def user(self, event: Json) -> Said:
        content = event["message"].get("content")
        if event.get("isReplay") or not isinstance(content, list):
            return
        for block in content:
            if block.get("type") == "tool_result":
                yield self._tool_result(block, event)

    def _tool_result(self, block: Json, event: Json) -> AgentEvent:
        tool_id = as_string(block["tool_use_id"])
        failed = bool(block.get("is_error"))
        change = None if failed else _file_change(event.get("tool_use_result"))
        if change:
            self._changed[change.path] = None
        content = block.get("content")
        return ToolResult(
            tool_id,
            joined(content) if isinstance(content, list) else content,
            failed,
            as_word(self._tools.get(tool_id, {}).get("name")),
            as_word(event.get("parent_tool_use_id")),
            changes=(change,) if change else (),
        )

    # --- the end ---------------------------------------------------------------------------------

    def add_result(self, event: Json) -> bool:
        """False if the result belongs to a turn that the CLI began by itself."""
        covers = set(filter(as_word, as_list(event.get("user_message_uuids"))))
        if covers and self._prompts.isdisjoint(covers):
            return False
        self._unheard -= covers or self._prompts  # older CLIs do not name the prompts
        self.results.append(event)
        return True

    @property
    def complete(self) -> bool:
        """Whether a `result` has covered each prompt."""
        return bool(self.results) and not self._unheard

    def outcome(self, lost: Failed) -> Done | Failed:
        """`lost`: the failure if the conversation no longer exists."""
        self._take_streamed()  # text without a confirmation stays
        result = self.results[-1]
        if result.get("is_error"):
            return self._failure(result, lost)
        denials = as_list(result.get("permission_denials"))
        details = {
            "durationMs": result.get("duration_ms"),
            "turns": result.get("num_turns"),
            "stopReason": result.get("stop_reason"),
            "changedFiles": list(self._changed) or None,
            "denied": [as_dict(denial).get("tool_name") for denial in denials] or None,
        }
        known = {name: value for name, value in details.items() if value is not None}
        return Done(summary=str(result.get("result") or ""), details=known)

    def _failure(self, result: Json, lost: Failed) -> Failed:
        problems = [str(problem) for problem in as_list(result.get("errors"))]
        text = str(result.get("result") or "; ".join(problems) or result.get("subtype"))
        status, subtype = result.get("api_error_status"), str(result.get("subtype"))
        details = {"apiStatus": status, "subtype": subtype}
        if str(result.get("terminal_reason", "")).startswith("aborted"):
            return INTERRUPTED
        if any(LOST in problem for problem in problems):
            return lost
        kinds = (result.get("api_error"), self._api_error, result.get("terminal_reason"))
        if subtype != "success" and not (status or self._api_error):
            own = subtype.replace("error_", "").replace("_", "-")
            return model_failure(text, kinds=kinds, details=details, otherwise=own)
        failed = model_failure(
            text, kinds=kinds, status=status, resets_at=self._resets_at, details=details
        )
        if failed.reason == "auth":
            return replace(failed, text=f"{LOGIN} It said: {text}")
        return failed

    def usage(self, before: float) -> Usage:
        """`before`: the total cost of the earlier turns, in USD."""
        cost = total_cost(self.results[-1]) - before
        recent = [result.get("model_usage_since_last_result") for result in self.results]
        if isinstance(recent[-1], dict):  # newer CLIs: their total includes earlier processes
            models = [model for one in recent for model in as_dict(one).values()]
            cost = sum(number(as_dict(model).get("costUSD")) for model in models)
        used = [as_dict(result.get("usage")) for result in self.results]
        read, created, sent, said = (
            sum(int(number(one.get(f"{kind}_tokens"))) for one in used)
            for kind in ("cache_read_input", "cache_creation_input", "input", "output")
        )
        cache = {"cacheReadTokens": read, "cacheCreationTokens": created}
        return Usage(sent, said, sent + said + read + created, round(cost, 6), cache)


# --- members of a line, of any type --------------------------------------------------------------


def total_cost(result: Json) -> float:
    """USD, of the process or, in newer CLIs, of the conversation."""
    return number(result.get("total_cost_usd"))


def _file_change(result: Any) -> FileChange | None:
    """The change in the structured result of Write or Edit."""
    if not isinstance(result, dict) or not isinstance(result.get("structuredPatch"), list):
        return None
    path = result.get("filePath")
    if not isinstance(path, str):
        return None
    created = result.get("type") == "create"
    kind: Literal["create", "update"] = "create" if created else "update"
    lines = [f"--- {'/dev/null' if created else path}", f"+++ {path}"]
    try:
        for hunk in result["structuredPatch"]:
            old = f"{hunk['oldStart']},{hunk['oldLines']}"
            lines += [f"@@ -{old} +{hunk['newStart']},{hunk['newLines']} @@", *hunk["lines"]]
        if created and not result["structuredPatch"]:
            lines += _created(str(result.get("content") or ""))
        return FileChange(path, kind, "\n".join(lines) + "\n")
    except (LookupError, TypeError):
        return FileChange(path, kind)


def _created(content: str) -> list[str]:
    """The hunk of a new file. An empty file has no hunk."""
    if not content:
        return []
    lines = content.removesuffix("\n").split("\n")
    end = [] if content.endswith("\n") else ["\\ No newline at end of file"]
    return [f"@@ -0,0 +1,{len(lines)} @@", *(f"+{line}" for line in lines), *end]
