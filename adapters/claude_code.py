"""Claude Code over its own control protocol: newline-delimited JSON on pipes, one long-lived
process per session. Written for 2.1.330, run against 2.1.197 recordings too.

What decides the code (all measured):

* A permission is answered by a control_response. A line of plain text never answers it.
* `client_composed` makes a prompt plain text: without it `/…` is a command and `@path` attaches
  a file without asking. `uuid` comes back in the result of the turn.
* The full `assistant` message repeats what was streamed, and comes before its content_block_stop.
  When a stream breaks, the CLI asks the model again and streams the same text anew.
* A turn is over when the session is `idle` after a `result`; where the CLI does not announce its
  state, at the `result`. `subtype` may be "success" for an error: `is_error` decides.
* `total_cost_usd` is a running total, of the process or (2.1.330) of the conversation.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import orjson

from bridge.adapter import (
    Adapter,
    AgentConfig,
    CliInfo,
    ExitStatus,
    Handlers,
    Home,
    Launch,
    Prompt,
    SessionStart,
    as_text,
)
from bridge.adapter.fields import as_dict, as_list, as_string, as_word, output_status
from bridge.task.answers import is_word
from bridge.task.events import (
    SESSION_LOST,
    AgentEvent,
    Answer,
    Done,
    Failed,
    FileChange,
    Option,
    Plan,
    PlanEntry,
    PlanStatus,
    Question,
    QuestionWithdrawn,
    Retracted,
    Started,
    Status,
    Text,
    Thought,
    ToolCall,
    ToolResult,
    Usage,
)
from bridge.task.message import Part, RawPart, media_type
from bridge.task.text import json_object

from . import _homes as homes
from . import _project_files as files

Json = Mapping[str, Any]

LOOSE = 256  # pieces of a text that are joined at once: each costs more than its few letters
ALLOW = Option("allow", "Allow", "allow_once")
ALWAYS = Option("allow_always", "Always allow in this session", "allow_always")
DENY = Option("deny", "Deny", "reject_once")
APPROVE = Option("approve", "Approve the plan", "allow_once")
REVISE = Option("revise", "Send the plan back", "reject_once")
LOGIN = (
    "Claude Code is not logged in on the server, or its key is not accepted: run `claude` there "
    "once and log in, or start the bridge with a valid ANTHROPIC_API_KEY."
)
GREETING = "greeting"  # the request's id: no number is taken from those of the prompts


@dataclass(slots=True)
class _Request:
    """A can_use_tool request of the CLI, until all of its questions are answered."""

    id: str
    input: Json
    suggestions: list[Any]
    asks: dict[str, str] = field(default_factory=dict)  # question id → the question's own text
    answers: dict[str, str] = field(default_factory=dict)


class ClaudeCode(Adapter):
    name: ClassVar[str] = "claude-code"
    title: ClassVar[str] = "Claude Code"
    binary: ClassVar[str] = "claude"
    binary_setting: ClassVar[str] = "CLAUDE_CODE_PATH"
    environment: ClassVar[tuple[str, ...]] = ("ANTHROPIC_*", "CLAUDE_*", "IS_SANDBOX")
    modes: ClassVar[tuple[str, ...]] = ("default", "plan", "acceptEdits")
    homes: ClassVar[tuple[Home, ...]] = (homes.CLAUDE,)
    project_files: ClassVar[tuple[str, ...]] = files.CLAUDE
    takes_budget: ClassVar[bool] = True
    cli_info: ClassVar[CliInfo] = CliInfo(
        "npm install -g @anthropic-ai/claude-code",
        "claude auth login, or set ANTHROPIC_API_KEY",
        ("auth", "status"),
        flags=(
            *("--print", "--verbose", "--include-partial-messages", "--input-format", "--resume"),
            *("--output-format", "--session-id", "--model", "--permission-mode", "--add-dir"),
            *("--setting-sources", "--strict-mcp-config"),
        ),
    )
    remembers: ClassVar[tuple[str, ...]] = files.CLAUDE_READS
    steers: ClassVar[bool] = True
    input_modes: ClassVar[tuple[str, ...]] = (
        "text/*",
        "application/json",
        "application/pdf",
        "image/png",
        "image/jpeg",
        "image/gif",
        "image/webp",
    )

    def __init__(self, config: AgentConfig, start: SessionStart) -> None:
        super().__init__(config, start)
        self._announces_state = False
        self._cost = 0.0  # of the process so far
        self._task_id = ""
        self._ids = 0
        self._requests: dict[str, _Request] = {}
        self._greeting = False  # its answer is awaited, and nobody has given a prompt yet
        self._begin_turn()

    def _begin_turn(self) -> None:
        self._prompts: set[str] = set()  # the ids of the turn's prompts
        self._unheard: set[str] = set()  # of those, the ones that no `result` has covered yet
        self._results: list[Json] = []  # `result` lines of the turn: more than one if steered
        self._streaming: str | None = None  # id of the message whose text is being streamed
        self._streamed: list[str] = []  # its text that no `assistant` message has confirmed yet
        self._loose = 0  # pieces of it that were not joined yet, at the end
        self._new_block = True
        self._tools: dict[str, Json] = {}  # the turn's tool_use blocks by id
        self._changed: dict[str, None] = {}  # paths, in order
        self._api_error: str | None = None

    @classmethod
    def unsupported_reason(cls, config: AgentConfig) -> str | None:
        if config.force and config.superuser and config.env.get("IS_SANDBOX") != "1":
            return (
                "Claude Code refuses to skip permissions as root. Run the bridge as another user, "
                "unset AGENT_FORCE, or set IS_SANDBOX=1 if this machine is a sandbox."
            )
        return None

    # --- what the session asks for -------------------------------------------------------------

    def launch(self) -> Launch:
        start, config = self.start, self.config
        argv = [config.binary, *config.args, "-p", "--verbose", "--include-partial-messages"]
        argv += ["--input-format", "stream-json", "--output-format", "stream-json"]
        argv += ["--permission-prompt-tool", "stdio"]
        closing = {}
        if not config.project_config:
            # CLAUDE.md belongs to the settings of the project, but also to any further directory.
            argv += ["--setting-sources=user", "--strict-mcp-config", "--add-dir=."]
            closing = {"CLAUDE_CODE_ADDITIONAL_DIRECTORIES_CLAUDE_MD": "1"}
        # One argument each, so that no value can be read as a flag.
        argv.append(f"--{'resume' if start.resume else 'session-id'}={start.session_id}")
        model = start.options.model or config.model
        if model:
            argv.append(f"--model={model}")
        if start.options.mode:
            argv.append(f"--permission-mode={start.options.mode}")
        if start.options.budget_usd is not None:
            amount = f"{start.options.budget_usd:.10f}".rstrip("0").rstrip(".")
            argv.append(f"--max-budget-usd={amount}")
        if start.folder:
            argv.append(f"--add-dir={start.folder}")
        if config.force:
            argv.append("--dangerously-skip-permissions")
        defaults = {
            # A task has one end: work in the background would go on after it, unseen.
            "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
            "DISABLE_AUTOUPDATER": "1",
        }
        env = {key: value for key, value in defaults.items() if key not in config.env}
        env |= {**closing, "CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS": "1"}
        return Launch(tuple(argv), env)

    def greet(self) -> bool:
        """`initialize` is answered before there is a conversation, and without asking the model."""
        self._greeting = True
        request = {"subtype": "initialize"}
        self._send({"type": "control_request", "request_id": GREETING, "request": request})
        return True

    def prompt(self, prompt: Prompt) -> None:
        self._greeting = False
        self._begin_turn()
        self._task_id = prompt.task_id
        self.steer(prompt)

    def steer(self, prompt: Prompt) -> None:
        """While a tool runs, the message joins this very turn; else the CLI appends another one,
        with a result of its own."""
        prompt_id = self._new_id()
        self._prompts.add(prompt_id)
        self._unheard.add(prompt_id)
        self._send(
            {
                "type": "user",
                "message": {"role": "user", "content": [_block(part) for part in prompt.parts]},
                "uuid": prompt_id,
                "client_composed": True,
            }
        )

    def answer(self, question: Question, answer: Answer) -> None:
        request = next((r for r in self._requests.values() if question.id in r.asks), None)
        if request is None:
            return  # withdrawn meanwhile
        if question.kind == "choice":
            chosen = ", ".join(option.name for option in answer.options)
            request.answers[request.asks.pop(question.id)] = chosen or answer.text
            if request.asks:
                return
            response: Json = {
                "behavior": "allow",
                "updatedInput": {**request.input, "answers": request.answers},
            }
        else:
            response = _decision(request, answer)
        del self._requests[request.id]
        self._respond(request.id, response)

    def interrupt(self) -> bool:
        request = {"subtype": "interrupt"}
        self._send({"type": "control_request", "request_id": self._new_id(), "request": request})
        return True

    def _new_id(self) -> str:
        """A UUID that nobody else has, and the same one if all is told again."""
        self._ids += 1
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self._task_id}/{self._ids}"))

    def receive_exit(self, status: ExitStatus) -> Iterable[AgentEvent]:
        if self._results:
            yield from self._finish()
        elif "No conversation found" in status.stderr:
            yield Failed(_lost(self.start), SESSION_LOST)
        else:
            yield from super().receive_exit(status)

    # --- what the CLI says ---------------------------------------------------------------------

    def receive_line(self, line: bytes) -> Iterable[AgentEvent]:
        event = json_object(line)
        if event is None:
            return (output_status(line),) if line.strip() else ()
        handler = self._handlers.get(str(event.get("type")))
        if handler is None:
            return ()
        said: list[AgentEvent] = []
        try:
            said.extend(handler(self, event))
        except (LookupError, TypeError, ValueError, AttributeError):
            # A known type in an unknown shape, of a newer CLI. The turn can do without it, unless
            # it is its end.
            if event.get("type") == "result" or event.get("subtype") == "session_state_changed":
                raise
            said.append(output_status(line))
            if event.get("type") == "control_request":
                self._refuse(event, "The bridge does not understand this request.")
        return said

    def _stream_event(self, event: Json) -> Iterable[AgentEvent]:
        if event.get("parent_tool_use_id"):
            return ()  # a sub-agent's words come whole, with its `assistant` message
        inner = event["event"]
        match inner.get("type"):
            case "content_block_delta":
                return self._delta(inner["delta"])
            case "content_block_start":
                self._new_block = True
            case "message_start":
                return self._next_message(inner["message"].get("id"))
        return ()

    def _delta(self, delta: Json) -> Iterable[AgentEvent]:
        match delta.get("type"):
            case "text_delta":
                text = as_string(delta["text"])
                self._streamed.append(text)
                self._loose += 1
                if self._loose == LOOSE:
                    self._streamed[-LOOSE:] = ["".join(self._streamed[-LOOSE:])]
                    self._loose = 0
                new_block, self._new_block = self._new_block, False
                return (Text(text, new_block),)
            case "thinking_delta":
                return (Thought(as_string(delta["thinking"])),)
        return ()

    def _next_message(self, message_id: str | None) -> Iterator[AgentEvent]:
        """Another message begins: what was streamed of the one before and never confirmed was
        given up by the CLI."""
        if self._streamed and message_id != self._streaming:
            yield Retracted(len(self._stands()))
        self._streaming = message_id
        self._new_block = True

    def _stands(self) -> str:
        """What was streamed will not be confirmed any more, nor given up."""
        streamed = "".join(self._streamed)
        self._streamed, self._loose = [], 0
        return streamed

    def _assistant(self, event: Json) -> Iterator[AgentEvent]:
        message = event["message"]
        parent = _parent(event)
        if event.get("error"):
            self._api_error = str(event["error"])
            return  # its text is the result's, not the model's answer
        for block in message.get("content", ()):
            match block.get("type"):
                case "text":
                    text = as_string(block["text"])
                    yield from self._whole_text(message.get("id"), text, parent)
                case "tool_use":
                    yield from self._tool_use(block, parent)

    def _whole_text(self, message_id: str, text: str, parent: str | None) -> Iterator[AgentEvent]:
        """A text block in full: say what has not been streamed of it."""
        if parent:
            yield Text(text, new_block=True, parent=parent)
            return
        if self._streaming not in (None, message_id) and "".join(self._streamed) != text:
            yield from self._next_message(message_id)
        streamed = self._stands()
        if not streamed:
            yield Text(text, new_block=True)
        elif text.startswith(streamed):
            rest = text[len(streamed) :]
            if rest:
                yield Text(rest)
        else:
            yield Retracted(len(streamed))
            yield Text(text, new_block=True)
        self._new_block = True

    def _tool_use(self, block: Json, parent: str | None) -> Iterator[AgentEvent]:
        tool_id, name = as_string(block["id"]), str(block.get("name") or "")
        arguments = block.get("input") or {}
        self._tools[tool_id] = block
        yield ToolCall(tool_id, name, arguments, parent)
        if name == "TodoWrite" and isinstance(arguments, dict):
            todos = arguments.get("todos")
            if isinstance(todos, list):
                yield Plan(tuple(_plan_entry(todo) for todo in todos))

    def _user(self, event: Json) -> Iterator[AgentEvent]:
        content = event["message"].get("content")
        if event.get("isReplay") or not isinstance(content, list):
            return
        for block in content:
            if block.get("type") == "tool_result":
                yield self._tool_result(block, event)

    def _tool_result(self, block: Json, event: Json) -> AgentEvent:
        tool_id = as_string(block["tool_use_id"])
        failed = bool(block.get("is_error"))
        change = None if failed else _file_change(event.get("tool_use_result"))
        if change:
            self._changed[change.path] = None
        return ToolResult(
            tool_id,
            _output(block.get("content")),
            failed,
            as_word(self._tools.get(tool_id, {}).get("name")),
            _parent(event),
            (change,) if change else (),
        )

    def _system(self, event: Json) -> Iterator[AgentEvent]:
        match event.get("subtype"):
            case "init":
                facts = ("session_id", "model", "claude_code_version", "permissionMode")
                yield Started(*(as_word(event.get(name)) for name in facts))
            case "session_state_changed":
                self._announces_state = True
                if event.get("state") == "idle" and self._results and not self._unheard:
                    yield from self._finish()
            case "api_retry":
                yield _retry(event)
            case "status" if event.get("status") == "compacting":
                yield Status("Compacting the conversation", {"type": "compacting"})
            case "permission_denied":
                text = f"Denied by the permission settings: {event.get('tool_name', 'a tool')}"
                yield Status(text, {"type": "permission_denied", "name": event.get("tool_name")})

    def _control_response(self, event: Json) -> Iterator[AgentEvent]:
        """Of those to our requests only the answer to the greeting matters, while it is awaited."""
        response = as_dict(event.get("response"))
        if response.get("request_id") == GREETING and self._greeting:
            self._greeting = False
            yield self._greeted(response)

    def _greeted(self, response: Json) -> AgentEvent:
        if response.get("subtype") != "success":
            text = as_word(response.get("error")) or "it does not say why"
            return Failed(f"Claude Code could not begin: {text}", "agent-error")
        said = as_dict(response.get("response"))
        if _is_logged_out(as_dict(said.get("account"))):
            return Failed(LOGIN, "auth")
        facts = (said.get("claude_code_version"), said.get("current_permission_mode"))
        return Started(None, self._model(as_list(said.get("models"))), *map(as_word, facts))

    def _model(self, models: Sequence[Any]) -> str | None:
        """What the model that was chosen stands for; the CLI tells of all those that it offers."""
        chosen = self.start.options.model or self.config.model
        wanted = chosen or "default"
        known = {str(one.get("value")): one.get("resolvedModel") for one in map(as_dict, models)}
        return as_word(known.get(wanted)) or chosen

    # --- the end of a turn ---------------------------------------------------------------------

    def _result(self, event: Json) -> Iterator[AgentEvent]:
        covers = set(filter(as_word, as_list(event.get("user_message_uuids"))))
        if covers and self._prompts.isdisjoint(covers):
            return  # of a turn that the CLI began by itself
        self._unheard -= covers or self._prompts  # older CLIs do not say
        self._results.append(event)
        if not self._announces_state:
            yield from self._finish()

    def _finish(self) -> Iterator[AgentEvent]:
        results, self._results = self._results, []
        self._streamed, self._loose = [], 0  # what was not confirmed by now stands
        yield self._usage(results)
        result = results[-1]
        yield _failure(result, self._api_error, self.start) or Done(
            summary=str(result.get("result") or ""), details=self._details(result)
        )

    def _usage(self, results: Sequence[Json]) -> Usage:
        total = _number(results[-1].get("total_cost_usd"))
        cost, self._cost = total - self._cost, total
        recent = [result.get("model_usage_since_last_result") for result in results]
        if isinstance(recent[-1], dict):  # newer CLIs say it, and count on after --resume
            models = [model for one in recent for model in as_dict(one).values()]
            cost = sum(_number(as_dict(model).get("costUSD")) for model in models)
        tokens = [as_dict(result.get("usage")) for result in results]
        read, created, sent, said = (
            sum(int(_number(one.get(f"{kind}_tokens"))) for one in tokens)
            for kind in ("cache_read_input", "cache_creation_input", "input", "output")
        )
        cache = {"cacheReadTokens": read, "cacheCreationTokens": created}
        return Usage(sent, said, sent + said + read + created, round(cost, 6), cache)

    def _details(self, result: Json) -> Json:
        denials = as_list(result.get("permission_denials"))
        details = {
            "durationMs": result.get("duration_ms"),
            "turns": result.get("num_turns"),
            "stopReason": result.get("stop_reason"),
            "changedFiles": list(self._changed) or None,
            "denied": [as_dict(denial).get("tool_name") for denial in denials] or None,
        }
        return {name: value for name, value in details.items() if value is not None}

    # --- questions -----------------------------------------------------------------------------

    def _control_request(self, event: Json) -> Iterator[AgentEvent]:
        request_id, request = as_string(event["request_id"]), event["request"]
        if request.get("subtype") != "can_use_tool":
            self._refuse(event, f"The bridge does not serve {request.get('subtype')}.")
            return
        suggestions = as_list(request.get("permission_suggestions"))
        suggestions = [suggestion for suggestion in suggestions if isinstance(suggestion, dict)]
        pending = _Request(request_id, as_dict(request.get("input")), suggestions)
        questions = list(self._questions(pending, request))
        pending.asks |= {question.id: question.text for question in questions}
        self._requests[request_id] = pending
        yield from questions

    def _refuse(self, event: Json, text: str) -> None:
        answer = {"subtype": "error", "request_id": event.get("request_id"), "error": text}
        self._send_control(answer)

    def _questions(self, pending: _Request, request: Json) -> Iterator[Question]:
        tool = request.get("tool_name", "")
        asked = pending.input.get("questions")
        if tool == "AskUserQuestion" and isinstance(asked, list) and asked:
            for number, one in enumerate(asked):
                yield _choice(f"{pending.id}/{number}" if number else pending.id, one)
            return
        subject = {"toolCallId": request.get("tool_use_id"), "name": tool, "input": pending.input}
        if tool == "ExitPlanMode":
            plan = pending.input.get("plan") or self._tool_input(request).get("plan", "")
            text = f"Claude Code has a plan and asks to begin:\n\n{plan}"
            options = (APPROVE, REVISE)
            yield Question(pending.id, "plan", text, options, subject, free_text=True)
            return
        may = (ALLOW, ALWAYS, DENY) if pending.suggestions else (ALLOW, DENY)
        yield Question(pending.id, "permission", _wish(tool, request), may, subject)

    def _tool_input(self, request: Json) -> Json:
        block = self._tools.get(request.get("tool_use_id") or "", {})
        return as_dict(block.get("input"))

    def _control_cancel_request(self, event: Json) -> Iterator[AgentEvent]:
        request = self._requests.pop(event["request_id"], None)
        for question_id in request.asks if request else ():
            yield QuestionWithdrawn(question_id)

    # --- stdin ---------------------------------------------------------------------------------

    def _respond(self, request_id: str, response: Json) -> None:
        self._send_control({"subtype": "success", "request_id": request_id, "response": response})

    def _send_control(self, response: Json) -> None:
        self._send({"type": "control_response", "response": response})

    def _send(self, line: Json) -> None:
        self.send(orjson.dumps(line) + b"\n")

    _handlers: ClassVar[Handlers] = {
        "stream_event": _stream_event,
        "assistant": _assistant,
        "user": _user,
        "system": _system,
        "result": _result,
        "control_request": _control_request,
        "control_response": _control_response,
        "control_cancel_request": _control_cancel_request,
    }


# --- message parts ↔ content blocks ------------------------------------------------------------


def _block(part: Part) -> Json:
    kind = media_type(part)
    if isinstance(part, RawPart) and (kind.startswith("image/") or kind == "application/pdf"):
        source = {"type": "base64", "media_type": kind, "data": part.base64}
        return {"type": "image" if kind.startswith("image/") else "document", "source": source}
    return {"type": "text", "text": as_text(part)}


def _output(content: Any) -> Any:
    """A tool's output as text where it is text."""
    if not isinstance(content, list):
        return content
    blocks = [block for block in content if isinstance(block, dict)]
    return "\n".join(str(block.get("text", f"[{block.get('type')}]")) for block in blocks)


def _file_change(result: Any) -> FileChange | None:
    """The change that Write's or Edit's structured result tells of."""
    if not isinstance(result, dict) or not isinstance(result.get("structuredPatch"), list):
        return None
    path = result.get("filePath")
    if not isinstance(path, str):
        return None
    created = result.get("type") == "create"
    kind: Literal["create", "update"] = "create" if created else "update"
    lines = [f"--- {'/dev/null' if created else path}", f"+++ {path}"]
    try:
        for hunk in result["structuredPatch"]:
            old = f"{hunk['oldStart']},{hunk['oldLines']}"
            lines += [f"@@ -{old} +{hunk['newStart']},{hunk['newLines']} @@", *hunk["lines"]]
        if created and not result["structuredPatch"]:
            lines += _created(str(result.get("content") or ""))
        return FileChange(path, kind, "\n".join(lines) + "\n")
    except (LookupError, TypeError):
        return FileChange(path, kind)


def _created(content: str) -> list[str]:
    """The hunk of a new file. An empty file has none."""
    if not content:
        return []
    lines = content.removesuffix("\n").split("\n")
    end = [] if content.endswith("\n") else ["\\ No newline at end of file"]
    return [f"@@ -0,0 +1,{len(lines)} @@", *(f"+{line}" for line in lines), *end]


def _plan_entry(todo: Any) -> PlanEntry:
    todo = todo if isinstance(todo, dict) else {}
    known: dict[Any, PlanStatus] = {"in_progress": "in_progress", "completed": "completed"}
    return PlanEntry(str(todo.get("content", "")), known.get(todo.get("status"), "pending"))


# --- questions and answers ---------------------------------------------------------------------


def _choice(question_id: str, asked: Json) -> Question:
    options = tuple(
        Option(str(option.get("label")), str(option.get("label")))
        for option in asked.get("options") or ()
    )
    return Question(
        question_id,
        "choice",
        str(asked.get("question", "")),
        options,
        {"header": asked.get("header"), "options": asked.get("options")},
        free_text=True,
        multiple=bool(asked.get("multiSelect")),
    )


def _wish(tool: str, request: Json) -> str:
    """What the agent wants to do, for the person who decides."""
    arguments = request.get("input") or {}
    named = (arguments.get(name) for name in ("command", "file_path", "url", "path"))
    what = next(filter(None, named), None)
    text = f"Claude Code asks to use {tool}"
    text += f": {what}" if what else f" with {orjson.dumps(arguments).decode()}"
    reason = request.get("decision_reason")
    return f"{text}\n({reason})" if reason else text


def _decision(request: _Request, answer: Answer) -> Json:
    option = answer.option
    if option is None or option.kind.startswith("reject"):
        plain = option and (answer.text in (option.id, option.name) or is_word(answer.text))
        said = "" if plain else answer.text
        return {"behavior": "deny", "message": f"The user said no. {said}".strip()}
    response: dict[str, Any] = {"behavior": "allow", "updatedInput": request.input}
    if option.kind == "allow_always":
        # For this session only: the CLI suggests to write rules into the project's settings.
        response["updatedPermissions"] = [
            {**suggestion, "destination": "session"} for suggestion in request.suggestions
        ]
    return response


# --- results -----------------------------------------------------------------------------------


def _retry(event: Json) -> Status:
    delay = _number(event.get("retry_delay_ms")) / 1000
    problem = " ".join(str(event[key]) for key in ("error_status", "error") if event.get(key))
    attempt = f"{event.get('attempt')} of {event.get('max_retries')}"
    text = f"The model did not answer ({problem}); retry {attempt} in {delay:.1f} s"
    return Status(text, {"type": "retry", **{k: v for k, v in event.items() if k in _RETRY}})


_RETRY = ("attempt", "max_retries", "retry_delay_ms", "error_status", "error")


def _failure(result: Json, api_error: str | None, start: SessionStart) -> Failed | None:
    """What `result` says went wrong, if anything did."""
    if not result.get("is_error"):
        return None
    problems = [str(problem) for problem in as_list(result.get("errors"))]
    text = str(result.get("result") or "; ".join(problems) or result.get("subtype"))
    status = result.get("api_error_status")
    details = {"apiStatus": status, "subtype": result.get("subtype")}
    if str(result.get("terminal_reason", "")).startswith("aborted"):
        return Failed("The turn was interrupted.", "interrupted")
    if any("No conversation found" in problem for problem in problems):
        return Failed(_lost(start), SESSION_LOST)
    if api_error == "authentication_failed" or status in (401, 403):
        return Failed(f"{LOGIN} It said: {text}", "auth", details)
    reason = "api-error" if result.get("subtype") == "success" else str(result.get("subtype"))
    return Failed(text, reason.replace("error_", "").replace("_", "-"), details)


# --- members of a line, whose types are the CLI's affair ----------------------------------------


def _parent(event: Json) -> str | None:
    """The tool call of the sub-agent that speaks."""
    return as_word(event.get("parent_tool_use_id"))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _is_logged_out(account: Json) -> bool:
    """Without a token and a key; those of other providers (Bedrock, Vertex) are not told of."""
    sources = {account.get(name) or "none" for name in ("tokenSource", "apiKeySource")}
    return account.get("apiProvider") == "firstParty" and sources == {"none"}


def _lost(start: SessionStart) -> str:
    return (
        f"Claude Code no longer has the conversation {start.session_id}. The message was not "
        "run; send it again to begin a new conversation."
    )


ADAPTER = ClaudeCode
