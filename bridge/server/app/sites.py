"""The agents that the server serves, each with its bindings and its cards."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from bridge.a2a.card import Card
from bridge.a2a.card_shapes import encode_card
from bridge.a2a.codec import Operation
from bridge.auth.unix_peer import is_unix
from bridge.runtime.router import Router
from bridge.runtime.tasks import TaskManager
from bridge.server.app.documents import Document, cached
from bridge.server.openapi import document
from bridge.server.settings.sections import ServerSettings
from bridge.task.nearest import no_such
from bridge.telemetry.observation import REQUEST, RequestInfo, observed
from bridge.transports.jsonrpc import JsonRpc
from bridge.transports.listener.origin import OriginCheck
from bridge.transports.listener.proxies import Proxies
from bridge.transports.negotiation import shows_retry
from bridge.transports.operation import PRINCIPAL, Caller, Operations
from bridge.transports.rest import Rest

JSONRPC_PATHS = ("/a2a/jsonrpc", "/a2a/jsonrpc/", "/a2a", "/a2a/")
CARD_PATHS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
ADDRESSES = 32  # different base URLs of one server for which its cards are cached
MakeCard = Callable[[str], Card]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAgent:
    """An agent and its operations. `card` makes its card for the base URL that clients use
    (`http://host:port`); `card_versions` is the shape of the card: both, 1.0 or 0.3; `sign` adds
    signatures to it."""

    id: str
    manager: TaskManager
    router: Router
    operations: Operations
    card: MakeCard
    card_versions: str = "both"
    sign: Callable[[dict[str, Any]], dict[str, Any]] | None = None


class Sites:
    """The agents that the server serves now, and the addresses and names of the server."""

    def __init__(
        self, root: ServedAgent, agents: Sequence[ServedAgent], settings: ServerSettings
    ) -> None:
        self.check = OriginCheck()
        self.agents: dict[str, AgentSite] = {}
        self.managers: dict[str, TaskManager] = {}
        self.change(root, agents, settings)

    def change(
        self, root: ServedAgent, agents: Sequence[ServedAgent], settings: ServerSettings
    ) -> None:
        """Serve these agents, with these settings, from the next request on."""
        self.public_url = settings.public_url
        self._proxies = Proxies(settings.trusted_proxies)
        self.check.change(
            (settings.host, *settings.allowed_hosts), settings.allowed_origins, self.public_url
        )
        self.root = AgentSite("", root, self)
        self.agents = {one.id: AgentSite(f"/agents/{one.id}", one, self) for one in agents}
        self.managers.clear()
        self.managers.update({one.id: one.manager for one in agents})

    def of(self, request: web.Request) -> AgentSite:
        """The agent below /agents/ID. Raises HTTPNotFound for an unknown one."""
        found = self.agents.get(request.match_info["served"])
        if found is None:
            raise web.HTTPNotFound
        return found

    def unknown(self, path: str) -> str | None:
        """The error for a path below an unknown agent; None for other paths."""
        _, first, *rest = path.split("/", 3)
        if first != "agents" or not rest or rest[0] in self.agents:
            return None
        return no_such("agent", rest[0], self.agents)

    def base(self, request: web.Request) -> str:
        """The base URL of the server: PUBLIC_URL, otherwise the one of the request. On the Unix
        socket, the host has no meaning."""
        if self.public_url is None and is_unix(request.transport):
            return "http://localhost"
        return (self.public_url or f"{request.scheme}://{request.host}").rstrip("/")

    @property
    def named(self) -> Any:
        """Middleware that gives each request its facts for observers, and behind a trusted proxy
        the address of its client."""

        @web.middleware
        async def name(request: web.Request, handler: Handler) -> web.StreamResponse:
            request = self._proxies.seen(request)
            path = request.rel_url.raw_path
            binding = "jsonrpc" if path.endswith(JSONRPC_PATHS) or path == "/" else "rest"
            binding = "mcp" if path == "/mcp" else binding
            given = request.headers.get("X-Request-Id")
            traceparent = request.headers.get("traceparent")
            REQUEST.set(RequestInfo.named(binding, given, request.remote, traceparent))
            return await handler(request)

        return name


SITES = web.AppKey("sites", Sites)


class AgentSite:
    """An agent at `prefix`, with its handlers and the cache of its cards."""

    def __init__(self, prefix: str, agent: ServedAgent, sites: Sites) -> None:
        self.agent = agent
        self._prefix = prefix
        self._sites = sites
        self._since = time.time()  # the last change of its cards
        self.jsonrpc = JsonRpc(agent.operations, self._caller)
        rest = Rest(agent.operations, self._caller)
        self.rest = {operation: rest.handler(operation) for operation in Operation}
        self._cards = lru_cache(ADDRESSES)(self._encoded_card)
        self._descriptions = lru_cache(ADDRESSES)(self._description)

    def address(self, request: web.Request) -> str:
        return self._sites.base(request) + self._prefix

    def _caller(self, request: web.Request) -> Caller:
        address = self.address(request)
        return Caller(address, request[PRINCIPAL], shows_retry(request), info=observed())

    def _encoded_card(self, base: str) -> Document:
        agent = self.agent
        body = encode_card(agent.card(base), agent.card_versions)
        return Document.of(agent.sign(body) if agent.sign else body, self._since)

    def _description(self, base: str) -> Document:
        return Document.of(document(self.agent.card(base)), self._since, scope="private")

    def card(self, request: web.Request) -> web.StreamResponse:
        return cached(request, self._cards(self.address(request)))

    def describe(self, request: web.Request) -> web.StreamResponse:
        return cached(request, self._descriptions(self.address(request)))
