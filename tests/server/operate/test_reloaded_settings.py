"""Reloads of a server in this process: each setting is applied at the next request, agents come and
go as a whole, and the pages for operators follow."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey

from bridge.auth.principal import Token, digest
from tests.support.client import RpcError, artifact_text, state
from tests.support.reloadable import Reloadable, reloadable

SECRET = "a-token-of-anna-123456"
ANNA = {"Authorization": f"Bearer {SECRET}"}
HEADER = "X-Forwarded-For"
LISTING = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
SCOPES = ("run", "read", "cancel", "approve", "admin", "metrics")
log = logging.getLogger("bridge.of_the_test")


def token(**more: Any) -> dict[str, Token]:
    return {"anna": Token(hash=f"sha256:{digest(SECRET).hex()}", scopes=SCOPES, **more)}


class Probes:
    """Each method shows the effect of a setting on the next request or line of the log."""

    def __init__(self, server: Reloadable, read: Callable[[], str], keys: dict[str, ECKey]) -> None:
        self.server = server
        self.read = read
        self.keys = keys
        self.count = 0

    async def status(self, path: str = "/monitor/tasks", **headers: str) -> int:
        sent = {**ANNA, **{k.replace("_", "-"): v for k, v in headers.items()}}
        async with self.server.http.get(self.server.url + path, headers=sent) as answer:
            return answer.status

    async def host(self) -> int:
        return await self.status(Host="bridge.example")

    async def origin(self) -> int:
        return await self.status(Origin="https://app.example")

    async def card(self) -> Any:
        url = f"{self.server.url}/.well-known/agent-card.json"
        async with self.server.http.get(url) as answer:
            body = await answer.json()
            return body, answer.headers["ETag"]

    async def card_address(self) -> str:
        return (
            str((await self.card())[0]["url"])
            .partition("/a2a")[0]
            .replace(self.server.url, "its own")
        )

    async def question(self) -> str:
        self.count += 1
        client = self.server.client(**ANNA)
        return state(await client.send("permit q Run ls?", messageId=f"q-{self.count}"))

    async def starts(self) -> bool:
        """Whether two tasks in a row are accepted."""
        client = self.server.client(**ANNA)
        try:
            for _ in range(2):
                self.count += 1
                await client.send("done", messageId=f"q-{self.count}", contextId="c")
        except RpcError:
            return False
        return True

    async def peer(self) -> str:
        self.read()
        wrong = {"Authorization": "Bearer wrong", HEADER: "203.0.113.9, 198.51.100.7"}
        async with self.server.http.get(f"{self.server.url}/tasks", headers=wrong) as answer:
            assert answer.status == 401
        return "198.51.100.7" if "198.51.100.7" in self.read() else "127.0.0.1"

    async def connection(self) -> bool:
        """Whether one more connection is served."""
        host, _, port = self.server.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            return b"200" in await reader.readline()
        except ConnectionError:
            return False
        finally:
            writer.close()

    async def silent_connection(self) -> bool:
        """Whether a connection without a request ends within a second."""
        host, _, port = self.server.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\n")
        try:
            await asyncio.wait_for(reader.read(), 0.5)
        except TimeoutError:
            return False
        finally:
            writer.close()
        return True

    async def debug_line(self) -> bool:
        self.read()
        log.debug("a line of little interest")
        return "little interest" in self.read()

    async def json_line(self) -> bool:
        self.read()
        log.error("a line")
        return self.read().startswith("{")

    async def request_line(self) -> bool:
        self.read()
        assert (await self.server.client(**ANNA).post(LISTING)).status == 200
        return "request.answered" in self.read()

    async def redaction(self) -> bool:
        """Whether a new CLI's text with the form of a secret is redacted."""
        self.count += 1
        secret = "ghp_" + "a1B2" * 9
        client = self.server.client(**ANNA)
        task = await client.send(f"text {secret}", messageId=f"q-{self.count}")
        return secret not in artifact_text(task)

    async def issued(self) -> tuple[int, int]:
        """The answers for a token of each of two providers."""
        return (
            await self.of_provider("https://one.example"),
            await self.of_provider("https://two.example"),
        )

    async def audience(self) -> int:
        return await self.of_provider("https://one.example", aud="other")

    async def of_provider(self, issuer: str, aud: str = "bridge") -> int:
        claims = {"iss": issuer, "aud": aud, "sub": "ada", "exp": int(time.time()) + 300}
        claims["scope"] = "run read"
        made = jwt.encode({"alg": "ES256", "kid": "k"}, claims, self.keys["now"])
        async with asyncio.timeout(10):
            while True:  # the keys of a new provider are read in the background
                answer = await self.server.client(Authorization=f"Bearer {made}").post(LISTING)
                if answer.status != 503:
                    return answer.status


TABLE: tuple[tuple[dict[str, Any], str, Any, Any], ...] = (
    # changes, probe, before, after
    ({"bridge_allowed_hosts": ("bridge.example",)}, "host", 421, 200),
    ({"bridge_allowed_origins": ("https://app.example",)}, "origin", 403, 200),
    ({"public_url": "https://b.example"}, "card_address", "its own", "https://b.example"),
    ({"rules": ({"decision": "deny"},)}, "question", "input-required", "completed"),
    ({"tokens": token(starts_per_minute=1)}, "starts", True, False),
    ({"bridge_trusted_proxies": ("127.0.0.1",)}, "peer", "127.0.0.1", "198.51.100.7"),
    ({"bridge_max_connections": 1}, "connection", True, False),  # the client has one
    ({"bridge_header_timeout_ms": 100}, "silent_connection", False, True),
    ({"log_level": "DEBUG"}, "debug_line", False, True),
    ({"log_format": "json"}, "json_line", False, True),
    ({"log_requests": True}, "request_line", False, True),
    ({"bridge_redact": "patterns"}, "redaction", False, True),
    ({"bridge_oidc_issuer": "https://two.example"}, "issued", (200, 401), (401, 200)),
    ({"bridge_oidc_audience": ("other",)}, "audience", 401, 200),
)


async def test_each_setting_is_applied_at_the_next_request_and_so_is_its_removal(
    workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A start, and a silent connection that must stay open for half a second; above a second."""
    keys = {"now": ECKey.generate_key("P-256")}
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [{**keys["now"].as_dict(private=False), "kid": "k"}]}))
    oidc = {
        "bridge_oidc_issuer": "https://one.example",
        "bridge_oidc_audience": ("bridge",),
        "bridge_oidc_jwks": str(file),
    }
    wrong: list[str] = []
    async with reloadable(workspace, tokens=token(), **oidc) as server:
        probes = Probes(server, lambda: capsys.readouterr().err, keys)
        for changes, name, before, after in TABLE:
            probe, original = getattr(probes, name), server.settings
            found = [await probe()]
            changed = await server.reload(**changes)
            found.append(await probe())
            server.settings = original
            back = await server.reload()
            found.append(await probe())
            setting = next(iter(changes))
            if found != [before, after, before]:
                wrong.append(f"{setting}: {found}, expected {[before, after, before]}")
            named = {"tokens": "tokens.anna", "rules": "rules"}.get(setting, setting.upper())
            assert named in changed.changed and named in back.changed, (setting, changed, back)
            assert not changed.needs_restart
    assert not wrong, "\n".join(wrong)
