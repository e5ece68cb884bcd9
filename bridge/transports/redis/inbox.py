"""The stream with the requests of one principal, and the claims of its entries."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.push.broker import BLOCK, Broker, make_group
from bridge.store.redis_address import ANSWER_WITHIN
from bridge.transports.redis.names import RedisKeys

AT_ONCE = 8  # entries of one read
PAGE = 100  # rows of a list of pending entries
MOST_DEAD = 10_000  # dead letters, about
MOST_SHOWN = 4096  # bytes of a dead letter
Fields = Mapping[bytes, bytes]


@dataclass(frozen=True, slots=True)
class RequestEntry:
    """A request. `deliveries`: how many times a server has taken it, with this time."""

    id: bytes
    fields: Fields
    deliveries: int = 1


class RequestInbox:
    """The requests of the principal `name`. `consumer`: a name of this server that no other server
    has. `claim`: seconds without a sign of life after which another server takes an entry. Its
    methods wait while Redis is away; they raise ResponseError if the stream has no group."""

    def __init__(
        self, broker: Broker, keys: RedisKeys, name: str, consumer: str, claim: float
    ) -> None:
        self._broker = broker
        self._reader = broker.reader()
        self._keys = keys
        self._stream = keys.requests(name)
        self._group = keys.group
        self._consumer = consumer
        self._claim = int(1000 * claim)
        self.name = name

    @property
    def losses(self) -> int:
        """The number of attempts that failed, for example because a connection was lost."""
        return self._broker.losses

    async def leave(self) -> None:
        """Close the connection of take(). The next call opens another one."""
        await self._reader.aclose()

    async def prepare(self) -> None:
        """Create the group, unless it exists. It begins with the oldest entry."""
        await self._broker.do(
            lambda client: make_group(client, self._stream, self._group), adds=True
        )

    async def take(self, most: int) -> Sequence[RequestEntry]:
        """At most so many new entries, after at most BLOCK seconds, or half of `claim`. After a
        loss of the connection it does not wait: a lost answer may have had entries (see own)."""
        losses, block = self.losses, min(int(1000 * BLOCK), self._claim // 2)

        async def read(client: Any) -> Sequence[RequestEntry]:
            found = await client.xreadgroup(
                self._group,
                self._consumer,
                {self._stream: ">"},
                count=min(most, AT_ONCE),
                block=block if self.losses == losses else None,
            )
            return [RequestEntry(*entry) for _, entries in found for entry in entries]

        return await self._broker.do(read, client=self._reader, within=BLOCK + ANSWER_WITHIN)

    async def own(self, known: Container[bytes]) -> Sequence[RequestEntry]:
        """The entries that are not in `known` and that this server has taken: an earlier process of
        it, or this one before its connection was lost."""

        async def claim(client: Any) -> Sequence[tuple[bytes, Fields]]:
            unknown, least = list[bytes](), "-"
            while True:
                rows = await client.xpending_range(
                    self._stream, self._group, least, "+", PAGE, consumername=self._consumer
                )
                unknown += [row["message_id"] for row in rows if row["message_id"] not in known]
                if len(rows) < PAGE:
                    break
                least = f"({rows[-1]['message_id'].decode()}"
            if not unknown:
                return []
            found = await client.xclaim(self._stream, self._group, self._consumer, 0, unknown)
            return [(one, fields) for one, fields in found if fields]

        return await self._counted(await self._broker.do(claim))

    async def abandoned(self, most: int) -> Sequence[RequestEntry]:
        """Take at most so many entries of servers that show no sign of life."""

        async def claim(client: Any) -> Sequence[tuple[bytes, Fields]]:
            taken, start = list[tuple[bytes, Fields]](), b"0-0"
            while len(taken) < most:
                start, found, *_ = await client.xautoclaim(
                    self._stream,
                    self._group,
                    self._consumer,
                    self._claim,
                    start,
                    count=min(most - len(taken), AT_ONCE),
                )
                taken += [(one, fields) for one, fields in found if fields]
                if start == b"0-0":
                    break
            return taken

        return await self._counted(await self._broker.do(claim))

    async def _counted(self, found: Sequence[tuple[bytes, Fields]]) -> Sequence[RequestEntry]:
        """The entries with their deliveries."""
        rows = await self._pending(one for one, _ in found)
        return [
            RequestEntry(one, fields, row["times_delivered"] if row else 1)
            for (one, fields), row in zip(found, rows, strict=True)
        ]

    async def keep(
        self, entries: Sequence[bytes], replies: Iterable[str], ttl: float
    ) -> set[bytes]:
        """Show that this server works on the entries, and keep their answers for `ttl` seconds.
        Returns the entries that another server has taken."""
        rows = await self._pending(entries)
        holders = {
            one: row["consumer"].decode() for one, row in zip(entries, rows, strict=True) if row
        }
        ours = [one for one, consumer in holders.items() if consumer == self._consumer]

        async def show(client: Any) -> None:
            pipeline = client.pipeline(transaction=False)
            if ours:
                pipeline.xclaim(self._stream, self._group, self._consumer, 0, ours, justid=True)
            for key in replies:
                pipeline.pexpire(key, int(1000 * ttl))
            await pipeline.execute()

        await self._broker.do(show)
        return set(holders) - set(ours)

    async def _pending(self, entries: Iterable[bytes]) -> Sequence[Mapping[str, Any] | None]:
        """The row of each entry in the list of pending ones; None for an entry that is not."""
        listed = list(entries)

        async def read(client: Any) -> Sequence[Any]:
            pipeline = client.pipeline(transaction=False)
            for one in listed:
                pipeline.xpending_range(self._stream, self._group, one, one, 1)
            found: Sequence[Any] = await pipeline.execute()
            return found

        found = await self._broker.do(read) if listed else []
        return [rows[0] if rows else None for rows in found]

    async def finish(self, entry: bytes) -> None:
        """The request is answered: remove its entry."""

        async def remove(client: Any) -> None:
            pipeline = client.pipeline()
            pipeline.xack(self._stream, self._group, entry)
            pipeline.xdel(self._stream, entry)
            await pipeline.execute()

        await self._broker.do(remove)

    async def bury(self, entry: RequestEntry, reason: str) -> None:
        """Keep a request that cannot be served among the dead letters."""
        fields = {
            "entry": entry.id,
            "principal": self.name,
            "reason": reason,
            "payload": entry.fields.get(b"payload", b"")[:MOST_SHOWN],
        }

        async def add(client: Any) -> None:
            await client.xadd(self._keys.dead, fields, maxlen=MOST_DEAD, approximate=True)

        await self._broker.do(add, adds=True)
