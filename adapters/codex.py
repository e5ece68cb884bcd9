"""Codex over `codex app-server`: JSON-RPC without its version, on lines; one process and one thread
per session of ours. Written for and run against 0.169.0.

What decides the code (all measured):

* turn/start is answered at once; turn/completed is the end. A turn/interrupt before turn/started
  is refused ("no active turn"), and then the turn goes on.
* turn/interrupt leaves running commands alone: thread/backgroundTerminals/clean ends them.
* turn/steer is heard by the turn, or refused: never accepted and forgotten (250 races at the end
  of a turn). It cuts the message that is being streamed, which is then never completed. So does a
  retry: the same text comes anew, as another item.
* What begins with `/`, `@`, `!` or `$` is only text.
* A new thread's usage counts from nothing; a resumed one tells first what was used before.
* An MCP tool's permission is asked for as an elicitation with an empty form.
* Sub-agents are threads of their own in the same process. Their questions are ours to answer.
* A command that the sandbox stops at once is never told of, but to the model.
* thread/start writes down for good that the folder is trusted, unless it is told otherwise. In one
  that is not, it does not read AGENTS.md either.
* `acceptWithExecpolicyAmendment` writes a rule for good: it is never offered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from bridge.adapter import (
    Adapter,
    AgentConfig,
    CliInfo,
    ExitStatus,
    Home,
    Launch,
    Prompt,
    SessionStart,
    as_text,
)
from bridge.adapter.fields import as_dict, as_list, as_string, as_word, output_status
from bridge.adapter.jsonrpc import Peer, Response, RpcError
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
    ToolCall,
    ToolResult,
)
from bridge.task.message import Part, RawPart, TextPart, media_type

from . import _homes as homes
from . import _project_files as files
from ._codex_items import (
    NO_TOOLS,
    Words,
    changes_of,
    counts,
    failure,
    has_failed,
    less,
    message_of,
    output_of,
    plan_of,
    tool_of,
    usage_of,
)
from ._codex_questions import CodexQuestions, own_words
from ._codex_trust import closed

Json = Mapping[str, Any]
Said = Iterable[AgentEvent]

# Approval policy and sandbox. `untrusted` asks before each change of files and each command that is
# not known to be harmless; one that was allowed and at once fails in the sandbox is run again
# without it, by the CLI itself and unasked.
# `on-request` asks before the agent leaves the sandbox, and only then.
MODES = {
    "": ("untrusted", "workspace-write"),
    "read-only": ("on-request", "read-only"),
    "workspace-write": ("on-request", "workspace-write"),
    "plan": ("on-request", "read-only"),
}
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
INTERRUPTED = Failed("The turn was interrupted.", "interrupted")


@dataclass(slots=True)
class _Turn:
    """A task of ours: usually one turn of Codex, and another where a message came too late."""

    unsaid: list[list[Json]]  # inputs that Codex has not been given
    starting: bool = False  # turn/start is under way
    steering: int = 0  # how many turn/steer are
    steerable: bool = True
    id: str | None = None  # of the turn of Codex that runs
    running: bool = False  # and it has said so itself
    began: bool = False
    interrupted: bool = False
    words: Words = field(default_factory=Words)
    thought: tuple[str, Any] | None = None  # the reasoning that is streamed: item and section
    thoughts: set[str] = field(default_factory=set)  # items whose reasoning was streamed
    tools: dict[str, Json] = field(default_factory=dict)  # items that were announced, by id
    others: dict[str, Json] = field(default_factory=dict)  # items of nobody that we know
    commands: set[str] = field(default_factory=set)  # items that are running
    changed: dict[str, None] = field(default_factory=dict)  # paths, in order
    diffs: dict[str, str] = field(default_factory=dict)  # by turn of Codex


class Codex(Adapter):
    name: ClassVar[str] = "codex"
    title: ClassVar[str] = "Codex"
    binary: ClassVar[str] = "codex"
    environment: ClassVar[tuple[str, ...]] = ("CODEX_*", "OPENAI_*")
    modes: ClassVar[tuple[str, ...]] = tuple(filter(None, MODES))
    steers: ClassVar[bool] = True
    homes: ClassVar[tuple[Home, ...]] = (homes.CODEX,)
    project_files: ClassVar[tuple[str, ...]] = files.CODEX
    remembers: ClassVar[tuple[str, ...]] = files.CODEX_READS
    cli_info: ClassVar[CliInfo] = CliInfo(
        "npm install -g @openai/codex",
        "codex login, or name another provider in ~/.codex/config.toml",
        help=("app-server", "--help"),  # `login status` knows nothing of other providers
    )
    input_modes: ClassVar[tuple[str, ...]] = ("text/*", "application/json", *IMAGES)

    def __init__(self, config: AgentConfig, start: SessionStart) -> None:
        super().__init__(config, start)
        self._peer: Peer[AgentEvent] = Peer(self.send, tagged=False)
        self._peer.notifications = {
            "turn/started": self._turn_started,
            "turn/completed": self._turn_completed,
            "turn/plan/updated": self._plan_updated,
            "turn/diff/updated": self._diff_updated,
            "item/started": self._item_started,
            "item/completed": self._item_completed,
            "item/agentMessage/delta": self._delta,
            "item/plan/delta": self._delta,
            "item/reasoning/summaryTextDelta": self._thought_delta,
            "item/reasoning/textDelta": self._thought_delta,
            "thread/tokenUsage/updated": self._token_usage,
            "error": self._error,
            "warning": _warning,
            "guardianWarning": _warning,
            "configWarning": _warning,
        }
        self._initialized = False
        self._opening = False
        self._thread: Json | None = None  # the answer to thread/start or thread/resume
        self._thread_id: str | None = None
        self._turn: _Turn | None = None
        self._questions = CodexQuestions(
            self._peer, config.force, start.cwd, self._may_ask, self._item
        )
        self._agents: dict[str, str] = {}  # threads of sub-agents → the tool calls that began them
        # Tokens of the thread: all, and those of the turns that are over. None: not known yet.
        self._used: dict[str, int] = {}
        self._over: dict[str, int] | None = None if start.resume else {}
        self._window: Any = None

    # --- what the session asks for -------------------------------------------------------------

    def launch(self) -> Launch:
        own = closed(self.config, self.start)
        return Launch((self.config.binary, *self.config.args, *own, "app-server"))

    @property
    def handshaking(self) -> bool:
        return self._thread is None

    def greet(self) -> bool:
        if self._thread is None and not self._opening:
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
        """Said at once, or when the handshake is done, which the first prompt begins."""
        self._turn = _Turn([_input(prompt)])
        self.greet()
        self._speak(self._turn)

    def steer(self, prompt: Prompt) -> None:
        """The message joins the turn that runs. If that has ended meanwhile, another one follows in
        the same task."""
        if self._turn:
            self._turn.unsaid.append(_input(prompt))
            self._speak(self._turn)

    def answer(self, question: Question, answer: Answer) -> None:
        wanted = self._questions.answer(question, answer)
        words = own_words(question, answer) if wanted else ""
        if words and self._turn:
            self._turn.unsaid.append([{"type": "text", "text": f"The user said no. {words}"}])
            self._speak(self._turn)

    def interrupt(self) -> bool:
        """Codex ends the turn as `interrupted`, and withdraws what it has asked."""
        turn = self._turn
        if turn is None or not (turn.starting or turn.id):
            self._turn = None  # a prompt that waits for the handshake is not sent any more
            return False
        turn.interrupted = True
        turn.unsaid.clear()
        self._questions.drop()
        self._send_interrupt(turn)
        return True

    def receive_line(self, line: bytes) -> Said:
        said = self._peer.receive(line)
        if said is None:
            return (output_status(line),) if line.strip() else ()
        return said

    def receive_exit(self, status: ExitStatus) -> Said:
        self._peer.close()
        self._questions.close()
        if self._turn and self._turn.interrupted:
            return [INTERRUPTED]
        return super().receive_exit(status)

    # --- the handshake -------------------------------------------------------------------------

    def _greeted(self, reply: Response) -> Said:
        if reply.error:
            return self._give_up(reply.error)
        self._initialized = True
        self._peer.notify("initialized", {})
        self._open_thread()
        return ()

    def _open_thread(self) -> None:
        start, force = self.start, self.config.force
        policy, sandbox = MODES[start.options.mode or ""]
        if force:
            policy = "never"
            sandbox = sandbox if start.options.mode else "danger-full-access"
        params: dict[str, Any] = {"cwd": start.cwd, "approvalPolicy": policy, "sandbox": sandbox}
        model = start.options.model or self.config.model
        if model:
            params["model"] = model
        if start.resume:
            params |= {"threadId": start.session_id, "excludeTurns": True}
        method = "thread/resume" if start.resume else "thread/start"
        self._peer.request(method, params, self._opened)

    def _opened(self, reply: Response) -> Said:
        if reply.error:
            return self._give_up(reply.error)
        thread = as_word(as_dict(reply.members.get("thread")).get("id"))
        if thread is None:
            return self._give_up(RpcError(0, "it named no thread"))
        self._opening = False
        self._thread, self._thread_id = reply.members, thread
        if self._turn is None:
            return [self._started()]
        self._speak(self._turn)
        return ()

    def _started(self) -> Started:
        thread = self._thread or {}
        facts = as_dict(thread.get("thread"))
        version = as_word(facts.get("cliVersion"))
        return Started(self._thread_id, as_word(thread.get("model")), version, self._mode())

    def _mode(self) -> str | None:
        """In the words of a client's choice; what the operator chose has no name."""
        return self.start.options.mode

    def _give_up(self, error: RpcError) -> Said:
        """The handshake ends here. The next prompt begins it anew."""
        self._opening = False
        failed = Failed(f"Codex could not begin: {error.message}", details={"code": error.code})
        if self.start.resume and self._initialized and not _means_login(error):
            what = f"Codex no longer has the conversation {self.start.session_id}."
            if not _means_lost(error):
                what = f"Codex cannot load the conversation {self.start.session_id}: "
                what += f"{error.message}."
            text = f"{what} The message was not run; send it again to begin a new conversation."
            failed = Failed(text, SESSION_LOST)
        return self._end(failed)

    # --- the turn ------------------------------------------------------------------------------

    def _speak(self, turn: _Turn) -> None:
        """Give Codex what it has not been told, if now is the time."""
        if self._thread is None or turn.starting:
            return
        if turn.id is None and turn.unsaid:
            turn.starting = True
            params = {"input": [part for one in turn.unsaid for part in one], **self._planning()}
            self._request("turn/start", params, partial(self._turn_taken, turn))
            turn.unsaid.clear()
        elif turn.id and turn.steerable:
            for one in turn.unsaid:
                turn.steering += 1
                params = {"expectedTurnId": turn.id, "input": one}
                self._request("turn/steer", params, partial(self._steered, turn, one))
            turn.unsaid.clear()

    def _planning(self) -> Json:
        """What makes it a turn in plan mode: instructions of Codex's own."""
        if self._mode() != "plan":
            return {}
        thread = self._thread or {}
        settings = {"model": thread.get("model"), "reasoning_effort": thread.get("reasoningEffort")}
        return {"collaborationMode": {"mode": "plan", "settings": settings}}

    def _request(self, method: str, params: Json, then: Callable[[Response], Said]) -> None:
        self._peer.request(method, {"threadId": self._thread_id, **params}, then)

    def _turn_taken(self, turn: _Turn, reply: Response) -> Said:
        turn.starting = False
        if turn is not self._turn:
            return ()
        if reply.error:
            return self._end(Failed(reply.error.message, details={"code": reply.error.code}))
        turn.id = as_word(as_dict(reply.members.get("turn")).get("id"))
        if turn.id is None:
            return self._end(Failed("Codex named no turn.", "protocol"))
        self._speak(turn)
        began, turn.began = turn.began, True
        return () if began else [self._started()]

    def _steered(self, turn: _Turn, said: list[Json], reply: Response) -> Said:
        turn.steering -= 1
        if turn is not self._turn or turn.interrupted:
            return ()
        if reply.error:
            # The turn is over, or is of a kind that takes no more; then another one will.
            turn.steerable = False
            turn.unsaid.append(said)
        return self._go_on(turn)

    def _turn_started(self, params: Json) -> Said:
        turn = self._turn
        if turn and params["turn"]["id"] == turn.id:
            turn.running = True
            if turn.interrupted:
                self._send_interrupt(turn)
        return ()

    def _send_interrupt(self, turn: _Turn) -> None:
        if turn.running:
            self._request("turn/interrupt", {"turnId": turn.id}, lambda reply: ())

    def _turn_completed(self, params: Json) -> Said:
        turn, done = self._turn, as_dict(params.get("turn"))
        if turn is None or params.get("threadId") != self._thread_id or done.get("id") != turn.id:
            return ()
        turn.id, turn.running, turn.steerable = None, False, True
        if turn.interrupted or done.get("status") != "completed":
            return self._leave(turn, self._outcome(turn, done))
        return self._go_on(turn)

    def _go_on(self, turn: _Turn) -> Said:
        """Say what is left to be said. When all has been heard, the task is done."""
        self._speak(turn)
        if turn.id or turn.starting or turn.steering:
            return ()
        return self._leave(turn, self._outcome(turn, {"status": "completed"}))

    def _leave(self, turn: _Turn, event: Done | Failed) -> Said:
        """A task has one end: no command of it may go on in the background, unseen."""
        if not (turn.interrupted or turn.commands):
            return self._end(event)
        self._request("thread/backgroundTerminals/clean", {}, lambda reply: self._end(event))
        turn.commands.clear()
        return ()

    def _outcome(self, turn: _Turn, done: Json) -> Done | Failed:
        match done.get("status"):
            case "completed":
                details = {"changedFiles": list(turn.changed)} if turn.changed else None
                return Done(summary=turn.words.whole, details=details)
            case "interrupted" if turn.interrupted:
                return INTERRUPTED
            case "interrupted":
                return Failed("Codex interrupted the turn by itself.", "cancelled")
            case "failed":
                return failure(done.get("error"))
        return Failed(f"Codex ended the turn as {done.get('status')}.", "stopped")

    def _end(self, event: Done | Failed) -> Iterator[AgentEvent]:
        """The turn is over, if there is one. Nobody can be asked any more."""
        turn, self._turn = self._turn, None
        self._questions.cancel()
        if turn is None:
            if isinstance(event, Failed):
                yield event  # of a handshake that was made ahead
            return
        if self._over != self._used and self._used:
            yield usage_of(less(self._used, self._over or {}), self._window)
            self._over = self._used
        diff = "".join(turn.diffs.values())
        if diff:
            part = TextPart(diff, "text/x-diff", "changes.diff")
            yield ArtifactChunk("diff", (part,), "Changes")
        yield event

    def _may_ask(self) -> bool:
        """Nobody can be asked between turns, or after a cancel."""
        return self._turn is not None and not self._turn.interrupted

    def _item(self, item_id: str) -> Json:
        turn = self._turn
        return {**turn.others, **turn.tools}.get(item_id, {}) if turn else {}

    # --- what is said in a turn ----------------------------------------------------------------

    def _speaker(self, params: Json) -> str | None:
        """Who says this in the turn: "" is the agent itself, else the tool call that began the
        sub-agent. None: nobody that belongs to the turn."""
        thread, turn = params.get("threadId"), self._turn
        if turn is None:
            return None
        if thread == self._thread_id:
            return "" if turn.id and params.get("turnId") == turn.id else None
        return self._agents.get(str(thread))

    def _delta(self, params: Json) -> Said:
        if self._turn is None or self._speaker(params) != "":
            return ()  # a sub-agent's words come whole
        return self._turn.words.delta(as_string(params["itemId"]), as_string(params["delta"]))

    def _thought_delta(self, params: Json) -> Iterator[AgentEvent]:
        turn, text = self._turn, as_string(params["delta"])
        if turn and self._speaker(params) == "":
            item = as_string(params["itemId"])
            section = (item, params.get("summaryIndex"))
            new = turn.thought is not None and turn.thought[0] == item and turn.thought != section
            turn.thought = section
            turn.thoughts.add(item)
            yield Thought(f"\n\n{text}" if new else text)

    def _item_started(self, params: Json) -> Iterator[AgentEvent]:
        turn, item, speaker = self._turn, params["item"], self._speaker(params)
        if turn is None:
            return
        if item["type"] == "userMessage" and speaker == "":
            yield from turn.words.give_up()  # a message that joined the turn cut it
        elif item["type"] == "contextCompaction" and speaker == "":
            yield Status("Compacting the conversation", {"type": "compacting"})
        elif speaker is None:
            turn.others[as_string(item["id"])] = item
        elif item["type"] not in NO_TOOLS:
            if item["type"] == "commandExecution":
                turn.commands.add(item["id"])
            yield from _announce(turn, item, speaker or None)

    def _item_completed(self, params: Json) -> Iterator[AgentEvent]:
        turn, item, speaker = self._turn, params["item"], self._speaker(params)
        if turn is None or (speaker is None and item.get("id") not in turn.tools):
            return
        match item["type"]:
            case "agentMessage" | "plan" if speaker:
                yield Text(as_string(item["text"]), new_block=True, parent=speaker)
            case "agentMessage" | "plan":
                yield from turn.words.completed(as_string(item["id"]), as_string(item["text"]))
            case "reasoning" if speaker == "" and item["id"] not in turn.thoughts:
                sections = as_list(item.get("summary")) or as_list(item.get("content"))
                if sections:
                    yield Thought("\n\n".join(map(str, sections)))
            case kind if kind not in NO_TOOLS:
                yield from self._tool_ended(turn, item, speaker or None)

    def _tool_ended(self, turn: _Turn, item: Json, parent: str | None) -> Iterator[AgentEvent]:
        yield from _announce(turn, item, parent)
        turn.commands.discard(item["id"])
        for thread in as_list(item.get("receiverThreadIds")):
            self._agents.setdefault(str(thread), item["id"])
        failed = has_failed(item)
        changes = () if failed else tuple(changes_of(item))
        turn.changed |= dict.fromkeys(change.path for change in changes)
        name, _ = tool_of(item)
        yield ToolResult(item["id"], output_of(item), failed, name, parent, changes)

    def _plan_updated(self, params: Json) -> Said:
        return [plan_of(params["plan"])] if self._speaker(params) == "" else ()

    def _diff_updated(self, params: Json) -> Said:
        """The whole diff of the turn each time: the last one is handed over at its end."""
        if self._turn and self._speaker(params) == "":
            self._turn.diffs[str(params["turnId"])] = as_string(params["diff"])
        return ()

    def _token_usage(self, params: Json) -> Said:
        if params.get("threadId") != self._thread_id:
            return ()  # a sub-agent's
        usage = params["tokenUsage"]
        self._used, self._window = counts(usage["total"]), usage.get("modelContextWindow")
        if self._speaker(params) is None:
            self._over = self._used  # of earlier turns
        elif self._over is None:
            self._over = less(self._used, counts(usage.get("last")))
        return ()

    def _error(self, params: Json) -> Iterator[AgentEvent]:
        """Only turn/completed ends a turn, and says the same again if it has failed."""
        error = params["error"]
        if self._turn and params.get("willRetry") and self._speaker(params) == "":
            yield from self._turn.words.give_up()
            facts = {"type": "retry", "codexErrorInfo": error.get("codexErrorInfo")}
            yield Status(f"The model did not answer: {message_of(error)}", facts)


# --- input ---------------------------------------------------------------------------------------


def _input(prompt: Prompt) -> list[Json]:
    return [_user_input(part) for part in prompt.parts]


def _user_input(part: Part) -> Json:
    kind = media_type(part)
    if isinstance(part, RawPart) and kind in IMAGES:
        return {"type": "image", "url": f"data:{kind};base64,{part.base64}"}
    return {"type": "text", "text": as_text(part)}


def _announce(turn: _Turn, item: Json, parent: str | None) -> Iterator[AgentEvent]:
    item_id = as_string(item["id"])
    if item_id not in turn.tools:
        turn.tools[item_id] = item
        yield ToolCall(item_id, *tool_of(item), parent)


# --- words ---------------------------------------------------------------------------------------


def _warning(params: Json) -> Said:
    """Some have a message, and some a summary with details."""
    text = as_string(params.get("message") or params.get("summary"))
    details = as_word(params.get("details"))
    return [Status(f"{text} ({details})" if details else text, {"type": "warning", "text": text})]


def _means_lost(error: RpcError) -> bool:
    known = ("no rollout found", "thread not found", "invalid session id", "invalid thread id")
    return any(words in error.message for words in known)


def _means_login(error: RpcError) -> bool:
    return any(words in error.message.casefold() for words in ("log in", "login", "unauthorized"))


ADAPTER = Codex
