"""Cursor CLI: over ACP, which has questions; with AGENT_FORCE in its print mode, which has none.

It was not run. The facts are from its documentation and from published recordings (versions 2026.02
to 2026.10). Tests run tests/support/cursor_agent.py instead.

* With `--stream-partial-output` a piece of text has a `timestamp_ms` and no `model_call_id`. The
  whole text follows the pieces: before a tool, and at the end.
* `--force` allows everything that its configuration does not deny. Without it, the CLI edits files
  and rejects commands. It does not run without `--trust`, which allows nothing else.
* A tool is a member of `tool_call` that is called after it: `shellToolCall`, `function`.
* It asks (`interaction_query`) and answers its own questions.
* It may print `result` and not exit, or fail with only an exit.
* The prompt is an argument. After `--` it cannot be a flag. With a space in front it cannot be a
  command of the program (`logout`), and is not passed to the cloud (`&…`); for commands of the
  agent (`/…`) see plain(). Not tested. The kernel limits an argument to 128 KiB.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from bridge.adapter import (
    Ability,
    Adapter,
    AgentConfig,
    CliInfo,
    ExitStatus,
    Handlers,
    Prompt,
    model_failure,
)
from bridge.adapter.diff import unified
from bridge.adapter.fields import Json, Said, as_dict, as_string, as_word
from bridge.adapter.line_mode import plain
from bridge.adapter.print_mode import PrintModeAdapter
from bridge.task.events import Done, Failed, FileChange, Status, Thought
from bridge.task.text import json_object

from . import _project_files as files
from ._acp import Acp
from ._tools import options, plan, usage_of

FAILURE = re.compile("reject|error|fail|denied|timeout", re.IGNORECASE)
LOGIN = re.compile("not logged in|authentication required|log in|unauthenticated", re.IGNORECASE)


class CursorAcp(Acp):
    name = "cursor"
    title = "Cursor CLI"
    binary = "agent"
    arguments = ("acp",)
    environment = ("CURSOR_*",)
    modes = ("agent", "plan", "ask")
    widths = ("ask", "plan", "agent")
    logins = (("", "cursor_login"),)
    project_files = always_loaded = files.CURSOR  # its documentation has no switch
    login_first = True  # according to its documentation; it succeeds at once if logged in
    verified = False
    install = "curl https://cursor.com/install -fsS | bash"
    login = "agent login, or set CURSOR_API_KEY"


class Cursor(PrintModeAdapter, like=CursorAcp):
    name = CursorAcp.name
    ignored = ("user",)
    lost = re.compile(
        r"(?:chat|session|conversation)\b.{0,80}(?:not found|does not exist)|no such chat",
        re.IGNORECASE,
    )
    limitations: ClassVar[Mapping[Ability, str]] = {
        "questions": "it runs with AGENT_FORCE and asks no questions"
    }
    writable_paths = ("~/.cursor/chats/", "~/.cursor/logs/")
    reads = ("~/.cursor", "${XDG_CONFIG_HOME:-~/.config}/cursor")
    cli_info = CliInfo(
        CursorAcp.install,
        CursorAcp.login,
        flags=("--print", "--output-format", "--stream-partial-output", "--force", "--trust"),
    )

    @classmethod
    def variant_for(cls, config: AgentConfig) -> type[Adapter]:
        return cls if config.force else CursorAcp

    def begin_turn(self) -> None:
        self._streamed: list[str] = []  # since the last whole
        self._whole = ""  # the last one
        self._given: dict[str, Any] = {}  # to the tools, by the ids of their calls

    def arguments(self, prompt: Prompt) -> Sequence[str]:
        flags = ["--print", "--output-format=stream-json", "--stream-partial-output", "--trust"]
        flags += ["--force"] if self.config.force else []
        mode = self.mode
        mode = mode if mode in ("plan", "ask") else None  # without a flag, the mode is `agent`
        flags += options({"--model": self.model, "--mode": mode, "--resume": self.session_id})
        return [*flags, "--", f" {plain(prompt.text)}"]

    def input(self, prompt: Prompt) -> str:
        return ""

    # --- output ----------------------------------------------------------------------------------

    def _system(self, event: Json) -> Said:
        if event.get("subtype") == "init":
            facts = (as_word(event.get("model")), None, as_word(event.get("permissionMode")))
            yield from self.began(as_string(event["session_id"]), *facts)

    def _thinking(self, event: Json) -> Said:
        if event.get("subtype") == "delta":
            yield Thought(as_string(event["text"]))

    def _assistant(self, event: Json) -> Said:
        blocks = [one for one in event["message"]["content"] if one.get("type") == "text"]
        text = "".join(as_string(one["text"]) for one in blocks)
        if "timestamp_ms" in event and "model_call_id" not in event:
            self._streamed.append(text)
            yield from self.say(text)
            return
        streamed, self._streamed = "".join(self._streamed), []
        repeated = text == self._whole or not text.startswith(streamed)
        self._whole = text
        if not repeated:
            self.new_block = self.new_block or not streamed
            yield from self.say(text[len(streamed) :])

    def _tool_call(self, event: Json) -> Said:
        if event.get("subtype") == "started":
            self._whole = ""  # an equal text after a tool is not a repetition
        tool_id = as_string(event["call_id"])
        name, given, result = _tool(event["tool_call"])
        if given:
            self._given[tool_id] = given
        given = self._given.get(tool_id, {})
        yield from self.call(tool_id, name, given)
        if event.get("subtype") != "completed":
            return
        outcome, output = next(iter(as_dict(result).items()), ("success", result))
        denied = "reject" in outcome.lower()
        failed = bool(FAILURE.search(outcome)) or bool(as_dict(output).get("exitCode"))
        changes = _changes(name, as_dict(given), as_dict(output))
        yield from self.result(tool_id, _output(output, denied), failed, changes, denied=denied)
        todos = as_dict(output).get("todos") or as_dict(given).get("todos")
        if isinstance(todos, list) and not failed:
            yield plan(todos)

    def _interaction_query(self, event: Json) -> Said:
        if event.get("subtype") == "request":
            kind = str(event.get("query_type"))
            facts = {"type": "interaction_query", "query": event.get("query")}
            yield Status(f"{self.title} asks and answers itself: {kind}", facts)

    def _error(self, event: Json) -> Said:
        text = as_word(event.get("message")) or as_word(as_dict(event.get("error")).get("message"))
        self.problem = self._failed(as_string(text or event.get("error")))
        yield Status(self.problem.text, {"type": "error"})

    def _result(self, event: Json) -> Said:
        used = as_dict(event.get("usage"))
        cache = {"cacheReadTokens": "cacheReadTokens", "cacheCreationTokens": "cacheWriteTokens"}
        usage = usage_of(used, ("inputTokens", "outputTokens"), **cache) if used else None
        text = as_word(event.get("result")) or ""
        if event.get("is_error") or event.get("subtype") != "success":
            yield from self.finish(self._failed(text or f"{self.title} gives no reason."), usage)
        else:
            yield from self.finish(Done(summary="".join(self.block) or text), usage)

    def ended(self, status: ExitStatus) -> Said:
        failed = self.failure(status)
        if failed.reason == "exit" and LOGIN.search(status.stderr):
            text = f"{self.title} is not logged in on the server: {CursorAcp.login}. {failed.text}"
            return [Failed(text, "auth", failed.details)]
        return [failed]

    def _failed(self, text: str) -> Failed:
        kinds = ("auth",) if LOGIN.search(text) else ()
        return model_failure(text, kinds=kinds, otherwise="agent-error")

    handlers: ClassVar[Handlers] = {
        "system": _system,
        "thinking": _thinking,
        "assistant": _assistant,
        "tool_call": _tool_call,
        "interaction_query": _interaction_query,
        "error": _error,
        "result": _result,
    }


# --- tools ---------------------------------------------------------------------------------------


def _tool(call: Json) -> tuple[str, Any, Any]:
    """Name, arguments and result of a tool with a member of its own, or of a function."""
    for name, body in call.items():
        if name == "function" and isinstance(body, dict):
            text = as_word(body.get("arguments"))
            given = json_object(text.encode()) if text else body.get("arguments")
            return str(body.get("name")), given, body.get("result") or call.get("result")
        if isinstance(body, dict) and (name.endswith("ToolCall") or "args" in body):
            return name.removesuffix("ToolCall"), body.get("args"), body.get("result")
    return "tool", call, None


def _output(output: Any, denied: bool) -> Any:
    """The output as text, if it is text."""
    known = as_dict(output)
    if denied:
        return as_word(known.get("reason")) or "Rejected: it needs a permission."
    if "stdout" in known or "stderr" in known:
        return f"{known.get('stdout') or ''}{known.get('stderr') or ''}"
    return next((known[name] for name in ("content", "errorMessage") if name in known), output)


def _changes(tool: str, given: Json, output: Json) -> tuple[FileChange, ...]:
    path = as_word(output.get("path")) or as_word(given.get("path"))
    if not path or tool not in ("edit", "write", "delete"):
        return ()
    kind: Literal["create", "update", "delete"] = "update"
    before = output.get("beforeFullFileContent")
    if tool == "delete":
        kind = "delete"
    elif before == "" or (tool == "write" and not before):
        kind = "create"
    diff = unified(output.get("diffString"))
    return (
        FileChange(path, kind, re.sub(r"\A--- a\n\+\+\+ b\n", f"--- {path}\n+++ {path}\n", diff)),
    )


ADAPTER = Cursor
