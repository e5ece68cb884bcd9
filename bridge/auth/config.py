"""The settings of authentication. bridge/server/settings.py reads them; nothing here does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from bridge.auth.principal import Token

LOOPBACK = ("127.0.0.1", "::1", "localhost")
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
"""A pattern for the names of tokens and of agents."""


@dataclass(frozen=True, slots=True)
class AuthConfig:
    """Which credentials a server accepts. `required`: a request without credentials is refused.
    `operator_token` is BRIDGE_TOKEN, `tokens` are the tables [tokens.NAME] of CONFIG_FILE.
    `issuer`: tokens of an OpenID provider are accepted, too."""

    required: bool = True
    operator_token: str | None = None
    tokens: Mapping[str, Token] = field(default_factory=dict)
    issuer: bool = False

    @property
    def has_tokens(self) -> bool:
        """Whether the operator configured credentials beside the token of the state folder."""
        return bool(self.operator_token or self.tokens or self.issuer)


def trusted_url(value: str) -> str:
    """`value`, if it is an https:// URL, or an http:// URL of this machine. Raises ValueError."""
    parts = urlsplit(value)
    local = parts.scheme == "http" and parts.hostname in LOOPBACK
    if not (local or parts.scheme == "https") or not parts.hostname or set("@#") & set(value):
        raise ValueError("an https:// URL is expected, or http:// for this machine")
    return value


def discovery(issuer: str) -> str:
    """The URL at which an OpenID provider describes itself (OpenID Connect Discovery 1.0 §4)."""
    return issuer.rstrip("/") + "/.well-known/openid-configuration"
