"""Operations as every binding needs them: decoded parameters in, JSON or a stream out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from bridge.a2a import Codec, Operation
from bridge.a2a.card import Card
from bridge.errors import UnsupportedOperation
from bridge.log import Entry
from bridge.manager import TaskManager
from bridge.store.memory import Record
from bridge.task import StatusUpdate, TaskState

Json = Mapping[str, Any]
Call = Callable[[Codec, Json, "Caller"], Awaitable[Json]]

HEARTBEAT = 3.0  # seconds; the official Python client gives up after 5 s of silence


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: `address` is what they put before /a2a in order to reach this agent."""

    address: str


@dataclass(frozen=True, slots=True)
class Stream:
    """A task to be told about from update `after` on. `first` is its state at that update.

    The stream of a send ends when the agent asks a question, since the answer is another send;
    that of a subscription goes on until the task has ended.
    """

    codec: Codec
    record: Record
    first: bytes
    after: int
    ends_on_question: bool
    over: bool = False  # there is nothing to add to `first`

    async def items(self) -> AsyncIterator[list[tuple[int, bytes]] | None]:
        """Batches of (number, JSON), and None each time that HEARTBEAT seconds were silent."""
        yield [(self.after, self.first)]
        if self.over:
            return
        async for batch in self.record.log.follow(self.after, HEARTBEAT):
            if not batch:
                yield None
                continue
            rendered: list[tuple[int, bytes]] = []
            for entry in batch:
                last = isinstance(entry.update, StatusUpdate) and self.ends(entry.update.state)
                rendered.append((entry.number, self._render(entry, last)))
                if last:
                    break
            yield rendered
            if last:
                return

    def ends(self, state: TaskState) -> bool:
        asks = state is TaskState.INPUT_REQUIRED and self.ends_on_question
        return state.terminal or asks

    def _render(self, entry: Entry, last: bool) -> bytes:
        """The entry's JSON, made once per version for all who follow the task."""
        key = (self.codec.version, last)
        data = entry.rendered.get(key)
        if data is None:
            item = self.codec.encode_update(self.record.task, entry.update, last)
            data = entry.rendered[key] = orjson.dumps(item)
        return data


class Operations:
    """The table of what clients may ask for; the bindings only carry it.

    `extended_card` makes the card for clients that have authenticated themselves; None where
    clients cannot. `stream_on_question`: "close" or "open", what a send's stream does then.
    """

    def __init__(
        self,
        manager: TaskManager,
        extended_card: Callable[[str], Card] | None,
        stream_on_question: str,
    ) -> None:
        self._manager = manager
        self._extended_card = extended_card
        self._ends_on_question = stream_on_question == "close"
        self._calls: Mapping[Operation, Call] = {
            Operation.SEND: self._send,
            Operation.GET: self._get,
            Operation.LIST: self._list,
            Operation.CANCEL: self._cancel,
            Operation.EXTENDED_CARD: self._card,
        }

    async def call(self, codec: Codec, operation: Operation, params: Json, caller: Caller) -> Json:
        """The JSON result of an operation that has one. Raises RequestError."""
        return await self._calls[operation](codec, params, caller)

    async def stream(self, codec: Codec, operation: Operation, params: Json) -> Stream:
        """The stream of an operation that has one. Raises RequestError."""
        if operation is Operation.SUBSCRIBE:
            record = self._manager.subscribe(codec.decode_task(params).task_id)
            return self._stream(codec, record, None, ends_on_question=False)
        asked = codec.decode_send(params)
        record = self._manager.send(asked).record
        stream = self._stream(codec, record, asked.history_length, self._ends_on_question)
        await self._manager.begun(record)
        if record.task.reply:
            first = orjson.dumps(codec.encode_sent(record.task))
            return replace(stream, first=first, over=True)
        return stream

    async def _send(self, codec: Codec, params: Json, caller: Caller) -> Json:
        asked = codec.decode_send(params)
        sent = self._manager.send(asked)
        if asked.blocking:
            await self._manager.settled(sent)
        else:
            sent.record.shown = True
        return codec.encode_sent(sent.record.task, asked.history_length)

    async def _get(self, codec: Codec, params: Json, caller: Caller) -> Json:
        asked = codec.decode_task(params)
        return codec.encode_task(self._manager.get(asked.task_id).task, asked.history_length)

    async def _list(self, codec: Codec, params: Json, caller: Caller) -> Json:
        asked = codec.decode_list(params)
        tasks, page = self._manager.list(asked)
        return codec.encode_page(tasks, asked, page)

    async def _cancel(self, codec: Codec, params: Json, caller: Caller) -> Json:
        asked = codec.decode_task(params)
        return codec.encode_task(self._manager.cancel(asked.task_id).task, asked.history_length)

    async def _card(self, codec: Codec, params: Json, caller: Caller) -> Json:
        if self._extended_card is None:
            raise UnsupportedOperation("This agent has no extended card.")
        return codec.encode_card(self._extended_card(caller.address))

    def _stream(
        self, codec: Codec, record: Record, history_length: int | None, ends_on_question: bool
    ) -> Stream:
        # Nothing can happen between these two lines: the snapshot has all updates up to `after`.
        first = orjson.dumps(codec.encode_sent(record.task, history_length))
        stream = Stream(codec, record, first, record.log.last, ends_on_question)
        return replace(stream, over=stream.ends(record.task.state))


STREAMING = frozenset({Operation.STREAM, Operation.SUBSCRIBE})
