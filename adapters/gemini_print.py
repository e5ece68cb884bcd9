"""Gemini CLI in its print mode: `gemini --output-format stream-json`. Run against 0.61.0.

What decides the code (all measured):

* Without `-p`, the CLI reads the prompt from stdin. A prompt that begins with `/` may be a command,
  also a command of the workspace: see plain(). The CLI replaces `@path` by that file or folder of
  the workspace (it reads nothing outside), and nothing that hides this from the model prevents it.
* Tools that need a permission are missing; the model gets an error when it calls one.
* Exit codes are not reliable (145 for a model's 401, 0 for a broken stream): `result` is.
* A conversation cannot be resumed before the model's first output. A conversation with a given id
  (`--session-id`) cannot be begun twice. So the CLI makes the id, and prints it at once.
* After a broken stream the CLI retries and prints the text again: nothing marks the repetition.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from bridge.adapter import (
    Ability,
    AgentConfig,
    CliInfo,
    ExitStatus,
    Handlers,
    Home,
    Prompt,
    SessionStart,
)
from bridge.adapter.fields import as_dict, as_string, as_word
from bridge.adapter.print_mode import Json, PrintModeAdapter, Said
from bridge.task.events import AgentEvent, Done, Failed, FileChange, Started, Status, Usage

from ._plain import plain
from ._tools import count, counts
from .acp import Gemini

WRITES = ("write_file", "replace")
NO_LOGIN = 41  # its exit code
REFUSED = ("tool_not_registered", "policy_violation")


class GeminiPrint(PrintModeAdapter):
    name: ClassVar[str] = "gemini-print"
    title: ClassVar[str] = Gemini.title
    binary: ClassVar[str] = Gemini.binary
    environment: ClassVar[tuple[str, ...]] = Gemini.environment
    variables: ClassVar[Mapping[str, str]] = Gemini.variables
    modes: ClassVar[tuple[str, ...]] = Gemini.modes
    project_files: ClassVar[tuple[str, ...]] = Gemini.project_files
    # It runs in trusted folders only.
    always_loaded: ClassVar[tuple[str, ...]] = Gemini.project_files
    lost: ClassVar[re.Pattern[str]] = re.compile("Error resuming session")
    limitations: ClassVar[Mapping[Ability, str]] = {
        "questions": "without AGENT_FORCE, tools that need a permission are missing",
    }
    writable_paths: ClassVar[tuple[str, ...]] = Gemini.writable_paths
    homes: ClassVar[tuple[Home, ...]] = Gemini.homes
    cli_info: ClassVar[CliInfo] = CliInfo(
        Gemini.install,
        Gemini.login,
        flags=("--output-format", "--approval-mode", "--resume", "--model"),
    )

    def __init__(self, config: AgentConfig, start: SessionStart) -> None:
        super().__init__(config, start)
        self._paths: dict[str, str] = {}  # paths that a tool writes, by the tool call's id
        # Id and model of a conversation without any output of the model yet.
        self._facts: tuple[str, str | None] | None = None

    def arguments(self, prompt: Prompt) -> Sequence[str]:
        flags = ["--output-format=stream-json"]
        if self.session_id:
            flags.append(f"--resume={self.session_id}")
        mode = self.start.options.mode or ("yolo" if self.config.force else None)
        if mode:
            flags.append(f"--approval-mode={'auto_edit' if mode == 'autoEdit' else mode}")
        if self.model:
            flags.append(f"--model={self.model}")
        if self.start.folder:
            flags.append(f"--include-directories={self.start.folder}")
        return flags

    def input(self, prompt: Prompt) -> str:
        return plain(prompt.text)

    # --- output ----------------------------------------------------------------------------------

    def _init(self, event: Json) -> Iterator[AgentEvent]:
        facts = as_string(event["session_id"]), as_word(event.get("model"))
        if self.session_id:
            yield from self.began(*facts)
        else:
            self._facts = facts
            yield Started(None, facts[1])

    def _kept(self) -> Iterator[AgentEvent]:
        facts, self._facts = self._facts, None
        if facts:
            yield from self.began(*facts)

    def _message(self, event: Json) -> Iterator[AgentEvent]:
        if event.get("role") == "assistant":
            yield from self._kept()
            yield from self.say(as_string(event["content"]))

    def _tool_use(self, event: Json) -> Iterator[AgentEvent]:
        tool_id, name, given = as_string(event["tool_id"]), event.get("tool_name"), event.get
        path = as_dict(given("parameters")).get("file_path")
        yield from self._kept()
        if name in WRITES and isinstance(path, str):
            self._paths[tool_id] = path
        yield from self.call(tool_id, str(name), given("parameters"))

    def _tool_result(self, event: Json) -> Iterator[AgentEvent]:
        tool_id, problem = as_string(event["tool_id"]), as_dict(event.get("error"))
        path = self._paths.pop(tool_id, None)
        changes = (FileChange(path, "update"),) if path else ()
        output = event.get("output") or problem.get("message") or ""
        failed, denied = event.get("status") != "success", problem.get("type") in REFUSED
        yield from self.result(tool_id, output, failed, changes, denied=denied)

    def _error(self, event: Json) -> Iterator[AgentEvent]:
        text = as_string(event["message"])
        if event.get("severity") == "error":
            self.problem = Failed(text)
        yield Status(text, {"type": "error", "severity": event.get("severity")})

    def ended(self, status: ExitStatus) -> Said:
        failed = self.failure(status)
        return [replace(failed, reason="auth") if status.code == NO_LOGIN else failed]

    def _result(self, event: Json) -> Iterator[AgentEvent]:
        stats = as_dict(event.get("stats"))
        sent, said, total = (count(stats.get(f"{one}_tokens")) for one in _TOKENS)
        extra = counts(
            {"cacheReadTokens": stats.get("cached"), "toolCalls": stats.get("tool_calls")}
        )
        usage = Usage(sent, said, total, None, extra or None)
        if event.get("status") == "success":
            yield from self.finish(Done(), usage)
            return
        text = as_word(as_dict(event.get("error")).get("message"))
        problem = (
            Failed(text, "auth" if _REFUSED_KEY.search(text) else "api-error") if text else None
        )
        unknown = Failed(f"{self.title} ended the turn with an unnamed error.")
        yield from self.finish(problem or self.problem or unknown, usage)

    handlers: ClassVar[Handlers] = {
        "init": _init,
        "message": _message,
        "tool_use": _tool_use,
        "tool_result": _tool_result,
        "error": _error,
        "result": _result,
    }


_TOKENS = ("input", "output", "total")
_REFUSED_KEY = re.compile(r'"code":\s*(?:401|403)\b')  # in the API's own answer

ADAPTER = GeminiPrint
