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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from bridge.adapter import (
    Ability,
    AgentConfig,
    CliInfo,
    ExitStatus,
    Handlers,
    Prompt,
    SessionStart,
    model_failure,
)
from bridge.adapter.fields import Json, Said, as_dict, as_string, as_word
from bridge.adapter.line_mode import plain
from bridge.adapter.print_mode import PrintModeAdapter
from bridge.task.events import Done, Failed, FileChange, Started, Status

from ._tools import options, usage_of
from .acp import Gemini

WRITES = ("write_file", "replace")
NO_LOGIN = 41  # its exit code
REFUSED = ("tool_not_registered", "policy_violation")


class GeminiPrint(PrintModeAdapter, like=Gemini):
    name = "gemini-print"
    always_loaded = Gemini.project_files  # it runs in trusted folders only
    lost = re.compile("Error resuming session")
    limitations: ClassVar[Mapping[Ability, str]] = {
        "questions": "without AGENT_FORCE, tools that need a permission are missing"
    }
    cli_info = CliInfo(
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
        mode = self.mode or ("yolo" if self.config.force else None)
        return options(
            {
                "--output-format": "stream-json",
                "--resume": self.session_id,
                "--approval-mode": "auto_edit" if mode == "autoEdit" else mode,
                "--model": self.model,
                "--include-directories": self.start.folder,
            }
        )

    def input(self, prompt: Prompt) -> str:
        return plain(prompt.text)

    # --- output ----------------------------------------------------------------------------------

    def _init(self, event: Json) -> Said:
        facts = as_string(event["session_id"]), as_word(event.get("model"))
        if self.session_id:
            yield from self.began(*facts)
        else:
            self._facts = facts
            yield Started(None, facts[1])

    def _kept(self) -> Said:
        facts, self._facts = self._facts, None
        if facts:
            yield from self.began(*facts)

    def _message(self, event: Json) -> Said:
        if event.get("role") == "assistant":
            yield from self._kept()
            yield from self.say(as_string(event["content"]))

    def _tool_use(self, event: Json) -> Said:
        tool_id, name, given = as_string(event["tool_id"]), event.get("tool_name"), event.get
        path = as_dict(given("parameters")).get("file_path")
        yield from self._kept()
        if name in WRITES and isinstance(path, str):
            self._paths[tool_id] = path
        yield from self.call(tool_id, str(name), given("parameters"))

    def _tool_result(self, event: Json) -> Said:
        tool_id, problem = as_string(event["tool_id"]), as_dict(event.get("error"))
        path = self._paths.pop(tool_id, None)
        changes = (FileChange(path, "update"),) if path else ()
        output = event.get("output") or problem.get("message") or ""
        failed, denied = event.get("status") != "success", problem.get("type") in REFUSED
        yield from self.result(tool_id, output, failed, changes, denied=denied)

    def _error(self, event: Json) -> Said:
        text = as_string(event["message"])
        if event.get("severity") == "error":
            self.problem = model_failure(text, otherwise="agent-error")
        yield Status(text, {"type": "error", "severity": event.get("severity")})

    def ended(self, status: ExitStatus) -> Said:
        failed = self.failure(status)
        return [replace(failed, reason="auth") if status.code == NO_LOGIN else failed]

    def _result(self, event: Json) -> Said:
        tokens = ("input_tokens", "output_tokens", "total_tokens")
        extra = {"cacheReadTokens": "cached", "toolCalls": "tool_calls"}
        usage = usage_of(as_dict(event.get("stats")), tokens, **extra)
        if event.get("status") == "success":
            yield from self.finish(Done(), usage)
            return
        text = as_word(as_dict(event.get("error")).get("message"))
        problem = model_failure(text) if text else None
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


ADAPTER = GeminiPrint
