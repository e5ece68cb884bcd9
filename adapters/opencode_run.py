"""opencode as it runs in scripts: `opencode run --format json`. Run against 1.18.33.

What decides the code (all measured):

* The prompt is read from stdin, where it is only text (`/…`, `@…`). As an argument it would be
  quoted anew.
* Text, thoughts and tools are told when they are complete; calls to the model that fail are made
  again without a word.
* No line says that the turn is over: the exit does. What is rejected ends the turn before the model
  is told, with exit status 0.
* SIGTERM is not heard while a command runs, SIGINT is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar
from urllib.parse import unquote, urlsplit

from bridge.adapter import Ability, CliInfo, ExitStatus, Handlers, Home, Prompt
from bridge.adapter.fields import as_dict, as_string, as_word
from bridge.adapter.print_mode import Json, PrintModeAdapter, Said, count, plan_entry, unified
from bridge.task.events import (
    AgentEvent,
    Done,
    Failed,
    FileChange,
    Plan,
    Thought,
    Usage,
)
from bridge.task.message import UrlPart

from ._acp_presets import PRESETS

PRESET = next(one for one in PRESETS if one.name == "opencode")
REJECTED = "The user rejected permission"


class OpencodeRun(PrintModeAdapter):
    name: ClassVar[str] = "opencode-run"
    title: ClassVar[str] = PRESET.title
    binary: ClassVar[str] = PRESET.binary
    environment: ClassVar[tuple[str, ...]] = PRESET.environment
    variables: ClassVar[Mapping[str, str]] = PRESET.variables
    modes: ClassVar[tuple[str, ...]] = PRESET.modes
    project_files: ClassVar[tuple[str, ...]] = PRESET.project_files
    always_loaded: ClassVar[tuple[str, ...]] = PRESET.always_loaded
    lost: ClassVar[re.Pattern[str]] = re.compile("Session not found")
    limitations: ClassVar[Mapping[Ability, str]] = {
        "questions": "what needs a permission is rejected without AGENT_FORCE, and ends the turn",
        "deltas": "its text is told in whole paragraphs",
    }
    homes: ClassVar[tuple[Home, ...]] = PRESET.homes
    reads: ClassVar[tuple[str, ...]] = PRESET.reads
    uses_any_port: ClassVar[bool] = True
    cli_info: ClassVar[CliInfo] = CliInfo(
        PRESET.install,
        PRESET.login,
        help=("run", "--help"),
        flags=("--format", "--thinking", "--session", "--model", "--agent", "--file", "--auto"),
    )

    def begin_turn(self) -> None:
        self._steps = 0
        self._used: dict[str, int] = {}
        self._cost = 0.0
        self._reason = ""  # why the last step ended

    def arguments(self, prompt: Prompt) -> Sequence[str]:
        flags = ["run", "--format=json", "--thinking"]
        if self.session_id:
            flags.append(f"--session={self.session_id}")
        if self.model:
            flags.append(f"--model={self.model}")
        if self.start.options.mode:
            flags.append(f"--agent={self.start.options.mode}")
        if self.config.force:
            flags.append("--auto")
        # Attached, they can be read without a permission, wherever they are.
        return flags + [f"--file={path}" for path in _files(prompt)]

    def closing(self) -> Mapping[str, str]:
        return PRESET.closing(self.config, self.start)

    def halt(self) -> None:
        self.break_off()

    # --- what it says --------------------------------------------------------------------------

    def _step_start(self, event: Json) -> Iterator[AgentEvent]:
        self._steps += 1
        if self._steps == 1:
            yield from self.began(as_string(event["sessionID"]), self.model)

    def _text(self, event: Json) -> Iterator[AgentEvent]:
        self.new_block = True
        yield from self.say(as_string(event["part"]["text"]))

    def _reasoning(self, event: Json) -> Iterator[AgentEvent]:
        yield Thought(as_string(event["part"]["text"]))

    def _tool_use(self, event: Json) -> Iterator[AgentEvent]:
        part = event["part"]
        tool_id, state = as_string(part["callID"]), part["state"]
        name, meta = str(part.get("tool")), as_dict(state.get("metadata"))
        yield from self.call(tool_id, name, state.get("input"))
        todos = as_dict(state.get("input")).get("todos")
        if name == "todowrite" and isinstance(todos, list):
            yield Plan(tuple(map(plan_entry, todos)))
        failed = state.get("status") != "completed" or meta.get("exit", 0) != 0
        output = state.get("output") or state.get("error") or ""
        denied = failed and str(output).startswith(REJECTED)
        yield from self.result(tool_id, output, failed, _changes(meta), denied=denied)

    def _step_finish(self, event: Json) -> Iterator[AgentEvent]:
        tokens = as_dict(event["part"].get("tokens"))
        for name in ("input", "output", "total"):
            self._used[name] = self._used.get(name, 0) + (count(tokens.get(name)) or 0)
        self._reason = str(event["part"].get("reason"))
        cost = event["part"].get("cost")
        self._cost += cost if isinstance(cost, int | float) else 0
        yield from ()

    def _error(self, event: Json) -> Iterator[AgentEvent]:
        error, session_id = event["error"], as_word(event.get("sessionID"))
        data = as_dict(error.get("data"))
        status = count(data.get("statusCode"))
        text = as_word(data.get("message")) or str(error.get("name"))
        reason = "auth" if status in (401, 403) else "api-error" if status else "agent-error"
        self.problem = Failed(text, reason, {"apiStatus": status, "name": error.get("name")})
        if session_id and not self._steps:
            yield from self.began(session_id, self.model)

    def ended(self, status: ExitStatus) -> Said:
        if status.code != 0 or self.problem or not self._steps:
            return [self.failure(status)]
        sent, said, total = (self._used.get(name) for name in ("input", "output", "total"))
        return self.finish(self._outcome(), Usage(sent, said, total, round(self._cost, 6)))

    def _outcome(self) -> Done | Failed:
        if self._reason == "length":
            text = "The answer was cut: the model had reached its limit of tokens."
            return Failed(text, "max-tokens")
        if self.denied and self._reason == "tool-calls":
            text = f"{self.title} needs a permission ({self.denied[-1]}) that nobody can give here."
            return Failed(f"{text} AGENT_FORCE would allow all.", "denied")
        return Done()

    handlers: ClassVar[Handlers] = {
        "step_start": _step_start,
        "text": _text,
        "reasoning": _reasoning,
        "tool_use": _tool_use,
        "step_finish": _step_finish,
        "error": _error,
    }


def _files(prompt: Prompt) -> Iterator[str]:
    for part in prompt.parts:
        if isinstance(part, UrlPart) and part.url.startswith("file:"):
            yield unquote(urlsplit(part.url).path)


def _changes(meta: Json) -> tuple[FileChange, ...]:
    """The change that a tool's metadata tell of."""
    diff = as_dict(meta.get("filediff"))
    path = as_word(diff.get("file"))
    if path:
        return (FileChange(path, "update", unified(diff.get("patch"))),)
    path = as_word(meta.get("filepath"))
    if path and isinstance(meta.get("exists"), bool):  # what was written, not read
        return (FileChange(path, "update" if meta["exists"] else "create"),)
    return ()


ADAPTER = OpencodeRun
