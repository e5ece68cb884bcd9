"""Sessions that nobody has asked for yet: CLIs that are started and greeted ahead of the first task
of a new context, so that it need not wait for that.

They have places of the pool that nobody needs, and give them up to whoever does. A context takes
one over only where its own would be started just so; then it is a session like any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from bridge.adapter import SessionStart
from bridge.errors import LaunchError
from bridge.session.pool import SessionPool
from bridge.session.session import Session
from bridge.task.events import ENDINGS, AgentEvent, Failed, Question, Started, TimedOut
from bridge.workspace.project_config import TRUSTING, Trust, state

log = logging.getLogger(__name__)

OLD = 900.0  # seconds: what a CLI knows of its login, its settings and the workspace grows old
LOOK_AGAIN = 60.0  # seconds until it is looked whether a workspace is another by now
GREETED_WITHIN = 60.0
MOST_HEARD = 100  # events before anybody has asked for any
WORKSPACES = 4  # that have spare sessions: the default one, and those that were used last
LONGEST_PAUSE = 600.0  # seconds between attempts, where the CLI does not stay


class _Unfit(Exception):
    """What it says is for somebody who is not there yet."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`number`: of sessions that are kept ready in a workspace. `greet`: with the handshake done.
    `files`: patterns of what they read there when they begin."""

    number: int = 0
    greet: bool = True
    files: tuple[str, ...] = ()


NOTHING = Plan()


class Spare:
    """A session from its start until it is taken, or ends. `heard`: what it has said meanwhile.
    `plan`: how far it gets. `ended` is told when it is gone; `problem` says why, unless that was
    wanted."""

    owner = ""
    idle = True

    def __init__(
        self, start: SessionStart, session: Session, plan: Plan, ended: Callable[[Spare], None]
    ) -> None:
        self.start = start
        self.session = session
        self.heard: list[AgentEvent] = []
        self.problem = "it ended by itself"
        self._plan = plan
        self._ended = ended
        self._seen = state(start.cwd, plan.files)
        self._settled = asyncio.Event()  # it is ready, or will never be
        self._greeted = False
        self._taken = False
        self._closing = False
        self._life = asyncio.create_task(self._live())
        self._life.add_done_callback(lambda life: self._over())

    @property
    def ready(self) -> bool:
        return self._greeted and self.session.healthy and not self._closing

    @property
    def fresh(self) -> bool:
        """Whether it would find the workspace as it was when it began."""
        try:
            return state(self.start.cwd, self._plan.files) == self._seen
        except OSError:
            return False

    def fits(self, start: SessionStart) -> bool:
        """Whether a session with this start would be the same, but for its conversation's id."""
        return self.ready and _launched(start) == _launched(self.start) and self.fresh

    async def settle(self) -> None:
        """Until it is ready, or will never be."""
        try:
            async with asyncio.timeout(GREETED_WITHIN):
                await self._settled.wait()
        except TimeoutError:
            self.give_up(f"it was not ready within {GREETED_WITHIN:g} s")

    def take(self) -> None:
        """The session is somebody's, who will hear and end it."""
        self._taken = True
        self._life.cancel()

    def give_up(self, problem: str = "") -> None:
        if not self._closing:
            self._closing = True
            self.problem = problem
            self._life.cancel()

    async def close(self) -> None:
        self.give_up()
        await asyncio.wait([self._life])

    async def _live(self) -> None:
        try:
            async with asyncio.timeout(OLD):
                await self.session.open()
                await self.session.run(self._greet, self._hear)
        except TimeoutError:
            self.problem = ""
        except (LaunchError, _Unfit) as error:
            self.problem = str(error)
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}"
        finally:
            if not self._taken:
                await self.session.stop()

    def _over(self) -> None:
        if not self._taken:
            if self.session.spool:
                shutil.rmtree(self.session.spool, ignore_errors=True)
            self._settled.set()
            self._ended(self)

    def _greet(self) -> None:
        if not (self._plan.greet and self.session.greet()):
            self._welcome()

    def _welcome(self) -> None:
        self._greeted = True
        self._settled.set()
        self.session.waiting(True)  # the time until it is taken does not count

    def _hear(self, events: Sequence[AgentEvent | TimedOut]) -> None:
        for event in events:
            match event:
                case Started() if not self._greeted:
                    self._welcome()
                case Failed(text) | TimedOut(text):
                    self.problem = text or self.problem
                case Question(text=text):
                    raise _Unfit(f"it asks before it is told anything: {text}")
                case _ if isinstance(event, ENDINGS) or len(self.heard) == MOST_HEARD:
                    raise _Unfit("it does not wait for its first prompt")
                case _:
                    self.heard.append(event)


@dataclass(slots=True, eq=False)
class _Workspace:
    """The spare sessions of a directory. `failures`: of those that did not stay, in a row."""

    cwd: str
    spares: list[Spare] = field(default_factory=list)
    failures: int = 0
    earliest: float = 0.0  # when the next one is begun, by the loop's clock


class Warm:
    """Keeps sessions of an agent ready in its default workspace `cwd`, and in the others that were
    used last. `make`: a session that would be started so."""

    def __init__(
        self,
        make: Callable[[SessionStart], Session],
        pool: SessionPool,
        cwd: str,
        plan: Plan,
        trust: Trust = TRUSTING,
    ) -> None:
        self.pool = pool
        self._make = make
        self._plan = plan
        self._trust = trust
        self._workspaces = {cwd: _Workspace(cwd)}  # the default one, then the last used last
        self._worker: asyncio.Task[None] | None = None

    @property
    def ready(self) -> int:
        return sum(spare.ready for spare in self._spares())

    def begin(self) -> None:
        if self._plan.number:
            self._worker = asyncio.create_task(self._work())

    def has(self, start: SessionStart) -> bool:
        """Whether take() would give a session."""
        return self._fitting(start) is not None

    def take(self, start: SessionStart) -> Spare | None:
        """A session that is ready and would be started so, if there is one. It has no place any
        more, and is the caller's."""
        spare = self._fitting(start)
        workspace = self._used(start)
        if spare and workspace:
            workspace.spares.remove(spare)
            workspace.failures = 0
            spare.take()
            self.pool.leave(spare)
        return spare

    async def close(self) -> None:
        """End all of them, and begin none any more."""
        if self._worker:
            self._worker.cancel()
            await asyncio.wait([self._worker])
        await asyncio.gather(*(spare.close() for spare in self._spares()))

    def kill(self) -> None:
        """End their processes at once, without waiting."""
        for spare in self._spares():
            spare.session.kill()

    def _spares(self) -> list[Spare]:
        return [spare for one in self._workspaces.values() for spare in one.spares]

    def _fitting(self, start: SessionStart) -> Spare | None:
        workspace = self._workspaces.get(start.cwd)
        spares = workspace.spares if workspace else ()
        return next((spare for spare in spares if spare.fits(start)), None)

    def _used(self, start: SessionStart) -> _Workspace | None:
        """The workspace of a session that one of them may have been, which is to have some."""
        if not self._worker or _launched(start) != _launched(SessionStart(start.cwd, "")):
            return None
        default = next(iter(self._workspaces))
        workspace = self._workspaces.get(start.cwd) or _Workspace(start.cwd)
        if start.cwd != default:
            self._workspaces.pop(start.cwd, None)
            self._workspaces[start.cwd] = workspace
        for cwd in list(self._workspaces)[1 : 1 - WORKSPACES]:
            for spare in self._workspaces.pop(cwd).spares:
                spare.give_up()
        return workspace

    # --- one after the other -------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            for spare in self._spares():
                if not spare.fresh:
                    spare.give_up()
            async with self.pool.starting:
                begun = await self._start()
                if begun:
                    await begun.settle()
            if begun is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pause()):
                        await self.pool.changed()

    async def _start(self) -> Spare | None:
        """Begin the next session, where one is lacking and there is a place for it."""
        if not (self._due() and await self.pool.vacate()):
            return None
        workspace = self._due()
        if workspace is None:  # somebody else's meanwhile
            return None
        start = SessionStart(workspace.cwd, str(uuid.uuid4()))
        try:
            self._check(workspace.cwd)
            session = self._make(start)
            spare = Spare(start, session, self._plan, partial(self._ended, workspace))
        except Exception as error:  # an adapter's, or the directory's
            self._failed(workspace, str(error))
            return None
        workspace.spares.append(spare)
        self.pool.lend(spare)
        return spare

    def _check(self, cwd: str) -> None:
        found = self._trust.doubts(cwd) or self._trust.obstacles(cwd)
        if found:
            raise _Unfit(f"the repository brings along {', '.join(found)}")

    def _due(self) -> _Workspace | None:
        now = asyncio.get_running_loop().time()
        return next((one for one in self._lacking() if one.earliest <= now), None)

    def _lacking(self) -> list[_Workspace]:
        return [one for one in self._workspaces.values() if len(one.spares) < self._plan.number]

    def _pause(self) -> float:
        """Seconds until one that did not stay is tried again, or a workspace is another."""
        now = asyncio.get_running_loop().time()
        later = [one.earliest - now for one in self._lacking() if one.earliest > now]
        return min(LOOK_AGAIN, *later) if later else LOOK_AGAIN

    def _ended(self, workspace: _Workspace, spare: Spare) -> None:
        if spare in workspace.spares:
            workspace.spares.remove(spare)
        if spare.problem:
            self._failed(workspace, spare.problem)
        else:
            workspace.failures = 0
        self.pool.leave(spare)

    def _failed(self, workspace: _Workspace, problem: str) -> None:
        """Try again after a while, each time a longer one. The operator is told once."""
        workspace.failures += 1
        pause = min(2.0**workspace.failures, LONGEST_PAUSE)
        workspace.earliest = asyncio.get_running_loop().time() + pause
        if workspace.failures == 1:
            facts = {"cwd": workspace.cwd, "reason": problem}
            log.warning("no session can be kept warm for now", extra=facts)


def _launched(start: SessionStart) -> SessionStart:
    """What of it makes a difference to a session that begins a conversation."""
    return replace(start, session_id="", owner="", trusted=start.trusted or None)
