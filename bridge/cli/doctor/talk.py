"""The handshake of a CLI and, on request, one prompt, both as in a served task. The process ends
with the check."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridge.adapter import Prompt, SessionStart
from bridge.cli.doctor.report import Check, failed, note, ok
from bridge.process.cgroup import Cgroup
from bridge.process.procfs import marked
from bridge.process.spawn import LAUNCHES
from bridge.server.agents.configured import ConfiguredAgent
from bridge.server.settings.root import Settings
from bridge.session.session import Limits, Session
from bridge.task.events import (
    ENDINGS,
    AgentEvent,
    Done,
    Failed,
    Question,
    Reply,
    Started,
    Status,
    TimedOut,
    Usage,
)
from bridge.task.message import Message, Role, TextPart

PROMPT = "Reply with OK."


@dataclass(frozen=True, slots=True)
class Within:
    """Timeouts in seconds for each step. CLIs on Node need some seconds to start; Claude Code with
    an API key needs 19 s for the handshake if it cannot reach its service."""

    version: float = 10.0
    help: float = 20.0
    login: float = 20.0
    handshake: float = 45.0
    prompt: float = 120.0


class Talk:
    """A session with the CLI of one agent. `shown` redacts CLI output. `logged_in`: None if the
    status is unknown. `environment`, `rules`: see Session."""

    def __init__(
        self,
        agent: ConfiguredAgent,
        *,
        within: Within,
        shown: Callable[[str], str],
        logged_in: bool | None,
        environment: Mapping[str, str],
        rules: Mapping[str, Any] | None,
    ) -> None:
        self._agent = agent
        self._within = within
        self._shown = shown
        self._logged_in = logged_in
        self._environment = environment
        self._rules = rules
        self._cli_info = agent.adapter.cli_info
        self._cwd = agent.settings.agent.workspaces.default
        self._command = ""  # for a person to run

    async def run(self, live: bool) -> list[Check]:
        """The handshake and, if `live`, a prompt, in one process. Raises LaunchError."""
        settings = self._agent.settings
        marker = f"doctor-{uuid.uuid4().hex}"
        start = SessionStart(self._cwd, str(uuid.uuid4()))
        grace = settings.limits.stop_grace_ms / 1000
        line = settings.limits.max_line_bytes
        limits = Limits(turn=self._within.prompt, silence=0, line=line, term_grace=grace)
        argv = self._agent.make(self._agent.config, start).launch().argv
        self._command = f"(cd {shlex.quote(self._cwd)} && {shlex.join(argv)})"
        adapter = self._agent.make(self._agent.config, start)
        with _streams(settings) as spool:
            session = Session(
                adapter=adapter,
                environment=self._environment,
                limits=limits,
                marker=marker,
                spool=spool,
                rules=self._rules,
            )
            checks = await self._hold(session, live)
        left = marked(marker) | Cgroup(marker).pids()
        if left:
            pids = " ".join(map(str, sorted(left)))
            text = f"{len(left)} of its processes could not be killed"
            checks.append(failed("end", text, f"kill -9 {pids}"))
        return checks

    async def _hold(self, session: Session, live: bool) -> list[Check]:
        begun = time.monotonic()
        await session.open()
        session.pause(True)  # until the listener is ready
        try:
            checks = await self._handshake(session, live)
            if checks[0].status == "ok" and self._agent.adapter.can_prewarm:
                size = memory(marked(session.marker))
                checks.append(self._cold_start(time.monotonic() - begun, size))
            if live and not any(check.failed for check in checks):
                checks.append(await self._prompt(session))
        finally:
            await session.stop()
        return checks

    async def _handshake(self, session: Session, live: bool) -> list[Check]:
        begun = time.monotonic()
        listener = _Listener((Started, Failed))

        def begin() -> None:
            if not session.greet():
                listener.end(None)

        heard = await listener.listen(session, begin, self._within.handshake)
        seconds = round(time.monotonic() - begun, 2)
        checks: list[Check] = []
        match heard:
            case Started():
                checks.append(_ready(heard, seconds))
            case Failed():
                checks.append(self._refused("handshake", heard))
            case None:
                text = "skipped (needs a prompt)" + ("" if live else "; run with --live")
                checks.append(note("handshake", text))
            case _:
                checks.append(self._late(self._within.handshake, listener))
        if self._cli_info.login and not (self._cli_info.status or checks[0].failed or live):
            checks.append(note("login", "not checked (needs a prompt); run with --live"))
        return checks

    def _cold_start(self, waits: float, size: int) -> Check:
        """The start time of a new conversation, and the cost of a warm session that saves it."""
        kept = self._agent.settings.limits.warm_sessions
        seconds, megabytes = round(waits, 2), round(size / 2**20)
        text = f"a new conversation waits {seconds:g} s for it; "
        text += f"BRIDGE_WARM_SESSIONS={kept or 1} avoids this and takes {megabytes} MB per process"
        return note("start", text, seconds=seconds, bytes=size, kept=kept)

    async def _prompt(self, session: Session) -> Check:
        begun = time.monotonic()
        listener = _Listener((*ENDINGS, Question))
        message = Message("doctor", Role.USER, (TextPart(PROMPT),), "doctor", "doctor")
        prompt = Prompt.of(message)
        end = await listener.listen(
            session, lambda: session.prompt(prompt), self._within.prompt + 5.0
        )
        seconds = round(time.monotonic() - begun, 2)
        if isinstance(end, Failed):
            return self._refused("prompt", end)
        if not isinstance(end, Done | Reply):
            asked = isinstance(end, Question)
            text = "it asked a question" if asked else f"no answer within {seconds:g} s"
            return failed("prompt", text, f"run it yourself with a prompt: {self._command}")
        first = round((listener.first or begun) - begun, 2)
        used = listener.usage
        facts = {"state": "completed", "seconds": seconds, "firstEventSeconds": first}
        usage = _usage(used) if used else {}
        words = "".join(f", {count} {name}" for name, count in usage.items())
        text = f"completed in {seconds:g} s, first event after {first:g} s{words}"
        return ok("prompt", text, **facts, usage=usage)

    def _refused(self, name: str, why: Failed) -> Check:
        if why.reason == "auth" and self._logged_in is False:
            return note(name, "not logged in, as above", reason=why.reason)
        return failed(name, self._shown(why.text), self._step(why), reason=why.reason)

    def _step(self, why: Failed) -> str:
        """The remedy for a failure."""
        match why.reason:
            case "auth" if self._cli_info.login:
                return self._cli_info.login
            case "configuration":
                return "unset AGENT_MODEL, or set it to a model that the CLI offers"
            case "protocol" | "adapter-error" if self._cli_info.install:
                return f"update it: {self._cli_info.install}"
        return f"run it yourself: {self._command}"

    def _late(self, within: float, listener: _Listener) -> Check:
        text = f"no answer within {within:g} s"
        if listener.words:
            text += f"; its last line: {listener.words[-1]}"
        step = f"it may wait for an input; run it yourself: {self._command}"
        return failed("handshake", self._shown(text), step, reason="timeout")


@contextlib.contextmanager
def _streams(settings: Settings) -> Iterator[Path | None]:
    """The folder for the CLI's streams, as in a served task; None: anonymous pipes."""
    if settings.store.mode == "memory" or not LAUNCHES:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="coding-agent-bridge-") as folder:
        yield Path(folder) / "session"


class _Listener:
    """Waits for the first event of `kinds` in a session."""

    def __init__(self, kinds: tuple[type, ...]) -> None:
        self._kinds = kinds
        self._heard: asyncio.Future[AgentEvent | TimedOut | None]
        self._heard = asyncio.get_running_loop().create_future()
        self.first: float | None = None  # time of the first event
        self.usage: Usage | None = None
        self.words: list[str] = []  # lines outside of the protocol of the CLI

    def end(self, event: AgentEvent | TimedOut | None) -> None:
        if not self._heard.done():
            self._heard.set_result(event)

    def _hear(self, events: list[AgentEvent | TimedOut]) -> None:
        self.first = self.first or time.monotonic()
        for event in events:
            match event:
                case Usage():
                    self.usage = event
                case Status(text):
                    self.words.append(text)
            if isinstance(event, self._kinds):
                self.end(event)

    async def listen(
        self, session: Session, begin: Callable[[], object], within: float
    ) -> AgentEvent | TimedOut | None:
        """Returns an event of `kinds`, the argument of end(), or TimedOut after `within` s."""

        def start() -> None:
            begin()
            session.pause(False)

        turn = asyncio.ensure_future(session.run(start, self._hear))
        try:
            done, _ = await asyncio.wait([self._heard], timeout=within)
        finally:
            turn.cancel()
            await asyncio.wait([turn])
        return self._heard.result() if done else TimedOut("")


def memory(pids: Iterable[int]) -> int:
    """Memory of the processes in bytes (PSS: shared pages count in proportion)."""
    shares = re.findall(r"^Pss: +(\d+) kB", "".join(map(_rollup, pids)), re.MULTILINE)
    return sum(map(int, shares)) * 1024


def _rollup(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # the process has ended
        return ""


def _ready(started: Started, seconds: float) -> Check:
    facts = {"model": started.model, "version": started.version, "mode": started.mode}
    words = "".join(f", {name} {value}" for name, value in facts.items() if value)
    return ok("handshake", f"answered in {seconds:g} s{words}", **facts, seconds=seconds)


def _usage(used: Usage) -> dict[str, int | float]:
    counts = {
        "input tokens": used.input_tokens,
        "output tokens": used.output_tokens,
        "USD": used.cost_usd,
    }
    return {name: count for name, count in counts.items() if count is not None}
