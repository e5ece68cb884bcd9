"""Bearers of tokens that an OpenID provider has signed for this server (JWT, RFC 7519 and 9068).

Only the operator says whom to trust: the issuer, and where its keys are. Nothing in a token does:
it names a key by its id, and each key has algorithms of its own kind, all of them asymmetric.

Keys are fetched in the background. A request waits for them only if it brings a key id that is not
known, and not for long; there is one fetch at a time, and none soon after another.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import os
import re
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson

from bridge.auth.config import discovery, trusted_url
from bridge.auth.principal import Principal, Scope, digest
from bridge.errors import ConfigurationError, Unavailable

try:
    from joserfc import jws
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, RSAKey
    from joserfc.jwt import JWTClaimsRegistry
except ModuleNotFoundError as missing:
    raise ConfigurationError(
        f"BRIDGE_OIDC_ISSUER needs {missing.name}: pip install 'coding-agent-bridge[oidc]'"
    ) from None

log = logging.getLogger(__name__)

LEEWAY = 60  # seconds that clocks may differ
FETCH_WITHIN = 5.0  # seconds
WAIT = 2.0  # seconds that a request waits for a fetch
REFRESH = 600.0  # seconds after which keys are fetched anew, if tokens come
RETRY = 30.0  # seconds at least between two fetches
KEEP = 24 * 3600.0  # seconds that keys count for which cannot be fetched anew
MAX_BYTES = 256 * 1024  # of a document of the issuer
MAX_KEYS = 100
MAX_TOKEN = 16 * 1024  # characters
MAX_CLAIM = 255  # characters of a subject (OpenID Connect Core §2)
MAX_DIRECTORIES = 100  # of a token
MOST_TOKENS = 10_000  # that are remembered as verified
RSA_BITS = range(2048, 8193)
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
ALGORITHMS: Mapping[tuple[Any, Any], tuple[str, ...]] = {
    ("RSA", None): _RSA,
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
}
"""What a key may have signed with, by its type and curve. Secrets are no keys here."""
TYPES = frozenset({"", "jwt", "application/jwt", "at+jwt", "application/at+jwt"})
"""Of the header `typ`: other tokens of the issuer, of a logout for example, give nobody access."""
_EVERY = frozenset(name for names in ALGORITHMS.values() for name in names)
_JWT = re.compile(r"[A-Za-z0-9_-]{2,}\.[A-Za-z0-9_-]{2,}\.[A-Za-z0-9_-]{2,}")
_PREFIX = "bridge:"  # that a scope may have, so as not to be taken for another service's


@dataclass(frozen=True, slots=True)
class OidcConfig:
    """What the operator trusts. `jwks`: where the keys are, a URL or a file; None: where the issuer
    says so. `claim`: what a bearer is known by. `scopes`: those that a token can give.
    `workspaces`: the claim with the directories that a bearer may work in; None for no limit."""

    issuer: str
    audiences: tuple[str, ...]
    scopes: tuple[Scope, ...]
    jwks: str | None = None
    claim: str = "sub"
    workspaces: str | None = None


class Issuer:
    """Says who bears a token. To be made inside a running loop: the first fetch begins at once, so
    that the log says early what is wrong."""

    def __init__(self, trust: OidcConfig) -> None:
        self._trust = trust
        self._keys = _Keys(trust)
        self._claims = JWTClaimsRegistry(
            leeway=LEEWAY,
            iss={"essential": True, "value": trust.issuer},
            aud={"essential": True, "values": list(trust.audiences)},
            exp={"essential": True},
        )
        self._verified: dict[bytes, tuple[Principal, float]] = {}  # until when, by digest
        self._of = self._keys.fetched  # the fetch that those were verified with
        self._keys.fetch()

    def find(self, token: str) -> Principal | Awaitable[Principal | None] | None:
        """Who bears it; None for a token that is not good. To be awaited where its key has to be
        fetched. Raises Unavailable if there are no keys, so that nothing can be said of it."""
        if len(token) > MAX_TOKEN or not _JWT.fullmatch(token):
            return None
        self._keys.refresh()
        if self._of != self._keys.fetched:  # a key may have been withdrawn
            self._verified.clear()
            self._of = self._keys.fetched
        name = digest(token)
        principal, until = self._verified.get(name, (None, 0.0))
        if principal and time.time() < until:
            return principal
        header = _header(token)
        if header is None:
            return None
        if not self._keys.find(header) and (fetching := self._keys.fetch()):
            return self._later(fetching, token, header)
        return self._verify(token, header)

    async def _later(
        self, fetching: asyncio.Task[None], token: str, header: Mapping[str, Any]
    ) -> Principal | None:
        await asyncio.wait({fetching}, timeout=WAIT)
        return self._verify(token, header)

    def _verify(self, token: str, header: Mapping[str, Any]) -> Principal | None:
        if not self._keys:
            raise Unavailable("Tokens cannot be verified now: their issuer's keys are missing.")
        key = self._keys.find(header)
        if key is None:
            return None
        try:
            claims = orjson.loads(
                jws.deserialize_compact(token, key, registry=_ONLY[header["alg"]]).payload
            )
            principal = self._principal(claims)
        except (JoseError, ValueError, TypeError) as error:
            log.debug("token refused", extra={"reason": type(error).__name__})
            return None
        if len(self._verified) >= MOST_TOKENS:
            del self._verified[next(iter(self._verified))]
        self._verified[digest(token)] = (principal, claims["exp"] + LEEWAY)
        return principal

    def _principal(self, claims: Any) -> Principal:
        """Raises JoseError or ValueError if the claims are not good."""
        if not isinstance(claims, dict):
            raise ValueError("no claims")
        self._claims.validate(claims)
        if "cnf" in claims:
            raise ValueError("it is bound to a key that its bearer would have to prove")
        if self._trust.claim == "email" and claims.get("email_verified") is not True:
            raise ValueError("anybody may have claimed this address")
        name = claims.get(self._trust.claim)
        if not isinstance(name, str) or not 0 < len(name) <= MAX_CLAIM:
            raise ValueError("nobody is named")
        given = _given(claims)
        scopes = frozenset(one for one in self._trust.scopes if given & {one, _PREFIX + one})
        limit = self._trust.workspaces
        workspaces = None if limit is None else _directories(claims.get(limit))
        return Principal(principal_id(self._trust.issuer, name), scopes, workspaces)


def principal_id(issuer: str, name: str) -> str:
    """What a principal is called here: like no token, and like nobody of another issuer."""
    return f"oidc:{hashlib.sha256(issuer.encode()).hexdigest()[:8]}:{quote(name, safe='@')}"


def _given(claims: Mapping[str, Any]) -> set[str]:
    """The scopes of a token: a text with spaces (RFC 8693), or a list as some providers send it."""
    found: set[str] = set()
    for name in ("scope", "scp"):
        value = claims.get(name)
        words = value.split(" ") if isinstance(value, str) else value
        if isinstance(words, list):
            found.update(word for word in words if isinstance(word, str))
    return found


def _directories(value: Any) -> tuple[str, ...]:
    """The real paths of a claim: one, or a list. Raises ValueError where there is none."""
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not 0 < len(found) <= MAX_DIRECTORIES:
        raise ValueError("it names no directories")
    for one in found:
        if not isinstance(one, str) or not one.startswith("/") or "\0" in one:
            raise ValueError("it names what is no absolute path")
    return tuple(map(os.path.realpath, found))


def _header(token: str) -> Mapping[str, Any] | None:
    """The header of a token that can be verified at all."""
    try:
        header = orjson.loads(_from_base64url(token.partition(".")[0]))
    except ValueError:
        return None
    if not isinstance(header, dict) or not {"crit", "b64"}.isdisjoint(header):
        return None
    alg, kid, typ = header.get("alg"), header.get("kid", ""), header.get("typ", "")
    texts = isinstance(alg, str) and isinstance(kid, str) and isinstance(typ, str)
    return header if texts and alg in _EVERY and typ.lower() in TYPES else None


def _only(algorithm: str) -> jws.JWSRegistry:
    # Unknown parameters of the header must be ignored (RFC 7515 §4).
    registry = jws.JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    registry.max_header_length = registry.max_payload_length = MAX_TOKEN
    registry.max_signature_length = 2 * max(RSA_BITS) // 8
    return registry


_ONLY = {name: _only(name) for name in _EVERY}


# --- keys --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Key:
    kid: str | None
    algorithms: tuple[str, ...]
    key: RSAKey | ECKey


class _Keys:
    """The keys of the issuer, as they were when they could last be fetched."""

    def __init__(self, trust: OidcConfig) -> None:
        self._trust = trust
        self._keys: Sequence[_Key] = ()
        self._begun = float("-inf")
        self._fetching: asyncio.Task[None] | None = None
        self.fetched = float("-inf")
        """When that was."""

    def __bool__(self) -> bool:
        return bool(self._keys) and time.monotonic() - self.fetched < KEEP

    def find(self, header: Mapping[str, Any]) -> RSAKey | ECKey | None:
        """The key that a header names, or the only one there is for a header that names none."""
        kid = header.get("kid")
        every = [key for key in self._keys if header["alg"] in key.algorithms] if self else []
        found = [key for key in every if key.kid == kid] if kid is not None else every
        return found[0].key if len(found) == 1 else None

    def refresh(self) -> None:
        """Begin a fetch if the keys are old."""
        if time.monotonic() - self.fetched > REFRESH:
            self.fetch()

    def fetch(self) -> asyncio.Task[None] | None:
        """The fetch that is under way; it begins now, unless the last one was just before."""
        if self._fetching and not self._fetching.done():
            return self._fetching
        now = time.monotonic()
        if now - self._begun < RETRY:
            return None
        self._begun = now
        self._fetching = asyncio.create_task(self._fetch())
        return self._fetching

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(FETCH_WITHIN):
                keys = _read_keys(await self._read())
        except (aiohttp.ClientError, OSError, ValueError) as error:
            facts = {"issuer": self._trust.issuer, "reason": str(error) or type(error).__name__}
            log.warning("no keys from the issuer of tokens", extra=facts)
            return
        self._keys, self.fetched = keys, time.monotonic()
        log.info("keys of the issuer of tokens", extra={"kids": [key.kid for key in keys]})

    async def _read(self) -> bytes:
        source = self._trust.jwks
        if source and "://" not in source:
            return await asyncio.to_thread(_read_file, source)
        timeout = aiohttp.ClientTimeout(total=FETCH_WITHIN)
        async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session:
            if source is None:
                source = self._jwks_of(await _get(session, discovery(self._trust.issuer)))
            return await _get(session, source)

    def _jwks_of(self, document: bytes) -> str:
        """Where the issuer says its keys are (OpenID Connect Discovery §4.3)."""
        found = orjson.loads(document)
        if not isinstance(found, dict) or found.get("issuer") != self._trust.issuer:
            raise ValueError("the discovery document is another issuer's")
        return trusted_url(str(found.get("jwks_uri")))


async def _get(session: aiohttp.ClientSession, url: str) -> bytes:
    """Redirects are not followed: they could lead where nobody is trusted."""
    data = bytearray()
    async with session.get(url, allow_redirects=False) as response:
        if response.status != 200:
            raise ValueError(f"{url} answers {response.status}")
        async for chunk in response.content.iter_any():
            data += chunk
            _check_size(len(data))
    return bytes(data)


def _read_file(path: str) -> bytes:
    with Path(path).expanduser().open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    _check_size(len(data))
    return data


def _check_size(size: int) -> None:
    if size > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")


def _read_keys(data: bytes) -> Sequence[_Key]:
    """The keys in a JWK Set that can verify. Others are passed over (RFC 7517 §5). Raises
    ValueError if there is none."""
    found = orjson.loads(data)
    listed = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(listed, list):
        raise ValueError("no JWK Set")
    keys = [key for jwk in listed[:MAX_KEYS] if (key := _read_key(jwk))]
    if not keys:
        raise ValueError("no key that can verify a token")
    return keys


def _read_key(jwk: Any) -> _Key | None:
    if not isinstance(jwk, dict) or jwk.get("use", "sig") != "sig":
        return None
    kind = (jwk.get("kty"), jwk.get("crv"))
    if not all(isinstance(one, str | None) for one in (*kind, jwk.get("kid"), jwk.get("alg"))):
        return None
    alg = jwk.get("alg")
    algorithms = tuple(one for one in ALGORITHMS.get(kind, ()) if alg in (None, one))
    if not algorithms or "verify" not in jwk.get("key_ops", ["verify"]):
        return None
    # Of a key by mistake published whole, the public part alone is taken.
    public = {name: jwk[name] for name in ("kty", "n", "e", "crv", "x", "y") if name in jwk}
    key: RSAKey | ECKey
    try:
        if kind[0] == "EC":
            key = ECKey.import_key(public)
        elif _bits(public["n"]) in RSA_BITS:
            key = RSAKey.import_key(public)
        else:
            return None
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    return _Key(jwk.get("kid"), algorithms, key)


def _bits(number: str) -> int:
    return int.from_bytes(_from_base64url(number)).bit_length()


def _from_base64url(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
