"""What an agent card says, free of any protocol version (1.0 §4.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

EXTENSION = "urn:coding-agent-bridge:v1"
"""Our own extension (docs/extension.md): `metadata.bridge`, both ways."""


@dataclass(frozen=True, slots=True)
class Skill:
    id: str
    name: str
    description: str
    tags: tuple[str, ...]
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Card:
    """`url` is the JSON-RPC endpoint as clients reach it, `rest_url` the HTTP+JSON one.

    `bearer`: requests need a token. `oidc`: where the OpenID provider describes itself whose
    tokens are such, too. `push`: receivers can be notified of updates. `extended`:
    clients that have authenticated themselves may ask for more; `details` is that more, for
    programs: what runs, and its limits. `extension_required`: clients must ask for EXTENSION.
    """

    name: str
    description: str
    version: str
    url: str
    skills: tuple[Skill, ...]
    input_modes: tuple[str, ...]
    output_modes: tuple[str, ...]
    rest_url: str
    documentation_url: str | None = None
    bearer: bool = False
    oidc: str | None = None
    push: bool = False
    extended: bool = False
    details: Mapping[str, Any] | None = None
    extension_required: bool = False
