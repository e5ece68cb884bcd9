"""Any agent that speaks the Agent Client Protocol, version 1, on its stdin and stdout; one process
and one ACP session per session of ours. PRESETS has the agents that are known by name.

Run against gemini 0.61.0, opencode 1.18.33, kilo 7.7.7, copilot 1.0.102, claude-agent-acp 0.49.0
and qwen 0.15.10 (tests/test_real_acp.py). What decides the code (all measured):

* `session/prompt` is answered when the turn is over: the answer is the end, not an exit.
* Options of a permission have any id (`once`, `proceed_once`, `allow-once`): their kind decides.
  While one is open, a cancel must answer it, or the turn never ends.
* A tool may first be heard of in `tool_call`, in its permission request or in its result, and its
  input may be empty at first: the three are put together by the tool call's id.
* What is offered may be missing: qwen says that it can `session/resume`, and does not know it.
* `session/load` says the whole history again before it is answered; gemini goes on after that.
* A prompt that begins with `/` is a command, which may write files without a permission (gemini's
  `/init`) or be answered without the model: see plain(). `@path`, `!…` and `#…` are only text, but
  for Preset.reads_along.
* An agent that may use the client's `fs` does so, and breaks where a file is missing: it is not
  offered. `terminal` neither.
* Cursor asks with methods of its own (`cursor/…`), and waits for the answer (from its
  documentation and the recordings of others: it could not be run).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal
from urllib.parse import quote, unquote, urlsplit

import orjson

from bridge.adapter import (
    Adapter,
    AgentConfig,
    CliInfo,
    ExitStatus,
    Launch,
    Prompt,
    SessionStart,
    as_text,
)
from bridge.adapter.fields import as_dict, as_list, as_string, as_word, output_status
from bridge.adapter.jsonrpc import METHOD_NOT_FOUND, Peer, Response, RpcError
from bridge.task.events import (
    SESSION_LOST,
    AgentEvent,
    Answer,
    ArtifactChunk,
    Done,
    Failed,
    Question,
    Started,
    Status,
    Text,
    Thought,
    ToolResult,
    Usage,
)
from bridge.task.message import Part, RawPart, UrlPart, media_type

from ._acp_presets import PRESETS, Preset
from ._acp_questions import AcpQuestions
from ._acp_tools import announce, merged, output
from ._acp_turn import Turn, counts, is_count, part, plan, usage_of
from ._plain import plain

Json = Mapping[str, Any]
Said = Iterable[AgentEvent]

PROTOCOL = 1
PLAN = "plan"  # the mode in which agents change nothing
AUTH_REQUIRED = -32000
NOT_FOUND = -32002
END = "(End of the message.)"  # in which nothing can be read but that
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")


class Acp(Adapter):
    """AGENT_BINARY and AGENT_ARGS say what to run; presets bring that along."""

    preset: ClassVar[Preset] = Preset("acp", "The agent", "")
    name: ClassVar[str] = preset.name
    title: ClassVar[str] = preset.title
    # Images of which it is not known that the agent takes them are files that the prompt names.
    input_modes: ClassVar[tuple[str, ...]] = ("text/*", "application/json")
    warms: ClassVar[Literal["greeted", "started", "no"]] = preset.warms

    def __init__(self, config: AgentConfig, start: SessionStart) -> None:
        super().__init__(config, start)
        self._peer: Peer[AgentEvent] = Peer(self.send)
        self._peer.notifications["session/update"] = self._update
        self._questions = AcpQuestions(
            self._peer, self.preset, config.force, self._may_ask, lambda: self._turn
        )
        self._agent: Json | None = None  # what it said of itself
        self._session_id: str | None = None
        self._facts: dict[str, str | None] = {}  # model and mode of the session
        self._opening = False  # a request of the handshake is under way
        self._greeting = False  # and nobody has given a prompt yet
        self._ready = False
        self._loading = False  # the conversation that is to be resumed was asked for
        self._tried_login = False
        self._cost: float | None = None if start.resume else 0.0  # of the session so far
        self._turn: Turn | None = None

    # --- what the session asks for -------------------------------------------------------------

    def launch(self) -> Launch:
        preset, model = self.preset, self._model()
        argv = [self.config.binary, *self.config.args]
        if model and preset.model_flag:
            argv.append(f"{preset.model_flag}={model}")
        argv += preset.arguments
        seen = self.config.env
        variables = {k: v for k, v in preset.variables.items() if k not in seen}
        return Launch(tuple(argv), variables | preset.closing(self.config, self.start))

    @property
    def handshaking(self) -> bool:
        return not self._ready

    def greet(self) -> bool:
        self._greeting = True
        self._begin()
        return True

    def prompt(self, prompt: Prompt) -> None:
        """Said at once, or when the handshake is done, which the first prompt begins."""
        self._turn = Turn(prompt)
        self._greeting = False
        if self._ready:
            self._send_prompt(self._turn)
        else:
            self._begin()

    def answer(self, question: Question, answer: Answer) -> None:
        self._questions.answer(question, answer)

    def interrupt(self) -> bool:
        """The agent must then end the turn as `cancelled` (ACP v1, Prompt Turn: Cancellation)."""
        turn = self._turn
        if turn is None or not turn.sent:
            self._turn = None  # a prompt that waits for the handshake is not sent any more
            return False
        turn.interrupted = True
        self._peer.notify("session/cancel", {"sessionId": self._session_id})
        self._questions.cancel()
        return True

    def receive_line(self, line: bytes) -> Said:
        turn = self._turn
        said = self._peer.receive(line)
        if said is None:
            return (output_status(line),) if line.strip() else ()
        if turn and turn.sent and not turn.heard and said:
            turn.heard = True
            return [Started(self._session_id, *self._describe()), *said]
        return said

    def receive_exit(self, status: ExitStatus) -> Said:
        self._peer.close()
        self._questions.close()
        said = list(super().receive_exit(status))
        if self._loading and status.code > 0:
            return [self._lost(one.text) if isinstance(one, Failed) else one for one in said]
        return said

    def _may_ask(self) -> bool:
        return self._turn is not None and not self._turn.interrupted

    def _describe(self) -> tuple[str | None, str | None, str | None]:
        info = as_dict((self._agent or {}).get("agentInfo"))
        return self._facts.get("model"), as_word(info.get("version")), self._facts.get("mode")

    # --- the handshake -------------------------------------------------------------------------

    def _begin(self) -> None:
        if not self._opening:
            self._opening = True
            self._open()

    def _open(self) -> None:
        if self._agent is not None:
            self._open_session()
            return
        # No fs, no terminal: see above.
        capabilities = {
            "fs": {"readTextFile": False, "writeTextFile": False},
            "terminal": False,
            "elicitation": {"form": {}, "url": {}},
        }
        params = {
            "protocolVersion": PROTOCOL,
            "clientCapabilities": capabilities,
            "clientInfo": {"name": "coding-agent-bridge", "version": "1"},
        }
        self._peer.request("initialize", params, self._initialized)

    def _initialized(self, reply: Response) -> Said:
        if reply.error:
            return self._not_opened(reply.error)
        version = reply.members.get("protocolVersion")
        if version not in (None, PROTOCOL):
            text = f"{self.title} speaks version {version} of ACP, and the bridge {PROTOCOL}."
            return self._give_up(Failed(text, "protocol"))
        self._agent = reply.members
        method = self._login() if self.preset.login_first else None
        if method:
            self._authenticate(method)
        else:
            self._open_session()
        return ()

    def _login(self) -> str | None:
        """A way to log in that the agent offers and that can work without a person."""
        offered = [as_dict(one).get("id") for one in as_list(self._offer("authMethods"))]
        for variable, method in self.preset.logins:
            if method in offered and (not variable or self.config.env.get(variable)):
                return method
        return None

    def _authenticate(self, method: str) -> None:
        self._tried_login = True
        self._peer.request("authenticate", {"methodId": method}, self._authenticated)

    def _authenticated(self, reply: Response) -> Said:
        if reply.error:
            return self._give_up(self._not_logged_in(reply.error))
        self._open_session()
        return ()

    def _offer(self, name: str) -> Any:
        return (self._agent or {}).get(name)

    def _can(self, group: str, name: str) -> bool:
        """Whether the agent has a capability; members that are objects count as yes."""
        capabilities = as_dict(self._offer("agentCapabilities"))
        value = (as_dict(capabilities.get(group)) if group else capabilities).get(name)
        return value is True or isinstance(value, dict)

    def _open_session(self) -> None:
        if not self.start.resume:
            self._ask_session("session/new")
        elif self.preset.list_first and self._can("sessionCapabilities", "list"):
            self._list({})
        else:
            self._resume()

    def _ask_session(self, method: str, **members: Any) -> None:
        params = {"cwd": self.start.cwd, "mcpServers": [], **members}
        if self.start.folder and self._can("sessionCapabilities", "additionalDirectories"):
            params["additionalDirectories"] = [self.start.folder]
        if self.preset.shut_options and not self.config.project_config:
            params["_meta"] = self.preset.shut_options
        self._peer.request(method, params, partial(self._opened, method))

    def _list(self, cursor: Json) -> None:
        params = {"cwd": self.start.cwd, **cursor}
        self._peer.request("session/list", params, self._listed)

    def _listed(self, reply: Response) -> Said:
        known = [as_dict(one).get("sessionId") for one in as_list(reply.members.get("sessions"))]
        cursor = reply.members.get("nextCursor")
        if self.start.session_id in known:
            self._resume()
        elif cursor and not reply.error:
            self._list({"cursor": cursor})
        else:
            return self._give_up(self._lost())
        return ()

    def _resume(self) -> None:
        self._loading = True
        if self._can("sessionCapabilities", "resume"):
            self._ask_session("session/resume", sessionId=self.start.session_id)
        else:
            # Attempted even where it is not offered: the error says what is wrong.
            self._ask_session("session/load", sessionId=self.start.session_id)

    def _opened(self, method: str, reply: Response) -> Said:
        self._loading = False
        if reply.error and reply.error.code == METHOD_NOT_FOUND and method == "session/resume":
            self._loading = True
            self._ask_session("session/load", sessionId=self.start.session_id)  # qwen
            return ()
        if reply.error:
            return self._session_refused(reply.error, resumed=method != "session/new")
        result = reply.members
        session_id = result.get("sessionId") if method == "session/new" else self.start.session_id
        if not isinstance(session_id, str):
            return self._give_up(Failed(f"{self.title} began no session.", "protocol"))
        self._session_id = session_id
        self._facts = {name: _current(result, name) for name in ("model", "mode")}
        late = self.preset.late_history and method == "session/load"
        mode = self._facts["mode"]
        # The answer to a request that changes nothing comes after the rest of the history.
        first = [("mode", mode)] if late and mode else []
        return self._configure(result, [*first, *self._wishes(result)])

    def _wishes(self, session: Json) -> Iterator[tuple[str, str]]:
        """What the session is to be set to, beyond what the command line says."""
        asks = self.preset.asks
        if self.start.options.mode:
            yield "mode", self.start.options.mode
        elif self._facts["mode"] not in (asks, PLAN) and asks in _offered_modes(session):
            yield "mode", asks
        model = self._model()
        if model and not self.preset.model_flag:
            yield "model", model

    def _session_refused(self, error: RpcError, resumed: bool) -> Said:
        if error.code == AUTH_REQUIRED and not self._tried_login:
            method = self._login()
            if method:
                self._authenticate(method)
                return ()
        if resumed and error.code != AUTH_REQUIRED:
            return self._give_up(self._lost("" if _means_lost(error) else _reason(error)))
        return self._not_opened(error)

    def _configure(self, session: Json, steps: Sequence[tuple[str, str]]) -> Said:
        """Take the next step to the session that was asked for; after the last, begin."""
        if not steps:
            self._opening, self._ready = False, True
            if self._turn:
                self._send_prompt(self._turn)
            return [Started(self._session_id, *self._describe())] if self._greeting else ()
        (what, value), *rest = steps
        request = _setting(session, what, value)
        if request is None:
            text = f"{self.title} does not let its {what} be chosen over ACP ({value})."
            return self._give_up(Failed(text, "configuration"))
        method, params = request
        then = partial(self._configured, session, what, value, rest)
        self._peer.request(method, {"sessionId": self._session_id, **params}, then)
        return ()

    def _configured(
        self,
        session: Json,
        what: str,
        value: str,
        rest: Sequence[tuple[str, str]],
        reply: Response,
    ) -> Said:
        if reply.error:
            text = f"{self.title} did not take the {what} {value}: {_reason(reply.error)}"
            return self._give_up(Failed(text, "configuration"))
        self._facts[what] = value
        return self._configure(session, rest)

    def _model(self) -> str | None:
        return self.start.options.model or self.config.model

    # --- the end of a handshake or a turn that went wrong ----------------------------------------

    def _not_opened(self, error: RpcError) -> Said:
        if error.code == AUTH_REQUIRED:
            return self._give_up(self._not_logged_in(error))
        text = f"{self.title} could not begin: {_reason(error)}"
        return self._give_up(Failed(text, "agent-error", {"code": error.code}))

    def _give_up(self, failed: Failed) -> Said:
        """The handshake ends here. The next prompt begins it anew."""
        self._opening = False
        self._tried_login = False
        return self._end(failed)

    def _not_logged_in(self, error: RpcError) -> Failed:
        offers = (as_dict(one) for one in as_list(self._offer("authMethods")))
        hints = [": ".join(filter(None, map(as_word, _hint(one)))) for one in offers]
        text = f"{self.title} is not logged in on the server, or its key is not accepted."
        if any(hints):
            text += f" It offers: {'; '.join(filter(None, hints))}."
        return Failed(f"{text} It said: {_reason(error)}", "auth", {"code": error.code})

    def _lost(self, reason: str = "") -> Failed:
        what = f"{self.title} no longer has the conversation {self.start.session_id}."
        if reason:
            what = f"{self.title} cannot load the conversation {self.start.session_id}: {reason}."
        text = f"{what} The message was not run; send it again to begin a new conversation."
        return Failed(text, SESSION_LOST)

    def _end(self, event: Done | Failed) -> Iterator[AgentEvent]:
        """The turn is over, if there is one."""
        turn, self._turn = self._turn, None
        self._questions.cancel()
        if turn:
            used = self._usage(turn)
            if used:
                yield used
        if turn or self._greeting:
            yield event

    # --- the turn ------------------------------------------------------------------------------

    def _send_prompt(self, turn: Turn) -> None:
        turn.sent = True
        blocks = [self._block(part) for part in turn.prompt.parts]
        if self.preset.reads_along and b"@" in orjson.dumps(blocks[-1]):
            blocks.append({"type": "text", "text": END})
        params = {"sessionId": self._session_id, "prompt": blocks}
        self._peer.request("session/prompt", params, partial(self._prompted, turn))

    def _block(self, part: Part) -> Json:
        """The part as a ContentBlock (ACP v1, Content)."""
        kind = media_type(part)
        image = isinstance(part, RawPart) and kind.startswith("image/")
        if isinstance(part, RawPart) and image and self._can("promptCapabilities", "image"):
            return {"type": "image", "mimeType": kind, "data": part.base64}
        if image:
            text = f"[Here was a file of type {kind}, which {self.title} cannot be given.]"
            return {"type": "text", "text": text}
        embedded = self._can("promptCapabilities", "embeddedContext")
        if isinstance(part, RawPart) and embedded and not self.preset.reads_along:
            uri = f"attachment:///{quote(part.filename or 'file')}"
            text = part.content().decode(errors="replace")
            return {"type": "resource", "resource": {"uri": uri, "mimeType": kind, "text": text}}
        file = isinstance(part, UrlPart) and part.url.startswith("file:")
        if isinstance(part, UrlPart) and file and not self.preset.ignores_links:
            path = unquote(urlsplit(part.url).path)
            name = part.filename or path.rpartition("/")[2] or path
            link = {"type": "resource_link", "uri": part.url, "name": name}
            return {**link, "mimeType": part.media_type} if part.media_type else link
        return {"type": "text", "text": plain(as_text(part))}

    def _prompted(self, turn: Turn, reply: Response) -> Said:
        if reply.error:
            return self._end(self._failure(turn, reply.error))
        turn.usage |= usage_of(reply.members)
        return self._end(self._outcome(turn, reply.members.get("stopReason")))

    def _failure(self, turn: Turn, error: RpcError) -> Failed:
        if turn.interrupted:
            return Failed("The turn was interrupted.", "interrupted")
        if error.code in (AUTH_REQUIRED, 401, 403):  # gemini's codes are those of HTTP
            return self._not_logged_in(error)
        return Failed(_reason(error), "agent-error", {"code": error.code})

    def _outcome(self, turn: Turn, reason: Any) -> Done | Failed:
        """What a stop reason means (ACP v1, Prompt Turn: Stop Reasons)."""
        match reason:
            case "end_turn" | None:
                if self.preset.silent_failures and turn.came_to_nothing():
                    text = f"{self.title} ended the turn, but the model's answer was broken off."
                    return Failed(text, "empty-answer")
                if self.preset.errors_are_words and turn.ended_in_an_error():
                    reason = "auth" if "uthenticat" in turn.block[-1] else "agent-error"
                    return Failed(turn.block[-1].removeprefix("Error: "), reason)
                return self._done(turn, "end_turn")
            case "cancelled" if turn.interrupted:
                return Failed("The turn was interrupted.", "interrupted")
            case "cancelled" if turn.refused:  # codex-acp: its only way to say no is `abort`
                return self._done(turn, "cancelled")
            case "cancelled":
                return Failed(f"{self.title} cancelled the turn by itself.", "cancelled")
            case "refusal":
                return Failed(f"{self.title} refused to go on with this.", "refusal")
            case "max_tokens":
                text = "The answer was cut: the model had reached its limit of tokens."
                return Failed(text, "max-tokens")
            case "max_turn_requests":
                text = f"{self.title} asked the model as often as it may in one turn, and stopped."
                return Failed(text, "max-turn-requests")
        text = f"{self.title} ended the turn for a reason that the bridge does not know: {reason}"
        return Failed(text, "stopped", {"stopReason": reason})

    def _done(self, turn: Turn, reason: str) -> Done:
        details: dict[str, Any] = {"stopReason": reason}
        if turn.changed:
            details["changedFiles"] = list(turn.changed)
        return Done(summary="".join(turn.block), details=details)

    def _usage(self, turn: Turn) -> Usage | None:
        used = dict(turn.usage)
        cost = None
        if turn.cost is not None:
            if self._cost is not None:  # else the conversation's earlier turns are in it
                cost = round(turn.cost - self._cost, 6)
            self._cost = turn.cost
        if not used and cost is None:
            return None
        counts = [used.pop(f"{name}Tokens", None) for name in ("input", "output", "total")]
        return Usage(counts[0], counts[1], counts[2], cost, used or None)

    # --- session/update ------------------------------------------------------------------------

    def _update(self, params: Json) -> Said:
        """ACP v1, Prompt Turn. Kinds that are not in the table are for editors; what is said before
        the prompt was sent is history."""
        update, turn = params["update"], self._turn
        foreign = params.get("sessionId") not in (None, self._session_id)
        if foreign or turn is None or not turn.sent:
            return ()
        handler = self._updates.get(str(update.get("sessionUpdate")))
        return handler(self, turn, update) if handler else ()

    def _message_chunk(self, turn: Turn, update: Json) -> Iterator[AgentEvent]:
        meta_usage = as_dict(as_dict(update.get("_meta")).get("usage"))  # qwen, with an empty text
        for name, count in counts(meta_usage).items():
            turn.usage[name] = turn.usage.get(name, 0) + count
        content = update["content"]
        if content.get("type") != "text":
            yield from self._handed_over(turn, content)
            return
        text = as_string(content["text"])
        if not text:
            return
        message = as_word(update.get("messageId"))
        new_block = turn.new_block or message != turn.message
        if new_block:
            turn.block = []
        turn.message, turn.new_block = message, False
        turn.block.append(text)
        yield Text(text, new_block)

    def _thought_chunk(self, turn: Turn, update: Json) -> Iterator[AgentEvent]:
        turn.new_block = True
        text = as_string(update["content"].get("text") or "")
        if text:
            yield Thought(text)

    def _handed_over(self, turn: Turn, content: Json) -> Iterator[AgentEvent]:
        given = part(content)
        if given:
            turn.artifacts += 1
            yield ArtifactChunk(f"content-{turn.artifacts}", (given,), given.filename)

    def _tool_update(self, turn: Turn, update: Json) -> Iterator[AgentEvent]:
        turn.new_block = True
        tool = merged(turn.tools, update)
        # An input that has nothing but a folder (opencode) is going to be filled.
        filled = isinstance(tool.input, dict) and bool(tool.input.keys() - {"cwd"})
        if filled or tool.status != "pending":
            yield from announce(tool)
        if tool.status in ("completed", "failed") and not tool.ended:
            tool.ended = True
            failed = tool.status == "failed"
            changes = () if failed else tool.changes
            turn.changed |= dict.fromkeys(change.path for change in changes)
            yield ToolResult(tool.id, output(tool), failed, tool.announced, None, changes)

    def _usage_update(self, turn: Turn, update: Json) -> Said:
        for name, ours in (("used", "contextTokens"), ("size", "contextSize")):
            if is_count(update.get(name)):
                turn.usage[ours] = update[name]
        cost = as_dict(update.get("cost"))
        amount = cost.get("amount")
        if cost.get("currency") == "USD" and (is_count(amount) or isinstance(amount, float)):
            turn.cost = float(amount)  # of the whole session
        return ()

    def _mode_update(self, turn: Turn, update: Json) -> Iterator[AgentEvent]:
        mode = as_string(update["currentModeId"])
        if mode != self._facts.get("mode"):
            self._facts["mode"] = mode
            yield Status(f"The mode is now {mode}", {"type": "mode", "mode": mode})

    _updates: ClassVar[Mapping[str, Callable[[Any, Turn, Json], Said]]] = {
        "agent_message_chunk": _message_chunk,
        "agent_thought_chunk": _thought_chunk,
        "tool_call": _tool_update,
        "tool_call_update": _tool_update,
        "plan": lambda self, turn, update: [plan(update["entries"])],
        "usage_update": _usage_update,
        "current_mode_update": _mode_update,
    }


# --- settings of a session -----------------------------------------------------------------------


def _setting(session: Json, what: str, value: str) -> tuple[str, Json] | None:
    """The request that sets mode or model: in the words of the session's own offer."""
    if what == "mode" and isinstance(session.get("modes"), dict):
        return "session/set_mode", {"modeId": value}
    if what == "model" and isinstance(session.get("models"), dict):
        return "session/set_model", {"modelId": value}
    option = _config_option(session, what)
    if option:
        return "session/set_config_option", {"configId": option.get("id"), "value": value}
    return None


def _config_option(session: Json, what: str) -> Json | None:
    options = map(as_dict, as_list(session.get("configOptions")))
    return next((one for one in options if what in (one.get("category"), one.get("id"))), None)


def _current(session: Json, what: str) -> str | None:
    offered = as_dict(session.get(f"{what}s"))
    option = _config_option(session, what) or {}
    return as_word(offered.get(f"current{what.capitalize()}Id")) or as_word(
        option.get("currentValue")
    )


def _offered_modes(session: Json) -> list[Any]:
    modes = as_list(as_dict(session.get("modes")).get("availableModes"))
    options = as_list((_config_option(session, "mode") or {}).get("options"))
    return [as_dict(one).get("id") for one in modes] + [
        as_dict(one).get("value") for one in options
    ]


def _means_lost(error: RpcError) -> bool:
    """Whether an error of session/load says that there is no such session. The codes differ:
    -32002 by the standard, -32602 and -32603 of gemini."""
    words = _reason(error).casefold()
    known = ("not found", "invalid session", "no such", "unknown session", "does not exist")
    return error.code in (NOT_FOUND, -32602, METHOD_NOT_FOUND) or any(one in words for one in known)


# --- members of a line, whose types are the agent's affair ----------------------------------------


def _hint(method: Json) -> tuple[Any, Any]:
    return method.get("name"), method.get("description")


def _reason(error: RpcError) -> str:
    """The message, and what `data` adds to it."""
    data = error.data
    details = data.get("details") or data.get("message") if isinstance(data, dict) else data
    if isinstance(details, str) and details not in error.message:
        return f"{error.message}: {details}"
    if details and not isinstance(details, str):
        return f"{error.message}: {orjson.dumps(details).decode()}"
    return error.message


# --- the adapters --------------------------------------------------------------------------------


def _cli_info(one: Preset) -> CliInfo:
    words, flags = one.arguments, [one.model_flag] if one.model_flag else []
    # A subcommand is known if its own help can be had; a flag stands in the general one.
    command = words[:1] if words and not words[0].startswith("-") else ()
    flags += [word for word in words if word.startswith("-")]
    return CliInfo(one.install, one.login, (), (*command, "--help"), tuple(flags))


def named(one: Preset) -> type[Acp]:
    class Named(Acp):
        preset = one
        name = one.name
        title = one.title
        binary = one.binary
        environment = one.environment
        modes = one.modes
        resumes_next_minute = one.resumes_next_minute
        warms = one.warms
        writable_paths = one.writable_paths
        homes = one.homes
        reads = one.reads
        verified = one.verified
        uses_any_port = one.uses_any_port
        project_files = one.project_files
        always_loaded = one.always_loaded
        cli_info = _cli_info(one)
        input_modes = (*Acp.input_modes, *(IMAGES if one.images else ()))

    return Named


ADAPTER = Acp
ADAPTERS = tuple(map(named, PRESETS))
