"""The changes of a group of appends as SQL statements.

All event batches and positions of a group become one statement, as the output of agents comes in
many small batches. It runs after the other statements: these have the same effect before and after
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from bridge.store.changes import (
    Change,
    CommandDone,
    ContextRemoved,
    ContextSaved,
    EventBatch,
    Fence,
    InputRecorded,
    MessageAccepted,
    OutputRead,
    OwnedKey,
    PushAdvanced,
    PushFailed,
    PushRemoved,
    PushSaved,
    SessionClosed,
    SessionOpened,
    TaskBegun,
    TaskCreated,
    TaskRemoved,
    TaskShown,
)
from bridge.store.postgres.sealing import Seal

Statement = tuple[str, Sequence[Any]]


def encode_id(name: str) -> bytes:
    """The stored form of an id: each string has one, also with U+0000 or a lone surrogate."""
    return name.encode("utf-8", "surrogatepass")


def decode_id(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def columns_of(key: OwnedKey) -> tuple[str, bytes, bytes]:
    """Agent, owner and id."""
    return key.agent, encode_id(key.owner), encode_id(key.id)


def numbers(values: Iterable[int | None]) -> str:
    """An array of numbers as a literal of PostgreSQL. The driver would choose a type by the largest
    value, and each type would be another prepared statement."""
    return f"{{{','.join('NULL' if one is None else str(one) for one in values)}}}"


@dataclass(slots=True)
class ChangeGroup:
    """The statements of the changes that were added. `node`, `epoch`: of the writer. `seal` is None
    for a server without push notifications, which writes no configs."""

    node: str
    epoch: int
    seal: Seal | None
    _others: list[Statement] = field(default_factory=list)
    _batches: dict[tuple[str, int], EventBatch] = field(default_factory=dict)
    _positions: dict[str, int] = field(default_factory=dict)

    def add(self, changes: Iterable[Change]) -> None:
        for change in changes:
            if isinstance(change, EventBatch):
                self._batches.setdefault((change.task_id, change.number), change)
            elif isinstance(change, OutputRead):
                self._positions[change.session_id] = change.position
            else:
                self._others.append(
                    self._of_task(change) or self._of_context(change) or self._of_push(change)
                )

    def statements(self, number: int, fences: Iterable[Fence]) -> Sequence[Statement]:
        """The statements of one transaction, in order. It is group `number` of this incarnation of
        the node, and holds the fences. Output alone is a single statement."""
        held = dict.fromkeys(fences)
        keys = [columns_of(fence.context) for fence in held]
        columns = ([key[column] for key in keys] for column in range(3))
        begin = (self.node, self.epoch, number, *columns, numbers(one.token for one in held))
        others = [one for one in self._others if one[0]]
        if not (self._batches or self._positions):
            return [(f"SELECT {_BEGIN}", begin), *others]
        output = self._output()
        if others:
            return [(f"SELECT {_BEGIN}", begin), *others, (_OUTPUT, output)]
        return [(_ONLY_OUTPUT, (*begin, *output))]

    def _output(self) -> Sequence[Any]:
        """The values of the statement for all batches and positions."""
        batches = list(self._batches.values())
        lengths = [len(one.events) for one in batches]
        return (
            b"".join([one.events for one in batches]),
            [encode_id(one.task_id) for one in batches],
            numbers(one.number for one in batches),
            numbers(one.time for one in batches),
            numbers(one.last for one in batches),
            numbers(accumulate(lengths[:-1], initial=1)),
            numbers(lengths),
            [one.state.value if one.state else None for one in batches],
            numbers(one.changed for one in batches),
            self.epoch,
            list(map(encode_id, self._positions)),
            numbers(self._positions.values()),
        )

    def _of_task(self, change: Change) -> Statement | None:
        match change:
            case TaskCreated(task_id, context):
                facts = (change.created, change.thoughts, change.attended, change.prompt)
                values = (encode_id(task_id), *columns_of(context), *facts)
                return _TASK, (*values, change.created, len(change.prompt), change.hidden)
            case TaskBegun(task_id):
                return "UPDATE task SET begun = true WHERE id = %b", (encode_id(task_id),)
            case TaskShown(task_id):
                return "UPDATE task SET hidden = false WHERE id = %b", (encode_id(task_id),)
            case TaskRemoved(task_id):
                return "DELETE FROM task WHERE id = %b", (encode_id(task_id),)
            case MessageAccepted(key, task_id, replaces):
                of = replaces if replaces is None else encode_id(replaces)
                return _MESSAGE, (*columns_of(key), key.digest, encode_id(task_id), of)
        return None

    def _of_context(self, change: Change) -> Statement | None:
        match change:
            case ContextSaved(key, start, share):
                return _CONTEXT, (*columns_of(key), start, share)
            case ContextRemoved(key):
                return _CONTEXT_REMOVED, columns_of(key)
            case SessionOpened(session_id, key, start):
                return _SESSION, (encode_id(session_id), self.node, *columns_of(key), start)
            case SessionClosed(session_id):
                return "DELETE FROM session WHERE id = %b", (encode_id(session_id),)
            case InputRecorded(session_id, given):
                return _INPUT, (given, encode_id(session_id))
            case CommandDone(command_id, _, answer):
                return _COMMAND_DONE, (answer, command_id)
        return None

    def _of_push(self, change: Change) -> Statement:
        match change:
            case PushSaved(config) if self.seal:
                names = (encode_id(config.id), config.version, config.extended)
                position = (config.cursor, config.attempts, config.due)
                sealed = self.seal.close(config)
                return _PUSH, (*names, sealed, *position, encode_id(config.task_id))
            case PushAdvanced(task_id, config_id, cursor, attempts, due):
                of = (encode_id(task_id), encode_id(config_id), cursor)
                return _ADVANCED, (cursor, attempts, due, *of)
            case PushFailed(task_id, config_id, number):
                facts = (number, change.attempts, change.error.replace("\0", "?"), change.time)
                return _FAILED, (*facts, encode_id(task_id), encode_id(config_id))
            case PushRemoved(task_id, config_id):
                return _PUSH_REMOVED, (encode_id(task_id), encode_id(config_id))
        return "", ()


_BEGIN = """begin_group(%s, %s::bigint, %s::bigint, %s::text[], %s::bytea[], %s::bytea[],
    %s::bigint[])"""
# A batch that is not newer than the projection of its task is not written again. The projection
# counts only the rows that this statement has inserted.
_PARTS = """
    rows AS MATERIALIZED (
        SELECT place, u.batch, time, u.last, substring(%b::bytea FROM start FOR length) AS events,
            u.state, u.changed
        FROM unnest(%s::bytea[], %s::int[], %s::bigint[], %s::int[], %s::int[], %s::int[],
            %s::text[], %s::bigint[])
            AS u(id, batch, time, last, start, length, state, changed)
        JOIN task ON task.id = u.id AND u.batch > task.batch
    ), written AS (
        INSERT INTO event (task, batch, epoch, time, last, events)
        SELECT place, batch, %s::bigint, time, last, events FROM rows
        ON CONFLICT DO NOTHING RETURNING task, batch
    ), newest AS (
        SELECT place, max(rows.batch) AS batch, max(last) AS last, sum(length(events)) AS size,
            (array_agg(state ORDER BY rows.batch DESC)
                FILTER (WHERE state IS NOT NULL))[1] AS state,
            (array_agg(changed ORDER BY rows.batch DESC)
                FILTER (WHERE changed IS NOT NULL))[1] AS changed
        FROM rows JOIN written ON task = place AND written.batch = rows.batch GROUP BY place
    ), projected AS (
        UPDATE task SET batch = newest.batch, last = newest.last, size = task.size + newest.size,
            state = coalesce(newest.state, task.state),
            changed = coalesce(newest.changed, task.changed)
        FROM newest WHERE task.place = newest.place
    ), moved AS (
        UPDATE session SET position = u.position
        FROM unnest(%s::bytea[], %s::bigint[]) AS u(id, position) WHERE session.id = u.id
    )"""
_OUTPUT = f"WITH {_PARTS} SELECT 1"
# The main query runs first, and in any case: also if no task and no session of the group exists.
_ONLY_OUTPUT = f"WITH mine AS MATERIALIZED (SELECT {_BEGIN}), {_PARTS} SELECT 1 FROM mine"  # noqa: S608
_TASK = """
    INSERT INTO task
        (id, agent, owner, context, created, thoughts, attended, prompt, state, changed, size,
        hidden)
    VALUES (%b, %s, %b, %b, %s::bigint, %s, %s, %b, 'submitted', %s::bigint, %s::bigint, %s)
    ON CONFLICT (id) DO NOTHING"""
_MESSAGE = "SELECT accept(%s, %b, %b, %b, %b, %b)"
_CONTEXT = """
    INSERT INTO context (agent, owner, id, start, share) VALUES (%s, %b, %b, %b, %s)
    ON CONFLICT (agent, owner, id) DO UPDATE SET start = excluded.start, share = excluded.share"""
_CONTEXT_REMOVED = "DELETE FROM context WHERE agent = %s AND owner = %b AND id = %b"
_SESSION = """
    INSERT INTO session (id, node, agent, owner, context, start) VALUES (%b, %s, %s, %b, %b, %b)
    ON CONFLICT (id) DO NOTHING"""
_INPUT = "INSERT INTO told (session, told) SELECT id, %b FROM session WHERE id = %b"
_COMMAND_DONE = "UPDATE command SET answer = %b, done = true WHERE id = %s"
_PUSH = """
    INSERT INTO push (task, id, version, extended, sealed, cursor, attempts, due)
    SELECT place, %b, %s, %s, %b, %s::int, %s::int, %s::bigint FROM task WHERE task.id = %b
    ON CONFLICT (task, id) DO UPDATE SET version = excluded.version, extended = excluded.extended,
        sealed = excluded.sealed, due = excluded.due"""
_ADVANCED = """
    UPDATE push SET cursor = %s::int, attempts = %s::int, due = %s::bigint
    WHERE task = (SELECT place FROM task WHERE id = %b) AND id = %b AND cursor <= %s::int"""
_FAILED = """
    INSERT INTO dead (task, config, number, attempts, error, time)
    SELECT push.task, push.id, %s::int, %s::int, %s, %s::bigint
    FROM push JOIN task ON place = push.task WHERE task.id = %b AND push.id = %b
    ON CONFLICT DO NOTHING"""
_PUSH_REMOVED = """
    DELETE FROM push WHERE task = (SELECT place FROM task WHERE id = %b) AND id = %b"""
