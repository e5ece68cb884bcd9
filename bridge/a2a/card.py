"""The content of an agent card, independent of the protocol version (1.0 §4.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

REDIS_BINDING = "urn:coding-agent-bridge:redis-streams:v1"
"""The binding of requests through Redis Streams (docs/bindings.md)."""
EXTENSION = "urn:coding-agent-bridge:v1"
"""The extension of the bridge (docs/extension.md): `metadata.bridge` in both directions."""
WEBSOCKET = "urn:coding-agent-bridge:websocket:v1"
"""The WebSocket binding (docs/bindings.md), for which A2A has no standard."""


API_KEY = "X-API-Key"
"""The header with a token, for clients that have a field for API keys only."""


@dataclass(frozen=True, slots=True)
class Skill:
    id: str
    name: str
    description: str
    tags: tuple[str, ...]
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Card:
    """`url`: the public URL of the JSON-RPC endpoint. `rest_url`: of the HTTP+JSON endpoint.
    `grpc`: HOST:PORT of the gRPC endpoint, where `tenant` names the agent. `websocket`: the URL of
    the WebSocket endpoint. `redis`: the prefix of keys in Redis.

    `provider`: the organization that offers the agent, and its URL. `bearer`: requests need a
    token, as a bearer token, as an API key or as the password of Basic. `oidc`: URL of the
    discovery document of an OpenID provider whose tokens are accepted. `push`: push notifications
    are supported. `extended`: authenticated clients can get an extended card; `details` is its
    additional content for programs: the CLI and its limits.
    """

    name: str
    description: str
    version: str
    url: str
    skills: tuple[Skill, ...]
    input_modes: tuple[str, ...]
    output_modes: tuple[str, ...]
    rest_url: str
    icon_url: str | None = None
    provider: tuple[str, str] | None = None
    bearer: bool = False
    oidc: str | None = None
    push: bool = False
    extended: bool = False
    details: Mapping[str, Any] | None = None
    grpc: str | None = None
    tenant: str | None = None
    websocket: str | None = None
    redis: str | None = None


def encode_extensions(card: Card) -> list[dict[str, Any]]:
    """EXTENSION, with the details of an extended card as its parameters."""
    about = "metadata.bridge: working directory, tools, usage and permissions of coding agents"
    extension = {"uri": EXTENSION, "description": about, "required": False}
    return [extension | ({"params": dict(card.details)} if card.details else {})]


def encode_origin(card: Card) -> dict[str, Any]:
    """The members about the provider and the icon, if they are configured."""
    members: dict[str, Any] = {}
    if card.provider:
        members["provider"] = dict(zip(("organization", "url"), card.provider, strict=True))
    if card.icon_url:
        members["iconUrl"] = card.icon_url
    return members


def encode_abilities(card: Card) -> dict[str, Any]:
    """The media types and the skills."""
    given, made = list(card.input_modes), list(card.output_modes)
    skills = [
        {
            "id": skill.id,
            "name": skill.name,
            "description": skill.description,
            "tags": list(skill.tags),
            "examples": list(skill.examples),
            "inputModes": given,
            "outputModes": made,
        }
        for skill in card.skills
    ]
    return {"defaultInputModes": given, "defaultOutputModes": made, "skills": skills}
