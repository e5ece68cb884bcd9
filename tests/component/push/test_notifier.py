"""Push notifications, sent to real receivers on loopback that misbehave."""

from __future__ import annotations

import asyncio
import gzip
import os
import signal
import sqlite3
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bridge.errors import ConfigurationError, InvalidParams
from bridge.push.configs import (
    BACKLOG_FULL,
    CONFIGS_PER_TASK,
    MIGRATIONS,
    Delivery,
    Key,
    Outgoing,
    PushConfig,
    QueueUnavailable,
    SqliteQueue,
)
from bridge.push.notifier import BATCH_BYTES, Push, RetryPolicy
from bridge.store.event_log import Entry
from bridge.store.handle import TaskHandle
from bridge.task.state import StatusUpdate, Task, TaskState, Update
from tests import CHECKOUT

WITHIN = 10.0
NOW = datetime(2026, 1, 1, tzinfo=UTC)
QUICK = RetryPolicy(attempts=4, first_pause=0.001, longest_pause=0.002)
REPOSITORY = CHECKOUT
Behaviour = Callable[[web.Request], Awaitable[web.StreamResponse]]


# --- receivers and tasks -----------------------------------------------------------------------


async def accept(request: web.Request) -> web.StreamResponse:
    return web.Response(status=202)


def status(number: int) -> Behaviour:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=number, headers={"Location": "/elsewhere"})

    return answer


async def close_early(request: web.Request) -> web.StreamResponse:
    assert request.transport
    request.transport.close()
    return web.Response()


async def big(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b"x" * 2**20)


BOMB = gzip.compress(b"\0" * 2**24)


async def gzip_bomb(request: web.Request) -> web.StreamResponse:
    return web.Response(body=BOMB, headers={"Content-Encoding": "gzip"})


class Receiver:
    """Keeps what it gets. Each request is answered by the next behaviour, then by the last."""

    url: str

    def __init__(self, *behaviours: Behaviour) -> None:
        self.behaviours = list(behaviours) or [accept]
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.open = self.most_open = 0
        self.over = asyncio.Event()
        self._arrived = asyncio.Condition()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            body = await request.read()
            async with self._arrived:
                self.requests.append((dict(request.headers), body))
                self._arrived.notify_all()
            one_left = len(self.behaviours) == 1
            return await (self.behaviours[0] if one_left else self.behaviours.pop(0))(request)
        finally:
            self.open -= 1

    async def stall(self, request: web.Request) -> web.StreamResponse:
        if not request.path.endswith("/witness"):
            await self.over.wait()
        return web.Response()

    async def got(self, count: int) -> list[bytes]:
        """The bodies, as soon as there are so many."""
        async with asyncio.timeout(WITHIN), self._arrived:
            await self._arrived.wait_for(lambda: len(self.requests) >= count)
        return self.bodies

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body in self.requests]

    @property
    def ids(self) -> list[str]:
        return [headers["A2A-Notification-Id"] for headers, _ in self.requests]


@asynccontextmanager
async def receiving(*receivers: Receiver) -> AsyncIterator[None]:
    servers = []
    for receiver in receivers:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", receiver.handle)
        servers.append(TestServer(app))
        await servers[-1].start_server()
        receiver.url = f"http://127.0.0.1:{servers[-1].port}/hook"
    try:
        yield
    finally:
        for receiver, server in zip(receivers, servers, strict=True):
            receiver.over.set()
            await server.close()


@asynccontextmanager
async def pushing(queue: SqliteQueue, **options: Any) -> AsyncIterator[Push]:
    settings: dict[str, Any] = {"policy": QUICK, "allow_private": True, **options}
    push = Push(queue, settings.pop("encode", encode), **settings)
    async with asyncio.timeout(WITHIN):
        await push.start()
    try:
        yield push
    finally:
        async with asyncio.timeout(WITHIN):
            await push.close()


def encode(config: PushConfig, task: Task, entry: Entry[Update]) -> bytes:
    return f"{task.id}/{entry.number}".encode()


def new_record(task_id: str = "t") -> TaskHandle:
    return TaskHandle(Task(task_id, "context", NOW))


def happen(record: TaskHandle, count: int, end: bool = False) -> None:
    record.log.append([StatusUpdate(TaskState.WORKING, NOW)] * count)
    if end:
        record.log.close()


def config(receiver: Receiver | str, identity: str = "c", **more: Any) -> PushConfig:
    url = receiver if isinstance(receiver, str) else receiver.url
    return PushConfig(identity, "", url, **more)


def bodies(numbers: Sequence[int] | range, task_id: str = "t") -> list[bytes]:
    return [f"{task_id}/{number}".encode() for number in numbers]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """For what no event tells of; every look waits for the queue's thread."""
    async with asyncio.timeout(WITHIN):
        while not await condition():  # noqa: ASYNC110 - the queue has no event for it
            await asyncio.sleep(0)


async def drained(queue: SqliteQueue) -> None:
    async def nothing_waits() -> bool:
        return not await queue.pending()

    await until(nothing_waits)


async def buried(push: Push, count: int) -> list[tuple[int, int, str]]:
    """Number, attempts and error of the dead letters of task t, when there are so many."""

    async def enough() -> bool:
        return len(await push.list_dead("t")) >= count

    await until(enough)
    return [(dead.number, dead.attempts, dead.error) for dead in await push.list_dead("t")]


# --- what is sent ------------------------------------------------------------------------------


async def test_every_update_is_sent_once_and_in_order() -> None:
    receiver, record, queue = Receiver(), new_record(), SqliteQueue(None)
    async with receiving(receiver), pushing(queue) as push:
        await push.create(config(receiver), record)
        for _ in range(5):
            happen(record, 3)
        happen(record, 5, end=True)
        assert await receiver.got(20) == bodies(range(1, 21))
        await drained(queue)
        assert receiver.ids == [f"t:c:{number}" for number in range(1, 21)]


async def test_the_headers_say_who_sends_what_in_the_version_of_the_config() -> None:
    receiver, record = Receiver(), new_record()
    async with receiving(receiver), pushing(SqliteQueue(None)) as push:
        secrets = {"token": "t0k", "scheme": "Bearer", "credentials": "abc def="}
        await push.create(config(receiver, **secrets), record)
        happen(record, 1)
        await receiver.got(1)
        await push.delete("t", "c")
        await push.create(config(receiver, version="0.3", scheme="Bearer"), record)
        happen(record, 1)
        await receiver.got(2)
    new, old = (headers for headers, _ in receiver.requests)
    assert new["Content-Type"] == "application/a2a+json"
    assert new["Authorization"] == "Bearer abc def="
    assert new["X-A2A-Notification-Token"] == "t0k"
    assert old["Content-Type"] == "application/json"
    assert not {"Authorization", "X-A2A-Notification-Token"} & old.keys()


async def test_a_config_is_told_what_happens_after_it_was_created() -> None:
    receiver, record = Receiver(), new_record()
    async with receiving(receiver), pushing(SqliteQueue(None)) as push:
        happen(record, 3)
        await push.create(config(receiver), record)
        happen(record, 2)
        assert await receiver.got(2) == bodies([4, 5])


async def test_what_happens_while_a_config_is_being_created_is_not_missed() -> None:
    receiver, record = Receiver(), new_record()
    async with receiving(receiver), pushing(SqliteQueue(None)) as push:
        creating = asyncio.ensure_future(push.create(config(receiver), record))
        await asyncio.sleep(0)
        happen(record, 3, end=True)
        await creating
        assert await receiver.got(3) == bodies([1, 2, 3])


async def test_the_encoding_may_leave_out_updates_and_its_bugs_are_dead_letters() -> None:
    def some(config: PushConfig, task: Task, entry: Entry[Update]) -> bytes | None:
        if entry.number == 3:
            raise ValueError("a bug")
        return None if entry.number == 2 else encode(config, task, entry)

    receiver, record = Receiver(), new_record()
    async with receiving(receiver), pushing(SqliteQueue(None), encode=some) as push:
        await push.create(config(receiver), record)
        happen(record, 4)
        assert await receiver.got(2) == bodies([1, 4])
        assert await buried(push, 1) == [(3, 0, "internal error")]


async def test_large_bodies_are_put_down_in_portions() -> None:
    size = BATCH_BYTES // 2 + 1
    receiver, record = Receiver(), new_record()

    def large(config: PushConfig, task: Task, entry: Entry[Update]) -> bytes:
        return bytes([entry.number]) * size

    queue = SqliteQueue(None)
    async with receiving(receiver), pushing(queue, encode=large) as push:
        await push.create(config(receiver), record)
        happen(record, 7)
        received = await receiver.got(7)
        assert [(body[0], len(body)) for body in received] == [(n, size) for n in range(1, 8)]


# --- receivers that fail -----------------------------------------------------------------------


@pytest.mark.parametrize("failure", [500, 503, 599, 408, 425, 429])
async def test_what_may_change_is_attempted_again_and_the_order_is_kept(failure: int) -> None:
    receiver = Receiver(accept, status(failure), status(failure), accept)
    record, queue = new_record(), SqliteQueue(None)
    async with receiving(receiver), pushing(queue) as push:
        await push.create(config(receiver), record)
        happen(record, 4, end=True)
        assert await receiver.got(6) == bodies([1, 2, 2, 2, 3, 4])
        await drained(queue)
        assert await push.list_dead("t") == []
        assert receiver.ids[1] == receiver.ids[2] == receiver.ids[3] == "t:c:2"


@pytest.mark.parametrize("failure", [400, 401, 404, 410, 301, 302, 307, 308])
async def test_what_will_not_change_is_a_dead_letter_at_once_and_the_next_goes_on(
    failure: int,
) -> None:
    receiver, record = Receiver(status(failure), accept), new_record()
    async with receiving(receiver), pushing(SqliteQueue(None)) as push:
        await push.create(config(receiver), record)
        happen(record, 3)
        assert await receiver.got(3) == bodies([1, 2, 3])
        assert await buried(push, 1) == [(1, 1, f"status {failure}")]


async def test_after_its_last_attempt_a_notification_is_a_dead_letter_and_the_next_goes_on() -> (
    None
):
    receiver, record = Receiver(*[status(500)] * 4, accept), new_record()
    async with receiving(receiver), pushing(SqliteQueue(None)) as push:
        await push.create(config(receiver), record)
        happen(record, 3)
        assert await receiver.got(6) == bodies([1, 1, 1, 1, 2, 3])
        assert await buried(push, 1) == [(1, 4, "status 500")]
        assert [dead.config_id for dead in await push.list_dead("t")] == ["c"]
        assert await push.list_dead("another") == []


async def test_a_receiver_that_stalls_is_a_timeout() -> None:
    receiver, record = Receiver(), new_record()
    receiver.behaviours = [receiver.stall, accept]
    async with receiving(receiver), pushing(SqliteQueue(None), timeout=0.2) as push:
        await push.create(config(receiver), record)
        happen(record, 2)
        assert await receiver.got(3) == bodies([1, 1, 2])


async def test_a_receiver_that_is_not_there_is_a_failed_connection() -> None:
    record = new_record()
    async with receiving(gone := Receiver()):
        pass
    async with pushing(SqliteQueue(None)) as push:
        await push.create(config(gone), record)
        happen(record, 2)
        dead = await buried(push, 2)
        assert dead == [(1, 4, "connection failed"), (2, 4, "connection failed")]


async def test_a_connection_that_is_closed_early_is_attempted_again() -> None:
    receiver, record = Receiver(close_early, close_early, accept), new_record()
    async with receiving(receiver), pushing(SqliteQueue(None)) as push:
        await push.create(config(receiver), record)
        happen(record, 2)
        assert await receiver.got(4) == bodies([1, 1, 1, 2])


@pytest.mark.parametrize("answer", [big, gzip_bomb])
async def test_long_answers_are_accepted_and_not_read(answer: Behaviour) -> None:
    receiver, record, queue = Receiver(answer), new_record(), SqliteQueue(None)
    async with receiving(receiver), pushing(queue) as push:
        await push.create(config(receiver), record)
        happen(record, 3, end=True)
        assert await receiver.got(3) == bodies([1, 2, 3])
        await drained(queue)
        assert await push.list_dead("t") == []


async def test_a_name_that_leads_into_the_private_network_is_a_dead_letter_at_once() -> None:
    from tests.component.push.test_egress import Names

    receiver, record = Receiver(), new_record()
    async with receiving(receiver):
        port = receiver.url.rpartition(":")[2]
        names = Names(["127.0.0.1"])
        options: dict[str, Any] = {"allow_private": False, "resolver": names}
        async with pushing(SqliteQueue(None), **options) as push:
            await push.create(config(f"https://receiver.example:{port}"), record)
            happen(record, 1)
            assert await buried(push, 1) == [(1, 1, "refused address")]
    assert receiver.requests == []


async def postponed(queue: SqliteQueue) -> bool:
    """Whether one attempt for the config c of task t has failed, and another is to come."""
    waiting = await queue.first(Key("t", "c"))
    return waiting is not None and waiting[1].attempts == 1


def test_pauses_double_up_to_the_longest_and_half_of_each_is_chance() -> None:
    policy = RetryPolicy()
    assert [policy.pause(n, lambda: 1.0) for n in (1, 2, 3, 9, 10, 2000)] == [
        *(1.0, 2.0, 4.0, 256.0, 300.0, 300.0)
    ]
    assert [policy.pause(n, lambda: 0.0) for n in (1, 2, 9)] == [0.5, 1.0, 128.0]


async def test_what_failed_waits_for_its_time() -> None:
    receiver, record, queue = Receiver(status(500)), new_record(), SqliteQueue(None)
    patient = RetryPolicy(first_pause=3600, longest_pause=3600)
    async with receiving(receiver), pushing(queue, policy=patient) as push:
        await push.create(config(receiver), record)
        happen(record, 2)
        await until(lambda: postponed(queue))
        assert receiver.bodies == bodies([1])


# --- several receivers -------------------------------------------------------------------------


async def test_a_receiver_that_stalls_delays_no_other_and_not_the_task() -> None:
    slow, quick, record = Receiver(), Receiver(), new_record()
    slow.behaviours = [slow.stall]
    async with receiving(slow, quick), pushing(SqliteQueue(None)) as push:
        await push.create(config(slow, "slow"), record)
        await push.create(config(quick, "quick"), record)
        happen(record, 1)
        await slow.got(1)
        happen(record, 9, end=True)
        assert await quick.got(10) == bodies(range(1, 11))
        assert slow.bodies == bodies([1])


async def test_each_config_keeps_its_order_under_failures_of_its_own() -> None:
    flaky = Receiver(*[accept, status(500), close_early] * 10, accept)
    steady, record, queue = Receiver(), new_record(), SqliteQueue(None)
    async with receiving(flaky, steady), pushing(queue) as push:
        await push.create(config(flaky, "flaky"), record)
        await push.create(config(steady, "steady"), record)
        for _ in range(10):
            happen(record, 2)
        record.log.close()
        assert await steady.got(20) == bodies(range(1, 21))
        await flaky.got(20)
        await drained(queue)
    assert list(dict.fromkeys(flaky.bodies)) == bodies(range(1, 21))
    assert flaky.bodies == sorted(flaky.bodies, key=lambda body: int(body.partition(b"/")[2]))


async def test_a_host_sees_two_connections_at_once_and_other_hosts_are_not_kept() -> None:
    host, other = Receiver(), Receiver()
    host.behaviours = [host.stall]
    async with receiving(host, other), pushing(SqliteQueue(None)) as push:
        records = [new_record(f"t{n}") for n in range(5)]
        for record in records:
            await push.create(config(host), record)
            happen(record, 2)
        await host.got(2)
        record = new_record("other")
        await push.create(config(other.url.replace("127.0.0.1", "localhost")), record)
        happen(record, 1)
        await other.got(1)
        assert len(host.requests) == 2
        host.over.set()
        assert set(await host.got(10)) == {b for n in range(5) for b in bodies([1, 2], f"t{n}")}
    assert host.most_open == 2


async def test_all_connections_together_are_limited() -> None:
    receiver = Receiver()
    receiver.behaviours = [receiver.stall]
    policy = replace(QUICK, per_host=100, overall=3)
    queue = SqliteQueue(None)
    async with receiving(receiver), pushing(queue, policy=policy) as push:
        for n in range(8):
            record = new_record(f"t{n}")
            await push.create(config(receiver), record)
            happen(record, 1)
        await receiver.got(3)
        await until(lambda: waits_for(queue, 8))
        async with aiohttp.ClientSession() as session:  # by then, the others would have come
            for _ in range(3):
                assert (await session.post(receiver.url + "/witness", data=b"")).status == 200
        assert [body for body in receiver.bodies if body] == receiver.bodies[:3]
        receiver.over.set()
        await receiver.got(8 + 3)


async def waits_for(queue: SqliteQueue, configs: int) -> bool:
    return len(await queue.pending()) == configs


# --- configs -----------------------------------------------------------------------------------


async def test_configs_are_listed_in_order_and_without_their_secrets() -> None:
    record = new_record()
    secrets = {"token": "t0k", "scheme": "Bearer", "credentials": "s3cret"}
    async with pushing(SqliteQueue(None)) as push:
        first = await push.create(config("http://a.example/", "z", **secrets), record)
        second = await push.create(config("http://b.example/", "", version="0.3"), record)
        assert first == PushConfig("z", "t", "http://a.example/", scheme="Bearer")
        third = await push.create(config("http://b.example/", "", version="0.3"), record)
        assert second.id == "t"  # the task's: its default config
        assert len(third.id) == 32
        assert await push.list("t") == [first, second, third]
        assert await push.get("t", "z") == first
        assert await push.get("t", "unknown") is None
        assert await push.get("another", "z") is None
        assert await push.list("another") == []


def test_secrets_are_not_in_what_is_printed() -> None:
    shown = repr(PushConfig("c", "t", "http://x/T0PSECRET", "T0PSECRET", "Bearer", "T0PSECRET"))
    assert "T0PSECRET" not in shown
    assert "T0PSECRET" not in repr(Delivery(Key("t", "c"), 1, "1.0", b"T0PSECRET", 0, 0.0))


async def test_the_same_id_may_be_used_for_another_task() -> None:
    receiver, one, two = Receiver(), new_record("one"), new_record("two")
    async with receiving(receiver), pushing(SqliteQueue(None)) as push:
        await push.create(config(receiver), one)
        await push.create(config(receiver), two)
        happen(one, 1)
        happen(two, 1)
        await receiver.got(2)
        assert set(receiver.ids) == {"one:c:1", "two:c:1"}
        await push.forget("one")
        assert await push.list("one") == []
        assert len(await push.list("two")) == 1


async def test_a_task_has_a_limited_number_of_configs_and_replacing_one_is_not_one_more() -> None:
    record = new_record()
    async with pushing(SqliteQueue(None)) as push:
        for n in range(CONFIGS_PER_TASK):
            await push.create(config("http://a.example/", str(n)), record)
        with pytest.raises(InvalidParams, match="at most 10"):
            await push.create(config("http://a.example/", "one-more"), record)
        await push.create(config("http://b.example/", "3"), record)
        listed = await push.list("t")
        assert [one.id for one in listed] == [str(n) for n in range(CONFIGS_PER_TASK)]
        assert listed[3].url == "http://b.example/"


async def test_what_waits_for_a_config_that_is_replaced_goes_to_the_new_address_at_once() -> None:
    wrong, right, record = Receiver(status(500)), Receiver(), new_record()
    patient = RetryPolicy(first_pause=3600, longest_pause=3600)
    queue = SqliteQueue(None)
    async with receiving(wrong, right), pushing(queue, policy=patient) as push:
        await push.create(config(wrong), record)
        happen(record, 3)
        await until(lambda: postponed(queue))
        await push.create(config(right, token="new"), record)
        happen(record, 1)
        assert await right.got(4) == bodies([1, 2, 3, 4])
        assert {headers["X-A2A-Notification-Token"] for headers, _ in right.requests} == {"new"}
    assert wrong.bodies == bodies([1])


async def test_an_attempt_that_fails_while_its_config_is_replaced_decides_nothing() -> None:
    right, record, queue = Receiver(), new_record(), SqliteQueue(None)

    async def refuse(request: web.Request) -> web.StreamResponse:
        replacing.set_result(asyncio.ensure_future(push.create(config(right), record)))
        return web.Response(status=404)

    replacing: asyncio.Future[asyncio.Future[PushConfig]] = asyncio.Future()
    wrong = Receiver(refuse)
    async with receiving(wrong, right), pushing(queue) as push:
        await push.create(config(wrong), record)
        happen(record, 3, end=True)
        await (await replacing)
        assert await right.got(3) == bodies([1, 2, 3])
        assert await push.list_dead("t") == []


async def test_creating_that_is_cut_off_leaves_what_was_there_going() -> None:
    receiver, record, queue = Receiver(), new_record(), SqliteQueue(None)
    async with receiving(receiver), pushing(queue) as push:
        await push.create(config(receiver), record)
        happen(record, 1)
        for steps in range(20):  # wherever it is by then
            creating = asyncio.ensure_future(push.create(config(receiver), record))
            for _ in range(steps):
                await asyncio.sleep(0)
            creating.cancel()
            await asyncio.wait([creating])
            happen(record, 1)
        record.log.close()
        await until_bodies(receiver, 21)
        await drained(queue)
    assert list(dict.fromkeys(receiver.bodies)) == bodies(range(1, 22))


async def until_bodies(receiver: Receiver, count: int) -> None:
    """Until so many different bodies have come."""
    while len(set(receiver.bodies)) < count:
        await receiver.got(len(receiver.requests) + 1)


async def test_configs_that_are_created_at_the_same_time_send_nothing_twice() -> None:
    receiver, record, queue = Receiver(), new_record(), SqliteQueue(None)
    async with receiving(receiver), pushing(queue) as push:
        await asyncio.gather(*(push.create(config(receiver), record) for _ in range(5)))
        happen(record, 5, end=True)
        await receiver.got(5)
        await drained(queue)
    assert receiver.bodies == bodies(range(1, 6))


async def test_deleting_stops_what_is_under_way_and_can_be_repeated() -> None:
    receiver, record, queue = Receiver(), new_record(), SqliteQueue(None)
    receiver.behaviours = [receiver.stall]
    async with receiving(receiver), pushing(queue) as push:
        await push.create(config(receiver), record)
        happen(record, 5)
        await receiver.got(1)
        await push.delete("t", "c")
        await push.delete("t", "c")
        await push.delete("unknown", "c")
        happen(record, 5, end=True)
        receiver.over.set()
        assert await push.list("t") == []
        assert await queue.pending() == set()
    assert len(receiver.requests) == 1


async def test_a_task_that_is_forgotten_leaves_nothing() -> None:
    receiver, record, queue = Receiver(status(404)), new_record(), SqliteQueue(None)
    async with receiving(receiver), pushing(queue) as push:
        await push.create(config(receiver, "a"), record)
        await push.create(config(receiver, "b"), record)
        happen(record, 3)
        await buried(push, 6)
        await push.forget("t")
        assert await push.list("t") == []
        assert await push.list_dead("t") == []
        assert await queue.tasks() == set()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("url", {"url": "ftp://receiver.example/"}),
        ("url", {"url": "http://10.0.0.1/"}),
        ("id", {"id": "a b"}),
        ("id", {"id": "a\r\nX-Injected: 1"}),
        ("id", {"id": "x" * 129}),
        ("id", {"id": "\u00fc"}),
        ("token", {"token": "a\r\nX-Injected: 1"}),
        ("token", {"token": "a\n"}),
        ("token", {"token": " a"}),
        ("token", {"token": "a\0"}),
        ("token", {"token": "\u00fc"}),
        ("token", {"token": "x" * 8193}),
        ("credentials", {"scheme": "Bearer", "credentials": "a\r\nX-Injected: 1"}),
        ("credentials", {"scheme": "Bearer", "credentials": "a\rb"}),
        ("scheme", {"scheme": "Bearer\r\nX-Injected: 1", "credentials": "a"}),
        ("scheme", {"scheme": "Bearer x", "credentials": "a"}),
        ("scheme", {"credentials": "a"}),
    ],
)
async def test_a_config_that_cannot_be_sent_is_refused(name: str, wrong: dict[str, str]) -> None:
    asked = replace(config("https://receiver.example/"), **wrong)  # type: ignore[arg-type]
    async with pushing(SqliteQueue(None), allow_private=False) as push:
        with pytest.raises(InvalidParams) as caught:
            await push.create(asked, new_record())
        assert caught.value.fields[0][0] == name
        assert await push.list("t") == []


# --- on disk -----------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "state" / "push"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def modes(directory: Path) -> dict[str, int]:
    return {path.name: mode(path) for path in directory.iterdir()}


@pytest.fixture
def made(directory: Path) -> Path:
    """The directory, which an operator has made."""
    directory.mkdir(0o700, parents=True)
    return directory


def contents(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.iterdir())


async def test_secrets_are_encrypted_wherever_they_are_written(directory: Path) -> None:
    secrets = {"token": "T0KENT0KEN", "scheme": "Bearer", "credentials": "CREDENT1ALS"}
    async with pushing(SqliteQueue(directory)) as push:
        url = "http://receiver.example/hooks/URLSECRET"
        await push.create(config(url, **secrets), new_record())
        while_open = contents(directory)
    for secret in (b"T0KENT0KEN", b"CREDENT1ALS", b"URLSECRET"):
        assert secret not in while_open + contents(directory)
    queue = SqliteQueue(directory)
    await queue.open()
    found = await queue.get(Key("t", "c"))
    await queue.close()
    assert found == (PushConfig("c", "t", url, **secrets), 0)  # type: ignore[arg-type]


async def test_the_files_are_the_owners_alone(directory: Path) -> None:
    umask = os.umask(0)
    try:
        async with pushing(SqliteQueue(directory)) as push:
            await push.create(config("http://receiver.example/"), new_record())
            files = modes(directory)
    finally:
        os.umask(umask)
    assert mode(directory) == 0o700
    assert files.keys() >= {"push.db", "push.db-wal", "push.key"}
    assert set(files.values()) == {0o600}


async def test_a_directory_that_others_can_enter_is_refused_and_left_as_it_is(made: Path) -> None:
    os.chmod(made, 0o750)
    with pytest.raises(ConfigurationError, match="chmod 700"):
        await SqliteQueue(made).open()
    assert (modes(made), mode(made)) == ({}, 0o750)


async def test_a_key_that_does_not_fit_is_told_before_the_start(directory: Path) -> None:
    await put_down(directory, 1)
    (directory / "push.key").unlink()
    with pytest.raises(ConfigurationError, match=r"push\.key is not the key"):
        await SqliteQueue(directory).open()


@pytest.mark.parametrize("name", ["push.db", "push.key"])
async def test_files_that_cannot_be_used_are_told_before_the_start(made: Path, name: str) -> None:
    os.mkdir(made / name)
    with pytest.raises(ConfigurationError, match="cannot use"):
        await SqliteQueue(made).open()


async def test_a_file_that_is_no_database_is_told_before_the_start(made: Path) -> None:
    (made / "push.db").write_bytes(b"something else\n" * 1000)
    with pytest.raises(ConfigurationError, match="cannot open"):
        await SqliteQueue(made).open()


async def test_two_servers_cannot_have_the_same_queue(directory: Path) -> None:
    async with pushing(SqliteQueue(directory)):
        with pytest.raises(ConfigurationError, match="locked"):
            await SqliteQueue(directory, lock_wait=0.05).open()


async def test_a_database_of_a_newer_version_is_refused(directory: Path) -> None:
    await put_down(directory, 1)
    with sqlite3.connect(directory / "push.db") as database:
        assert database.execute("PRAGMA user_version").fetchall() == [(len(MIGRATIONS),)]
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(ConfigurationError, match="newer version"):
        await SqliteQueue(directory).open()


async def test_a_migration_is_applied_once_and_keeps_what_was_there(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_down(directory, 3)
    later = (*MIGRATIONS, "CREATE TABLE later (x)")
    monkeypatch.setattr("bridge.push.configs.MIGRATIONS", later)
    for _ in range(2):
        assert await left_in(directory) == [1, 2, 3]


async def test_a_migration_that_fails_changes_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_down(directory, 3)
    with monkeypatch.context() as patch:
        broken = (*MIGRATIONS, "DROP TABLE delivery; CREATE TABLE config (x)")
        patch.setattr("bridge.push.configs.MIGRATIONS", broken)
        with pytest.raises(ConfigurationError):
            await SqliteQueue(directory).open()
    assert await left_in(directory) == [1, 2, 3]


async def put_down(directory: Path, count: int) -> None:
    """A queue with a config and so many deliveries, closed again."""
    queue = SqliteQueue(directory)
    await queue.open()
    await queue.put(PushConfig("c", "t", "http://receiver.example/"), 0)
    outgoing = [Outgoing(n, b"t/%d" % n) for n in range(1, count + 1)]
    await queue.add(Key("t", "c"), outgoing, count)
    await queue.close()


async def left_in(directory: Path) -> list[int]:
    """Numbers of the deliveries that wait, in the order in which they would be delivered. They
    are taken out for that, and put back."""
    queue = SqliteQueue(directory)
    await queue.open()
    numbers = []
    taken = []
    while waiting := await queue.first(Key("t", "c")):
        numbers.append(waiting[1].number)
        taken.append(Outgoing(waiting[1].number, waiting[1].payload))
        await queue.delivered(waiting[1])
    await queue.remove(Key("t", "c"))
    await queue.put(PushConfig("c", "t", "http://receiver.example/"), 0)
    await queue.add(Key("t", "c"), taken, numbers[-1] if numbers else 0)
    await queue.close()
    return numbers


async def test_what_is_put_down_twice_is_there_once() -> None:
    queue, key = SqliteQueue(None), Key("t", "c")
    await queue.open()
    await queue.put(PushConfig("c", "t", "http://receiver.example/"), 2)
    await queue.add(key, [Outgoing(n, b"x") for n in (1, 2, 3, 4)], 4)
    await queue.add(key, [Outgoing(n, b"y") for n in (3, 4, 5)], 5)
    seen = []
    while waiting := await queue.first(key):
        seen.append((waiting[1].number, waiting[1].payload))
        await queue.delivered(waiting[1])
    await queue.close()
    assert seen == [(3, b"x"), (4, b"x"), (5, b"y")]


async def test_nothing_is_kept_for_a_config_that_is_gone() -> None:
    queue = SqliteQueue(None)
    await queue.open()
    await queue.add(Key("t", "c"), [Outgoing(1, b"x")], 1)
    assert await queue.pending() == set()
    await queue.close()


async def test_a_receiver_that_is_never_there_does_not_fill_the_disk() -> None:
    queue, key = SqliteQueue(None, backlog=10), Key("t", "c")
    await queue.open()
    await queue.put(PushConfig("c", "t", "http://receiver.example/"), 0)
    await queue.add(key, [Outgoing(n, b"1234") for n in (1, 2, 3)], 3)
    assert [(dead.number, dead.error) for dead in await queue.dead("t")] == [(3, BACKLOG_FULL)]
    waiting = await queue.first(key)
    assert waiting
    await queue.delivered(waiting[1])
    await queue.add(key, [Outgoing(4, b"1234")], 4)
    assert len(await queue.dead("t")) == 1
    await queue.close()


async def test_a_full_disk_delays_notifications_and_loses_none() -> None:
    receiver, record, queue = Receiver(), new_record(), SqliteQueue(None)

    def large(config: PushConfig, task: Task, entry: Entry[Update]) -> bytes:
        return encode(config, task, entry) + b" " * 100_000

    async def pages(limit: int) -> None:
        await queue._run(lambda: queue._rows(f"PRAGMA max_page_count = {limit}"))

    async with receiving(receiver), pushing(queue, encode=large) as push:
        await push.create(config(receiver), record)
        await pages(20)
        happen(record, 3, end=True)
        with pytest.raises(QueueUnavailable, match="full"):
            await queue.add(Key("t", "c"), [Outgoing(1, b" " * 100_000)], 1)
        assert await queue.pending() == set()
        await pages(10_000)
        received = await receiver.got(3)
        await drained(queue)
        assert len(receiver.requests) == 3
        assert [body.strip() for body in received] == bodies([1, 2, 3])


# --- restarts and crashes ----------------------------------------------------------------------


async def test_what_waits_is_delivered_after_a_restart_and_then_the_task_is_forgotten(
    directory: Path,
) -> None:
    receiver, record = Receiver(status(500), accept), new_record()
    patient = RetryPolicy(first_pause=3600, longest_pause=3600)
    async with receiving(receiver):
        async with pushing(SqliteQueue(directory), policy=patient) as push:
            await push.create(config(receiver, token="t0k"), record)
            happen(record, 3, end=True)
            await receiver.got(1)
        queue = SqliteQueue(directory)
        async with pushing(queue):
            assert await receiver.got(4) == bodies([1, 1, 2, 3])

            async def forgotten() -> bool:
                return not await queue.tasks()

            await until(forgotten)
    assert receiver.requests[-1][0]["X-A2A-Notification-Token"] == "t0k"


async def test_the_end_of_a_task_is_put_down_when_the_server_stops(directory: Path) -> None:
    receiver, record = Receiver(), new_record()
    receiver.behaviours = [receiver.stall]
    async with receiving(receiver):
        async with pushing(SqliteQueue(directory)) as push:
            await push.create(config(receiver), record)
            happen(record, 600, end=True)
        assert await left_in(directory) == list(range(1, 601))


async def test_a_task_that_is_known_after_a_restart_is_followed_from_where_it_was(
    directory: Path,
) -> None:
    receiver, record = Receiver(), new_record()
    async with receiving(receiver):
        queue = SqliteQueue(directory)
        async with pushing(queue) as push:
            await push.create(config(receiver), record)
            happen(record, 3)
            await receiver.got(3)
            await drained(queue)
        happen(record, 3)
        queue = SqliteQueue(directory)
        push = Push(queue, encode, allow_private=True, policy=QUICK)
        await push.start(known=["t"])
        await push.watch(record)
        await push.watch(record)
        happen(record, 1, end=True)
        await receiver.got(7)
        await drained(queue)
        assert len(await push.list("t")) == 1
        await push.close()
    assert receiver.bodies == bodies(range(1, 8))


CHILD = """
import asyncio, sys
from pathlib import Path
from bridge.push.notifier import Push
from bridge.store.handle import TaskHandle
from bridge.push.configs import PushConfig, SqliteQueue
from bridge.task.state import StatusUpdate, Task, TaskState
from datetime import UTC, datetime

async def main(directory, count, *urls):
    now = datetime.now(UTC)
    record = TaskHandle(Task("t", "context", now))
    push = Push(SqliteQueue(Path(directory)), lambda c, t, e: b"t/%d" % e.number,
                allow_private=True)
    await push.start()
    for n, url in enumerate(urls):
        await push.create(PushConfig(f"c{n}", "t", url), record)
    record.log.append([StatusUpdate(TaskState.WORKING, now)] * int(count))
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


class Kill:
    """Kills the child at its nth request: before it is answered, or when the answer is sent. Not
    before `other` has got something, for then all that it is to get has been put down."""

    def __init__(self, at: int, answer: bool, other: Receiver) -> None:
        self.left, self.answer, self.other = at, answer, other
        self.pid: int | None = None

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.left -= 1
        if self.left > 0:
            return web.Response()
        await self.other.got(1)
        response = web.StreamResponse(headers={"Content-Length": "0"})
        if self.answer:
            await response.prepare(request)
            await response.write_eof()
        if self.left == 0 and self.pid:
            os.kill(self.pid, signal.SIGKILL)
        return response


@pytest.mark.parametrize(("at", "answer"), [(1, False), (7, True), (40, False), (99, True)])
async def test_a_crash_in_the_middle_of_deliveries_loses_nothing_and_keeps_the_order(
    directory: Path, at: int, answer: bool
) -> None:
    count = 100
    other = Receiver()
    kill = Kill(at, answer, other)
    receiver = Receiver(kill)
    async with receiving(receiver, other):
        arguments = ("-c", CHILD, str(directory), str(count), receiver.url, other.url)
        child = await asyncio.create_subprocess_exec(sys.executable, *arguments, cwd=REPOSITORY)
        kill.pid = child.pid
        async with asyncio.timeout(WITHIN):
            assert await child.wait() == -signal.SIGKILL
        receiver.behaviours = [accept]
        queue = SqliteQueue(directory)
        async with pushing(queue):
            await drained(queue)
    for one in (receiver, other):
        assert list(dict.fromkeys(one.bodies)) == bodies(range(1, count + 1))
        numbers = [int(body.partition(b"/")[2]) for body in one.bodies]
        assert numbers == sorted(numbers)
        assert len(numbers) <= count + 1  # what was under way may come twice, nothing else


WRITER = """
import asyncio, sys
from pathlib import Path
from bridge.push.configs import Key, Outgoing, PushConfig, SqliteQueue

async def main(directory):
    queue = SqliteQueue(Path(directory))
    await queue.open()
    await queue.put(PushConfig("c", "t", "http://receiver.example/"), 0)
    for number in range(1, 10**6):
        await queue.add(Key("t", "c"), [Outgoing(number, b"t/%d" % number)], number)
        print(number, flush=True)

asyncio.run(main(sys.argv[1]))
"""


async def test_a_crash_in_the_middle_of_writing_keeps_all_that_was_promised(
    directory: Path,
) -> None:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WRITER, str(directory)),
        cwd=REPOSITORY,
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdout
    async with asyncio.timeout(WITHIN):
        for _ in range(200):
            await child.stdout.readline()
        child.kill()
        rest = await child.stdout.read()
        await child.wait()
    promised = 200 + rest.count(b"\n")
    left = await left_in(directory)
    assert left == list(range(1, len(left) + 1))
    assert promised <= len(left) <= promised + 1
