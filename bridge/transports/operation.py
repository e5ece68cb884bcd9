"""The operations of all bindings: parameters in, JSON or a stream out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from aiohttp import web

from bridge.a2a.card import Card
from bridge.a2a.codec import Codec, Operation, Page, Seal
from bridge.a2a.requests import ListParams, SendParams, TaskParams
from bridge.auth.principal import Principal
from bridge.auth.revocations import Hold, Revocations
from bridge.errors import DataLoss, TaskNotFound
from bridge.push.notifier import Push
from bridge.runtime.router import Router
from bridge.runtime.sending.send import Sent
from bridge.store.handle import TaskHandle, durable
from bridge.task.state import Task
from bridge.telemetry.observation import (
    Observation,
    RequestInfo,
    RequestObserver,
    unknown_request,
)
from bridge.transports.json_body import encoded
from bridge.transports.push_notifications import PushOperations
from bridge.transports.stream import KEEP_ALIVE, KeepAlive, Stream, StreamTally, dump_copy

PRINCIPAL = web.RequestKey("principal", Principal)
"""The sender of the request."""
Json = Mapping[str, Any]
Call = Callable[[Codec, Json, "Caller"], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request. `address`: the URL of this agent as the client knows it, without
    /a2a. `retries`: a header shows that the client retries (see negotiation.shows_retry).
    `stays`: the client waits for the result. `info`: facts of the request for observers."""

    address: str
    principal: Principal
    retries: bool = False
    stays: bool = True
    info: RequestInfo = field(default_factory=unknown_request)


@dataclass(frozen=True, slots=True)
class Pending:
    """The pending answer to an accepted send that waits for its task. answer() returns its JSON;
    it is cancelled if the client disconnects."""

    answer: Callable[[], Coroutine[Any, Any, Any]]
    keep_alive: KeepAlive = KEEP_ALIVE


@dataclass(frozen=True, slots=True)
class Answering:
    """How requests are answered. `tally` counts the streams."""

    keep_alive: KeepAlive = KEEP_ALIVE
    tally: StreamTally | None = None


class Operations:
    """The operations that all bindings offer.

    `push` notifies receivers. `extended_card` creates the card for authenticated clients; None
    without authentication. `sign` adds signatures to a 1.0 card. `observers` see each request.
    `revocations` ends streams and sends that wait, when their credential becomes invalid.
    """

    def __init__(
        self,
        tasks: Router,
        push: Push,
        extended_card: Callable[[str], Card] | None,
        answering: Answering,
        sign: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        observers: Sequence[RequestObserver] = (),
        revocations: Revocations | None = None,
    ) -> None:
        self._observers = observers
        self._revocations = revocations or Revocations()
        self._tasks = tasks
        self._pushes = PushOperations(tasks, push)
        self._extended_card = extended_card
        self._sign = sign
        self._keep_alive = answering.keep_alive
        self._tally = answering.tally or StreamTally()
        self._calls: Mapping[Operation, Call] = {
            Operation.SEND: self._send,
            Operation.GET: self._get,
            Operation.LIST: self._list,
            Operation.CANCEL: self._cancel,
            Operation.PUSH_CREATE: _for_principal(self._pushes.create),
            Operation.PUSH_GET: _for_principal(self._pushes.get),
            Operation.PUSH_LIST: _for_principal(self._pushes.list),
            Operation.PUSH_DELETE: _for_principal(self._pushes.delete),
            Operation.EXTENDED_CARD: self._card,
        }

    def held(self, principal: Principal) -> Hold:
        """The context of work for the principal. Raises Unauthenticated when its credential becomes
        invalid."""
        return self._revocations.hold(principal)

    def call(
        self, codec: Codec, operation: Operation, params: Json, caller: Caller
    ) -> Awaitable[Any]:
        """The JSON result of an operation without a stream, or a Pending for a blocking send.
        Raises RequestError."""
        caller.info.subject.operation = operation.value
        answer = self._calls[operation](codec, params, caller)
        if not self._observers:
            return answer
        return _observed(self._observation(codec, operation, caller), answer)

    def _observation(self, codec: Codec, operation: Operation, caller: Caller) -> Observation:
        names = operation.value, codec.version, caller.principal.id
        return Observation(self._observers, caller.info, *names)

    async def stream(
        self,
        codec: Codec,
        operation: Operation,
        params: Json,
        caller: Caller,
        seen: int | None = None,
    ) -> Stream:
        """The stream of an operation of STREAMING. `seen`: the last update that the client has
        received, if it resumes a broken stream. Raises RequestError."""
        caller.info.subject.operation = operation.value
        opened = self._open(codec, operation, params, caller, seen)
        if not self._observers:
            return await opened
        stream: Stream = await _observed(self._observation(codec, operation, caller), opened)
        return stream

    async def _open(
        self, codec: Codec, operation: Operation, params: Json, caller: Caller, seen: int | None
    ) -> Stream:
        quotas, owner = self._tasks.quotas, caller.principal.id
        quotas.check_stream(owner)
        stream = await self._streamed(codec, operation, params, caller, seen)
        listening = partial(self._tasks.listen, stream.handle)
        return replace(
            stream,
            counted=partial(self._counted, owner, caller.info.binding),
            held=partial(self.held, caller.principal),
            listening=listening,
            heartbeat=self._keep_alive.heartbeat,
            binding=caller.info.binding,
            tally=self._tally,
        )

    @contextmanager
    def _counted(self, owner: str, binding: str) -> Iterator[None]:
        """The context of an open stream of a principal."""
        with self._tasks.quotas.stream(owner), self._tally.counted(binding):
            yield

    async def _streamed(
        self, codec: Codec, operation: Operation, params: Json, caller: Caller, seen: int | None
    ) -> Stream:
        if operation is Operation.SUBSCRIBE:
            named = codec.decode_task(params)
            seen = _seen(seen, named.metadata)
            again = seen is not None
            handle = await self._tasks.subscribe(named.task_id, again, caller.principal)
            _note(caller, handle)
            return await self._stream(codec, handle, None, seen)
        asked = replace(_decoded(codec, params, caller), attends=caller.stays)
        config = (
            await self._pushes.check_sent(codec, asked, caller.principal) if asked.push else None
        )
        sent = await self._tasks.send(asked, caller.principal)
        handle = sent.handle
        _note(caller, handle)
        seen = _seen(seen, asked.metadata, asked.message.metadata) if sent.again else None
        stream = await self._stream(
            codec, handle, asked.history_length, seen, ends_on_question=True
        )
        if config:
            await self._pushes.add_sent(codec, config, sent)
        beginning = self._tasks.begin(handle, self._keep_alive.heartbeat)
        return replace(stream, beginning=beginning)

    async def _send(self, codec: Codec, params: Json, caller: Caller) -> Any:
        """JSON, or a Pending."""
        asked = _decoded(codec, params, caller)
        asked = replace(asked, attends=asked.blocking and caller.stays)
        caller.info.subject.waits = asked.blocking
        config = (
            await self._pushes.check_sent(codec, asked, caller.principal) if asked.push else None
        )
        sent = await self._tasks.send(asked, caller.principal)
        _note(caller, sent.handle)
        if config:
            await self._pushes.add_sent(codec, config, sent)
        handle = sent.handle
        task = await handle.whole()  # a strong reference: the task may be evicted when it ends
        if asked.blocking:
            settled = partial(self._settled, codec, asked, caller.principal, sent=sent, task=task)
            return Pending(settled, self._keep_alive)
        handle.show()
        return await _sent(codec, asked, task, handle)

    async def _settled(
        self, codec: Codec, asked: SendParams, principal: Principal, *, sent: Sent, task: Task
    ) -> Any:
        """The result of a blocking send, after its task has ended or asks a question."""
        with (
            self._revocations.hold(principal) as hold,
            self._tasks.listen(sent.handle) as listener,
        ):
            try:
                await self._tasks.settled(sent)
            except asyncio.CancelledError:
                listener.left = not hold.ended
                raise
        return await _sent(codec, asked, task, sent.handle)

    async def _get(self, codec: Codec, params: Json, caller: Caller) -> Any:
        asked = codec.decode_task(params)
        handle = await self._tasks.get(asked.task_id, caller.principal)
        _note(caller, handle)
        return await _whole(codec, asked, handle)

    async def _list(self, codec: Codec, params: Json, caller: Caller) -> Any:
        asked = codec.decode_list(params)
        whole: dict[str, Task] = {}
        handles, page = await self._tasks.list(asked, caller.principal)
        while away := [r for r in handles if r.back and r.task.id not in whole]:
            for handle in away:
                read = handle.whole if asked.include_artifacts else handle.listed
                try:
                    whole[handle.task.id] = await read()
                except (DataLoss, TaskNotFound):  # the other tasks of the page stay available
                    whole[handle.task.id] = handle.task
            handles, page = await self._tasks.list(asked, caller.principal)  # the current page
        tasks = [whole.get(handle.task.id, handle.task) for handle in handles]
        tasks = [task for task in tasks if asked.state in (None, task.state)]  # by now
        encode = partial(_page, codec, asked, page)
        size = sum(handle.size for handle in handles)
        return await durable(await encoded(encode, *tasks, size=size), *handles)

    async def _cancel(self, codec: Codec, params: Json, caller: Caller) -> Any:
        asked = codec.decode_task(params)
        handle = await self._tasks.cancel(asked.task_id, caller.principal)
        _note(caller, handle)
        return await _whole(codec, asked, handle)

    async def _card(self, codec: Codec, params: Json, caller: Caller) -> Any:
        if self._extended_card is None:
            raise codec.no_extended_card("This agent has no extended card.")
        encoded = codec.encode_card(self._extended_card(caller.address))
        return self._sign(encoded) if self._sign and codec.signs_cards else encoded

    async def _stream(
        self,
        codec: Codec,
        handle: TaskHandle,
        history_length: int | None,
        seen: int | None,
        ends_on_question: bool = False,
    ) -> Stream:
        if seen is not None and handle.continues(seen):
            return Stream(codec, handle, None, seen, ends_on_question)
        task = await handle.whole()
        # No await between these lines: the snapshot has all updates up to `after`.
        stream = Stream(codec, handle, b"", handle.log.last, ends_on_question)
        stream.over = stream.ends(handle.task.state)
        reset = seen is not None or handle.renumbered  # the client's copy is not valid
        first = encoded(partial(_first, codec, history_length, reset), task, size=handle.size)
        stream.first = await durable(dump_copy(await first), handle)
        return stream


async def _sent(codec: Codec, asked: SendParams, task: Task, handle: TaskHandle) -> Any:
    encode = partial(codec.encode_sent, history_length=asked.history_length)
    return await durable(await encoded(encode, task, size=handle.size), handle)


async def _whole(codec: Codec, asked: TaskParams, handle: TaskHandle) -> Any:
    encode = partial(codec.encode_task, history_length=asked.history_length)
    return await durable(await encoded(encode, await handle.whole(), size=handle.size), handle)


def _page(codec: Codec, asked: ListParams, page: Page, *tasks: Task, **seal: Seal) -> Json:
    return codec.encode_page(tasks, asked, page, **seal)


def _first(
    codec: Codec, history_length: int | None, reset: bool, task: Task, **seal: Seal
) -> dict[str, Any]:
    """The first item of a stream."""
    item = codec.encode_sent(task, history_length, **seal)
    if reset:
        _mark_reset(item.get("task", item))
    return item


async def _observed(request: Observation, answer: Awaitable[Any]) -> Any:
    """The result of the answer. That of a Pending ends the request when it is there."""
    try:
        found = await answer
    except BaseException as error:
        request.end(error)
        raise
    if isinstance(found, Pending):
        return replace(found, answer=lambda: _observed(request, found.answer()))
    request.end(None)
    return found


def _for_principal(call: Callable[[Codec, Json, Principal], Awaitable[Any]]) -> Call:
    return lambda codec, params, caller: call(codec, params, caller.principal)


def _note(caller: Caller, handle: TaskHandle) -> None:
    """The request is about this task."""
    subject = caller.info.subject
    if caller.info.trace:
        subject.task, subject.agent = handle.task, handle.agent


def _decoded(codec: Codec, params: Json, caller: Caller) -> SendParams:
    asked = codec.decode_send(params)
    caller.info.subject.message = asked.message.id
    resumes = _seen(None, asked.metadata, asked.message.metadata) is not None
    return replace(asked, retries=caller.retries or codec.extended or resumes)


def _seen(header: int | None, *metadata: Json | None) -> int | None:
    """The last update that the client has received: `metadata.bridge.after`, else the header."""
    for one in (one for one in metadata if one):
        bridge = one.get("bridge")
        after = bridge.get("after") if isinstance(bridge, dict) else None
        if isinstance(after, int) and not isinstance(after, bool) and after >= 0:
            return after
    return header


def _mark_reset(task: dict[str, Any]) -> None:
    """Tell the client to replace its copy of the task."""
    metadata = task.get("metadata", {})
    task["metadata"] = {**metadata, "bridge": {**metadata.get("bridge", {}), "reset": True}}
