"""Hints between the servers of a database: a server that follows a task of another one is told each
of its new batches at once.

A hint saves time only. The reader of a batch checks its number, and reads the table where a hint is
lost, late or too large. Each hint has an authentication code, because every role that can connect
to the database can send notifications.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import orjson

from bridge.store.changes import EventBatch

FOLLOWS = 60.0  # seconds for which a server is told the batches of a task that it follows
RENEWS = 20.0  # seconds after which it asks again
LARGEST = 7 * 1024  # bytes of events in a hint
MOST_BYTES = 7900  # of a payload; PostgreSQL takes 7999
MOST_TOLD = 256  # batches that wait for a reader
MOST_FOLLOWED = 100_000  # pairs of a task and a server that follows it
CODE = 32  # hexadecimal digits of an authentication code

Send = Callable[[str, str], None]
"""Sends a payload to a channel."""


class Feed:
    """The news of one task for one reader. `due`: the time when the owner of the task is asked to
    tell its news; `hinted`: whether there was a hint since the reader has set it to False."""

    def __init__(self) -> None:
        self.due = 0.0
        self.hinted = True
        self._told: deque[tuple[EventBatch, bool]] = deque()
        self._gap = False
        self._changed = asyncio.Event()

    def tell(self, batch: EventBatch, ended: bool) -> None:
        if len(self._told) >= MOST_TOLD or len(batch.events) > LARGEST:
            self.read()
            return
        self._told.append((batch, ended))
        self.hinted = True
        self._changed.set()

    def read(self) -> None:
        """Let the reader read the table."""
        self._told.clear()
        self._gap = self.hinted = True
        self._changed.set()

    async def next(self, after: int, wait: float) -> tuple[Sequence[EventBatch], bool] | None:
        """The next batches after number `after`, and whether the task has ended with them. None if
        the reader must read the table: after `wait` seconds without news, too."""
        try:
            async with asyncio.timeout(wait):
                await self._changed.wait()
        except TimeoutError:
            return None
        self._changed.clear()
        told, ended = list[EventBatch](), False
        while self._told and self._told[0][0].number <= after + len(told) + 1:
            batch, ends = self._told.popleft()
            if batch.number > after + len(told):
                told.append(batch)
                ended = ends
        if self._told or self._gap:  # something is missing
            self._told.clear()
            self._gap = False
            return None
        return told, ended


class Hints:
    """`key`: a secret of the servers of this database. `send` must not wait. `follows`:
    seconds for which a server is told the batches of a task after it has asked. `cluster`: a name
    of the servers of this database, which does not reveal the key."""

    def __init__(self, node: str, key: bytes, send: Send, follows: float = FOLLOWS) -> None:
        self._follows = follows
        self._node = node
        self._key = key
        self._send = send
        self._feeds: dict[str, list[Feed]] = {}  # of the readers in this process
        self._followed: dict[str, dict[str, float]] = {}  # by task: the servers, until this time
        self._expires = 0.0  # time of the next search for servers that do not ask any more
        self._channels: dict[str, str] = {}
        self.channel = self.channel_of(node)
        self.cluster = hmac.digest(key, b"cluster", "sha256").hex()[:16]

    @property
    def active(self) -> bool:
        """Whether anyone follows a task."""
        return bool(self._feeds or self._followed)

    def channel_of(self, node: str) -> str:
        """The channel of a server. Other roles of the database cannot guess it."""
        known = self._channels.get(node)
        if known is None:
            code = hmac.digest(self._key, b"channel " + node.encode(), "sha256")
            known = self._channels[node] = f"bridge_{code.hex()[:CODE]}"
        return known

    # --- readers of this process ---------------------------------------------------------------

    @contextmanager
    def feed(self, task_id: str) -> Iterator[Feed]:
        """The context in which the news of the task are wanted."""
        feed = Feed()
        self._feeds.setdefault(task_id, []).append(feed)
        try:
            yield feed
        finally:
            left = self._feeds[task_id]
            left.remove(feed)
            if not left:
                del self._feeds[task_id]

    def ask(self, task_id: str, feed: Feed, owner: str | None) -> None:
        """Ask the server that owns the task to tell its news, if it is time."""
        now = asyncio.get_running_loop().time()
        if owner and owner != self._node and now >= feed.due:
            feed.due = now + RENEWS
            self.say(owner, ["follow", task_id, self._node])

    def catch_up(self) -> None:
        """Hints may be lost: let all readers read the tables, and ask again."""
        for feeds in self._feeds.values():
            for feed in feeds:
                feed.due = 0.0
                feed.read()

    # --- tasks of this process -----------------------------------------------------------------

    def committed(self, batch: EventBatch) -> None:
        """Tell a committed batch to the readers here, and to the servers that follow its task."""
        ended = batch.state is not None and batch.state.terminal
        for feed in self._feeds.get(batch.task_id, ()):
            feed.tell(batch._replace(state=None, changed=None), ended)
        for node in self._servers(batch.task_id):
            head = ["news", *batch[:3], batch.last, ended]
            small = len(batch.events) <= LARGEST
            self.say(node, head if small else head[:2], batch.events if small else b"")
        if ended:
            self._followed.pop(batch.task_id, None)

    def removed(self, task_id: str) -> None:
        for feed in self._feeds.get(task_id, ()):
            feed.read()
        for node in self._servers(task_id):
            self.say(node, ["news", task_id])
        self._followed.pop(task_id, None)

    def expire(self) -> None:
        """Forget the servers that have not asked again."""
        for task_id in list(self._followed):
            self._servers(task_id)

    def _servers(self, task_id: str) -> Sequence[str]:
        """The servers that follow the task."""
        followed = self._followed.get(task_id)
        if followed is None:
            return ()
        now = asyncio.get_running_loop().time()
        for node in [node for node, until in followed.items() if until <= now]:
            del followed[node]
        if not followed:
            del self._followed[task_id]
        return list(followed)

    def _follow(self, task_id: str, node: str) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._expires:
            self._expires = now + self._follows
            self.expire()
        if len(self._followed) >= MOST_FOLLOWED:
            return
        followed = self._followed.setdefault(task_id, {})
        known = followed.get(node, 0.0) > now
        followed[node] = now + self._follows
        if not known:  # it has read the table before, and may have missed a batch meanwhile
            self.say(node, ["news", task_id])

    # --- payloads ------------------------------------------------------------------------------

    def say(self, node: str, head: Sequence[Any], events: bytes = b"") -> None:
        channel = self.channel_of(node)
        try:
            body = orjson.dumps(head) + b"\n" + events
            text = body.decode()
        except (TypeError, UnicodeDecodeError):  # an id with a lone surrogate, or no JSON
            return
        if len(body) + CODE > MOST_BYTES or "\0" in text:
            if events:
                self.say(node, head[:2])
            return
        self._send(channel, self._code(channel, body) + text)

    def _code(self, channel: str, body: bytes) -> str:
        return hmac.digest(self._key, channel.encode() + b"\n" + body, "sha256").hex()[:CODE]

    def heard(self, payload: str) -> Sequence[Any] | None:
        """Take a hint. One that is damaged, or that no server of this database has sent, has no
        effect. Returns a hint that is not about the batches of a task."""
        body = payload[CODE:].encode("utf-8", "replace")
        code = self._code(self.channel, body)
        if not hmac.compare_digest(code.encode(), payload[:CODE].encode("utf-8", "replace")):
            return None
        head, _, events = body.partition(b"\n")
        try:
            said = orjson.loads(head)
        except orjson.JSONDecodeError:
            return None
        match said:
            case ["news", str(task_id), int(number), int(time), int(last), bool(ended)]:
                batch = EventBatch(task_id, number, time, events, last)
                for feed in self._feeds.get(task_id, ()):
                    feed.tell(batch, ended)
            case ["news", str(task_id)]:
                for feed in self._feeds.get(task_id, ()):
                    feed.read()
            case ["follow", str(task_id), str(node)]:
                self._follow(task_id, node)
            case [str(), *_]:
                return tuple(said)
        return None
