"""What an agent card says, free of any protocol version (1.0 §4.4)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Skill:
    id: str
    name: str
    description: str
    tags: tuple[str, ...]
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Card:
    """`url` is the JSON-RPC endpoint as clients reach it. `bearer`: requests need a token."""

    name: str
    description: str
    version: str
    url: str
    skills: tuple[Skill, ...]
    input_modes: tuple[str, ...]
    output_modes: tuple[str, ...]
    documentation_url: str | None = None
    bearer: bool = False
