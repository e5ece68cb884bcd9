"""The whole server in this process on a socket of its own, with tests/support/agent.py as its
CLI."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientTimeout, web

from bridge.auth.authentication import Identity
from bridge.auth.oidc import Issuer, OidcConfig
from bridge.auth.quotas import Quotas
from bridge.process.process_tree import reap_orphans
from bridge.push.notifier import Push
from bridge.runtime.tasks import TaskManager
from bridge.server.agents.configured import configure_agents
from bridge.server.agents.delegates import make_endpoint
from bridge.server.agents.grpc_port import GrpcPort
from bridge.server.agents.node import NodeAgents
from bridge.server.agents.redis_port import RedisPort
from bridge.server.app.application import make_app
from bridge.server.app.sites import ServedAgent
from bridge.server.assemble import SharedParts, make_root, make_served_agent
from bridge.server.extras import token_issuer
from bridge.server.lifecycle.parts import make_pool
from bridge.server.operate.pages import OperatorPages
from bridge.server.operate.ports import Ports
from bridge.server.operate.sockets import limits
from bridge.server.operate.tracing import open_tracing
from bridge.server.settings.constants import Constants
from bridge.server.settings.load import Loaded
from bridge.server.settings.root import Settings
from bridge.server.state_dir import State
from bridge.session.prewarm import PrewarmPlan
from bridge.store.handle import TaskHandle
from bridge.store.protocol import TaskHead
from bridge.telemetry.metrics.catalog import FAILURES
from bridge.telemetry.watchdog import Watchdog
from bridge.transports.listener.connection_limits import LimitedRunner
from bridge.transports.listener.unix_socket import UnixSocket, listen
from bridge.transports.mcp.endpoint import McpLimits
from bridge.transports.push_notifications import encode_notification
from bridge.transports.stream import KEEP_ALIVE, KeepAlive
from tests.support.agent import PROGRAM
from tests.support.children import children
from tests.support.chosen_store import new_state
from tests.support.client import Client
from tests.support.constants import taken


class Server:
    """`grpc`: HOST:PORT of its gRPC port, with the setting BRIDGE_GRPC_PORT. `pages`: those of the
    operator, if the server is in this process. `identity`: its credentials. `change` applies other
    settings, where Redis is used."""

    def __init__(
        self,
        http: ClientSession,
        url: str,
        managers: list[TaskManager],
        grpc: str | None = None,
        pages: OperatorPages | None = None,
        identity: Identity | None = None,
        change: Callable[..., Awaitable[None]] | None = None,
    ) -> None:
        self.pages = pages
        self.http = http
        self.url = url
        self.managers = managers
        self.grpc = grpc
        if identity:
            self.identity = identity
        if change:
            self.change = change

    def observers(self) -> int:
        """The number of observers of requests and tasks."""
        if not self.pages:
            return 0
        shared = self.pages.shared
        return len(shared.request_observers) + sum(map(len, shared.agent_observers.values()))

    def client(self, version: str = "1.0", **headers: str) -> Client:
        """`headers`: for every request, with _ in place of -."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return Client(self.http, self.url, version, sent)


@asynccontextmanager
async def serving(
    workspace: Path,
    program: str = PROGRAM,
    prewarm: PrewarmPlan | None = None,
    issuer: OidcConfig | None = None,
    keep_alive: KeepAlive = KEEP_ALIVE,
    mcp: McpLimits | None = None,
    **settings: Any,
) -> AsyncIterator[Server]:
    """A server with these settings. Afterwards no process of its agents is left. `prewarm`,
    `issuer`: instead of those of the settings. `mcp`: the limits of MCP."""
    reap_orphans()  # of servers that other tests ended by force
    defaults = {
        "agent_adapter": "jsonl",
        "agent_binary": sys.executable,
        "agent_args": ("-I", "-S", program),
        "agent_repo_path": str(workspace),
        "bridge_stop_grace_ms": 1000,
        "bridge_push_allow_private": True,
        "bridge_max_text_bytes": 2**25,  # tests/support/agent.py has its script in the prompt
    }
    constants, given = taken({**defaults, **settings})
    chosen = Settings(constants=Constants(**constants)).updated(given)
    loaded = Loaded(chosen, {}, [])
    async with serving_loaded(
        loaded, prewarm=prewarm, issuer=issuer, keep_alive=keep_alive, mcp=mcp
    ) as server:
        yield server


def _grpc(settings: Settings, default: str) -> tuple[GrpcPort, Callable[[], Awaitable[None]]]:
    """The port, and the function that closes it."""
    ports = Ports()
    port = GrpcPort(settings, default, ports)

    async def close() -> None:
        await port.stop(0.5)
        ports.close()

    return port, close


@asynccontextmanager
async def serving_loaded(
    loaded: Loaded,
    cli_version: str = "",
    prewarm: PrewarmPlan | None = None,
    issuer: OidcConfig | None = None,
    keep_alive: KeepAlive = KEEP_ALIVE,
    mcp: McpLimits | None = None,
) -> AsyncIterator[Server]:
    """A server with loaded settings. `cli_version`: the version of the CLIs."""
    before = children()  # of a server that other tests share
    loaded = _open_to_all(loaded)
    chosen, pool = loaded.settings, make_pool(loaded.settings)
    allow_private = chosen.push.allow_private
    state, forget = await new_state()
    push = Push(state.store, encode_notification, allow_private=allow_private)
    redis = await _redis(chosen, state, push)
    await push.start(_find)
    agents = configure_agents(loaded)
    grpc, close_port = _grpc(chosen, agents[0].id)
    identity = Identity(chosen.auth.config, Issuer(issuer) if issuer else token_issuer(chosen))
    push.admits = identity.admits
    shared = SharedParts(
        pool,
        push,
        state,
        keep_alive,
        grpc.place,
        tracing=open_tracing(chosen, state, push, loaded.secrets.clean),
        revocations=identity.revocations,
    )
    served = [
        make_served_agent(one, shared, version=cli_version, prewarm=prewarm) for one in agents
    ]
    root = make_root(agents, served, shared, version=cli_version)
    managers, watchdog = [one.manager for one in served], Watchdog()
    pages = OperatorPages(
        chosen,
        shared,
        agents=agents,
        managers={one.id: one.manager for one in served},
        sandboxes={},
        node=NodeAgents(),
        watchdog=watchdog,
    )
    app = make_app(
        root,
        served,
        settings=chosen,
        identify=identity,
        checks=(redis,),
        about=lambda: {"sessions": pool.figures()},
    )
    _add_mcp(app, (agents, served, root, state), identity, mcp or McpLimits())
    runner = LimitedRunner(app, limits(chosen), shutdown_timeout=0.5)
    pages.attach(app, runner, identity, grpc)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    unix = await _unix(chosen, runner)
    url = "http://{}:{}".format(*runner.addresses[0][:2])
    await grpc.serve(root, served, url, identity, lambda: pages.readiness.ready)
    redis.start(root, url, pool.quotas)
    pages.readiness.phase = "serving"
    for manager in managers:
        manager.warm_up()
    try:
        async with ClientSession(timeout=ClientTimeout(30), read_bufsize=2**25) as http:
            change = partial(_change, chosen, redis, root, (identity, pool.quotas))
            yield Server(http, url, managers, grpc.address, pages, identity, change)
    finally:
        pages.close()
        watchdog.close()
        await asyncio.gather(*(manager.close(drain=0) for manager in managers))
        await close_port()
        await redis.stop(0.5)
        await runner.cleanup()
        if unix:
            unix.close()
        await _release(shared)
        forget()
    assert set(identity.failures) <= set(FAILURES)  # their metrics exist from the start
    left = set(children()) - set(before)
    assert not left, left


async def _release(shared: SharedParts) -> None:
    await shared.push.close()
    if shared.tracing:
        await shared.tracing.close()
    await shared.state.close()


def _add_mcp(
    app: web.Application, parts: tuple[Any, ...], identity: Identity, limited: McpLimits
) -> None:
    held = identity.revocations
    agents, served, root, state = parts
    make_endpoint(agents, served, root, state, identity.session, limited, revocations=held).attach(
        app
    )


async def _redis(settings: Settings, state: State, push: Push) -> RedisPort:
    redis = RedisPort(settings, state)
    push.delivery.relay = redis.relay
    await redis.claim()
    return redis


async def _change(
    chosen: Settings,
    redis: RedisPort,
    root: ServedAgent,
    parts: tuple[Identity, Quotas],
    **settings: Any,
) -> None:
    """Apply other settings of principals, as a reload does."""
    identity, quotas = parts
    new = chosen.updated(settings)
    await redis.prepare(new)
    identity.change(new.auth.config, None, None)
    quotas.change(new.auth.tokens)
    redis.change(root, new)


async def _unix(settings: Settings, runner: LimitedRunner) -> UnixSocket | None:
    """The Unix socket, which accepts connections, if the settings have one."""
    path = settings.server.unix_socket
    unix = listen(path) if path else None
    if unix:
        await runner.site(unix.listening).start()
    return unix


async def _find(head: TaskHead) -> TaskHandle | None:
    return None  # the store is new


def _open_to_all(loaded: Loaded) -> Loaded:
    """A server without tokens requires none: the test is its only client."""
    one = loaded.settings
    if one.auth.config.has_tokens:
        return loaded
    settings = one.updated({"bridge_auth": "none"})
    return Loaded(settings, loaded.dotenv, loaded.warnings)
