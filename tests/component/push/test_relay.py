"""Push notifications through a real Redis and workers: order, leases, losses and secrets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from aiohttp import web
from cryptography.fernet import Fernet

from bridge.errors import ConfigurationError
from bridge.push.attempts import RetryPolicy
from bridge.push.jobs import JobKeys, JobSeal, PushJob, UnreadableJob
from bridge.push.notifier import Push
from bridge.push.relay import RedisRelay, RelayConfig
from bridge.push.worker import PushWorker, WorkerConfig
from bridge.store.changes import PushConfig
from bridge.store.event_log import Entry
from bridge.store.handle import TaskHandle, TaskHandles
from bridge.store.protocol import TaskHead
from bridge.store.redis_address import parse_redis
from bridge.store.sqlite.store import SqliteStore
from bridge.task.events import Done, Event, Status
from bridge.task.state import Task, Update
from tests.support.receivers import Receiver, accept, receiving
from tests.support.redis_broker import WITHIN, RedisBroker
from tests.support.signatures import verify
from tests.support.stored_tasks import begin, happen

KEY = Fernet.generate_key().decode()
LEASE = 0.6  # seconds
KEYS = JobKeys("cab")
QUICK = RetryPolicy(attempts=3, first_pause=0.001, longest_pause=0.002)


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    """For a condition without an event. The first job or worker makes the group of the jobs: no
    condition holds before."""
    async with asyncio.timeout(WITHIN):
        while True:
            try:
                if await condition():
                    return
            except redis.ResponseError as error:
                if not str(error).startswith("NOGROUP"):
                    raise
            await asyncio.sleep(0.005)


async def until_length(client: Any, stream: str, length: int) -> None:
    async def reached() -> bool:
        return bool(await client.xlen(stream) == length)

    await until(reached)


def encode(config: PushConfig, task: Task, entry: Entry[Update]) -> tuple[str, bytes] | None:
    return "text/plain", f"{task.id}/{entry.number}".encode()


class Sender:
    """A server that relays, with the tasks of its store."""

    def __init__(self, push: Push, store: SqliteStore, relay: RedisRelay) -> None:
        self.push = push
        self.store = store
        self.relay = relay
        self.tasks = TaskHandles("a", store)

    async def find(self, head: TaskHead) -> TaskHandle | None:
        return await self.tasks.find(head.task_id)

    async def task(self, receiver: Receiver, task_id: str = "t", **config: Any) -> TaskHandle:
        """A task with a config for the receiver."""
        handle = begin(self.tasks, task_id)
        await self.push.create(PushConfig("", "c", receiver.url, "1.0", **config), handle)
        return handle

    def happen(self, handle: TaskHandle, count: int, end: bool = False) -> None:
        events: list[Event] = [Status("x")] * (count - end)
        happen(self.tasks, handle, *events, *[Done()] * end)


@asynccontextmanager
async def sending(
    broker: RedisBroker, folder: Path, server: str = "s", **config: Any
) -> AsyncIterator[Sender]:
    store = SqliteStore(folder / "tasks.db")
    await store.open()
    chosen = RelayConfig("cab", server, KEY, LEASE)
    relay = RedisRelay(parse_redis(broker.url), replace(chosen, **config))
    push = Push(store, encode, allow_private=True, policy=QUICK)
    push.delivery.relay = relay
    sender = Sender(push, store, relay)
    await sender.tasks.restore()
    await push.start(sender.find)
    try:
        yield sender
    finally:
        await push.close()
        await store.close()


@asynccontextmanager
async def working(broker: RedisBroker, count: int = 1, **config: Any) -> AsyncIterator[None]:
    chosen = WorkerConfig("cab", KEY, LEASE, timeout=LEASE / 2, allow_private=True, at_once=1)
    workers = [PushWorker(parse_redis(broker.url), replace(chosen, **config)) for _ in range(count)]
    runs = [asyncio.create_task(one.run()) for one in workers]
    try:
        yield
    finally:
        for one in workers:
            one.stop()
        async with asyncio.timeout(WITHIN):
            await asyncio.gather(*runs)


def numbers(receiver: Receiver, task_id: str = "t") -> list[int]:
    found = (body.decode().partition("/") for body in receiver.bodies)
    return [int(number) for task, _, number in found if task == task_id]


# --- delivery -----------------------------------------------------------------------------------


async def test_workers_keep_the_order_of_a_receiver(broker: RedisBroker, tmp_path: Path) -> None:
    """Several workers with several jobs each, and a receiver that refuses some attempts."""

    async def unavailable(request: web.Request) -> web.StreamResponse:
        return web.Response(status=503)

    receiver = Receiver(accept, unavailable, accept, accept, unavailable, unavailable, accept)
    other = Receiver()
    async with (
        receiving(receiver, other),
        sending(broker, tmp_path) as sender,
        working(broker, 3, at_once=2),
    ):
        first, second = await sender.task(receiver), await sender.task(other, "u")
        for _ in range(4):
            sender.happen(first, 3)
            sender.happen(second, 3)
        sender.happen(first, 1, end=True)
        sender.happen(second, 1, end=True)
        await asyncio.gather(receiver.got(13 + 3), other.got(13))
    assert numbers(receiver) == [1, 2, 2, 3, 4, 4, 4, *range(5, 14)]
    assert numbers(other, "u") == [*range(1, 14)]
    assert receiver.most_open == 1
    assert receiver.ids[1] == receiver.ids[2] == "t:c:2"
    async with broker.client() as client:
        assert await client.xlen(KEYS.jobs) == 0


async def test_a_worker_sends_the_secrets_and_redis_does_not_show_them(
    broker: RedisBroker, tmp_path: Path
) -> None:
    receiver = Receiver()
    async with receiving(receiver), sending(broker, tmp_path) as sender:
        secrets = {"token": "token-of-it", "scheme": "Bearer", "credentials": "the-credentials"}
        handle = await sender.task(receiver, **secrets)
        sender.happen(handle, 1, end=True)
        async with broker.client() as client:
            await until_length(client, KEYS.jobs, 1)
            shown = repr(await client.xrange(KEYS.jobs))
            for secret in (*secrets.values(), receiver.url, "t/1"):
                assert secret == "Bearer" or secret not in shown.replace("b't/c/1/1'", "")
        async with working(broker):
            await receiver.got(1)
    headers, body = receiver.requests[0]
    assert headers["Authorization"] == "Bearer the-credentials" and body == b"t/1"
    assert headers["X-A2A-Notification-Token"] == "token-of-it"
    assert verify(headers, body, "token-of-it")


async def test_the_worker_signs_with_a_secret_that_it_does_not_send(
    broker: RedisBroker, tmp_path: Path
) -> None:
    receiver = Receiver()
    secret = {"scheme": "HMAC-SHA256", "credentials": "a secret of the receiver"}
    async with receiving(receiver), sending(broker, tmp_path) as sender, working(broker):
        sender.happen(await sender.task(receiver, **secret), 1)
        await receiver.got(1)
    ((headers, body),) = receiver.requests
    assert verify(headers, body, secret["credentials"])
    assert secret["credentials"] not in repr(headers)


async def test_a_notification_that_is_given_up_is_a_dead_letter(
    broker: RedisBroker, tmp_path: Path
) -> None:
    """The failures of the worker count as those of the server do. No secret is in the letter."""

    async def gone(request: web.Request) -> web.StreamResponse:
        return web.Response(status=410)

    receiver, silent = Receiver(gone, accept), Receiver()
    async with (
        receiving(receiver, silent),
        sending(broker, tmp_path) as sender,
        working(broker, at_once=2, timeout=0.1),
    ):
        silent.behaviours = [silent.stall]
        sender.happen(await sender.task(receiver, credentials="secret", scheme="Bearer"), 2)
        sender.happen(await sender.task(silent, "u"), 1)
        await receiver.got(2)

        await until(lambda: sender.store.push_failures("u"))
        failures = [*await sender.store.push_failures("t"), *await sender.store.push_failures("u")]
        assert [(one.number, one.attempts, one.error) for one in failures] == [
            (1, 1, "status 410"),
            (1, QUICK.attempts, "timeout"),
        ]
        async with broker.client() as client:
            await until_length(client, KEYS.dead, 2)
            letters = await client.xrange(KEYS.dead)
    assert letters[0][1] == {
        **{b"task": b"t", b"config": b"c", b"number": b"1", b"attempts": b"1"},
        b"error": b"status 410",
    }
    assert "secret" not in repr(letters) and receiver.url not in repr(letters)


async def test_a_private_address_is_refused_by_the_worker(
    broker: RedisBroker, tmp_path: Path
) -> None:
    receiver = Receiver()
    async with (
        receiving(receiver),
        sending(broker, tmp_path) as sender,
        working(broker, allow_private=False),
    ):
        sender.happen(await sender.task(receiver), 1)

        await until(lambda: sender.store.push_failures("t"))
        (failure,) = await sender.store.push_failures("t")
    assert failure.error == "refused address" and receiver.requests == []


# --- losses -------------------------------------------------------------------------------------


async def test_the_job_of_a_lost_worker_goes_to_another_one(
    broker: RedisBroker, tmp_path: Path
) -> None:
    """A worker took the job and is gone. Takes a lease."""
    receiver = Receiver()
    async with (
        receiving(receiver),
        sending(broker, tmp_path) as sender,
        broker.client() as client,
    ):
        sender.happen(await sender.task(receiver), 2)

        await until(lambda: client.xreadgroup(KEYS.group, "gone", {KEYS.jobs: ">"}))
        async with working(broker):
            await receiver.got(2)
    assert numbers(receiver) == [1, 2]


async def test_a_worker_with_another_key_leaves_the_job(
    broker: RedisBroker, tmp_path: Path
) -> None:
    """While keys change, another worker may have it. Takes a lease."""
    receiver, wrong = Receiver(), Fernet.generate_key().decode()
    async with (
        receiving(receiver),
        sending(broker, tmp_path, lease=0.2) as sender,
        broker.client() as client,
    ):
        sender.happen(await sender.task(receiver), 1)

        async def taken() -> bool:
            return bool((await client.xpending(KEYS.jobs, KEYS.group))["pending"])

        async with working(broker, keys=wrong, lease=0.2):
            await until(taken)
        assert receiver.requests == []
        async with working(broker, keys=f"{wrong},{KEY}", lease=0.2):
            await receiver.got(1)


async def test_a_job_that_redis_lost_is_handed_over_again(
    broker: RedisBroker, tmp_path: Path
) -> None:
    """With the same notification id, after three leases: takes half a second."""
    receiver = Receiver()
    async with (
        receiving(receiver),
        sending(broker, tmp_path, lease=0.15) as sender,
        broker.client() as client,
    ):
        sender.happen(await sender.task(receiver), 2)

        await until_length(client, KEYS.jobs, 1)
        await client.flushall()
        async with working(broker):

            async def arrived() -> bool:
                return "t:c:2" in receiver.ids

            await until(arrived)
    assert [*dict.fromkeys(receiver.ids)] == ["t:c:1", "t:c:2"]  # a busy worker may repeat one


async def test_a_job_that_a_worker_has_is_not_handed_over_again(
    broker: RedisBroker, tmp_path: Path
) -> None:
    """Unlike a later one that was lost: takes three leases."""
    receiver = Receiver()
    async with (
        receiving(receiver),
        sending(broker, tmp_path, lease=0.15) as sender,
        broker.client() as client,
    ):
        sender.happen(await sender.task(receiver), 1)

        await until(lambda: client.xreadgroup(KEYS.group, "slow", {KEYS.jobs: ">"}))
        sender.happen(await sender.task(receiver, "u"), 1)
        await until_length(client, KEYS.jobs, 2)
        (held, _), (lost, _) = await client.xrange(KEYS.jobs)
        await client.xdel(KEYS.jobs, lost)
        await until_length(client, KEYS.jobs, 2)
        assert (await client.xrange(KEYS.jobs))[0][0] == held


@pytest.mark.parametrize("works", [True, False])
async def test_the_next_server_finds_jobs_and_outcomes(
    broker: RedisBroker, tmp_path: Path, works: bool
) -> None:
    """The first server ends while a job waits in Redis. Maybe a worker sends it while no server
    runs. The next server does not hand it over again."""
    receiver = Receiver()
    async with receiving(receiver), broker.client() as client:
        async with sending(broker, tmp_path) as sender:
            sender.happen(await sender.task(receiver, token="t0k"), 3, end=True)

            await until_length(client, KEYS.jobs, 1)
        assert await client.xlen(KEYS.jobs) == 1
        if works:
            async with working(broker):
                await receiver.got(1)
        async with sending(broker, tmp_path), working(broker):
            await receiver.got(3)
        assert int((await client.xinfo_stream(KEYS.jobs))["entries-added"]) == 3
    assert numbers(receiver) == [1, 2, 3]


async def test_a_config_that_is_deleted_withdraws_its_job(
    broker: RedisBroker, tmp_path: Path
) -> None:
    receiver = Receiver()
    async with (
        receiving(receiver),
        sending(broker, tmp_path) as sender,
        broker.client() as client,
    ):
        sender.happen(await sender.task(receiver), 1)

        await until_length(client, KEYS.jobs, 1)
        await sender.push.delete("t", "c")
        await until_length(client, KEYS.jobs, 0)
    assert receiver.requests == []


async def test_a_stop_finishes_the_job_in_hand(broker: RedisBroker, tmp_path: Path) -> None:
    receiver = Receiver()
    inside = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        inside.set()
        await receiver.over.wait()
        return web.Response()

    receiver.behaviours = [slow]
    async with receiving(receiver), sending(broker, tmp_path) as sender:
        chosen = WorkerConfig("cab", KEY, 60.0, allow_private=True, at_once=1)
        worker = PushWorker(parse_redis(broker.url), chosen)
        run = asyncio.create_task(worker.run())
        sender.happen(await sender.task(receiver), 1)
        async with asyncio.timeout(WITHIN):
            await inside.wait()
            worker.stop()
            receiver.over.set()
            await run
        assert 'outcome="delivered"} 1' in worker.metrics()

        async def advanced() -> bool:
            (config,) = await sender.store.push_configs("t")
            return config.cursor == 1

        await until(advanced)


async def test_the_server_reports_that_no_worker_runs(broker: RedisBroker, tmp_path: Path) -> None:
    receiver = Receiver()
    async with receiving(receiver), sending(broker, tmp_path, quiet=0.2) as sender:
        assert sender.relay.problem is None

        async def alone() -> bool:
            return "no worker" in (sender.relay.problem or "")

        async def fine() -> bool:
            return sender.relay.problem is None

        sender.happen(await sender.task(receiver), 1)
        await until(alone)
        async with working(broker):
            await until(fine)
            await receiver.got(1)


async def test_a_job_that_ends_each_worker_fails(broker: RedisBroker, tmp_path: Path) -> None:
    receiver = Receiver()
    async with (
        receiving(receiver),
        sending(broker, tmp_path) as sender,
        broker.client() as client,
    ):
        sender.happen(await sender.task(receiver), 1)

        async def failed() -> bool:
            if not await client.exists(KEYS.jobs) or not await client.xinfo_groups(KEYS.jobs):
                return False
            found = await client.xreadgroup(KEYS.group, "gone", {KEYS.jobs: ">"})
            for entry, _ in (one for _, entries in found for one in entries):
                options = {"retrycount": 6, "justid": True}
                await client.xclaim(KEYS.jobs, KEYS.group, "gone", 0, [entry], **options)
            return bool(await sender.store.push_failures("t"))

        await until(failed)
        (failure,) = await sender.store.push_failures("t")
    assert (failure.error, failure.attempts) == ("worker failed", QUICK.attempts)


# --- jobs ---------------------------------------------------------------------------------------


def test_a_job_is_readable_with_its_key_only() -> None:
    job = PushJob("t/c/1/1", "s", "https://x/", {"A": "b"}, b"line\nbody\0", "a secret")
    fields = JobSeal(KEY).seal(job)
    assert JobSeal(f"{Fernet.generate_key().decode()}, {KEY}").open(fields) == job
    for wrong in (
        {**fields, b"job": b"t/c/2/1"},
        {**fields, b"sealed": fields[b"sealed"][:-4] + b"AAA="},
        {b"job": b"t/c/1/1"},
    ):
        with pytest.raises(UnreadableJob):
            JobSeal(KEY).open(wrong)
    with pytest.raises(UnreadableJob):
        JobSeal(Fernet.generate_key().decode()).open(fields)
    changed = JobSeal(KEY).seal(replace(job, url="https://y/"))
    assert changed[b"tag"] != fields[b"tag"] == JobSeal(KEY).seal(job)[b"tag"]


@pytest.mark.parametrize("keys", ["", "short", f"{KEY},x"], ids=["none", "short", "second"])
def test_a_wrong_key_is_refused(keys: str) -> None:
    with pytest.raises(ConfigurationError, match="BRIDGE_PUSH_KEY") as refused:
        JobSeal(keys)
    assert KEY not in str(refused.value)
