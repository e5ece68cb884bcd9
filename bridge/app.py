"""The aiohttp application: routes, authentication, and what a request that fails is told."""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web

from bridge import __version__
from bridge.a2a import CODECS
from bridge.a2a.card import Card
from bridge.manager import TaskManager
from bridge.transports.jsonrpc import JsonRpc
from bridge.transports.operation import Operations

log = logging.getLogger(__name__)

JSONRPC_PATHS = ("/a2a/jsonrpc", "/a2a/jsonrpc/", "/a2a", "/a2a/", "/")
CARD_PATHS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
PUBLIC_PATHS = (*CARD_PATHS, "/health")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(
    manager: TaskManager,
    card: Callable[[web.Request], Card],
    *,
    card_versions: str = "both",
    token: str | None = None,
    max_body_bytes: int = 32 * 1024 * 1024,
    stream_on_question: str = "close",
) -> web.Application:
    """The server without its sockets. `card_versions`: both, 1.0 or 0.3. `token`: what clients
    must present as a bearer token, if anything."""
    middlewares = [_authentication(token)] if token else []
    app = web.Application(client_max_size=max_body_bytes, middlewares=middlewares)
    jsonrpc = JsonRpc(Operations(manager, stream_on_question))
    for path in JSONRPC_PATHS:
        app.router.add_post(path, jsonrpc.handle)
    for path in CARD_PATHS:
        app.router.add_get(path, lambda request: _card(card(request), card_versions))
    app.router.add_get("/health", lambda request: _health(manager))
    return app


async def _card(card: Card, versions: str) -> web.Response:
    """The agent card. The hybrid is the 1.0 card with the members that a 0.3 client needs; the
    1.0 interface stands first, since clients take the first that they can speak."""
    cards = [c.encode_card(card) for c in CODECS if versions in ("both", c.version)]
    merged: dict[str, Any] = {}
    for one in reversed(cards):
        merged |= one
    if versions == "both":
        newest = cards[0]["supportedInterfaces"][0]
        merged["supportedInterfaces"] = [newest, {**newest, "protocolVersion": "0.3"}]
        for name in ("capabilities", "securitySchemes"):
            if name in merged:
                merged[name] = _both(cards[1][name], cards[0][name])
    return _json(merged)


def _both(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Members of both; objects that both have are merged likewise."""
    merged = {**old, **new}
    for name in old.keys() & new.keys():
        if isinstance(old[name], dict) and isinstance(new[name], dict):
            merged[name] = _both(old[name], new[name])
    return merged


async def _health(manager: TaskManager) -> web.Response:
    return _json({"status": "ok", "version": __version__, **manager.figures()})


def _json(body: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


def _authentication(token: str) -> Any:
    """Middleware that lets only bearers of `token` pass, but for the public paths."""
    wanted = hashlib.sha256(token.encode()).digest()

    @web.middleware
    async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in PUBLIC_PATHS:
            return await handler(request)
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        digest = hashlib.sha256(given.strip().encode("utf-8", "surrogateescape")).digest()
        if scheme.lower() == "bearer" and hmac.compare_digest(digest, wanted):
            return await handler(request)
        body = {"error": {"code": 401, "message": "Send Authorization: Bearer <token>."}}
        response = _json(body, 401)
        response.headers["WWW-Authenticate"] = 'Bearer realm="coding-agent-bridge"'
        return response

    return authenticate
