"""Tasks and their conversations: what goes on in memory, and written down where there is a journal.

What is written is what happened, not what came of it: a task is its events (Task.apply makes the
same of them again), a live session what its adapter was told. Reading that back is one loop
(replay.py), at a start as for a reader who comes late; so what is written down need not be kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from bridge.adapter import SessionStart
from bridge.adapter.input import AdapterInput
from bridge.store.event_log import EventLog
from bridge.store.journal import Journal, Row
from bridge.store.replay import JournalRows, MemoryRows, Recent, Rows, replay, retold
from bridge.store.serialization import EVENTS, dump, dump_events, load, micros, moment
from bridge.task.events import Event
from bridge.task.message import Message, TextPart
from bridge.task.state import ENDINGS, StatusUpdate, Task, Update

log = logging.getLogger(__name__)

T = TypeVar("T")

FEW, SHORT = 32, 8 * 1024  # messages, and their characters, of a history that is kept for lists
NEWEST = 128 * 1024  # bytes of a task's updates that are kept for those who come back to it
MOST_BEHIND = 448 * 1024  # the same for a reader who is behind: in memory it is about twice that
ENTRY = 256  # bytes that an update takes, besides what is written down of it
SMALL = 16 * 1024  # bytes of a finished task that stays in memory as it is
LARGE = 1024 * 1024  # bytes of one that leaves much memory behind
MOST_IN_MEMORY = 256 * 1024 * 1024  # bytes of tasks where there is no journal

# Each brings a database from the version that is its index to the next. Only ever append.
MIGRATIONS = (
    """
    CREATE TABLE context (
        agent TEXT NOT NULL,
        id TEXT NOT NULL,
        start BLOB NOT NULL,       -- SessionStart: directory, options, the CLI's own conversation
        PRIMARY KEY (agent, id)
    ) WITHOUT ROWID;
    CREATE TABLE task (
        place INTEGER PRIMARY KEY, -- in the order in which they came
        id TEXT NOT NULL UNIQUE,
        agent TEXT NOT NULL,
        context TEXT NOT NULL,
        created INTEGER NOT NULL,  -- microseconds since 1970, as all times
        thoughts INTEGER NOT NULL,
        prompt BLOB NOT NULL,      -- Message
        begun INTEGER NOT NULL     -- the CLI may have seen the prompt: never send it again
    );
    CREATE TABLE event (
        task INTEGER NOT NULL REFERENCES task ON DELETE CASCADE,
        batch INTEGER NOT NULL,    -- counts from 1: one is written once, however often attempted
        time INTEGER NOT NULL,
        events BLOB NOT NULL,
        last INTEGER NOT NULL,     -- number of the last update that they brought
        UNIQUE (task, batch)
    );
    CREATE TABLE session (
        id TEXT PRIMARY KEY,
        agent TEXT NOT NULL,
        context TEXT NOT NULL,
        start BLOB NOT NULL,       -- SessionStart, as it was launched
        position INTEGER NOT NULL  -- bytes of its output whose events are in `event`
    );
    CREATE TABLE told (
        number INTEGER PRIMARY KEY,
        session TEXT NOT NULL REFERENCES session ON DELETE CASCADE,
        told BLOB NOT NULL         -- AdapterInput
    );
    CREATE INDEX told_session ON told (session);
    CREATE TABLE taken (
        agent TEXT NOT NULL,
        message TEXT NOT NULL,     -- its id
        digest BLOB NOT NULL,
        task INTEGER NOT NULL REFERENCES task ON DELETE CASCADE,
        PRIMARY KEY (agent, message)
    ) WITHOUT ROWID;
    CREATE INDEX taken_task ON taken (task);
    """,
    # Until then there was one principal.
    "ALTER TABLE task ADD COLUMN owner TEXT NOT NULL DEFAULT 'local';",
    # Until then a message was identified by its id alone.
    """
    CREATE TABLE taken_by_content (
        agent TEXT NOT NULL,
        message TEXT NOT NULL,     -- its id
        digest BLOB NOT NULL,      -- of its content
        task INTEGER NOT NULL REFERENCES task ON DELETE CASCADE,
        PRIMARY KEY (agent, message, digest)
    ) WITHOUT ROWID;
    INSERT INTO taken_by_content SELECT agent, message, digest, task FROM taken;
    DROP TABLE taken;
    ALTER TABLE taken_by_content RENAME TO taken;
    CREATE INDEX taken_task ON taken (task);
    """,
    # Until then no task was canceled because its client had gone.
    "ALTER TABLE task ADD COLUMN attended INTEGER NOT NULL DEFAULT 0;",
)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Record:
    """A task and the log of its updates. `shown`: a client knows the task, so that a direct
    reply of the agent can no longer stand for it. `begun`: the CLI may have seen its prompt.
    `place`: among all tasks, in the order in which they came. `size`: bytes in the store.

    Of a task that has been put away, `task` is its head alone (see Task.head); `back` reads the
    rest, for whole(). `outline` is what lists show of it, unless that is long or was never shown.
    """

    task: Task
    log: EventLog[Update] = field(default_factory=EventLog)
    shown: bool = False
    begun: bool = False
    place: int = 0
    batches: int = 0  # of events that were written
    size: int = 0
    back: Callable[[Record], Awaitable[Task]] | None = None
    outline: Task | None = None

    async def whole(self) -> Task:
        """The task with all that was said. Nothing else happens meanwhile where it has not been
        put away; else it has ended, and this raises Unavailable, DataLoss or TaskNotFound where it
        cannot be read."""
        return await self.back(self) if self.back else self.task

    async def listed(self) -> Task:
        """The task, of which nobody wants the artifacts. As whole()."""
        if self.back is None:
            return self.task
        return self.outline or self.keep_outline(await self.back(self))

    def keep_outline(self, whole: Task) -> Task:
        outline = whole.outline()
        history = outline.history
        if len(history) <= FEW and sum(map(_letters, history)) <= SHORT:
            self.outline = outline
        return outline


def _letters(said: Message | StatusUpdate) -> int:
    """About how many characters it has."""
    if isinstance(said, StatusUpdate):
        return len(repr(said.event))
    return sum(
        len(part.text) if isinstance(part, TextPart) else len(repr(part)) for part in said.parts
    )


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session that was alive when the last server ended: its folder's name, how it was
    launched, what its adapter was told, and how much of its output has been understood."""

    id: str
    context_id: str
    start: SessionStart
    position: int
    told: tuple[AdapterInput, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """What was written down beside the tasks: `starts` of contexts by id, sessions, the prompts of
    unfinished tasks by id, and the messages that were taken, with their digests and tasks."""

    starts: Mapping[str, SessionStart] = field(default_factory=dict)
    sessions: Sequence[StoredSession] = ()
    prompts: Mapping[str, Message] = field(default_factory=dict)
    taken: Sequence[tuple[str, bytes, Record]] = ()


@dataclass(frozen=True, slots=True)
class Retention:
    """Finished tasks that are kept: so many, for so many days, in so many bytes, of which each
    owner has so many; 0 for no limit of days or bytes."""

    tasks: int = 1000
    days: int = 0
    bytes: int = 0
    of_owner: Callable[[str], int] = lambda owner: 0


class TaskStore:
    """The tasks of one agent. Those that are not finished are all kept; of the others, the newest,
    and where there are too many, those of the owner go who has most.

    Every method that changes something returns at once; what it did is durable when the updates
    are published in the record's log, or the journal is flushed. Without a journal that is at
    once. `freed` is called when a large task has left the memory.
    """

    def __init__(
        self,
        retention: Retention = Retention(),
        agent: str = "",
        journal: Journal | None = None,
        freed: Callable[[], None] = lambda: None,
    ) -> None:
        self.keep = retention.tasks
        self._retention = retention
        self.agent = agent
        self._journal = journal
        self._memory = MemoryRows()  # where there is no journal
        self._rows: Rows = JournalRows(journal) if journal else self._memory
        self._recent = Recent(self._rows)
        self._freed = freed
        self._places = 0
        self._packing: set[asyncio.Task[None]] = set()
        self._records: dict[str, Record] = {}
        self._finished: dict[str, dict[str, None]] = {}  # by owner: ids, oldest first
        self._sizes: Counter[str] = Counter()  # of those, by owner

    @property
    def problem(self) -> str | None:
        """Why nothing can be made durable now."""
        return self._journal.problem if self._journal else None

    @property
    def durable(self) -> bool:
        return self._journal is not None

    @property
    def congested(self) -> bool:
        """So much waits to be written that nothing should be added."""
        return self._journal is not None and self._journal.congested

    def when_durable(self, then: Callable[[], None]) -> None:
        """Have `then` called once all that happened until now is durable; at once where that may
        take long."""
        if self._journal and not self._journal.problem:
            self._journal.write(then=then)
        else:
            then()

    def when_relieved(self, then: Callable[[], None]) -> None:
        """Have `then` called once it is no longer congested."""
        if self._journal:
            self._journal.relief.append(then)

    def get(self, task_id: str) -> Record | None:
        return self._records.get(task_id)

    def all(self) -> list[Record]:
        return list(self._records.values())

    def unfinished(self) -> list[Record]:
        return [r for r in self._records.values() if not r.task.state.terminal]

    # --- what happens --------------------------------------------------------------------------

    def add(self, record: Record, prompt: Message) -> None:
        task = record.task
        record.place = self._place()
        self._hold(record)
        times = (micros(task.created), task.show_thoughts)
        identity = (record.place, task.id, self.agent, task.context_id)
        written = dump(prompt)
        record.size += len(written)
        if not self._journal:
            self._memory.begin(record.place, written)
        values = (*identity, *times, written, task.owner, task.attended)
        record.log.visible = -1
        statement = "INSERT OR IGNORE INTO task VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?, ?)"
        self._write((statement, values), then=lambda: record.log.publish(0))

    def _place(self) -> int:
        self._places += 1
        return self._journal.number() if self._journal else self._places

    def _hold(self, record: Record) -> None:
        self._records[record.task.id] = record
        head = record.task.head()
        record.log.bound(
            NEWEST, MOST_BEHIND, ENTRY, partial(retold, self._rows, record.place, head)
        )

    def take(self, message_id: str, digest: bytes, record: Record) -> None:
        """Remember the message, by its id and its content, and its task."""
        values = (self.agent, message_id, digest, record.place)
        self._write(("INSERT OR REPLACE INTO taken VALUES (?, ?, ?, ?)", values))

    def write(
        self,
        record: Record,
        events: Sequence[Event],
        now: datetime,
        session: tuple[str, int] | None,
        then: Callable[[], None],
    ) -> None:
        """`events` have happened to the task. `session`: its id, and how much of its output they
        account for. `then`: what follows once that is durable."""
        record.batches += 1
        written = dump_events(events)
        record.size += len(written)
        record.log.weigh(len(written))
        batch = (record.batches, micros(now), written, record.log.last)
        if self._journal is None:
            self._memory.add(record.place, batch)
            then()
            return
        values = (record.place, *batch)
        rows: list[Row] = [("INSERT OR IGNORE INTO event VALUES (?, ?, ?, ?, ?)", values)]
        if session:
            session_id, position = session
            statement = "UPDATE session SET position = ? WHERE id = ?"
            rows.append((statement, (position, session_id)))
        self._write(*rows, then=then)

    def finished(self, record: Record) -> list[Record]:
        """`record` will not change any more. Returns those that had to go for it."""
        self._keep_finished(record)
        gone = []
        for one in self._excess(record.task.owner):
            gone.append(one)
            self.remove(one.task.id)
        self._write(then=partial(self._put_away, record))
        return gone

    def _put_away(self, record: Record) -> None:
        """The finished task is durable: what was said need not be in memory. It stays there of a
        task that is hardly larger without it."""
        large = record.size >= SMALL
        record.log.release(entries=large)
        if not large or record.task.id not in self._records:
            return
        record.keep_outline(record.task)
        record.task, record.back = record.task.head(), self._whole
        if self._journal:
            self._trim(record)
        else:
            packing = asyncio.create_task(self._memory.pack(record.place))
            self._packing.add(packing)  # the loop itself keeps no task alive
            packing.add_done_callback(self._packing.discard)
            packing.add_done_callback(lambda _: self._trim(record))

    def _trim(self, record: Record) -> None:
        if record.size >= LARGE:
            self._freed()

    async def _whole(self, record: Record) -> Task:
        return await self._recent.get(record.place, record.task, record.size)

    def _keep_finished(self, record: Record) -> None:
        owner = record.task.owner
        self._finished.setdefault(owner, {})[record.task.id] = None
        self._sizes[owner] += record.size

    def _excess(self, owner: str) -> Iterator[Record]:
        """Those of the finished tasks that have to go, each of which is removed meanwhile; `owner`
        has a new one."""
        most = self._retention.of_owner(owner)
        while most and self._sizes[owner] > most:
            yield self._oldest(owner)
        for one in list(self._finished) if self._retention.days else ():
            while one in self._finished and self._outdated(oldest := self._oldest(one)):
                yield oldest
        finished = sum(map(len, self._finished.values()))
        excess = max(0, finished - self.keep)
        most, size = self._retention.bytes, self._memory.size
        if self._journal:
            size = self._journal.size
        else:
            most = min(most or MOST_IN_MEMORY, MOST_IN_MEMORY)
        if 0 < most < size:
            excess = max(excess, 1 + finished // 10)  # it is looked at again
        for _ in range(min(excess, finished)):
            yield self._oldest(max(self._finished, key=lambda one: len(self._finished[one])))

    def _oldest(self, owner: str) -> Record:
        return self._records[next(iter(self._finished[owner]))]

    def _outdated(self, record: Record) -> bool:
        oldest = datetime.now(UTC) - timedelta(days=self._retention.days)
        return record.task.status_time < oldest

    def remove(self, task_id: str) -> None:
        record = self._records.pop(task_id, None)
        if record is None:
            return
        owner = record.task.owner
        finished = self._finished.get(owner, {})
        if task_id in finished:
            del finished[task_id]
            self._sizes[owner] -= record.size
            if not finished:
                del self._finished[owner], self._sizes[owner]
        self._recent.forget(record.place)
        if not self._journal:
            self._memory.remove(record.place)
        self._write(("DELETE FROM task WHERE place = ?", (record.place,)))

    # --- conversations -------------------------------------------------------------------------

    def put_context(self, context_id: str, start: SessionStart) -> None:
        values = (self.agent, context_id, dump(start))
        self._write(("INSERT OR REPLACE INTO context VALUES (?, ?, ?)", values))

    def remove_context(self, context_id: str) -> None:
        values = (self.agent, context_id)
        self._write(("DELETE FROM context WHERE agent = ? AND id = ?", values))

    def put_session(
        self,
        session_id: str,
        context_id: str,
        start: SessionStart,
        told: Sequence[AdapterInput] = (),
    ) -> None:
        """`told`: what its adapter was told before anybody had a prompt for it."""
        values = (session_id, self.agent, context_id, dump(start))
        rows: list[Row] = [("INSERT OR IGNORE INTO session VALUES (?, ?, ?, ?, 0)", values)]
        if self._journal:
            rows += [self._told(self._journal, session_id, one) for one in told]
        self._write(*rows)

    def remove_session(self, session_id: str, then: Callable[[], None] | None = None) -> None:
        """`then`: what follows once nothing will be read from the session any more."""
        self._write(("DELETE FROM session WHERE id = ?", (session_id,)), then=then)

    def tell(
        self, session_id: str | None, told: AdapterInput, record: Record, then: Callable[[], None]
    ) -> None:
        """The adapter will be told so by `then`, once it is durable that it may have been.
        `session_id`: None for a session that does not outlive the server."""
        rows: list[Row] = []
        if session_id and self._journal:
            rows.append(self._told(self._journal, session_id, told))
        if not record.begun:
            record.begun = True
            rows.append(("UPDATE task SET begun = 1 WHERE place = ?", (record.place,)))
        self._write(*rows, then=then)

    @staticmethod
    def _told(journal: Journal, session_id: str, told: AdapterInput) -> Row:
        values = (journal.number(), session_id, dump(told))
        return "INSERT OR IGNORE INTO told VALUES (?, ?, ?)", values

    def _write(self, *rows: Row, then: Callable[[], None] | None = None) -> None:
        if self._journal:
            self._journal.write(*rows, then=then)
        elif then:
            then()

    # --- reading it back -----------------------------------------------------------------------

    async def load(self) -> Stored:
        """All that an earlier server has written down of this agent. Finished tasks are indexed
        here; for the others, somebody has to go on."""
        if self._journal is None:
            return Stored()
        read, agent = self._journal.read, self.agent
        for query in _NEWEST:
            ((newest,),) = await read(query)
            self._journal.newest = max(self._journal.newest, newest or 0)
        ends = {place: end for place, *end in await read(_ENDS, agent)}
        prompts: dict[str, Message] = {}
        for row in await read(_TASKS, agent):
            record = _record(row)
            self._index(record, *ends.get(record.place, (0, 0, 0, 0, None)))
            prompt = None if record.back else await self._prompt(record)
            if prompt:
                record.task.history.append(prompt)
                prompts[record.task.id] = prompt
            if prompt or record.back:
                self._hold(record)
            if prompt:
                await self._replay(record)
        ended = [record for record in self._records.values() if record.task.state.terminal]
        ended.sort(key=lambda record: record.task.status_time)
        for record in ended:
            self._keep_finished(record)
        starts = await read("SELECT id, start FROM context WHERE agent = ?", agent)
        taken = await read(_TAKEN, agent)
        sessions = [await self._session(*row) for row in await read(_SESSIONS, agent)]
        known = {context_id: _readable(SessionStart, start) for context_id, start in starts}
        records = self._records
        return Stored(
            {context_id: start for context_id, start in known.items() if start},
            [session for session in sessions if session],
            prompts,
            [(name, digest, records[task]) for name, digest, task in taken if task in records],
        )

    def _index(
        self, record: Record, batch: int, last: int, size: int, time: int, kind: str | None
    ) -> None:
        """What is known of the task by its last batch: all that is needed, if it has ended. `kind`
        is that of the last event."""
        record.size += size
        ending = ENDINGS.get(EVENTS.get(kind or "", object))
        if ending:
            record.task.state, record.task.status_time = ending[0], moment(time)
            record.batches, record.back = batch, self._whole
            record.log.skip(last)
            record.log.close()

    async def _prompt(self, record: Record) -> Message | None:
        return _readable(Message, await self._rows.prompt(record.place))

    async def _replay(self, record: Record) -> None:
        """Let everything happen to the task that has happened to it."""
        task, updates_of = record.task, record.log
        try:
            async for batches, updates in replay(self._rows, record.place, task):
                updates_of.add(updates)
                updates_of.weigh(sum(len(events) for _, _, events, _ in batches))
                updates_of.publish(updates_of.last)
                for record.batches, _, _, last in batches[-1:]:
                    if updates_of.last != last:
                        text = "updates have other numbers than before"
                        log.warning(text, extra={"task": task.id})
        except Exception:
            log.exception("a task cannot be read", extra={"task": task.id})
        task.reply = None  # it is a task by now, which clients may get
        if task.state.terminal:
            record.log.close()

    async def _session(
        self, session_id: str, context_id: str, start: bytes, position: int
    ) -> StoredSession | None:
        assert self._journal
        rows = await self._journal.read(_TOLD, session_id)
        told = [_readable(AdapterInput, one) for (one,) in rows]
        known = _readable(SessionStart, start)
        if known is None or None in told:
            return None
        return StoredSession(session_id, context_id, known, position, tuple(filter(None, told)))


_TASKS = """
    SELECT place, id, context, created, thoughts, begun, owner, attended, length(prompt) FROM task
    WHERE agent = ? ORDER BY place"""
_NEWEST = ("SELECT max(place) FROM task", "SELECT max(number) FROM told")
_ENDS = """
    SELECT place, batch, last, size, time,
        CASE WHEN json_valid(CAST(events AS TEXT))
            THEN json_extract(CAST(events AS TEXT), '$[#-1][0]') END
    FROM event JOIN (
        SELECT place, max(batch) AS newest, sum(length(events)) AS size
        FROM event JOIN task ON place = task WHERE agent = ? GROUP BY place
    ) ON task = place AND batch = newest"""
_SESSIONS = "SELECT id, context, start, position FROM session WHERE agent = ?"
_TOLD = "SELECT told FROM told WHERE session = ? ORDER BY number"
_TAKEN = """
    SELECT message, digest, id FROM taken JOIN task ON place = task
    WHERE taken.agent = ? ORDER BY place"""


def _readable(kind: type[T], data: bytes) -> T | None:
    try:
        return load(kind, data)
    except ValueError:  # written by another version, or damaged
        log.exception("something that was written down cannot be read", extra={"kind": kind})
        return None


def _record(row: tuple[Any, ...]) -> Record:
    place, task_id, context_id, created, thoughts, begun, owner, attended, size = row
    task = Task(task_id, context_id, moment(created), bool(thoughts), owner, bool(attended))
    return Record(task, shown=True, begun=bool(begun), place=place, size=size)
