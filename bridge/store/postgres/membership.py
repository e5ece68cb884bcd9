"""This server as one of several: it shows that it lives, and fences servers that do not.

A beat is one statement on a connection of its own. It counts in the row of this incarnation, and
reads the rows of all nodes. Without a good beat the server is soon in doubt (liveness.py): another
one may take its contexts. Nothing here decides about a write; the fence in each commit does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import orjson
import psycopg

from bridge.store.changes import ContextKey, Fence
from bridge.store.cluster import Take
from bridge.store.postgres.connect import Connection, DatabaseAddress, cut, limited
from bridge.store.postgres.liveness import (
    INTERVAL,
    MOST_GAP,
    VALID,
    Beat,
    NodeLease,
    Observer,
    clock,
)

log = logging.getLogger(__name__)

DOUBT = "this server has not reached the database for a while: another one may take its contexts"


class Host(Protocol):
    """The parts of the server that hold the contexts. All calls come from the event loop."""

    def fenced(self, copied: bool) -> None:
        """This incarnation has ended: at once, publish nothing more, and write nothing. `copied`:
        another server has taken the identity, in a copy of the state folder."""

    def renewed(self, until: float) -> None:
        """The lease is valid up to this time of CLOCK_BOOTTIME."""

    def doubt(self, doubtful: bool) -> None:
        """The lease has ended, or is valid again."""

    async def adopt(self, key: ContextKey, take: Take) -> None:
        """Continue a context of a lost server, which `take` takes. Raises Unavailable."""

    async def finish(self, key: ContextKey, take: Take) -> Fence | None:
        """The same, but end its open tasks, because only the lost server has its directory. Returns
        the fence after the commit."""


class NoHost:
    """A server without contexts."""

    def fenced(self, copied: bool) -> None: ...

    def renewed(self, until: float) -> None: ...

    def doubt(self, doubtful: bool) -> None: ...

    async def adopt(self, key: ContextKey, take: Take) -> None: ...

    async def finish(self, key: ContextKey, take: Take) -> Fence | None: ...


@dataclass(frozen=True, slots=True)
class Terms:
    """The facts that a node tells the others. `name`: for people; `version`: of the bridge.
    `lease` and `grace` are seconds. `agents`: the offers of its
    agents, by their ids; `slots`: for live sessions. `config`: a digest of the settings that all
    nodes must share."""

    name: str = ""
    version: str = ""
    lease: float = 15.0
    grace: float = 120.0
    shares: Sequence[str] = ()
    agents: Mapping[str, Any] = field(default_factory=dict)
    slots: int = 0
    config: bytes = b""


TERMS = Terms()


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a node: up, draining, away or fenced. `age`: seconds since this node has seen
    its newest beat; None before it has seen one."""

    state: str
    age: float | None


@dataclass(slots=True)
class Membership:
    """`fence` is called when this incarnation is fenced. `host` is set before start()."""

    address: DatabaseAddress
    node: str
    terms: Terms
    fence: Callable[[], None]
    host: Host = field(default_factory=NoHost)
    lost: Sequence[Beat] = ()  # the fenced nodes, as the last beat has shown them
    beaten: asyncio.Event = field(default_factory=asyncio.Event)  # after each good beat
    doubtful: bool = False
    epoch: int = 0
    lease: NodeLease = field(init=False)
    observer: Observer = field(init=False)
    _connection: Connection | None = None
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _told: set[str] = field(default_factory=set)  # nodes with other settings

    def __post_init__(self) -> None:
        self.lease = NodeLease(self.terms.lease)
        self.observer = Observer(self.terms.lease)

    @property
    def problem(self) -> str | None:
        return DOUBT if self.doubtful else None

    def standing(self, node: str, state: str, connected: bool) -> Standing:
        """`state` and `connected`: as a read has shown them."""
        age = self.observer.age(node, clock())
        away = not connected or (age is not None and age > VALID * self.terms.lease)
        if node == self.node:
            away = self.doubtful
        return Standing("away" if away and state != "fenced" else state, age)

    def start(self, epoch: int, entered: float) -> None:
        """Beat as this incarnation. `entered`: a time of clock() before it began."""
        self.epoch = epoch
        self.lease.renewed(entered)
        self.host.renewed(self.lease.until)
        self._tasks = [asyncio.create_task(one()) for one in (self._beat, self._watch)]

    async def close(self) -> None:
        if self._connection:
            cut(self._connection)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await self._drop()

    # --- the beat ------------------------------------------------------------------------------

    async def _beat(self) -> None:
        pause, loop = INTERVAL * self.terms.lease, asyncio.get_running_loop()
        described = False
        while True:
            begun = loop.time()
            try:
                if not described:
                    await self._describe()
                    described = True
                if not await self._attempt():
                    self.fence()
                    return
                for suspect in self.observer.suspects(clock()):
                    if suspect.node != self.node:
                        with contextlib.suppress(psycopg.errors.QueryCanceled):  # a commit hangs
                            await self._fence(suspect)
            except (psycopg.Error, OSError, TimeoutError) as error:
                self.observer.failed()
                await self._drop()
                log.debug("no beat", extra={"error": error})
            await asyncio.sleep(max(0.0, begun + pause - loop.time()))

    async def _connect(self) -> Connection:
        """A connection whose statements end in the database, too. It is the limit of the caller
        that counts: the driver may wait for ever."""
        if self._connection is None:
            seconds = INTERVAL * self.terms.lease
            async with asyncio.timeout(seconds):  # wait_for() could lose the connection
                self._connection = await self.address.connect()
            most = f"SET statement_timeout = {int(1000 * seconds)}"
            with limited(self._connection, seconds):
                await self._connection.execute(most.encode())
        return self._connection

    async def _describe(self) -> None:
        connection, terms = await self._connect(), self.terms
        with limited(connection, INTERVAL * terms.lease):
            agents = orjson.dumps([*terms.agents]).decode()
            offers = orjson.dumps(terms.agents).decode()
            described = ([*terms.shares], terms.slots, terms.config, agents, offers)
            values = (*described, self.node, self.epoch)
            await connection.execute(_DESCRIBE, values)

    async def _attempt(self) -> bool:
        """One beat. False: this incarnation is fenced."""
        connection = await self._connect()
        started = clock()
        with limited(connection, INTERVAL * self.terms.lease):
            found = await connection.execute(_BEAT, (self.node, self.epoch), prepare=True)
            rows = await found.fetchall()
        ended = clock()
        if not rows or not rows[0][0]:
            return False
        self.lease.renewed(started)
        beats = [
            Beat(node, epoch, beat, state == "fenced") for _, node, epoch, beat, state, _ in rows
        ]
        self.observer.observed(started, ended, beats)
        self.lost = self.observer.fenced()
        self._compare([(node, config) for _, node, _, _, _, config in rows])
        if self.lease.is_valid(ended):
            self.host.renewed(self.lease.until)
            self._settle(False)
        self.beaten.set()
        return True

    def _compare(self, configs: Sequence[tuple[str, bytes | None]]) -> None:
        others = {node for node, one in configs if one not in (None, self.terms.config)}
        for node in sorted(others - self._told):
            text = "another server has other settings (agents, tokens, rules or BRIDGE_LEASE_MS)"
            log.warning(text, extra={"node": node})
        self._told = others

    async def _fence(self, suspect: Beat) -> None:
        """End the incarnation, if it has not counted further. Waits for its commits under way."""
        connection = await self._connect()
        values = (suspect.node, suspect.epoch, suspect.beat)
        with limited(connection, INTERVAL * self.terms.lease):
            found = await connection.execute(_FENCE, values)
        if found.rowcount:
            log.warning("a server is lost: it is fenced", extra={"node": suspect.node})
            self.lost = [*self.lost, replace(suspect, epoch=-suspect.epoch, fenced=True)]

    # --- doubt ---------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Notice the end of the lease, also if a beat hangs."""
        while True:
            left = self.lease.until - clock()
            if left <= 0:
                self._settle(True)
            await asyncio.sleep(max(left, MOST_GAP * INTERVAL * self.terms.lease))

    def _settle(self, doubtful: bool) -> None:
        if doubtful != self.doubtful:
            self.doubtful = doubtful
            log.warning(DOUBT if doubtful else "the lease of this server is valid again")
            self.host.doubt(doubtful)

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection:
            with contextlib.suppress(psycopg.Error, OSError):
                await connection.close()


_DESCRIBE = b"""
    UPDATE node SET shares = %s, slots = %s, config = %b, agents = %s::jsonb, offers = %s::jsonb
    WHERE id = %s AND epoch = %s"""
_BEAT = b"""
    WITH mine AS (
        UPDATE node SET beat = beat + 1, seen = now()
        WHERE id = %s AND epoch = %s AND state <> 'fenced' RETURNING id
    ) SELECT (SELECT count(*) FROM mine), id, epoch, beat, state, config FROM node"""
_FENCE = b"""
    UPDATE node SET epoch = -epoch, state = 'fenced'
    WHERE id = %s AND epoch = %s AND beat = %s AND state <> 'fenced'"""
