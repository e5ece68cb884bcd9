"""The aiohttp application: routes, authentication, cards, and the page for browsers."""

from __future__ import annotations

import hashlib
import html
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from email.utils import formatdate, parsedate_to_datetime
from functools import lru_cache, partial
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, Protocol

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from bridge.a2a.card import Card
from bridge.a2a.card_shapes import encode_card
from bridge.a2a.codec import Operation
from bridge.auth.principal import Principal
from bridge.auth.token_bucket import RateLimitedLogs
from bridge.auth.unix_peer import is_unix
from bridge.errors import Forbidden, TooManyRequests, Unauthenticated, Unavailable
from bridge.runtime.router import Router
from bridge.runtime.tasks import TaskManager
from bridge.server.extras import web_sockets
from bridge.server.openapi import document
from bridge.server.operate.health import HealthCheck, health
from bridge.server.operate.monitor import Monitor
from bridge.server.settings.sections import ServerSettings
from bridge.telemetry.observation import REQUEST, RequestInfo, observed
from bridge.transports.envelope.answers import EnvelopeAgent
from bridge.transports.jsonrpc import JsonRpc
from bridge.transports.listener.origin import OriginCheck
from bridge.transports.listener.proxies import Proxies
from bridge.transports.negotiation import prefers_html, retry_after, shows_retry
from bridge.transports.operation import PRINCIPAL, Caller, Operations
from bridge.transports.rest import Rest, encode_error, respond_error, respond_unrouted, routes

if TYPE_CHECKING:
    from bridge.transports.envelope.websocket import WebSockets

log = logging.getLogger(__name__)
for binding in ("jsonrpc", "rest", "sse"):  # a client can repeat a request that fails
    logging.getLogger(f"bridge.transports.{binding}").addFilter(RateLimitedLogs())
log.addFilter(RateLimitedLogs())
logging.getLogger("bridge.telemetry.request_log").addFilter(RateLimitedLogs())

JSONRPC_PATHS = ("/a2a/jsonrpc", "/a2a/jsonrpc/", "/a2a", "/a2a/")
CARD_PATHS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
ADDRESSES = 32  # different base URLs of one server for which its cards are cached
CARD_MAX_AGE = 60  # seconds; a card changes only with a restart of the server
UNAUTHENTICATED = (
    "Send a token. The operator token is in a file that the server's banner names, by default "
    '$XDG_STATE_HOME/coding-agent-bridge/PORT/token: curl -H "Authorization: Bearer '
    '$(cat ~/.local/state/coding-agent-bridge/PORT/token)"'
)
"""The error for a client without a valid token. It contains no path of this machine."""
MakeCard = Callable[[str], Card]


class Identify(Protocol):
    """Returns the principal of a request; None: the client must send a token. `known` is for
    requests that need no principal."""

    async def __call__(self, request: web.Request, /) -> Principal | None: ...

    async def known(self, request: web.Request, /) -> Principal | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAgent:
    """An agent and its operations. `card` makes its card for the base URL that clients use
    (`http://host:port`); `card_versions` is the shape of the card: both, 1.0 or 0.3; `sign` adds
    signatures to it; `extension_required`: clients must request the extension."""

    id: str
    manager: TaskManager
    router: Router
    operations: Operations
    card: MakeCard
    card_versions: str = "both"
    sign: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    extension_required: bool = False


def make_app(
    root: ServedAgent,
    agents: Sequence[ServedAgent],
    *,
    settings: ServerSettings,
    identify: Identify,
    monitor: Monitor | None = None,
    checks: Sequence[HealthCheck] = (),
    about: Callable[[], Mapping[str, Any]] = dict,
) -> web.Application:
    """The server without its sockets. `agents` answer below /agents/ID, the default agent first;
    `root` answers at the root. `identify` returns the principal of a request; None: the client
    must send a token. `checks`: the parts that /health checks; `about`: further
    members of /health. The app has its Sites at the key SITES."""
    sites = Sites(root, agents, settings)
    answer = _in_json(sites)
    middlewares = [sites.named, _answer_browser(sites), answer, _authentication(identify)]
    app = web.Application(client_max_size=settings.max_body_bytes, middlewares=middlewares)
    app.on_response_prepare.append(_name_response)
    app[SITES] = sites
    sites.check.attach(app)
    places: Sequence[tuple[str, Find]] = (
        ("", lambda request: sites.root),
        ("/agents/{served}", sites.of),
    )
    sockets = web_sockets(settings, identify, UNAUTHENTICATED)
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


class Sites:
    """The agents that the server serves now, and the addresses and names of the server."""

    def __init__(
        self, root: ServedAgent, agents: Sequence[ServedAgent], settings: ServerSettings
    ) -> None:
        self.check = OriginCheck()
        self.agents: dict[str, _Site] = {}
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
        self.root = _Site("", root, self)
        self.agents = {one.id: _Site(f"/agents/{one.id}", one, self) for one in agents}
        self.managers.clear()
        self.managers.update({one.id: one.manager for one in agents})

    def of(self, request: web.Request) -> _Site:
        """The agent below /agents/ID. Raises HTTPNotFound for an unknown one."""
        found = self.agents.get(request.match_info["served"])
        if found is None:
            raise web.HTTPNotFound
        return found

    def has(self, path: str) -> bool:
        """Whether a path is outside of /agents/, or below an agent."""
        _, first, *rest = path.split("/", 3)
        return first != "agents" or not rest or rest[0] in self.agents

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
Find = Callable[[web.Request], "_Site"]


class _Site:
    """An agent at `prefix`, with its handlers and the cache of its cards."""

    def __init__(self, prefix: str, agent: ServedAgent, sites: Sites) -> None:
        self.agent = agent
        self._prefix = prefix
        self._sites = sites
        self._since = time.time()  # the last change of its cards
        self.jsonrpc = JsonRpc(agent.operations, self._caller, agent.extension_required)
        rest = Rest(agent.operations, self._caller, agent.extension_required)
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
        return _cached(request, self._cards(self.address(request)))

    def describe(self, request: web.Request) -> web.StreamResponse:
        return _cached(request, self._descriptions(self.address(request)))


async def _connect(sockets: WebSockets, find: Find, request: web.Request) -> web.StreamResponse:
    """Serve a WebSocket connection to the agent of its address."""
    site = find(request)
    agent = site.agent
    served = EnvelopeAgent(agent.operations, site.address(request), agent.extension_required)
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


# --- cards -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Document:
    """JSON that does not change while the server runs. `tag` identifies it; `headers` are the
    caching headers (§8.6); `changed` is in seconds since 1970."""

    data: bytes
    tag: str
    changed: float
    headers: Mapping[str, str]

    @classmethod
    def of(cls, body: Mapping[str, Any], changed: float, scope: str = "public") -> Document:
        """`scope`: the caches that may store it, public or private."""
        data = orjson.dumps(body)
        tag = hashlib.sha256(data).hexdigest()[:32]
        headers = {
            "ETag": f'"{tag}"',
            "Last-Modified": formatdate(changed, usegmt=True),
            "Cache-Control": f"{scope}, max-age={CARD_MAX_AGE}",
            "Vary": "Host",
        }
        return cls(data, tag, changed, headers)


def _cached(request: web.Request, document: Document) -> web.Response:
    """`document`, or 304 if the copy of the client is valid."""
    if _is_fresh(request, document):
        return web.Response(status=304, headers=document.headers)
    return web.Response(
        body=document.data, headers=document.headers, content_type="application/json"
    )


def _is_fresh(request: web.Request, document: Document) -> bool:
    if request.if_none_match is not None:  # it has precedence (RFC 9110 §13.2.2)
        return any(given.value in (document.tag, "*") for given in request.if_none_match)
    since = request.headers.get("If-Modified-Since")
    try:
        changed = int(document.changed)
        return since is not None and parsedate_to_datetime(since).timestamp() >= changed
    except (ValueError, OverflowError):  # not a date
        return False


# --- about the server --------------------------------------------------------------------------


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
    return web.json_response({"agents": listed})


_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Vary": "Accept",
}


async def _name_response(request: web.Request, response: web.StreamResponse) -> None:
    if REQUEST.get():
        response.headers["X-Request-Id"] = observed().id


def _answer_browser(sites: Sites) -> Any:
    """Middleware that answers a browser at the root with a page. The page is the same for every
    client, so it needs no authentication; it has no scripts and no styles."""
    page = Template(Path(__file__).with_name("welcome.html").read_text("utf-8"))

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        is_root = request.method in ("GET", "HEAD") and request.rel_url.raw_path == "/"
        if not (is_root and prefers_html(request)):
            return await handler(request)
        text = page.substitute(base=html.escape(sites.base(request)))
        return web.Response(text=text, content_type="text/html", headers=_PAGE_HEADERS)

    return answer


def _in_json(sites: Sites) -> Any:
    """Middleware that answers unknown paths, unknown methods and server errors with JSON. The cause
    of a server error is only in the log."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
            known = isinstance(error, web.HTTPNotFound) or sites.has(request.path)
            return respond_unrouted(request, error if known else web.HTTPNotFound())
        except (web.HTTPException, ConnectionError):
            raise
        except Exception as error:
            log.exception("request failed", extra={"event": "request.failed"})
            return respond_error(request, encode_error(error))

    return answer


def _authentication(identity: Identify) -> Any:
    """Middleware that requires a known principal, except for cards, /health and /ready. /health has
    more members for a known one."""

    @web.middleware
    async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
        # The raw path: an encoded slash is part of an id and does not make it a card path.
        if request.rel_url.raw_path.endswith(CARD_PATHS) or request.path == "/ready":
            return await handler(request)
        if request.path == "/health":
            known = await identity.known(request)
            if known:
                request[PRINCIPAL] = known
            return await handler(request)
        try:
            principal = await identity(request)
        except (Forbidden, TooManyRequests, Unavailable) as error:
            response = respond_error(request, encode_error(error))
            response.headers.update(retry_after(error))
            return response
        if principal:
            request[PRINCIPAL] = principal
            REQUEST.set(replace(observed(), principal=principal.id))
            return await handler(request)
        response = respond_error(request, encode_error(Unauthenticated(UNAUTHENTICATED)))
        response.headers["WWW-Authenticate"] = 'Bearer realm="coding-agent-bridge"'
        return response

    return authenticate
