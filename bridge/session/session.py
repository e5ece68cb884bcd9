"""One CLI session: an adapter and its process. Moves bytes between them and enforces time limits.

It makes no decisions: the adapter interprets the lines, and the manager processes the events.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bridge.adapter import Adapter, ExitStatus, Prompt, Stdin
from bridge.adapter.input import AdapterInput
from bridge.process.agent_process import TERM_GRACE, AgentProcess, Hooks, to_the_end
from bridge.process.line_splitter import LineSplitter, LongLine
from bridge.process.process_tree import kill_marked
from bridge.process.spawn import Start
from bridge.process.spool import Spool, Uncertain
from bridge.sandbox import denied
from bridge.sandbox.profile import launch_refusal
from bridge.session.redaction import NO_SECRETS, Redactor, Secrets
from bridge.task.events import (
    ENDINGS,
    SESSION_LOST,
    AgentEvent,
    Answer,
    Failed,
    Question,
    Status,
    Text,
    TimedOut,
    merge_text,
)
from bridge.task.message import Message

log = logging.getLogger(__name__)

SETTLE_WITHIN = 1.0  # seconds for a CLI to save the conversation after the end of its turn
INTERRUPT_GRACE = 2.0  # seconds from the interrupt in the protocol of the CLI to SIGTERM
EXIT_GRACE = 2.0  # seconds for the CLI to exit after the end of its stdout
WORD_WITHIN = 0.05  # seconds to wait for the rest of a word, so that a text ends between words
LONGEST_WORD = 32  # characters; a longer run is not a word
_WORD = re.compile(r"\w+\Z")
Sink = Callable[[list[AgentEvent | TimedOut]], None]


class InputUnknown(Exception):
    """An earlier server ended while it wrote to the CLI, so that the CLI's input is unknown."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds, 0 = unlimited; the line limit in bytes; `group` as in process.Start.
    `start` limits the handshake, `turn` the whole turn."""

    turn: float = 3600.0
    silence: float = 0.0
    line: int = 16 * 1024 * 1024
    term_grace: float = TERM_GRACE
    group: Mapping[str, str] = field(default_factory=dict)
    start: float = 0.0


class Session:
    """A live CLI. `run()` runs one turn at a time; `stop()` ends the session.

    `spool`: the folder for its streams, if they are files; its name is the id of the session.
    `rules`: the permissions of the CLI, as in process.Start. `secrets` are redacted from its
    output.
    """

    def __init__(
        self,
        adapter: Adapter,
        environment: Mapping[str, str],
        limits: Limits,
        marker: str,
        spool: Path | None = None,
        rules: Mapping[str, Any] | None = None,
        secrets: Secrets = NO_SECRETS,
    ) -> None:
        self.adapter = adapter
        self.spool = spool
        self.marker = marker
        self._redactor = Redactor(secrets)
        self._redacts = bool(secrets)
        self._environment = environment
        self._rules = rules  # cleared at the start: each session has its own
        self._walls = _walls(rules) if rules else None
        self._limits = limits
        self._process: AgentProcess | None = None
        self._turn: _Turn | None = None
        self._stopping: asyncio.Task[str] | None = None
        self._muted: asyncio.TimerHandle | None = None  # stdout has ended; the CLI may still exit
        self._broken = False  # its output is no longer reliable
        self._held: list[AgentEvent] = []  # events that end within an incomplete word
        self._release: asyncio.TimerHandle | None = None
        self._heard = 0  # bytes of its output that the adapter has received
        self._delivered = 0  # bytes of its output with all events delivered

    def __repr__(self) -> str:
        return f"<Session {self.adapter.name} {self._process or 'not started'}>"

    @property
    def healthy(self) -> bool:
        """Whether the session can run another turn."""
        running = self._process is not None and self._process.running
        return running and self._stopping is None and not self._broken

    async def open(self) -> None:
        """Start the CLI. Raises LaunchError."""
        launch = self.adapter.launch()
        start = Start(
            launch.argv,
            {**self._environment, **launch.env},
            self.adapter.start.cwd,
            stdin=launch.stdin is Stdin.LINES,
            marker=self.marker,
            group=self._limits.group,
            rules=self._rules,
        )
        self._rules = None
        self._process = await AgentProcess.spawn(
            start, self._hooks(), line_limit=self._limits.line, spool=self.spool
        )

    def attach(self, told: Sequence[AdapterInput], position: int) -> None:
        """Continue a CLI of an earlier server, or read the output that it left.

        `told` are the previous inputs of the adapter. The adapter gets them and the output up to
        `position` again, in the original order, and then has the same state. Later output is read
        as usual. Raises InputUnknown if the inputs of the CLI are unknown.
        """
        assert self.spool
        owed = bytearray()
        position = max([position, *(one.position for one in told)])
        try:
            spool = Spool(self.spool, position)
        except OSError:  # the folder is gone, and the session is lost
            kill_marked(self.marker, ())
            raise
        self._process = AgentProcess.attach(
            spool, self.marker, self._hooks(), line_limit=self._limits.line, position=position
        )
        with open(self.spool / "out", "rb") as out:
            splitter = LineSplitter(self._limits.line)
            for one in (*told, None):
                end = one.position if one else position
                for line in splitter.feed(out.read(end - out.tell())):
                    if isinstance(line, bytes):
                        self._redactor.clean(self.adapter.receive_line(line))
                owed += self.adapter.data_to_send()
                if one:
                    self._tell_again(one)
                    owed += self.adapter.data_to_send()
        self._heard = self._delivered = position
        try:
            spool.owe(bytes(owed))
        except Uncertain as error:
            raise InputUnknown from error

    def _tell_again(self, told: AdapterInput) -> None:
        match told:
            case AdapterInput("greet"):
                self.adapter.greet()
            case AdapterInput("answer", question=Question() as question, answer=Answer() as answer):
                self.adapter.answer(question, answer)
            case AdapterInput("prompt", message=Message() as message):
                self._redactor.rest()
                self.adapter.prompt(Prompt.of(message))
            case AdapterInput("steer", message=Message() as message):
                self.adapter.steer(Prompt.of(message))

    def _hooks(self) -> Hooks:
        return Hooks(self._receive_lines, self._receive_exit, self._receive_end)

    @property
    def position(self) -> int:
        """Bytes of the CLI's output that were processed and delivered."""
        return self._delivered

    def told(self, kind: str, message: Message | None = None, **members: Any) -> AdapterInput:
        """An input of the adapter, at the position after all output that it has received."""
        self._deliver([])
        return AdapterInput(kind, self._delivered, message, **members)

    async def run(
        self,
        begin: Callable[[], object],
        sink: Sink,
        taken: Callable[[], object] = lambda: None,
    ) -> None:
        """Run one turn. `begin` begins the turn. `sink` gets every batch of events; the last batch
        ends the turn. `taken` is called when the CLI got a prompt that had to wait for the end of
        the handshake.

        Returns after the end of the turn, at the latest when a time limit is exceeded. An exception
        of `sink` also ends the turn, and is raised.
        """
        turn = self._turn = _Turn(sink, self._limits, taken)
        try:
            begin()
            if self._process and self._process.exit_code is not None:
                self._receive_exit(self._process.exit_code)
            late = await turn.over
            if late:
                self._broken = True
                sink([*self.unsaid(), late])
            if turn.error:
                raise turn.error
        finally:
            turn.end()
            if self._turn is turn:
                self._turn = None

    @property
    def handshaking(self) -> bool:
        """Whether a prompt must wait until the CLI has opened its session."""
        return self.adapter.handshaking

    def go_on(self, waiting: bool) -> None:
        """Begin a run() with a turn that an earlier server began."""
        self._watch_start()
        self.waiting(waiting)

    def waiting(self, waiting: bool) -> None:
        """Stop the clock while a question is open: the time of the client does not count."""
        if self._turn:
            self._turn.pause(waiting)

    def unsaid(self) -> Sequence[AgentEvent]:
        """The output that waits because it may begin a secret. Call it at the end of the turn."""
        self._deliver([])
        return self._redactor.rest()

    def pause(self, paused: bool) -> None:
        """Pause or resume reading the output of the CLI."""
        if self._process:
            self._process.pause(paused)

    def greet(self) -> bool:
        """Begin the handshake as the `begin` of a run(). False: the CLI has no handshake."""
        begun: list[bool] = []
        self._tell(lambda: begun.append(self.adapter.greet()))
        return any(begun)

    def prompt(self, prompt: Prompt) -> None:
        self._redactor.rest()  # drop the rest of a canceled turn
        self._tell(lambda: self.adapter.prompt(prompt))
        self._watch_start()

    def _watch_start(self) -> None:
        if self._turn and self.adapter.handshaking:
            self._turn.start()

    def answer(self, question: Question, answer: Answer) -> None:
        self._tell(lambda: self.adapter.answer(question, answer))

    def steer(self, prompt: Prompt) -> None:
        self._tell(lambda: self.adapter.steer(prompt))

    # --- output of the process -----------------------------------------------------------------

    def _receive_lines(self, lines: Sequence[bytes | LongLine]) -> None:
        events: list[AgentEvent] = []
        try:
            for line in lines:
                if isinstance(line, LongLine):
                    events.append(_too_long(line, self._limits.line))
                else:
                    events.extend(self.adapter.receive_line(line))
        except Exception as error:
            events.append(self._adapter_failed(error))
        self._receive(events)
        self._flush()
        if self._turn and self._turn.starting and not self.adapter.handshaking:
            self._turn.started()

    def _receive(self, events: list[AgentEvent]) -> None:
        """Deliver the events of some lines. Hold events that end within a word: a client that puts
        text between the pieces would split the word. A crash does not lose held events: their
        lines do not count as processed yet."""
        if self._held and not _goes_on(events):
            self._deliver([])
        if self._process:
            self._heard = self._process.position
        if not (self._turn and _ends_in_word(events or self._held)):
            self._deliver(events)
            return
        self._held += events
        if self._release is None:
            loop = asyncio.get_running_loop()
            self._release = loop.call_later(WORD_WITHIN, self._deliver, ())

    def _receive_end(self) -> None:
        """stdout is closed: no more output can arrive, so the CLI must exit within EXIT_GRACE."""
        self._broken = True
        self._muted = asyncio.get_running_loop().call_later(EXIT_GRACE, self._mute)

    def _mute(self) -> None:
        if self._process and self._process.exit_code is None:
            text = f"{self.adapter.title} closed its output before it had answered, and lives on."
            self._deliver([Failed(text, "output-closed")])

    def _receive_exit(self, code: int) -> None:
        if self._muted:
            self._muted.cancel()
        stderr = self._process.stderr.decode(errors="replace") if self._process else ""
        limit = self._process.exceeded if self._process else None
        problem = launch_refusal(code, stderr) if self._walls else None
        if problem:
            log.warning("the agent could not be started: %s", problem)
            text = "The agent could not be started. The server's log says why."
            self._deliver([Failed(text, "launch")])
            return
        try:
            events = list(self.adapter.receive_exit(ExitStatus(code, stderr, limit)))
        except Exception as error:
            events = [self._adapter_failed(error)]
        self._deliver(events)

    def _deliver(self, events: Iterable[AgentEvent]) -> None:
        if self._release:
            self._release.cancel()
            self._release = None
        events = [*self._held, *events]
        self._held = []
        self._delivered = self._heard
        if len(events) > 1:
            events = merge_text(events)
        if self._redacts:
            events = self._redactor.clean(events)
        for event in events:
            if isinstance(event, Failed) and event.reason == SESSION_LOST:
                self._broken = True  # the conversation to resume does not exist any more
        if self._walls and events and isinstance(events[-1], Failed):
            events[-1] = self._explained(events[-1], self._walls)
        if self._turn:
            self._turn.receive(events)
            self._broken = self._broken or self._turn.error is not None
        elif events:
            log.debug("output between turns", extra={"events": len(events)})

    def _explained(self, failed: Failed, walls: Mapping[str, Any]) -> Failed:
        """Add the explanation to a failure that the sandbox caused."""
        found = denied.explain(failed.text, walls, failed.reason == "exit")
        if found is None:
            return failed
        text, path = found
        log.warning("the sandbox refused something to an agent", extra={"path": path})
        return replace(failed, text=f"{text} {failed.text}")

    def _tell(self, tell: Callable[[], object]) -> None:
        """Call the adapter, and write its data to the CLI. An exception fails the turn."""
        try:
            tell()
        except Exception as error:
            self._deliver([self._adapter_failed(error)])
        self._flush()

    def _adapter_failed(self, error: Exception) -> AgentEvent:
        """Convert an exception of an adapter to the failure of its turn; only this code does it."""
        log.exception("adapter failed", extra={"adapter": self.adapter.name})
        self._broken = True
        text = f"The adapter could not process the agent's output ({type(error).__name__})."
        return Failed(text + " The server's log has the details.", "adapter-error")

    def _flush(self) -> None:
        try:
            data = self.adapter.data_to_send()
        except Exception as error:
            self._deliver([self._adapter_failed(error)])
            return
        if data and self._process:
            self._process.write(data)

    # --- the end -------------------------------------------------------------------------------

    def begin_stop(self, interrupt: bool = False) -> None:
        """Begin to stop the CLI now; stop() waits for the end of the CLI and its descendants.

        `interrupt`: first send an interrupt in the protocol of the CLI, so that its running shell
        commands do not become orphans. The CLI has INTERRUPT_GRACE to end the turn. Many CLIs save
        the conversation after they report the end, and could not resume it otherwise.
        """
        if self._stopping is None:
            turn = self._turn if interrupt and self._interrupt() else None
            self._stopping = asyncio.ensure_future(self._stop(turn))

    async def stop(self) -> None:
        """End the process and its descendants. A cancellation also waits for their end."""
        self.begin_stop()
        assert self._stopping
        await to_the_end(self._stopping)

    def detach(self) -> None:
        """Leave the CLI running; another server may continue it."""
        self._broken = True
        if self._process:
            self._process.detach()

    def kill(self) -> None:
        if self._process:
            self._process.kill()

    def _interrupt(self) -> bool:
        asked = False
        with contextlib.suppress(Exception):
            asked = self.adapter.interrupt()
        self._flush()
        return asked

    async def _stop(self, turn: _Turn | None) -> str:
        if turn:
            await asyncio.wait([turn.over], timeout=INTERRUPT_GRACE)
            if turn.over.done() and self._process:
                await self._process.settle(SETTLE_WITHIN)
        rung = await self._process.stop(self._limits.term_grace) if self._process else "exited"
        log.info("session stopped", extra={"adapter": self.adapter.name, "rung": rung})
        return rung


class _Turn:
    """Passes the events of one turn to the sink, and runs the clocks of the turn. The result of
    `over`: None if the turn has ended, or the limit that the turn exceeded."""

    def __init__(self, sink: Sink, limits: Limits, taken: Callable[[], object]) -> None:
        self._sink = sink
        self._taken = taken
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[TimedOut | None] = self._loop.create_future()
        self.error: Exception | None = None  # raised by the sink
        self.starting = False  # the prompt waits for the end of the handshake
        self._heard = self._loop.time()
        self._worked = 0.0  # seconds of work until the last resume, without waiting
        self._resumed = self._heard
        self._waiting = False  # for the client
        self._clock = self._loop.call_later(self._until_late(), self._look)

    def start(self) -> None:
        """Start the limit of the handshake: the prompt must wait for its end."""
        self._clock.cancel()
        self.starting = True
        if not self.over.done():
            self._look()

    def started(self) -> None:
        """The CLI got its prompt."""
        self.starting = False
        self._heard = self._loop.time()
        if not self.over.done():
            self._taken()

    def receive(self, events: Sequence[AgentEvent]) -> None:
        """Pass on the events up to the end of the turn. Later events do not belong to it."""
        self._heard = self._loop.time()
        if self.over.done() or not events:
            return
        happened: list[AgentEvent | TimedOut] = [*events]
        ended = False
        for count, event in enumerate(events, 1):
            if isinstance(event, ENDINGS):
                ended = True
                del happened[count:]
                break
        try:
            self._sink(happened)
        except Exception as error:
            self.error = error
        if self.error or ended:
            self.end()

    def end(self, late: TimedOut | None = None) -> None:
        self._clock.cancel()
        if not self.over.done():
            self.over.set_result(late)

    def pause(self, waiting: bool) -> None:
        if waiting == self._waiting or self.over.done():
            return
        self._clock.cancel()
        self._waiting, now = waiting, self._loop.time()
        if waiting:
            self._worked += now - self._resumed
        else:
            self._resumed = self._heard = now
            self._look()

    def _look(self) -> None:
        late = self._late()
        if late:
            self.end(late)
        else:
            self._clock = self._loop.call_later(self._until_late(), self._look)

    def _until_late(self) -> float:
        """Seconds until a limit can be exceeded."""
        now = self._loop.time()
        left = min((limit - used for limit, used, _ in self._limited(now)), default=3600.0)
        return min(max(left, 0.0), 3600.0)

    def _late(self) -> TimedOut | None:
        for limit, used, late in self._limited(self._loop.time()):
            if used >= limit:
                return late(limit)
        return None

    def _limited(self, now: float) -> Iterator[tuple[float, float, Callable[[float], TimedOut]]]:
        """The active limits: seconds, used seconds, and the function that makes the timeout."""
        worked = self._worked + now - self._resumed
        if self.starting and self._limits.start:
            yield self._limits.start, worked, _no_handshake
        if self._limits.turn:
            yield self._limits.turn, worked, _too_slow
        if self._limits.silence:
            yield self._limits.silence, now - self._heard, _too_silent


def _no_handshake(limit: float) -> TimedOut:
    return TimedOut(
        f"The agent was started, but did not take the prompt within {limit:g} s and was stopped "
        "(BRIDGE_START_TIMEOUT_MS sets the limit; `coding-agent-bridge doctor` examines the CLI).",
        "start",
    )


def _too_slow(limit: float) -> TimedOut:
    return TimedOut(
        f"The turn took longer than {limit:g} s and was stopped (AGENT_TIMEOUT_MS sets the limit)."
    )


def _too_silent(limit: float) -> TimedOut:
    return TimedOut(
        f"The agent printed nothing for {limit:g} s and was stopped (AGENT_IDLE_EXIT_MS sets the "
        "limit)."
    )


def _ends_in_word(events: Sequence[AgentEvent]) -> bool:
    last = events[-1] if events else None
    if not isinstance(last, Text) or last.parent is not None:
        return False
    end = last.text[-1:]
    if not (end.isalnum() or end == "_"):  # the same as _WORD, much faster
        return False
    found = _WORD.search(last.text[-LONGEST_WORD - 1 :])
    return found is not None and len(found[0]) <= LONGEST_WORD


def _goes_on(events: Sequence[AgentEvent]) -> bool:
    """Whether the events begin with the rest of a word, or there are none."""
    first = events[0] if events else None
    if not isinstance(first, Text):
        return first is None
    return first.parent is None and not first.new_block and _WORD.match(first.text[:1]) is not None


def _walls(rules: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rules that explain a refusal; the other rules are only needed at the start."""
    known = ("profile", "write", "hide", "uid")
    return {name: rules[name] for name in known if name in rules}


def _too_long(line: LongLine, limit: int) -> AgentEvent:
    text = f"A line of {line.length} bytes was cut: BRIDGE_MAX_LINE_BYTES is {limit}."
    head = line.head[:2000].decode(errors="replace")
    return Status(text, {"type": "truncated_line", "bytes": line.length, "head": head})
