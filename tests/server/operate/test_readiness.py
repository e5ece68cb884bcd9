"""/ready, and the health service of gRPC, which agrees with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bridge import __version__
from bridge.auth.principal import OPERATOR, Principal
from bridge.cli.health import health
from bridge.server.agents.configured import ConfiguredAgent, configure_agents
from bridge.server.agents.node import NodeAgents
from bridge.server.operate.health import HealthCheck
from bridge.server.operate.health import health as health_page
from bridge.server.operate.readiness import AgentFaults, Readiness, ReadyParts
from bridge.server.settings.load import Loaded
from bridge.server.settings.root import Settings
from bridge.session.pool import SessionPool
from bridge.store.memory import MemoryStore
from bridge.telemetry.watchdog import Watchdog
from bridge.transports.operation import PRINCIPAL
from tests.support.bridge_process import bridge, scripted
from tests.support.client import Client, state
from tests.support.command_line import agent
from tests.support.grpc_client import connected
from tests.support.liveness import listening, until
from tests.support.principals import headers, server
from tests.support.served import Server, serving


def configured(workspace: Path, **given: Any) -> ConfiguredAgent:
    """The only agent of a server with these settings."""
    chosen = {"agent_adapter": "jsonl", "agent_repo_path": str(workspace), **given}
    (one,) = configure_agents(Loaded(Settings().updated(chosen), {}, []))
    return one


def move(path: Path, name: str) -> Path:
    return path.rename(path.with_name(name))


def rewrite(path: Path, text: str) -> str:
    """Replace the content of a file. Returns the content before."""
    before = path.read_text()
    path.write_text(text)
    return before


SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"


@asynccontextmanager
async def parts(folder: Path | None = None, **changes: Any) -> AsyncIterator[ReadyParts]:
    """The parts of a server that is ready."""
    watchdog = Watchdog(stuck=0.5)
    faults = AgentFaults([], {}, {})
    made = ReadyParts(
        store=MemoryStore(),
        shared=False,
        folder=folder,
        free=0,
        watchdog=watchdog,
        node=NodeAgents(),
        pool=SessionPool(2),
        faults=faults,
    )
    try:
        yield replace(made, **changes)
    finally:
        watchdog.close()
        faults.close()


def begun(made: ReadyParts) -> Readiness:
    readiness = Readiness(made)
    readiness.phase = "serving"
    return readiness


async def start(readiness: Readiness, made: ReadyParts) -> None:
    readiness.phase = "starting"


async def drain(readiness: Readiness, made: ReadyParts) -> None:
    readiness.phase = "draining"


async def fence(readiness: Readiness, made: ReadyParts) -> None:
    made.node.state = "doubt"
    assert readiness.ready
    made.node.state = "fenced"


async def fail_to_write(readiness: Readiness, made: ReadyParts) -> None:
    assert isinstance(made.store, MemoryStore)
    made.store.problem = "the disk fails"


async def remove_the_folder(readiness: Readiness, made: ReadyParts) -> None:
    assert made.folder
    made.folder.rmdir()


async def fill_the_disk(readiness: Readiness, made: ReadyParts) -> None:
    """Up to the limit, which is moved instead."""
    free = readiness.free_bytes()
    assert free is not None and free > 0
    readiness._parts = replace(made, free=free + 2**40)


async def remove_the_agent(readiness: Readiness, made: ReadyParts) -> None:
    assert made.folder
    program = made.folder.with_name("agent")
    assert readiness.ready
    program.unlink()


FAULTS_BY_REASON = {
    "starting": start,
    "draining": drain,
    "fenced": fence,
    "journal": fail_to_write,
    "state_folder": remove_the_folder,
    "disk": fill_the_disk,
    "agents": remove_the_agent,
}


@asynccontextmanager
async def answering(readiness: Readiness) -> AsyncIterator[Server]:
    """A server with nothing but /ready."""
    app = web.Application()
    app.router.add_get("/ready", readiness.answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        yield Server(http, str(server.make_url("")).rstrip("/"), [])


async def command(one: Server, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit status and the output of `coding-agent-bridge health --ready`."""
    settings = Settings().updated({"port": int(one.url.rpartition(":")[2])})
    status = await asyncio.to_thread(health, settings, ready=True)
    return status, capsys.readouterr().out.strip()


@pytest.mark.parametrize("reason", FAULTS_BY_REASON)
async def test_each_reason_is_in_the_answer_and_fails_the_command(
    workspace: Path, tmp_path: Path, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, program = tmp_path / "state", Path(agent(tmp_path))
    folder.mkdir()
    faults = AgentFaults([configured(workspace, agent_binary=str(program), agent_args=())], {}, {})
    async with parts(folder, faults=faults) as made:
        readiness = begun(made)
        async with answering(readiness) as one:
            assert (await ready(one), await command(one, capsys)) == ((200, []), (0, "ready"))
            await FAULTS_BY_REASON[reason](readiness, made)
            assert await ready(one) == (503, [reason])
            assert await command(one, capsys) == (1, f"not_ready {reason}")


async def test_an_event_loop_that_stood_still_until_now_is_a_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command asks from a thread of its own, while the loop stands still for longer than the
    watchdog of this test allows."""
    async with parts() as made:
        readiness = begun(made)
        async with answering(readiness) as one:
            asking = asyncio.create_task(command(one, capsys))
            await asyncio.sleep(0)
            time.sleep(0.8)  # noqa: ASYNC251  # the fault that is tested
            assert made.watchdog.lag >= 0.5
            assert await asking == (1, "not_ready event_loop")
            await until(lambda: readiness.ready)


async def test_an_own_store_that_cannot_be_written_is_a_reason_and_a_shared_one_is_none() -> None:
    store = MemoryStore()
    store.problem = "the disk is full"
    async with parts(store=store) as made:
        assert begun(made).reasons() == ["journal"]
        assert begun(replace(made, shared=True)).reasons() == []


async def test_a_full_disk_is_a_reason_and_a_problem(tmp_path: Path) -> None:
    async with parts(tmp_path) as made:
        full = begun(replace(made, free=2**62))
        assert full.reasons() == ["disk"]
        assert list(full.problems()) == ["disk"]
        assert begun(replace(made, folder=None, free=2**62)).ready


async def test_a_saturated_server_is_ready_and_degraded(workspace: Path) -> None:
    """More tasks would be lost to retries if it were not ready."""
    async with serving(workspace, bridge_max_sessions=1) as one, listening() as live:
        client = one.client()
        script = f"wait {live.path} x"
        await client.send_now(script)
        await live.pid("x")
        await client.send_now("text hi")
        assert one.pages
        await until(lambda: "saturated" in one.pages.readiness.problems())  # type: ignore[union-attr]
        assert await ready(one) == (200, [])
        assert one.pages.readiness.problem == "all slots are in use, and 1 tasks wait"
        await live.release("x")


async def ready(one: Server) -> tuple[int, list[str]]:
    """The status of /ready, and its reasons."""
    async with one.http.get(f"{one.url}/ready") as response:
        body = await response.json()
        assert response.headers["Cache-Control"] == "no-store"
        assert body["status"] == ("ready" if response.status == 200 else "not_ready")
        assert (response.headers.get("Retry-After") == "5") is (response.status == 503)
        return response.status, body["reasons"]


async def test_an_agent_without_its_program_is_unusable_until_it_is_back(
    workspace: Path, tmp_path: Path
) -> None:
    program = Path(agent(tmp_path / "bin"))
    options: dict[str, Any] = {"agent_binary": str(program), "agent_args": ()}
    async with serving(workspace, **options, bridge_warm_sessions=0) as one:
        assert await ready(one) == (200, [])
        aside = move(program, "aside")
        assert await ready(one) == (503, ["agents"])
        move(aside, program.name)
        assert await ready(one) == (200, [])


async def test_an_agent_that_failed_to_start_is_unusable_until_a_task_works(
    workspace: Path, tmp_path: Path
) -> None:
    program = Path(agent(tmp_path / "bin"))
    options: dict[str, Any] = {"agent_binary": str(program), "agent_args": ()}
    async with serving(workspace, **options) as one:
        text = rewrite(program, "#!/no/such/interpreter\n")
        failed = await one.client().send("text hi")
        assert state(failed) == "failed"
        assert await ready(one) == (503, ["agents"])
        rewrite(program, text)
        assert state(await one.client().send("text hi\ndone")) == "completed"
        assert await ready(one) == (200, [])


async def test_the_login_check_ends_the_fault_of_an_agent(workspace: Path, tmp_path: Path) -> None:
    """An agent without such a check is tried again after the same time."""
    program = Path(agent(tmp_path / "bin"))
    options: dict[str, Any] = {"agent_binary": str(program), "agent_args": ()}
    async with serving(workspace, **options) as one:
        assert one.pages
        loaded = configured(workspace, **options)
        faults = AgentFaults([loaded], {loaded.id: one.managers[0]}, {}, look_again=0.05)
        rewrite(program, "#!/no/such/interpreter\n")
        await one.client().send("text hi")
        assert await ready(one) == (503, ["agents"])
        await until(lambda: not faults.found())
        assert await ready(one) == (503, ["agents"])  # its own check is later
        faults.close()


async def test_a_server_without_slots_is_ready_without_agents(
    workspace: Path, tmp_path: Path
) -> None:
    program = Path(agent(tmp_path / "bin"))
    loaded = configured(workspace, agent_binary=str(program), agent_args=())
    move(program, "aside")
    faults = AgentFaults([loaded], {}, {})
    assert faults.everywhere
    async with parts(faults=faults) as made:
        assert begun(made).reasons() == ["agents"]
        assert begun(replace(made, pool=SessionPool(0))).ready


@pytest.mark.parametrize("who", ["anonymous", "reader", "boss"])
async def test_ready_needs_no_identity(tmp_path: Path, who: str) -> None:
    async with (
        server(tmp_path) as one,
        one.http.get(f"{one.url}/ready", headers=headers(who)) as got,
    ):
        assert (got.status, await got.json()) == (200, {"status": "ready", "reasons": []})


async def test_grpc_serves_exactly_while_the_server_is_ready(workspace: Path) -> None:
    async with serving(workspace, bridge_grpc_port=0) as one:
        assert one.grpc and one.pages
        readiness = one.pages.readiness
        async with connected(one.grpc) as client:
            check = client.channel.unary_unary("/grpc.health.v1.Health/Check")
            for phase in ("serving", "starting", "serving", "draining"):
                readiness.phase = phase
                expected = (200, SERVING) if phase == "serving" else (503, NOT_SERVING)
                assert ((await ready(one))[0], await check(b"")) == expected


async def test_a_server_that_drains_says_so_to_open_connections(
    workspace: Path, http: aiohttp.ClientSession
) -> None:
    """A start and a stop of a server take a second."""
    env = {**scripted(workspace), "BRIDGE_DRAIN_MS": "30000", "BRIDGE_MIN_FREE_BYTES": "0"}
    async with bridge(workspace, **env) as one, listening() as live:
        await Client(http, one.url).send_now(f"wait {live.path} x\ndone")
        await live.pid("x")
        async with http.get(f"{one.url}/ready") as response:
            assert (response.status, await response.json()) == (
                200,
                {"status": "ready", "reasons": []},
            )
        one.process.terminate()
        await one.logged("stopping")
        async with http.get(f"{one.url}/ready") as response:  # on the same connection
            assert response.status == 503
            assert (await response.json())["reasons"] == ["draining"]
        await live.release("x")
        assert await one.ended() == 0


# --- /health -------------------------------------------------------------------------------------


class Faulty:
    problem: str | None = "the audit log cannot be written to /secret/place"


async def of_health(check: HealthCheck, principal: Principal | None) -> tuple[int, dict[str, Any]]:
    """The answer of /health to this client."""

    async def handle(request: web.Request) -> web.Response:
        if principal:
            request[PRINCIPAL] = principal
        return await health_page({}, [check], lambda: {"sessions": {"working": 1}}, request)

    app = web.Application()
    app.router.add_get("/health", handle)
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        async with http.get(server.make_url("/health")) as response:
            return response.status, await response.json()


async def test_problems_are_told_to_known_clients_alone() -> None:
    """The answer is 200 in any case: a restart would cure nothing."""
    faulty, about = Faulty(), {"version": __version__}
    assert await of_health(faulty, None) == (200, {"status": "degraded", **about})
    known = {"agents": {}, "sessions": {"working": 1}, **about}
    problems = {"status": "degraded", "problems": [faulty.problem]}
    assert await of_health(faulty, OPERATOR) == (200, {**problems, **known})
    faulty.problem = None
    assert await of_health(faulty, None) == (200, {"status": "ok", **about})
    assert await of_health(faulty, OPERATOR) == (200, {"status": "ok", **known})
