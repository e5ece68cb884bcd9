"""One CLI session: an adapter and its process. Moves bytes between them and enforces time limits.

It makes no decisions: the adapter interprets the lines, and the manager processes the events.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bridge.adapter import Adapter, ExitStatus, Prompt, Stdin
from bridge.adapter.input import AdapterInput
from bridge.process.agent_process import AgentProcess, Hooks, to_the_end
from bridge.process.line_splitter import LineSplitter, LongLine
from bridge.process.process_tree import kill_marked
from bridge.process.spawn import Start
from bridge.process.spool import Spool, Uncertain
from bridge.sandbox import denied
from bridge.sandbox.profile import launch_refusal
from bridge.session.redaction import NO_SECRETS, Redactor, Secrets
from bridge.session.turn import SessionTurn, Sink, TurnLimits, WordBuffer
from bridge.task.events import (
    SESSION_LOST,
    AgentEvent,
    Answer,
    Failed,
    Question,
    Status,
    merge_text,
)
from bridge.task.message import Message

log = logging.getLogger(__name__)

SETTLE_WITHIN = 1.0  # seconds for a CLI to save the conversation after the end of its turn


class InputUnknown(Exception):
    """An earlier server ended while it wrote to the CLI, so that the CLI's input is unknown."""


class Session:
    """A live CLI. `run()` runs one turn at a time; `stop()` ends the session.

    `spool`: the folder for its streams, if they are files; its name is the id of the session.
    `rules`: the permissions of the CLI, as in process.Start. `secrets` are redacted from its
    output. `before_start` is awaited before its start; `on_ready` is called when it has printed a
    line and its handshake is over, and when it has ended.
    """

    def __init__(
        self,
        adapter: Adapter,
        environment: Mapping[str, str],
        limits: TurnLimits,
        marker: str,
        spool: Path | None = None,
        rules: Mapping[str, Any] | None = None,
        secrets: Secrets = NO_SECRETS,
    ) -> None:
        self.adapter = adapter
        self.spool = spool
        self.marker = marker
        self.before_start: Callable[[], Awaitable[None]] | None = None
        self.on_ready: Callable[[], None] | None = None
        self._redactor = Redactor(secrets)
        self._redacts = bool(secrets)
        self._environment = environment
        self._rules = rules  # cleared at the start: each session has its own
        # The rules that explain a refusal; the other rules are only needed at the start.
        known = ("profile", "write", "hide", "uid")
        self._walls = {name: rules[name] for name in known if name in rules} if rules else None
        self._limits = limits
        self._process: AgentProcess | None = None
        self._turn: SessionTurn | None = None
        self._stopping: asyncio.Task[str] | None = None
        self._muted: asyncio.TimerHandle | None = None  # stdout has ended; the CLI may still exit
        self._broken = False  # its output is no longer reliable
        self._words = WordBuffer()
        self._heard = 0  # bytes of its output that the adapter has received
        self.position = 0  # bytes of its output with all events delivered

    def __repr__(self) -> str:
        return f"<Session {self.adapter.name} {self._process or 'not started'}>"

    @property
    def healthy(self) -> bool:
        """Whether the session can run another turn."""
        running = self._process is not None and self._process.running
        return running and self._stopping is None and not self._broken

    async def open(self) -> None:
        """Start the CLI. Raises LaunchError."""
        if self.before_start:
            await self.before_start()
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
        position = max([position, *(one.position for one in told)])
        try:
            spool = Spool(self.spool, position)
        except OSError:  # the folder is gone, and the session is lost
            kill_marked(self.marker, ())
            raise
        self._process = AgentProcess.attach(
            spool, self.marker, self._hooks(), line_limit=self._limits.line, position=position
        )
        owed, splitter = bytearray(), LineSplitter(self._limits.line)
        with open(self.spool / "out", "rb") as out:
            for one in (*told, None):
                end = one.position if one else position
                for line in splitter.feed(out.read(end - out.tell())):
                    if isinstance(line, bytes):
                        self._redactor.clean(self.adapter.receive_line(line))
                owed += self.adapter.data_to_send()
                if one:
                    self._tell_again(one)
                    owed += self.adapter.data_to_send()
        self._heard = self.position = position
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

    def told(self, kind: str, message: Message | None = None, **members: Any) -> AdapterInput:
        """An input of the adapter, at the position after all output that it has received."""
        self._deliver(())
        return AdapterInput(kind, self.position, message, **members)

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
        turn = self._turn = SessionTurn(sink, self._limits, taken)
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
        self._deliver(())
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
                    limit = self._limits.line
                    text = (
                        f"A line of {line.length} bytes was cut: BRIDGE_MAX_LINE_BYTES is {limit}."
                    )
                    head = line.head[:2000].decode(errors="replace")
                    facts = {"type": "truncated_line", "bytes": line.length, "head": head}
                    events.append(Status(text, facts))
                else:
                    events.extend(self.adapter.receive_line(line))
        except Exception as error:
            events.append(self._adapter_failed(error))
        self._receive(events)
        self._flush()
        if self._turn and self._turn.starting and not self.adapter.handshaking:
            self._turn.started()
        if self.on_ready and not self.adapter.handshaking:
            self.on_ready()

    def _receive(self, events: list[AgentEvent]) -> None:
        """Deliver the events of some lines, without those that end within a word. A crash does not
        lose these: their lines do not count as processed yet."""
        if self._words.ends_before(events):
            self._deliver(())
        if self._process:
            self._heard = self._process.position
        if self._turn and self._words.ends_within(events):
            self._words.hold(events, partial(self._deliver, ()))
        else:
            self._deliver(events)

    def _receive_end(self) -> None:
        """stdout is closed: no more output can arrive, so the CLI must exit soon."""
        self._broken = True
        self._muted = asyncio.get_running_loop().call_later(self._limits.exit_grace, self._mute)

    def _mute(self) -> None:
        if self._process and self._process.exit_code is None:
            text = f"{self.adapter.title} closed its output before it had answered, and lives on."
            self._deliver([Failed(text, "output-closed")])

    def _receive_exit(self, code: int) -> None:
        if self._muted:
            self._muted.cancel()
        if self.on_ready:
            self.on_ready()
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
        events = [*self._words.take(), *events]
        self.position = self._heard
        if len(events) > 1:
            events = merge_text(events)
        if self._redacts:
            events = self._redactor.clean(events)
        for event in events:
            if isinstance(event, Failed) and event.reason == SESSION_LOST:
                self._broken = True  # the conversation to resume does not exist any more
        if self._walls and events and isinstance(failed := events[-1], Failed):
            if found := denied.explain(failed.text, self._walls, failed.reason == "exit"):
                text, path = found
                log.warning("the sandbox refused something to an agent", extra={"path": path})
                events[-1] = replace(failed, text=f"{text} {failed.text}")
        if self._turn:
            self._turn.receive(events)
            self._broken = self._broken or self._turn.error is not None
        elif events:
            log.debug("output between turns", extra={"events": len(events)})

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
        commands do not become orphans. The CLI has `interrupt_grace` to end the turn. Many CLIs
        save the conversation after they report the end, and could not resume it otherwise.
        """
        if self._stopping is None:
            asked = False
            if interrupt:
                with contextlib.suppress(Exception):
                    asked = self.adapter.interrupt()
                self._flush()
            self._stopping = asyncio.ensure_future(self._stop(self._turn if asked else None))

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

    async def _stop(self, turn: SessionTurn | None) -> str:
        if turn:
            await asyncio.wait([turn.over], timeout=self._limits.interrupt_grace)
            if turn.over.done() and self._process:
                await self._process.settle(SETTLE_WITHIN)
        rung = await self._process.stop(self._limits.term_grace) if self._process else "exited"
        log.info("session stopped", extra={"adapter": self.adapter.name, "rung": rung})
        return rung
