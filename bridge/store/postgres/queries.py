"""The queries of the PostgreSQL store, and the values that their rows mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bridge.store.changes import ContextKey, PushConfig
from bridge.store.postgres.sealing import Seal
from bridge.store.postgres.statements import decode_id, encode_id
from bridge.store.protocol import TaskHead, TaskQuery
from bridge.task.transitions import TaskState

Row = Sequence[Any]

HEAD = """
    task.id, task.agent, task.owner, task.context, created, thoughts, attended, changed, state,
    batch, last, size, begun, (SELECT node FROM context WHERE context.agent = task.agent
        AND context.owner = task.owner AND context.id = task.context) AS holder"""
HEAD_WIDTH = 14
# A task that may still become a direct Message, at a server that does not write it (its id).
VISIBLE = """(NOT hidden OR NOT EXISTS (SELECT 1 FROM context WHERE context.agent = task.agent
    AND context.owner = task.owner AND context.id = task.context AND context.node <> %s))"""
OPEN = "state NOT IN ('completed', 'canceled', 'failed', 'rejected')"  # as in an index
PIECE_ROWS = 512  # most batches of one read


def key_of(agent: str, owner: bytes, name: bytes) -> ContextKey:
    return ContextKey(agent, decode_id(owner), decode_id(name))


def head_of(row: Row) -> TaskHead:
    """The head in the first columns of the row (HEAD)."""
    task_id, agent, owner, context, *facts = row[:HEAD_WIDTH]
    created, thoughts, attended, changed, state, batch, last, size, begun, node = facts
    return TaskHead(
        decode_id(task_id),
        key_of(agent, owner, context),
        created,
        thoughts,
        attended,
        changed=changed,
        state=TaskState(state),
        batches=batch,
        last=last,
        size=size,
        begun=begun,
        node=node,
    )


def config_of(row: Row, seal: Seal) -> PushConfig:
    """Raises ValueError if no key opens it."""
    task_id, config_id, version, extended, sealed, cursor, attempts, due = row
    url, token, scheme, credentials = seal.open(sealed)
    names = (decode_id(task_id), decode_id(config_id), url, version)
    position = (cursor, attempts, due)
    return PushConfig(*names, token, scheme, credentials, extended, *position)


Statement = tuple[str, Sequence[Any]]


def listed(query: TaskQuery, removed: Sequence[str], node: str) -> tuple[Statement, Statement]:
    """The statements for the number of tasks of all pages, and for the heads of this page and of
    one more task. `removed`: ids to leave out; `node`: the id of this server."""
    given: list[tuple[str, Any]] = [
        ("task.agent = ANY(%s)", list(query.agents)),
        ("task.owner = %b", _encoded(query.owner)),
        ("task.context = %b", _encoded(query.context_id)),
        ("state = %s", query.state.value if query.state else None),
        ("changed >= %s::bigint", query.changed_since),
        (VISIBLE, node),
        ("task.id <> ALL(%s::bytea[])", list(map(encode_id, removed)) or None),
    ]
    used = [(term, value) for term, value in given if value is not None]
    condition, values = " AND ".join(term for term, _ in used), [value for _, value in used]
    count = f"SELECT count(*) FROM task WHERE {condition}"  # noqa: S608
    page, more = f"SELECT {HEAD} FROM task WHERE {condition}", list[Any]()  # noqa: S608
    if query.after:
        changed, task_id = query.after
        page += " AND (changed < %s::bigint OR changed = %s::bigint AND task.id > %b)"
        more += [changed, changed, encode_id(task_id)]
    page += " ORDER BY changed DESC, task.id"
    if query.limit:
        page += " LIMIT %s::bigint"
        more.append(query.limit + 1)
    return (count, values), (page, [*values, *more])


def _encoded(name: str | None) -> bytes | None:
    return None if name is None else encode_id(name)


READ = f"""
    SELECT piece.batch, piece.time, piece.events, piece.last
    FROM task LEFT JOIN LATERAL (
        SELECT batch, time, events, last, coalesce(sum(length(events)) OVER (
            ORDER BY batch ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
        FROM (
            SELECT * FROM event WHERE event.task = place AND event.batch > %s::int
            ORDER BY event.batch LIMIT {PIECE_ROWS}
        ) AS next
    ) AS piece ON piece.before < %s::bigint
    WHERE task.id = %b ORDER BY piece.batch"""  # noqa: S608
REPORTED = """
    SELECT task.id, events FROM task JOIN event ON event.task = place
    WHERE task.id = ANY(%s::bytea[]) AND (position(%b IN events) > 0 OR position(%b IN events) > 0)
    ORDER BY place, event.batch"""
PROMPT = "SELECT prompt FROM task WHERE id = %b"
ONE_HEAD = f"SELECT {HEAD} FROM task WHERE id = %b AND {VISIBLE}"  # noqa: S608
MESSAGE = """
    SELECT task.id FROM taken JOIN task ON place = taken.task
    WHERE taken.agent = %s AND taken.owner = %b AND message = %b AND digest = %b"""
# The open tasks of this node, and those without a context.
UNFINISHED = f"""
    SELECT {HEAD}, prompt FROM task LEFT JOIN context ON context.agent = task.agent
        AND context.owner = task.owner AND context.id = task.context
    WHERE task.agent = %s AND {OPEN} AND (context.id IS NULL OR node = %s) ORDER BY place"""  # noqa: S608
UNFINISHED_OF = f"""
    SELECT {HEAD}, prompt FROM task WHERE agent = %s AND owner = %b AND context = %b AND {OPEN}
    ORDER BY place"""  # noqa: S608
CONTEXTS = """
    SELECT agent, owner, id, start, share FROM context
    WHERE agent = %s AND start IS NOT NULL AND node = %s"""
ONE_CONTEXT = """
    SELECT agent, owner, id, start, share FROM context
    WHERE agent = %s AND owner = %b AND id = %b AND start IS NOT NULL"""
SESSIONS = """
    SELECT id, agent, owner, context, start, position,
        ARRAY(SELECT told FROM told WHERE told.session = session.id ORDER BY number)
    FROM session WHERE agent = %s AND node = %s ORDER BY id"""
CONFIGS = """
    SELECT task.id, push.id, push.version, extended, sealed, cursor, attempts, due
    FROM push JOIN task ON task.place = push.task"""
CONFIGS_OF_TASK = f"{CONFIGS} WHERE task.id = %b ORDER BY push.number"
# The configs that this node delivers: those of its contexts, and of contexts without a node.
OWN_CONFIGS = f"""{CONFIGS} LEFT JOIN context ON context.agent = task.agent
        AND context.owner = task.owner AND context.id = task.context
    WHERE node IS NULL OR node = %s ORDER BY push.number"""
# Whether a node is connected: its writer holds a lock.
RUNS = """EXISTS (
    SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND classid = %s::oid
        AND objid = (hashtext(current_schema() || node.id)::bigint & 4294967295)::oid)"""
# `working` counts the unfinished tasks of a node.
NODES = f"""
    SELECT node.id, node.name, node.version, {RUNS},
        (extract(epoch FROM seen) * 1000000)::bigint, (
            SELECT count(*) FROM task JOIN context ON context.agent = task.agent
                AND context.owner = task.owner AND context.id = task.context
            WHERE {OPEN} AND context.node = node.id),
        ARRAY(SELECT jsonb_array_elements_text(coalesce(agents, '[]'))),
        extract(epoch FROM now() - seen)::float8, node.state, slots, coalesce(offers, '{{}}')
    FROM node ORDER BY name, id"""  # noqa: S608
HOLDER = f"""
    SELECT context.node, coalesce(nullif(name, ''), context.node), {RUNS}
    FROM context LEFT JOIN node ON node.id = context.node
    WHERE agent = %s AND owner = %b AND context.id = %b AND context.node IS NOT NULL"""  # noqa: S608
FAILURES = """
    SELECT config, number, attempts, error, time FROM dead
    WHERE task = (SELECT place FROM task WHERE id = %b) ORDER BY config, number"""
# The figures that the limits of retention compare, before all tasks are read.
KEPT = f"""
    SELECT owner, sum(tasks)::bigint, sum(bytes)::bigint, min(changed), max(tasks)
    FROM (
        SELECT owner, count(*) AS tasks, sum(size) AS bytes, min(changed) AS changed FROM task
        WHERE agent = %s AND NOT {OPEN} GROUP BY owner, context
    ) AS kept GROUP BY owner"""  # noqa: S608
STORED = "SELECT coalesce(sum(size), 0)::bigint FROM task"
FINISHED = f"""
    SELECT {HEAD}, EXISTS (SELECT 1 FROM push WHERE push.task = place AND cursor < last)
    FROM task WHERE task.agent = %s AND NOT {OPEN} ORDER BY changed, place"""  # noqa: S608
