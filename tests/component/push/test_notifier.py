"""Push notifications, sent to real receivers on loopback that misbehave."""

from __future__ import annotations

import asyncio
import gzip
import os
import resource
import signal
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

from bridge.errors import InvalidParams, PushNotificationNotSupported, Unavailable
from bridge.push.attempts import RetryPolicy
from bridge.push.configs import CONFIGS_PER_TASK
from bridge.push.notifier import Push
from bridge.store.changes import EventBatch, PushConfig, TaskRemoved
from bridge.store.event_log import Entry
from bridge.store.handle import TaskHandle, TaskHandles
from bridge.store.memory import MemoryStore
from bridge.store.protocol import Retention, Store, TaskHead
from bridge.store.serialization import micros
from bridge.store.sqlite.store import SqliteStore
from bridge.task.events import Done, Event, Status, Text
from bridge.task.state import Task, Update
from tests import CHECKOUT
from tests.support.receivers import WITHIN, Behaviour, Receiver, accept, receiving
from tests.support.signatures import verify
from tests.support.stored_tasks import begin, happen

AGENT = "a"
QUICK = RetryPolicy(attempts=4, first_pause=0.001, longest_pause=0.002)
REPOSITORY = CHECKOUT


# --- receivers and tasks -----------------------------------------------------------------------


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


class Bench(Push):
    """Push over a store, with the tasks of an agent there."""

    def __init__(self, store: Store, **options: Any) -> None:
        settings: dict[str, Any] = {"policy": QUICK, "allow_private": True, **options}
        super().__init__(store, settings.pop("encode", encode), **settings)
        self.store = store
        self.tasks = TaskHandles(AGENT, store)

    def task(self, task_id: str = "t") -> TaskHandle:
        return begin(self.tasks, task_id)

    def happen(self, handle: TaskHandle, count: int, end: bool = False) -> None:
        """So many updates; with `end`, the last one ends the task."""
        events: list[Event] = [Status("x")] * (count - end)
        happen(self.tasks, handle, *events, *[Done()] * end)

    async def find(self, head: TaskHead) -> TaskHandle | None:
        return await self.tasks.find(head.task_id)

    async def config(self, config_id: str = "c", task_id: str = "t") -> PushConfig:
        """The stored config, with its secrets and its cursor."""
        configs = await self.store.push_configs(task_id)
        return next(config for config in configs if config.id == config_id)


@asynccontextmanager
async def pushing(place: Path | MemoryStore | None = None, **options: Any) -> AsyncIterator[Bench]:
    """With this store, one in the folder `place`, or a new one in memory."""
    store = SqliteStore(place / "tasks.db") if isinstance(place, Path) else place or MemoryStore()
    await store.open()
    push = Bench(store, **options)
    await push.tasks.restore()
    try:
        async with asyncio.timeout(WITHIN):
            await push.start(push.find)
        yield push
    finally:
        async with asyncio.timeout(WITHIN):
            await push.close()
            await store.close()


def encode(config: PushConfig, task: Task, entry: Entry[Update]) -> tuple[str, bytes] | None:
    return "text/plain", f"{task.id}/{entry.number}".encode()


def config(receiver: Receiver | str, identity: str = "c", **more: Any) -> PushConfig:
    url = receiver if isinstance(receiver, str) else receiver.url
    return PushConfig("", identity, url, **{"version": "1.0", **more})


def bodies(numbers: Sequence[int] | range, task_id: str = "t") -> list[bytes]:
    return [f"{task_id}/{number}".encode() for number in numbers]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """For a condition without an event."""
    async with asyncio.timeout(WITHIN):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def drained(push: Bench) -> None:
    """Until each config has got all updates of its task, or they are dead letters."""

    async def delivered() -> bool:
        for config in await push.store.push_configs():
            head = await push.store.head(config.task_id)
            if head and config.cursor < head.last:
                return False
        return True

    await until(delivered)


async def dead(push: Bench) -> list[tuple[int, int, str]]:
    """Number, attempts and error of the dead letters of task t."""
    return [(one.number, one.attempts, one.error) for one in await push.store.push_failures("t")]


async def buried(push: Bench, count: int) -> list[tuple[int, int, str]]:
    """The dead letters of task t, after there are `count` of them."""

    async def enough() -> bool:
        return len(await dead(push)) >= count

    await until(enough)
    return await dead(push)


# --- what is sent ------------------------------------------------------------------------------


async def test_every_update_is_sent_once_and_in_order() -> None:
    receiver = Receiver()
    async with receiving(receiver), pushing() as push:
        handle = push.task()
        await push.create(config(receiver), handle)
        for _ in range(5):
            push.happen(handle, 3)
        push.happen(handle, 5, end=True)
        assert await receiver.got(20) == bodies(range(1, 21))
        await drained(push)
        assert receiver.ids == [f"t:c:{number}" for number in range(1, 21)]


async def test_the_headers_have_the_media_type_and_the_secrets_of_the_config() -> None:
    receiver = Receiver()
    async with receiving(receiver), pushing() as push:
        handle = push.task()
        secrets = {"token": "t0k", "scheme": "Bearer", "credentials": "abc def="}
        await push.create(config(receiver, **secrets), handle)
        push.happen(handle, 1)
        await receiver.got(1)
        await push.delete("t", "c")
        await push.create(config(receiver, scheme="Bearer"), handle)
        push.happen(handle, 1)
        await receiver.got(2)
    new, old = (headers for headers, _ in receiver.requests)
    assert new["Content-Type"] == old["Content-Type"] == "text/plain"
    assert new["Authorization"] == "Bearer abc def="
    assert new["X-A2A-Notification-Token"] == "t0k"
    assert not {"Authorization", "X-A2A-Notification-Token"} & old.keys()


async def test_a_config_gets_the_updates_after_its_creation() -> None:
    receiver = Receiver()
    async with receiving(receiver), pushing() as push:
        handle = push.task()
        push.happen(handle, 3)
        await push.create(config(receiver), handle)
        push.happen(handle, 2)
        assert await receiver.got(2) == bodies([4, 5])


async def test_updates_during_the_creation_of_a_config_are_delivered() -> None:
    receiver = Receiver()
    async with receiving(receiver), pushing() as push:
        handle = push.task()
        creating = asyncio.ensure_future(push.create(config(receiver), handle))
        await asyncio.sleep(0)
        push.happen(handle, 3, end=True)
        await creating
        assert await receiver.got(3) == bodies([1, 2, 3])


async def test_the_encoding_may_leave_out_updates_and_its_bugs_are_dead_letters() -> None:
    def some(config: PushConfig, task: Task, entry: Entry[Update]) -> tuple[str, bytes] | None:
        if entry.number == 3:
            raise ValueError("a bug")
        return None if entry.number == 2 else encode(config, task, entry)

    receiver = Receiver()
    async with receiving(receiver), pushing(encode=some) as push:
        handle = push.task()
        await push.create(config(receiver), handle)
        push.happen(handle, 4)
        assert await receiver.got(2) == bodies([1, 4])
        assert await buried(push, 1) == [(3, 0, "internal error")]


async def test_a_body_shows_the_task_at_the_time_of_its_delivery() -> None:
    def state(config: PushConfig, task: Task, entry: Entry[Update]) -> tuple[str, bytes]:
        return "text/plain", task.state.value.encode()

    receiver = Receiver(status(500), accept)
    async with receiving(receiver), pushing(encode=state) as push:
        handle = push.task()
        await push.create(config(receiver), handle)
        push.happen(handle, 1)
        push.happen(handle, 1, end=True)
        assert (await receiver.got(3))[1:] == [b"completed"] * 2


async def test_updates_that_left_the_memory_are_read_from_the_store(directory: Path) -> None:
    """In any state of the task: a receiver that is late, and a long task."""
    late = Receiver()
    late.behaviours = [late.stall, accept]
    async with receiving(late), pushing(directory) as push:
        handle = push.task()
        await push.create(config(late), handle)
        for _ in range(40):
            happen(push.tasks, handle, *[Text("x" * 5000)] * 3)
            await push.store.flush()
        assert handle.log.kept(0) is None
        late.over.set()
        last = handle.log.last
        await late.got(last // 2)
        happen(push.tasks, handle, Done())
        await drained(push)
        assert list(dict.fromkeys(late.bodies)) == bodies(range(1, handle.log.last + 1))


class Locked(MemoryStore):
    """Another program has the database at the first reads."""

    left = 2

    async def read(self, task_id: str, after: int = 0) -> Sequence[EventBatch]:
        if self.left:
            self.left -= 1
            raise Unavailable("database is locked")
        return await super().read(task_id, after)


class Away(MemoryStore):
    """The database is not reachable at some reads of the configs."""

    left = 0

    async def push_configs(self, task_id: str | None = None) -> Sequence[PushConfig]:
        if self.left:
            self.left -= 1
            raise Unavailable("the database is away")
        return await super().push_configs(task_id)


async def test_configs_that_cannot_be_read_now_are_read_again() -> None:
    receiver, store = Receiver(), Away()
    async with receiving(receiver), pushing(store) as push:
        handle = push.task()
        await push.create(config(receiver), handle, after=0)
        store.left = 3
        push.happen(handle, 2, end=True)
        assert await receiver.got(2) == bodies([1, 2])
        assert store.left == 0


async def test_operations_are_refused_without_support() -> None:
    async with pushing(supported=False) as push:
        handle = push.task()
        for call in (
            push.check(config("http://a.example/"), "t"),
            push.create(config("http://a.example/"), handle),
            push.list("t"),
            push.delete("t", "c"),
        ):
            with pytest.raises(PushNotificationNotSupported):
                await call


async def test_a_store_that_cannot_be_read_now_is_read_again() -> None:
    receiver, store = Receiver(), Locked()
    async with receiving(receiver), pushing(store) as push:
        handle = push.task()
        happen(push.tasks, handle, *[Text("x" * 10_000)] * 5, Done())
        assert handle.log.kept(0) is None
        await push.create(config(receiver), handle, after=0)
        last = handle.log.last
        assert await receiver.got(last) == bodies(range(1, last + 1))
        assert store.left == 0


async def test_a_config_holds_no_updates_in_memory(directory: Path) -> None:
    """Its receiver stalls, and then fails: the log drops its entries as without a config."""
    stalls = Receiver()
    stalls.behaviours = [stalls.stall]
    kept: list[int] = []
    async with receiving(stalls), pushing(directory) as push:
        for name, configs in (("none", 0), ("t", 3)):
            handle = push.task(name)
            for n in range(configs):
                await push.create(config(stalls, str(n)), handle)
            for _ in range(40):
                happen(push.tasks, handle, *[Text("x" * 5000)] * 3)
                await push.store.flush()
            kept.append(len(handle.log))
        assert kept[0] == kept[1] < handle.log.last / 2
        happen(push.tasks, handle, Done())
        await push.store.flush()
        assert len(handle.log) == 0


# --- receivers that fail -----------------------------------------------------------------------


@pytest.mark.parametrize("failure", [500, 503, 599, 408, 425, 429])
async def test_temporary_failures_are_retried_in_order(failure: int) -> None:
    receiver = Receiver(accept, status(failure), status(failure), accept)
    async with receiving(receiver), pushing() as push:
        handle = push.task()
        await push.create(config(receiver), handle)
        push.happen(handle, 4, end=True)
        assert await receiver.got(6) == bodies([1, 2, 2, 2, 3, 4])
        await drained(push)
        assert await dead(push) == []
        assert receiver.ids[1] == receiver.ids[2] == receiver.ids[3] == "t:c:2"


async def test_each_attempt_has_a_signature_of_its_time() -> None:
    """Takes the second between two times of a signature."""
    receiver = Receiver(status(503), accept)
    slow = RetryPolicy(first_pause=1.0)
    async with receiving(receiver), pushing(policy=slow, random=lambda: 1.0) as push:
        handle = push.task()
        secrets = {"scheme": "HMAC-SHA256", "credentials": "a secret of the receiver"}
        await push.create(config(receiver, **secrets), handle)
        push.happen(handle, 1)
        await receiver.got(2)
    (first, _), (second, _) = receiver.requests
    assert first["webhook-id"] == second["webhook-id"] == "t:c:1"
    assert int(first["webhook-timestamp"]) < int(second["webhook-timestamp"])
    assert all(verify(*request, secrets["credentials"]) for request in receiver.requests)


@pytest.mark.parametrize("failure", [400, 401, 404, 410, 301, 302, 307, 308])
async def test_permanent_failures_are_dead_letters_at_once(
    failure: int,
) -> None:
    receiver = Receiver(status(failure), accept)
    async with receiving(receiver), pushing() as push:
        handle = push.task()
        await push.create(config(receiver), handle)
        push.happen(handle, 3)
        assert await receiver.got(3) == bodies([1, 2, 3])
        assert await buried(push, 1) == [(1, 1, f"status {failure}")]


async def test_after_the_last_attempt_a_notification_is_a_dead_letter() -> None:
    receiver = Receiver(*[status(500)] * 4, accept)
    async with receiving(receiver), pushing() as push:
        handle = push.task()
        await push.create(config(receiver), handle)
        push.happen(handle, 3)
        assert await receiver.got(6) == bodies([1, 1, 1, 1, 2, 3])
        assert await buried(push, 1) == [(1, 4, "status 500")]
        assert [one.config_id for one in await push.store.push_failures("t")] == ["c"]
        assert await push.store.push_failures("another") == []


async def test_a_receiver_that_stalls_is_a_timeout() -> None:
    receiver = Receiver()
    receiver.behaviours = [receiver.stall, accept]
    async with receiving(receiver), pushing(policy=replace(QUICK, timeout=0.2)) as push:
        handle = push.task()
        await push.create(config(receiver), handle)
        push.happen(handle, 2)
        assert await receiver.got(3) == bodies([1, 1, 2])


async def test_a_missing_receiver_is_a_failed_connection() -> None:
    async with receiving(gone := Receiver()):
        pass
    async with pushing() as push:
        handle = push.task()
        await push.create(config(gone), handle)
        push.happen(handle, 2)
        assert await buried(push, 2) == [(1, 4, "connection failed"), (2, 4, "connection failed")]


async def test_a_connection_that_is_closed_early_is_attempted_again() -> None:
    receiver = Receiver(close_early, close_early, accept)
    async with receiving(receiver), pushing() as push:
        handle = push.task()
        await push.create(config(receiver), handle)
        push.happen(handle, 2)
        assert await receiver.got(4) == bodies([1, 1, 1, 2])


@pytest.mark.parametrize("answer", [big, gzip_bomb])
async def test_long_answers_are_accepted_and_not_read(answer: Behaviour) -> None:
    receiver = Receiver(answer)
    async with receiving(receiver), pushing() as push:
        handle = push.task()
        await push.create(config(receiver), handle)
        push.happen(handle, 3, end=True)
        assert await receiver.got(3) == bodies([1, 2, 3])
        await drained(push)
        assert await dead(push) == []


async def test_a_name_that_leads_into_the_private_network_is_a_dead_letter_at_once() -> None:
    from tests.support.names import Names

    receiver = Receiver()
    async with receiving(receiver):
        port = receiver.url.rpartition(":")[2]
        names = Names(["127.0.0.1"])
        options: dict[str, Any] = {"allow_private": False, "resolver": names}
        async with pushing(**options) as push:
            handle = push.task()
            await push.create(config(f"https://receiver.example:{port}"), handle)
            push.happen(handle, 1)
            assert await buried(push, 1) == [(1, 1, "refused address")]
    assert receiver.requests == []


async def postponed(push: Bench) -> bool:
    """Whether one attempt for the config c of task t has failed, and another is to come."""
    return (await push.config()).attempts == 1


def test_pauses_double_up_to_the_longest_and_half_of_each_is_chance() -> None:
    policy = RetryPolicy()
    assert [policy.pause(n, lambda: 1.0) for n in (1, 2, 3, 9, 10, 2000)] == [
        *(1.0, 2.0, 4.0, 256.0, 300.0, 300.0)
    ]
    assert [policy.pause(n, lambda: 0.0) for n in (1, 2, 9)] == [0.5, 1.0, 128.0]


async def test_a_failed_notification_waits_for_its_retry() -> None:
    receiver = Receiver(status(500))
    patient = RetryPolicy(first_pause=3600, longest_pause=3600)
    async with receiving(receiver), pushing(policy=patient) as push:
        handle = push.task()
        await push.create(config(receiver), handle)
        push.happen(handle, 2)
        await until(lambda: postponed(push))
        await witness(receiver)
        assert [body for body in receiver.bodies if body] == bodies([1])


async def witness(receiver: Receiver) -> None:
    """Requests that take longer than the next attempt of a config would."""
    async with aiohttp.ClientSession() as session:
        for _ in range(3):
            async with session.post(receiver.url + "/witness", data=b""):
                pass


# --- several receivers -------------------------------------------------------------------------


async def test_a_receiver_that_stalls_delays_no_other_and_not_the_task() -> None:
    slow, quick = Receiver(), Receiver()
    slow.behaviours = [slow.stall]
    async with receiving(slow, quick), pushing() as push:
        handle = push.task()
        await push.create(config(slow, "slow"), handle)
        await push.create(config(quick, "quick"), handle)
        push.happen(handle, 1)
        await slow.got(1)
        push.happen(handle, 9, end=True)
        assert await quick.got(10) == bodies(range(1, 11))
        assert slow.bodies == bodies([1])


async def test_each_config_keeps_its_order_under_failures_of_its_own() -> None:
    flaky = Receiver(*[accept, status(500), close_early] * 10, accept)
    steady = Receiver()
    async with receiving(flaky, steady), pushing() as push:
        handle = push.task()
        await push.create(config(flaky, "flaky"), handle)
        await push.create(config(steady, "steady"), handle)
        for _ in range(10):
            push.happen(handle, 2)
        handle.log.close()
        assert await steady.got(20) == bodies(range(1, 21))
        await flaky.got(20)
        await drained(push)
    assert list(dict.fromkeys(flaky.bodies)) == bodies(range(1, 21))
    assert flaky.bodies == sorted(flaky.bodies, key=lambda body: int(body.partition(b"/")[2]))


async def test_a_host_sees_two_connections_at_once_and_other_hosts_are_not_kept() -> None:
    host, other = Receiver(), Receiver()
    host.behaviours = [host.stall]
    async with receiving(host, other), pushing() as push:
        handles = [push.task(f"t{n}") for n in range(5)]
        for handle in handles:
            await push.create(config(host), handle)
            push.happen(handle, 2)
        await host.got(2)
        handle = push.task("other")
        await push.create(config(other.url.replace("127.0.0.1", "localhost")), handle)
        push.happen(handle, 1)
        await other.got(1)
        assert len(host.requests) == 2
        host.over.set()
        assert set(await host.got(10)) == {b for n in range(5) for b in bodies([1, 2], f"t{n}")}
    assert host.most_open == 2


async def test_all_connections_together_are_limited() -> None:
    receiver = Receiver()
    receiver.behaviours = [receiver.stall]
    policy = replace(QUICK, per_host=100, overall=3)
    async with receiving(receiver), pushing(policy=policy) as push:
        for n in range(8):
            handle = push.task(f"t{n}")
            await push.create(config(receiver), handle)
            push.happen(handle, 1)
        await receiver.got(3)
        await witness(receiver)
        assert [body for body in receiver.bodies if body] == receiver.bodies[:3]
        receiver.over.set()
        await receiver.got(8 + 3)


# --- configs -----------------------------------------------------------------------------------


async def test_configs_are_listed_in_order_and_without_their_secrets() -> None:
    secrets = {"token": "t0k", "scheme": "Bearer", "credentials": "s3cret"}
    async with pushing() as push:
        handle = push.task()
        await push.create(config("http://a.example/", "z", **secrets), handle)
        await push.create(config("http://b.example/", ""), handle, default_id=True)
        third = await push.create(config("http://b.example/", ""), handle, default_id=True)
        first, second, last = await push.list("t")
        assert first == PushConfig("t", "z", "http://a.example/", "1.0", scheme="Bearer")
        assert second.id == "t"  # the task's: its default config
        assert len(third.id) == 32
        assert last.id == third.id
        assert await push.list("another") == []


def test_secrets_are_not_in_the_representation() -> None:
    made = PushConfig("t", "c", "http://x/S3CRET", "1.0", "S3CRET", "Bearer", "S3CRET")
    assert "S3CRET" not in repr(made)


async def test_the_same_id_may_be_used_for_another_task() -> None:
    receiver = Receiver()
    async with receiving(receiver), pushing() as push:
        one, two = push.task("one"), push.task("two")
        await push.create(config(receiver), one)
        await push.create(config(receiver), two)
        push.happen(one, 1)
        push.happen(two, 1)
        await receiver.got(2)
        assert set(receiver.ids) == {"one:c:1", "two:c:1"}
        push.store.append([TaskRemoved("one")], fence=None)
        assert await push.list("one") == []
        assert len(await push.list("two")) == 1


async def test_a_task_has_a_limited_number_of_configs_and_replacing_one_is_not_one_more() -> None:
    async with pushing() as push:
        handle = push.task()
        for n in range(CONFIGS_PER_TASK):
            await push.create(config("http://a.example/", str(n)), handle)
        with pytest.raises(InvalidParams, match="at most 10"):
            await push.create(config("http://a.example/", "one-more"), handle)
        await push.create(config("http://b.example/", "3"), handle)
        listed = await push.list("t")
        assert [one.id for one in listed] == [str(n) for n in range(CONFIGS_PER_TASK)]
        assert listed[3].url == "http://b.example/"


async def test_waiting_notifications_go_to_the_new_address_at_once() -> None:
    wrong, right = Receiver(status(500)), Receiver()
    patient = RetryPolicy(first_pause=3600, longest_pause=3600)
    async with receiving(wrong, right), pushing(policy=patient) as push:
        handle = push.task()
        await push.create(config(wrong), handle)
        push.happen(handle, 3)
        await until(lambda: postponed(push))
        await push.create(config(right, token="new"), handle)
        push.happen(handle, 1)
        assert await right.got(4) == bodies([1, 2, 3, 4])
        assert {headers["X-A2A-Notification-Token"] for headers, _ in right.requests} == {"new"}
    assert wrong.bodies == bodies([1])


async def test_an_attempt_that_fails_while_its_config_is_replaced_decides_nothing() -> None:
    right = Receiver()

    async def refuse(request: web.Request) -> web.StreamResponse:
        replacing.set_result(asyncio.ensure_future(push.create(config(right), handle)))
        return web.Response(status=404)

    replacing: asyncio.Future[asyncio.Future[PushConfig]] = asyncio.Future()
    wrong = Receiver(refuse)
    async with receiving(wrong, right), pushing() as push:
        handle = push.task()
        await push.create(config(wrong), handle)
        push.happen(handle, 3, end=True)
        await (await replacing)
        assert await right.got(3) == bodies([1, 2, 3])
        assert await dead(push) == []


async def test_a_cancelled_creation_keeps_the_old_config() -> None:
    receiver = Receiver()
    async with receiving(receiver), pushing() as push:
        handle = push.task()
        await push.create(config(receiver), handle)
        push.happen(handle, 1)
        for steps in range(20):  # wherever it is by then
            creating = asyncio.ensure_future(push.create(config(receiver), handle))
            for _ in range(steps):
                await asyncio.sleep(0)
            creating.cancel()
            await asyncio.wait([creating])
            push.happen(handle, 1)
            await until_bodies(receiver, steps + 2)
        await drained(push)
    assert list(dict.fromkeys(receiver.bodies)) == bodies(range(1, 22))


async def test_a_config_with_a_cancelled_creation_is_served_after_its_commit(
    directory: Path,
) -> None:
    receiver = Receiver()
    async with receiving(receiver), pushing(directory) as push:
        handle = push.task()
        creating = asyncio.ensure_future(push.create(config(receiver), handle))
        for _ in range(3):
            await asyncio.sleep(0)
        creating.cancel()
        await asyncio.wait([creating])
        assert await push.store.push_configs() == []
        await push.store.flush()
        assert len(await push.store.push_configs()) == 1
        push.happen(handle, 1)
        await receiver.got(1)


async def until_bodies(receiver: Receiver, count: int) -> None:
    """Until so many different bodies have come."""
    while len(set(receiver.bodies)) < count:
        await receiver.got(len(receiver.requests) + 1)


async def test_configs_that_are_created_at_the_same_time_send_nothing_twice() -> None:
    receiver = Receiver()
    async with receiving(receiver), pushing() as push:
        handle = push.task()
        await asyncio.gather(*(push.create(config(receiver), handle) for _ in range(5)))
        push.happen(handle, 5, end=True)
        await receiver.got(5)
        await drained(push)
    assert receiver.bodies == bodies(range(1, 6))


async def test_deleting_stops_the_delivery_and_is_idempotent() -> None:
    receiver = Receiver()
    receiver.behaviours = [receiver.stall]
    async with receiving(receiver), pushing() as push:
        handle = push.task()
        await push.create(config(receiver), handle)
        push.happen(handle, 5)
        await receiver.got(1)
        await push.delete("t", "c")
        await push.delete("t", "c")
        await push.delete("unknown", "c")
        push.happen(handle, 5, end=True)
        receiver.over.set()
        assert await push.list("t") == []
    assert len(receiver.requests) == 1


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
    async with pushing(allow_private=False) as push:
        with pytest.raises(InvalidParams) as caught:
            await push.create(asked, push.task())
        assert caught.value.fields[0][0] == name
        assert await push.list("t") == []


# --- direct replies and retention --------------------------------------------------------------


async def test_a_call_after_the_delivery_waits_for_all_configs() -> None:
    slow, quick = Receiver(), Receiver()
    slow.behaviours = [slow.stall]
    called: list[int] = []
    async with receiving(slow, quick), pushing() as push:
        handle = push.task()
        push.happen(handle, 2, end=True)
        push.after_delivery("t", lambda: called.append(len(slow.requests)))  # before the configs
        await push.create(config(slow, "slow"), handle, after=0)
        await push.create(config(quick, "quick"), handle, after=0)
        await quick.got(2)
        await slow.got(1)
        assert called == []
        slow.over.set()
        await slow.got(2)
        await until(lambda: was(called))
    assert called == [2]


async def was(called: list[int]) -> bool:
    return bool(called)


async def test_undelivered_notifications_become_one_dead_letter_per_config() -> None:
    gone, patient = Receiver(status(500)), RetryPolicy(first_pause=3600, longest_pause=3600)
    async with receiving(gone), pushing(policy=patient) as push:
        handle = push.task()
        assert not await push.expire("t")
        await push.create(config(gone), handle)
        push.happen(handle, 3, end=True)
        await until(lambda: postponed(push))
        now = micros(datetime.now(UTC))
        few, day = Retention(AGENT, tasks=0), 24 * 3600 * 1_000_000
        assert await push.store.expired(few, now) == []
        assert await push.store.expired(few, now + day) == ["t"]
        assert await push.expire("t")
        assert await dead(push) == [(3, 0, "expired")]
        assert await push.store.expired(few, now) == ["t"]
        assert not await push.expire("t")
    assert len(gone.requests) == 1


async def test_a_task_without_configs_costs_nothing() -> None:
    async with pushing() as push:
        handle = push.task()
        before = len(asyncio.all_tasks())
        push.happen(handle, 100)
        assert len(asyncio.all_tasks()) == before


# --- restarts and crashes ----------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "state"


def modes(directory: Path) -> dict[str, int]:
    found = {path.name: path for path in directory.iterdir()} | {".": directory}
    return {name: stat.S_IMODE(path.stat().st_mode) for name, path in found.items()}


async def test_only_the_owner_can_read_the_files(directory: Path) -> None:
    umask = os.umask(0)
    try:
        async with pushing(directory) as push:
            secrets = {"token": "T0KENT0KEN", "scheme": "Bearer", "credentials": "S3CRET"}
            await push.create(config("http://receiver.example/", **secrets), push.task())
            files = modes(directory)
    finally:
        os.umask(umask)
    assert files.pop(".") == 0o700
    assert files.keys() >= {"tasks.db", "tasks.db-wal"}
    assert set(files.values()) == {0o600}


async def test_a_config_is_refused_while_the_store_cannot_write(directory: Path) -> None:
    async with pushing(directory) as push:
        handle = push.task()
        (directory / "tasks.db").rename(directory / "away")
        with pytest.raises(Unavailable):
            await push.create(config("http://receiver.example/"), handle)
        (directory / "away").rename(directory / "tasks.db")


async def test_a_config_is_refused_if_its_commit_takes_too_long(directory: Path) -> None:
    """The lock of the configs is free again, and the store has only the config of the retry."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with pushing(directory, policy=replace(QUICK, write_within=0.1)) as push:
        handle = push.task()
        await push.create(config("http://receiver.example/", "old"), handle)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            async with asyncio.timeout(WITHIN):
                with pytest.raises(Unavailable, match="cannot write"):
                    await push.create(config("http://receiver.example/", "new"), handle)
                with pytest.raises(Unavailable, match="cannot write"):
                    await push.delete("t", "missing")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        await until(lambda: can_write(push))
        await push.create(config("http://receiver.example/", "retry"), handle)
        assert [one.id for one in await push.list("t")] == ["old", "retry"]


async def can_write(push: Bench) -> bool:
    return push.store.problem is None


async def test_a_full_disk_delays_notifications_and_loses_none(directory: Path) -> None:
    receiver = Receiver()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def stuck() -> bool:
        return push.store.problem is not None

    async with receiving(receiver), pushing(directory) as push:
        handle = push.task()
        await push.create(config(receiver), handle)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            push.happen(handle, 3, end=True)
            await until(stuck)
            assert receiver.requests == []
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert await receiver.got(3) == bodies([1, 2, 3])
        await drained(push)
        assert len(receiver.requests) == 3


@pytest.mark.parametrize("ended", [True, False])
async def test_a_later_server_continues_at_the_cursor(directory: Path, ended: bool) -> None:
    receiver = Receiver(accept, accept, status(500), accept)
    patient = RetryPolicy(first_pause=3600, longest_pause=3600)
    async with receiving(receiver):
        async with pushing(directory, policy=patient) as push:
            handle = push.task()
            await push.create(config(receiver, token="t0k"), handle)
            push.happen(handle, 6, end=ended)
            await until(lambda: postponed(push))
            await push.create(config(receiver, token="new"), handle)  # its due is now
            await receiver.got(7)
            await push.create(config("http://127.0.0.1:1/", "other"), handle, after=4)
            await until(lambda: postponed_other(push))
            assert (await push.config()).cursor == 6
        async with pushing(directory, policy=QUICK) as push:
            assert (await push.config()).cursor == 6
            found = await push.tasks.find("t")
            assert found
            if not ended:
                push.happen(found, 2, end=True)
                await receiver.got(9)
            await buried(push, 2)
            await drained(push)
    assert receiver.bodies == bodies([1, 2, 3, 3, 4, 5, 6, *([] if ended else [7, 8])])
    assert receiver.requests[-1][0]["X-A2A-Notification-Token"] == "new"


async def postponed_other(push: Bench) -> bool:
    return (await push.config("other")).attempts == 1


CHILD = """
import asyncio, sys
from pathlib import Path
from datetime import UTC, datetime
from bridge.push.notifier import Push
from bridge.runtime.recorder import Recorder
from bridge.store.handle import TaskHandle, TaskHandles
from bridge.store.changes import PushConfig
from bridge.store.sqlite.store import SqliteStore
from bridge.task.events import Done, Status
from bridge.task.message import Message, Role
from bridge.task.state import Task
from bridge.telemetry.audit import NO_AUDIT

async def main(directory, count, *urls):
    store = SqliteStore(Path(directory) / "tasks.db")
    await store.open()
    nothing = lambda *_: None
    recorder = Recorder(TaskHandles("a", store), NO_AUDIT, on_status=nothing, on_end=nothing,
                        on_lost=nothing)
    push = Push(store, lambda c, t, e: ("text/plain", b"t/%d" % e.number), allow_private=True)
    await push.start(None)
    handle = TaskHandle(Task("t", "context", datetime.now(UTC)))
    recorder.begin(handle, Message("m", Role.USER, ()))
    for n, url in enumerate(urls):
        await push.create(PushConfig("", f"c{n}", url, "1.0"), handle)
    recorder.record(handle, [*[Status("x")] * (int(count) - 1), Done()])
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


class Kill:
    """Kills the child at its nth request: before it is answered, or when the answer is sent."""

    def __init__(self, at: int, answer: bool) -> None:
        self.left, self.answer = at, answer
        self.pid: int | None = None

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.left -= 1
        if self.left > 0:
            return web.Response()
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
    """A notification without a committed delivery is sent again, with the same id."""
    count, other = 100, Receiver()
    kill = Kill(at, answer)
    receiver = Receiver(kill)
    async with receiving(receiver, other):
        arguments = ("-c", CHILD, str(directory), str(count), receiver.url, other.url)
        child = await asyncio.create_subprocess_exec(sys.executable, *arguments, cwd=REPOSITORY)
        kill.pid = child.pid
        async with asyncio.timeout(WITHIN):
            assert await child.wait() == -signal.SIGKILL
        receiver.behaviours = [accept]
        async with pushing(directory) as push:
            await drained(push)
    for one in (receiver, other):
        assert list(dict.fromkeys(one.bodies)) == bodies(range(1, count + 1))
        numbers = [int(body.partition(b"/")[2]) for body in one.bodies]
        assert numbers == sorted(numbers)
        assert len(numbers) <= count + 1  # the one that was under way may come twice
        assert [int(name.rpartition(":")[2]) for name in one.ids] == numbers
