"""The agent card in one version, or in a shape that clients of all versions can read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge.a2a.card import Card
from bridge.a2a.codecs import CODECS

HYBRID = "both"


def shapes() -> list[str]:
    """The values of BRIDGE_CARD."""
    return [HYBRID, *(codec.version for codec in CODECS)]


def can_sign(shape: str) -> bool:
    """Whether a card of this shape can carry signatures."""
    return any(codec.signs_cards for codec in CODECS if codec.version == shape)


def encode_card(card: Card, shape: str) -> dict[str, Any]:
    """The agent card. The hybrid is the card of the newest version with the members that clients
    of the oldest version need. The newest interfaces come first, because clients use the first
    interface that they support."""
    if shape != HYBRID:
        codec = next(codec for codec in CODECS if codec.version == shape)
        return codec.encode_card(card)
    newest, oldest = CODECS[0].encode_card(card), CODECS[-1].encode_card(card)
    hybrid = _both(oldest, newest)
    for_oldest = {
        **newest["supportedInterfaces"][0],
        "protocolVersion": CODECS[-1].version,
    }
    hybrid["supportedInterfaces"] = [*newest["supportedInterfaces"], for_oldest]
    return hybrid


def _both(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The members of both; an object that is in both is merged in the same way."""
    merged = {**old, **new}
    for name in old.keys() & new.keys():
        if isinstance(old[name], dict) and isinstance(new[name], dict):
            merged[name] = _both(old[name], new[name])
    return merged
