"""Hints between servers: who is told what, what a reader does with it, and what is no hint."""

from __future__ import annotations

import asyncio
import hmac
from typing import Any

import orjson
import pytest

from bridge.store.changes import EventBatch
from bridge.store.postgres.hints import FOLLOWS, LARGEST, MOST_TOLD, Feed, Hints
from bridge.task.transitions import TaskState

KEY = b"k" * 32
SOON = 0.001  # seconds


def batch(number: int, events: bytes = b"[]", state: TaskState | None = None) -> EventBatch:
    return EventBatch("t", number, number, events, number, state, number if state else None)


def read_back(number: int, events: bytes = b"[]") -> EventBatch:
    """As a reader of the table has it."""
    return batch(number, events)


class Wire:
    """Servers whose hints arrive at once. `payloads`: all that were sent."""

    def __init__(self, *names: str, follows: float = FOLLOWS) -> None:
        self.payloads: list[str] = []
        self.servers = {name: Hints(name, KEY, self.send, follows) for name in names}

    def send(self, channel: str, payload: str) -> None:
        self.payloads.append(payload)
        assert len(payload.encode()) < 8000
        for one in self.servers.values():
            if one.channel == channel:
                one.heard(payload)


async def news(feed: Feed, after: int = 0) -> list[int] | None:
    told = await feed.next(after, SOON)
    return None if told is None else [one.number for one in told[0]]


async def test_a_server_is_told_what_it_follows_and_nothing_else() -> None:
    wire = Wire("a", "b", "c")
    a, b, c = wire.servers.values()
    with b.feed("t") as feed, c.feed("other") as unconcerned:
        a.committed(batch(1))
        assert wire.payloads == []
        b.ask("t", feed, "a")
        assert await news(feed) is None  # to read the table, which may have changed meanwhile
        a.committed(batch(2))
        a.committed(batch(3, state=TaskState.COMPLETED))
        told = await feed.next(1, SOON)
        assert told == ([read_back(2), read_back(3)], True)
        assert await news(unconcerned) is None
        sent = len(wire.payloads)
        a.committed(batch(4))  # none follows: the task has ended
        assert len(wire.payloads) == sent
    assert not (a.active or b.active or c.active)


async def test_an_owner_is_not_asked_again_before_it_is_time() -> None:
    wire = Wire("a", "b")
    a, b = wire.servers.values()
    with b.feed("t") as feed, a.feed("t") as own:
        b.ask("t", feed, "a")
        sent = len(wire.payloads)
        for owner in ("a", None, "b"):
            b.ask("t", feed, owner)
        a.ask("t", own, "a")
        assert len(wire.payloads) == sent
        b.catch_up()
        b.ask("t", feed, "a")
        assert len(wire.payloads) == sent + 1  # a known follower gets no answer


async def test_local_readers_are_told_without_a_message() -> None:
    wire = Wire("a")
    (a,) = wire.servers.values()
    with a.feed("t") as one, a.feed("t") as two:
        a.committed(batch(1, state=TaskState.WORKING))
        assert await one.next(0, SOON) == await two.next(0, SOON) == ([read_back(1)], False)
        a.removed("t")
        assert await one.next(1, SOON) is None
    assert wire.payloads == []


async def test_repeated_batches_are_left_out_and_a_gap_is_read() -> None:
    feed = Feed()
    for number in (1, 2, 2, 3):
        feed.tell(read_back(number), False)
    assert await news(feed, 1) == [2, 3]
    feed.tell(read_back(3), False)
    assert await news(feed, 3) == []
    feed.tell(read_back(5), False)
    assert await news(feed, 3) is None
    assert await news(feed, 5) is None  # nothing is left
    for number in range(MOST_TOLD + 1):
        feed.tell(read_back(number + 6), False)
    assert await news(feed, 5) is None


@pytest.mark.parametrize(
    "events",
    [
        b'"' + b"x" * LARGEST + b'"',
        '"ä"'.encode("latin-1"),
        b'"\0"',
        b'"' + "ä".encode() * (LARGEST // 2) + b'"',
    ],
)
async def test_what_does_not_fit_is_read(events: bytes) -> None:
    wire = Wire("a", "b")
    a, b = wire.servers.values()
    with b.feed("t") as feed:
        b.ask("t", feed, "a")
        await news(feed)
        feed.hinted = False
        a.committed(batch(1, events))
        assert await news(feed) is None


async def test_forged_and_damaged_hints_have_no_effect() -> None:
    wire = Wire("a", "b")
    a, b = wire.servers.values()
    with b.feed("t") as feed:
        b.ask("t", feed, "a")
        await news(feed)
        a.committed(batch(1))
        good = wire.payloads[-1]
        assert await news(feed) == [1]
        feed.hinted = False
        body = orjson.dumps(["news", "t", 2, 2, 2, False]) + b'\n["forged"]'
        other_key = hmac.digest(b"x" * 32, b.channel.encode() + b"\n" + body, "sha256").hex()[:32]
        for payload in (
            "",
            "x",
            good[:-1],
            good[1:],
            good.replace("[]", "[0]"),
            "0" * 32 + body.decode(),
            other_key + body.decode(),
            "\ud800" + good,
            good.replace("news", "follow"),
        ):
            b.heard(payload)
        a.heard(good)  # it is for another server
        assert await news(feed, 1) is None and not feed.hinted
        said: Any
        for said in ([], {}, 5, ["news"], ["news", 1], ["news", "t", "2", 2, 2, False], ["x", "t"]):
            b.say("b", said)
            b.heard(wire.payloads[-1])
        assert await news(feed, 1) is None


async def test_servers_that_no_longer_ask_are_forgotten() -> None:
    wire = Wire("a", "b", follows=0.0)
    a, b = wire.servers.values()
    with b.feed("t") as feed:
        b.ask("t", feed, "a")
        assert a.active
        await asyncio.sleep(0)
        a.expire()
        assert not a.active


async def test_channels_depend_on_the_secret() -> None:
    names = {Hints(node, key, print).channel for node in "ab" for key in (KEY, b"other")}
    assert len(names) == 4
    assert all(name.isidentifier() and len(name) < 63 for name in names)
