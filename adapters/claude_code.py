"""Claude Code over its own control protocol: newline-delimited JSON on pipes, one long-lived
process per session. Written for 2.1.330, run against 2.1.197 recordings too.

Measured facts that decide the code:

* A control_response answers a permission. A line of plain text never does.
* `client_composed` makes a prompt plain text: without it `/…` is a command and `@path` attaches
  a file without asking. The result of the turn repeats the `uuid`.
* The full `assistant` message repeats the streamed text, and comes before its content_block_stop.
  When a stream breaks, the CLI asks the model again and streams the same text again.
* A turn ends when the session is `idle` after a `result`; if the CLI does not announce its state,
  at the `result`. `subtype` may be "success" for an error: `is_error` decides.
* `total_cost_usd` is a running total, of the process or (2.1.330) of the conversation.
* The CLI can begin turns by itself: for background work, ScheduleWakeup, cron jobs and Monitor. It
  then is `running` without a prompt. A prompt that comes meanwhile waits; from 2.1.330 on, a
  `command_lifecycle` tells when the CLI takes it up.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from bridge.adapter import (
    CONFIGURATION,
    AgentConfig,
    CliInfo,
    ExitStatus,
    Handlers,
    JsonLines,
    Launch,
    Prompt,
    SessionOptions,
    SessionStart,
    as_text,
    unasked,
)
from bridge.adapter.fields import Json, Said, as_dict, as_list, as_word, output_status
from bridge.adapter.unasked import UnaskedKind
from bridge.task.events import AgentEvent, Answer, Failed, Question, Started, Status
from bridge.task.message import Part, RawPart, media_type

from . import _homes as homes
from . import _project_files as files
from ._claude_questions import ClaudeQuestions
from ._claude_switches import QUIET, WAKING
from ._claude_turn import LOGIN, LOST, ClaudeTurn, total_cost
from ._tools import IMAGES, number, options

GREETING = "greeting"  # the request's id, outside of the numbers of the prompts
_WORK = ("stream_event", "assistant", "result", "control_request")
_RETRY = ("attempt", "max_retries", "retry_delay_ms", "error_status", "error")


class ClaudeCode(JsonLines):
    name = "claude-code"
    cache_apart = True
    understands_traces = True
    title = "Claude Code"
    binary = "claude"
    environment = ("ANTHROPIC_*", "CLAUDE_*", "IS_SANDBOX")
    modes = ("default", "plan", "acceptEdits")
    widths = ("plan", "default", "acceptEdits")
    changes = ("mode", "model")
    homes = (homes.CLAUDE,)
    project_files = files.CLAUDE
    takes_budget = True
    cli_info = CliInfo(
        "npm install -g @anthropic-ai/claude-code",
        "claude auth login, or set ANTHROPIC_API_KEY",
        ("auth", "status"),
        flags=(
            *("--print", "--verbose", "--include-partial-messages", "--input-format", "--resume"),
            *("--output-format", "--session-id", "--model", "--permission-mode", "--add-dir"),
            *("--setting-sources", "--strict-mcp-config"),
        ),
    )
    steers = True
    input_modes = ("text/*", "application/json", "application/pdf", *IMAGES)

    def __init__(self, config: AgentConfig, start: SessionStart) -> None:
        super().__init__(config, start)
        self._announces_state = False
        self._cost = 0.0  # USD, of the process so far
        self._task_id = ""
        self._ids = 0
        self._greeting = False  # the answer to `initialize` is awaited before the first prompt
        self._facts: dict[str, str | None] = {"mode": self.mode, "model": self.model}
        self._asked: dict[str, tuple[str, str]] = {}  # settings by the id of their request
        self._held: list[Prompt] = []  # prompts that wait for their answers
        self._turn = ClaudeTurn()
        self._turn.over = True
        self._started = Started()
        self._announces_prompts = False
        self._noted = False  # work of a turn of its own was reported in the present turn
        self._questions = ClaudeQuestions(self._respond, turn=lambda: self._turn)

    @classmethod
    def unsupported_reason(cls, config: AgentConfig) -> str | None:
        if config.force and config.superuser and config.env.get("IS_SANDBOX") != "1":
            return (
                "Claude Code refuses to skip permissions as root. Run the bridge as another user, "
                "unset AGENT_FORCE, or set IS_SANDBOX=1 if this machine is a sandbox."
            )
        return None

    # --- calls of the session --------------------------------------------------------------------

    def launch(self) -> Launch:
        start, config = self.start, self.config
        argv = [config.binary, *config.args, "-p", "--verbose", "--include-partial-messages"]
        argv += ["--input-format", "stream-json", "--output-format", "stream-json"]
        argv += ["--permission-prompt-tool", "stdio", f"--disallowedTools={','.join(WAKING)}"]
        closing = {}
        if not config.project_config:
            # CLAUDE.md belongs to the settings of the project, but also to any further directory.
            argv += ["--setting-sources=user", "--strict-mcp-config", "--add-dir=."]
            closing = {"CLAUDE_CODE_ADDITIONAL_DIRECTORIES_CLAUDE_MD": "1"}
        budget = start.options.budget_usd
        amount = f"{budget or 0:.10f}".rstrip("0").rstrip(".")
        argv += options(
            {
                f"--{'resume' if start.resume else 'session-id'}": start.session_id,
                "--model": self.model,
                "--permission-mode": self.mode,
                "--max-budget-usd": None if budget is None else amount,
                "--add-dir": start.folder,
            }
        )
        argv += ["--dangerously-skip-permissions"] if config.force else []
        defaults = {**QUIET, "DISABLE_AUTOUPDATER": "1"}
        own = {**closing, "CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS": "1"}
        return Launch(tuple(argv), self.unless_set(defaults) | own)

    def greet(self) -> bool:
        """`initialize` is answered before there is a conversation, and without asking the model."""
        self._greeting = True
        self._request(GREETING, "initialize")
        return True

    def prompt(self, prompt: Prompt) -> None:
        self._greeting = self._noted = False
        self._turn = ClaudeTurn()
        self._task_id = prompt.task_id
        self._configure(prompt.options)
        self._questions.begin(prompt.task_id)
        self.steer(prompt)

    def _configure(self, wanted: SessionOptions) -> None:
        """Request the settings that differ from those of the CLI."""
        self._asked, self._held = {}, []
        for name, subtype in (("mode", "set_permission_mode"), ("model", "set_model")):
            value = getattr(wanted, name)
            if value and value != self._facts[name]:
                request_id = self._new_id()
                self._asked[request_id] = name, value
                self._request(request_id, subtype, **{name: value})
        self.choose(wanted)

    def steer(self, prompt: Prompt) -> None:
        """While a tool runs, the message joins the running turn; else the CLI appends another turn,
        with a result of its own."""
        if self._asked:
            self._held.append(prompt)
            return
        prompt_id = self._new_id()
        self._turn.add_prompt(prompt_id)
        self.send_line(
            {
                "type": "user",
                "message": {"role": "user", "content": [_block(part) for part in prompt.parts]},
                "uuid": prompt_id,
                "client_composed": True,
            }
        )

    def answer(self, question: Question, answer: Answer) -> None:
        self._questions.answer(question, answer)

    def interrupt(self) -> bool:
        if self._held:  # the turn has not begun
            self._held = []
            return False
        return self.stop_unasked()

    def stop_unasked(self) -> bool:
        self._request(self._new_id(), "interrupt")
        return True

    def _request(self, request_id: str, subtype: str, **members: str) -> None:
        request = {"subtype": subtype, **members}
        self.send_line({"type": "control_request", "request_id": request_id, "request": request})

    def _respond(self, response: Json) -> None:
        self.send_line({"type": "control_response", "response": response})

    def _new_id(self) -> str:
        """A unique UUID. A second adapter with the same calls makes the same ones."""
        self._ids += 1
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self._task_id}/{self._ids}"))

    def receive_exit(self, status: ExitStatus) -> Said:
        if self._turn.results:
            yield from self._finish()
        elif LOST in status.stderr:
            yield self.conversation_lost()
        else:
            yield from super().receive_exit(status)

    # --- lines of the CLI ------------------------------------------------------------------------

    def receive_object(self, event: Json, line: bytes) -> Said:
        handler = self._handlers.get(str(event.get("type")))
        if handler is None:
            return ()
        if self._foreign and event.get("type") in (*_WORK, "user"):
            return self._unasked(event) if event["type"] in _WORK else ()
        said: list[AgentEvent] = []
        try:
            said.extend(handler(self, event))
        except (LookupError, TypeError, ValueError, AttributeError):
            # A known type in an unknown shape, of a newer CLI. Only the end of the turn is needed.
            if event.get("type") == "result" or event.get("subtype") == "session_state_changed":
                raise
            said.append(output_status(line))
            if event.get("type") == "control_request":
                self._questions.refuse(event, "The bridge does not understand this request.")
        return said

    @property
    def _foreign(self) -> bool:
        """Whether the CLI works in a turn that it began by itself."""
        turn = self._turn
        if self._announces_prompts and (turn.complete or not turn.started):
            return True
        return turn.over or bool(self._held)

    def _unasked(self, event: Json) -> Said:
        """A line of a turn that no prompt began. While a prompt waits, one of them is reported."""
        kind: UnaskedKind = "output"
        name, given = str(event["type"]), None
        if name == "control_request":
            asked = as_dict(event.get("request"))
            kind, given = "request", as_dict(asked.get("input"))
            name = as_word(asked.get("tool_name")) or str(asked.get("subtype"))
            self._questions.deny(event)
        elif name == "assistant":
            blocks = map(as_dict, as_list(as_dict(event.get("message")).get("content")))
            tool = next((one for one in blocks if one.get("type") == "tool_use"), {})
            name, given = str(tool.get("name") or name), tool.get("input")
        elif name == "result":
            given = as_dict(event.get("usage"))
        if self._turn.complete:  # the CLI continues without a pause
            yield from self._finish()
        if self._turn.over or kind == "request" or not self._noted:
            self._noted = not self._turn.over
            yield unasked(kind, name, given)

    def _command(self, event: Json) -> Said:
        """The state of a prompt, or of the cause of a turn that no prompt begins."""
        self._announces_prompts = True
        if event.get("state") == "started":
            self._turn.start(event.get("command_uuid"))
        return ()

    def _system(self, event: Json) -> Said:
        match event.get("subtype"):
            case "init":
                facts = ("session_id", "model", "claude_code_version", "permissionMode")
                self._started = Started(*(as_word(event.get(name)) for name in facts))
                self._facts["mode"] = self._started.mode
                yield self._started
            case "session_state_changed":
                self._announces_state = True
                if event.get("state") == "idle" and self._turn.complete:
                    yield from self._finish()
                elif event.get("state") == "running" and self._turn.over:
                    yield unasked("turn", "session_state_changed")
            case "api_retry":
                yield _retry(event)
            case "status" if as_word(event.get("permissionMode")) not in (
                None,
                self._facts["mode"],
            ):
                self._facts["mode"] = str(event["permissionMode"])
                yield replace(self._started, mode=self._facts["mode"])
            case "status" if event.get("status") == "compacting":
                yield Status("Compacting the conversation", {"type": "compacting"})
            case "permission_denied":
                text = f"Denied by the permission settings: {event.get('tool_name', 'a tool')}"
                yield Status(text, {"type": "permission_denied", "name": event.get("tool_name")})

    def _control_response(self, event: Json) -> Said:
        """The answer to `initialize`, or to a setting; answers to other requests are ignored."""
        response = as_dict(event.get("response"))
        name, value = self._asked.pop(str(response.get("request_id")), ("", ""))
        if name:
            yield from self._configured(name, value, response)
        if response.get("request_id") == GREETING and self._greeting:
            self._greeting = False
            yield self._greeted(response)

    def _configured(self, name: str, value: str, response: Json) -> Said:
        if response.get("subtype") == "success":
            self._facts[name] = value
        elif self._held:
            self._held, self._turn.over = [], True
            why = as_word(response.get("error")) or "it gives no reason"
            text = f"Claude Code did not take the {name} {value}: {why}"
            yield Failed(text, CONFIGURATION)
        if not self._asked:
            held, self._held = self._held, []
            for prompt in held:
                self.steer(prompt)

    def _greeted(self, response: Json) -> AgentEvent:
        if response.get("subtype") != "success":
            text = as_word(response.get("error")) or "it gives no reason"
            return Failed(f"Claude Code could not begin: {text}", "agent-error")
        said = as_dict(response.get("response"))
        if _is_logged_out(as_dict(said.get("account"))):
            return Failed(LOGIN, "auth")
        facts = (said.get("claude_code_version"), said.get("current_permission_mode"))
        return Started(None, self._resolved(as_list(said.get("models"))), *map(as_word, facts))

    def _resolved(self, models: Sequence[Any]) -> str | None:
        """The full name of the chosen model. The CLI lists the names of all its models."""
        known = {str(one.get("value")): one.get("resolvedModel") for one in map(as_dict, models)}
        return as_word(known.get(self.model or "default")) or self.model

    def _result(self, event: Json) -> Said:
        if self._turn.add_result(event) and not self._announces_state:
            return self._finish()
        return ()

    def _finish(self) -> Said:
        turn, before = self._turn, self._cost
        self._cost = total_cost(turn.results[-1])
        yield turn.usage(before)
        outcome = turn.outcome(self.conversation_lost())
        turn.results, turn.over = [], True
        yield outcome

    _handlers: ClassVar[Handlers] = {
        "stream_event": lambda self, event: self._turn.stream_event(event),
        "assistant": lambda self, event: self._turn.assistant(event),
        "user": lambda self, event: self._turn.user(event),
        "system": _system,
        "result": _result,
        "rate_limit_event": lambda self, event: self._turn.rate_limit(event),
        "command_lifecycle": _command,
        "control_request": lambda self, event: self._questions.request(event),
        "control_response": _control_response,
        "control_cancel_request": lambda self, event: self._questions.withdraw(event),
    }


# --- message parts ↔ content blocks ------------------------------------------------------------


def _block(part: Part) -> Json:
    kind = media_type(part)
    if isinstance(part, RawPart) and (kind.startswith("image/") or kind == "application/pdf"):
        source = {"type": "base64", "media_type": kind, "data": part.base64}
        return {"type": "image" if kind.startswith("image/") else "document", "source": source}
    return {"type": "text", "text": as_text(part)}


def _retry(event: Json) -> Status:
    delay = number(event.get("retry_delay_ms")) / 1000
    problem = " ".join(str(event[key]) for key in ("error_status", "error") if event.get(key))
    attempt = f"{event.get('attempt')} of {event.get('max_retries')}"
    text = f"The model did not answer ({problem}); retry {attempt} in {delay:.1f} s"
    return Status(text, {"type": "retry", **{k: v for k, v in event.items() if k in _RETRY}})


def _is_logged_out(account: Json) -> bool:
    """Whether there is neither a token nor a key. The CLI does not report credentials of other
    providers (Bedrock, Vertex)."""
    sources = {account.get(name) or "none" for name in ("tokenSource", "apiKeySource")}
    return account.get("apiProvider") == "firstParty" and sources == {"none"}


ADAPTER = ClaudeCode
