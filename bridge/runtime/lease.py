"""The session of one context, its slot, and the conversation of the CLI."""

from __future__ import annotations

import asyncio
import logging
import shutil
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from bridge.adapter import SessionStart, modes
from bridge.adapter.input import AdapterInput
from bridge.adapter.unasked import UNASKED
from bridge.errors import LaunchError
from bridge.session.between import Unasked
from bridge.session.prewarm import Prewarm
from bridge.session.session import Session
from bridge.session.slot_queue import Announce
from bridge.store.changes import (
    ContextSaved,
    Fence,
    InputRecorded,
    OutputRead,
    SessionClosed,
    SessionOpened,
)
from bridge.store.handle import readable
from bridge.store.protocol import OpenSession, Store, StoreError
from bridge.store.serialization import dump
from bridge.task.answers import denial
from bridge.task.events import Answer, OptionKind, Question
from bridge.task.text import capped
from bridge.telemetry.audit import NO_AUDIT, Audit

log = logging.getLogger(__name__)

MOST_OUTPUT = 64 * 1024 * 1024  # bytes of output; a live session keeps all of its output
NO_TASK = "No task is running, so no client can answer."
Make = Callable[[SessionStart, str | None], Session]
"""Makes a session; the second argument is the id that an earlier server gave it."""


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session of an earlier server: its id, its launch parameters, the inputs of its adapter, and
    the number of bytes of its output that were processed."""

    id: str
    start: SessionStart
    given: tuple[AdapterInput, ...]
    position: int

    @classmethod
    def read(cls, found: OpenSession) -> StoredSession | None:
        """The decoded session; None if a part of it is damaged."""
        start = readable(SessionStart, found.start)
        given = [readable(AdapterInput, one) for one in found.given]
        if start is None or None in given:
            return None
        return cls(found.id, start, tuple(filter(None, given)), found.position)


class Lease:
    """A holder of the pool. It keeps an idle session for `idle_seconds`, unless another context
    needs the slot. The next session resumes the conversation. `start`: the launch parameters of the
    next session. `idle`: no task needs the session. `began`: how the newest task got the session:
    see SessionTally; `warm` also for the session of an earlier task. `slot_at`: when that task had
    its slot. `traceparent`: for the process of the next session."""

    def __init__(
        self,
        start: SessionStart,
        *,
        store: Store,
        fence: Fence,
        make: Make,
        prewarm: Prewarm,
        idle_seconds: float,
        share: Callable[[str], str | None] = lambda cwd: None,
    ) -> None:
        self.fence = fence
        self.key = fence.context.name
        self.start = start
        self.owner = start.owner
        self.idle = True
        self.session: Session | None = None
        self.began = "warm"
        self.slot_at: datetime | None = None
        self._default_mode: str | None = None
        self._modeless = False  # the process began without a mode, and has not reported one yet
        self.traceparent: str | None = None
        self.audit: Audit = NO_AUDIT
        self.pool = prewarm.pool
        self._store = store
        self._make = make
        self._prewarm = prewarm
        self._idle_seconds = idle_seconds
        self._share = share
        self._closing: asyncio.Task[None] | None = None
        self._idle_timer: asyncio.TimerHandle | None = None

    @property
    def cold(self) -> bool:
        """Whether only the id of the conversation would be lost."""
        return self.idle and self.session is None and self._closing is None

    @property
    def share(self) -> str | None:
        """The share with the directory: servers with it can continue the conversation. None for a
        session that began without the share, because no guard would stop it in time."""
        if self.session and not self.session.movable:
            return None
        return self._share(self.start.cwd)

    @property
    def read(self) -> OutputRead | None:
        """The processed position of the session's output; None if the output is not stored."""
        if self.session and self.session.spool:
            return OutputRead(self.session.spool.name, self.session.position)
        return None

    # --- the conversation ----------------------------------------------------------------------

    @property
    def mode(self) -> str | None:
        """The mode in which the next session begins; None: the default."""
        return self.start.mode or self.start.options.mode

    def trust(self, allowed: bool) -> None:
        """Record whether the CLI may use the project files: the client has decided, or knows that
        it does not."""
        self._change(replace(self.start, trusted=allowed))

    def remember(self, session_id: str, *, resume: bool) -> None:
        """Record the id of the conversation that the next session resumes or begins."""
        self._change(replace(self.start, session_id=session_id, resume=resume))

    def choose(self, choices: Mapping[str, Any]) -> Collection[str]:
        """Record the `mode` and the `model` that the client chose. Returns the names of those that
        change."""
        start = self.start
        now = {"mode": self.mode, "model": start.options.model}
        mode = None if "mode" in choices else start.mode
        self._change(replace(start, mode=mode, options=replace(start.options, **choices)))
        return {name for name, value in choices.items() if value != now[name]}

    def restore(self, before: SessionStart) -> None:
        """Take back choices: the CLI did not accept them."""
        self._change(replace(self.start, mode=before.mode, options=before.options))

    def note_mode(self, mode: str, approvals: Collection[OptionKind]) -> None:
        """Record the mode that the CLI reports; see adapter/modes.py."""
        if self._modeless:
            self._modeless, self._default_mode = False, mode
        if self.session:
            adapter, default = type(self.session.adapter), self._default_mode
            start = modes.reported(adapter, self.start, mode, default=default, approvals=approvals)
            self._change(start)

    def _change(self, start: SessionStart) -> None:
        if start != self.start:
            self.start = start
            self.save()

    def save(self) -> None:
        """Store the launch parameters of the next session."""
        saved = ContextSaved(self.fence.context, dump(self.start), self.share)
        self._store.append([saved], fence=self.fence)

    # --- the session and its slot --------------------------------------------------------------

    def engage(self) -> None:
        """Mark the session as needed by a task."""
        self.idle = False
        if self._idle_timer:
            self._idle_timer.cancel()

    def attach(self, stored: StoredSession) -> None:
        """Continue a session of an earlier server. Raises InputUnknown or OSError; `session` is
        set even then, and the caller must close it."""
        self.session = self._make(stored.start, stored.id)
        self._listen(self.session)
        self.pool.adopt(self)
        self.session.attach(stored.given, stored.position)

    async def prepare(self, folder: str | None) -> None:
        """Close a session that cannot run another turn, or cannot see the `folder` of files."""
        blind = folder not in (None, self.start.folder)
        if blind or not (self.session and self.session.healthy):
            await self.close()
        self.began, self.slot_at = "warm", None
        if self.session is None:
            self.start = replace(self.start, folder=folder)

    async def acquire(self, wanted: Callable[[], bool], announce: Announce) -> Session | None:
        """The session, with a slot; None if it is no longer `wanted` (see wake). Raises
        LaunchError."""
        await self.pool.acquire(self, wanted, lambda: self._prewarm.has(self.start), announce)
        self.slot_at = datetime.now(UTC)
        if self.session is None and wanted():
            if not self._take_prewarmed():
                await self._open()
            if not wanted():
                await self.close()
        return self.session if wanted() else None

    def _take_prewarmed(self) -> bool:
        taken = self._prewarm.take(self.start)
        if taken is None:
            return False
        self._change(replace(self.start, session_id=taken.start.session_id))
        self.session = taken.session
        self._note_start()
        self._listen(taken.session)
        taken.session.tally.starts["warm"] += 1
        self._store_session(taken.session)
        return True

    async def _open(self) -> None:
        session = self._make(self.start, None)
        session.traceparent = self.traceparent
        self._listen(session)
        self._store_session(session)
        self.began = "resumed" if self.start.resume else "cold"
        session.tally.starts[self.began] += 1
        try:
            await session.open()
        except LaunchError:
            self._forget(session)
            raise
        self.session = session
        self._note_start()

    def _note_start(self) -> None:
        self._default_mode, self._modeless = None, not self.mode

    def _store_session(self, session: Session) -> None:
        """Store the session, so that a later server can find it."""
        if session.spool:
            opened = SessionOpened(session.spool.name, self.fence.context, dump(self.start))
            self._store.append([opened], fence=self.fence)

    # --- a session without a task ----------------------------------------------------------------

    def _listen(self, session: Session) -> None:
        session.streams.between.report = partial(self._unasked, session)

    def _unasked(self, session: Session, one: Unasked) -> None:
        """Record an action of the CLI between two turns, and stop it."""
        session.tally.unasked[one.kind] += 1
        facts = {"kind": one.kind, "tool": one.name, "act": one.act}
        place = {"context": self.fence.context.id, **session.facts()}
        log.warning(
            "an agent acted without a task", extra={"event": "session.unasked", **place, **facts}
        )
        given = capped(one.input)[0]
        self.audit.action(
            "unasked", self.owner, context=self.fence.context.id, **facts, input=given
        )
        match one:
            case Unasked(question=Question() as asked):
                answer = denial(asked, UNASKED) or Answer(asked.id, NO_TASK, by=UNASKED)
                told = session.told("answer", question=asked, answer=answer)
                self._give(session, told, partial(session.answer, asked, answer))
            case Unasked(act="stopped"):
                self._give(session, session.told("stop_unasked"), partial(self._stop, session))
            case Unasked(act="ended"):
                self._end(session)

    def _stop(self, session: Session) -> None:
        if not session.stop_unasked():
            self._end(session)

    def _end(self, session: Session) -> None:
        """The session cannot serve another task."""
        session.streams.broken = True
        if self.idle and self.session is session:
            self._begin_close()

    def _give(self, session: Session, given: AdapterInput, give: Callable[[], None]) -> None:
        """Give the CLI an input after its commit; see Turn."""

        def then(error: StoreError | None) -> None:
            if error is None:
                give()
            session.pause(False)

        session.pause(True)
        if session.spool:
            recorded = InputRecorded(session.spool.name, dump(given))
            self._store.append([recorded], fence=self.fence, then=then)
        else:
            then(None)

    def wake(self) -> None:
        """Check again whether a task still wants the session."""
        self.pool.queue.wake(self)

    def wait(self, since: datetime, give_up: Callable[[], None]) -> None:
        """Release the slot while the session waits for a person; see SessionPool.ask."""
        self.pool.ask(self, since, give_up)

    def work(self) -> None:
        """Resume the session after the answer arrived."""
        self.pool.resume(self)

    def mark_idle(self) -> None:
        """Mark the session as idle, so that another context may get its slot."""
        self.idle = True
        self.pool.idle(self)
        session = self.session
        if session and session.spool and session.position > MOST_OUTPUT:
            self._begin_close()
        elif session:
            loop = asyncio.get_running_loop()
            self._idle_timer = loop.call_later(self._idle_seconds, self._begin_close)

    def detach(self) -> str:
        """Leave the session to another server. Returns its marker."""
        session, self.session = self.session, None
        assert session
        session.detach()
        return session.marker

    def kill(self) -> None:
        """End the session's processes at once, without waiting."""
        if self.session:
            self.session.kill()

    async def close(self) -> None:
        """End the session, if there is one, and release the slot. Returns after the end of its
        processes."""
        self._begin_close()
        if self._closing is None:
            self.pool.release(self)
        while self._closing:  # another caller may have begun a new session
            await asyncio.shield(self._closing)

    def _begin_close(self) -> None:
        if self.session:
            self._closing = asyncio.create_task(self._close(self.session))
            self.session = None

    async def _close(self, session: Session) -> None:
        if self._idle_timer:
            self._idle_timer.cancel()
        try:
            await session.stop()
        finally:
            self._forget(session)
            if not self.start.resume:  # a used id may be taken
                self.remember(str(uuid.uuid4()), resume=False)
            self._closing = None
            self.pool.release(self)

    def _forget(self, session: Session) -> None:
        """Remove the stored session. It has ended, and all of its output is processed."""
        spool = session.spool

        def then(error: StoreError | None) -> None:
            if spool and error is None:
                shutil.rmtree(spool, ignore_errors=True)

        if spool:
            self._store.append([SessionClosed(spool.name)], fence=self.fence, then=then)
