"""The aiohttp application: routes, authentication, and what a request that fails is told."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate, parsedate_to_datetime
from functools import lru_cache
from typing import Any, Protocol

import orjson
from aiohttp import web

from bridge import __version__
from bridge.a2a import CODECS
from bridge.a2a.card import Card
from bridge.auth.principal import OPERATOR, Principal
from bridge.auth.token_bucket import RateLimitedLogs
from bridge.errors import Forbidden, TooManyRequests, Unauthenticated, Unavailable
from bridge.runtime.tasks import TaskManager
from bridge.server import welcome
from bridge.server.monitor import Monitor
from bridge.server.openapi import document
from bridge.store.tasks import TaskStore
from bridge.transports.jsonrpc import JsonRpc
from bridge.transports.negotiation import retry_after, shows_retry
from bridge.transports.operation import PRINCIPAL, Caller, Operations
from bridge.transports.origin import OriginCheck
from bridge.transports.rest import Rest, encode_error, respond_error, respond_unrouted

log = logging.getLogger(__name__)
for binding in ("jsonrpc", "rest", "sse"):  # whoever finds what breaks a handler can do so often
    logging.getLogger(f"bridge.transports.{binding}").addFilter(RateLimitedLogs())
log.addFilter(RateLimitedLogs())

JSONRPC_PATHS = ("/a2a/jsonrpc", "/a2a/jsonrpc/", "/a2a", "/a2a/")
CARD_PATHS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
ADDRESSES = 32  # by which clients know one server; for each, its cards are made once
CARD_MAX_AGE = 60  # seconds; a card changes when the server is started anew
UNKNOWN = (
    "Send a token. The operator's is in a file that the server's banner names, by default "
    '$XDG_STATE_HOME/coding-agent-bridge/PORT/token: curl -H "Authorization: Bearer '
    '$(cat ~/.local/state/coding-agent-bridge/PORT/token)"'
)
"""What a client without a valid token is told. It names no path of this machine."""
Identify = Callable[[web.Request], Principal | Awaitable[Principal | None] | None]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
MakeCard = Callable[[str], Card]


@dataclass(frozen=True, slots=True)
class Service:
    """An agent as it is served. `card` makes its card, given the address that clients know the
    server by (`http://host:port`); `card_versions` is its shape: both, 1.0 or 0.3; `sign` adds
    signatures to it; `extension_required` refuses clients that do not ask for our extension."""

    id: str
    manager: TaskManager
    store: TaskStore
    operations: Operations
    card: MakeCard
    card_versions: str = "both"
    sign: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    extension_required: bool = False


class Watched(Protocol):
    """What may not work for a while. `problem` says why, in the words that /health tells."""

    @property
    def problem(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Http:
    """`public_url`: how clients reach the server, where that is not what they say. `identify` says
    who sends a request, maybe not at once; None for somebody who must present a token.
    `hosts`, `origins`: see OriginCheck."""

    public_url: str | None = None
    identify: Identify = lambda request: OPERATOR
    max_body_bytes: int = 32 * 1024 * 1024
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()


def make_app(
    root: Service,
    services: Sequence[Service],
    *,
    started: float,
    monitor: Monitor | None = None,
    watched: Sequence[Watched] = (),
    sessions: Callable[[], Mapping[str, Any]] = dict,
    http: Http = Http(),
) -> web.Application:
    """The server without its sockets. `services` answer below /agents/ID, the default one first;
    `root` answers at the root. `started`: when the cards were last changed, in seconds since
    1970. `watched`: what /health looks at beside the agents' stores; `sessions`: how many sessions
    there are, in figures for /health."""
    public_url = http.public_url
    middlewares = [_welcome(public_url), _in_json, _authentication(http.identify)]
    app = web.Application(client_max_size=http.max_body_bytes, middlewares=middlewares)
    OriginCheck(http.hosts, http.origins, public_url).attach(app)
    _add_agent(app, "", root, public_url, started)
    for service in services:
        _add_agent(app, f"/agents/{service.id}", service, public_url, started)

    async def agents(request: web.Request) -> web.StreamResponse:
        return await _agents(services, _base(request, public_url))

    async def health(request: web.Request) -> web.StreamResponse:
        return _health(services, watched, sessions())

    if monitor:
        app.add_routes(monitor.routes())
    app.router.add_get("/agents", agents)
    app.router.add_get("/health", health)
    return app


def _add_agent(
    app: web.Application, prefix: str, service: Service, public_url: str | None, started: float
) -> None:
    def address(request: web.Request) -> str:
        return _base(request, public_url) + prefix

    def caller(request: web.Request) -> Caller:
        return Caller(address(request), request[PRINCIPAL], shows_retry(request))

    @lru_cache(ADDRESSES)
    def encoded_card(base: str) -> Document:
        body = encode_card(service.card(base), service.card_versions)
        return Document.of(service.sign(body) if service.sign else body, started)

    @lru_cache(ADDRESSES)
    def description(base: str) -> Document:
        return Document.of(document(service.card(base)), started, scope="private")

    async def card(request: web.Request) -> web.StreamResponse:
        return _cached(request, encoded_card(address(request)))

    async def describe(request: web.Request) -> web.StreamResponse:
        return _cached(request, description(address(request)))

    jsonrpc = JsonRpc(service.operations, caller, service.extension_required)
    for path in (*JSONRPC_PATHS, *(() if prefix else ("/",))):
        app.router.add_post(prefix + path, jsonrpc.handle)
    rest = Rest(service.operations, caller, service.extension_required)
    for start in (prefix + "/a2a/rest", *(() if prefix else ("",))):
        app.add_routes(rest.routes(start))

    for path in CARD_PATHS:
        app.router.add_get(prefix + path, card)
    app.router.add_get(prefix + "/openapi.json", describe)


def _base(request: web.Request, public_url: str | None) -> str:
    """The server's address: the operator's word, else the one that the client itself used."""
    return (public_url or f"{request.scheme}://{request.host}").rstrip("/")


# --- cards -------------------------------------------------------------------------------------


def encode_card(card: Card, versions: str) -> dict[str, Any]:
    """The agent card. The hybrid is the 1.0 card with the members that a 0.3 client needs; the
    1.0 interfaces stand first, since clients take the first that they can speak."""
    newest, oldest = (codec.encode_card(card) for codec in CODECS)
    if versions != "both":
        return newest if versions == "1.0" else oldest
    hybrid = _both(oldest, newest)
    for_oldest = {**newest["supportedInterfaces"][0], "protocolVersion": "0.3"}
    hybrid["supportedInterfaces"] = [*newest["supportedInterfaces"], for_oldest]
    return hybrid


def _both(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Members of both; objects that both have are merged likewise."""
    merged = {**old, **new}
    for name in old.keys() & new.keys():
        if isinstance(old[name], dict) and isinstance(new[name], dict):
            merged[name] = _both(old[name], new[name])
    return merged


@dataclass(frozen=True, slots=True)
class Document:
    """JSON that stays as it is as long as the server runs; `tag` tells it from another. `headers`
    are what a cache needs (§8.6), `changed` is in seconds since 1970."""

    data: bytes
    tag: str
    changed: float
    headers: Mapping[str, str]

    @classmethod
    def of(cls, body: Mapping[str, Any], changed: float, scope: str = "public") -> Document:
        """`scope`: who may keep it."""
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
    """`document`, or 304 where the client's copy is still good."""
    if _still_good(request, document):
        return web.Response(status=304, headers=document.headers)
    return web.Response(
        body=document.data, headers=document.headers, content_type="application/json"
    )


def _still_good(request: web.Request, document: Document) -> bool:
    if request.if_none_match is not None:  # it alone counts where both are sent (RFC 9110 §13.2.2)
        return any(given.value in (document.tag, "*") for given in request.if_none_match)
    since = request.headers.get("If-Modified-Since")
    try:
        changed = int(document.changed)
        return since is not None and parsedate_to_datetime(since).timestamp() >= changed
    except (ValueError, OverflowError):  # no date
        return False


# --- about the server --------------------------------------------------------------------------


async def _agents(services: Sequence[Service], base: str) -> web.Response:
    listed = [
        {
            "id": service.id,
            "name": card.name,
            "description": card.description,
            "default": service is services[0],
            "url": card.url,
            "card": f"{base}/agents/{service.id}{CARD_PATHS[0]}",
        }
        for service in services
        for card in [service.card(f"{base}/agents/{service.id}")]
    ]
    return _json({"agents": listed})


def _health(
    services: Sequence[Service], watched: Sequence[Watched], sessions: Mapping[str, Any]
) -> web.Response:
    """Degraded: something does not work, which may pass; agents that are at work go on. A server
    that is only saturated is ok: new tasks wait. Anybody may read it, so it has only figures."""
    agents = {service.id: service.manager.figures() for service in services}
    found = [one.problem for one in (*(service.store for service in services), *watched)]
    problems = sorted({problem for problem in found if problem})
    status = {"status": "degraded", "problems": problems} if problems else {"status": "ok"}
    return _json({**status, "version": __version__, "agents": agents, "sessions": sessions})


def _json(body: dict[str, Any]) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type="application/json")


def _welcome(public_url: str | None) -> Any:
    """Middleware that answers a browser at the root, which is not asked for a token."""

    @web.middleware
    async def greet(request: web.Request, handler: Handler) -> web.StreamResponse:
        if welcome.is_for(request):
            return welcome.respond(_base(request, public_url))
        return await handler(request)

    return greet


@web.middleware
async def _in_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Says in JSON, which clients expect, that there is no such path or method, or that the server
    is at fault; why, is in its log alone."""
    try:
        return await handler(request)
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
        return respond_unrouted(request, error)
    except (web.HTTPException, ConnectionError):
        raise
    except Exception as error:
        log.exception("request failed")
        return respond_error(request, encode_error(error))


def _authentication(identify: Identify) -> Any:
    """Middleware that lets only those pass who are known, but for cards and /health."""

    @web.middleware
    async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
        # The path as it was sent: an encoded slash is part of an id, and makes nothing a card.
        if request.rel_url.raw_path.endswith(CARD_PATHS) or request.path == "/health":
            return await handler(request)
        try:
            found = identify(request)
            principal = await found if isinstance(found, Awaitable) else found
        except (Forbidden, TooManyRequests, Unavailable) as error:
            response = respond_error(request, encode_error(error))
            response.headers.update(retry_after(error))
            return response
        if principal:
            request[PRINCIPAL] = principal
            return await handler(request)
        response = respond_error(request, encode_error(Unauthenticated(UNKNOWN)))
        response.headers["WWW-Authenticate"] = 'Bearer realm="coding-agent-bridge"'
        return response

    return authenticate
