"""Codex over `codex app-server`: JSON-RPC lines without the member `jsonrpc`; one process and one
thread of Codex per session of the bridge. Written for 0.169.0, run against 0.171.0.

Measured facts that decide the code:

* turn/start is answered at once; turn/completed is the end. A turn/interrupt before turn/started
  is refused ("no active turn"), and the turn continues.
* turn/interrupt does not end running commands: thread/backgroundTerminals/clean does.
* turn/steer reaches the turn, or is refused: it is never accepted and dropped (250 races at the end
  of a turn). It cuts the streamed message, which is then never completed. So does a retry: the same
  text comes again, as another item.
* A prompt that begins with `/`, `@`, `!` or `$` is only text.
* The usage of a new thread begins at zero; a resumed thread sends the earlier usage first.
* An MCP tool's permission is asked for as an elicitation with an empty form.
* Sub-agents are threads of their own in the same process. The client answers their questions, too.
* A command that the sandbox stops at once is reported only to the model.
* thread/start stores permanently that the folder is trusted, unless its parameters deny it. In an
  untrusted folder Codex does not read AGENTS.md either.
* `acceptWithExecpolicyAmendment` stores a rule permanently: the client never gets this option.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from bridge.adapter import (
    CONFIGURATION,
    INTERRUPTED,
    AgentConfig,
    CliInfo,
    ExitStatus,
    JsonLines,
    Launch,
    Prompt,
    SessionOptions,
    SessionStart,
    as_text,
    model_failure,
    unasked,
)
from bridge.adapter.fields import Json, Said, as_dict, as_string, as_word, output_status
from bridge.adapter.jsonrpc import Peer, Response, RpcError, is_request
from bridge.task.events import AgentEvent, Answer, Done, Failed, Question, Status
from bridge.task.message import Part, RawPart, media_type

from . import _homes as homes
from . import _project_files as files
from ._codex_questions import CodexQuestions
from ._codex_trust import NO_GOALS, closed
from ._codex_turn import NOTIFICATIONS, CodexTurn, Thread
from ._tools import IMAGES

# Approval policy and sandbox. `untrusted` asks before each change of files and each command that is
# not known to be harmless. If an allowed command fails in the sandbox, the CLI repeats it without
# the sandbox, and without a question; but only if it recognizes the failure within 20 ms, which a
# busy machine exceeds. Within the server's sandbox its own cannot start, and so is not used.
# `on-request` asks only before the agent leaves the sandbox.
MODES = {
    "": ("untrusted", "workspace-write"),
    "read-only": ("on-request", "read-only"),
    "workspace-write": ("on-request", "workspace-write"),
    "plan": ("on-request", "read-only"),
}
# The sandboxes of thread/start, as turn/start has them.
POLICIES = {
    "read-only": "readOnly",
    "workspace-write": "workspaceWrite",
    "danger-full-access": "dangerFullAccess",
}


class Codex(JsonLines):
    name = "codex"
    understands_traces = True
    title = "Codex"
    binary = "codex"
    environment = ("CODEX_*", "OPENAI_*")
    modes = tuple(filter(None, MODES))
    changes = ("mode", "model")
    steers = True
    homes = (homes.CODEX,)
    project_files = files.CODEX
    instructions = ("AGENTS.md",)
    cli_info = CliInfo(
        "npm install -g @openai/codex",
        "codex login, or name another provider in ~/.codex/config.toml",
        help=("app-server", "--help"),  # `login status` ignores other providers
    )
    input_modes = ("text/*", "application/json", *IMAGES)

    def __init__(self, config: AgentConfig, start: SessionStart) -> None:
        super().__init__(config, start)
        self._peer: Peer[AgentEvent] = Peer(self.send, tagged=False)
        self._peer.notifications = {
            **{one: partial(self._in_turn, one, handler) for one, handler in NOTIFICATIONS.items()},
            "account/rateLimits/updated": self._limits_updated,
            "turn/started": self._turn_started,
            "turn/completed": self._turn_completed,
            "thread/tokenUsage/updated": lambda params: self._thread.token_usage(
                self._turn, params
            ),
            "warning": _warning,
            "guardianWarning": _warning,
            "configWarning": _warning,
        }
        self._initialized = False
        self._opening = False
        self._thread = Thread(over=None if start.resume else {})
        self._turn: CodexTurn | None = None
        self._settled = start.options  # those of the thread
        self._unasked: Json | None = None  # names the turn that Codex has begun by itself
        self._questions = CodexQuestions(self._peer, turn=lambda: self._turn, force=config.force)

    # --- calls of the session --------------------------------------------------------------------

    def launch(self) -> Launch:
        own = [*NO_GOALS, *closed(self.config, self.start)]
        return Launch((self.config.binary, *self.config.args, *own, "app-server"))

    @property
    def handshaking(self) -> bool:
        return self._thread.id is None

    def greet(self) -> bool:
        if self.handshaking and not self._opening:
            self._opening = True
            if self._initialized:
                self._open_thread()
            else:
                info = {
                    "name": "coding-agent-bridge",
                    "title": "coding-agent-bridge",
                    "version": "1",
                }
                params = {"clientInfo": info, "capabilities": {"experimentalApi": True}}
                self._peer.request("initialize", params, self._greeted)
        return True

    def prompt(self, prompt: Prompt) -> None:
        """Sent at once, or after the handshake, which the first prompt begins."""
        self._turn = CodexTurn(self._thread, [_input(prompt)])
        self.choose(prompt.options)
        self._questions.begin(prompt.task_id)
        self.greet()
        self._send_pending(self._turn)

    def steer(self, prompt: Prompt) -> None:
        """The message joins the running turn. If that turn has ended meanwhile, the message begins
        another turn in the same task."""
        if self._turn:
            self._turn.pending.append(_input(prompt))
            self._send_pending(self._turn)

    def answer(self, question: Question, answer: Answer) -> None:
        words = self._questions.pass_answer(question, answer)
        if words and self._turn:
            self._turn.pending.append([{"type": "text", "text": f"The user said no. {words}"}])
            self._send_pending(self._turn)

    def interrupt(self) -> bool:
        """Codex ends the turn as `interrupted`, and withdraws its questions."""
        turn = self._turn
        if turn is None or not (turn.starting or turn.id):
            self._turn = None  # a prompt that waits for the handshake is dropped
            return False
        turn.interrupted = True
        turn.pending.clear()
        self._questions.drop()
        self._send_interrupt(turn)
        return True

    def stop_unasked(self) -> bool:
        if self._unasked:
            self._peer.request("turn/interrupt", self._unasked, lambda response: ())
        self._unasked = None
        return not self.handshaking

    def receive_object(self, value: Json, line: bytes) -> Said:
        idle = self._turn is None
        said = self._peer.receive(value)
        if idle and is_request(value):
            return [unasked("request", str(value["method"]), value.get("params"))]
        return (output_status(line),) if said is None else said

    def receive_exit(self, status: ExitStatus) -> Said:
        if self._turn and self._turn.interrupted:
            return [INTERRUPTED]
        return super().receive_exit(status)

    # --- the handshake -------------------------------------------------------------------------

    def _greeted(self, response: Response) -> Said:
        if response.error:
            return self._give_up(response.error)
        self._initialized = True
        self._peer.notify("initialized", {})
        self._open_thread()
        return ()

    def _open_thread(self) -> None:
        start = self.start
        policy, sandbox = self._limits()
        self._settled = start.options
        params: dict[str, Any] = {"cwd": start.cwd, "approvalPolicy": policy, "sandbox": sandbox}
        if self.model:
            params["model"] = self.model
        if start.resume:
            params |= {"threadId": start.session_id, "excludeTurns": True}
        method = "thread/resume" if start.resume else "thread/start"
        self._peer.request(method, params, self._opened)

    def _limits(self) -> tuple[str, str]:
        """The approval policy and the sandbox of the mode."""
        policy, sandbox = MODES[self.mode or ""]
        if self.config.force:
            policy = "never"
        if not self.mode and (self.config.force or self.config.confined):
            sandbox = "danger-full-access"
        return policy, sandbox

    def _changed(self) -> dict[str, Any]:
        """The members of turn/start that change the thread to the client's later choices."""
        before, now = self._settled, self.start.options
        members, thread = dict[str, Any](), self._thread.members
        self._settled = now
        if now.model != before.model:
            members["model"] = now.model
            self._thread.members = thread = {**thread, "model": now.model}
        if now.mode != before.mode:
            policy, sandbox = self._limits()
            members |= {"approvalPolicy": policy, "sandboxPolicy": {"type": POLICIES[sandbox]}}
        if "plan" in (now.mode, before.mode):  # Codex then has instructions of its own
            effort = {"reasoning_effort": thread.get("reasoningEffort")}
            mode = "plan" if now.mode == "plan" else "default"
            settings = {"model": thread.get("model"), **effort}
            members["collaborationMode"] = {"mode": mode, "settings": settings}
        return members

    def _opened(self, response: Response) -> Said:
        if response.error:
            return self._give_up(response.error)
        thread = as_word(as_dict(response.members.get("thread")).get("id"))
        if thread is None:
            return self._give_up(RpcError(0, "it named no thread"))
        self._opening = False
        self._thread.members, self._thread.id = response.members, thread
        if self._turn is None:
            return [self._thread.started(self.mode)]
        self._send_pending(self._turn)
        return ()

    def _give_up(self, error: RpcError) -> Said:
        """The handshake ends here. The next prompt begins it again."""
        self._opening = False
        failed = Failed(f"Codex could not begin: {error.message}", details={"code": error.code})
        if self.start.resume and self._initialized and not _means_login(error):
            failed = self.conversation_lost("" if _means_lost(error) else error.message)
        return self._end(failed)

    # --- the turn ------------------------------------------------------------------------------

    def _send_pending(self, turn: CodexTurn) -> None:
        """Send the pending inputs, if Codex takes them now."""
        if self.handshaking or turn.starting:
            return
        if turn.id is None and turn.pending:
            turn.starting = True
            given = [part for one in turn.pending for part in one]
            before = self._settled, self._thread.members
            params = {"input": given, **self._changed()}
            self._request("turn/start", params, partial(self._turn_taken, turn, before))
            turn.pending.clear()
        elif turn.id and turn.steerable:
            for one in turn.pending:
                turn.steering += 1
                params = {"expectedTurnId": turn.id, "input": one}
                self._request("turn/steer", params, partial(self._steered, turn, one))
            turn.pending.clear()

    def _request(self, method: str, params: Json, then: Callable[[Response], Said]) -> None:
        self._peer.request(method, {"threadId": self._thread.id, **params}, then)

    def _turn_taken(
        self, turn: CodexTurn, before: tuple[SessionOptions, Json], response: Response
    ) -> Said:
        turn.starting = False
        if turn is not self._turn:
            return ()
        if response.error:
            return self._end(self._refused(before, response.error))
        turn.id = as_word(as_dict(response.members.get("turn")).get("id"))
        if turn.id is None:
            return self._end(Failed("Codex named no turn.", "protocol"))
        self._send_pending(turn)
        began, turn.began = turn.began, True
        return () if began else [self._thread.started(self.mode)]

    def _refused(self, before: tuple[SessionOptions, Json], error: RpcError) -> Failed:
        """The failure of a turn that did not begin. The thread has not changed, and the next turn
        does not request the refused choices again."""
        reason = "agent-error" if before[0] == self._settled else CONFIGURATION
        self._settled, self._thread.members = before
        details = {"code": error.code}
        failed = model_failure(error.message, details=details, otherwise=reason)
        if failed.reason == CONFIGURATION:
            self.start = replace(self.start, options=self._settled)
        return failed

    def _steered(self, turn: CodexTurn, given: list[Json], response: Response) -> Said:
        turn.steering -= 1
        if turn is not self._turn or turn.interrupted:
            return ()
        if response.error:
            # The turn has ended, or its kind takes no further message; then another turn does.
            turn.steerable = False
            turn.pending.append(given)
        return self._continue(turn)

    def _turn_started(self, params: Json) -> Said:
        turn, started = self._turn, params["turn"]["id"]
        if turn is None:
            self._unasked = {"threadId": params.get("threadId"), "turnId": started}
            return [unasked("turn", "turn/started")]
        if started == turn.id:
            turn.running = True
            if turn.interrupted:
                self._send_interrupt(turn)
        return ()

    def _limits_updated(self, params: Json) -> Said:
        if self._turn:
            self._turn.limits = as_dict(params.get("rateLimits"))
        return ()

    def _send_interrupt(self, turn: CodexTurn) -> None:
        if turn.running:
            self._request("turn/interrupt", {"turnId": turn.id}, lambda response: ())

    def _turn_completed(self, params: Json) -> Said:
        turn, done = self._turn, as_dict(params.get("turn"))
        if turn is None or params.get("threadId") != self._thread.id or done.get("id") != turn.id:
            return ()
        turn.id, turn.running, turn.steerable = None, False, True
        if turn.interrupted or done.get("status") != "completed":
            return self._leave(turn, turn.outcome(done))
        return self._continue(turn)

    def _continue(self, turn: CodexTurn) -> Said:
        """Send the pending inputs. After the last one, the task is done."""
        self._send_pending(turn)
        if turn.id or turn.starting or turn.steering:
            return ()
        return self._leave(turn, turn.outcome({"status": "completed"}))

    def _leave(self, turn: CodexTurn, event: Done | Failed) -> Said:
        """End the background commands of the task before the task."""
        if not (turn.interrupted or turn.commands):
            return self._end(event)
        self._request("thread/backgroundTerminals/clean", {}, lambda response: self._end(event))
        turn.commands.clear()
        return ()

    def _end(self, event: Done | Failed) -> Said:
        """The turn ends, or the handshake before it."""
        turn, self._turn = self._turn, None
        self._questions.cancel()
        if turn is None:
            if isinstance(event, Failed):
                yield event  # of a handshake without a prompt
            return
        yield from self._thread.turn_usage()
        yield from turn.changes()
        yield event

    def _in_turn(
        self, method: str, handler: Callable[[CodexTurn, Json], Said], params: Json
    ) -> Said:
        if self._turn:
            return handler(self._turn, params)
        return () if method == "item/completed" else [unasked("output", method)]


# --- input ---------------------------------------------------------------------------------------


def _input(prompt: Prompt) -> list[Json]:
    return [_user_input(part) for part in prompt.parts]


def _user_input(part: Part) -> Json:
    kind = media_type(part)
    if isinstance(part, RawPart) and kind in IMAGES:
        return {"type": "image", "url": f"data:{kind};base64,{part.base64}"}
    return {"type": "text", "text": as_text(part)}


def _warning(params: Json) -> Said:
    """A warning has a message, or a summary with details."""
    text = as_string(params.get("message") or params.get("summary"))
    details = as_word(params.get("details"))
    return [Status(f"{text} ({details})" if details else text, {"type": "warning", "text": text})]


def _means_lost(error: RpcError) -> bool:
    known = ("no rollout found", "thread not found", "invalid session id", "invalid thread id")
    return any(words in error.message for words in known)


def _means_login(error: RpcError) -> bool:
    return any(words in error.message.casefold() for words in ("log in", "login", "unauthorized"))


ADAPTER = Codex
