"""Several servers on one database, of which one is lost: killed, stopped, or cut off."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from bridge.process.cgroup import Cgroup, home, markers
from bridge.server.agents.node import LOST
from tests.support.client import Client, Json, RpcError, artifact_text, state
from tests.support.collector import check_whole, collecting
from tests.support.ledger import check_epochs
from tests.support.liveness import Liveness
from tests.support.movable_agent import PROGRAM
from tests.support.nodes import Follower
from tests.support.proxy import Proxy, serving
from tests.support.receivers import Receiver, receiving
from tests.support.restart import Place, finished, heard, kill
from tests.support.servers import Postgres, on_postgres

pytestmark = pytest.mark.skipif(home() is None, reason="no control groups of version 2")
LEASE = 2.0  # seconds, the least


@pytest.fixture
def nodes(place: Place, postgres_url: str) -> Iterator[Place]:
    place.env = {
        **on_postgres(postgres_url),
        "AGENT_ADAPTER": "tests.support.movable_agent:Movable",
        "AGENT_ARGS": f"-I -S {PROGRAM}",
        "BRIDGE_SHARE": "s",
        "BRIDGE_LEASE_MS": str(int(1000 * LEASE)),
    }
    yield place
    for folder in place.state.parent.glob("state-*/id"):  # a server that does not return
        for marker in markers():
            if marker.startswith(folder.read_text().strip()):
                Cgroup(marker).kill()


def server(place: Place, name: str, **env: str) -> AbstractAsyncContextManager[Any]:
    folder = str(place.state.with_name(f"state-{name}"))
    given = {"BRIDGE_STATE_DIR": folder, "BRIDGE_NODE": f"test:{name}", **env}
    return place.server(True, **given)


def reason(task: Json) -> Any:
    return (task.get("metadata") or {}).get("bridge", {}).get("reason")


async def states(client: Client) -> dict[str, str]:
    async with client.session.get(f"{client.url}/nodes") as response:
        return {one["name"]: one["state"] for one in (await response.json())["nodes"]}


@pytest.mark.soak
async def test_a_turn_of_a_lost_server_is_one_trace(nodes: Place) -> None:
    """Takes seconds: two servers start, and a lease. The lost server has sent nothing."""
    trace, caller = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    async with collecting() as collector:
        nodes.env |= collector.env
        async with server(nodes, "b") as (_, b):
            async with server(nodes, "a", OTEL_BSP_SCHEDULE_DELAY="60000") as (first, a):
                a.headers["traceparent"] = f"00-{trace}-{caller}-01"
                path = nodes.workspace / "written"
                task = await a.send_now(f"text one\nappend {path}")
                await heard(b, task["id"], "one")
                await kill(first)
            assert state(await finished(b, task["id"])) == "failed"
            (turn,) = await collector.has("invoke_agent")
    spans = [span for span in collector.spans if span.trace_id == trace]
    check_whole(spans, caller)
    assert turn.attributes["error.type"] == "node-lost"
    assert {"SendMessage", "bridge.session_start"} <= {span.name for span in spans}


async def test_another_server_continues_the_conversations_of_a_lost_one(nodes: Place) -> None:
    """Takes seconds: two servers start, and a lease."""
    path = nodes.workspace / "written"
    async with server(nodes, "b") as (_, b):
        async with server(nodes, "a") as (first, a):
            task = await a.send_now(f"text one\nappend {path}")
            await heard(b, task["id"], "one")
            await written(path)
            killed = time.clock_gettime(time.CLOCK_BOOTTIME)
            await kill(first)
        ended = await finished(b, task["id"])
        assert time.clock_gettime(time.CLOCK_BOOTTIME) - killed < LEASE + 2
        size = size_of(path)  # the launcher has frozen the agent
        assert appended(path)[-1][0] - killed < 0.6 * LEASE + 0.5
        assert (state(ended), artifact_text(ended)) == ("failed", "one")
        assert reason(ended) == "node-lost"
        again = await b.send("count", contextId=task["contextId"])
        assert artifact_text(again) == "2"
        assert size_of(path) == size
        assert (await states(b))["test:a"] == "fenced"
        async with b.session.get(f"{b.url}/health") as response:
            assert (await response.json())["node"] == {"name": "test:b", "state": "up"}


async def written(path: Path, more: int = 0) -> int:
    """The bytes of the file, once there are more."""
    async with asyncio.timeout(30):
        while size_of(path) <= more:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return size_of(path)


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def appended(path: Path) -> list[tuple[float, int]]:
    """Seconds of CLOCK_BOOTTIME and the pid of each line that agents have written."""
    lines = path.read_text().split("\n")[:-1]
    return [(int(time) / 1e9, int(pid)) for time, pid in map(str.split, lines)]


async def stop_a_server(place: Place, live: Liveness, number: int = 0) -> None:
    """A server is stopped for two leases while its CLI writes to a file. It writes nothing more
    soon, and nothing later; and the server ends itself."""
    path = place.workspace / f"written-{number}"
    async with server(place, "b") as (_, b):
        async with server(place, "a") as (first, a):
            task = await a.send_now(f"text one\nappend {path}")
            await heard(b, task["id"], "one")
            await written(path)
            stopped = time.clock_gettime(time.CLOCK_BOOTTIME)
            first.process.send_signal(signal.SIGSTOP)
            ended = await finished(b, task["id"])
            assert (state(ended), reason(ended)) == ("failed", "node-lost")
            size = size_of(path)
            await asyncio.sleep(
                max(0, stopped + 2 * LEASE - time.clock_gettime(time.CLOCK_BOOTTIME))
            )
            first.process.send_signal(signal.SIGCONT)
            async with asyncio.timeout(30):
                assert await first.process.wait() == LOST
            assert size_of(path) == size
            last, pid = appended(path)[-1]
            print(f"last byte {last - stopped:.3f} s after the stop")
            assert last - stopped < 0.6 * LEASE + 0.5
            assert not is_alive(pid)
            assert artifact_text(await b.get(task["id"])) == "one"
        again = await b.send("count", contextId=task["contextId"])
        assert int(artifact_text(again)) > 1


async def test_a_stopped_server_freezes_its_agents_and_ends(nodes: Place, live: Liveness) -> None:
    """Takes seconds: two servers start, and two leases."""
    await stop_a_server(nodes, live)


class Gateway(Proxy):
    """Passes nothing on, and takes no connection, while it is `off`; afterwards it cuts those that
    have waited."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.off = False
        self.on = asyncio.Event()

    def turn_on(self) -> None:
        self.off = False
        self.on.set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.off:
            writer.transport.abort()
        else:
            await super().__call__(reader, writer)

    async def before(self, data: bytes, up: bool) -> None:
        if self.off:
            await self.on.wait()  # without FIN
            raise ConnectionResetError


def through(url: str, proxy: Proxy) -> str:
    options = url.partition("&options=")[2]
    return f"postgresql://postgres@{proxy.url.removeprefix('http://')}/postgres?options={options}"


async def be_without_a_database(place: Place, database: Postgres, url: str, number: int) -> None:
    """No server reaches the database for three leases: the CLI of a share is frozen meanwhile, and
    that of one server alone works on; nothing is lost, and no server is fenced."""
    proxy, movable = Gateway(database.port), place.workspace / f"movable-{number}"
    pinned = place.workspace.parent / f"alone-{number}" / "pinned"
    pinned.parent.mkdir()
    async with serving(proxy):
        env = {
            "BRIDGE_STORE": through(url, proxy),
            "AGENT_ALLOWED_REPO_ROOTS": f"{pinned.parent}:{place.workspace}",
            "BRIDGE_SHARE": f"s={place.workspace}",
        }
        async with (
            server(place, "a", **env) as (first, a),
            server(place, "b", **env) as (second, b),
        ):
            options = {"metadata": {"bridge": {"cwd": str(pinned.parent)}}}
            texts = [f"text one\nappend {path} {5 * LEASE}\ntext two" for path in (movable, pinned)]
            tasks = [await a.send_now(texts[0]), await a.send_now(texts[1], **options)]
            await written(pinned), await written(movable)
            proxy.off, began = True, time.clock_gettime(time.CLOCK_BOOTTIME)
            await first.logged("another one may take its contexts")
            with pytest.raises(RpcError) as error:
                await a.get(tasks[0]["id"])
            assert error.value.error["data"][0]["reason"] == "UNAVAILABLE"
            await asyncio.sleep(max(0, began + 3 * LEASE - time.clock_gettime(time.CLOCK_BOOTTIME)))
            proxy.turn_on()
            ended = time.clock_gettime(time.CLOCK_BOOTTIME)
            for one in (first, second):
                await one.logged("is valid again")
            for task in tasks:
                done = await finished(b, task["id"])
                assert (state(done), artifact_text(done)) == ("completed", "onetwo")
            frozen = (began + 0.6 * LEASE + 0.5, ended - 0.05)
            assert not [at for at, _ in appended(movable) if frozen[0] < at < frozen[1]]
            assert [at for at, _ in appended(pinned) if frozen[0] < at < frozen[1]]
            assert await states(a) == {"test:a": "up", "test:b": "up"}


@pytest.mark.soak
async def test_without_the_database_shared_agents_pause_and_nothing_is_lost(
    nodes: Place, database: Postgres, postgres_url: str
) -> None:
    """Takes seconds: two servers start, and an outage of three leases."""
    if not database.restarts:
        pytest.skip("the server of BRIDGE_TEST_POSTGRES has an address of its own")
    await be_without_a_database(nodes, database, postgres_url, 0)


async def lose_and_return(place: Place, live: Liveness, number: int = 0) -> None:
    """A server is killed, fenced, and starts again within the grace: its own task goes on."""
    name, pieces = f"agent-{number}", [f"p{one} " for one in range(40)]
    lines = [f"text {one}" for one in pieces]
    script = "\n".join([*lines[:20], f"wait {live.path} {name}", *lines[20:]])
    async with server(place, "b") as (second, b):
        async with server(place, "a", BRIDGE_SHARE="") as (first, a):
            task = await a.send_now(script)
            await live.pid(name)
            await heard(b, task["id"], "".join(pieces[:20]))
            await kill(first)
        await second.logged("it is fenced")
        async with server(place, "a", BRIDGE_SHARE="") as (_, a):
            await live.release(name)
            ended = await finished(b, task["id"])
            assert (state(ended), artifact_text(ended)) == ("completed", "".join(pieces))
            assert await a.get(task["id"]) == ended


@pytest.mark.soak
async def test_a_server_that_returns_continues_its_own_tasks(nodes: Place, live: Liveness) -> None:
    """Takes seconds: three starts of servers, and a lease."""
    await lose_and_return(nodes, live)


@pytest.mark.soak
async def test_the_end_of_a_lost_task_is_notified(nodes: Place, live: Liveness) -> None:
    """After the grace, the server that ends the task also delivers its notifications. Takes
    seconds: two starts of servers, and a lease."""
    receiver = Receiver()
    nodes.env |= {"BRIDGE_PUSH_ALLOW_PRIVATE": "true", "BRIDGE_NODE_GRACE_MS": "1000"}
    async with receiving(receiver), server(nodes, "b") as (_, b):
        async with server(nodes, "a", BRIDGE_SHARE="") as (first, a):
            config: Json = {"taskPushNotificationConfig": {"id": "one", "url": receiver.url}}
            config["returnImmediately"] = True
            task = await a.send(f"text one\nwait {live.path} agent", config)
            await live.pid("agent")
            await heard(b, task["id"], "one")
            await kill(first)
        ended = await finished(b, task["id"])
        assert (state(ended), reason(ended)) == ("failed", "node-lost")
        async with asyncio.timeout(30):
            count = len(await receiver.got(1))
            while state(json.loads(receiver.bodies[-1])) != "failed":
                count = len(await receiver.got(count + 1))


@pytest.mark.soak
async def test_a_frozen_agent_continues_with_the_next_start_of_its_server(
    nodes: Place, live: Liveness, postgres_url: str
) -> None:
    """Takes seconds: three starts of a server, and the time until the launcher freezes the agent.
    Without the share, no other server may continue the context any more."""
    path = nodes.workspace / "written"
    script = f"text one\nappend {path} {2 * LEASE}\nwait {live.path} agent\ntext two"
    async with server(nodes, "a") as (first, a):
        task = await a.send_now(script)
        await heard(a, task["id"], "one")
        await written(path)
        await kill(first)
    await asyncio.sleep(LEASE)
    size = size_of(path)
    await asyncio.sleep(LEASE / 4)
    assert size_of(path) == size
    async with server(nodes, "a") as (_, a):
        await live.release("agent")
        ended = await finished(a, task["id"])
        assert (state(ended), artifact_text(ended)) == ("completed", "onetwo")
        assert shares_in(postgres_url) == ["s"]
    async with server(nodes, "a", BRIDGE_SHARE=""):
        pass
    assert shares_in(postgres_url) == [None]


def shares_in(url: str) -> list[str | None]:
    with psycopg.connect(url) as connection:
        return [share for (share,) in connection.execute("SELECT share FROM context").fetchall()]


@pytest.mark.soak
async def test_a_launcher_that_is_killed_stops_no_task(nodes: Place, live: Liveness) -> None:
    """Takes seconds: a server starts, and notices the end at its next count. Another launcher
    guards the agent then."""
    path = nodes.workspace / "written"
    async with server(nodes, "a") as (first, a):
        task = await a.send_now(f"text one\nappend {path} {2 * LEASE}\ntext two")
        await heard(a, task["id"], "one")
        await written(path)
        (launcher,) = launchers(first.process.pid)
        launcher.kill()
        async with asyncio.timeout(30):
            while launchers(first.process.pid) in ([], [launcher]):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        ended = await finished(a, task["id"])
        assert (state(ended), artifact_text(ended)) == ("completed", "onetwo")


def launchers(pid: int) -> list[psutil.Process]:
    found = psutil.Process(pid).children()
    return [one for one in found if "fork_server" in " ".join(one.cmdline())]


# --- the bars ------------------------------------------------------------------------------------

ROUNDS = int(os.environ.get("BRIDGE_TEST_ROUNDS", "0"))  # 0: those of the bar
PIECES = [f"p{number} " for number in range(40)]


def piecewise(path: str, name: str) -> str:
    lines = [f"text {one}" for one in PIECES]
    return "\n".join([*lines[:20], f"wait {path} {name}", *lines[20:]])


async def lose_two_tasks(place: Place, live: Liveness, b: Client, number: int) -> None:
    """A server is killed in the middle of a movable and of a pinned task. Readers move on, and each
    update reaches them once."""
    alone, names = place.workspace.parent / "alone", (f"m-{number}", f"p-{number}")
    options = {"metadata": {"bridge": {"cwd": str(alone)}}}
    async with server(place, "a") as (first, a):
        tasks = [
            await a.send_now(piecewise(live.path, names[0])),
            await a.send_now(piecewise(live.path, names[1]), **options),
        ]
        readers = [Follower(task["id"]) for task in tasks]
        reading = [asyncio.create_task(one.follow(a)) for one in readers]
        for name, one in zip(names, readers, strict=True):
            await live.pid(name)
            await one.reached(30)
        await kill(first)
        await asyncio.gather(*reading)
    begun = time.monotonic()
    movable, pinned = readers
    async with asyncio.timeout(30):
        await movable.follow(b)
    took = time.monotonic() - begun
    ended = await b.get(tasks[0]["id"])
    assert (state(ended), reason(ended)) == ("failed", "node-lost")
    # The last output may not have been committed, and then no client has seen it.
    assert "".join(PIECES[:20]).startswith(artifact_text(ended))
    assert took < LEASE + 2, took
    before = len((place.workspace / "prompts").read_text().splitlines())
    again = await b.send("count", contextId=tasks[0]["contextId"])
    assert artifact_text(again) == str(before + 1)
    async with server(place, "a") as (_, a):
        await live.release(names[1])
        async with asyncio.timeout(30):
            await pinned.follow(a)
        ended = await b.get(tasks[1]["id"])
        assert (state(ended), artifact_text(ended)) == ("completed", "".join(PIECES))
        for one in readers:
            whole = Follower(one.task_id)
            await whole.follow(b)
            assert whole.events == one.events
    print(f"round {number}: taken after {took:.2f} s", flush=True)


@pytest.mark.soak
@pytest.mark.timeout(3000)
async def test_servers_that_are_killed_lose_no_update(
    nodes: Place, live: Liveness, postgres_url: str
) -> None:
    """Takes ten minutes: a hundred rounds with two starts of a server and a lease each."""
    alone = nodes.workspace.parent / "alone"
    alone.mkdir()
    nodes.env["AGENT_ALLOWED_REPO_ROOTS"] = f"{alone}:{nodes.workspace}"
    nodes.env["BRIDGE_SHARE"] = f"s={nodes.workspace}"
    async with server(nodes, "b") as (_, b):
        for number in range(ROUNDS or 100):
            await lose_two_tasks(nodes, live, b, number)
        assert check_epochs(postgres_url) == []


@pytest.mark.soak
@pytest.mark.timeout(3000)
async def test_stopped_servers_write_nothing(
    nodes: Place, live: Liveness, postgres_url: str
) -> None:
    """Takes three minutes: twenty rounds with two starts of servers and two leases each."""
    for number in range(ROUNDS or 20):
        await stop_a_server(nodes, live, number)
    assert check_epochs(postgres_url) == []
