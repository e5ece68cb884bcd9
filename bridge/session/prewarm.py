"""CLIs that are started ahead of the first task of a new context.

They use free slots of the pool and are evicted first. Their output waits in its pipe, and their
handshake waits for the first prompt. A context that takes one gets an ordinary session.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bridge.adapter import SessionStart
from bridge.errors import LaunchError
from bridge.session.blame import culprit, failure_of
from bridge.session.pool import SessionPool
from bridge.session.session import Session
from bridge.task.events import AgentEvent, Failed, TimedOut
from bridge.workspace.project_config import TRUSTING, ProjectConfigPolicy, state

log = logging.getLogger(__name__)

LOOK_AGAIN = 60.0  # seconds between two checks of the workspace files
# Instructions and the state of git: Claude Code reads both within a second of its start.
READ_AT_START = (
    *("*.md", ".*/*.md", ".*/rules/**/*.md"),
    *(".git/HEAD", ".git/index", ".git/logs/HEAD"),
)


@dataclass(frozen=True, slots=True)
class PrewarmPlan:
    """`number`: the number of sessions to keep ready. `files`: patterns of the workspace files that
    the CLI reads at its start, in addition to READ_AT_START. `max_age`: seconds after which a
    session is replaced; login, settings and workspace may have changed since the CLI read them.
    `longest_pause`: maximum seconds between two attempts to start a CLI that exits."""

    number: int = 0
    files: tuple[str, ...] = ()
    max_age: float = 900.0
    longest_pause: float = 600.0

    def pause(self, failures: int) -> float:
        """Seconds until the next attempt."""
        return min(2.0**failures, self.longest_pause)


NOTHING = PrewarmPlan()


class PrewarmedSession:
    """A session without a task, until a context takes it or it ends. `ended` is called at its end,
    unless a context took it. `problem` is the cause; empty for an intended end."""

    owner = ""
    idle = True

    def __init__(
        self,
        start: SessionStart,
        session: Session,
        files: Sequence[str],
        ended: Callable[[PrewarmedSession], None],
        *,
        max_age: float,
    ) -> None:
        self.start = start
        self.session = session
        self.problem = "it ended by itself"
        self._files = files
        self._ended = ended
        self._max_age = max_age
        self._seen = state(start.cwd, files)
        self._taken = False
        self._life = asyncio.create_task(self._live())
        self._life.add_done_callback(lambda life: self._over())

    @property
    def fresh(self) -> bool:
        """Whether the workspace files are unchanged since the start of the CLI."""
        try:
            return state(self.start.cwd, self._files) == self._seen
        except OSError:
            return False

    def fits(self, start: SessionStart) -> bool:
        """Whether a session with this start would only have another id of its conversation."""
        return self.session.healthy and _launch(start) == _launch(self.start) and self.fresh

    def take(self) -> None:
        """Transfer the ownership of the session to the caller."""
        self._taken = True
        self._life.cancel()

    async def close(self) -> None:
        self.problem = ""
        self._life.cancel()
        await asyncio.wait([self._life])

    async def _live(self) -> None:
        try:
            async with asyncio.timeout(self._max_age):
                await self.session.open()
                await self.session.run(self._wait, self._receive)
        except TimeoutError:
            self.problem = ""
        except LaunchError as error:
            self.problem = str(error)
        except Exception as error:
            self.problem = failure_of(self.session.adapter, error).text
        finally:
            if not self._taken:
                await self.session.stop()

    def _wait(self) -> None:
        self.session.pause(True)
        self.session.waiting(True)  # the time limits of a turn do not apply

    def _receive(self, events: Sequence[AgentEvent | TimedOut]) -> None:
        for event in events:  # from a CLI that has exited
            if isinstance(event, Failed):
                self.problem = self.problem and event.text

    def _over(self) -> None:
        if not self._taken:
            if self.session.spool:
                shutil.rmtree(self.session.spool, ignore_errors=True)
            self._ended(self)


class Prewarm:
    """Keeps sessions of an agent ready in its default workspace `cwd`. `make` makes a session."""

    def __init__(
        self,
        make: Callable[[SessionStart], Session],
        pool: SessionPool,
        cwd: str,
        plan: PrewarmPlan,
        trust: ProjectConfigPolicy = TRUSTING,
    ) -> None:
        self.pool = pool
        self._make = make
        self._cwd = cwd
        self._plan = plan
        self._files = (*plan.files, *READ_AT_START)
        self._trust = trust
        self._sessions: list[PrewarmedSession] = []
        self._failures = 0  # consecutive
        self._earliest = 0.0  # earliest time of the next start, by the clock of the loop
        self._worker: asyncio.Task[None] | None = None

    @property
    def ready(self) -> int:
        return sum(one.session.healthy for one in self._sessions)

    def begin(self) -> None:
        if self._plan.number:
            self._worker = asyncio.create_task(self._work())

    def has(self, start: SessionStart) -> bool:
        """Whether take() would return a session."""
        return any(one.fits(start) for one in self._sessions)

    def take(self, start: SessionStart) -> PrewarmedSession | None:
        """A session that fits, or None. It no longer has a slot, and the caller owns it."""
        found = next((one for one in self._sessions if one.fits(start)), None)
        if found:
            self._failures = 0
            self._sessions.remove(found)
            found.take()
            self.pool.release(found)
        return found

    async def close(self) -> None:
        """End all sessions, and start no more."""
        if self._worker:
            self._worker.cancel()
            await asyncio.wait([self._worker])
        await asyncio.gather(*(one.close() for one in self._sessions))

    def kill(self) -> None:
        """End all processes immediately, without waiting."""
        for one in self._sessions:
            one.session.kill()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.gather(*(one.close() for one in self._sessions if not one.fresh))
            if not (self._due() and await self.pool.vacate() and self._due()):
                pause = self._earliest - loop.time()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause if 0 < pause < LOOK_AGAIN else LOOK_AGAIN):
                        await self.pool.changed()
                continue
            try:
                self._start()
            except Exception as error:  # from an adapter, or from the directory
                adapter = culprit(error)
                self._fail(failure_of(adapter, error).text if adapter else str(error))

    def _due(self) -> bool:
        due = asyncio.get_running_loop().time() >= self._earliest
        return due and len(self._sessions) < self._plan.number

    def _start(self) -> None:
        found = self._trust.doubts(self._cwd) or self._trust.unused(self._cwd)[0]
        if found:
            raise LaunchError(f"the repository brings along {', '.join(found)}")
        start = SessionStart(self._cwd, str(uuid.uuid4()))
        one = PrewarmedSession(
            start, self._make(start), self._files, self._end, max_age=self._plan.max_age
        )
        self._sessions.append(one)
        self.pool.lend(one)

    def _end(self, one: PrewarmedSession) -> None:
        self._sessions.remove(one)
        if one.problem:
            self._fail(one.problem)
        self.pool.release(one)

    def _fail(self, problem: str) -> None:
        """Retry after a pause that grows. Log the first failure only."""
        self._failures += 1
        self._earliest = asyncio.get_running_loop().time() + self._plan.pause(self._failures)
        if self._failures == 1:
            facts = {"cwd": self._cwd, "reason": problem}
            log.warning("no session can be kept warm for now", extra=facts)


def _launch(start: SessionStart) -> SessionStart:
    """The start with only the members that affect a session that begins a conversation."""
    return replace(start, session_id="", owner="", trusted=start.trusted or None, role=None)
