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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bridge.adapter import Prompt, SessionStart
from bridge.cli.doctor.report import Check, failed, note, ok
from bridge.process.cgroup import Cgroup
from bridge.process.process_tree import marked
from bridge.sandbox.profile import Sandbox
from bridge.server.agents.configured import ConfiguredAgent
from bridge.server.assemble import make_session_factory
from bridge.server.state_dir import State
from bridge.session.factory import SessionFactory
from bridge.session.redaction import NO_SECRETS
from bridge.session.session import Session
from bridge.task.events import (
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
GONE_WITHIN = 5.0  # seconds in which the kernel ends processes that were killed


@dataclass(frozen=True, slots=True)
class Within:
    """Timeouts in seconds for each step. CLIs on Node need some seconds to start; Claude Code with
    an API key needs 19 s for the handshake if it cannot reach its service."""

    version: float = 10.0
    help: float = 20.0
    login: float = 20.0
    handshake: float = 45.0
    prompt: float = 120.0


class _NoHandshake(Exception):
    pass


class _Enough(Exception):
    """The session has sent the event that ends a check."""


class Talk:
    """A session with the CLI of one agent. `shown` redacts CLI output. `logged_in`: None if the
    status is unknown."""

    def __init__(
        self,
        agent: ConfiguredAgent,
        sandbox: Sandbox | None,
        *,
        within: Within,
        shown: Callable[[str], str],
        logged_in: bool | None,
    ) -> None:
        self._agent = agent
        self._sandbox = sandbox
        self._within = within
        self._shown = shown
        self._logged_in = logged_in
        self._cli_info = agent.adapter.cli_info
        self._command = ""  # for a person to run

    async def run(self, live: bool) -> list[Check]:
        """The handshake and, if `live`, a prompt, in one process. Raises LaunchError."""
        cwd = self._agent.settings.agent.workspaces.default
        with tempfile.TemporaryDirectory(prefix="coding-agent-bridge-") as folder:
            session = self._sessions(Path(folder)).make(SessionStart(cwd, str(uuid.uuid4())))
            argv = session.adapter.launch().argv
            self._command = f"(cd {shlex.quote(cwd)} && {shlex.join(argv)})"
            checks = await self._hold(session, live)
        left = await _left(session.marker)
        if left:
            pids = " ".join(map(str, sorted(left)))
            text = f"{len(left)} of its processes could not be killed"
            checks.append(failed("end", text, f"kill -9 {pids}"))
        return checks

    def _sessions(self, folder: Path) -> SessionFactory:
        """The sessions of the server, with their streams in `folder` and the limits of a check."""
        durable = self._agent.settings.store.mode != "memory"
        state = State(folder=folder if durable else None, markers="doctor-")
        factory = make_session_factory(self._agent, state, self._sandbox)
        limits = replace(factory.limits, turn=self._within.prompt, silence=0, start=0, group={})
        return replace(factory, limits=limits, secrets=NO_SECRETS)  # `shown` names the secrets

    async def _hold(self, session: Session, live: bool) -> list[Check]:
        begun = time.monotonic()
        await session.open()
        session.pause(True)  # until _listen()
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

        def begin() -> None:
            if not session.greet():
                raise _NoHandshake

        try:
            heard, _ = await _listen(session, begin, (Started, Failed), self._within.handshake)
        except _NoHandshake:
            text = "skipped (needs a prompt)" + ("" if live else "; run with --live")
            checks = [note("handshake", text)]
        else:
            seconds = round(time.monotonic() - begun, 2)
            match next((one for one in heard if isinstance(one, Started | Failed)), None):
                case Started() as started:
                    checks = [_ready(started, seconds)]
                case Failed() as why:
                    checks = [self._refused("handshake", why)]
                case _:
                    checks = [self._late(heard)]
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
        message = Message("doctor", Role.USER, (TextPart(PROMPT),), "doctor", "doctor")
        within = self._within.prompt + 5.0  # the session itself has the limit of the prompt
        begin = partial(session.prompt, Prompt.of(message))
        heard, first = await _listen(session, begin, (Question,), within)
        seconds, end = round(time.monotonic() - begun, 2), heard[-1] if heard else None
        if isinstance(end, Failed):
            return self._refused("prompt", end)
        if not isinstance(end, Done | Reply):
            asked = isinstance(end, Question)
            text = "it asked a question" if asked else f"no answer within {seconds:g} s"
            return failed("prompt", text, f"run it yourself with a prompt: {self._command}")
        usage = _usage(next((one for one in reversed(heard) if isinstance(one, Usage)), Usage()))
        first = round(first - begun, 2)
        facts = {"state": "completed", "seconds": seconds, "firstEventSeconds": first}
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

    def _late(self, heard: Sequence[object]) -> Check:
        text = f"no answer within {self._within.handshake:g} s"
        words = [one.text for one in heard if isinstance(one, Status)]
        if words:  # lines outside of the protocol of the CLI
            text += f"; its last line: {words[-1]}"
        step = f"it may wait for an input; run it yourself: {self._command}"
        return failed("handshake", self._shown(text), step, reason="timeout")


async def _listen(
    session: Session, begin: Callable[[], object], last: tuple[type, ...], within: float
) -> tuple[list[AgentEvent | TimedOut], float]:
    """The events of a turn up to one of the kinds `last`, at most for `within` seconds; and the
    time of the first event."""
    heard: list[AgentEvent | TimedOut] = []
    first = 0.0

    def hear(events: list[AgentEvent | TimedOut]) -> None:
        nonlocal first
        first = first or time.monotonic()
        for event in events:
            heard.append(event)
            if isinstance(event, last):
                raise _Enough

    def start() -> None:
        begin()
        session.pause(False)

    with contextlib.suppress(_Enough, TimeoutError):
        async with asyncio.timeout(within):
            await session.run(start, hear)
    return heard, first


async def _left(marker: str) -> set[int]:
    """The processes of the session that do not end."""
    until = time.monotonic() + GONE_WITHIN
    while left := marked(marker) | Cgroup(marker).pids():
        if time.monotonic() > until:
            break
        await asyncio.sleep(0.05)
    return left


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
