"""GitHub Copilot CLI in its print mode: `copilot --output-format json`. Run against 1.0.102.

What decides the code (all measured):

* Without `-p`, the CLI reads the prompt from stdin. There `@…` and `!…` are only text, but some
  `/…` are commands (`/compact`): see plain().
* `--allow-all-tools` still denies access outside of the workspace, `--allow-all` does not. The
  model gets each denial and continues.
* `assistant.message` repeats the streamed text. `assistant.turn_retry` announces that a broken
  stream is retried.
* The CLI redacts the values of secrets in all its output, even in names: any member may be missing.
  `session.error` reports a failure without `exitCode`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from bridge.adapter import Ability, CliInfo, Handlers, Home, Prompt
from bridge.adapter.fields import as_dict, as_list, as_string
from bridge.adapter.print_mode import Json, PrintModeAdapter
from bridge.task.events import (
    AgentEvent,
    Done,
    Failed,
    FileChange,
    Retracted,
    Status,
    Thought,
    Usage,
)

from ._plain import plain
from ._tools import counts, unified
from .acp import Copilot


class CopilotPrint(PrintModeAdapter):
    name: ClassVar[str] = "copilot-print"
    title: ClassVar[str] = Copilot.title
    binary: ClassVar[str] = Copilot.binary
    environment: ClassVar[tuple[str, ...]] = Copilot.environment
    ignored: ClassVar[tuple[str, ...]] = ("assistant.*", "model.*", "session.*", "tool.*")
    lost: ClassVar[re.Pattern[str]] = re.compile("No session, task, or name matched")
    limitations: ClassVar[Mapping[Ability, str]] = {
        "questions": "without AGENT_FORCE, every tool that needs a permission is denied",
    }
    homes: ClassVar[tuple[Home, ...]] = Copilot.homes
    reads: ClassVar[tuple[str, ...]] = Copilot.reads
    cli_info: ClassVar[CliInfo] = CliInfo(
        Copilot.install,
        Copilot.login,
        flags=("--output-format", "--allow-all", "--no-ask-user", "--session-id", "--resume"),
    )

    def begin_turn(self) -> None:
        self._streamed = ""  # of the message that is not confirmed yet

    def arguments(self, prompt: Prompt) -> Sequence[str]:
        flags = ["--output-format=json", "--no-ask-user"]
        known = self.session_id
        flags.append(f"--resume={known}" if known else f"--session-id={self.start.session_id}")
        if self.model:
            flags.append(f"--model={self.model}")
        if self.start.folder:
            flags.append(f"--add-dir={self.start.folder}")
        if self.config.force:
            flags.append("--allow-all")
        return flags

    def input(self, prompt: Prompt) -> str:
        return plain(prompt.text)

    # --- output ----------------------------------------------------------------------------------

    def _user_message(self, event: Json) -> Iterator[AgentEvent]:
        """The conversation is on disk, so its id can be used to resume it."""
        return self.began(self.session_id or self.start.session_id, self.model)

    def _message_start(self, event: Json) -> Iterator[AgentEvent]:
        self.new_block = True
        yield from ()

    def _delta(self, event: Json) -> Iterator[AgentEvent]:
        text = as_string(event["data"]["deltaContent"])
        self._streamed += text
        yield from self.say(text)

    def _message(self, event: Json) -> Iterator[AgentEvent]:
        """A complete message: yields the part that was not streamed."""
        text = as_string(event["data"]["content"])
        streamed, self._streamed = self._streamed, ""
        if not text.startswith(streamed):
            yield Retracted(len(streamed))
            streamed = ""
        self.new_block = self.new_block or not streamed
        yield from self.say(text[len(streamed) :])
        self.new_block = True

    def _retry(self, event: Json) -> Iterator[AgentEvent]:
        streamed, self._streamed = self._streamed, ""
        self.new_block = True
        if streamed:
            yield Retracted(len(streamed))

    def _reasoning(self, event: Json) -> Iterator[AgentEvent]:
        yield Thought(as_string(event["data"]["deltaContent"]))

    def _tool_start(self, event: Json) -> Iterator[AgentEvent]:
        data = event["data"]
        return self.call(
            as_string(data["toolCallId"]), str(data.get("toolName")), data.get("arguments")
        )

    def _tool_complete(self, event: Json) -> Iterator[AgentEvent]:
        data = event["data"]
        done, problem = as_dict(data.get("result")), as_dict(data.get("error"))
        output = done.get("content") or problem.get("message") or ""
        exit_code = as_dict(data.get("shellExecution")).get("exitCode", 0)
        failed = data.get("success") is not True or exit_code != 0
        edits = map(as_dict, as_list(data.get("fileEdits")))
        changes = tuple(_change(one, done.get("detailedContent")) for one in edits)
        denied = problem.get("code") == "denied"
        yield from self.result(
            as_string(data["toolCallId"]), output, failed, changes, denied=denied
        )

    def _info(self, event: Json) -> Iterator[AgentEvent]:
        kind = event["data"].get("infoType")
        yield Status(as_string(event["data"]["message"]), {"type": "info", "kind": kind})

    def _error(self, event: Json) -> Iterator[AgentEvent]:
        data = event["data"]
        reason = "auth" if data.get("errorType") == "authentication" else "api-error"
        self.problem = Failed(
            as_string(data["message"]), reason, {"apiStatus": data.get("statusCode")}
        )
        yield from ()

    def _result(self, event: Json) -> Iterator[AgentEvent]:
        used = as_dict(event.get("usage"))
        names = {"premiumRequests": "premiumRequests", "apiMs": "totalApiDurationMs"}
        extra = counts({name: used.get(theirs) for name, theirs in names.items()})
        usage = Usage(extra=extra) if extra else None
        code = event.get("exitCode", 0)
        problem = Failed(f"{self.title} ended the turn with the exit code {code}.")
        failed = self.problem or (problem if code != 0 else None)
        yield from self.finish(failed or Done(), usage)

    handlers: ClassVar[Handlers] = {
        "user.message": _user_message,
        "assistant.message_start": _message_start,
        "assistant.message_delta": _delta,
        "assistant.message": _message,
        "assistant.turn_retry": _retry,
        "assistant.reasoning_delta": _reasoning,
        "tool.execution_start": _tool_start,
        "tool.execution_complete": _tool_complete,
        "session.info": _info,
        "session.error": _error,
        "result": _result,
    }


def _change(edit: Json, diff: Any) -> FileChange:
    kind: Literal["create", "update"] = "create" if edit.get("kind") == "create" else "update"
    return FileChange(as_string(edit["path"]), kind, unified(diff))


ADAPTER = CopilotPrint
