"""Requests through a real Redis: what is read, delivered again, refused and survived."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from bridge.errors import ConfigurationError
from bridge.push.broker import Broker, pause
from bridge.server.agents.redis_port import RedisPort
from bridge.server.settings.root import Settings
from bridge.server.state_dir import State
from bridge.store.redis_address import parse_redis
from bridge.transports.redis.inbox import RequestInbox
from bridge.transports.redis.names import CORRELATION, UPDATE, ItemId, RedisKeys
from bridge.transports.redis.owner import Ownership
from bridge.transports.redis.replies import ReplyLimits, ReplyStream
from tests import CHECKOUT
from tests.support.client import Json, artifact_text
from tests.support.liveness import Liveness
from tests.support.redis_broker import WITHIN, RedisBroker, RedisCaller, message, token
from tests.support.served import Server, serving

STATES = "TASK_STATE_"


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    """For a condition without an event."""
    async with asyncio.timeout(WITHIN):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@asynccontextmanager
async def served(
    broker: RedisBroker, workspace: Path, tokens: Any = None, **settings: Any
) -> AsyncIterator[tuple[Server, RedisCaller]]:
    """A server, and a client of its principal alice."""
    given = {"bridge_redis_url": broker.url, "tokens": tokens or {"alice": token()}}
    given |= {"bridge_auth": "none"}
    async with (
        serving(workspace, **{**given, **settings}) as server,
        broker.client() as client,
    ):
        yield server, RedisCaller(client)


def states(items: list[Json]) -> list[str]:
    found = (one["result"].get("statusUpdate", one["result"].get("task")) for one in items if one)
    return [one["status"]["state"].removeprefix(STATES) for one in found if one]


async def everything(caller: RedisCaller, correlation: str, after: str = "0") -> list[Any]:
    return [one async for one in caller.items(correlation, after)]


async def problems(server: Server) -> list[str]:
    async with server.http.get(f"{server.url}/health") as response:
        found: list[str] = (await response.json()).get("problems", [])
        return found


# --- answers ------------------------------------------------------------------------------------


async def test_a_stream_has_chosen_ids_and_an_end(broker: RedisBroker, workspace: Path) -> None:
    """Also in 0.3, whose results have another shape. An answered request is removed."""
    async with served(broker, workspace) as (_, caller):
        params = {"message": message("status one\ntext two\ndone")}
        newest = await everything(caller, await caller.send("SendStreamingMessage", params))
        old = {**message("text two\ndone"), "role": "user", "kind": "message"}
        old["parts"] = [{"kind": "text", "text": "text two\ndone"}]
        correlation = await caller.send(
            "message/stream", {"message": old}, **{"a2a-version": "0.3"}
        )
        oldest = await everything(caller, correlation)
        for entries in (newest, oldest):
            numbers = [tuple(map(int, entry.split("-"))) for entry, _ in entries]
            last = numbers[-2][0]
            assert numbers == [(0, 1), *((n, 2) for n in range(1, last + 1)), (last, 3)]
            assert entries[-1][1] == {}
        assert oldest[0][1]["result"]["kind"] == "task"
        ttl = await caller.redis.ttl(caller.reply(correlation))
        assert 86_000 < ttl <= 86_400

        async def removed() -> bool:
            return not await caller.redis.xlen(caller.requests())

        await until(removed)


async def test_requests_run_side_by_side(broker: RedisBroker, workspace: Path) -> None:
    """A question is open while its answer, a cancel and a subscription are served."""
    async with served(broker, workspace) as (_, caller):
        first = await caller.send("SendStreamingMessage", {"message": message("ask q What?")})
        asked = [payload for _, payload in await everything(caller, first)]
        task = asked[0]["result"]["task"]["id"]
        assert states(asked)[-1] == "INPUT_REQUIRED"
        follower = await caller.send("SubscribeToTask", {"id": task})
        stream = caller.items(follower)
        await anext(stream)
        answered = await caller.call("SendMessage", {"message": message("this", taskId=task)})
        assert answered["result"]["task"]["status"]["state"] == f"{STATES}COMPLETED"
        assert states([payload async for _, payload in stream])[-1] == "COMPLETED"
        again = await caller.call("CancelTask", {"id": task})
        assert again["error"]["code"] == -32002


async def test_a_client_resumes_after_a_number(broker: RedisBroker, workspace: Path) -> None:
    """The numbers are those of SSE."""
    async with served(broker, workspace) as (server, caller):
        sent = await caller.send(
            "SendStreamingMessage", {"message": message("text a\nask q What?")}
        )
        entries = await everything(caller, sent)
        task = entries[0][1]["result"]["task"]["id"]
        number = int(entries[1][0].partition("-")[0])
        follower = await caller.send("SubscribeToTask", {"id": task}, **{"Last-Event-ID": "1"})
        stream = caller.items(follower)
        assert number == 1 and (await anext(stream))[1]["result"] == entries[2][1]["result"]
        await server.client().cancel(task)
        assert states([payload async for _, payload in stream])[-1] == "CANCELED"


async def test_a_message_waits_for_its_quota(
    broker: RedisBroker, workspace: Path, live: Liveness
) -> None:
    async with served(broker, workspace, {"alice": token(tasks=1)}) as (_, caller):
        text = f"wait {live.path} first\ndone"
        first = await caller.send("SendStreamingMessage", {"message": message(text)})
        await live.pid("first")
        second = await caller.send("SendMessage", {"message": message("done")})
        got = await caller.call("ListTasks", {})  # after the second message was refused once
        assert got["result"]["totalSize"] == 1
        assert not await caller.redis.exists(caller.reply(second))
        await live.release("first")
        assert states([one for _, one in await everything(caller, first)])[-1] == "COMPLETED"
        ((_, payload),) = await everything(caller, second)
        assert payload["result"]["task"]["status"]["state"] == f"{STATES}COMPLETED"


async def test_no_more_requests_than_the_quota_are_read(
    broker: RedisBroker, workspace: Path, live: Liveness
) -> None:
    """The quota of streams. The others stay for another server. A reload may change it."""
    async with served(broker, workspace, {"alice": token(streams=2)}) as (server, caller):

        async def taken() -> int:
            return int((await caller.redis.xpending(caller.requests(), "cab"))["pending"])

        async def nothing_is_taken() -> bool:
            return await taken() == 0

        for name in "ab":
            text = f"wait {live.path} {name}\ndone"
            await caller.send("SendStreamingMessage", {"message": message(text)}, name)
            await live.pid(name)
        listed = [await caller.send("ListTasks", {}) for _ in range(3)]
        assert await taken() == 2 and not await caller.redis.exists(*map(caller.reply, listed))
        await live.release("a")
        for one in listed:  # in the place of the first stream
            assert (await everything(caller, one))[0][1]["result"]["totalSize"] == 2
        await caller.send("SubscribeToTask", {"id": "x"})
        await server.change(tokens={"alice": token(streams=1)})
        late = await caller.send("ListTasks", {})
        await server.change(tokens={"alice": token(streams=2)})
        assert (await everything(caller, late))[0][1]["result"]["totalSize"] == 2
        await live.release("b")
        await until(nothing_is_taken)


async def test_the_client_sees_that_an_answer_was_cut(broker: RedisBroker, workspace: Path) -> None:
    """Redis keeps the newest items, by whole nodes of 100. A gap between the numbers shows the
    loss; SubscribeToTask has the whole task, and continues with its updates."""
    limits = {"bridge_redis_reply_items": 10, "bridge_redis_reply_ttl_ms": 60_000}
    async with served(broker, workspace, **limits) as (server, caller):
        script = "\n".join(f"text {number},\nstatus {number}" for number in range(200))
        params = {"message": message(f"{script}\nask q What?")}
        sent = await caller.send("SendStreamingMessage", params)

        async def has_ended() -> bool:
            found = await caller.redis.xrevrange(caller.reply(sent), count=1)
            return bool(found) and b"end" in found[0][1]

        await until(has_ended)
        assert 0 < await caller.redis.pttl(caller.reply(sent)) <= 60_000
        kept = await everything(caller, sent)
        assert 10 <= len(kept) <= 10 + 100
        oldest, last = (int(kept[at][0].partition("-")[0]) for at in (0, -1))
        assert oldest > 1  # a client that has item 0 finds this gap
        task = kept[-2][1]["result"]["statusUpdate"]["taskId"]
        stream = caller.items(await caller.send("SubscribeToTask", {"id": task}))
        number, payload = await anext(stream)
        text = artifact_text(payload["result"]["task"])
        assert number == f"{last}-1" and text == "".join(f"{one}," for one in range(200))
        await server.client().cancel(task)
        assert states([payload async for _, payload in stream])[-1] == "CANCELED"


async def test_a_server_shows_that_it_works_on_an_entry(broker: RedisBroker) -> None:
    """Its entries are not idle, and its answers do not expire; an entry that another server has
    taken is reported, and not taken back."""
    async with broker.client() as client:
        own = Broker(parse_redis(broker.url))
        keys = RedisKeys("cab")
        inbox = RequestInbox(own, keys, "alice", "a", 60.0)
        await inbox.prepare()
        stream, reply = keys.requests("alice"), keys.reply("alice", "r")
        for name in "123":
            await client.xadd(stream, {"id": name})
        first, second, third = await inbox.take(8)
        await client.xclaim(stream, "cab", "a", 0, [first.id], idle=50_000, justid=True)
        await client.xclaim(stream, "cab", "b", 0, [second.id])
        await inbox.finish(third.id)
        await client.set(reply, "x")
        assert await inbox.keep([first.id, second.id, third.id], [reply], 60) == {second.id}
        rows = await client.xpending_range(stream, "cab", "-", "+", 10)
        assert [(row["consumer"], row["times_delivered"]) for row in rows] == [(b"a", 1), (b"b", 2)]
        assert rows[0]["time_since_delivered"] < 40_000
        assert 0 < await client.ttl(reply) <= 60
        assert [one.id for one in await inbox.own({first.id})] == []
        (again,) = await inbox.own(set())
        assert (again.id, again.deliveries) == (first.id, 2)
        assert await inbox.abandoned(8) == []  # they have shown life
        await own.close()


async def test_a_notification_has_an_end_alone(broker: RedisBroker, workspace: Path) -> None:
    async with served(broker, workspace) as (server, caller):
        body = {"jsonrpc": "2.0", "method": "SendMessage", "params": {"message": message("done")}}
        fields = {"id": "n", "payload": json.dumps(body), "parameters": '{"A2A-Version":"1.0"}'}
        await caller.redis.xadd(caller.requests(), fields)
        assert await everything(caller, "n") == [("0-3", {})]
        assert len((await server.client().call("ListTasks", {}) or {})["tasks"]) == 1


async def test_only_the_extended_card_declares_the_binding(
    broker: RedisBroker, workspace: Path
) -> None:
    async with served(broker, workspace, bridge_auth="auto", bridge_redis_prefix="p") as (
        server,
        _,
    ):
        async with server.http.get(f"{server.url}/.well-known/agent-card.json") as response:
            assert "redis" not in await response.text()
        async with broker.client() as client:
            caller = RedisCaller(client, prefix="p")
            card = (await caller.call("GetExtendedAgentCard", {}))["result"]
    assert card["supportedInterfaces"][-1] == {
        "url": "p",
        "protocolBinding": "urn:coding-agent-bridge:redis-streams:v1",
        "protocolVersion": "1.0",
    }
    assert str(broker.socket) not in json.dumps(card)


# --- deliveries -----------------------------------------------------------------------------------


async def abandoned(caller: RedisCaller, deliveries: int, **fields: str) -> None:
    """A request that a server took so often, and that no server works on any more."""
    client, stream = caller.redis, caller.requests()
    await client.xgroup_create(stream, "cab", id="0", mkstream=True)
    entry = await client.xadd(stream, fields)
    await client.xreadgroup("cab", "gone", {stream: ">"})
    options = {"idle": 3_600_000, "retrycount": deliveries, "justid": True}
    await client.xclaim(stream, "cab", "gone", 0, [entry], **options)


def request(method: str, params: Json, correlation: str = "r") -> dict[str, str]:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    given = {"A2A-Version": "1.0"}
    return {"id": correlation, "payload": json.dumps(body), "parameters": json.dumps(given)}


@pytest.mark.parametrize("deliveries", [1, 3])
async def test_another_server_answers_the_request_of_a_lost_one(
    broker: RedisBroker, workspace: Path, deliveries: int
) -> None:
    async with broker.client() as client:
        sent = request("SendMessage", {"message": message("text hi\ndone")})
        await abandoned(RedisCaller(client), deliveries, **sent)
        async with served(broker, workspace) as (_, caller):
            ((_, payload),) = await everything(caller, "r")
            assert artifact_text(payload["result"]["task"]) == "hi"
            assert not await client.exists("cab:dead")


async def test_the_fifth_delivery_without_an_answer_is_a_dead_letter(
    broker: RedisBroker, workspace: Path
) -> None:
    async with broker.client() as client:
        sent = request("SendMessage", {"message": message("done " + "x" * 9000)})
        await abandoned(RedisCaller(client), 4, **sent)
        async with served(broker, workspace) as (server, caller):
            ((_, payload),) = await everything(caller, "r")
            assert payload["error"]["data"][0]["reason"] == "UNAVAILABLE"
            assert (await server.client().call("ListTasks", {}) or {})["tasks"] == []
        ((_, letter),) = await client.xrange("cab:dead")
        assert letter[b"principal"] == b"alice" and b"4 deliveries" in letter[b"reason"]
        assert letter[b"payload"] == sent["payload"].encode()[:4096]


@pytest.mark.parametrize("kept", [1, 2, 3])
async def test_a_redelivery_continues_after_the_last_item(
    broker: RedisBroker, workspace: Path, kept: int
) -> None:
    """The answer r is that of a server that was lost after `kept` entries. Its task is found by
    their content; no second task begins."""
    async with served(broker, workspace) as (server, caller):
        params = {"message": message("status one\ntext two\ndone")}
        whole = await everything(caller, await caller.send("SendStreamingMessage", params, "w"))
        raw = await caller.redis.xrange(caller.reply("w"))
        for entry, fields in raw[:kept]:
            await caller.redis.xadd(caller.reply("r"), fields, id=entry)
        again = await everything(caller, await caller.send("SendStreamingMessage", params, "r"))
        assert again == whole and len(whole) > kept + 1
        assert len((await server.client().call("ListTasks", {}) or {})["tasks"]) == 1


async def test_a_redelivery_without_items_finds_its_task(
    broker: RedisBroker, workspace: Path
) -> None:
    """Its content decides, also after the end of the task: FLUSHALL has removed the answer."""
    async with served(broker, workspace) as (server, caller):
        params = {"message": message("text two\ndone")}
        first = await everything(caller, await caller.send("SendStreamingMessage", params, "r"))
        await caller.redis.flushall()
        again = await everything(caller, await caller.send("SendStreamingMessage", params, "r"))
        tasks = (await server.client().call("ListTasks", {}) or {})["tasks"]
        assert len(tasks) == 1 and tasks[0]["id"] == first[0][1]["result"]["task"]["id"]
        assert artifact_text(again[0][1]["result"]["task"]) == "two" and again[-1][1] == {}


async def test_a_request_that_is_sent_twice_has_one_answer(
    broker: RedisBroker, workspace: Path, live: Liveness
) -> None:
    async with served(broker, workspace) as (_, caller):
        params = {"message": message(f"wait {live.path} a\ndone")}
        for _ in range(2):
            await caller.send("SendStreamingMessage", params, "r")
        await live.pid("a")

        async def one_left() -> bool:
            return bool(await caller.redis.xlen(caller.requests()) == 1)

        await until(one_left)  # the second entry is removed while the first one is served
        await live.release("a")
        first = await everything(caller, "r")
        await caller.send("SendStreamingMessage", params, "r")

        async def none_left() -> bool:
            return not await caller.redis.xlen(caller.requests())

        await until(none_left)
        assert await everything(caller, "r") == first


async def abandon(caller: RedisCaller, **fields: str) -> None:
    """Add a request that a lost server has taken, so that the running one does not see it first."""
    pipeline, stream = caller.redis.pipeline(), caller.requests()
    entry = "9999999999999-0"
    pipeline.xadd(stream, fields, id=entry)
    pipeline.xreadgroup("cab", "gone", {stream: ">"})
    options = {"idle": 3_600_000, "retrycount": 1, "justid": True}
    pipeline.xclaim(stream, "cab", "gone", 0, [entry], **options)
    await pipeline.execute()


async def test_a_request_whose_delivery_was_lost_is_served(
    broker: RedisBroker, workspace: Path
) -> None:
    """Redis has delivered it, and the connection was lost: the server looks for its own entries."""
    async with served(broker, workspace) as (_, caller):
        await caller.call("ListTasks", {})
        (own,) = await caller.redis.xinfo_consumers(caller.requests(), "cab")
        pipeline = caller.redis.pipeline()
        pipeline.xadd(caller.requests(), request("ListTasks", {}))
        pipeline.xreadgroup("cab", own["name"], {caller.requests(): ">"})
        await pipeline.execute()
        await caller.redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        ((_, payload),) = await everything(caller, "r")
        assert payload["result"]["totalSize"] == 0


async def test_a_redelivered_change_succeeds(broker: RedisBroker, workspace: Path) -> None:
    """A lost server has canceled the task, or made the push config, and not answered. The running
    one takes the request after half of this time."""
    async with served(broker, workspace, bridge_redis_claim_ms=1000) as (_, caller):
        asked = await caller.call("SendMessage", {"message": message("ask q What?")})
        named = {"id": asked["result"]["task"]["id"]}
        hook = {"taskId": named["id"], "url": "http://127.0.0.1:1/hook"}
        first = await caller.send("CreateTaskPushNotificationConfig", hook, "p")
        ((_, made),) = await everything(caller, first)
        assert made["result"]["id"] == "p"

        async def removed() -> bool:
            return not await caller.redis.xlen(caller.requests())

        await until(removed)
        await caller.redis.delete(caller.reply(first))
        await caller.send("CreateTaskPushNotificationConfig", hook, "p")
        assert await everything(caller, "p") == [("0-3", made)]
        listed = await caller.call("ListTaskPushNotificationConfigs", {"taskId": named["id"]})
        assert len(listed["result"]["configs"]) == 1
        await caller.call("DeleteTaskPushNotificationConfig", {"taskId": named["id"], "id": "p"})
        await caller.send("CreateTaskPushNotificationConfig", hook, "p")  # it is answered
        await until(removed)
        listed = await caller.call("ListTaskPushNotificationConfigs", {"taskId": named["id"]})
        assert not listed["result"].get("configs")
        assert "result" in await caller.call("CancelTask", named)
        assert (await caller.call("CancelTask", named))["error"]["code"] == -32002
        await abandon(caller, **request("CancelTask", named, "c"))
        ((_, payload),) = await everything(caller, "c")
        assert payload["result"]["status"]["state"] == f"{STATES}CANCELED"


async def test_an_answer_of_a_lost_task_ends_with_an_error(
    broker: RedisBroker, workspace: Path
) -> None:
    """The answer has later items than the store: that is another one, or was restored."""
    async with served(broker, workspace) as (_, caller):
        params = {"message": message("ask q What?")}
        first = await everything(caller, await caller.send("SendStreamingMessage", params, "w"))
        task = {**first[0][1]["result"]["task"]}
        item = {"jsonrpc": "2.0", "id": 1, "result": {"task": task}}
        await caller.redis.xadd(caller.reply("r"), {"payload": json.dumps(item)}, id="99-1")
        await caller.send("SendStreamingMessage", params, "r")
        *_, (entry, last) = await everything(caller, "r")
        assert entry == "99-3" and last["error"]["data"][0]["reason"] == "DATA_LOSS"


# --- entries that are no requests -----------------------------------------------------------------

GOOD = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "ListTasks"})


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"id": "r", "payload": "{"}, "PARSE_ERROR"),
        ({"id": "r", "payload": "[]"}, "INVALID_REQUEST"),
        ({"id": "r", "payload": '{"jsonrpc":"1.0","id":1}'}, "INVALID_REQUEST"),
        ({"id": "r", "payload": '{"jsonrpc":"2.0","id":{}}'}, "INVALID_REQUEST"),
        ({"id": "r"}, "INVALID_REQUEST"),
        ({"id": "r", "payload": GOOD, "parameters": "{"}, "INVALID_REQUEST"),
        ({"id": "r/s", "payload": GOOD}, None),
        ({"id": "r" * 65, "payload": GOOD}, None),
        ({"payload": GOOD}, None),
    ],
)
async def test_an_entry_that_is_no_request_is_a_dead_letter(
    broker: RedisBroker, workspace: Path, fields: dict[str, str], reason: str | None
) -> None:
    """It has an error as its answer if it has an id. The next request is served."""
    async with served(broker, workspace) as (_, caller):
        await caller.redis.xadd(caller.requests(), fields)
        if reason:
            ((_, payload),) = await everything(caller, "r")
            assert payload["error"]["data"][0]["reason"] == reason
        assert "result" in await caller.call("ListTasks", {})

        async def buried() -> bool:
            return bool(await caller.redis.xlen("cab:dead"))

        await until(buried)
        keys = [one async for one in caller.redis.scan_iter("cab:reply:*")]
        assert len(keys) == (2 if reason else 1)


@pytest.mark.parametrize(
    ("method", "params", "parameters", "reason"),
    [
        ("Unknown", {}, {}, "METHOD_NOT_FOUND"),
        ("ListTasks", [], {}, "INVALID_PARAMS"),
        ("ListTasks", {}, {"A2A-Version": "7.0"}, "VERSION_NOT_SUPPORTED"),
        ("ListTasks", {}, {"A2A-Version": 1}, "INVALID_PARAMS"),
        ("ListTasks", {}, {"A2A-Version": "1" * 5000}, "INVALID_PARAMS"),
        ("SendMessage", {"message": {**message("done"), "messageId": "m"}}, {}, "INVALID_PARAMS"),
        ("GetTask", {"id": "x" * 2000}, {}, "BODY_TOO_LARGE"),
    ],
)
async def test_a_wrong_request_has_an_error(
    broker: RedisBroker, workspace: Path, method: str, params: Any, parameters: Any, reason: str
) -> None:
    async with served(broker, workspace, bridge_max_body_bytes=1024) as (_, caller):
        payload = await caller.call(method, params, **parameters)
        assert payload["error"]["data"][0]["reason"] == reason
        assert not await caller.redis.exists("cab:dead")


def corpus(count: int) -> Iterator[dict[bytes, bytes]]:
    """Fields that are damaged, missing, doubled or huge; some of them are requests still."""
    dice = random.Random(7)
    good = {
        b"payload": b'{"jsonrpc":"2.0","id":1,"method":"ListTasks","params":{"pageSize":3}}',
        b"parameters": b'{"A2A-Version":"1.0","Last-Event-ID":"7","traceparent":"00-1-2-03"}',
    }
    odd = (b"", b"\0", b"null", b"[" * 3000, b'"\xff"', b"1e999", b"{}" * 900, b'{"id":' * 70)
    for number in range(count):
        fields = {b"id": b"r%d" % dice.randrange(count), **good}
        for _ in range(dice.randrange(1, 4)):
            name = dice.choice((b"id", b"payload", b"payload", b"parameters", b"other"))
            value = bytearray(fields.get(name, b"x"))
            at, size = dice.randrange(len(value) + 1), dice.choice((1, 2, 8, 40))
            value[at : at + size] = dice.choice((b"", dice.randbytes(size), *odd))
            fields[name] = bytes(value)
        if number % 5 == 0:
            del fields[dice.choice([*fields])]
        yield fields or {b"none": b""}
    yield {b"id": b"huge", **good, b"parameters": b'"' + b"x" * 2**17 + b'"'}
    yield {b"id": b"large", **good, b"payload": b" " * 2**21}


async def test_no_entry_stops_the_reader(
    broker: RedisBroker, workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each one is removed. Whatever has an id has one answer with an end."""
    async with served(broker, workspace, bridge_max_body_bytes=2**20) as (_, caller):
        pipeline, ids = caller.redis.pipeline(), set[str]()
        for fields in corpus(100):
            pipeline.xadd(caller.requests(), fields)
            if CORRELATION.fullmatch(given := fields.get(b"id", b"").decode("ascii", "replace")):
                ids.add(given)
        await pipeline.execute()

        async def removed() -> bool:
            return not await caller.redis.xlen(caller.requests())

        await until(removed)
        for correlation in ids:
            ((_, payload),) = await everything(caller, correlation)
            assert not payload or payload["jsonrpc"] == "2.0"
        keys = [one async for one in caller.redis.scan_iter("cab:*", 1000)]
        others = {"cab:owner", "cab:dead", caller.requests()}
        assert {one.decode() for one in keys} - others == {caller.reply(one) for one in ids}
        assert len(ids) > 30 and await caller.redis.xlen("cab:dead") > 20
        assert "result" in await caller.call("ListTasks", {})
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


# --- identity ------------------------------------------------------------------------------------

PAGE = (CHECKOUT / "docs/bindings.md").read_text("utf-8")


def acl_lines() -> list[list[str]]:
    found = PAGE.partition("<!-- acl -->\n```text\n")[2].partition("```")[0]
    return [line.replace("PASSWORD", "word").split() for line in found.splitlines()]


async def test_the_rights_of_the_page_are_enough_and_not_more(
    broker: RedisBroker, workspace: Path
) -> None:
    """The bridge and two clients as the users of docs/bindings.md."""
    alice, bridge = acl_lines()
    bob = [re.sub("alice", "bob", word) for word in alice]
    async with broker.client() as admin:
        for line in (alice, bob, bridge):
            assert await admin.execute_command(*line) in (b"OK", True)
        await admin.acl_setuser("default", enabled=False)
        url = broker.url_of("bridge", "word")
        tokens = {"alice": token(), "bob": token()}
        async with (
            served(broker, workspace, tokens, bridge_redis_url=url, **RELAY) as (server, _),
            broker.client(username="alice", password="word") as client,
        ):
            caller = RedisCaller(client)
            params = {"message": message("text hi\ndone")}
            items = await everything(caller, await caller.send("SendStreamingMessage", params))
            assert states([one for _, one in items])[-1] == "COMPLETED"
            assert await problems(server) == []
            for command in (
                ("XREAD", "STREAMS", "cab:requests:alice", "0"),
                ("XREAD", "STREAMS", "cab:reply:bob:r", "0"),
                ("XREAD", "STREAMS", "cab:dead", "0"),
                ("XADD", "cab:requests:bob", "*", "id", "r"),
                ("XADD", "cab:reply:alice:r", "*", "id", "r"),
                ("XADD", "cab:push", "*", "id", "r"),
                ("DEL", "cab:requests:alice"),
                ("GET", "cab:owner"),
                ("KEYS", "*"),
            ):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    await client.execute_command(*command)
        async with broker.client(username="bridge", password="word") as own:
            with pytest.raises(redis.exceptions.NoPermissionError):
                await own.execute_command("ACL", "SETUSER", "alice", "+@all")


async def test_the_rights_of_a_worker_concern_notifications_only(broker: RedisBroker) -> None:
    """tests/system/test_redis.py shows that they are enough."""
    line = PAGE.partition("<!-- acl-worker -->\n```text\n")[2].partition("```")[0]
    async with (
        broker.client() as admin,
        broker.client(username="worker", password="word") as worker,
    ):
        await admin.execute_command(*line.replace("PASSWORD", "word").split())
        for command in (
            "XREADGROUP GROUP cab w STREAMS cab:requests:alice >",
            "XADD cab:requests:alice * id r",
            "XADD cab:reply:alice:r * id r",
            "XRANGE cab:push - +",
            "SET cab:owner x",
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                await worker.execute_command(*command.split())


async def test_a_client_has_the_principal_of_its_key(broker: RedisBroker, workspace: Path) -> None:
    """Bob sees no task of alice, and a scope that is missing is missing here, too."""
    tokens = {"alice": token(), "bob": token(scopes=("read",))}
    async with served(broker, workspace, tokens) as (_, alice):
        bob = RedisCaller(alice.redis, "bob")
        task = (await alice.call("SendMessage", {"message": message("done")}))["result"]["task"]
        assert (await bob.call("GetTask", {"id": task["id"]}))["error"]["code"] == -32001
        assert (await bob.call("ListTasks", {}))["result"]["totalSize"] == 0
        refused = await bob.call("SendMessage", {"message": message("done")})
        assert refused["error"]["data"][0]["reason"] == "PERMISSION_DENIED"
        stranger = await RedisCaller(alice.redis, "carol").send("ListTasks", {})
        await alice.call("ListTasks", {})
        assert not await alice.redis.exists(f"cab:reply:carol:{stranger}")


class Blocked:
    """A stream of alice whose task waits, and a message that waits for her quota."""

    def __init__(self, caller: RedisCaller, live: Liveness) -> None:
        self.caller = caller
        self.live = live
        self.stream: AsyncIterator[Any]
        self.waiting = ""

    async def begin(self) -> None:
        text = f"text a\nwait {self.live.path} a\ndone"
        sent = await self.caller.send("SendStreamingMessage", {"message": message(text)})
        await self.live.pid("a")
        self.stream = self.caller.items(sent)
        await anext(self.stream)
        self.waiting = await self.caller.send("SendMessage", {"message": message("done")})
        await self.caller.call("ListTasks", {})  # after the message was refused once

    async def ends(self) -> list[str]:
        """The reasons of both errors."""
        rest = [one async for one in self.stream]
        assert len({entry for entry, _ in rest}) == len(rest)
        ((_, refused),) = await everything(self.caller, self.waiting)
        return [one["error"]["data"][0]["reason"] for one in (rest[-1][1], refused)]


FULL = token(tasks=1)


@pytest.mark.parametrize("rest", [{}, {"alice": replace(FULL, redis=False)}], ids=["gone", "off"])
async def test_a_removed_principal_is_not_served(
    broker: RedisBroker, workspace: Path, live: Liveness, rest: dict[str, Any]
) -> None:
    """Its answers end, and later requests stay in Redis until it is back."""
    async with served(broker, workspace, {"alice": FULL}) as (server, caller):
        one = Blocked(caller, live)
        await one.begin()
        await server.change(tokens=rest)
        async with asyncio.timeout(20):
            assert await one.ends() == ["UNAUTHENTICATED", "UNAUTHENTICATED"]
        later = await caller.send("ListTasks", {})

        async def is_untouched() -> bool:
            stream = caller.requests()
            return [entry for entry, _ in await caller.redis.xrange(stream)] == [newest] and not (
                await caller.redis.xpending(stream, "cab")
            )["pending"]

        newest = (await caller.redis.xinfo_stream(caller.requests()))["last-generated-id"]
        await until(is_untouched)
        await server.change(tokens={"alice": FULL, "bob": token()})
        ((_, payload),) = await everything(caller, later)
        assert payload["result"]["totalSize"] == 1
        assert "result" in await RedisCaller(caller.redis, "bob").call("ListTasks", {})
        await live.release("a")


async def test_a_principal_with_other_rights_has_them_at_once(
    broker: RedisBroker, workspace: Path, live: Liveness
) -> None:
    """Also for a message that waits. Without the scope `read`, open answers end."""
    async with served(broker, workspace, {"alice": FULL}) as (server, caller):
        one = Blocked(caller, live)
        await one.begin()
        await server.change(tokens={"alice": replace(FULL, scopes=("read",))})
        ((_, refused),) = await everything(caller, one.waiting)
        assert refused["error"]["data"][0]["reason"] == "PERMISSION_DENIED"
        await server.change(tokens={"alice": replace(FULL, scopes=("run",))})
        *_, (_, last) = [item async for item in one.stream]
        assert last["error"]["data"][0]["reason"] == "UNAUTHENTICATED"
        listed = await caller.call("ListTasks", {})
        assert listed["error"]["data"][0]["reason"] == "PERMISSION_DENIED"
        await live.release("a")


async def test_an_expired_principal_is_not_served_until_it_is_renewed(
    broker: RedisBroker, workspace: Path, live: Liveness
) -> None:
    """Takes the second for which the token is valid."""
    end = datetime.now(UTC) + timedelta(seconds=1)
    async with served(broker, workspace, {"alice": replace(FULL, expires=end)}) as (server, caller):
        one = Blocked(caller, live)
        await one.begin()
        assert await one.ends() == ["UNAUTHENTICATED", "UNAUTHENTICATED"]
        later = await caller.send("ListTasks", {})
        await server.change(tokens={"alice": replace(FULL, expires=end + timedelta(days=1))})
        ((_, payload),) = await everything(caller, later)
        assert payload["result"]["totalSize"] == 1
        await live.release("a")


async def test_the_first_principal_may_come_with_a_reload(
    broker: RedisBroker, workspace: Path
) -> None:
    """Its requests wait in Redis until then. A prefix of another store refuses the reload."""
    tokens = {"alice": replace(token(), redis=False)}
    async with served(broker, workspace, tokens) as (server, caller):
        sent = await caller.send("ListTasks", {})
        await caller.redis.set("cab:owner", "another")
        with pytest.raises(ConfigurationError, match="BRIDGE_REDIS_PREFIX=cab"):
            await server.change(tokens={"alice": token()})
        await caller.redis.delete("cab:owner")
        await server.change(tokens={"alice": token()})
        ((_, payload),) = await everything(caller, sent)
        assert payload["result"]["totalSize"] == 0


async def test_an_answer_has_one_beginning_and_one_end(broker: RedisBroker) -> None:
    """The end comes after all items. The server may not know the last one: its task was cut while
    it wrote."""
    async with broker.client() as client:
        own = Broker(parse_redis(broker.url))
        reply = ReplyStream(own, "cab:reply:alice:r", ReplyLimits())
        assert await reply.begin(3, b"{}")
        assert not await reply.begin(3, b"{}") and not await reply.begin(9, b"{}")
        await reply.add([(ItemId(number, UPDATE), b"{}") for number in (4, 5)])
        for _ in range(2):
            await reply.end(3, b"error")
        entries = await client.xrange(reply.key)
        assert [entry for entry, _ in entries] == [b"3-1", b"4-2", b"5-2", b"5-3"]
        await own.close()


async def test_a_prefix_has_one_store(broker: RedisBroker) -> None:
    """Its servers share it, also after a crash. Another store has it after the claim expired."""
    own = Broker(parse_redis(broker.url))
    first, second, other = (Ownership(own, "cab:owner", one, 30.0) for one in ("s", "s", "t"))
    async with broker.client() as client:
        for one in (first, other, second):
            await own.once(one.claim)
        assert (first.is_held, second.is_held, other.is_held) == (True, True, False)
        assert (second.other, other.other) == (None, "s")
        assert second.problem is None and "another store" in (other.problem or "")
        await other.release()
        assert 0 < await client.pttl("cab:owner") <= 30_000
        waiting = asyncio.create_task(other.wait())
        await client.delete("cab:owner")  # as if it had expired
        await own.once(other.claim)
        async with asyncio.timeout(WITHIN):
            await waiting
        await own.once(first.claim)
        assert not first.is_held and first.other == "t" and other.problem is None
        await other.release()
        assert not await client.exists("cab:owner")
    await own.close()


async def test_a_network_without_protection_is_named(caplog: pytest.LogCaptureFixture) -> None:
    for url, warns in (
        ("redis://192.0.2.1", True),
        ("rediss://192.0.2.1?ssl_cert_reqs=none", True),
        ("rediss://192.0.2.1", False),
        ("redis://127.0.0.1", False),
        ("unix:///run/redis", False),
    ):
        caplog.clear()
        given = {"bridge_redis_url": url, "tokens": {"alice": token()}}
        port = RedisPort(Settings().updated(given), State(markers="a."))
        assert ("use rediss://" in caplog.text) is warns, url
        await port.stop(0)


def test_the_pauses_between_attempts_are_random() -> None:
    for failures, most in ((1, 0.2), (3, 0.8), (50, 10.0)):
        found = [pause(failures) for _ in range(50)]
        assert most / 2 <= min(found) < max(found) <= most and len(set(found)) > 10


async def test_a_server_of_another_store_is_refused(broker: RedisBroker, workspace: Path) -> None:
    given = {"bridge_redis_url": broker.url, "tokens": {"alice": token()}}
    settings = Settings().updated(given)
    async with served(broker, workspace) as (_, caller):
        with pytest.raises(ConfigurationError, match="BRIDGE_REDIS_PREFIX=cab"):
            await RedisPort(settings, State(markers="another.")).claim()
        other = RedisPort(settings.updated({"bridge_redis_prefix": "p"}), State(markers="another."))
        await other.claim()
        await other.stop(0)
        assert "result" in await caller.call("ListTasks", {})
    port = RedisPort(settings, State(markers="another."))
    await port.claim()  # the first server has released the prefix
    await port.stop(0)


# --- faults of Redis ------------------------------------------------------------------------------

RELAY = {
    "bridge_push_relay": "redis",
    "bridge_push_key": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
}


async def test_the_health_has_the_problems_of_the_relay(
    broker: RedisBroker, workspace: Path
) -> None:
    tokens = {"alice": replace(token(), redis=False)}
    async with served(broker, workspace, tokens, **RELAY) as (server, _):
        assert await problems(server) == []
        broker.kill()

        async def is_down() -> bool:
            return any("redis: down since" in one for one in await problems(server))

        await until(is_down)


async def test_answers_wait_while_redis_is_full(broker: RedisBroker, workspace: Path) -> None:
    """Tasks go on. Takes a second: the pauses between attempts."""
    async with served(broker, workspace) as (server, caller):
        sent = await caller.send("SendStreamingMessage", {"message": message("ask q What?\ndone")})
        *_, asked = [one for _, one in await everything(caller, sent) if one]
        task = asked["result"]["statusUpdate"]["taskId"]
        follower = await caller.send("SubscribeToTask", {"id": task})
        stream = caller.items(follower)
        await anext(stream)
        await caller.redis.config_set("maxmemory", 1)
        await server.client().call("SendMessage", {"message": message("this", taskId=task)})

        async def is_full() -> bool:
            return any("full" in one for one in await problems(server))

        await until(is_full)
        assert await caller.redis.xlen(caller.reply(follower)) == 1
        await caller.redis.config_set("maxmemory", 0)
        rest = [payload async for _, payload in stream]
        assert states(rest)[-1] == "COMPLETED" and rest[-1] == {}
        assert await problems(server) == []


@pytest.mark.parametrize("durable", [True, False])
async def test_a_stream_goes_on_after_redis_was_killed(
    broker: RedisBroker, workspace: Path, live: Liveness, durable: bool
) -> None:
    """With the append-only file each item comes once. Without it the client has the items that it
    read before, and the later ones. Other transports work meanwhile."""
    broker.kill()
    broker.start(durable=durable)
    async with served(broker, workspace) as (server, caller):
        text = f"text a\nwait {live.path} a\ntext b\ndone"
        sent = await caller.send("SendStreamingMessage", {"message": message(text)})
        stream = caller.items(sent)
        seen = []
        async with asyncio.timeout(WITHIN):
            async for one in stream:
                seen.append(one)
                if "artifactUpdate" in one[1]["result"]:
                    break
        await live.pid("a")
        broker.kill()

        async def is_down() -> bool:
            return any("down since" in one for one in await problems(server))

        await until(is_down)
        await live.release("a")
        assert await server.client().call("ListTasks", {})
        broker.start(durable=durable)
        seen += [one async for one in stream]
        numbers = [tuple(map(int, entry.split("-"))) for entry, _ in seen]
        last = numbers[-1][0]
        assert numbers == [(0, 1), *((n, 2) for n in range(1, last + 1)), (last, 3)]
        assert states([one for _, one in seen])[-1] == "COMPLETED"
        assert "result" in await caller.call("ListTasks", {})
        assert await problems(server) == []
        broker.kill()  # the process is not of the server


async def test_requests_are_served_after_flushall(
    broker: RedisBroker, workspace: Path, live: Liveness
) -> None:
    """A stream that was open gets its later items and its end."""
    async with served(broker, workspace) as (_, caller):
        text = f"text a\nwait {live.path} a\ntext b\ndone"
        sent = await caller.send("SendStreamingMessage", {"message": message(text)})
        await live.pid("a")
        first = await anext(caller.items(sent))
        await caller.redis.flushall()
        assert "result" in await caller.call("ListTasks", {})
        await live.release("a")
        rest = await everything(caller, sent)
        assert first[0] == "0-1" and rest[0][0] > "0-1"
        assert states([one for _, one in rest])[-1] == "COMPLETED" and rest[-1][1] == {}
