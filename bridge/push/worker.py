"""The worker that sends the notifications of servers with BRIDGE_PUSH_RELAY=redis. Needs the extra
`redis`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from redis.exceptions import ResponseError

from bridge.push import egress
from bridge.push.broker import Broker, pause
from bridge.push.jobs import JOB, OK, RESULT, STATUS, TAG, JobKeys, JobSeal, PushJob, UnreadableJob
from bridge.push.signature import signed
from bridge.store.redis_address import ANSWER_WITHIN, RedisAddress

log = logging.getLogger(__name__)

AT_ONCE = 8  # jobs of one worker
WAIT = 1.0  # seconds for which a read waits for a job; the longest delay of a stop
MOST_DONE = 10_000  # outcomes for one server, about
Fields = Mapping[bytes, bytes]
Taken = tuple[bytes, Fields, float]
"""The id and the fields of a job, and when this process has asked for it, by the clock of the event
loop."""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """`prefix`: of all keys. `keys`: see JobSeal. `lease`: seconds after which another worker takes
    a job; `timeout`: seconds of a request, which is shorter. `allow_private`: see egress.py.
    `at_once`: jobs at once."""

    prefix: str
    keys: str
    lease: float = 60.0
    timeout: float = egress.TIMEOUT
    allow_private: bool = False
    at_once: int = AT_ONCE


class PushWorker:
    """Sends jobs until stop(). Raises ConfigurationError for invalid keys."""

    def __init__(self, address: RedisAddress, config: WorkerConfig) -> None:
        self.shown = address.shown
        self._config = config
        self._keys = JobKeys(config.prefix)
        self._seal = JobSeal(config.keys)
        self._stopping = asyncio.Event()
        self._broker = Broker(address)
        self._counts: Counter[str] = Counter()
        self._in_hand = 0

    def stop(self) -> None:
        """Take no more jobs. Those in hand are finished."""
        self._stopping.set()

    async def run(self) -> None:
        """Send jobs. Returns after stop(), when the jobs in hand are finished."""
        session = egress.open_session(
            allow_private=self._config.allow_private, timeout=self._config.timeout
        )
        async with session:
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(self._config.at_once):
                        group.create_task(self._work(session))
            finally:
                await self._broker.close()

    def metrics(self) -> str:
        """The counters in the text format of Prometheus."""
        name = "bridge_push_deliveries_total"
        counts = [(one, self._counts[one]) for one in ("delivered", "retry", "dead")]
        return "".join(
            [
                f"# HELP {name} Attempts to send a notification, by their outcome.\n",
                f"# TYPE {name} counter\n",
                *(f'{name}{{outcome="{outcome}"}} {count}\n' for outcome, count in counts),
                "# HELP bridge_push_queue Notifications that this worker sends now.\n",
                "# TYPE bridge_push_queue gauge\n",
                f"bridge_push_queue {self._in_hand}\n",
            ]
        )

    async def _work(self, session: aiohttp.ClientSession) -> None:
        loop = asyncio.get_running_loop()
        consumer = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        reader, due, failures = self._broker.reader(), 0.0, 0
        while not self._stopping.is_set():
            claims = loop.time() >= due
            try:
                found = await self._unless_stopped(self._next(reader, consumer, claims=claims))
            except ResponseError as error:  # no server has made the group yet
                failures += 1
                log.info("no jobs", extra={"redis": self.shown, "error": str(error)})
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause(failures)):
                        await self._stopping.wait()
                continue
            failures = 0
            due = loop.time() + self._config.lease / 2 if claims and not found else due
            if found:
                await self._send(session, found)

    async def _unless_stopped(self, reading: Any) -> Taken | None:
        """The job. After stop() Redis still has time to answer: a job that no worker receives
        would wait for its lease."""
        read = asyncio.ensure_future(reading)
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([read, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not read.done():
                await asyncio.wait([read], timeout=2 * WAIT)
            return await read if read.done() else None
        finally:
            stopping.cancel()
            read.cancel()

    async def _next(self, reader: Any, consumer: str, *, claims: bool) -> Taken | None:
        """The next job. With `claims`, first one whose worker has let its lease expire."""
        jobs, group, lease = self._keys.jobs, self._keys.group, self._config.lease
        loop = asyncio.get_running_loop()

        async def claim(client: Any) -> Taken | None:
            asked, start = loop.time(), b"0-0"
            while True:
                start, found, *_ = await client.xautoclaim(
                    jobs, group, consumer, int(1000 * lease), start, count=1
                )
                if taken := next(((*one, asked) for one in found if one[1]), None):
                    return taken
                if start == b"0-0":
                    return None

        async def read(client: Any) -> Taken | None:
            asked, block = loop.time(), int(1000 * min(WAIT, lease / 4))
            found = await client.xreadgroup(group, consumer, {jobs: ">"}, count=1, block=block)
            return next(((*one, asked) for _, entries in found for one in entries), None)

        if claims and (taken := await self._broker.do(claim)):
            return taken
        return await self._broker.do(read, client=reader, within=WAIT + ANSWER_WITHIN)

    async def _send(self, session: aiohttp.ClientSession, taken: Taken) -> None:
        entry, fields, asked = taken
        try:
            job = self._seal.open(fields)
        except UnreadableJob:  # another worker may have its key
            log.error("a job cannot be decrypted", extra={"entry": entry.decode()})
            return
        if asyncio.get_running_loop().time() - asked > self._config.lease / 2:
            return  # this process stood still: another worker has the job, or gets it
        self._in_hand += 1
        try:
            result, status = await self._post(session, job)
            await self._report(job, entry, fields, result=result, status=status)
        finally:
            self._in_hand -= 1

    async def _post(self, session: aiohttp.ClientSession, job: PushJob) -> tuple[bytes, int]:
        """OK or the class of the failure, and the status."""
        try:
            headers = signed(job.headers, job.body, job.secret)
            status = await egress.post(session, job.url, job.body, headers)
        except egress.RequestFailed as failure:
            error = str(failure)
            self._counts["dead" if error == egress.REFUSED else "retry"] += 1
            return error.encode(), 0
        if 200 <= status < 300:
            self._counts["delivered"] += 1
        else:
            self._counts["dead" if egress.is_final(status) else "retry"] += 1
        return OK, status

    async def _report(
        self, job: PushJob, entry: bytes, fields: Fields, *, result: bytes, status: int
    ) -> None:
        """Tell the server the outcome, and remove the job."""
        outcome = {
            JOB: fields[JOB],
            TAG: fields.get(TAG, b""),
            RESULT: result,
            STATUS: str(status).encode(),
        }

        async def add(client: Any) -> None:
            done = self._keys.done(job.server)
            await client.xadd(done, outcome, maxlen=MOST_DONE, approximate=True)
            pipeline = client.pipeline(transaction=False)
            pipeline.xack(self._keys.jobs, self._keys.group, entry)
            pipeline.xdel(self._keys.jobs, entry)
            await pipeline.execute()

        await self._broker.do(add, adds=True)
