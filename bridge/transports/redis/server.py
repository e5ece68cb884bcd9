"""The requests of all principals through Redis."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from redis.exceptions import ResponseError

from bridge.auth.principal import Principal
from bridge.auth.quotas import Quotas
from bridge.errors import ConfigurationError, Unauthenticated
from bridge.push.broker import Broker, pause
from bridge.store.redis_address import REDIS_ERRORS, RedisAddress, cause_of
from bridge.transports.operation import Operations
from bridge.transports.redis.inbox import RequestEntry, RequestInbox
from bridge.transports.redis.names import RedisKeys
from bridge.transports.redis.owner import TTL, Ownership
from bridge.transports.redis.replies import ReplyLimits
from bridge.transports.redis.request import UnusableEntry, read_fields
from bridge.transports.redis.service import Postponed, RedisAgent, RedisService

log = logging.getLogger(__name__)

CONNECTIONS = 8  # for answers, besides one for each principal
MOST_BYTES = 32 * 1024 * 1024  # of a payload
MOST_AT_ONCE = 100  # requests of a principal without a quota of streams


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisConfig:
    """`prefix`: of all keys. `identity`: the id of the store; `consumer`: a name of this server
    that no other server has, and the same after a restart. `claim`: seconds without a sign of life
    of a server after which another one takes its requests. `ttl`: seconds of the owner key."""

    prefix: str
    identity: str
    consumer: str
    claim: float = 60.0
    replies: ReplyLimits = field(default_factory=ReplyLimits)
    ttl: float = TTL


class RedisTransport:
    """Reads requests from serve() on."""

    def __init__(self, address: RedisAddress, config: RedisConfig) -> None:
        self._config = config
        self._keys = RedisKeys(config.prefix)
        self._broker = Broker(address, CONNECTIONS)
        self._owner = Ownership(self._broker, self._keys.owner, config.identity, config.ttl)
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._mailboxes: dict[str, _Mailbox] = {}  # by principal, also of earlier ones
        self.shown = address.shown

    @property
    def problem(self) -> str | None:
        """The problem for /health."""
        return self._broker.problem or self._owner.problem

    async def claim(self) -> None:
        """Claim the prefix, if Redis answers now. Raises ConfigurationError if another store has
        it."""
        try:
            await self._broker.once(self._owner.claim)
        except REDIS_ERRORS as error:
            facts = {"redis": self.shown, "error": cause_of(error)}
            log.warning("Redis is not available", extra=facts)
        if self._owner.other is not None:
            await self._broker.close()
            prefix, ttl = self._config.prefix, self._config.ttl
            raise ConfigurationError(
                f"BRIDGE_REDIS_PREFIX={prefix}: a server with another store uses these keys of "
                f"{self.shown}. Choose another prefix. The claim of a server that was killed "
                f"expires within {ttl:g} s."
            )

    def serve(
        self,
        operations: Operations,
        address: str,
        quotas: Quotas,
        principals: Mapping[str, Principal],
        *,
        most: int = MOST_BYTES,
    ) -> None:
        """Answer the requests of these principals, by name, as soon as Redis answers. A later call
        changes them; answers of the others end with their credentials. `address`: the URL of the
        HTTP port, without /a2a; `most`: bytes of a payload."""
        if self._stopping:
            return
        if not self._tasks:
            self._tasks.append(asyncio.create_task(self._owner.hold()))
        agent = RedisAgent(operations, address, most)
        for name, principal in principals.items():
            if name not in self._mailboxes:
                self._open(principal, agent, quotas)
        for name, mailbox in self._mailboxes.items():
            mailbox.serve(principals.get(name), agent)

    def _open(self, principal: Principal, agent: RedisAgent, quotas: Quotas) -> None:
        inbox = RequestInbox(
            self._broker, self._keys, principal.id, self._config.consumer, self._config.claim
        )
        service = RedisService(
            agent,
            principal,
            inbox,
            self._broker,
            keys=self._keys,
            limits=self._config.replies,
            stopping=lambda: self._stopping,
        )
        mailbox = _Mailbox(service, self._owner, self._config, quotas)
        self._mailboxes[principal.id] = mailbox
        self._tasks.append(asyncio.create_task(mailbox.keep()))

    async def drain(self) -> None:
        """Read no more requests; those that were read continue."""
        self._stopping = True
        await _cancelled([one.reader for one in self._mailboxes.values() if one.reader])

    async def stop(self, grace: float) -> None:
        """Wait up to `grace` seconds for answers that end now. The others stay pending for the next
        server."""
        await self.drain()
        runs = [run for mailbox in self._mailboxes.values() for run in mailbox.runs.values()]
        if runs:
            await asyncio.wait(runs, timeout=grace)
        await _cancelled([*self._tasks, *runs])
        with contextlib.suppress(*REDIS_ERRORS):
            await self._owner.release()
        await self._broker.close()


async def _cancelled(tasks: Iterable[asyncio.Task[None]]) -> None:
    tasks = [*tasks]
    for one in tasks:
        one.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _Mailbox:
    """The requests of one principal: at once as many as its quota of streams. `reader`: the task
    that takes them, from serve() on."""

    def __init__(
        self, service: RedisService, owner: Ownership, config: RedisConfig, quotas: Quotas
    ) -> None:
        self._service = service
        self._inbox = service.inbox
        self._owner = owner
        self._config = config
        self._quotas = quotas
        self._served: Principal | None = None
        self._room = asyncio.Event()
        self._losses = 0  # of connections, at the last look at entries that it has taken
        self._answering: set[str] = set()  # ids of requests
        self.runs: dict[bytes, asyncio.Task[None]] = {}
        self.reader: asyncio.Task[None] | None = None

    def serve(self, principal: Principal | None, agent: RedisAgent) -> None:
        """Use these from the next request on. Without a principal, requests are not read."""
        self._service.agent = agent
        self._room.set()  # the quota may be another one
        before, self._served = self._served, principal
        if _rights(principal) != _rights(before):
            self._service.principal = principal or self._service.principal
            self.reader = asyncio.create_task(self._read_as(principal, self.reader))

    async def _read_as(
        self, principal: Principal | None, earlier: asyncio.Task[None] | None
    ) -> None:
        """Take requests while the credential of the principal is valid."""
        if earlier:
            await _cancelled([earlier])
        if principal is None:
            return
        try:
            with self._service.agent.operations.held(principal):
                await self._take_all()
        except Unauthenticated:
            log.info("requests are not read any more", extra={"principal": principal.id})
        finally:
            await self._inbox.leave()

    async def _take_all(self) -> None:
        """Take requests, until this call is cancelled. After a loss of the stream, it
        begins again."""
        failures = 0
        while True:
            try:
                await self._read()
            except ResponseError as error:  # no such group: Redis has lost its content
                failures += 1
                facts = {"principal": self._inbox.name, "error": str(error)}
                log.warning("the stream of requests begins again", extra=facts)
                await asyncio.sleep(pause(failures))

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        await self._owner.wait()
        await self._inbox.prepare()
        await self._resume()
        due = loop.time()
        while True:
            await self._owner.wait()
            while (room := self._room_now()) <= 0:
                self._room.clear()
                await self._room.wait()
            if self._losses != self._inbox.losses:
                await self._resume()
            elif loop.time() >= due:
                due = loop.time() + self._config.claim / 2
                self._begin(await self._inbox.abandoned(room))
            else:
                self._begin(await self._inbox.take(room))

    def _room_now(self) -> int:
        """The number of requests that may begin."""
        return (self._quotas.of(self._inbox.name).streams or MOST_AT_ONCE) - len(self.runs)

    async def _resume(self) -> None:
        """Begin what this server has taken and does not work on."""
        self._losses = self._inbox.losses
        self._begin(await self._inbox.own(self.runs))

    def _begin(self, entries: Sequence[RequestEntry]) -> None:
        for entry in entries:
            if entry.id not in self.runs:
                run = self.runs[entry.id] = asyncio.create_task(self._run(entry))
                run.add_done_callback(partial(self._ended, entry.id))

    async def _run(self, entry: RequestEntry) -> None:
        correlation = _correlation(entry)
        if correlation in self._answering:  # the client has sent the request twice
            return await self._inbox.finish(entry.id)
        self._answering.add(correlation)
        try:
            await self._service.answer(entry)
        except Postponed:
            pass
        finally:
            self._answering.remove(correlation)

    def _ended(self, entry: bytes, run: asyncio.Task[None]) -> None:
        self.runs.pop(entry, None)
        self._room.set()
        if not run.cancelled() and (error := run.exception()):
            facts = {"principal": self._inbox.name, "error": str(error)}
            log.error("a request through Redis stays without an answer", extra=facts)

    async def keep(self) -> None:
        """Show that this server works on its requests, until this call is cancelled."""
        while True:
            await asyncio.sleep(self._config.claim / 3)
            replies = [self._service.reply(one).key for one in self._answering]
            try:
                lost = await self._inbox.keep([*self.runs], replies, self._config.replies.ttl)
            except ResponseError:  # no such group: read() makes it
                continue
            for entry in lost:  # another server has taken it
                if run := self.runs.get(entry):
                    run.cancel()


def _rights(principal: Principal | None) -> tuple[Principal, float | None] | None:
    """All that a change of the configuration may change."""
    return (principal, principal.expires) if principal else None


def _correlation(entry: RequestEntry) -> str:
    """The id of the request; that of the entry, if it has no valid one."""
    try:
        return read_fields(entry.fields).correlation
    except UnusableEntry:
        return entry.id.decode()
