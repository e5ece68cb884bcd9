"""One turn of a session: its events, its time limits, and the streams that carry them. Events that
end within a word wait a moment for its rest: a client that puts text between two events would split
the word."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from bridge.adapter import Adapter, ExitStatus
from bridge.process.agent_process import TERM_GRACE, AgentProcess, Hooks
from bridge.process.line_splitter import LongLine
from bridge.sandbox import denied
from bridge.sandbox.profile import launch_refusal
from bridge.session.between import BetweenTurns
from bridge.session.blame import EVENTS, checked, failure_of
from bridge.session.ending import EndBuffer
from bridge.session.redaction import Redactor, Secrets
from bridge.session.time_limits import no_handshake, too_silent, too_slow
from bridge.task.events import (
    ENDINGS,
    SESSION_LOST,
    AgentEvent,
    Failed,
    Status,
    Text,
    TimedOut,
    merge_text,
)

log = logging.getLogger(__name__)

WORD_WITHIN = 0.05  # seconds to wait for the rest of a word, so that a text ends between words
QUIET = 120.0  # seconds without output after which a task says so
LONGEST_WORD = 32  # characters; a longer run is not a word
_WORD = re.compile(r"\w+\Z")
Sink = Callable[[list[AgentEvent | TimedOut]], None]


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """Times in seconds, 0 = unlimited; the line limit in bytes; `group` as in process.Start.
    `start` limits the handshake, `turn` the whole turn. `interrupt_grace`: from the interrupt in
    the protocol of the CLI to SIGTERM. `exit_grace`: from the end of its stdout to its exit.
    `background`: processes that the agent leaves in the background outlive the turn."""

    turn: float = 3600.0
    silence: float = 0.0
    line: int = 16 * 1024 * 1024
    term_grace: float = TERM_GRACE
    group: Mapping[str, str] = field(default_factory=dict)
    start: float = 0.0
    interrupt_grace: float = 2.0
    exit_grace: float = 2.0
    background: bool = False
    quiet: float = QUIET


class SessionTurn:
    """Passes the events of one turn to the sink, and runs the clocks of the turn. `quiet` gets the
    seconds of a long silence, and 0 at its end. `ending` is called before the sink gets the end.
    The result of `over`: None if the turn has ended, or the limit that the turn exceeded."""

    def __init__(
        self,
        sink: Sink,
        limits: TurnLimits,
        taken: Callable[[], object],
        quiet: Callable[[float], object],
        ending: Callable[[], object],
    ) -> None:
        self._sink = sink
        self._taken = taken
        self._quiet = quiet
        self._ending = ending
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[TimedOut | None] = self._loop.create_future()
        self.error: Exception | None = None  # raised by the sink
        self.starting = False  # the prompt waits for the end of the handshake
        self._heard = self._said = self._loop.time()  # the last line, and the last event
        self._noticed = 0.0  # seconds of the present silence that `quiet` got
        self._worked = 0.0  # seconds of work until the last resume, without waiting
        self._resumed = self._heard
        self._waiting = False  # for the client
        self._clock = self._loop.call_later(self._until_late(), self._check_deadlines)

    def start(self) -> None:
        """Start the limit of the handshake: the prompt must wait for its end."""
        self._clock.cancel()
        self.starting = True
        if not self.over.done():
            self._check_deadlines()

    def started(self) -> None:
        """The CLI got its prompt."""
        self.starting = False
        self._heard = self._loop.time()
        if not self.over.done():
            self._taken()

    def receive(self, events: Sequence[AgentEvent]) -> Sequence[AgentEvent]:
        """Pass on the events up to the end of the turn. Returns the later ones, which do not belong
        to it."""
        self._heard = self._loop.time()
        if not events:
            return ()
        self._said, noticed, self._noticed = self._heard, self._noticed, 0.0
        happened: list[AgentEvent | TimedOut] = [*events]
        ended = False
        for count, event in enumerate(events, 1):
            if isinstance(event, ENDINGS):
                ended = True
                self._ending()
                del happened[count:]
                break
        try:
            if noticed:
                self._quiet(0.0)
            self._sink(happened)
        except Exception as error:
            self.error = error
        if self.error or ended:
            self.end()
        return events[len(happened) :]

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
            self._resumed = self._heard = self._said = now
            self._noticed = 0.0
            self._check_deadlines()

    def _check_deadlines(self) -> None:
        late = self._late()
        if late:
            self.end(late)
            return
        if self._until_quiet() <= 0:
            self._noticed = max(self._limits.quiet, 2 * self._noticed)
            try:
                self._quiet(self._loop.time() - self._said)
            except Exception as error:
                self.error = error
                self.end()
        if not self.over.done():
            self._clock = self._loop.call_later(self._until_late(), self._check_deadlines)

    def _until_late(self) -> float:
        """Seconds until a limit can be exceeded, or until clients hear of a silence."""
        limited = self._limited(self._loop.time())
        left = min((limit - used for limit, used, _ in limited), default=3600.0)
        return min(max(min(left, self._until_quiet()), 0.0), 3600.0)

    def _until_quiet(self) -> float:
        due = max(self._limits.quiet, 2 * self._noticed)
        return self._said + due - self._loop.time() if due else 3600.0

    def _late(self) -> TimedOut | None:
        for limit, used, late in self._limited(self._loop.time()):
            if used >= limit:
                return late(limit)
        return None

    def _limited(self, now: float) -> Iterator[tuple[float, float, Callable[[float], TimedOut]]]:
        """The active limits: seconds, used seconds, and the function that makes the timeout."""
        worked = self._worked + now - self._resumed
        if self.starting and self._limits.start:
            yield self._limits.start, worked, no_handshake
        if self._limits.turn:
            yield self._limits.turn, worked, too_slow
        if self._limits.silence:
            yield self._limits.silence, now - self._heard, too_silent


class WordBuffer:
    """`events` wait for the rest of a word."""

    def __init__(self) -> None:
        self.events: list[AgentEvent] = []
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def ends_before(self, events: Sequence[AgentEvent]) -> bool:
        """Whether events wait, and `events` do not begin with the rest of their word."""
        if not self.events or not events:
            return False
        first = events[0]
        if not isinstance(first, Text) or first.parent is not None or first.new_block:
            return True
        return _WORD.match(first.text[:1]) is None

    def ends_within(self, events: Sequence[AgentEvent]) -> bool:
        """Whether the waiting events and `events` end within a word."""
        both = events or self.events
        last = both[-1] if both else None
        if not isinstance(last, Text) or last.parent is not None:
            return False
        end = last.text[-1:]
        if not (end.isalnum() or end == "_"):  # the same as _WORD, much faster
            return False
        found = _WORD.search(last.text[-LONGEST_WORD - 1 :])
        return found is not None and len(found[0]) <= LONGEST_WORD

    def hold(self, events: Sequence[AgentEvent], release: Callable[[], object]) -> None:
        """Add events that end within a word. `release` is called if its rest does not arrive in
        time."""
        loop = asyncio.get_running_loop()
        if not self.events:
            self._since = loop.time()
        self.events += events
        if self._timer is None:  # a timer for each piece of text would cost more
            self._timer = loop.call_later(WORD_WITHIN, self._check, release)

    def take(self) -> list[AgentEvent]:
        """Remove the events."""
        events, self.events = self.events, []
        return events

    def _check(self, release: Callable[[], object]) -> None:
        self._timer = None
        if not self.events:
            return
        loop = asyncio.get_running_loop()
        left = self._since + WORD_WITHIN - loop.time()
        if left > 0:
            self._timer = loop.call_later(left, self._check, release)
        else:
            release()


class SessionStreams:
    """Carries the output of a CLI to its adapter, the events of the adapter to the turn, and the
    data of the adapter to the CLI. `rules`: see Session.

    `process` is None before the start, `turn` between turns. `broken`: the output is no longer
    reliable. `position`: bytes of the output with all events delivered. `on_ready`: see Session.
    """

    def __init__(
        self,
        adapter: Adapter,
        limits: TurnLimits,
        secrets: Secrets,
        rules: Mapping[str, Any] | None,
    ) -> None:
        self.process: AgentProcess | None = None
        self.turn: SessionTurn | None = None
        self.broken = False
        self.position = 0
        self.on_ready: Callable[[], None] | None = None
        self.redactor = Redactor(secrets)
        self._redacts = bool(secrets)
        self._adapter = adapter
        self._limits = limits
        # The rules that explain a refusal; the other rules are only needed at the start.
        known = ("profile", "write", "hide", "show", "uid")
        self._walls = {name: rules[name] for name in known if name in rules} if rules else None
        self.between = BetweenTurns(limits.interrupt_grace)
        self._muted: asyncio.TimerHandle | None = None  # stdout has ended; the CLI may still exit
        self._words = WordBuffer()
        self._ending = EndBuffer()
        self._heard = 0  # bytes of the output that the adapter has received

    def hooks(self) -> Hooks:
        """The functions for the output of the process."""
        return Hooks(self._receive_lines, self.receive_exit, self._receive_end)

    def begin_at(self, position: int) -> None:
        """The adapter has processed the output up to `position` already."""
        self._heard = self.position = position

    def tell(self, tell: Callable[[], object]) -> None:
        """Call the adapter, and write its data to the CLI. An exception fails the turn."""
        try:
            tell()
        except Exception as error:
            self.deliver([self.adapter_failed(error)])
        self.flush()

    def flush(self) -> None:
        """Write the data of the adapter to the CLI."""
        try:
            data = self._adapter.data_to_send()
        except Exception as error:
            self.deliver([self.adapter_failed(error)])
            return
        if data and self.process:
            self.process.write(data)

    def pending_output(self) -> Sequence[AgentEvent]:
        """The output that waits because it may begin a secret. Call it at the end of the turn."""
        self.deliver(())
        return self.redactor.flush()

    def deliver(self, events: Iterable[AgentEvent]) -> None:
        """Pass the waiting events and `events` to the turn, without secrets."""
        events = [*self._words.take(), *events]
        if self._ending.events:
            events = [*self._ending.take(self._conclusion), *events]
        self.position = self._heard
        if len(events) > 1:
            events = merge_text(events)
        if self._redacts:
            events = self.redactor.clean(events)
        for event in events:
            if isinstance(event, Failed) and event.reason == SESSION_LOST:
                self.broken = True  # the conversation to resume does not exist any more
        if self._walls and events and isinstance(failed := events[-1], Failed):
            events[-1] = _explained(failed, self._walls)
        turn = self.turn
        if turn and not turn.over.done():
            events = turn.receive(events)
            self.broken = self.broken or turn.error is not None
            if turn.over.done():
                self.between.begin()
        if events and not self.broken:
            self.between.receive(events)

    def _receive_lines(self, lines: Sequence[bytes | LongLine]) -> None:
        events: list[AgentEvent] = []
        try:
            for line in lines:
                if isinstance(line, LongLine):
                    limit = self._limits.line
                    text = f"A line of {line.length} bytes was cut: the limit is {limit} bytes."
                    head = line.head[:2000].decode(errors="replace")
                    facts = {"type": "truncated_line", "bytes": line.length, "head": head}
                    events.append(Status(text, facts))
                else:
                    events.extend(self._adapter.receive_line(line))
            if not EVENTS.issuperset(map(type, events)):  # for each text: without a call
                checked(events)
        except Exception as error:
            events = [one for one in events if type(one) in EVENTS]
            events.append(self.adapter_failed(error, "receive_line"))
        self._receive(events)
        self.flush()
        if self.on_ready or (self.turn and self.turn.starting):
            self._look_for_ready()

    def _look_for_ready(self) -> None:
        try:
            if self._adapter.handshaking:
                return
        except Exception as error:
            self.deliver([self.adapter_failed(error)])
            return
        if self.turn and self.turn.starting:
            self.turn.started()
        if self.on_ready:
            self.on_ready()

    def _receive(self, events: list[AgentEvent]) -> None:
        """Deliver the events of some lines, without those that end within a word, or that end the
        turn of a CLI that lingers. A crash does not lose these: their lines do not count as
        processed yet."""
        if self._words.ends_before(events):
            self.deliver(())
        if self.process:
            self._heard = self.process.position
        if self.turn and self._adapter.lingers and self._ending.takes(events):
            self._ending.hold([*self._words.take(), *events], partial(self.deliver, ()))
        elif self.turn and self._words.ends_within(events):
            self._words.hold(events, partial(self.deliver, ()))
        else:
            self.deliver(events)

    def _conclusion(self) -> Sequence[AgentEvent]:
        try:
            return checked(self._adapter.conclude())
        except Exception as error:
            return [self.adapter_failed(error, "conclude")]

    def _receive_end(self) -> None:
        """stdout is closed: no more output can arrive, so the CLI must exit soon."""
        self.broken = True
        self._muted = asyncio.get_running_loop().call_later(self._limits.exit_grace, self._mute)

    def _mute(self) -> None:
        if self.process and self.process.exit_code is None:
            text = f"{self._adapter.title} closed its output before it had answered, and lives on."
            self.deliver([Failed(text, "output-closed")])

    def receive_exit(self, code: int) -> None:
        """The process has ended: deliver the last events of the adapter."""
        if self._muted:
            self._muted.cancel()
        if self.on_ready:
            self.on_ready()
        stderr = self.process.stderr.decode(errors="replace") if self.process else ""
        limit = self.process.exceeded if self.process else None
        problem = launch_refusal(code, stderr) if self._walls else None
        if problem:
            log.warning("the agent could not be started: %s", problem)
            text = "The agent could not be started. The server's log says why."
            self.deliver([Failed(text, "launch")])
            return
        try:
            events = checked(self._adapter.receive_exit(ExitStatus(code, stderr, limit)))
        except Exception as error:
            events = [self.adapter_failed(error, "receive_exit")]
        self.deliver(events)

    def adapter_failed(self, error: Exception, method: str = "") -> AgentEvent:
        """Convert an exception of an adapter, or of the result of its `method`, to the failure of
        its turn."""
        self.broken = True
        return failure_of(self._adapter, error, method)


def _explained(failed: Failed, walls: Mapping[str, Any]) -> Failed:
    """The failure, with the refusal of the sandbox that may be its cause."""
    found = denied.explain(failed.text, walls, failed.reason == "exit")
    if found is None:
        return failed
    text, path = found
    log.warning("the sandbox refused something to an agent", extra={"path": path})
    return replace(failed, text=f"{text} {failed.text}")
