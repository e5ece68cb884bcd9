"""The errors of requests without valid credentials: a text for each cause, over every binding."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bridge.auth.authentication import MOST_REMOVED, Identity
from bridge.auth.config import AuthConfig
from bridge.auth.principal import Token, digest
from bridge.errors import Unauthenticated
from bridge.transports.grpc.request import RpcRequest
from tests.support.grpc_client import GrpcError, connected
from tests.support.served import Server, serving

KNOWN, OLD, GONE, WRONG = (f"a-token-that-is-{word}" for word in ("known", "old", "gone", "wrong"))
CAUSES = {
    "": "This request has no credentials.",
    WRONG: "The server does not know this token.",
    OLD: "This token has expired.",
    GONE: "This token was withdrawn.",
}
PATHS = ("/a2a/jsonrpc", "/a2a/rest/message:send", "/mcp", "/agents")
SOCKET = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}


def hashed(secret: str) -> str:
    return f"sha256:{digest(secret).hex()}"


def tokens(*secrets: str) -> dict[str, Token]:
    expired = datetime.now(UTC) - timedelta(days=1)
    found = {f"n{number}": Token(hash=hashed(one)) for number, one in enumerate(secrets)}
    return {**found, "old": Token(hash=hashed(OLD), expires=expired)}


def request(secret: str) -> RpcRequest:
    """A request of another machine."""
    return RpcRequest((("authorization", f"Bearer {secret}"),), "ipv4:192.0.2.1:80", None)


async def told(server: Server, secret: str) -> list[str]:
    """The texts of all bindings."""
    given = {"Authorization": f"Bearer {secret}"} if secret else {}
    found = []
    for path in (*PATHS, "/a2a/ws"):
        headers = {**given, **(SOCKET if path.endswith("ws") else {})}
        verb = "GET" if path.endswith(("ws", "agents")) else "POST"
        async with server.http.request(verb, server.url + path, headers=headers) as answer:
            assert answer.status == 401 and "Bearer" in answer.headers["WWW-Authenticate"]
            found.append((await answer.json())["error"]["message"])
    names = {name.lower(): value for name, value in given.items()}
    async with connected(server.grpc, **names) as client:
        with pytest.raises(GrpcError) as raised:
            await client.call("ListTasks", {})
        found.append(str(raised.value))
    return found


async def test_each_cause_has_a_text_over_every_binding(workspace: Path) -> None:
    chosen: dict[str, Any] = {
        "bridge_auth": "token",
        "bridge_grpc_port": 0,
        "bridge_websocket": True,
    }
    async with serving(workspace, tokens=tokens(KNOWN, GONE), **chosen) as server:
        server.identity.change(AuthConfig(tokens=tokens(KNOWN)), None, None)
        for secret, text in CAUSES.items():
            for one in await told(server, secret):
                assert text in one and "coding-agent-bridge token NAME" in one
                assert not secret or secret not in one


async def test_removed_tokens_are_remembered_up_to_a_limit_and_may_come_back() -> None:
    identity = Identity(AuthConfig(tokens=tokens(KNOWN)))

    async def cause(secret: str) -> str:
        with pytest.raises(Unauthenticated) as raised:
            await identity(request(secret))
        return str(raised.value)

    identity.change(AuthConfig(tokens=tokens(GONE)), None, None)
    assert CAUSES[GONE] in await cause(KNOWN)
    identity.change(AuthConfig(tokens=tokens(KNOWN)), None, None)
    assert (await identity(request(KNOWN))).id == "n0"
    assert CAUSES[GONE] in await cause(GONE)
    many = [f"{WRONG}-{number}" for number in range(MOST_REMOVED)]
    identity.change(AuthConfig(tokens=tokens(*many)), None, None)
    identity.change(AuthConfig(tokens={}), None, None)
    assert CAUSES[GONE] in await cause(many[-1])
    assert CAUSES[WRONG] in await cause(GONE)
