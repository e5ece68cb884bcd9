"""The settings of authentication, which bridge/server/settings reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from bridge.auth.principal import Grant, Token

LOOPBACK = ("127.0.0.1", "::1", "localhost")
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
"""A pattern for the names of tokens and of agents."""


@dataclass(frozen=True, slots=True)
class AuthConfig:
    """The accepted credentials. `required`: requests without credentials are rejected.
    `operator_token` is BRIDGE_TOKEN, `tokens` are the tables [tokens.NAME] of CONFIG_FILE.
    `issuer`: the server also accepts tokens of an OpenID provider. `unix_users` are the tables
    [unix_users.NAME]: these users need no token on the Unix socket. `same_user`: the user of the
    server, which is the operator there, needs none either."""

    required: bool = True
    operator_token: str | None = None
    tokens: Mapping[str, Token] = field(default_factory=dict)
    issuer: bool = False
    unix_users: Mapping[str, Grant] = field(default_factory=dict)
    same_user: bool = True

    @property
    def has_tokens(self) -> bool:
        """Whether there are credentials besides the token in the state folder."""
        return bool(self.operator_token or self.tokens or self.issuer)


def trusted_url(value: str) -> str:
    """`value`, an https:// URL or an http:// URL of this machine. Raises ValueError for others."""
    parts = urlsplit(value)
    local = parts.scheme == "http" and parts.hostname in LOOPBACK
    if not (local or parts.scheme == "https") or not parts.hostname or set("@#") & set(value):
        raise ValueError("must be an https:// URL, or http:// for this machine")
    return value


def discovery(issuer: str) -> str:
    """The URL at which an OpenID provider describes itself (OpenID Connect Discovery 1.0 §4)."""
    return issuer.rstrip("/") + "/.well-known/openid-configuration"
