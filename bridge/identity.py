"""Who sends a request: by a token, or, where the operator has set none, by the user of this machine
whose process it comes from."""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakKeyDictionary

from aiohttp import web

from bridge import registry
from bridge.access import NOBODY, OPERATOR, Principal, Token, Tokens, digest
from bridge.errors import ConfigurationError, TooManyRequests, Unavailable
from bridge.peer import uid_of_peer
from bridge.settings import Settings

FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via")
"""What a proxy adds: whoever is behind it is not the user that the proxy runs as."""
FAILURES = 20  # wrong tokens of one address within a WINDOW
WINDOW = 60.0  # seconds
MOST_ADDRESSES = 10_000

Found = Principal | Awaitable[Principal | None] | None
"""Somebody, nobody, or to be awaited."""

_uids: WeakKeyDictionary[object, int | None] = WeakKeyDictionary()


def tokens_of(settings: Settings) -> Tokens:
    own = [(digest(settings.bridge_token), OPERATOR)] if settings.bridge_token else []
    return Tokens([*own, *(_known(name, token) for name, token in settings.tokens.items())])


def _known(name: str, token: Token) -> tuple[bytes, Principal]:
    if not re.fullmatch("sha256:[0-9a-f]{64}", token.hash):
        text = "is not of the form sha256:<64 hex digits>; `coding-agent-bridge token` makes one"
        raise ConfigurationError(f"[tokens.{name}] hash {text}.")
    if name == OPERATOR.id:
        raise ConfigurationError(f"[tokens.{name}] is the name of the bearer of BRIDGE_TOKEN.")
    if name in NOBODY:
        text = "is what the audit log calls an answer of the server's own; choose another name."
        raise ConfigurationError(f"[tokens.{name}] {text}")
    real = None if token.workspaces is None else tuple(map(os.path.realpath, token.workspaces))
    return bytes.fromhex(token.hash.removeprefix("sha256:")), Principal(
        name, frozenset(token.scopes), real
    )


def new_token(name: str) -> str:
    """A token for `name`, and what stands in CONFIG_FILE for it."""
    token = secrets.token_urlsafe(32)
    return f'{token}\n\n[tokens.{name}]\nhash = "sha256:{digest(token).hex()}"\n'


def needs_token(settings: Settings) -> bool:
    """Whether everybody must present one."""
    known = bool(tokens_of(settings)) or settings.bridge_oidc_issuer is not None
    return settings.bridge_auth != "none" and known


def identify_by(settings: Settings) -> Callable[[web.Request], Found]:
    """What says who sends a request. It raises TooManyRequests for who guesses tokens, and
    Unavailable while that cannot be found out. To be called inside a running loop."""
    if settings.bridge_auth == "none":
        return lambda request: OPERATOR
    if not needs_token(settings):
        return _same_user
    return _Bearers(tokens_of(settings), _issuer_of(settings)).identify


def _issuer_of(settings: Settings) -> Any:
    """The bridge.oidc.Issuer whose tokens are taken, if there is one."""
    if settings.bridge_oidc_issuer is None:
        return None
    oidc = registry.optional("oidc")
    trust = oidc.Trust(
        settings.bridge_oidc_issuer,
        settings.bridge_oidc_audience,
        settings.bridge_oidc_scopes,
        settings.bridge_oidc_jwks,
        settings.bridge_oidc_claim,
    )
    return oidc.Issuer(trust)


def _same_user(request: web.Request) -> Principal | None:
    """The operator, if the other end of the connection is a process of the same user."""
    connection = request.transport
    if connection is None or any(name in request.headers for name in FORWARDED):
        return None
    if connection not in _uids:  # the kernel is asked once for each
        names = ("sockname", "peername")
        try:
            _uids[connection] = uid_of_peer(*map(connection.get_extra_info, names))
        except OSError as error:
            text = "The server has no descriptor left to see who asks; try again in a moment."
            raise Unavailable(text) from error
    return OPERATOR if _uids[connection] == os.geteuid() else None


class _Bearers:
    def __init__(self, tokens: Tokens, issuer: Any) -> None:
        self._tokens = tokens
        self._issuer = issuer
        self._failures: dict[str, tuple[float, int]] = {}  # by address: since when, how many

    def identify(self, request: web.Request) -> Found:
        """A right token is never refused, whoever else guesses at the same address."""
        given = _given(request)
        if given is None:
            return None
        found: Found = self._tokens.find(given)
        if found is None and self._issuer:
            found = self._issuer.find(given)
        address = request.remote or ""
        if isinstance(found, Awaitable):
            return self._later(found, address)
        return self._checked(found, address)

    async def _later(self, finding: Awaitable[Principal | None], address: str) -> Principal | None:
        return self._checked(await finding, address)

    def _checked(self, found: Principal | None, address: str) -> Principal | None:
        if found is None:
            self._failed(address)
        return found

    def _failed(self, address: str) -> None:
        """Count a wrong token."""
        now = time.monotonic()
        began, count = self._failures.get(address, (now, 0))
        if now - began > WINDOW:
            began, count = now, 0
        if count >= FAILURES:
            text = "Too many wrong credentials came from this address; wait before you try again."
            raise TooManyRequests(text, max(1, int(began + WINDOW - now)))
        if len(self._failures) >= MOST_ADDRESSES:
            del self._failures[next(iter(self._failures))]
        self._failures[address] = (began, count + 1)


def _given(request: web.Request) -> str | None:
    """The token: of a bearer, as an API key, or as the password of a Basic login."""
    key = request.headers.get("X-API-Key")
    if key:
        return key.strip()
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    match scheme.lower():
        case "bearer":
            return given.strip()
        case "basic":
            try:
                return base64.b64decode(given, validate=True).decode().partition(":")[2]
            except (binascii.Error, UnicodeDecodeError):
                return ""
    return None
