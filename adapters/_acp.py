"""The adapter of the Agent Client Protocol, version 1, on stdin and stdout: one process and one ACP
session per session of the bridge. acp.py has the measured facts that decide the code."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from urllib.parse import quote, unquote, urlsplit

import orjson

from bridge.adapter import (
    INTERRUPTED,
    AgentConfig,
    ExitStatus,
    Launch,
    Prompt,
    SessionStart,
    as_text,
    explain_exit,
    unasked,
)
from bridge.adapter.fields import Json, Said, as_dict, as_word, output_status
from bridge.adapter.jsonrpc import Peer, Response, RpcError, is_request
from bridge.adapter.line_mode import plain
from bridge.task.events import AgentEvent, Answer, Done, Failed, Question, Status
from bridge.task.message import Part, RawPart, UrlPart, media_type

from ._acp_agent import AcpAgent
from ._acp_handshake import Handshake, current, model_error
from ._acp_questions import AcpQuestions
from ._acp_turn import UPDATES, AcpTurn
from ._tools import options

WORK = ("agent_message_chunk", "agent_thought_chunk", "tool_call")  # updates of a working model
END = "(End of the message.)"  # a last block without `@`, see AcpAgent.reads_along


class Acp(AcpAgent):
    """AGENT_BINARY and AGENT_ARGS name the program; subclasses have their own."""

    name = "acp"

    def __init__(self, config: AgentConfig, start: SessionStart) -> None:
        super().__init__(config, start)
        self._peer: Peer[AgentEvent] = Peer(self.send)
        self._peer.notifications["session/update"] = self._update
        self._questions = AcpQuestions(self._peer, self, turn=lambda: self._working)
        self._handshake = Handshake(self, self._peer, ready=self._ready, failed=self._end)
        self._greeting = False  # the handshake runs before the first prompt
        self._cost: float | None = None if start.resume else 0.0  # USD, of the session so far
        self._counted: dict[str, int] = {}  # tokens of earlier turns, for counts_all_turns
        self._turn: AcpTurn | None = None
        self._spent = False

    # --- calls of the session --------------------------------------------------------------------

    def launch(self) -> Launch:
        model = options({self.model_flag: self.model}) if self.model_flag else []
        argv = (self.config.binary, *self.config.args, *model, *self.arguments)
        return Launch(argv, self.unless_set(self.variables) | self.closing())

    @property
    def handshaking(self) -> bool:
        return not self._handshake.done

    def greet(self) -> bool:
        self._greeting = True
        self._handshake.begin()
        return True

    def prompt(self, prompt: Prompt) -> None:
        """Sent at once, or after the handshake, which the first prompt begins."""
        last = self._turn
        if last and last.cost is not None:
            self._cost = last.cost
        self._turn = AcpTurn(prompt, before=self._cost)
        self._questions.begin(prompt.task_id)
        self._greeting = False
        self.choose(prompt.options)
        if self._handshake.done:
            self._handshake.change(prompt.options)
        else:
            self._handshake.begin()

    def answer(self, question: Question, answer: Answer) -> None:
        self._questions.answer(question, answer)

    def interrupt(self) -> bool:
        """The agent must then end the turn as `cancelled` (ACP v1, Prompt Turn: Cancellation)."""
        turn = self._working
        if turn is None or not turn.sent:
            self._turn = None  # a prompt that waits for the handshake is dropped
            return False
        turn.interrupted = True
        self._peer.notify("session/cancel", {"sessionId": self._handshake.session_id})
        self._questions.cancel()
        return True

    def stop_unasked(self) -> bool:
        self._peer.notify("session/cancel", {"sessionId": self._handshake.session_id})
        return self._handshake.done

    @property
    def spent(self) -> bool:
        return self._spent

    @property
    def forgets(self) -> bool:
        turn = self._working
        return self.forgets_interrupted and turn is not None and turn.sent and turn.asks_model

    @property
    def _working(self) -> AcpTurn | None:
        """The turn whose end the agent has not announced. None in an open session: no request of
        the agent belongs to a task."""
        turn = self._turn
        waits = turn and self._handshake.opened and not turn.sent
        return None if turn is None or turn.response or waits else turn

    def receive_object(self, value: Json, line: bytes) -> Said:
        turn, idle = self._turn, self._handshake.opened and self._working is None
        said = self._peer.receive(value)
        if idle and is_request(value):
            return [_refused(value)]
        if said is None:
            return (output_status(line),)
        if turn and turn.sent and not turn.heard and said:
            turn.heard = True
            return [self._handshake.started(), *said]
        return said

    def receive_exit(self, status: ExitStatus) -> Said:
        if self._handshake.loading and status.code > 0:
            text, *_ = explain_exit(self.title, status)
            return [self.conversation_lost(text)]
        return super().receive_exit(status)

    # --- the turn --------------------------------------------------------------------------------

    def _ready(self) -> Said:
        if self._turn:
            self._send_prompt(self._turn)
        return [self._handshake.started()] if self._greeting else ()

    def _send_prompt(self, turn: AcpTurn) -> None:
        turn.sent = True
        blocks = [self._block(part) for part in turn.prompt.parts]
        if self.reads_along and b"@" in orjson.dumps(blocks[-1]):
            blocks.append({"type": "text", "text": END})
        params = {"sessionId": self._handshake.session_id, "prompt": blocks}
        self._peer.request("session/prompt", params, partial(self._prompted, turn))

    def _block(self, part: Part) -> Json:
        """The part as a ContentBlock (ACP v1, Content)."""
        kind, can = media_type(part), self._handshake.can
        image = isinstance(part, RawPart) and kind.startswith("image/")
        if isinstance(part, RawPart) and image and can("promptCapabilities", "image"):
            return {"type": "image", "mimeType": kind, "data": part.base64}
        if image:
            text = f"[A file of type {kind} was removed here: {self.title} does not take it.]"
            return {"type": "text", "text": text}
        embedded = can("promptCapabilities", "embeddedContext")
        if isinstance(part, RawPart) and embedded and not self.reads_along:
            uri = f"attachment:///{quote(part.filename or 'file')}"
            text = part.content().decode(errors="replace")
            return {"type": "resource", "resource": {"uri": uri, "mimeType": kind, "text": text}}
        file = isinstance(part, UrlPart) and part.url.startswith("file:")
        if isinstance(part, UrlPart) and file and not self.ignores_links:
            path = unquote(urlsplit(part.url).path)
            name = part.filename or path.rpartition("/")[2] or path
            link = {"type": "resource_link", "uri": part.url, "name": name}
            return {**link, "mimeType": part.media_type} if part.media_type else link
        return {"type": "text", "text": plain(as_text(part))}

    def _prompted(self, turn: AcpTurn, response: Response) -> Said:
        turn.response = response
        if not response.error:
            counted = turn.count_tokens(response.members, self._counted)
            if self.counts_all_turns:
                self._counted = counted
        self._questions.cancel()
        if not turn.goes_on(self.going_on):
            return self._outcome(turn)
        # End the conversation in this process before the turn: the agent might work on.
        self._spent = True
        if not self._handshake.can("sessionCapabilities", "close"):
            return self._outcome(turn)
        params = {"sessionId": self._handshake.session_id}
        self._peer.request("session/close", params, lambda closed: self._outcome(turn))
        return ()

    def conclude(self) -> Sequence[AgentEvent]:
        turn = self._turn
        if turn is None or turn.response is None:
            return ()
        turn.over = True
        return self._outcome(turn)

    def _outcome(self, turn: AcpTurn) -> Sequence[AgentEvent]:
        assert turn.response
        error, used = turn.response.error, turn.usage()
        reason = turn.response.members.get("stopReason")
        end = self._failure(turn, error) if error else turn.outcome(self, reason)
        return [used, end] if used else [end]

    def _failure(self, turn: AcpTurn, error: RpcError) -> Failed:
        if turn.interrupted:
            return INTERRUPTED
        failed = model_error(error, turn.resets_at)
        login = failed.reason == "auth"
        self._spent = self._spent or (login and self.auth_is_final)
        return self._handshake.not_logged_in(error) if login else failed

    def _end(self, event: Done | Failed) -> Said:
        """The handshake ends, and the turn that waits for it."""
        turn, self._turn = self._turn, None
        if turn or self._greeting:
            yield event

    def _update(self, params: Json) -> Said:
        """ACP v1, Prompt Turn. An update before the prompt was sent belongs to the history."""
        update, turn = params["update"], self._turn
        foreign = params.get("sessionId") not in (None, self._handshake.session_id)
        kind = str(update.get("sessionUpdate"))
        said: Said = ()
        if kind in ("current_mode_update", "config_option_update") and not foreign:
            said = self._mode_update(update)
        if self._handshake.opened and kind in WORK and (turn is None or turn.over or not turn.sent):
            return [unasked("output", as_word(update.get("title")) or kind, update.get("rawInput"))]
        if foreign or turn is None or not turn.sent:
            return ()
        handler = UPDATES.get(kind)
        return handler(turn, update) if handler else said

    def _mode_update(self, update: Json) -> Sequence[AgentEvent]:
        mode = as_word(update.get("currentModeId")) or current(update, "mode")
        if not self._handshake.report(mode):
            return ()
        text = Status(f"The mode is now {mode}", {"type": "mode", "mode": mode})
        return (self._handshake.started(), text)


def _refused(request: Json) -> AgentEvent:
    """A request that came between two turns; its handler or the peer has refused it."""
    params = as_dict(request.get("params"))
    tool = as_dict(params.get("toolCall"))
    name = as_word(tool.get("title")) or str(request["method"])
    return unasked("request", name, tool.get("rawInput") or params)
