"""The other servers of a database: commands for them, and decisions that only one server may make.

A hint makes each wait short; where it is lost, the table is read each second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

from bridge.errors import TooManyRequests, Unavailable
from bridge.store.changes import ContextKey, MessageKey
from bridge.store.cluster import ANSWER_WITHIN, Command, Holder, NodeStatus
from bridge.store.postgres import queries
from bridge.store.postgres.claims import Claims
from bridge.store.postgres.membership import Membership
from bridge.store.postgres.queries import key_of
from bridge.store.postgres.reader import PostgresReader
from bridge.store.postgres.schema import LOCK_CLASS
from bridge.store.postgres.statements import columns_of, decode_id, encode_id
from bridge.store.postgres.takeover import Takeover
from bridge.store.postgres.writer import PostgresWriter
from bridge.store.protocol import KnownMessage

log = logging.getLogger(__name__)

POLL = 1.0  # seconds between two looks at a table
SWEEP = 60.0  # seconds
FIRST_LOOK = 0.05  # seconds; the pause between looks at a message doubles
SOON = 5  # seconds: Retry-After where nothing says when the limit is free again
KEPT = "1 hour"  # for answered commands


class PostgresCluster:
    """`node`: the id of this server. `say` sends a hint to a server. See store/cluster.py.
    `answer_within`: seconds for the answer to a command."""

    def __init__(
        self,
        reader: PostgresReader,
        writer: PostgresWriter,
        node: str,
        say: Callable[[str, Sequence[str]], None],
        lives: tuple[Membership, Takeover, Claims],
    ) -> None:
        self._membership, self._takeover, self._claims = lives
        self._reader = reader
        self._writer = writer
        self._node = node
        self._say = say
        self.answer_within = ANSWER_WITHIN
        self._command = asyncio.Event()  # one may wait for this server
        self._next_sweep = 0.0
        self._begun: set[str] = set()  # commands that this process has given out
        self._answers: dict[str, asyncio.Event] = {}
        self._on_work: list[Callable[[], None]] = []

    # --- hints ---------------------------------------------------------------------------------

    def heard(self, said: Sequence[Any]) -> None:
        match said:
            case ["command"]:
                self._command.set()
            case ["work"]:
                self._work()
            case ["answered", str(command_id)] if command_id in self._answers:
                self._answers[command_id].set()

    def catch_up(self) -> None:
        """Hints may be lost."""
        self._command.set()
        for answered in self._answers.values():
            answered.set()
        self._work()

    def on_work(self, call: Callable[[], None]) -> None:
        self._on_work.append(call)

    def _work(self) -> None:
        for call in self._on_work:
            call()

    async def offer(self) -> None:
        """Tell all servers that a context has no server any more."""
        for one in await self.nodes():
            if one.runs:
                self._say(one.id, ["work"])

    # --- servers -------------------------------------------------------------------------------

    async def nodes(self) -> Sequence[NodeStatus]:
        found = []
        for row in await self._reader.rows(queries.NODES, LOCK_CLASS + 1):
            one = NodeStatus(*row)
            standing = self._membership.standing(one.id, one.state, one.runs)
            found.append(replace(one, state=standing.state, age=standing.age))
        return found

    def take_over(self) -> None:
        self._takeover.start()

    async def keep_own(self) -> None:
        await self._takeover.close()

    async def holder(self, key: ContextKey) -> Holder | None:
        found = await self._reader.rows(queries.HOLDER, LOCK_CLASS + 1, *columns_of(key))
        return Holder(*found[0]) if found else None

    async def assign(self, key: ContextKey, node: str) -> bool:
        return bool(await self._fenced(_ASSIGN, *columns_of(key), node, LOCK_CLASS + 1))

    # --- commands ------------------------------------------------------------------------------

    async def ask(self, command: Command, holder: str) -> bytes | None:
        answered = self._answers[command.id] = asyncio.Event()
        values = (command.kind, command.principal, command.body, command.sender)
        try:
            await self._reader.rows(_ASK, command.id, *columns_of(command.context), *values)
            self._say(holder, ["command"])
            async with asyncio.timeout(self.answer_within):
                return await self._answer(command, holder, answered)
        except TimeoutError:
            await self._withdraw(command.id)
            raise Unavailable(_NO_ANSWER) from None
        finally:
            del self._answers[command.id]

    async def _answer(self, command: Command, holder: str, answered: asyncio.Event) -> bytes | None:
        while True:
            try:
                async with asyncio.timeout(POLL):
                    await answered.wait()
            except TimeoutError:
                pass
            answered.clear()
            ((done, answer, taken, node),) = await self._reader.rows(_ANSWER, command.id)
            if done:
                return bytes(answer)
            if node != holder and not taken:
                await self._withdraw(command.id)
                return None

    async def _withdraw(self, command_id: str) -> None:
        """Withdraw a command that no server has taken. Raises Unavailable if one has, and if an
        earlier attempt had no answer."""
        if not await self._reader.rows(_WITHDRAW, command_id):
            raise Unavailable(_MAY_TAKE_EFFECT)

    async def commands(self) -> AsyncIterator[Command]:
        while True:
            try:
                async with asyncio.timeout(POLL):
                    await self._command.wait()
            except TimeoutError:
                pass
            self._command.clear()
            try:
                found = await self._fenced(_TAKE, self._writer.epoch, self._node)
                await self._sweep()
            except Unavailable:  # the store has logged it
                continue
            begun, self._begun = self._begun, {row[1] for row in found}
            for _, command, *key, sender, kind, owner, body in sorted(found):
                if command not in begun:
                    yield Command(command, key_of(*key), sender, kind, principal=owner, body=body)

    async def _sweep(self) -> None:
        """Each minute, remove old commands: no index finds them."""
        now = asyncio.get_running_loop().time()
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP
            await self._reader.rows(_SWEEP)

    # --- messages ------------------------------------------------------------------------------

    async def reserve(self, key: MessageKey) -> KnownMessage | None:
        names = (*columns_of(key), key.digest)
        pause = FIRST_LOOK
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                while True:
                    identity = (self._node, self._writer.epoch)
                    found = await self._fenced(_RESERVE, *names, *identity, *names)
                    ((made, task_id, *context),) = found
                    if task_id is not None:
                        return KnownMessage(decode_id(task_id), key_of(key.agent, *context))
                    if made:
                        return None
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, POLL)
        except TimeoutError:
            raise Unavailable(_DECIDING) from None

    async def unreserve(self, key: MessageKey) -> None:
        try:
            await self._reader.rows(_UNRESERVE, *columns_of(key), key.digest, self._node)
        except Unavailable:  # this server can take it again, and its next start removes it
            log.warning("a message stays reserved", extra={"message": key.id})

    # --- starts --------------------------------------------------------------------------------

    async def admit(self, owner: str, task_id: str, *, tasks: int, per_minute: int) -> None:
        names = (encode_id(owner), encode_id(task_id))
        found = await self._fenced(_ADMIT, *names, tasks, per_minute)
        ((exceeded, figure),) = found
        if exceeded == "tasks":
            text = f"Task limit reached ({figure} unfinished tasks of this principal)."
            raise TooManyRequests(f"{text} Wait for one, or cancel it.", SOON)
        if exceeded:
            text = f"Start limit reached ({per_minute} tasks per minute). Retry later."
            raise TooManyRequests(text, max(figure, 1))

    async def withdraw(self, task_id: str) -> None:
        try:
            await self._reader.rows("DELETE FROM started WHERE task = %b", encode_id(task_id))
        except Unavailable:  # it counts for a minute
            log.warning("a start stays counted", extra={"task": task_id})

    # --- contexts without a server -------------------------------------------------------------

    async def unplaced(self, agents: Sequence[str], most: int) -> Sequence[ContextKey]:
        shares = [*self._membership.terms.shares]
        found = await self._reader.rows(_UNPLACED, list(agents), shares, most)
        return [key_of(*row) for row in found]

    async def _fenced(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Make the statement, unless this incarnation is fenced. Raises Unavailable."""
        return await self._claims.fenced(statement, self._node, self._writer.epoch, *values)


# A context without a start was not begun: the server that got it has ended before.
_ASSIGN = f"""
    WITH mine AS MATERIALIZED (SELECT fence(%s, %s))
    INSERT INTO context AS known (agent, owner, id, node, token)
    SELECT %s, %b, %b, %s, nextval('tokens') FROM mine
    ON CONFLICT (agent, owner, id) DO UPDATE SET node = excluded.node, token = excluded.token
    WHERE known.start IS NULL
        AND NOT EXISTS (SELECT 1 FROM node WHERE node.id = known.node AND {queries.RUNS})
    RETURNING token"""  # noqa: S608
_NO_ANSWER = "The server that works in this context does not answer. Retry later."
_MAY_TAKE_EFFECT = (
    "The server that works in this context has not answered yet. The request may still take "
    "effect; retry with the same messageId."
)
_DECIDING = "Another server still decides about this message. Retry later."

_ASK = """
    INSERT INTO command (id, agent, owner, context, kind, principal, body, sender)
    VALUES (%s, %s, %b, %b, %s, %b, %b, %s) ON CONFLICT DO NOTHING"""
_ANSWER = """
    SELECT done, answer, taker IS NOT NULL, (SELECT node FROM context
        WHERE (context.agent, context.owner, context.id)
            = (command.agent, command.owner, command.context))
    FROM command WHERE id = %s"""
_WITHDRAW = "DELETE FROM command WHERE id = %s AND taker IS NULL RETURNING id"
_SWEEP = f"DELETE FROM command WHERE done AND made < now() - interval '{KEPT}'"  # noqa: S608
_TAKE = """
    WITH mine AS MATERIALIZED (SELECT fence(%s, %s)), waits AS (
        SELECT command.id AS wanted, %s::bigint AS epoch
        FROM mine, command JOIN context ON (context.agent, context.owner, context.id)
            = (command.agent, command.owner, command.context)
        WHERE NOT done AND context.node = %s
        FOR UPDATE OF command SKIP LOCKED
    )
    UPDATE command SET taker = epoch FROM waits WHERE id = wanted
    RETURNING number, id, agent, owner, context, sender, kind, principal, body"""
# A reservation of an incarnation that is over does not count.
_RESERVE = """
    WITH mine AS MATERIALIZED (SELECT fence(%s, %s)), made AS (
        INSERT INTO taken (agent, owner, message, digest, node, epoch)
        SELECT %s, %b, %b, %b, %s, %s::bigint FROM mine
        ON CONFLICT (agent, owner, message, digest)
        DO UPDATE SET node = excluded.node, epoch = excluded.epoch
        WHERE taken.task IS NULL AND ((taken.node, taken.epoch) = (excluded.node, excluded.epoch)
            OR NOT EXISTS (SELECT 1 FROM node WHERE (node.id, node.epoch)
                = (taken.node, taken.epoch) AND state <> 'fenced'))
        RETURNING 1
    )
    SELECT EXISTS (SELECT 1 FROM made), id, owner, context FROM (SELECT 1) AS one LEFT JOIN (
        SELECT task.id, task.owner, task.context FROM taken JOIN task ON place = taken.task
        WHERE taken.agent = %s AND taken.owner = %b AND message = %b AND digest = %b
    ) AS known ON true"""
_UNRESERVE = """
    DELETE FROM taken WHERE agent = %s AND owner = %b AND message = %b AND digest = %b
        AND task IS NULL AND node = %s"""
_ADMIT = "SELECT * FROM admit(%s, %s::bigint, %b, %b, %s::int, %s::int)"
_UNPLACED = f"""
    WITH open AS (
        SELECT task.agent, task.owner, task.context, place, node, share FROM task
        JOIN context ON (context.agent, context.owner, context.id)
            = (task.agent, task.owner, task.context)
        WHERE {queries.OPEN}
    )
    SELECT agent, owner, context FROM open WHERE node IS NULL AND agent = ANY(%s)
        AND (share IS NULL OR share = ANY(%s))
    GROUP BY agent, owner, context
    ORDER BY (SELECT count(*) FROM open AS placed
        WHERE placed.owner = open.owner AND placed.node IS NOT NULL), min(place)
    LIMIT %s"""  # noqa: S608
