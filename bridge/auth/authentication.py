"""Authentication of requests by bearer tokens, and on the Unix socket by the user of the client.
Neither the token of the operator nor a user is accepted from processes that the server has
started."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import math
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Protocol

from bridge.auth.advice import advice, is_loopback
from bridge.auth.config import AuthConfig
from bridge.auth.credentials import redis_users_of, tokens_of, users_of
from bridge.auth.principal import OPERATOR, Principal, Scope, Tokens, digest
from bridge.auth.revocations import Revocations
from bridge.auth.token_bucket import RateLimitedLogs, TokenBucket, TokenBuckets
from bridge.auth.unix_peer import is_unix, peer_uid
from bridge.errors import Forbidden, TooManyRequests, Unauthenticated, Unavailable

log = logging.getLogger(__name__)
log.addFilter(RateLimitedLogs())

REFUSALS_AT_ONCE, REFUSALS_A_SECOND = 20, 1.0  # lines of the audit log
FAILURES = 20  # wrong tokens of one address at once; the limit is free again after WINDOW
WINDOW = 60.0  # seconds
MOST_ADDRESSES = 10_000  # with a count of wrong tokens
MOST_REMOVED = 1000  # tokens of the past with an error of their own

Found = Principal | str
"""A principal, or the cause of a refusal."""
_STARTED_HERE = (
    "The operator token is not accepted from a process that this server started, or from a process "
    "that the server cannot identify. Agents and other programs need their own token "
    "([tokens.NAME] in CONFIG_FILE) and a server with BRIDGE_AUTH=auto."
)


_LISTENS: tuple[Scope, ...] = ("read", "admin")
"""Scopes without which an open stream of a principal that had them ends."""
_FORWARDED = frozenset({"forwarded", "via", "x-real-ip", "x-client-ip", "x-original-host"})
"""Headers of a proxy, besides X-Forwarded-*."""


class Origin(Protocol):
    """Tells whether a connection comes from a process that the server did not start.
    `is_proved_outside`: for a Unix socket, by a check that no agent can evade; `knows_users`: that
    check is available."""

    @property
    def knows_users(self) -> bool: ...

    async def is_outside(self, connection: asyncio.BaseTransport | None) -> bool: ...

    async def is_proved_outside(self, connection: asyncio.BaseTransport | None) -> bool: ...

    async def session(self, connection: asyncio.BaseTransport | None) -> str | None: ...


class Signed(Protocol):
    """A request with credentials: of aiohttp, or of another binding. The names of `headers` ignore
    case. `remote`: the address of the client. `transport` has the ends of its connection."""

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def remote(self) -> str | None: ...

    @property
    def transport(self) -> asyncio.BaseTransport | None: ...


class TokenIssuer(Protocol):
    """Maps tokens of an OpenID provider to principals: bridge/auth/oidc.py. The principals have
    this `proof`, and ids that begin with `owners`. Causes: unknown, expired, signature or
    audience."""

    proof: str
    owners: str

    def find(self, token: str) -> Found | Awaitable[Found]: ...

    def close(self) -> None: ...


class KeptToken(Protocol):
    """The operator's token in a file. `is_exposed`: others may know it; renew() then returns
    another one. It blocks, and raises OSError."""

    @property
    def value(self) -> str: ...

    @property
    def path(self) -> Path: ...

    @property
    def is_exposed(self) -> bool: ...

    def renew(self) -> str: ...


class Identity:
    """Maps requests to principals. Raises Unauthenticated with the cause, TooManyRequests after too
    many wrong tokens, Forbidden for the operator token of a process that the server started, and
    Unavailable if it cannot decide now.

    Rejected requests are in the log and, at a limited rate, calls of `report(address, scheme,
    cause, **facts)`: never with a part of the credentials. `failures` counts all of them by scheme
    (bearer, api_key, basic, oidc, same_user, unix_socket) and cause (missing, unknown, expired,
    revoked, signature, audience, throttled, other_uid, forwarded, agent_process). `used` gets the
    name of each principal with a token. `revocations` has the open streams and requests.
    """

    def __init__(self, config: AuthConfig, issuer: TokenIssuer | None = None) -> None:
        self._operator: str | None = None
        self._kept: KeptToken | None = None
        self._exposed: str | None = None
        self._issuer: TokenIssuer | None = None
        self._lost: frozenset[str] = frozenset()
        self._tokens = Tokens(())
        self._removed: dict[bytes, None] = {}  # the digests of tokens that were valid
        self.revocations = Revocations(self.is_valid)
        self.used: Callable[[str], None] | None = None
        self._apply(config, issuer, None)
        self._origin: Origin | None = None
        self._reports = TokenBucket(REFUSALS_A_SECOND, REFUSALS_AT_ONCE)
        self._suppressed = 0
        self.failures: Counter[tuple[str, str]] = Counter()
        self.report: Callable[..., None] | None = None
        self._failures: TokenBuckets[str] = TokenBuckets(MOST_ADDRESSES)

    def trust(self, operator: KeptToken | None, origin: Origin | None) -> None:
        """Accept the token `operator`. `origin` decides about every request of the operator, with a
        token or without one."""
        self._kept = operator
        self._apply(self._config, self._issuer, operator.value if operator else None)
        self._origin = origin

    def watch_origin(self, origin: Origin | None) -> None:
        """Let this decide about the requests of the operator, if something decides about them."""
        if self._origin is not None:
            self._origin = origin

    def change(
        self, config: AuthConfig, issuer: TokenIssuer | None, operator: str | None
    ) -> set[str]:
        """Use other credentials from the next request on, and end the streams and requests of
        those that are not valid any more. Returns the ids of the principals that were removed or
        have lost the scope `read`. Raises ConfigurationError, and changes nothing then."""
        before, old = self._listeners(), self._issuer
        self._apply(config, issuer, operator)
        if old and old is not issuer:
            old.close()
        lost = before - self._listeners()
        had = {one.id for one in (*self._tokens, *self._users.values())} & (self._lost | lost)
        self._lost = frozenset(had - self._listeners())
        self.revocations.check()
        return lost

    def _listeners(self) -> set[str]:
        known = (*self._tokens, *self._users.values())
        return {one.id for one in known if one.may("read") and not one.expired}

    def _apply(self, config: AuthConfig, issuer: TokenIssuer | None, operator: str | None) -> None:
        if operator == self._exposed:
            operator = None
        tokens, users = tokens_of(config, operator), users_of(config)  # these may raise
        removed = {**self._removed, **dict.fromkeys(self._tokens.digests - tokens.digests)}
        kept = [one for one in removed if one not in tokens.digests][-MOST_REMOVED:]
        self._removed = dict.fromkeys(kept)
        self._config, self._issuer, self._operator = config, issuer, operator
        self._tokens, self._users, self._redis = tokens, users, redis_users_of(config)

    def is_valid(self, principal: Principal) -> bool:
        """Whether the credential of an open request is valid still, with its scopes to listen."""
        kind, _, value = principal.proof.partition(":")
        if principal.expired:
            return False
        now: Principal | None = principal
        if kind == "token":
            now = self._tokens.of(bytes.fromhex(value))
        elif kind == "uid":
            now = self._users.get(int(value))
        elif kind == "redis":
            now = self._redis.get(value)
        elif kind == "oidc":
            return self._issuer is not None and self._issuer.proof == principal.proof
        if now is None or now.id != principal.id or now.expired:
            return False
        return all(now.may(one) for one in _LISTENS if principal.may(one))

    def admits(self, owner: str) -> bool:
        """Whether the owner of a task has a valid credential still, for push notifications."""
        if not self._config.required or owner == OPERATOR.id:
            return True
        if self._issuer and owner.startswith(self._issuer.owners):
            return True
        known = (*self._tokens, *self._users.values())
        return owner not in self._lost and any(one.id == owner and not one.expired for one in known)

    @property
    def issuer(self) -> TokenIssuer | None:
        return self._issuer

    @property
    def next_expiry(self) -> float | None:
        """When the next token expires, in seconds since 1970."""
        ends = [one.expires for one in self._tokens if one.expires and not one.expired]
        return min(ends, default=None)

    @property
    def knows_users(self) -> bool:
        """Whether users of the Unix socket need no token."""
        return self._origin is not None and self._origin.knows_users

    async def session(self, request: Signed) -> str | None:
        """The marker of the session whose process sends the request; empty for an unknown session,
        None for a process that the server did not start. Raises Unavailable."""
        return await self._origin.session(request.transport) if self._origin else None

    async def __call__(self, request: Signed) -> Principal:
        """The principal of a request. A valid token is accepted after any number of wrong tokens
        from the same address."""
        given, uid, address = _given(request), _uid(request), request.remote or ""
        if uid is not None:
            address = f"uid:{uid}"
        if not self._config.required and uid in (None, os.geteuid()):
            return await self._if_outside(request, address, "same_user")
        if given is None:
            user = await self._user(request, uid)
            if isinstance(user, Principal):
                return user
            self._reject(address, "bearer" if uid is None else "unix_socket", user)
            raise self._error(request, user)
        found = self._tokens.find(given) or await self._issued(given)
        scheme = _scheme(request)
        if isinstance(found, Principal):
            if found.id == OPERATOR.id:
                if not await self._replaced(given):
                    await self._if_outside(request, address, scheme)
                    return found
                found = "revoked"
            elif not found.expired:
                if self.used:
                    self.used(found.id)
                return found
            else:
                found = "expired"
        is_jwt = self._issuer is not None and given.count(".") == 2 and found != "revoked"
        self._refuse(address, "oidc" if is_jwt else scheme, found)
        raise self._error(request, found)

    async def _issued(self, token: str) -> Found:
        """The principal of a token of the provider, or the cause of a refusal."""
        found = self._issuer.find(token) if self._issuer else "unknown"
        found = await found if isinstance(found, Awaitable) else found
        return "revoked" if found == "unknown" and digest(token) in self._removed else found

    def _refuse(self, address: str, scheme: str, cause: str) -> None:
        """Report wrong credentials. Raises TooManyRequests if the address has sent too many."""
        bucket = self._failures.get(address, FAILURES / WINDOW, FAILURES)
        throttled = not bucket.take()
        self._reject(address, scheme, "throttled" if throttled else cause)
        if throttled:
            text = "Too many wrong credentials from this address. Retry later."
            raise TooManyRequests(text, math.ceil(bucket.wait()))

    async def known(self, request: Signed) -> Principal | None:
        """The principal of a request that needs none, or None. Wrong credentials count as for other
        requests; one without credentials does not count."""
        if self._config.required and _given(request) is None and _uid(request) is None:
            return None
        try:
            return await self(request)
        except (Forbidden, TooManyRequests, Unauthenticated, Unavailable):
            return None

    async def _user(self, request: Signed, uid: int | None) -> Principal | str:
        """The principal of a user on the Unix socket. Otherwise the cause: no credentials on TCP,
        an unknown user, a proxy, which has other clients, or a process that is not proved to be
        outside."""
        if uid is None or self._origin is None:
            return "missing"
        principal = self._users.get(uid)
        if principal is None:
            return "other_uid"
        if _is_forwarded(request):
            return "forwarded"
        proved = await self._origin.is_proved_outside(request.transport)
        return principal if proved else "agent_process"

    async def _if_outside(self, request: Signed, address: str, scheme: str) -> Principal:
        """The operator, unless the server has started the process of the client."""
        if self._origin and not await self._origin.is_outside(request.transport):
            self._reject(address, scheme, "agent_process")
            raise Forbidden(_STARTED_HERE)
        return OPERATOR

    async def _replaced(self, given: str) -> bool:
        """Whether the token `given` was that of the file, and others may know it. It is not valid
        from now on, and another one is in the file."""
        if given != self._operator or self._kept is None or not self._kept.is_exposed:
            return False
        self._exposed = given
        self._apply(self._config, self._issuer, None)
        self.revocations.check()
        try:
            renewed = await asyncio.to_thread(self._kept.renew)
        except OSError as error:
            log.error("no new operator token", extra={"reason": error.strerror})
        else:
            self._apply(self._config, self._issuer, renewed)
        return True

    def _error(self, request: Signed, cause: str) -> Unauthenticated:
        """The error for a cause. A client on this machine learns the file of the operator's
        token."""
        here = is_loopback(request.remote) and _uid(request) is None and not _is_forwarded(request)
        return Unauthenticated(advice(cause, self._kept.path if here and self._kept else None))

    def _reject(self, address: str, scheme: str, cause: str) -> None:
        self.failures[scheme, cause] += 1
        facts = {"event": "auth.failed", "peer": address, "scheme": scheme, "cause": cause}
        log.warning("not authenticated", extra=facts)
        if not self._reports.take():
            self._suppressed += 1
            return
        more, self._suppressed = ({"more": self._suppressed} if self._suppressed else {}), 0
        if self.report:
            self.report(address, scheme, cause, **more)


def _uid(request: Signed) -> int | None:
    """The user of a client on the Unix socket; -1 for a user without an id in this user namespace.
    None on TCP, and on other systems than Linux."""
    transport = request.transport
    if sys.platform != "linux" or transport is None or not is_unix(transport):
        return None
    found = peer_uid(transport.get_extra_info("socket"))
    return -1 if found is None else found


def _is_forwarded(request: Signed) -> bool:
    names = (name.lower() for name in request.headers)
    return any(name in _FORWARDED or name.startswith("x-forwarded-") for name in names)


def _scheme(request: Signed) -> str:
    """The scheme of the credentials that _given() returns."""
    if request.headers.get("X-API-Key"):
        return "api_key"
    scheme, _, _ = request.headers.get("Authorization", "").partition(" ")
    return "basic" if scheme.lower() == "basic" else "bearer"


def _given(request: Signed) -> str | None:
    """The token of a request: Bearer, X-API-Key, or the password of Basic."""
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
