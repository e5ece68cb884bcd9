"""Gemini CLI in its print mode: `gemini --output-format stream-json`. Run against 0.61.0.

What decides the code (all measured):

* The prompt is read from stdin where there is no `-p`. One that begins with `/` may be a command,
  also one of the workspace's own: see plain(). `@path` in it is replaced by that file or folder of
  the workspace (what is outside is not read), and nothing prevents that which the model would not
  see.
* Tools that need a permission are not there at all; the model is told so when it calls one.
* Exit codes say nothing (a model's 401 is 145, a broken stream is 0): `result` does.
* A conversation cannot be resumed until the model has said something, and one that is given its id
  (`--session-id`) not be begun anew either: it makes its own, and tells it at once.
* A broken stream is tried again, and the text said again: nothing tells the two apart.
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
from bridge.adapter.print_mode import Json, PrintModeAdapter, Said, count, counts
from bridge.task.events import AgentEvent, Done, Failed, FileChange, Started, Status, Usage

from ._acp_presets import PRESETS
from ._plain import plain

PRESET = next(one for one in PRESETS if one.name == "gemini")
WRITES = ("write_file", "replace")
NO_LOGIN = 41  # its exit code
REFUSED = ("tool_not_registered", "policy_violation")


class GeminiPrint(PrintModeAdapter):
    name: ClassVar[str] = "gemini-print"
    title: ClassVar[str] = PRESET.title
    binary: ClassVar[str] = PRESET.binary
    environment: ClassVar[tuple[str, ...]] = PRESET.environment
    variables: ClassVar[Mapping[str, str]] = PRESET.variables
    modes: ClassVar[tuple[str, ...]] = PRESET.modes
    project_files: ClassVar[tuple[str, ...]] = PRESET.project_files
    # It runs in trusted folders only.
    always_loaded: ClassVar[tuple[str, ...]] = PRESET.project_files
    lost: ClassVar[re.Pattern[str]] = re.compile("Error resuming session")
    limitations: ClassVar[Mapping[Ability, str]] = {
        "questions": "tools that need a permission are not there without AGENT_FORCE",
    }
    writable_paths: ClassVar[tuple[str, ...]] = PRESET.writable_paths
    homes: ClassVar[tuple[Home, ...]] = PRESET.homes
    cli_info: ClassVar[CliInfo] = CliInfo(
        PRESET.install,
        PRESET.login,
        flags=("--output-format", "--approval-mode", "--resume", "--model"),
    )

    def __init__(self, config: AgentConfig, start: SessionStart) -> None:
        super().__init__(config, start)
        self._paths: dict[str, str] = {}  # that a tool writes, by its id
        self._facts: tuple[str, str | None] | None = (
            None  # of a conversation that has nothing in it yet
        )

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

    # --- what it says --------------------------------------------------------------------------

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
        extra = counts(cacheReadTokens=stats.get("cached"), toolCalls=stats.get("tool_calls"))
        usage = Usage(sent, said, total, None, extra or None)
        if event.get("status") == "success":
            yield from self.finish(Done(), usage)
            return
        text = as_word(as_dict(event.get("error")).get("message"))
        problem = (
            Failed(text, "auth" if _REFUSED_KEY.search(text) else "api-error") if text else None
        )
        unknown = Failed(f"{self.title} ended the turn with an error that it does not name.")
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
