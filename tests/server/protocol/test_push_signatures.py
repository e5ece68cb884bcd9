"""The signatures of push notifications. The code of docs/protocol.md verifies them, in Python and
in JavaScript."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import programs
from tests.support.cases import each
from tests.support.client import Client, Json, RpcError
from tests.support.receivers import Receiver, receiving
from tests.support.served import serving
from tests.support.signatures import snippet, verify

WITHIN = 60.0
SECRETS = ("whsec_" + b64encode(bytes(range(32))).decode(), "a secret of the receiver, 24")
TOKEN = "t0k3n-of-the-receiver"
SCHEME = "HMAC-SHA256"
VERIFY_ALL = """
import { text } from "node:stream/consumers";
import { verify } from "./verify.mjs";
const now = Date.now;
const cases = JSON.parse(await text(process.stdin));
const verified = cases.map(({ headers, body, secret, later }) => {
  Date.now = () => now() + 1000 * later;
  return verify(headers, Buffer.from(body, "base64"), secret);
});
process.stdout.write(JSON.stringify(verified));
"""

Case = tuple[Mapping[str, str], bytes, str, float]
"""Headers, body and secret, and the seconds that have passed since."""


async def in_javascript(cases: list[Case], folder: Path) -> list[bool]:
    (folder / "verify.mjs").write_text(snippet("javascript"))
    (folder / "all.mjs").write_text(VERIFY_ALL)
    given = [
        {"headers": headers, "body": b64encode(body).decode(), "secret": secret, "later": later}
        for headers, body, secret, later in cases
    ]
    node = await asyncio.create_subprocess_exec(
        programs.first_of("node") or "node",
        str(folder / "all.mjs"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(WITHIN):
        output, _ = await node.communicate(json.dumps(given).encode())
    assert node.returncode == 0
    verified: list[bool] = json.loads(output)
    return verified


def config(client: Client, url: str, **members: Any) -> Json:
    """The configuration of a send."""
    name = "pushNotificationConfig" if client.version == "0.3" else "taskPushNotificationConfig"
    return {name: {"url": url, "id": "c", **members}}


def signing(client: Client, secret: str, scheme: str = SCHEME) -> Json:
    named = {"schemes": [scheme]} if client.version == "0.3" else {"scheme": scheme}
    return {"authentication": {**named, "credentials": secret}}


def attacks(headers: Mapping[str, str], body: bytes, secret: str) -> list[Case]:
    """What no receiver accepts."""
    now = int(headers["webhook-timestamp"])
    changed = {
        "webhook-id": headers["webhook-id"] + "1",
        "webhook-timestamp": str(now + 1),
        "webhook-signature": "v1,é" + headers["webhook-signature"][4:],
    }
    cases: list[Case] = [
        ({**headers, name: value}, body, secret, 0) for name, value in changed.items()
    ]
    missing = {name: value for name, value in headers.items() if name != "webhook-signature"}
    return [
        *cases,
        (missing, body, secret, 0),
        (headers, body.replace(b"one", b"two"), secret, 0),
        (headers, body, secret.swapcase(), 0),
        (headers, body, secret, 400),  # an old one, repeated
        (headers, body, secret, -400),
    ]


@programs.needed("node")
@each("version", ["1.0", "0.3"])
async def test_receivers_verify_notifications_and_refuse_changed_and_old_ones(
    workspace: Path, tmp_path: Path, version: str
) -> None:
    receivers = [Receiver() for _ in range(3)]
    async with serving(workspace) as server, receiving(*receivers):
        client = server.client(version)
        wanted = [*(signing(client, secret) for secret in SECRETS), {"token": TOKEN}]
        for receiver, members in zip(receivers, wanted, strict=True):
            await client.send("text one", config(client, receiver.url, **members))
            await receiver.got(2)
    genuine: list[Case] = []
    hostile: list[Case] = []
    for receiver, secret in zip(receivers, (*SECRETS, TOKEN), strict=True):
        for headers, body in receiver.requests:
            assert headers["webhook-id"] == headers["A2A-Notification-Id"]
            assert "Authorization" not in headers
            assert secret == TOKEN or secret not in repr(headers)
            genuine.append((headers, body, secret, 0))
        (headers, body), *_ = (one for one in receiver.requests if b"one" in one[1])
        hostile += attacks(headers, body, secret)
    expected = [True] * len(genuine) + [False] * len(hostile)
    assert [verify(*case) for case in (*genuine, *hostile)] == expected
    assert await in_javascript([*genuine, *hostile], tmp_path) == expected


@each("authentication", [{}, {"scheme": "Bearer", "credentials": "the credentials"}])
async def test_without_a_secret_that_signs_there_is_no_signature(
    workspace: Path, authentication: Json
) -> None:
    receiver = Receiver()
    async with serving(workspace) as server, receiving(receiver):
        client = server.client()
        more = {"authentication": authentication} if authentication else {}
        await client.send("done", config(client, receiver.url, **more))
        await receiver.got(1)
    headers, _ = receiver.requests[0]
    assert not [name for name in headers if name.startswith("webhook-")]
    assert ("Authorization" in headers) is bool(authentication)


@each(
    ("secret", "text"),
    [
        ("too short", "at least 24 bytes"),
        ("whsec_" + b64encode(b"too short").decode(), "at least 24 bytes"),
        ("whsec_no*base64", "base64"),
        ("", "at least 24 bytes"),
    ],
)
async def test_a_secret_that_cannot_sign_is_refused(
    workspace: Path, secret: str, text: str
) -> None:
    async with serving(workspace) as server:
        client = server.client()
        for scheme in (SCHEME, SCHEME.lower()):
            wanted = signing(client, secret, scheme)
            with pytest.raises(RpcError, match=text) as raised:
                await client.send("done", config(client, "http://127.0.0.1:1/", **wanted))
            assert raised.value.code == -32602
