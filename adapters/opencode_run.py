"""opencode as it runs in scripts: `opencode run --format json`. Run against 1.18.33.

What decides the code (all measured):

* The CLI reads the prompt from stdin, where it is only text (`/…`, `@…`). It would quote an
  argument a second time.
* The CLI prints text, thoughts and tools when they are complete. It retries failed calls to the
  model without a line.
* No line ends the turn: the exit does. A rejected permission ends the turn before the model gets
  the result, with exit status 0.
* While a command runs, the CLI reacts to SIGINT but not to SIGTERM.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar
from urllib.parse import unquote, urlsplit

from bridge.adapter import Ability, CliInfo, ExitStatus, Handlers, Prompt, model_failure
from bridge.adapter.diff import unified
from bridge.adapter.fields import Json, Said, as_dict, as_string, as_word
from bridge.adapter.print_mode import PrintModeAdapter
from bridge.task.events import Done, Failed, FileChange, Thought
from bridge.task.message import UrlPart

from ._tools import count, options, plan, usage_of
from .acp import Opencode

TOKENS = ("input", "output", "total")
REJECTED = "The user rejected permission"


class OpencodeRun(PrintModeAdapter, like=Opencode):
    name = "opencode-run"
    lost = re.compile("Session not found")
    limitations: ClassVar[Mapping[Ability, str]] = {
        "questions": "without AGENT_FORCE, a rejected permission ends the turn",
        "deltas": "its text comes in whole paragraphs",
    }
    cli_info = CliInfo(
        Opencode.install,
        Opencode.login,
        help=("run", "--help"),
        flags=("--format", "--thinking", "--session", "--model", "--agent", "--file", "--auto"),
    )

    def begin_turn(self) -> None:
        self._steps = 0
        self._used: dict[str, int] = {}
        self._cost = 0.0
        self._reason = ""  # why the last step ended

    def arguments(self, prompt: Prompt) -> Sequence[str]:
        mode = self.mode
        own = options({"--session": self.session_id, "--model": self.model, "--agent": mode})
        force = ["--auto"] if self.config.force else []
        # The CLI reads attached files without a permission, also outside of the workspace.
        files = [f"--file={path}" for path in _files(prompt)]
        return ["run", "--format=json", "--thinking", *own, *force, *files]

    def closing(self) -> Mapping[str, str]:
        return Opencode(self.config, self.start).closing()

    def halt(self) -> None:
        self.break_off()

    # --- output ----------------------------------------------------------------------------------

    def _step_start(self, event: Json) -> Said:
        self._steps += 1
        if self._steps == 1:
            yield from self.began(as_string(event["sessionID"]), self.model)

    def _text(self, event: Json) -> Said:
        self.new_block = True
        yield from self.say(as_string(event["part"]["text"]))

    def _reasoning(self, event: Json) -> Said:
        yield Thought(as_string(event["part"]["text"]))

    def _tool_use(self, event: Json) -> Said:
        part = event["part"]
        tool_id, state = as_string(part["callID"]), part["state"]
        name, meta = str(part.get("tool")), as_dict(state.get("metadata"))
        yield from self.call(tool_id, name, state.get("input"))
        todos = as_dict(state.get("input")).get("todos")
        if name == "todowrite" and isinstance(todos, list):
            yield plan(todos)
        failed = state.get("status") != "completed" or meta.get("exit", 0) != 0
        output = state.get("output") or state.get("error") or ""
        denied = failed and str(output).startswith(REJECTED)
        yield from self.result(tool_id, output, failed, _changes(meta), denied=denied)

    def _step_finish(self, event: Json) -> Said:
        tokens = as_dict(event["part"].get("tokens"))
        for name in TOKENS:
            self._used[name] = self._used.get(name, 0) + (count(tokens.get(name)) or 0)
        self._reason = str(event["part"].get("reason"))
        cost = event["part"].get("cost")
        self._cost += cost if isinstance(cost, int | float) else 0
        return ()

    def _error(self, event: Json) -> Said:
        error, session_id = event["error"], as_word(event.get("sessionID"))
        data = as_dict(error.get("data"))
        status = count(data.get("statusCode"))
        text = as_word(data.get("message")) or str(error.get("name"))
        name = as_word(error.get("name"))
        self.problem = model_failure(
            text,
            kinds=(name,),
            status=status,
            details={"apiStatus": status, "name": name},
            otherwise="agent-error",
        )
        if session_id and not self._steps:
            yield from self.began(session_id, self.model)

    def ended(self, status: ExitStatus) -> Said:
        if status.code != 0 or self.problem or not self._steps:
            return [self.failure(status)]
        usage = usage_of(self._used, TOKENS)
        return self.finish(self._outcome(), replace(usage, cost_usd=round(self._cost, 6)))

    def _outcome(self) -> Done | Failed:
        if self._reason == "length":
            text = "The answer is incomplete: the model reached its token limit."
            return Failed(text, "max-tokens")
        if self.denied and self._reason == "tool-calls":
            text = (
                f"{self.title} needs a permission ({self.denied[-1]}), but its print mode cannot "
            )
            return Failed(f"{text}ask. AGENT_FORCE would allow all.", "denied")
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
    """The file change in a tool's metadata."""
    diff = as_dict(meta.get("filediff"))
    path = as_word(diff.get("file"))
    if path:
        return (FileChange(path, "update", unified(diff.get("patch"))),)
    path = as_word(meta.get("filepath"))
    if path and isinstance(meta.get("exists"), bool):  # of a written file, not a read one
        return (FileChange(path, "update" if meta["exists"] else "create"),)
    return ()


ADAPTER = OpencodeRun
