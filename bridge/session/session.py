"""One CLI session: an adapter and its process. Moves bytes between them and enforces time limits.

It makes no decisions: the adapter interprets the lines, and the manager processes the events.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bridge.adapter import Adapter, Prompt, Stdin
from bridge.adapter.input import AdapterInput
from bridge.process.agent_process import AgentProcess, ProcessLimits, to_the_end
from bridge.process.guard import MOVABLE
from bridge.process.line_splitter import LineSplitter
from bridge.process.process_tree import KILL_GRACE, kill_session
from bridge.process.spawn import Start
from bridge.process.spool import Spool, input_of_earlier_version
from bridge.session.redaction import NO_SECRETS, Secrets
from bridge.session.tally import SessionTally
from bridge.session.turn import SessionStreams, SessionTurn, Sink, TurnLimits
from bridge.task.events import Answer, Question
from bridge.task.message import Message

log = logging.getLogger(__name__)

SETTLE_WITHIN = 1.0  # seconds for a CLI to save the conversation after the end of its turn


class Session:
    """A live CLI. `run()` runs one turn at a time; `stop()` ends the session.

    `spool`: the folder for its streams, if they are files; its name is the id of the session.
    `stdin`: the file of its input, which an earlier server has used (process/spool.py).
    `rules`: the permissions of the CLI, as in process.Start. `secrets` are redacted from its
    output. `tally` counts its end. `before_start` is awaited before its start; `after_stop` is
    called in a thread after its end. `streams.on_ready` is called when it has printed a line and
    its handshake is over, and when it has ended. With `traces`, its process gets `traceparent`: the
    span that it works for when it is started.
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
        self.stdin: int | None = None
        self.marker = marker
        self.before_start: Callable[[], Awaitable[None]] | None = None
        self.after_stop: Callable[[], object] | None = None
        self.tally = SessionTally()
        self.traces = False
        self.traceparent: str | None = None
        self.streams = SessionStreams(adapter, limits, secrets, rules)
        self._environment = environment
        self._rules = rules  # cleared at the start: each session has its own
        self._by_bwrap = bool(rules and rules["profile"] == "bwrap")
        self._limits = limits
        self._stopping: asyncio.Task[str] | None = None

    def __repr__(self) -> str:
        return f"<Session {self.adapter.name} {self.streams.process or 'not started'}>"

    @property
    def position(self) -> int:
        """Bytes of the output with all events delivered."""
        return self.streams.position

    @property
    def movable(self) -> bool:
        """Whether the guard freezes it when another server may continue its context."""
        return self.marker.endswith(MOVABLE)

    @property
    def healthy(self) -> bool:
        """Whether the session can run another turn now."""
        return self.lasts and not self.streams.between.busy

    @property
    def lasts(self) -> bool:
        """Whether the session can run another turn, perhaps after the CLI has stopped a turn that
        it began by itself."""
        running = self.streams.process is not None and self.streams.process.running
        return running and self._stopping is None and not self.streams.broken and not self._spent

    @property
    def _spent(self) -> bool:
        try:
            return self.adapter.spent
        except Exception as error:
            self.streams.adapter_failed(error)
            return True

    async def open(self) -> None:
        """Start the CLI. Raises LaunchError."""
        if self.before_start:
            await self.before_start()
        launch = self.adapter.launch()
        environment = {**self._environment, **launch.env}
        if self.traceparent and self.traces:
            environment["TRACEPARENT"] = self.traceparent
        start = Start(
            launch.argv,
            environment,
            self.adapter.start.cwd,
            stdin=launch.stdin is Stdin.LINES,
            marker=self.marker,
            group=self._limits.group,
            rules=self._rules,
        )
        self._rules = None
        self.streams.process = await AgentProcess.spawn(
            start, self.streams.hooks(), limits=ProcessLimits(self._limits.line), spool=self.spool
        )
        begun = self.adapter.start
        kind = "resumed" if begun.resume else "cold" if begun.owner else "warm"
        facts = {"event": "session.started", **self.facts(), "start": kind, "cwd": begun.cwd}
        log.info("session started", extra=facts)

    def attach(self, told: Sequence[AdapterInput], position: int) -> None:
        """Continue a CLI of an earlier server, or read the output that it left.

        `told` are the previous inputs of the adapter. The adapter gets them and the output up to
        `position` again, in the original order, and then has the same state. Later output is read
        as usual. Raises InputUnknown if the inputs of the CLI are unknown.
        """
        assert self.spool
        position = max([position, *(one.position for one in told)])
        try:
            stdin = input_of_earlier_version(self.spool) if self.stdin is None else self.stdin
            spool = Spool(self.spool, position, stdin)
        except OSError:  # the folder is gone, and the session is lost
            kill_session(self.marker)
            raise
        self.streams.process = AgentProcess.attach(
            spool,
            self.marker,
            self.streams.hooks(),
            limits=ProcessLimits(self._limits.line),
            position=position,
        )
        owed, splitter = bytearray(), LineSplitter(self._limits.line)
        with open(self.spool / "out", "rb") as out:
            for one in (*told, None):
                end = one.position if one else position
                for line in splitter.feed(out.read(end - out.tell())):
                    if isinstance(line, bytes):
                        self.streams.redactor.clean(self.adapter.receive_line(line))
                owed += self.adapter.data_to_send()
                if one:
                    self._tell_again(one)
                    owed += self.adapter.data_to_send()
        self.streams.begin_at(position)
        if self.streams.process.pid:  # else it has ended
            spool.owe(bytes(owed))

    def _tell_again(self, told: AdapterInput) -> None:
        match told:
            case AdapterInput("greet"):
                self.adapter.greet()
            case AdapterInput("answer", question=Question() as question, answer=Answer() as answer):
                self.adapter.answer(question, answer)
            case AdapterInput("prompt", message=Message() as message):
                self.streams.redactor.flush()
                self.adapter.prompt(Prompt.of(message, told.options))
            case AdapterInput("steer", message=Message() as message):
                self.adapter.steer(Prompt.of(message))
            case AdapterInput("stop_unasked"):
                self.adapter.stop_unasked()

    def told(self, kind: str, message: Message | None = None, **members: Any) -> AdapterInput:
        """An input of the adapter, at the position after all output that it has received."""
        self.streams.deliver(())
        return AdapterInput(kind, self.streams.position, message, **members)

    async def run(
        self,
        begin: Callable[[], object],
        sink: Sink,
        taken: Callable[[], object] = lambda: None,
        quiet: Callable[[float], object] = lambda seconds: None,
    ) -> None:
        """Run one turn. `begin` begins the turn. `sink` gets every batch of events; the last batch
        ends the turn. `taken` is called when the CLI got a prompt that had to wait for the end of
        the handshake. `quiet` gets the seconds of a long silence of the CLI, and 0 at its
        end.

        Returns after the end of the turn, at the latest when a time limit is exceeded. An exception
        of `sink` also ends the turn, and is raised. Processes that the agent has left in the
        background are killed before `sink` gets the end, and have ended at the return.
        """
        strays = 0

        def ending() -> None:
            nonlocal strays
            strays = self._kill_strays()

        turn = self.streams.turn = SessionTurn(sink, self._limits, taken, quiet, ending)
        try:
            begin()
            if self.streams.process and self.streams.process.exit_code is not None:
                self.streams.receive_exit(self.streams.process.exit_code)
            late = await turn.over
            if late:
                self.streams.broken = True
                sink([*self.streams.pending_output(), late])
            if turn.error:
                raise turn.error
            if strays:
                await self._end_strays(strays)
        finally:
            turn.end()
            if self.streams.turn is turn:
                self.streams.turn = None

    def _kill_strays(self) -> int:
        """Kill the processes that the agent has left in the background. Returns their number."""
        if self._limits.background or self.streams.process is None:
            return 0
        return self.streams.process.kill_strays(self._by_bwrap)

    async def _end_strays(self, count: int) -> None:
        """Return after their end: one may have forked before it was killed."""
        facts = {"event": "processes.background", **self.facts(), "count": count}
        log.info("ended processes in the background", extra=facts)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_GRACE):
                while self._kill_strays():  # noqa: ASYNC110 - no event reports their end
                    await asyncio.sleep(0.002)

    def go_on(self, waiting: bool) -> None:
        """Begin a run() with a turn that an earlier server began."""
        self._watch_start()
        self.waiting(waiting)

    def waiting(self, waiting: bool) -> None:
        """Stop the clock while a question is open: the time of the client does not count."""
        if self.streams.turn:
            self.streams.turn.pause(waiting)

    def pause(self, paused: bool) -> None:
        """Pause or resume reading the output of the CLI."""
        if self.streams.process:
            self.streams.process.pause(paused)

    def greet(self) -> bool:
        """Begin the handshake as the `begin` of a run(). False: the CLI has no handshake."""
        begun: list[bool] = []
        self.streams.tell(lambda: begun.append(self.adapter.greet()))
        return any(begun)

    def prompt(self, prompt: Prompt) -> None:
        self.streams.redactor.flush()  # drop the rest of a canceled turn
        self.streams.tell(lambda: self.adapter.prompt(prompt))
        self._watch_start()

    def _watch_start(self) -> None:
        if self.streams.turn and self.adapter.handshaking:
            self.streams.turn.start()

    def answer(self, question: Question, answer: Answer) -> None:
        self.streams.tell(lambda: self.adapter.answer(question, answer))

    def steer(self, prompt: Prompt) -> None:
        self.streams.tell(lambda: self.adapter.steer(prompt))

    def stop_unasked(self) -> bool:
        """Tell a CLI to stop that works between two turns. False: its session must end."""
        told: list[bool] = []
        self.streams.tell(lambda: told.append(self.adapter.stop_unasked()))
        return any(told)

    # --- the end -------------------------------------------------------------------------------

    def begin_stop(self, interrupt: bool = False) -> None:
        """Begin to stop the CLI now; stop() waits for the end of the CLI and its descendants.

        `interrupt`: first send an interrupt in the protocol of the CLI, so that its running shell
        commands do not become orphans. The CLI has `interrupt_grace` to end the turn. Many CLIs
        save the conversation after they report the end, and could not resume it otherwise.
        """
        if self._stopping is None:
            self.streams.between.report = lambda one: None
            asked = False
            if interrupt:
                try:
                    asked = self.adapter.interrupt()
                except Exception as error:
                    self.streams.adapter_failed(error)
                self.streams.flush()
            self._stopping = asyncio.ensure_future(self._stop(self.streams.turn if asked else None))

    async def stop(self) -> None:
        """End the process and its descendants. A cancellation also waits for their end."""
        self.begin_stop()
        assert self._stopping
        await to_the_end(self._stopping)

    def detach(self) -> None:
        """Leave the CLI running; another server may continue it."""
        self.streams.broken = True
        if self.streams.process:
            self.streams.process.detach()

    def kill(self) -> None:
        if self.streams.process:
            self.streams.process.kill()

    async def _stop(self, turn: SessionTurn | None) -> str:
        if turn:
            await asyncio.wait([turn.over], timeout=self._limits.interrupt_grace)
            if turn.over.done() and self.streams.process:
                await self.streams.process.settle(SETTLE_WITHIN)
        process, rung = self.streams.process, "exited"
        if process:
            exceeded = process.exceeded  # before its control group is removed
            rung = await process.stop(self._limits.term_grace)
            self.tally.exits["limit" if exceeded else rung] += 1
            self.tally.leftovers += process.left
            if process.left:
                facts = {"event": "processes.leftover", **self.facts(), "count": process.left}
                log.warning("processes of a session live on", extra=facts)
        if self.after_stop:
            await asyncio.to_thread(self.after_stop)
        code = process.exit_code if process else None
        facts = {"event": "session.ended", **self.facts(), "rung": rung, "exit": code}
        log.info("session stopped", extra=facts)
        return rung

    def facts(self) -> dict[str, Any]:
        """The members of each line about the session."""
        process = self.streams.process
        return {"adapter": self.adapter.name, "pid": process.pid if process else None}
