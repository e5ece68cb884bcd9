"""The aiohttp application: the routes of the agents and of the server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.typedefs import Handler

from bridge.a2a.codec import Operation
from bridge.auth.token_bucket import RateLimitedLogs
from bridge.errors import Unavailable
from bridge.server.app.middlewares import (
    Identify,
    authentication,
    browser_page,
    json_errors,
    name_response,
)
from bridge.server.app.sites import (
    CARD_PATHS,
    JSONRPC_PATHS,
    SITES,
    AgentSite,
    ServedAgent,
    Sites,
)
from bridge.server.extras import web_sockets
from bridge.server.operate.health import HealthCheck, health
from bridge.server.operate.monitor import Monitor
from bridge.server.settings.root import Settings
from bridge.transports.envelope.answers import EnvelopeAgent
from bridge.transports.rest import routes

if TYPE_CHECKING:
    from bridge.transports.envelope.websocket import WebSockets

LOUD = ("transports.jsonrpc", "transports.rest", "transports.sse", "telemetry.request_log")
for name in LOUD:  # a client can repeat a request that fails
    logging.getLogger(f"bridge.{name}").addFilter(RateLimitedLogs())

ROUTED = (
    "metadata.bridge.role of a message that begins a conversation chooses a server with this role"
)
Find = Callable[[web.Request], AgentSite]


def make_app(
    root: ServedAgent,
    agents: Sequence[ServedAgent],
    *,
    settings: Settings,
    identify: Identify,
    monitor: Monitor | None = None,
    checks: Sequence[HealthCheck] = (),
    about: Callable[[], Mapping[str, Any]] = dict,
) -> web.Application:
    """The server without its sockets. `agents` answer below /agents/ID, the default agent first;
    `root` answers at the root. `identify` returns the principal of a request, or raises
    Unauthenticated. `checks`: the parts that /health checks; `about`: further members of /health.
    The app has its Sites at the key SITES."""
    sites = Sites(root, agents, settings.server)
    answer = json_errors(sites)
    middlewares = [sites.named, browser_page(sites), answer, authentication(identify)]
    app = web.Application(client_max_size=settings.server.max_body_bytes, middlewares=middlewares)
    app.on_response_prepare.append(name_response)
    app[SITES] = sites
    sites.check.attach(app)
    places: Sequence[tuple[str, Find]] = (
        ("", lambda request: sites.root),
        ("/agents/{served}", sites.of),
    )
    sockets = web_sockets(settings, identify)
    for prefix, find in places:
        _add_routes(app, prefix, find)
        if sockets:
            app.router.add_get(f"{prefix}/a2a/ws", partial(_connect, sockets, find))
    if sockets:
        app.on_shutdown.append(sockets.close)

    if monitor:
        app.add_routes(monitor.routes())
    app.router.add_get("/agents", partial(_list_agents, sites, monitor))
    app.router.add_get("/health", partial(health, sites.managers, checks, about))
    return app


async def _connect(sockets: WebSockets, find: Find, request: web.Request) -> web.StreamResponse:
    """Serve a WebSocket connection to the agent of its address."""
    site = find(request)
    agent = site.agent
    served = EnvelopeAgent(agent.operations, site.address(request))
    return await sockets.handle(request, served)


def _add_routes(app: web.Application, prefix: str, find: Find) -> None:
    """The routes of an agent, which `find` returns for each request."""

    async def jsonrpc(request: web.Request) -> web.StreamResponse:
        return await find(request).jsonrpc.handle(request)

    async def card(request: web.Request) -> web.StreamResponse:
        return find(request).card(request)

    async def describe(request: web.Request) -> web.StreamResponse:
        return find(request).describe(request)

    def rest(operation: Operation) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            return await find(request).rest[operation](request)

        return handle

    for path in (*JSONRPC_PATHS, *(() if prefix else ("/",))):
        app.router.add_post(prefix + path, jsonrpc)
    for start in (prefix + "/a2a/rest", *(() if prefix else ("",))):
        app.add_routes(routes(start, rest))
    for path in CARD_PATHS:
        app.router.add_get(prefix + path, card)
    app.router.add_get(prefix + "/openapi.json", describe)


async def _list_agents(sites: Sites, monitor: Monitor | None, request: web.Request) -> web.Response:
    """The agents of this server, and with a shared store the servers of each agent."""
    base = sites.base(request)
    agents = [one.agent for one in sites.agents.values()]
    try:
        servers = await monitor.discovered() if monitor else {}
    except Unavailable:  # the agents of this server are known without the database
        servers = {}
    listed: list[dict[str, Any]] = [
        {
            "id": agent.id,
            "name": card.name,
            "description": card.description,
            "default": agent is agents[0],
            "url": card.url,
            "card": f"{base}/agents/{agent.id}{CARD_PATHS[0]}",
        }
        for agent in agents
        for card in [agent.card(f"{base}/agents/{agent.id}")]
    ]
    for one in listed:
        if one["id"] in servers:
            one["nodes"] = servers[one["id"]]
    own = {one["id"] for one in listed}
    listed += [{"id": agent, "nodes": on} for agent, on in servers.items() if agent not in own]
    return web.json_response({"agents": listed, **({"note": ROUTED} if servers else {})})
