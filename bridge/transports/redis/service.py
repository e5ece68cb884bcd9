"""One request of Redis over the operations of the server.

A request may be delivered several times, and by several servers. A redelivery finds the entries of
its answer, and otherwise its task by the id and the content of its message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import orjson

from bridge.a2a.codec import STREAMING, Operation
from bridge.a2a.codecs import CODECS
from bridge.auth.principal import Principal
from bridge.auth.token_bucket import RateLimitedLogs
from bridge.errors import (
    DataLoss,
    InvalidRequest,
    ParseError,
    RequestError,
    TaskNotCancelable,
    TooManyRequests,
    Unavailable,
)
from bridge.push.broker import Broker
from bridge.task.transitions import TaskState
from bridge.telemetry.observation import REQUEST, RequestInfo
from bridge.transports.envelope.request import id_of
from bridge.transports.json_body import AT_ONCE, LARGE, dumped, joined
from bridge.transports.operation import Caller, Operations, Pending
from bridge.transports.redis.inbox import RequestEntry, RequestInbox
from bridge.transports.redis.names import SNAPSHOT, UPDATE, ItemId, RedisKeys
from bridge.transports.redis.replies import LastItem, ReplyLimits, ReplyStream
from bridge.transports.redis.request import (
    SENDS,
    EntryCall,
    EntryContent,
    UnusableEntry,
    check_message,
    read_call,
    read_fields,
    state_of,
    task_of,
    with_config_id,
)
from bridge.transports.stream import Batch, Stream

log = logging.getLogger(__name__)
log.addFilter(RateLimitedLogs())

T = TypeVar("T")
MOST_DELIVERIES = 5
"""The delivery with this number is given up if no answer exists yet: such a request may, for
example, end the process of the server."""
FIRST_PAUSE = 0.25  # seconds before the second attempt for a message that must wait
LOST = "The server has lost updates of this task. Read the task with GetTask."


@dataclass(frozen=True, slots=True)
class RedisAgent:
    """The agents of the server. `address`: the URL of the HTTP port, without /a2a.
    `most`: bytes of a payload."""

    operations: Operations
    address: str
    most: int


class Postponed(Exception):
    """The server stops: the next one answers the request."""


class _Overtaken(Exception):
    """Another server has begun the answer."""


class RedisService:
    """Answers the requests of the principal. `stopping`: whether the server stops."""

    def __init__(
        self,
        agent: RedisAgent,
        principal: Principal,
        inbox: RequestInbox,
        broker: Broker,
        *,
        keys: RedisKeys,
        limits: ReplyLimits,
        stopping: Callable[[], bool],
    ) -> None:
        self.agent = agent
        self.principal = principal
        self.inbox = inbox
        self.stopping = stopping
        self._broker = broker
        self._keys = keys
        self._limits = limits

    def reply(self, correlation: str) -> ReplyStream:
        """The answer to the request with this id."""
        key = self._keys.reply(self.principal.id, correlation)
        return ReplyStream(self._broker, key, self._limits)

    async def answer(self, entry: RequestEntry) -> None:
        """Answer the request, and then remove its entry. Raises Postponed."""
        try:
            content = read_fields(entry.fields)
        except UnusableEntry as problem:
            await self.inbox.bury(entry, str(problem))
            if problem.correlation:
                error = CODECS[0].encode_error(problem.error)
                await self.reply(problem.correlation).end(0, _envelope(None, "error", error))
        else:
            reply = self.reply(content.correlation)
            last = await reply.last()
            if not (last and last.ended):
                await _Run(self, entry, content, reply).run(last)
        await self.inbox.finish(entry.id)


class _Run:
    """The work on one request."""

    def __init__(
        self, service: RedisService, entry: RequestEntry, content: EntryContent, reply: ReplyStream
    ) -> None:
        self._service = service
        self._agent = service.agent
        self._operations = service.agent.operations
        self._entry = entry
        self._content = content
        self._reply = reply
        self._codec = CODECS[0]
        self._id: Any = None
        self._number = 0  # of the last item of the answer

    async def run(self, last: LastItem | None) -> None:
        """Write the rest of the answer after the entry `last`. Raises Postponed."""
        self._number = last.id.number if last else 0
        try:
            if last is None and self._entry.deliveries >= MOST_DELIVERIES:
                raise await self._given_up()
            with self._operations.held(self._service.principal):
                await self._serve(last)
            return
        except RequestError as error:
            problem: Exception = error
        except Postponed:
            raise
        except Exception as error:
            log.exception("request failed", extra={"event": "request.failed"})
            problem = error
        encoded = self._codec.encode_error(problem)
        await self._reply.end(self._number, _envelope(self._id, "error", encoded))

    async def _given_up(self) -> RequestError:
        reason = f"{MOST_DELIVERIES - 1} deliveries ended without an answer"
        await self._service.inbox.bury(self._entry, reason)
        log.error("a request is a dead letter", extra={"principal": self._service.principal.id})
        return Unavailable(f"The server gave the request up: {reason}.")

    async def _serve(self, last: LastItem | None) -> None:
        content, agent = self._content, self._agent
        call = await self._read()
        self._codec = call.codec
        check_message(call.operation, call.params)
        info = RequestInfo.named("redis", content.correlation, None, call.traceparent)
        REQUEST.set(replace(info, principal=self._service.principal.id))
        # A redelivery counts as a retry, and a client that reads later has not left.
        caller = Caller(agent.address, self._service.principal, True, stays=False, info=info)
        if call.is_notification:
            await self._notified(call, caller)
        elif call.operation in STREAMING:
            await self._stream(call, caller, last)
        else:
            result = await self._held(call, partial(self._call, call), caller)
            before = b'{"jsonrpc":"2.0","id":%b,"result":' % orjson.dumps(self._id)
            await self._reply.end(0, await joined(before, await dumped(result), b"}"))

    async def _read(self) -> EntryCall:
        """The call. A payload that is none is also a dead letter."""
        content, agent = self._content, self._agent
        try:
            if len(content.payload) <= AT_ONCE:
                body = content.decode(agent.most)
            else:
                loop = asyncio.get_running_loop()
                body = await loop.run_in_executor(LARGE, content.decode, agent.most)
            self._id = id_of(body)
            return read_call(body, content.parameters)
        except (ParseError, InvalidRequest) as error:
            await self._service.inbox.bury(self._entry, str(error))
            raise

    async def _held(
        self, call: EntryCall, attempt: Callable[[Caller], Awaitable[T]], caller: Caller
    ) -> T:
        """The result of an attempt. A message waits until the quota has room for it, or the server
        can write; it has the rights of its principal at that time."""
        pause = FIRST_PAUSE
        while True:
            try:
                return await attempt(replace(caller, principal=self._service.principal))
            except (TooManyRequests, Unavailable) as error:
                if self._service.stopping():
                    raise Postponed from None
                if call.operation not in SENDS:
                    raise
                await asyncio.sleep(min(pause, error.seconds))
                pause *= 2

    # --- requests without a stream -------------------------------------------------------------

    async def _notified(self, call: EntryCall, caller: Caller) -> None:
        """Execute a request without an id. Its answer is an end alone, also after an error."""
        codec, params = call.codec, call.params
        try:
            if call.operation in SENDS:  # a stream does not wait for the end of the task
                begin = partial(self._operations.stream, codec, Operation.STREAM, params)
                await self._held(call, begin, caller)
            elif call.operation not in STREAMING:
                await self._call(call, caller)
        except RequestError as error:
            log.info("a notification failed", extra={"error": str(error)})
        await self._reply.end(0)

    async def _call(self, call: EntryCall, caller: Caller) -> Any:
        codec, operation = call.codec, call.operation
        params = with_config_id(codec, operation, call.params, self._content.correlation)
        try:
            result = await self._operations.call(codec, operation, params, caller)
        except TaskNotCancelable:
            if operation is not Operation.CANCEL or self._entry.deliveries == 1:
                raise
            task = await self._operations.call(codec, Operation.GET, params, caller)
            if task["status"]["state"] != codec.states[TaskState.CANCELED]:
                raise
            return task  # an earlier delivery has canceled it
        return await result.answer() if isinstance(result, Pending) else result

    # --- streams -------------------------------------------------------------------------------

    async def _stream(self, call: EntryCall, caller: Caller, last: LastItem | None) -> None:
        while not self._is_over(call, last):
            stream = await self._held(call, partial(self._open, call, last), caller)
            try:
                await self._follow(stream, last)
                break
            except _Overtaken:
                pass
            except Unavailable as error:  # within the stream: continue it
                if self._service.stopping():
                    raise Postponed from None
                await asyncio.sleep(error.seconds)
            last = await self._reply.last()
            if last and last.ended:
                return
            self._number = last.id.number if last else 0
        await self._reply.end(self._number)

    def _is_over(self, call: EntryCall, last: LastItem | None) -> bool:
        """Whether the entry `last` is the last item of the stream: a direct Message, or a question,
        where the stream of a send ends."""
        if last is None:
            return False
        asks = state_of(last.payload) == call.codec.states[TaskState.INPUT_REQUIRED]
        return task_of(last.payload) is None or (asks and self._ends_on_question(call))

    def _ends_on_question(self, call: EntryCall) -> bool:
        return call.operation is Operation.STREAM

    async def _open(self, call: EntryCall, last: LastItem | None, caller: Caller) -> Stream:
        open_stream = self._operations.stream
        if last is None:
            return await open_stream(call.codec, call.operation, call.params, caller, call.seen)
        named = {"id": task_of(last.payload)}
        stream = await open_stream(call.codec, Operation.SUBSCRIBE, named, caller, last.id.number)
        return replace(stream, ends_on_question=self._ends_on_question(call))

    async def _follow(self, stream: Stream, last: LastItem | None) -> None:
        """Add the items of the stream to the answer. Raises _Overtaken, and Unavailable if the
        store cannot be read."""
        if last and stream.after < last.id.number:
            raise DataLoss(LOST)
        opening = stream.after
        async with aclosing(stream.items(_never)) as batches:
            async for batch in batches:
                items = [(number, self._item(data)) for number, data in batch or ()]
                if items and items[0][0] == opening:
                    await self._begin(*items.pop(0), first=last is None)
                if items:
                    await self._reply.add([(ItemId(n, UPDATE), data) for n, data in items])
                    self._number = items[-1][0]

    async def _begin(self, number: int, payload: bytes, *, first: bool) -> None:
        """Add the whole task."""
        if not first:
            await self._reply.add([(ItemId(number, SNAPSHOT), payload)])
        elif not await self._reply.begin(number, payload):
            raise _Overtaken
        self._number = number

    def _item(self, data: bytes) -> bytes:
        return b'{"jsonrpc":"2.0","id":' + orjson.dumps(self._id) + b',"result":' + data + b"}"


def _envelope(request_id: Any, member: str, value: Any) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": request_id, member: value})


def _never(batch: Batch) -> bool:
    """No item is sent without a wait."""
    return False
