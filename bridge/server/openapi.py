"""The HTTP+JSON binding of an agent as an OpenAPI 3.1 document, for `GET /openapi.json`.

`scripts/openapi` generates openapi.json for a server that requires a token. The member `x-variants`
has a JSON merge patch (RFC 7396) for another kind of server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from bridge.a2a.card import Card

PUBLIC = "public"
"""The variant of a server that requires no token."""
GENERATED = Path(__file__).with_name("openapi.json")


def document(card: Card) -> dict[str, Any]:
    """The document for the agent with this card, at the URL of the card."""
    found: dict[str, Any] = orjson.loads(GENERATED.read_bytes())
    variants = found.pop("x-variants")
    _merge(found, variants.get("" if card.bearer else PUBLIC, {}))
    found["info"] = {"title": card.name, "description": card.description, "version": card.version}
    found["servers"] = [{"url": card.rest_url}]
    if card.bearer and card.oidc:
        openid = {"type": "openIdConnect", "openIdConnectUrl": card.oidc}
        found["components"]["securitySchemes"]["oidc"] = openid
        found["security"].append({"oidc": []})
    return found


def _merge(target: dict[str, Any], patch: dict[str, Any]) -> None:
    for name, change in patch.items():
        if change is None:
            target.pop(name, None)
        elif isinstance(change, dict) and isinstance(target.get(name), dict):
            _merge(target[name], change)
        else:
            target[name] = change
