"""Parts of the server that most starts do not need: libraries that an extra installs, and modules
that cost memory. This module imports each of them when it is used; no other module does."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bridge.a2a.card import Card
from bridge.auth.authentication import TokenIssuer
from bridge.server.settings import Settings


def token_issuer(settings: Settings) -> TokenIssuer | None:
    """The OpenID provider whose tokens the server accepts, if there is one. To be called inside a
    running loop. Raises ConfigurationError where the extra `oidc` is missing."""
    if settings.bridge_oidc_issuer is None or not settings.auth.required:
        return None
    from bridge.auth import oidc

    config = oidc.OidcConfig(
        issuer=settings.bridge_oidc_issuer,
        audiences=settings.bridge_oidc_audience,
        scopes=settings.bridge_oidc_scopes,
        jwks=settings.bridge_oidc_jwks,
        claim=settings.bridge_oidc_claim,
        workspaces=settings.bridge_oidc_workspaces_claim,
    )
    return oidc.Issuer(config)


def card_signer(keys: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Signs a card with the keys of this file. Raises ConfigurationError, also where the extra
    `signing` is missing."""
    from bridge.server import signature

    return functools.partial(signature.sign, keys=signature.load_keys(Path(keys).expanduser()))


def openapi_document(card: Card) -> dict[str, Any]:
    """The HTTP+JSON binding of the agent with this card, as OpenAPI 3.1."""
    from bridge.transports import openapi

    return openapi.document(card)
