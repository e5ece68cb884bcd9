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
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from bridge.adapter import Ability, CliInfo, Handlers, Prompt, model_failure
from bridge.adapter.diff import unified
from bridge.adapter.fields import Json, Said, as_dict, as_list, as_string
from bridge.adapter.line_mode import plain
from bridge.adapter.print_mode import PrintModeAdapter
from bridge.task.events import Done, Failed, FileChange, Retracted, Status, Thought

from ._tools import options, usage_of
from .acp import Copilot


class CopilotPrint(PrintModeAdapter, like=Copilot):
    name = "copilot-print"
    project_files = always_loaded = ()
    ignored = ("assistant.*", "model.*", "session.*", "tool.*")
    lost = re.compile("No session, task, or name matched")
    limitations: ClassVar[Mapping[Ability, str]] = {
        "questions": "without AGENT_FORCE, every tool that needs a permission is denied"
    }
    cli_info = CliInfo(
        Copilot.install,
        Copilot.login,
        flags=("--output-format", "--allow-all", "--no-ask-user", "--session-id", "--resume"),
    )

    def begin_turn(self) -> None:
        self._streamed: list[str] = []  # of the message that is not confirmed yet

    def arguments(self, prompt: Prompt) -> Sequence[str]:
        own = options(
            {
                "--resume": self.session_id,
                "--session-id": None if self.session_id else self.start.session_id,
                "--model": self.model,
                "--add-dir": self.start.folder,
            }
        )
        force = ["--allow-all"] if self.config.force else []
        return ["--output-format=json", "--no-ask-user", *own, *force]

    def input(self, prompt: Prompt) -> str:
        return plain(prompt.text)

    # --- output ----------------------------------------------------------------------------------

    def _user_message(self, event: Json) -> Said:
        """The conversation is on disk, so its id can be used to resume it."""
        return self.began(self.session_id or self.start.session_id, self.model)

    def _message_start(self, event: Json) -> Said:
        self.new_block = True
        return ()

    def _delta(self, event: Json) -> Said:
        text = as_string(event["data"]["deltaContent"])
        self._streamed.append(text)
        yield from self.say(text)

    def _message(self, event: Json) -> Said:
        """A complete message: yields the part that was not streamed."""
        text = as_string(event["data"]["content"])
        streamed, self._streamed = "".join(self._streamed), []
        if not text.startswith(streamed):
            yield Retracted(len(streamed))
            streamed = ""
        self.new_block = self.new_block or not streamed
        yield from self.say(text[len(streamed) :])
        self.new_block = True

    def _retry(self, event: Json) -> Said:
        streamed, self._streamed = "".join(self._streamed), []
        self.new_block = True
        if streamed:
            yield Retracted(len(streamed))

    def _reasoning(self, event: Json) -> Said:
        yield Thought(as_string(event["data"]["deltaContent"]))

    def _tool_start(self, event: Json) -> Said:
        data = event["data"]
        return self.call(
            as_string(data["toolCallId"]), str(data.get("toolName")), data.get("arguments")
        )

    def _tool_complete(self, event: Json) -> Said:
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

    def _info(self, event: Json) -> Said:
        kind = event["data"].get("infoType")
        yield Status(as_string(event["data"]["message"]), {"type": "info", "kind": kind})

    def _error(self, event: Json) -> Said:
        data = event["data"]
        status = data.get("statusCode")
        self.problem = model_failure(
            as_string(data["message"]),
            kinds=(data.get("errorType"),),
            status=status,
            details={"apiStatus": status},
        )
        return ()

    def _result(self, event: Json) -> Said:
        extra = {"premiumRequests": "premiumRequests", "apiMs": "totalApiDurationMs"}
        used = usage_of(as_dict(event.get("usage")), ("", ""), **extra)
        usage = used if used.extra else None
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
