"""The answer to one request: a stream whose entries have chosen ids, so that Redis refuses to add
an item a second time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import WatchError

from bridge.push.broker import Broker, checked, is_known
from bridge.transports.redis.names import END, SNAPSHOT, ItemId

PAYLOAD, ENDS = b"payload", b"end"
"""The fields of an entry: a JSON-RPC response, and `1` on the last entry."""


@dataclass(frozen=True, slots=True)
class ReplyLimits:
    """`items`: entries that are kept, about. `ttl`: seconds that an answer is kept after its last
    sign of life."""

    items: int = 20_000
    ttl: float = 86_400.0

    @property
    def milliseconds(self) -> int:
        return int(1000 * self.ttl)


@dataclass(frozen=True, slots=True)
class LastItem:
    """The newest entry of an answer. `payload` is empty for an end without one."""

    id: ItemId
    payload: bytes
    ended: bool


class ReplyStream:
    """The answer in the stream `key`. Its methods wait while Redis is away or full. They raise
    ResponseError if the key has another use."""

    def __init__(self, broker: Broker, key: str, limits: ReplyLimits) -> None:
        self._broker = broker
        self._limits = limits
        self.key = key

    async def last(self) -> LastItem | None:
        """The newest entry; None for an answer without entries."""

        async def read(client: Any) -> LastItem | None:
            found = await client.xrevrange(self.key, count=1)
            if not found:
                return None
            ((number, fields),) = found
            return LastItem(ItemId.parse(number), fields.get(PAYLOAD, b""), ENDS in fields)

        return await self._broker.do(read)

    async def begin(self, number: int, payload: bytes) -> bool:
        """Add the task at update `number` as the first entry. False: the answer has entries, and
        this one would repeat them."""
        tried = False

        async def add(client: Any) -> bool:
            nonlocal tried
            async with client.pipeline() as pipeline:
                await pipeline.watch(self.key)
                if await pipeline.exists(self.key):
                    # An earlier attempt may have added it before the connection was lost.
                    found = await pipeline.xrevrange(self.key, count=1) if tried else []
                    own = str(ItemId(number, SNAPSHOT)).encode()
                    return found == [(own, {PAYLOAD: payload})]
                tried = True
                pipeline.multi()
                self._add(pipeline, ItemId(number, SNAPSHOT), {PAYLOAD: payload})
                pipeline.pexpire(self.key, self._limits.milliseconds)
                try:
                    await pipeline.execute()
                except WatchError:  # another server has added it
                    return False
                return True

        return await self._broker.do(add, adds=True)

    async def add(self, items: Sequence[tuple[ItemId, bytes]]) -> None:
        """Add items. Those that the answer has are left out."""

        async def write(client: Any) -> None:
            pipeline = client.pipeline(transaction=False)
            for item, payload in items:
                self._add(pipeline, item, {PAYLOAD: payload})
            checked(await pipeline.execute(raise_on_error=False))

        await self._broker.do(write, adds=True)

    async def end(self, number: int, payload: bytes | None = None) -> None:
        """Add the end after update `number`, or after a later one that the answer has, with the
        result of a request without a stream, or with an error. The answer expires from now on."""

        async def write(client: Any) -> bool:
            pipeline = client.pipeline(transaction=False)
            fields = {ENDS: b"1"} if payload is None else {PAYLOAD: payload, ENDS: b"1"}
            self._add(pipeline, ItemId(number, END), fields)
            pipeline.pexpire(self.key, self._limits.milliseconds)
            return not is_known(checked(await pipeline.execute(raise_on_error=False))[0])

        while not await self._broker.do(write, adds=True):
            last = await self.last()
            if last and (last.ended or last.id.kind >= END):
                return
            number = last.id.number if last else number

    def _add(self, pipeline: Any, item: ItemId, fields: dict[bytes, bytes]) -> None:
        pipeline.xadd(self.key, fields, id=str(item), maxlen=self._limits.items, approximate=True)
