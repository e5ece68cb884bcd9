"""A context: one conversation with one CLI session. Its tasks run one after the other.

The session is kept warm between turns, and given up when it has been idle for too long or when
another context needs its place; the next message resumes the CLI's own conversation.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from bridge.adapter import Prompt, SessionOptions, SessionStart
from bridge.adapter.input import AdapterInput
from bridge.errors import LaunchError, WorkspaceError
from bridge.session.factory import SessionFactory
from bridge.session.prewarm import NOTHING, Plan, Warm
from bridge.session.session import InputUnknown, Session
from bridge.store.tasks import Record, StoredSession, TaskStore
from bridge.task.answers import HASTY, hint, is_hasty, permission, read_answer, refusal
from bridge.task.approval_policy import Rule, decide
from bridge.task.events import (
    SESSION_LOST,
    Answer,
    Answered,
    Canceled,
    Event,
    Failed,
    Interrupted,
    NotUnderstood,
    Option,
    Prompted,
    Question,
    Queued,
    Started,
    Status,
    Steered,
    TimedOut,
)
from bridge.task.message import Message
from bridge.task.state import StatusUpdate, TaskState, Update
from bridge.telemetry.audit import NO_AUDIT, Audit
from bridge.workspace.attachments import Attachments
from bridge.workspace.project_config import TRUSTING, Trust

log = logging.getLogger(__name__)

TRUST = "project-config"  # id of the question whether a repository is trusted
TOO_MANY = "More questions were open than the server keeps (BRIDGE_MAX_WAITING_SESSIONS)"
MOST_OUTPUT = 64 * 1024 * 1024  # bytes of a session's output, of which a live one keeps all


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """The agent behind the contexts of one address. `sessions` makes its sessions.

    `idle_seconds`: how long a session is kept warm. `rules`: what is decided without asking a
    client. `patience`: seconds that a question waits for its answer; 0 for ever. `trust`: what
    becomes of a repository's own settings; `warm`: the sessions that are started ahead of their
    tasks. `check` raises WorkspaceError where no CLI can work in a directory. `replies`: it may
    answer with a Message instead of a task.
    """

    sessions: SessionFactory
    idle_seconds: float
    attachments: Attachments
    steers: bool = False
    resumes_next_minute: bool = False
    rules: tuple[Rule, ...] = ()
    patience: float = 0.0
    audit: Audit = NO_AUDIT
    trust: Trust = TRUSTING
    warm: Plan = NOTHING
    check: Callable[[str], None] = lambda cwd: None
    replies: bool = False


class Context:
    """`cwd` never changes, the CLI's conversation goes on; the process that serves it may change.
    `id` is what clients call it, of whom two may choose the same; `key` is what it is here.

    `finished` is told of each task that has come to its end, `changed` of every status.
    """

    def __init__(
        self,
        key: str,
        start: SessionStart,
        agent: Agent,
        warm: Warm,
        store: TaskStore,
        finished: Callable[[Record], None],
        changed: Callable[[Record, Sequence[StatusUpdate]], None] = lambda record, updates: None,
    ) -> None:
        self.key = key
        self.id = key.rpartition("/")[2]
        self._agent = agent
        self._warm = warm
        self._pool = warm.pool
        self._store = store
        self._finished = finished
        self._changed = changed
        self._queue: list[tuple[Record, Message]] = []
        self._current: Record | None = None
        self._worker: asyncio.Task[None] | None = None
        self._start = start
        self._began = datetime.now(UTC)  # the CLI's conversation did, at the latest
        self._left: StoredSession | None = None  # by the last server, with a turn that runs
        self._session: Session | None = None
        self._closing: asyncio.Task[None] | None = None
        self._detached = False
        self._idle_timer: asyncio.TimerHandle | None = None
        self._asked: Question | None = None  # what is waited for, until `_patience` is over
        self._patience: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Context {self.id} {'idle' if self.idle else 'busy'} {self._session}>"

    @property
    def cwd(self) -> str:
        return self._start.cwd

    @property
    def owner(self) -> str:
        return self._start.owner

    @property
    def options(self) -> SessionOptions:
        return self._start.options

    @property
    def idle(self) -> bool:
        return self._worker is None

    def waits(self, record: Record) -> bool:
        """Whether another task has its turn before it."""
        first = self._current or next((one for one, _ in self._queue), None)
        return record is not first

    @property
    def current(self) -> Record | None:
        """The task whose turn it is."""
        return self._current

    @property
    def only_task(self) -> Record | None:
        """The task that runs, if no other one waits behind it."""
        return self._current if not self._queue else None

    @property
    def queued(self) -> int:
        """How many tasks wait behind the one that runs."""
        return sum(not record.task.state.terminal for record, _ in self._queue)

    @property
    def cold(self) -> bool:
        """Nothing runs or is kept warm: all that would be forgotten is the conversation's id."""
        return self.idle and self._session is None and self._closing is None

    # --- what an earlier server has left --------------------------------------------------------

    def restore(
        self, tasks: Sequence[tuple[Record, Message]], session: StoredSession | None
    ) -> None:
        """Go on with these unfinished tasks, of which the first may have begun, in `session`."""
        for record, prompt in tasks:
            if not record.begun:
                self._queue.append((record, prompt))
            elif session:
                self._current, self._left = record, session
            else:
                text = "The bridge was started anew, and the agent is gone."
                self._apply(record, Interrupted(text, "restart"))
        if self._queue or self._left:
            self._worker = asyncio.create_task(self._work())

    async def _go_on(self, record: Record, left: StoredSession) -> None:
        """The turn that was running when the last server ended."""
        session = self._session = self._agent.sessions.make(left.start, left.id)
        self._left = None
        self._pool.claim(self)
        try:
            session.attach(left.told, left.position)
        except Exception as error:
            log.exception("a session cannot be gone on with", extra={"task": record.task.id})
            text = "The bridge was started anew and cannot tell what the agent was told."
            reason = "restart" if isinstance(error, InputUnknown | OSError) else "adapter-error"
            self._apply(record, Interrupted(text, reason))
        try:
            if not record.task.state.terminal:
                waiting = record.task.state.interrupted
                self._watch_question(record)
                if not session.handshaking:
                    self._prompted(record)
                await self._run(session, record, lambda: session.go_on(waiting))
        finally:
            if record.task.state is not TaskState.COMPLETED or not session.healthy:
                await self.close()

    # --- what clients do -----------------------------------------------------------------------

    def submit(self, record: Record, message: Message) -> None:
        """Queue a turn: `message` is its prompt."""
        self._queue.append((record, message))
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())

    def answer(self, record: Record, message: Message, by: str) -> None:
        """`message` is for the open question of `record`, by the principal of that id."""
        question = record.task.question
        assert question
        task, now = record.task, datetime.now(UTC)
        if is_hasty(message, task.asked, now - (task.asked_at or now)):
            self._apply(record, NotUnderstood(message, HASTY))
            return
        answer = read_answer(question, message)
        if answer is None:
            self._apply(record, NotUnderstood(message, hint(message)))
            return
        self._settle(record, question, replace(answer, by=by))

    def _settle(self, record: Record, question: Question, answer: Answer, *notes: Status) -> None:
        """The open question of `record` is answered."""
        if question.id == TRUST and not self._session:
            allowed = answer.option is not None and answer.option.kind == "allow_once"
            self._start = replace(self._start, trusted=allowed)
            self._store.put_context(self.key, self._start)
        self._apply(record, Answered(answer), *notes)
        self._pass_on(record, question, answer)

    def _pass_on(self, record: Record, question: Question, answer: Answer) -> None:
        session = self._session
        if session:
            told = session.told("answer", question=question, answer=answer)
            self._tell(session, told, record, lambda: session.answer(question, answer))

    def can_steer(self, record: Record, message: Message) -> bool:
        """Whether `message` can join the turn of `record`: it must be running, with none behind
        it, and the CLI must be able to take it as it is."""
        running = record is self.only_task and record.task.state is TaskState.WORKING
        return running and self._agent.steers and self._agent.attachments.fits(message)

    def steer(self, record: Record, message: Message) -> None:
        """`message` joins the turn of `record`."""
        session, message = self._session, replace(message, context_id=self.id)
        prompt = Prompt.of(replace(message, task_id=record.task.id))
        told = session.told("steer", prompt.message) if session else None
        self._apply(record, Steered(message))
        if session and told:
            self._tell(session, told, record, lambda: session.steer(prompt))

    def _tell(
        self, session: Session, told: AdapterInput, record: Record, tell: Callable[[], None]
    ) -> None:
        """Tell the CLI something, once it is written down that it may know: no server ever tells
        it twice."""

        def then() -> None:
            if not record.task.state.terminal:
                tell()
            session.pause(False)

        session.pause(True)  # lest it hears more meanwhile, and is told at another place than noted
        self._store.tell(session.spool.name if session.spool else None, told, record, then)

    def cancel(self, record: Record, reason: str | None = None) -> None:
        """The task is canceled now; its CLI is told to stop now, and the worker waits for that."""
        self._end(record, Canceled(reason) if reason else Canceled())

    def detach(self) -> Sequence[str]:
        """Leave the tasks that have not ended to another server, unless one runs in a session
        that cannot outlive this one. Returns the marker of a session that does."""
        session, current = self._session, self._current
        running = current and current.begun and not current.task.state.terminal
        lives_on = session and session.spool and session.healthy
        if not self._store.durable or (running and not lives_on):
            return ()
        self._detached = True
        if self._patience:
            self._patience.cancel()
        for record in [*(record for record, _ in self._queue), current]:
            if record and not record.task.state.terminal:
                record.log.close()  # whoever reads it comes back to the next server
        if self._worker:
            self._worker.cancel()
        if not (running and session):
            return ()
        session.detach()
        self._session = None
        return (session.marker,)

    async def shut_down(self) -> None:
        """End all tasks and the session, and wait until its processes are gone."""
        text = "The bridge was shut down before the task had ended."
        left = [] if self._detached else [*(record for record, _ in self._queue), self._current]
        for record in left:
            if record and not record.task.state.terminal:
                self._end(record, Interrupted(text))
        if self._worker:
            await asyncio.wait([self._worker])
        await self.close()

    def kill(self) -> None:
        """End the session's processes at once, without waiting."""
        if self._session:
            self._session.kill()

    def _end(self, record: Record, event: Canceled | Interrupted | TimedOut) -> None:
        session = self._session if record is self._current else None
        unsaid = session.unsaid() if session and not record.task.state.terminal else ()
        self._apply(record, *unsaid, event)
        if session:  # first the word, then the deed: else a crash makes a failure of it
            self._store.when_durable(partial(session.begin_stop, interrupt=True))
        self._pool.recheck(self)

    # --- the worker ----------------------------------------------------------------------------

    async def _work(self) -> None:
        if self._idle_timer:
            self._idle_timer.cancel()
        try:
            if self._current and self._left:
                await self._guarded(self._current, self._go_on(self._current, self._left))
            while self._queue:
                self._current, message = self._queue.pop(0)
                await self._guarded(self._current, self._turn(self._current, message))
        finally:
            self._current = None
            self._worker = None
            self._rest()

    async def _guarded(self, record: Record, turn: Awaitable[None]) -> None:
        """What goes wrong in a turn is the failure of its task, and of nothing else."""
        try:
            try:
                await turn
            except (LaunchError, OSError):
                self._agent.check(self.cwd)  # which may be the cause
                raise
        except WorkspaceError as error:
            log.warning(str(error), extra={"task": record.task.id})
            text = (
                f"The agent cannot work in {error.name}: {error.cause}. Restore the directory, or "
                "begin a new context in another one."
            )
            facts = {"path": error.name, "cause": error.cause}
            self._apply(record, Failed(text, "workspace", facts))
        except LaunchError as error:
            log.warning(str(error), extra={"task": record.task.id})
            text = f"The agent could not be started: {error.problem}. The server's log says more."
            self._apply(record, Failed(text, "launch"))
        except Exception:
            log.exception("turn failed", extra={"task": record.task.id})
            self._apply(record, Failed("Internal error; the server's log has it.", "internal"))

    async def _turn(self, record: Record, message: Message) -> None:
        try:
            self._agent.check(self.cwd)
            message, left = self._agent.attachments.read(message)
            if left:
                text = (
                    f"Left out of the message, since this agent does not read it: {', '.join(left)}"
                )
                self._apply(record, Status(text, {"type": "left_out", "mediaTypes": left}))
            message = await self._agent.attachments.save(self.key, record.task.id, message)
            session = await self._live_session(record)
            if session:
                told = session.told("prompt", message)
                if not session.handshaking:
                    self._prompted(record)  # durable together with what the CLI is told
                prompt = Prompt.of(message)
                await self._run(
                    session,
                    record,
                    lambda: self._tell(session, told, record, lambda: session.prompt(prompt)),
                )
        finally:
            if not (self._session and self._session.healthy):
                await self.close()

    def shown(self, record: Record) -> None:
        """A client knows the task from now on."""
        session = self._session
        if self._agent.replies and record is self._current and record.begun and session:
            self._prompted(record)

    def _prompted(self, record: Record) -> None:
        """The CLI is given the prompt. Where it may reply with a Message, no task is shown before
        it says something, unless a client knows the task already."""
        if record.task.state is TaskState.SUBMITTED and (record.shown or not self._agent.replies):
            self._apply(record, Prompted())

    async def _run(self, session: Session, record: Record, begin: Callable[[], object]) -> None:
        await session.run(begin, partial(self._receive, record), partial(self._prompted, record))

    async def _live_session(self, record: Record) -> Session | None:
        """The warm session, or a new one as soon as there is a place. None: the task was
        canceled meanwhile."""
        folder = self._agent.attachments.folder(self.key)
        blind = folder not in (None, self._start.folder)  # to files that have come
        if blind or not (self._session and self._session.healthy):
            await self.close()
        if self._session is None:
            await self._another_minute(record)
            await self._trusted(record)
        if not record.task.state.terminal:
            start = replace(self._start, folder=folder)
            await self._pool.enter(
                self,
                lambda: not record.task.state.terminal,
                lambda: self._warm.has(start),
                partial(self._queued, record),
            )
        if self._session is None and not record.task.state.terminal:
            self._start = replace(self._start, folder=folder)
            if not self._take_warm(record):
                await self._open()
            if record.task.state.terminal:  # canceled while it started: leave nothing behind
                await self.close()
        return None if record.task.state.terminal else self._session

    def _take_warm(self, record: Record) -> bool:
        """Whether there was a session that is as a new one would be, but has been started."""
        spare = self._warm.take(self._start)
        if spare is None:
            return False
        self._start = replace(self._start, session_id=spare.start.session_id)
        self._store.put_context(self.key, self._start)
        session = self._session = spare.session
        if session.spool:
            told = [AdapterInput("greet", 0)] if session.greeted else []
            self._store.put_session(session.spool.name, self.key, self._start, told)
        self._receive(record, spare.heard)
        return True

    async def _open(self) -> None:
        """Start a new session."""
        session = self._agent.sessions.make(self._start)
        if session.spool:
            self._store.put_session(session.spool.name, self.key, self._start)
        try:
            await session.open()
        except LaunchError:
            self._forget(session)
            raise
        self._session = session

    async def _trusted(self, record: Record) -> None:
        """Have it decided what becomes of what the repository brings along; what the CLI cannot be
        kept from using is the end of the task."""
        trust, task = self._agent.trust, record.task
        if self._start.trusted is None and not task.state.terminal:
            doubts = trust.doubts(self.cwd)
            if doubts and not task.question:
                self._apply(record, _trust_question(doubts))
            self._watch_question(record)
            while task.question:
                await record.log.changed()
        obstacles = [] if self._start.trusted else trust.obstacles(self.cwd)
        if obstacles:
            files = ", ".join(obstacles)
            text = (
                f"This repository brings along what the agent would run by itself: {files}. Remove "
                "it, or let it be used (AGENT_PROJECT_CONFIG=allow)."
            )
            self._apply(record, Failed(text, "project-config", {"files": obstacles}))

    async def _another_minute(self, record: Record) -> None:
        """Wait, where the CLI could not go on with its conversation now (see Adapter)."""
        while (
            self._agent.resumes_next_minute
            and self._start.resume
            and not record.task.state.terminal
        ):
            now = datetime.now(UTC)
            if now.replace(second=0, microsecond=0) > self._began:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(record.log.changed(), 60.1 - now.second)

    def _queued(self, record: Record, ahead: int, answers: int) -> None:
        """The task waits for a slot, and may say so."""
        if not record.task.state.terminal:
            if not record.task.queued:
                facts = {"task": record.task.id, "ahead": ahead, **self._pool.figures()}
                log.info("task waits for a slot", extra=facts)
            self._apply(record, Queued(ahead, answers))

    def _receive(self, record: Record, events: Sequence[Event]) -> None:
        happened: list[Event] = []
        decided: list[tuple[Question, Answer]] = []
        for event in events:
            if isinstance(event, Started) and event.session_id:
                if not event.session_id.startswith("-"):  # it may go on a command line
                    self._remember(event.session_id, resume=True)
            elif isinstance(event, Failed) and event.reason == SESSION_LOST:
                self._remember(str(uuid.uuid4()), resume=False)
            elif isinstance(event, Question) and (answer := self._decided(event)):
                decided.append((event, answer))
                self._agent.audit.events(record.task, (event, Answered(answer)))
                happened.append(_said(event, answer))
                continue
            happened.append(event)
        self._apply(record, *happened)
        for question, answer in decided:
            self._pass_on(record, question, answer)

    # --- questions that no client answers --------------------------------------------------------

    def _decided(self, question: Question) -> Answer | None:
        """What the operator's rules say to what the agent asks; None where clients are asked."""
        if not self._agent.rules or question.kind != "permission":
            return None
        match decide(self._agent.rules, question.subject or {}, self.cwd, os.path.realpath):
            case "allow":
                return permission(question, "rule")
            case "deny":
                return refusal(question, "rule")
        return None

    def _watch_question(self, record: Record) -> None:
        """See to it that the open question is not open for ever."""
        question = record.task.question
        if question is self._asked:
            return
        self._asked = question
        if self._patience:
            self._patience.cancel()
            self._patience = None
        if question is None:
            self._pool.resume(self)
            return
        give_up = partial(self._give_up, record, question)
        self._pool.ask(self, record.task.status_time, partial(give_up, TOO_MANY, "limit"))
        if self._agent.patience:
            text = f"Nobody answered within {self._agent.patience:g} s (BRIDGE_QUESTION_TIMEOUT_MS)"
            loop = asyncio.get_running_loop()
            self._patience = loop.call_later(self._agent.patience, give_up, text, "timeout")

    def _give_up(self, record: Record, question: Question, text: str, by: str) -> None:
        """Answer for the client: what can be denied is denied, else the turn ends. `text` says
        why, `by` is the same in a word."""
        if record.task.question is not question:
            return
        answer = refusal(question, by)
        if answer:
            note = Status(f"{text}, so that it was denied.", _facts(answer))
            self._settle(record, question, answer, note)
        else:
            text = f"{text}, and the agent could not go on without an answer."
            self._end(record, TimedOut(text, by))

    def _remember(self, session_id: str, resume: bool) -> None:
        """The CLI's own conversation that the next session is to go on with."""
        start = replace(self._start, session_id=session_id, resume=resume)
        if session_id != self._start.session_id:
            self._began = datetime.now(UTC)
        if start != self._start:
            self._start = start
            self._store.put_context(self.key, start)

    def _apply(self, record: Record, *events: Event) -> None:
        """Let `events` happen to the task, up to its end; then its log is closed for good."""
        task = record.task
        if task.state.terminal:
            log.debug("event after the end", extra={"task": task.id, "events": len(events)})
            return
        now = datetime.now(UTC)
        updates: list[Update] = []
        happened: list[Event] = []
        try:
            for event in events:
                if not task.state.terminal:
                    updates += task.apply(event, now)
                    happened.append(event)
        finally:
            if happened:
                self._write(record, happened, updates, now)
        if record is self._current:
            self._watch_question(record)
        if task.state.terminal:
            self._finished(record)
        elif record is self._current and self._session:
            self._session.waiting(task.state.interrupted)

    def _write(
        self, record: Record, events: Sequence[Event], updates: Sequence[Update], now: datetime
    ) -> None:
        """Let readers see what has happened as soon as it cannot be lost any more."""
        self._agent.audit.events(record.task, events)
        number = record.log.add(updates)
        if record.task.state.terminal:
            record.log.close()

        session = self._session
        states = [update for update in updates if isinstance(update, StatusUpdate)]

        def written() -> None:
            record.log.publish(number)
            if states:
                self._changed(record, states)

        spool = self._session.spool if self._session and record is self._current else None
        position = (spool.name, self._session.position) if self._session and spool else None
        self._store.write(record, events, now, position, written)
        if session and self._store.congested:
            session.pause(True)
            self._store.when_relieved(partial(session.pause, False))

    # --- the session's end ---------------------------------------------------------------------

    def _rest(self) -> None:
        """The turns are done: keep the session warm for a while, unless its files are large."""
        self._pool.rest(self)
        session = self._session
        if session and session.spool and session.position > MOST_OUTPUT:
            self._begin_close()
        elif session:
            loop = asyncio.get_running_loop()
            self._idle_timer = loop.call_later(self._agent.idle_seconds, self._expire)

    def _expire(self) -> None:
        if self.idle:
            self._begin_close()

    def _begin_close(self) -> None:
        if self._session:
            self._closing = asyncio.create_task(self._close(self._session))
            self._session = None

    async def close(self) -> None:
        """Give up the session, if there is one, and the place; wait until its processes are
        gone."""
        self._begin_close()
        if self._closing is None:
            self._pool.leave(self)
        while self._closing:  # whoever waits with us may have a place again before we go on
            await asyncio.shield(self._closing)

    async def _close(self, session: Session) -> None:
        if self._idle_timer:
            self._idle_timer.cancel()
        try:
            await session.stop()
        finally:
            self._forget(session)
            if not self._start.resume:  # an id that was tried once may be taken
                self._remember(str(uuid.uuid4()), resume=False)
            self._closing = None
            self._pool.leave(self)

    def _forget(self, session: Session) -> None:
        """The session is over, and nothing of it is left to be understood."""
        if session.spool:
            remove = partial(shutil.rmtree, session.spool, ignore_errors=True)
            self._store.remove_session(session.spool.name, remove)


def _said(question: Question, answer: Answer) -> Status:
    """What clients are told of a question that was none of theirs."""
    facts = _facts(answer)
    verb = {"deny": "Denied", "allow": "Allowed"}[facts["decision"]]
    return Status(f"{verb} by a rule of the operator: {question.text}", facts)


def _trust_question(files: Sequence[str]) -> Question:
    text = (
        f"This repository brings along what the agent would run by itself: {', '.join(files)}. "
        "May it be used?"
    )
    options = (
        Option("use", "Use it", "allow_once"),
        Option("ignore", "Go on without it", "reject_once"),
    )
    subject = {"name": "project configuration", "input": {"files": list(files)}}
    return Question(TRUST, "permission", text, options, subject)


def _facts(answer: Answer) -> dict[str, str]:
    denied = answer.option is None or answer.option.kind.startswith("reject")
    decision = "deny" if denied else "allow"
    facts = {"questionId": answer.question_id, "decision": decision, "by": answer.by}
    return {"type": "decision", **facts}
