"""The stream of the updates of one task, in the codec of one client."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from bridge.a2a.codec import Codec
from bridge.auth.revocations import Hold, unlimited
from bridge.runtime.audience import Listener
from bridge.store.event_log import Entry
from bridge.store.handle import TaskHandle
from bridge.task.state import StatusUpdate, Update
from bridge.task.transitions import TaskState
from bridge.transports.json_body import ENCODED_AT_ONCE, in_thread

HEARTBEAT = 3.0  # seconds; the official Python client disconnects after 5 s of silence
Batch = list[tuple[int, bytes]]
"""Items of a stream: numbers and JSON, or the form of a Wire."""
Write = Callable[[Batch], bool]
"""Sends a batch synchronously. False: it was not possible, and nothing was sent."""


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """The times of a silent connection, in seconds. `heartbeat`: between two heartbeats of a
    stream. `patience`: until a blocking send sends its status; an error before that has a status of
    its own. `blank`: between two spaces before the result of a blocking send."""

    heartbeat: float = HEARTBEAT
    patience: float = 3.0
    blank: float = 4.0


KEEP_ALIVE = KeepAlive()


class Wire(Protocol):
    """The form of the items for a binding without JSON. `number` is that of the item; a codec that
    is `extended` is of a client that gets it in the item."""

    def opening(self, codec: Codec, data: bytes, number: int) -> bytes:
        """The first item, from its JSON."""

    def update(self, codec: Codec, encoded: Mapping[str, Any], number: int) -> bytes:
        """An update of the task, as the codec encodes it."""


class StreamTally:
    """The streams of a server by binding. `open`: now; `items`: the items that were sent."""

    def __init__(self) -> None:
        self.open: Counter[str] = Counter()
        self.items: Counter[str] = Counter()

    @contextmanager
    def counted(self, binding: str) -> Iterator[None]:
        """The context of an open stream."""
        self.open[binding] += 1
        try:
            yield
        finally:
            self.open[binding] -= 1


def _no_listener() -> AbstractContextManager[Listener]:
    return nullcontext(Listener())


@dataclass(slots=True)
class Stream:
    """The updates of a task after number `after`. `first`: JSON of its state at that update; None
    for a client that has seen it.

    The stream of a send ends with a question of the agent, since the answer is another send; the
    stream of a subscription ends with the task. `over`: it ends after `first`. `counted`: counts
    the open stream, and `tally` its items by `binding`. `held`: the stream ends with its
    credential. `beginning`: yields while a Message may still replace the task. `wire`: None for
    JSON. `stays`: its client does not leave if it is closed from now on.
    """

    codec: Codec
    handle: TaskHandle
    first: bytes | None
    after: int
    ends_on_question: bool
    over: bool = False
    counted: Callable[[], AbstractContextManager[None]] = nullcontext
    listening: Callable[[], AbstractContextManager[Listener]] = _no_listener
    beginning: AsyncIterator[None] | None = None
    heartbeat: float = HEARTBEAT
    wire: Wire | None = None
    stays: bool = False
    binding: str = ""
    tally: StreamTally | None = None
    held: Callable[[], Hold] = unlimited

    async def items(self, write: Write) -> AsyncGenerator[Batch | None]:
        """Batches of (number, item), and None after each `heartbeat` seconds of silence.

        While the consumer does not wait for the next batch, updates go to `write` first. An update
        that it sends costs no turn of the event loop and is not yielded. Raises Unauthenticated
        when the credential of the client becomes invalid."""
        with self.counted(), self.held() as hold, self.listening() as listener:
            try:
                async for batch in self._batches(write, hold):
                    hold.leave()
                    yield batch
                    hold.enter()
            except (GeneratorExit, asyncio.CancelledError):  # gRPC cancels the call
                listener.left = not (hold.ended or self.stays)
                raise

    async def _batches(self, write: Write, hold: Hold) -> AsyncIterator[Batch | None]:
        def tap(batch: Sequence[Entry[Update]]) -> bool:
            rendered, over = self._rendered(batch)
            if over or hold.ended or not write(rendered):
                return False
            return self._count(rendered)

        if self.beginning:
            async for _ in self.beginning:
                yield None
            self.beginning = None  # the stream may stay open for days
        if opening := await self._opening():
            self._count(opening)
            yield opening
        if self.over:
            return
        async for batch in self.handle.log.follow(self.after, self.heartbeat, tap):
            if not batch:
                yield None
                continue
            rendered, over = self._rendered(batch)
            self._count(rendered)
            yield rendered
            if over:
                return

    def _count(self, batch: Batch) -> bool:
        """Count the items of a batch that is sent."""
        if self.tally:
            self.tally.items[self.binding] += len(batch)
        return True

    async def _opening(self) -> Batch | None:
        """The item before the updates of the task."""
        if self.handle.task.reply and not self.handle.shown:
            self.over = True
            self.first = orjson.dumps(self.codec.encode_sent(self.handle.task))
        data, self.first = self.first, None
        if data is None:
            return None
        if self.wire:
            arguments = self.codec, data, self.after
            large = len(data) > ENCODED_AT_ONCE
            opening = self.wire.opening
            data = await in_thread(opening, *arguments) if large else opening(*arguments)
        return [(self.after, data)]

    def _rendered(self, batch: Sequence[Entry[Update]]) -> tuple[Batch, bool]:
        """The batch up to the entry that ends the stream, and whether there is such an entry."""
        rendered: Batch = []
        for entry in batch:
            last = isinstance(entry.update, StatusUpdate) and self.ends(entry.update.state)
            rendered.append((entry.number, self._render(entry, last)))
            if last:
                return rendered, True
        return rendered, False

    def ends(self, state: TaskState) -> bool:
        asks = state is TaskState.INPUT_REQUIRED and self.ends_on_question
        return state.terminal or asks

    def _render(self, entry: Entry[Update], last: bool) -> bytes:
        """The form of an entry. Several streams of a task share it per codec and wire."""
        key = (self.codec, self.wire, last)
        if entry.rendered and key in entry.rendered:
            return entry.rendered[key]
        encoded = self.codec.encode_update(self.handle.task, entry.update, last)
        wire = self.wire
        data = wire.update(self.codec, encoded, entry.number) if wire else dump_copy(encoded)
        if self.handle.log.shared:
            entry.rendered = {**(entry.rendered or {}), key: data}
        return data


def dump_copy(item: Mapping[str, Any]) -> bytes:
    """The JSON in an exact copy: orjson reserves 4 KiB for the shortest text."""
    return b"%b" % orjson.dumps(item)
