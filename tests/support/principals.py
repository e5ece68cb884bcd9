"""Requests as one of several principals."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientResponse

from bridge.auth.principal import Scope, Token, digest
from tests.support.client import Client
from tests.support.served import Server, serving

TOKENS = {name: f"token-of-{name}-{'x' * 20}" for name in ("owner", "other", "boss", "reader")}


SCOPES: dict[str, tuple[Scope, ...]] = {
    "owner": ("run", "read", "cancel", "approve"),
    "other": ("run", "read", "cancel", "approve"),
    "boss": ("admin",),
    "reader": ("read",),
}


@asynccontextmanager
async def server(
    folder: Path, quotas: Mapping[str, int] | None = None, **settings: Any
) -> AsyncIterator[Server]:
    """`quotas`: of each principal, other than the default."""
    given: Mapping[str, Any] = {**(quotas or {}), "redis": "bridge_redis_url" in settings}
    tokens = {
        name: Token(hash=f"sha256:{digest(TOKENS[name]).hex()}", scopes=SCOPES[name], **given)
        for name in TOKENS
    }
    async with serving(folder, tokens=tokens, **settings) as one:
        yield one


def headers(who: str) -> dict[str, str]:
    return {} if who == "anonymous" else {"Authorization": f"Bearer {TOKENS[who]}"}


class As(Client):
    """A client with the credentials of a principal."""

    def __init__(self, server: Server, who: str, version: str = "1.0") -> None:
        super().__init__(server.http, server.url, version)
        self.who = who

    async def post(self, body: Any, **more: str) -> ClientResponse:
        return await super().post(body, **headers(self.who), **more)
