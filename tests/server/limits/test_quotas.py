"""The quotas of principals: requests above a quota are refused with a time for the retry, and one
principal cannot keep the others waiting."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge.auth.principal import OPERATOR, Quota, Token, digest
from bridge.auth.quotas import Quotas
from bridge.errors import TooManyRequests
from bridge.store.handle import TaskHandle, TaskHandles
from bridge.task.events import Done, Text
from bridge.task.message import Message, Role, TextPart
from bridge.task.state import Task
from tests.support.bridge_process import bridge, scripted
from tests.support.cases import each
from tests.support.client import Client, Json, RpcError, artifact_text, state
from tests.support.liveness import Liveness, listening
from tests.support.served import serving
from tests.support.stored_tasks import recorder

WITHIN = 60.0
NAMES = ("alice", "bob")
UNLIMITED: dict[str, Any] = {
    "running": 0,
    "tasks": 0,
    "starts_per_minute": 0,
    "streams": 0,
    "stored_bytes": 0,
}


@asynccontextmanager
async def serving_two(
    workspace: Path, alice: dict[str, int], **settings: Any
) -> AsyncIterator[dict[str, Client]]:
    """A server with two principals: one with these quotas, one without quotas."""
    quotas: dict[str, Any] = {"alice": UNLIMITED | alice, "bob": UNLIMITED}
    tokens = {name: Token(hash=f"sha256:{digest(name).hex()}", **quotas[name]) for name in NAMES}
    async with serving(workspace, tokens=tokens, **settings) as server:
        yield {name: Bearer(server.http, server.url, name) for name in NAMES}


class Bearer(Client):
    """A client with a token."""

    def __init__(self, http: aiohttp.ClientSession, url: str, token: str) -> None:
        super().__init__(http, url)
        self._token = token

    async def post(self, body: Any, **headers: str) -> aiohttp.ClientResponse:
        return await super().post(body, Authorization=f"Bearer {self._token}", **headers)


@pytest.fixture
async def live() -> AsyncIterator[Liveness]:
    async with listening() as live:
        yield live


def request(text: str) -> Json:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}
    wanted = {"message": message, "configuration": {"returnImmediately": True}}
    return {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": wanted}


async def refused(client: Client, text: str) -> tuple[str, str, int]:
    """The reason and the text of the refusal, and the seconds of its hint, in both places."""
    response = await client.post(request(text))
    assert response.status == 429
    error = (await response.json())["error"]
    info, retry = error["data"]
    seconds = int(response.headers["Retry-After"])
    assert retry["retryDelay"] == f"{seconds}s"
    return info["reason"], error["message"], seconds


async def ended(client: Client, task_id: str) -> Json:
    async with asyncio.timeout(WITHIN):
        while state(task := await client.get(task_id)) not in ("completed", "canceled", "failed"):
            pass
        return task


# --- what is refused -----------------------------------------------------------------------------


async def test_tasks_that_have_not_ended_are_limited(workspace: Path, live: Liveness) -> None:
    async with serving_two(workspace, {"tasks": 2}) as clients:
        alice, bob = clients["alice"], clients["bob"]
        first = await alice.send_now(f"wait {live.path} one")
        await alice.send_now("permit q May I?")
        reason, text, seconds = await refused(alice, "done")
        assert (reason, seconds) == ("TOO_MANY_REQUESTS", 5)
        assert text.startswith("Task limit reached (2 unfinished")
        assert state(await bob.send("done")) == "completed"
        await alice.cancel(first["id"])
        assert state(await alice.send("done")) == "completed"


async def test_tasks_that_began_before_a_restart_are_counted(
    workspace: Path, http: aiohttp.ClientSession
) -> None:
    config = workspace.parent / "config.toml"
    hashed = f"sha256:{digest('alice').hex()}"
    config.write_text(f'[tokens.alice]\nhash = "{hashed}"\ntasks = 1\n')
    settings = scripted(workspace) | {"CONFIG_FILE": str(config)}
    async with bridge(workspace, **settings) as server:
        asked = await Bearer(http, server.url, "alice").send("permit q May I?")
        assert await server.stop(signal.SIGKILL) == -signal.SIGKILL
    async with bridge(workspace, **settings) as server:
        alice = Bearer(http, server.url, "alice")
        assert (await refused(alice, "done"))[1].startswith("Task limit reached (1 ")
        assert state(await alice.send("no", taskId=asked["id"])) == "completed"
        assert state(await alice.send("done")) == "completed"


async def test_a_message_that_begins_no_task_is_never_too_many(workspace: Path) -> None:
    async with serving_two(workspace, {"tasks": 1, "starts_per_minute": 1}) as clients:
        alice = clients["alice"]
        asked = await alice.send("permit q May I?", messageId="long-enough-to-be-unique")
        again = await alice.send("permit q May I?", messageId="long-enough-to-be-unique")
        assert again["id"] == asked["id"]
        assert state(await alice.send("yes", taskId=asked["id"])) == "completed"


async def test_starts_are_limited_by_the_minute(workspace: Path) -> None:
    async with serving_two(workspace, {"starts_per_minute": 3}) as clients:
        for _ in range(3):
            assert state(await clients["alice"].send("done")) == "completed"
        _, text, seconds = await refused(clients["alice"], "done")
        assert text.startswith("Start limit reached (3 tasks per minute)")
        assert 10 < seconds <= 20
        assert state(await clients["bob"].send("done")) == "completed"


def test_the_limit_of_starts_is_free_again_after_a_minute() -> None:
    now = 0.0
    quotas = Quotas({"a": Quota(starts_per_minute=2, tasks=0)}, clock=lambda: now)
    for _ in range(2):
        for _ in range(2):
            quotas.begin("a")
        with pytest.raises(TooManyRequests) as refusal:
            quotas.begin("a")
        assert refusal.value.seconds == 30
        now += 60.0


async def test_rest_says_the_same(workspace: Path) -> None:
    async with serving_two(workspace, {"starts_per_minute": 1}) as clients:
        alice = clients["alice"]
        await alice.send("done")
        url, headers = f"{alice.url}/message:send", {"Authorization": "Bearer alice"}
        body = request("done")["params"]
        headers |= {"A2A-Version": "1.0"}
        async with alice.session.post(url, json=body, headers=headers) as response:
            assert (response.status, response.reason) == (429, "Too Many Requests")
            assert 50 < int(response.headers["Retry-After"]) <= 60
            error = (await response.json())["error"]
    assert (error["code"], error["status"]) == (429, "RESOURCE_EXHAUSTED")


async def test_streams_are_limited_and_counted_until_they_end(
    workspace: Path, live: Liveness
) -> None:
    async with serving_two(workspace, {"streams": 2}) as clients:
        alice = clients["alice"]
        task = await alice.send_now(f"wait {live.path} one")
        headers = {"Authorization": "Bearer alice", "A2A-Version": "1.0"}
        url = f"{alice.url}/tasks/{task['id']}:subscribe"
        open_ones = [await alice.session.post(url, headers=headers) for _ in range(2)]
        assert [one.status for one in open_ones] == [200, 200]
        for one in open_ones:
            await one.content.readline()
        async with alice.session.post(url, headers=headers) as third:
            assert third.status == 429
        open_ones[0].close()
        async with asyncio.timeout(WITHIN):
            while (again := await alice.session.post(url, headers=headers)).status == 429:
                again.close()
        again.close()
        await live.release("one")
        await open_ones[1].read()


async def test_the_operator_has_no_quota() -> None:
    quotas = Quotas()
    for _ in range(1000):
        quotas.begin(OPERATOR.id)
    with quotas.stream(OPERATOR.id):
        quotas.check_stream(OPERATOR.id)
    assert quotas.of(OPERATOR.id).running == 0
    assert quotas.of("somebody") == Quota()


@each("name", list(UNLIMITED))
def test_no_quota_is_negative(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Token(hash="", **{name: -1})  # type: ignore[arg-type]


# --- what waits ----------------------------------------------------------------------------------


async def test_a_principal_with_many_tasks_delays_no_other(workspace: Path, live: Liveness) -> None:
    """Alice has two running and ten waiting tasks; the next slot goes to Bob, whose task came
    last."""
    async with serving_two(workspace, {}, bridge_max_sessions=2) as clients:
        alice, bob = clients["alice"], clients["bob"]
        for name in ("one", "two"):
            await alice.send_now(f"wait {live.path} {name}")
            await live.pid(name)
        waiting = [await alice.send_now(f"wait {live.path} w{n}") for n in range(10)]
        his = await bob.send_now("text his")
        await live.release("one")
        assert artifact_text(await ended(bob, his["id"])) == "his"
        states = [state(await alice.get(task["id"])) for task in waiting]
        assert states.count("submitted") >= 9
        for task in waiting:
            await alice.cancel(task["id"])
        await live.release("two")


async def test_so_many_work_at_once_and_the_others_wait(workspace: Path, live: Liveness) -> None:
    async with serving_two(workspace, {"running": 1}, bridge_max_sessions=4) as clients:
        alice, bob = clients["alice"], clients["bob"]
        warm = await alice.send("done")  # its session is warm, and works only in its turn, too
        first = await alice.send_now(f"wait {live.path} one")
        await live.pid("one")
        second = await alice.send_now("turn", contextId=warm["contextId"])
        third = await alice.send_now("turn")
        assert state(await bob.send("done")) == "completed"  # there is room
        assert [state(await alice.get(t["id"])) for t in (second, third)] == ["submitted"] * 2
        await live.release("one")
        await ended(alice, first["id"])
        assert artifact_text(await ended(alice, second["id"])) == "2"
        assert artifact_text(await ended(alice, third["id"])) == "1"


# --- what is kept --------------------------------------------------------------------------------


async def test_the_stored_bytes_of_an_owner_are_limited(workspace: Path) -> None:
    async with serving_two(workspace, {"stored_bytes": 100_000}) as clients:
        alice, bob = clients["alice"], clients["bob"]
        others = await bob.send("done")
        first, second = [await alice.send(f"text {'x' * 30_000}") for _ in range(2)]
        assert state(await alice.get(second["id"])) == "completed"
        with pytest.raises(RpcError):
            await alice.get(first["id"])
        assert state(await bob.get(others["id"])) == "completed"


async def test_stored_bytes_are_counted_and_restored(tmp_path: Path, workspace: Path) -> None:
    from bridge.server.state_dir import open_state

    sizes = []
    for _ in range(2):
        state = await open_state(tmp_path / "state")
        tasks = TaskHandles("agent", state.store)
        handle = await tasks.find("t")
        if handle is None:
            task = Task("t", "c", datetime.now(UTC), owner="alice")
            handle = TaskHandle(task)
            one = recorder(tasks)
            one.begin(handle, Message("m", Role.USER, (TextPart("x" * 1000),)))
            for event in (Text("y" * 5000), Done()):
                one.record(handle, [event])
        sizes.append(handle.size)
        await state.close()
    assert sizes[0] == sizes[1] and 6000 < sizes[0] < 8000
