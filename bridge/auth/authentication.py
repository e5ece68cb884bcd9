"""Who sends a request: the bearer of a token. The operator's count only where they do not come from
a process that the server itself has started."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import os
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from aiohttp import web

from bridge.auth.config import NAME, AuthConfig
from bridge.auth.principal import NOBODY, OPERATOR, Principal, Token, Tokens, digest
from bridge.auth.token_bucket import RateLimitedLogs, TokenBucket
from bridge.errors import ConfigurationError, Forbidden, TooManyRequests

log = logging.getLogger(__name__)
log.addFilter(RateLimitedLogs())

REFUSALS_AT_ONCE, REFUSALS_A_SECOND = 20, 1.0  # lines of the audit log
FAILURES = 20  # wrong tokens of one address within a WINDOW
WINDOW = 60.0  # seconds
MOST_ADDRESSES = 10_000

Found = Principal | Awaitable[Principal | None] | None
"""Somebody, nobody, or to be awaited."""
_STARTED_HERE = (
    "You are not the operator: this request comes from a process that this server started, or it "
    "cannot be seen which process it comes from. Programs such as agents need a token of their own "
    "([tokens.NAME] in CONFIG_FILE), and a server that asks for one (BRIDGE_AUTH=auto)."
)


class Origin(Protocol):
    """Says whether a connection comes from outside of the server's own processes."""

    def is_outside(self, connection: asyncio.BaseTransport | None) -> bool | Awaitable[bool]: ...


class TokenIssuer(Protocol):
    """Says which principal a token of an OpenID provider belongs to, as bridge/auth/oidc.py."""

    def find(self, token: str) -> Found: ...


def tokens_of(config: AuthConfig, operator: str | None = None) -> Tokens:
    """`operator`: the token of the file in the state folder."""
    own = [(digest(one), OPERATOR) for one in (operator, config.operator_token) if one]
    return Tokens([*own, *(_known(name, token) for name, token in config.tokens.items())])


def _known(name: str, token: Token) -> tuple[bytes, Principal]:
    if not re.fullmatch("sha256:[0-9a-f]{64}", token.hash):
        text = "is not of the form sha256:<64 hex digits>; `coding-agent-bridge token` makes one"
        raise ConfigurationError(f"[tokens.{name}] hash {text}.")
    _check_name(name)
    real = None if token.workspaces is None else tuple(map(os.path.realpath, token.workspaces))
    return bytes.fromhex(token.hash.removeprefix("sha256:")), Principal(
        name, frozenset(token.scopes), real
    )


def _check_name(name: str) -> None:
    """Raise ConfigurationError for a name that has a meaning of its own."""
    if name == OPERATOR.id:
        raise ConfigurationError(f"[tokens.{name}] is the name of the bearer of BRIDGE_TOKEN.")
    if name in NOBODY:
        text = "is what the audit log calls an answer of the server's own; choose another name."
        raise ConfigurationError(f"[tokens.{name}] {text}")


def new_token(name: str) -> str:
    """A token for `name`, and what stands in CONFIG_FILE for it. Raises ConfigurationError."""
    if not re.fullmatch(NAME, name):
        text = "up to 128 letters, digits, `.`, `_` and `-` are expected, a letter or digit first"
        raise ConfigurationError(f"{name!r} cannot be the name of a token: {text}.")
    _check_name(name)
    key = f'"{name}"' if "." in name else name  # TOML takes a dot for a table inside
    token = secrets.token_urlsafe(32)
    return f'{token}\n\n[tokens.{key}]\nhash = "sha256:{digest(token).hex()}"\n'


class Identity:
    """Says who sends a request. It raises TooManyRequests for who guesses tokens, Forbidden for the
    operator's from a process that the server started, and Unavailable while it cannot tell."""

    def __init__(self, config: AuthConfig, issuer: TokenIssuer | None = None) -> None:
        self._config = config
        self._tokens = tokens_of(config)
        self._issuer = issuer
        self._origin: Origin | None = None
        self._refusals = Refusals()
        self._failures: dict[str, tuple[float, int]] = {}  # by address: since when, how many

    def trust(self, operator: str | None, origin: Origin | None) -> None:
        """Take `operator` for a token of the operator, and ask `origin` about all of them, or about
        everybody where no token is needed."""
        self._tokens = tokens_of(self._config, operator)
        self._origin = origin

    def on_refused(self, call: Callable[..., None]) -> None:
        """Call `call(address, reason, **facts)` for refused requests, at a limited rate."""
        self._refusals.report = call

    def __call__(self, request: web.Request) -> Found:
        """A right token is never refused, whoever else guesses at the same address."""
        given, address = _given(request), request.remote or ""
        if not self._config.required:
            return self._if_outside(request, address)
        if given is None:
            self._refusals.note(address, "no credentials")
            return None
        found: Found = self._tokens.find(given)
        if found is OPERATOR:
            return self._if_outside(request, address)
        if found is None and self._issuer:
            found = self._issuer.find(given)
        if isinstance(found, Awaitable):
            return self._later(found, address)
        return self._checked(found, address)

    async def _later(self, finding: Awaitable[Principal | None], address: str) -> Principal | None:
        return self._checked(await finding, address)

    def _checked(self, found: Principal | None, address: str) -> Principal | None:
        if found is None:
            self._refusals.note(address, "unknown credentials")
            self._failed(address)
        return found

    def _if_outside(self, request: web.Request, address: str) -> Found:
        """The operator, unless the server has started who asks."""
        if self._origin is None:
            return OPERATOR
        outside = self._origin.is_outside(request.transport)
        if isinstance(outside, Awaitable):
            return self._operator_later(outside, address)
        return self._operator(outside, address)

    async def _operator_later(self, outside: Awaitable[bool], address: str) -> Principal:
        return self._operator(await outside, address)

    def _operator(self, outside: bool, address: str) -> Principal:
        if not outside:
            self._refusals.note(address, "as the operator, from a process of the server's own")
            raise Forbidden(_STARTED_HERE)
        return OPERATOR

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


class Refusals:
    """Writes down who was refused: in the log, and in the audit log, each time only a few."""

    def __init__(self) -> None:
        self.report: Callable[..., None] | None = None
        self._bucket = TokenBucket(REFUSALS_A_SECOND, REFUSALS_AT_ONCE)
        self._untold = 0

    def note(self, address: str, reason: str) -> None:
        log.info("not authenticated", extra={"address": address, "reason": reason})
        if not self._bucket.take():
            self._untold += 1
            return
        more, self._untold = ({"more": self._untold} if self._untold else {}), 0
        if self.report:
            self.report(address, reason, **more)


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
