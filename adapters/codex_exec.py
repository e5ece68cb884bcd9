"""Codex as it runs in scripts: `codex exec --json`. Run against 0.169.0.

What decides the code (all measured):

* With `-`, the CLI reads the prompt from stdin, where it is only text (`/…`, `@…`, `!…`).
* It never asks. Commands run in a sandbox that is read-only by default, and a command that needs
  more is refused, often without an item.
* Items of type `error` are warnings, and lines of type `error` may be retried: only
  `turn.completed` and `turn.failed` end a turn.
* Text comes in whole messages. The usage is that of the conversation so far.
* Without a network it tries to connect for ever: only the limits of the bridge end that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from bridge.adapter import (
    Ability,
    AgentConfig,
    CliInfo,
    Handlers,
    Prompt,
    SessionStart,
    model_failure,
)
from bridge.adapter.fields import Json, Said, as_dict, as_list, as_string, as_word
from bridge.adapter.print_mode import PrintModeAdapter
from bridge.task.events import Done, Failed, FileChange, Status, Thought

from ._codex_trust import NO_GOALS, closed
from ._tools import counts, options, plan, usage_of
from .codex import Codex

BYPASS = "--dangerously-bypass-approvals-and-sandbox"
MESSAGES = ("agent_message", "reasoning", "todo_list", "error")  # items that are not tool calls
_COMMON = {"id", "type", "status"}


class CodexExec(PrintModeAdapter, like=Codex):
    name = "codex-exec"
    modes = ("read-only", "workspace-write")
    ignored = ("turn.started",)
    lost = re.compile("no rollout found for thread id")
    limitations: ClassVar[Mapping[Ability, str]] = {
        "questions": "without AGENT_FORCE, its sandbox refuses every other action",
        "deltas": "its text comes in whole messages",
    }
    cli_info = CliInfo(
        Codex.cli_info.install,
        "codex login, or set OPENAI_API_KEY",
        ("login", "status"),
        ("exec", "--help"),
        ("--json", "--skip-git-repo-check", "--model", "--sandbox", BYPASS),
    )

    def __init__(self, config: AgentConfig, start: SessionStart) -> None:
        super().__init__(config, start)
        # Tokens of the conversation so far; None for a resumed one: its usage is unknown.
        self._used: dict[str, int] | None = None if start.resume else {}

    def arguments(self, prompt: Prompt) -> Sequence[str]:
        # Without the flag it refuses a folder outside of a repository, which the operator chose.
        flags = [*NO_GOALS, *closed(self.config, self.start)]
        flags += ["exec", "--json", "--skip-git-repo-check"]
        mode = self.mode
        flags += [BYPASS] if self.config.force and not mode else []
        flags += options({"--sandbox": mode, "--model": self.model})
        return flags + (["resume", self.session_id, "-"] if self.session_id else ["-"])

    # --- output ----------------------------------------------------------------------------------

    def _thread_started(self, event: Json) -> Said:
        return self.began(as_string(event["thread_id"]), self.model)

    def _item(self, event: Json) -> Said:
        item = event["item"]
        match item.get("type"):
            case "todo_list":
                yield plan(item["items"])
            case kind if kind not in MESSAGES:
                yield from self.call(as_string(item["id"]), *_tool(item))

    def _item_completed(self, event: Json) -> Said:
        item = event["item"]
        match item.get("type"):
            case "agent_message":
                self.new_block = True
                yield from self.say(as_string(item["text"]))
            case "reasoning":
                yield Thought(as_string(item["text"]))
            case "error":
                yield Status(as_string(item["message"]), {"type": "warning"})
            case "todo_list":
                yield from self._item(event)
            case _:
                yield from self._item(event)
                failed = item.get("status") in ("failed", "declined")
                denied = item.get("status") == "declined"
                yield from self.result(
                    as_string(item["id"]), _output(item), failed, _changes(item), denied=denied
                )

    def _error(self, event: Json) -> Said:
        text = as_string(event["message"])
        self.problem = _failed(text)
        yield Status(text, {"type": "error"})

    def _turn_completed(self, event: Json) -> Said:
        total = counts(event.get("usage"))
        before, self._used = self._used, total
        if before is None:  # the usage includes that of earlier turns
            return self.finish(Done())
        used = {name: one - before.get(name, 0) for name, one in total.items()}
        if "input_tokens" in used and "output_tokens" in used:
            used["total"] = used["input_tokens"] + used["output_tokens"]
        tokens = ("input_tokens", "output_tokens", "total")
        cached, thought = "cached_input_tokens", "reasoning_output_tokens"
        usage = usage_of(used, tokens, cacheReadTokens=cached, reasoningTokens=thought)
        return self.finish(Done(), usage)

    def _turn_failed(self, event: Json) -> Said:
        text = as_word(as_dict(event.get("error")).get("message"))
        unknown = Failed(f"{self.title} ended the turn with an unnamed error.")
        return self.finish(_failed(text) if text else self.problem or unknown)

    handlers: ClassVar[Handlers] = {
        "thread.started": _thread_started,
        "item.started": _item,
        "item.updated": _item,
        "item.completed": _item_completed,
        "turn.completed": _turn_completed,
        "turn.failed": _turn_failed,
        "error": _error,
    }


def _failed(text: str) -> Failed:
    kinds = ("unauthorized",) if "Missing environment variable" in text else ()
    return model_failure(text, kinds=kinds, otherwise="agent-error")


def _tool(item: Json) -> tuple[str, Any]:
    """The name of the tool and its input."""
    match item.get("type"):
        case "command_execution":
            return "exec_command", {"command": item.get("command")}
        case "file_change":
            return "apply_patch", {"changes": as_list(item.get("changes"))}
        case "mcp_tool_call":
            return f"{item.get('server')}.{item.get('tool')}", item.get("arguments")
        case "web_search":
            return "web_search", {"query": item.get("query")}
    return str(item.get("type")), {k: v for k, v in item.items() if k not in _COMMON}


def _output(item: Json) -> Any:
    """The output of the tool call, as text if it is text."""
    if item.get("type") != "command_execution":
        return as_word(as_dict(item.get("error")).get("message")) or item.get("result") or ""
    output, code = as_word(item.get("aggregated_output")) or "", item.get("exit_code")
    return f"{output}(exit code {code})" if code else output


def _changes(item: Json) -> tuple[FileChange, ...]:
    kinds: dict[Any, Literal["create", "delete"]] = {"add": "create", "delete": "delete"}
    changes = map(as_dict, as_list(item.get("changes")))
    return tuple(
        FileChange(as_string(c["path"]), kinds.get(c.get("kind"), "update")) for c in changes
    )


ADAPTER = CodexExec
