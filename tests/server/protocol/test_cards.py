"""Agent cards over HTTP: their shapes, their caching headers, and the extended card."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from email.utils import formatdate, parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse

from bridge.server.settings.load import load
from tests.support.client import Client, Json, RpcError, states
from tests.support.rest import Rest
from tests.support.served import Server, serving, serving_loaded

TOKEN = "a-token-of-some-length"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
CARD = "/.well-known/agent-card.json"
OLD_CARD = "/.well-known/agent.json"

# What each version requires, and what it has beyond.
REQUIRED = {
    "1.0": {
        *("name", "description", "supportedInterfaces", "version", "capabilities"),
        *("defaultInputModes", "defaultOutputModes", "skills"),
    },
    "0.3": {
        *("protocolVersion", "name", "description", "url", "version", "capabilities"),
        *("defaultInputModes", "defaultOutputModes", "skills", "preferredTransport"),
    },
}
KNOWN = {
    "1.0": REQUIRED["1.0"]
    | {
        *("provider", "documentationUrl", "iconUrl"),
        *("securitySchemes", "securityRequirements", "signatures"),
    },
    "0.3": REQUIRED["0.3"]
    | {
        *("additionalInterfaces", "provider", "iconUrl", "documentationUrl", "securitySchemes"),
        *("security", "supportsAuthenticatedExtendedCard", "signatures"),
    },
}
CAPABILITIES = {
    "1.0": {"streaming", "pushNotifications", "extensions", "extendedAgentCard"},
    "0.3": {"streaming", "pushNotifications", "extensions", "stateTransitionHistory"},
}


async def fetch(server: Server, path: str = CARD, **headers: str) -> ClientResponse:
    response = await server.http.get(server.url + path, headers=headers)
    await response.read()
    return response


async def card_of(server: Server, path: str = CARD) -> Json:
    card: Json = await (await fetch(server, path)).json()
    return card


def strings(value: Any) -> Iterator[str]:
    """All strings in it, names of members too."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield name
            yield from strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from strings(one)
    elif isinstance(value, str):
        yield value


# --- shapes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [None, TOKEN])
@pytest.mark.parametrize("shape", ["both", "1.0", "0.3"])
async def test_each_shape_has_exactly_the_members_of_its_version(
    workspace: Path, shape: str, token: str | None
) -> None:
    versions = ["1.0", "0.3"] if shape == "both" else [shape]
    async with serving(workspace, bridge_card=shape, bridge_token=token) as server:
        card = await card_of(server)
    for version in versions:
        assert REQUIRED[version] <= card.keys()
    assert card.keys() <= set().union(*(KNOWN[version] for version in versions))
    assert card["capabilities"].keys() == set().union(*(CAPABILITIES[one] for one in versions))
    assert card["capabilities"]["streaming"] is card["capabilities"]["pushNotifications"] is True
    for skill in card["skills"]:
        assert {"id", "name", "description", "tags"} <= skill.keys()
        assert skill["tags"]
    assert card["skills"]
    assert all("_" not in name for name in names(card))


def names(value: Any) -> Iterator[str]:
    """Names of members, at any depth."""
    if isinstance(value, dict):
        yield from value
        for one in value.values():
            yield from names(one)
    elif isinstance(value, list):
        for one in value:
            yield from names(one)


@pytest.mark.parametrize("shape", ["both", "0.3"])
async def test_the_card_promises_no_history_of_states(workspace: Path, shape: str) -> None:
    """0.3 has no member for it: its history has messages, and a message has no state."""
    async with serving(workspace, bridge_card=shape) as server:
        card = await card_of(server)
        assert card["capabilities"]["stateTransitionHistory"] is False
        client = server.client("0.3", Last_Event_ID="0")
        asked = await client.send("status x\nask q Who?\ndone")
        task = await client.send("me", taskId=asked["id"])
        assert not {"state", "status", "timestamp"} & {*names(task["history"])}
        async with client.subscribe(task["id"]) as items:
            repeated = states([item async for item in items])
    assert repeated == ["working", "input-required", "working", "completed"]


async def test_the_interfaces_are_where_they_are_said_to_be(workspace: Path) -> None:
    async with serving(workspace) as server:
        card = await card_of(server)
        found = [
            (one["protocolBinding"], one["protocolVersion"]) for one in card["supportedInterfaces"]
        ]
        assert found == [("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("JSONRPC", "0.3")]
        jsonrpc, rest, old = [one["url"] for one in card["supportedInterfaces"]]
        assert jsonrpc == old == card["url"] == f"{server.url}/a2a/jsonrpc"
        assert card["preferredTransport"] == "JSONRPC"
        assert card["additionalInterfaces"] == [{"url": card["url"], "transport": "JSONRPC"}]
        assert (await Rest(server.http, rest).get("/tasks")).status == 200
        for version in ("1.0", "0.3"):
            base = jsonrpc.removesuffix("/a2a/jsonrpc")
            assert await Client(server.http, base, version).send("done")


async def test_a_token_is_declared_in_both_versions_words(workspace: Path) -> None:
    async with serving(workspace, bridge_token=TOKEN) as server:
        card = await card_of(server)
    names = ["bearer", "apiKey", "basic"]
    assert card["security"] == [{name: []} for name in names]
    assert card["securityRequirements"] == [{"schemes": {name: {"list": []}}} for name in names]
    key = {"location": "header", "name": "X-API-Key"}
    assert card["securitySchemes"] == {
        "bearer": {
            "type": "http",
            "scheme": "bearer",
            "httpAuthSecurityScheme": {"scheme": "Bearer"},
        },
        "apiKey": {
            "type": "apiKey",
            "in": "header",
            "name": "X-API-Key",
            "apiKeySecurityScheme": key,
        },
        "basic": {"type": "http", "scheme": "basic", "httpAuthSecurityScheme": {"scheme": "Basic"}},
    }
    assert card["capabilities"]["extendedAgentCard"] is True
    assert card["supportsAuthenticatedExtendedCard"] is True


async def test_the_provider_and_the_icon_are_on_the_card(workspace: Path) -> None:
    icon = "https://example.org/icon.png"
    provider = "Example Corp https://example.org"
    async with serving(workspace, agent_provider=provider, agent_icon_url=icon) as server:
        card = await card_of(server)
    assert card["provider"] == {"organization": "Example Corp", "url": "https://example.org"}
    assert card["iconUrl"] == icon


async def test_without_a_token_the_card_has_no_security_scheme(workspace: Path) -> None:
    async with serving(workspace) as server:
        card = await card_of(server)
    assert not {"security", "securityRequirements", "securitySchemes"} & card.keys()
    assert card["capabilities"]["extendedAgentCard"] is False
    assert card["supportsAuthenticatedExtendedCard"] is False


async def test_the_extension_is_declared_as_not_required(workspace: Path) -> None:
    async with serving(workspace) as server:
        (extension,) = (await card_of(server))["capabilities"]["extensions"]
    assert extension["uri"] == "urn:coding-agent-bridge:v1"
    assert extension["required"] is False
    assert "params" not in extension


# --- what the operator says --------------------------------------------------------------------


async def test_name_description_and_skills_are_the_operators(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "config.toml"
    config.write_text(
        f"""
        AGENT_ADAPTER = "jsonl"
        AGENT_BINARY = "{sys.executable}"
        AGENT_REPO_PATH = "{workspace}"
        AGENT_NAME = "Fixer"
        AGENT_DESCRIPTION = "Fixes things"
        [[AGENT_SKILLS]]
        id = "fix"
        name = "Fix"
        description = "Fixes one thing"
        tags = ["fix", "it"]
        examples = ["Fix it."]
        [[AGENT_SKILLS]]
        id = "break"
        name = "Break"
        description = "Breaks it"
        tags = ["break"]
        """
    )
    async with serving_loaded(load({"config_file": str(config)})) as server:
        card = await card_of(server)
    assert (card["name"], card["description"]) == ("Fixer", "Fixes things")
    assert [skill["id"] for skill in card["skills"]] == ["fix", "break"]
    assert card["skills"][0] == {
        "id": "fix",
        "name": "Fix",
        "description": "Fixes one thing",
        "tags": ["fix", "it"],
        "examples": ["Fix it."],
        "inputModes": ["*/*"],
        "outputModes": ["text/plain", "application/json"],
    }


@pytest.mark.parametrize("public", ["https://example.org", "https://example.org/agent/"])
async def test_addresses_begin_with_the_public_url(workspace: Path, public: str) -> None:
    async with serving(workspace, public_url=public, bridge_token=TOKEN) as server:
        extended = await server.http.get(
            f"{server.url}/extendedAgentCard", headers={"A2A-Version": "1.0", **BEARER}
        )
        for card in (await card_of(server), await extended.json(content_type=None)):
            base = public.rstrip("/")
            assert {one["url"] for one in card["supportedInterfaces"]} == {
                *(f"{base}/a2a/jsonrpc", f"{base}/a2a/rest"),
            }
        assert server.url not in json.dumps(card)


async def test_without_one_they_are_those_that_the_client_used(workspace: Path) -> None:
    async with serving(workspace, bridge_allowed_hosts=["bridge.example"]) as server:
        response = await fetch(server, Host="bridge.example:8080")
        assert (await response.json())["url"] == "http://bridge.example:8080/a2a/jsonrpc"
        assert response.headers["Vary"] == "Host"


# --- caches ------------------------------------------------------------------------------------


async def test_a_card_has_caching_headers_and_a_media_type(workspace: Path) -> None:
    begun = int(time.time())
    async with serving(workspace) as server:
        for path in (CARD, OLD_CARD, f"/agents/jsonl{CARD}"):
            response = await fetch(server, path)
            assert response.status == 200
            assert response.content_type == "application/json"
            assert "max-age=" in response.headers["Cache-Control"]
            assert response.headers["ETag"].startswith('"')
            modified = parsedate_to_datetime(response.headers["Last-Modified"]).timestamp()
            assert begun <= modified <= time.time()


async def test_the_tag_changes_with_the_card(workspace: Path) -> None:
    tags = []
    for name in ("one", "two", "one"):
        async with serving(workspace, agent_name=name, public_url="http://x") as server:
            tags.append((await fetch(server)).headers["ETag"])
    assert tags[0] == tags[2] != tags[1]


async def test_a_copy_that_is_still_good_is_not_sent_again(workspace: Path) -> None:
    async with serving(workspace) as server:
        first = await fetch(server)
        tag, modified = first.headers["ETag"], first.headers["Last-Modified"]
        for headers in (
            {"If-None-Match": tag},
            {"If-None-Match": f"W/{tag}"},
            {"If-None-Match": f'"other", {tag}'},
            {"If-None-Match": "*"},
            {"If-Modified-Since": modified},
            {"If-Modified-Since": formatdate(time.time(), usegmt=True)},
            {"If-None-Match": tag, "If-Modified-Since": "no date"},
        ):
            again = await fetch(server, **headers)
            assert (again.status, await again.read()) == (304, b""), headers
            assert again.headers["ETag"] == tag
            assert again.headers["Last-Modified"] == modified
            assert again.headers["Cache-Control"] == first.headers["Cache-Control"]


@pytest.mark.parametrize(
    "headers",
    [
        {"If-None-Match": '"other"'},
        {"If-None-Match": '"other"', "If-Modified-Since": formatdate(2e9, usegmt=True)},
        {"If-None-Match": "no tag", "If-Modified-Since": formatdate(2e9, usegmt=True)},
        {"If-None-Match": '""'},
        {"If-Modified-Since": "Wed, 31 Dec 1969 23:59:59 GMT"},
        {"If-Modified-Since": "no date"},
        {"If-Modified-Since": ""},
        {"If-Modified-Since": f"Thu, 01 Jan 2026 {'9' * 30}:00:00 GMT"},
        {"If-Modified-Since": "Thu, 01 Jan 99999 00:00:00 GMT"},
    ],
    ids=str,
)
async def test_any_other_copy_is(workspace: Path, headers: dict[str, str]) -> None:
    async with serving(workspace) as server:
        response = await fetch(server, **headers)
        assert response.status == 200
        assert (await response.json())["name"]


async def test_a_card_can_be_asked_for_by_its_head(workspace: Path) -> None:
    async with serving(workspace) as server:
        response = await server.http.head(server.url + CARD)
        assert (response.status, await response.read()) == (200, b"")
        assert response.headers["ETag"] == (await fetch(server)).headers["ETag"]


# --- the extended card -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "method"),
    [("1.0", "GetExtendedAgentCard"), ("0.3", "agent/getAuthenticatedExtendedCard")],
)
async def test_there_is_no_extended_card_without_a_token(
    workspace: Path, version: str, method: str
) -> None:
    async with serving(workspace) as server:
        with pytest.raises(RpcError) as raised:
            await server.client(version).call(method, {})
    assert raised.value.code == (-32004 if version == "1.0" else -32007)


@pytest.mark.parametrize(
    ("version", "method"),
    [("1.0", "GetExtendedAgentCard"), ("0.3", "agent/getAuthenticatedExtendedCard")],
)
async def test_the_extended_card_adds_the_details_of_the_cli(
    workspace: Path, version: str, method: str
) -> None:
    settings: Json = {
        "bridge_token": TOKEN,
        "bridge_card": version,
        "agent_model": "opus",
        "agent_models": ("opus", "sonnet"),
        "agent_timeout_ms": 1234,
        "bridge_max_sessions": 3,
    }
    async with serving(workspace, **settings) as server:
        public = await card_of(server)
        server.http.headers.update(BEARER)
        body = {"jsonrpc": "2.0", "id": 1, "method": method}  # params may be left out
        extended = (await (await server.client(version).post(body)).json())["result"]
    (extension,) = extended["capabilities"]["extensions"]
    details = extension.pop("params")
    assert extended == public
    assert details == {
        "adapter": "jsonl",
        "cliVersion": "",
        "model": "opus",
        "models": ["opus", "sonnet"],
        "modes": [],
        "thoughts": "request",
        "asksForPermission": True,
        "lacks": {"interrupt": "the program gets a cancel line and is then ended"},
        "limits": {
            "turnMs": 1234,
            "silenceMs": 0,
            "sessions": 3,
            "bodyBytes": 32 * 1024 * 1024,
        },
    }


# --- nothing of the host -----------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["both", "1.0", "0.3"])
async def test_no_card_says_anything_of_the_host(workspace: Path, shape: str) -> None:
    settings: Json = {
        "bridge_token": TOKEN,
        "bridge_card": shape,
        "agent_model": "opus",
        "agent_env": ("HOME",),
        "agent_allowed_repo_roots": (str(workspace.parent),),
        "bridge_state_dir": str(workspace / "state"),
    }
    async with serving(workspace, **settings) as server:
        cards = [await card_of(server), await card_of(server, f"/agents/jsonl{CARD}")]
        server.http.headers.update(BEARER)
        rest = await Rest(server.http, server.url).get("/extendedAgentCard")
        cards += [rest.body, await server.client("1.0").call("GetExtendedAgentCard", {})]
        old = "agent/getAuthenticatedExtendedCard"
        cards.append(await server.client("0.3").call(old, {}))
        cards += [await card_of(server, "/agents"), await card_of(server, "/health")]
    said = "\n".join(text for card in cards for text in strings(card))
    for secret in (
        *(str(workspace), str(workspace.parent), sys.executable, os.environ["HOME"]),
        *(os.getcwd(), TOKEN, "agent.py"),
    ):
        assert secret not in said, secret


@pytest.mark.parametrize(("force", "asks"), [(False, True), (True, False)])
async def test_the_card_describes_the_agent_and_its_questions(
    workspace: Path, force: bool, asks: bool
) -> None:
    async with serving(workspace, agent_force=force) as server:
        async with server.client().session.get(f"{server.url}{CARD}") as response:
            card = await response.json()
    assert "coding agent" in card["description"]
    assert ("reply with one of the options" in card["description"]) is asks
    for skill in card["skills"]:
        assert skill["inputModes"] and skill["outputModes"] == ["text/plain", "application/json"]
