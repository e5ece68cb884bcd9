"""Notifications through Redis to workers that send them. The store stays the truth: each config has
at most one notification here, and its loop waits for the outcome. What Redis loses is handed over
again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from bridge.push.broker import BLOCK, Broker, checked, make_group, pause
from bridge.push.egress import RequestFailed
from bridge.push.jobs import OK, RESULT, STATUS, JobKey, JobKeys, JobSeal, PushJob, key_of
from bridge.store.redis_address import ANSWER_WITHIN, REDIS_ERRORS, RedisAddress, cause_of

log = logging.getLogger(__name__)

LEASES = 3  # without an outcome, after which a job is handed over again
MOST_DEAD = 10_000  # dead letters, about
MOST_OUTCOMES = 10_000  # of an earlier process that are remembered
MOST_DELIVERIES = 5  # of one job to workers
PAGE = 500  # entries of one read
QUIET = 60.0  # seconds without a worker after which /health reports it
FORGET = 3600.0  # seconds after which a worker that has gone is removed from the group
WORKER_FAILED = "worker failed"


@dataclass(frozen=True, slots=True)
class RelayConfig:
    """`prefix`: of all keys. `server`: a name of this server that no other server has, and the same
    after a restart. `keys`: see JobSeal. `lease`: seconds after which another worker takes a job.
    `quiet`: seconds without a worker after which there is a problem."""

    prefix: str
    server: str
    keys: str
    lease: float = 60.0
    quiet: float = QUIET


@dataclass(slots=True)
class _Outstanding:
    """A job that waits for its outcome. `entry`: its id in Redis; `since`: when it was handed
    over, by the clock of the event loop."""

    fields: Mapping[bytes, bytes]
    outcome: asyncio.Future[Mapping[bytes, bytes]]
    since: float
    entry: bytes = b""


class RedisRelay:
    """Sends through workers. Raises ConfigurationError for invalid keys."""

    def __init__(self, address: RedisAddress, config: RelayConfig) -> None:
        self._seal = JobSeal(config.keys)
        self._broker = Broker(address)
        self._config = config
        self._keys = JobKeys(config.prefix)
        self._waiting: dict[JobKey, _Outstanding] = {}
        self._adopted: dict[JobKey, bytes] = {}  # entries of an earlier process
        self._outcomes: OrderedDict[JobKey, Mapping[bytes, bytes]] = OrderedDict()
        self._ready = asyncio.Event()
        self._leaving = False
        self._alone = False
        self._tasks: list[asyncio.Task[None]] = []
        self._others: set[asyncio.Task[None]] = set()

    @property
    def problem(self) -> str | None:
        """The problem for /health."""
        if self._broker.problem or not self._alone:
            return self._broker.problem
        return f"push: no worker for {self._config.quiet:g} s, while notifications wait"

    def start(self) -> None:
        """Begin to listen. Requires a running event loop."""
        self._tasks = [asyncio.create_task(one()) for one in (self._listen, self._watch)]

    def leave(self) -> None:
        """Keep jobs in Redis when the wait for them is cancelled from now on."""
        self._leaving = True

    async def close(self) -> None:
        """Stop. Workers finish the jobs in hand; the next server finds the outcomes."""
        tasks = [*self._tasks, *self._others]
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._broker.close()

    async def post(
        self, job: str, url: str, body: bytes, headers: Mapping[str, str], secret: str | None = None
    ) -> int:
        """Let a worker sign and send `body`. Returns the status of the answer. Raises RequestFailed
        without an answer. `job`: TASK/CONFIG/NUMBER/ATTEMPT."""
        await self._ready.wait()
        server = self._config.server
        fields = self._seal.seal(PushJob(job, server, url, headers, body=body, secret=secret))
        key = key_of(fields)
        if known := self._outcomes.pop(key, None):
            return _status(known)
        loop = asyncio.get_running_loop()
        one = self._waiting[key] = _Outstanding(fields, loop.create_future(), loop.time())
        try:
            one.entry = self._adopted.pop(key, b"") or await self._hand_over(one)
            while not one.outcome.done():
                await asyncio.wait([one.outcome], timeout=LEASES * self._config.lease)
                if not one.outcome.done():
                    await self._hand_over_again(one)
            return _status(one.outcome.result())
        except asyncio.CancelledError:
            if one.entry and not self._leaving:
                self._in_background(self._remove(one.entry))
            raise
        finally:
            del self._waiting[key]

    def bury(self, facts: Mapping[str, str]) -> None:
        """Keep a notification that gets no further attempt among the dead letters."""

        async def add(client: Any) -> None:
            await client.xadd(self._keys.dead, dict(facts), maxlen=MOST_DEAD, approximate=True)

        self._in_background(self._broker.do(add, adds=True))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)

    # --- jobs ----------------------------------------------------------------------------------

    async def _hand_over(self, one: _Outstanding) -> bytes:
        """Add the job, and return its entry. An attempt after a lost answer looks for the job
        first."""
        tried = False

        async def add(client: Any) -> bytes:
            nonlocal tried
            if tried and (found := (await self._find(client)).get(key_of(one.fields))):
                return found
            tried = True
            pipeline = client.pipeline(transaction=False)
            pipeline.xgroup_create(self._keys.jobs, self._keys.group, id="0", mkstream=True)
            pipeline.xadd(self._keys.jobs, dict(one.fields))
            group, entry = await pipeline.execute(raise_on_error=False)
            checked([entry])
            if not str(group).startswith("BUSYGROUP"):  # it is new: Redis has lost its content
                checked([group])
            return bytes(entry)

        return await self._broker.do(add, adds=True)

    async def _hand_over_again(self, one: _Outstanding) -> None:
        """Replace the entry of the job, unless a worker has it."""

        async def held(client: Any) -> bool:
            return bool(await self._row(client, one.entry))

        try:
            if await self._broker.do(held):
                return
        except ResponseError:  # Redis has lost its content
            pass
        await self._remove(one.entry)
        log.info("a notification is handed over again", extra={"job": one.fields[b"job"].decode()})
        one.entry = await self._hand_over(one)

    async def _row(self, client: Any, entry: bytes) -> Any:
        """The entry in the list of those that workers have; None if no worker has it."""
        jobs, group = self._keys.jobs, self._keys.group
        rows = await client.xpending_range(jobs, group, entry, entry, 1)
        return rows[0] if rows else None

    async def _remove(self, entry: bytes) -> None:
        async def remove(client: Any) -> None:
            pipeline = client.pipeline()
            pipeline.xack(self._keys.jobs, self._keys.group, entry)
            pipeline.xdel(self._keys.jobs, entry)
            await pipeline.execute()

        await self._broker.do(remove)

    async def _find(self, client: Any) -> dict[JobKey, bytes]:
        """The entries of all jobs by their keys."""
        found, least = dict[JobKey, bytes](), "-"
        while True:
            entries = await client.xrange(self._keys.jobs, min=least, count=PAGE)
            found |= {key_of(fields): entry for entry, fields in entries}
            if len(entries) < PAGE:
                return found
            least = f"({entries[-1][0].decode()}"

    # --- outcomes ------------------------------------------------------------------------------

    async def _listen(self) -> None:
        """Read outcomes. Those of an earlier process come first, then its jobs are found."""
        failures, last = 0, b"0"
        client = self._broker.reader()
        stream = self._keys.done(self._config.server)

        async def read(client: Any) -> Any:
            block = int(1000 * BLOCK) if self._ready.is_set() else None
            return await client.xread({stream: last}, count=PAGE, block=block)

        while True:
            try:
                found = await self._broker.do(read, client=client, within=BLOCK + ANSWER_WITHIN)
                for entry, fields in (one for _, entries in found for one in entries):
                    last = entry
                    self._take(fields)
                if not found and not self._ready.is_set():
                    await self._prepare()
            except ResponseError as error:
                failures += 1
                log.error("cannot read the outcomes of pushes", extra={"error": str(error)})
                await asyncio.sleep(pause(failures))

    async def _prepare(self) -> None:
        jobs, group = self._keys.jobs, self._keys.group
        await self._broker.do(lambda client: make_group(client, jobs, group), adds=True)
        self._adopted = await self._broker.do(self._find)
        self._ready.set()

    def _take(self, fields: Mapping[bytes, bytes]) -> None:
        key = key_of(fields)
        one = self._waiting.get(key)
        if one is None:
            self._outcomes[key] = fields
            if len(self._outcomes) > MOST_OUTCOMES:
                self._outcomes.popitem(last=False)
        elif not one.outcome.done():
            one.outcome.set_result(fields)

    # --- workers -------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Look for workers while jobs wait."""
        while True:
            await asyncio.sleep(min(self._config.quiet, self._config.lease) / 4)
            oldest = min((one.since for one in self._waiting.values()), default=None)
            if oldest is None:
                self._alone = False
                continue
            try:
                quiet = await self._broker.once(self._look)
            except REDIS_ERRORS as error:
                log.debug("no figures of workers", extra={"error": cause_of(error)})
                continue
            waited = asyncio.get_running_loop().time() - oldest
            alone = min(quiet, waited) >= self._config.quiet
            if alone and not self._alone:
                log.error("no push worker takes notifications", extra={"seconds": round(waited)})
            self._alone = alone

    async def _look(self, client: Any) -> float:
        """The seconds since a worker has shown life. Forgets workers that have gone, and fails jobs
        that workers have taken too often."""
        quiet, jobs, group = float("inf"), self._keys.jobs, self._keys.group
        for one in await client.xinfo_consumers(jobs, group):
            idle = one["idle"] / 1000
            quiet = min(quiet, idle)
            if idle > FORGET and not one["pending"]:
                await client.xgroup_delconsumer(jobs, group, one["name"])
        for waiting in [*self._waiting.values()]:
            row = await self._row(client, waiting.entry) if waiting.entry else None
            if row and row["times_delivered"] > MOST_DELIVERIES and not waiting.outcome.done():
                waiting.outcome.set_result({RESULT: WORKER_FAILED.encode()})
                self._in_background(self._remove(waiting.entry))
        return quiet


def _status(outcome: Mapping[bytes, bytes]) -> int:
    """The status of an outcome. Raises RequestFailed."""
    result = outcome.get(RESULT, OK)
    if result != OK:
        raise RequestFailed(result.decode("ascii", "replace")[:100])
    return int(outcome.get(STATUS, b"0"))
