"""Tokens that an OpenID provider has signed for this server (JWT, RFC 7519 and 9068).

The operator configures the trusted issuer and the place of its keys; a token cannot change them. It
names a key by its id, and the key determines the algorithms, which are all asymmetric.

Keys are fetched in the background: one fetch at a time, and `retry` seconds or more between two. A
request waits for a fetch only if its key id is unknown, and for `wait` seconds at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
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
from bridge.errors.extras import install_line

try:
    from joserfc import jws, jwt
    from joserfc.errors import BadSignatureError, ClaimError, ExpiredTokenError, JoseError
    from joserfc.jwk import JWKRegistry, Key
    from joserfc.jwt import JWTClaimsRegistry
    from joserfc.util import base64_to_int
except ModuleNotFoundError as missing:
    raise ConfigurationError(
        f"BRIDGE_OIDC_ISSUER needs {missing.name}: {install_line('oidc')}"
    ) from None

log = logging.getLogger(__name__)

_INVALID = (JoseError, ValueError, TypeError, RecursionError)
"""The errors for invalid tokens."""
UNKNOWN = "unknown"
LEEWAY = 60  # seconds: tolerated clock difference
FETCH_WITHIN = 5.0  # seconds
MAX_BYTES = 256 * 1024  # of a document of the issuer
MAX_KEYS = 100
MAX_TOKEN = 16 * 1024  # characters
MAX_CLAIM = 255  # characters of a subject (OpenID Connect Core §2)
MAX_DIRECTORIES = 100  # of a token
MOST_TOKENS = 10_000  # verified tokens in the cache
RSA_BITS = range(2048, 8193)
ALGORITHMS = "RS256 RS384 RS512 PS256 PS384 PS512 ES256 ES384 ES512".split()
TYPES = frozenset({"", "jwt", "application/jwt", "at+jwt", "application/at+jwt"})
"""Accepted values of the header `typ`. Other tokens of the issuer, such as logout tokens, give no
access."""
_PUBLIC = ("kty", "crv", "n", "e", "x", "y", "kid", "alg", "use", "key_ops")
_PREFIX = "bridge:"  # optional prefix of a scope, against collisions with scopes of other services


@dataclass(frozen=True, slots=True)
class OidcConfig:
    """The trusted provider. `jwks`: URL or file of its keys; None: the URL of its discovery
    document. `claim`: the claim that identifies a principal. `scopes`: the scopes that a token can
    grant. `workspaces`: the claim with the allowed directories; None: unlimited.

    In seconds: `wait`: maximum time that a request waits for a fetch of the keys; `retry`: minimum
    time between two fetches; `refresh`: age of the keys at which the next token starts a fetch;
    `keep`: maximum age of keys that verify tokens."""

    issuer: str
    audiences: tuple[str, ...]
    scopes: tuple[Scope, ...]
    jwks: str | None = None
    claim: str = "sub"
    workspaces: str | None = None
    wait: float = 2.0
    retry: float = 30.0
    refresh: float = 600.0
    keep: float = 24 * 3600.0


class Issuer:
    """Maps tokens to principals, which have `proof` and ids that begin with `owners`. The
    constructor needs a running event loop: it starts the first fetch, so that the log reports
    problems early."""

    def __init__(self, config: OidcConfig) -> None:
        self._config = config
        self.proof = f"oidc:{hashlib.sha256(repr(config).encode()).hexdigest()}"
        self.owners = principal_id(config.issuer, "")
        self._claims = JWTClaimsRegistry(
            leeway=LEEWAY,
            iss={"essential": True, "value": config.issuer},
            aud={"essential": True, "values": list(config.audiences)},
            exp={"essential": True},
        )
        self._verified: dict[bytes, tuple[Principal, float]] = {}  # with expiry, by digest
        self._keys: Sequence[Key] = ()  # of the last successful fetch
        self._fetching: asyncio.Task[None] | None = None
        self._begun = self._fetched = float("-inf")  # monotonic times of fetches
        self._fetch_keys()

    def find(self, token: str) -> Principal | str | Awaitable[Principal | str]:
        """The principal of a token, the cause for an invalid token, or an awaitable of either if
        the keys must be fetched first. Causes: expired, signature, audience, and unknown for all
        others. Raises Unavailable without keys."""
        if len(token) > MAX_TOKEN:
            return UNKNOWN
        if time.monotonic() - self._fetched > self._config.refresh:
            self._fetch_keys()
        principal, expires = self._verified.get(digest(token), (None, 0.0))
        if principal and time.time() < expires:
            return principal
        try:
            signed = jws.extract_compact(token.encode(), registry=_REGISTRY)
            _REGISTRY.check_header(signed.headers())
        except _INVALID:
            return UNKNOWN
        if not self._pick(signed) and (fetching := self._fetch_keys()):
            return self._verify_after(fetching, token)
        return self._verify(token)

    async def _verify_after(self, fetching: asyncio.Task[None], token: str) -> Principal | str:
        await asyncio.wait({fetching}, timeout=self._config.wait)
        return self._verify(token)

    def _verify(self, token: str) -> Principal | str:
        if not self._usable:
            raise Unavailable("The keys of the OpenID issuer are not available. Retry later.")
        try:
            # Without a key, `_pick` returns None and the library raises ValueError.
            claims = jwt.decode(token, self._pick, registry=_REGISTRY).claims  # type: ignore[arg-type]
            principal = self._principal(claims)
        except _INVALID as error:
            log.debug("token refused", extra={"reason": type(error).__name__})
            return _cause_of(error)
        if len(self._verified) >= MOST_TOKENS:
            del self._verified[next(iter(self._verified))]
        self._verified[digest(token)] = (principal, claims["exp"] + LEEWAY)
        return principal

    def _principal(self, claims: dict[str, Any]) -> Principal:
        """Raises JoseError or ValueError for invalid claims."""
        self._claims.validate(claims)
        if "cnf" in claims:
            raise ValueError("the token is bound to a key, and the bridge cannot check the binding")
        if self._config.claim == "email" and claims.get("email_verified") is not True:
            raise ValueError("the provider did not verify the address")
        name = claims.get(self._config.claim)
        if not isinstance(name, str) or not 0 < len(name) <= MAX_CLAIM:
            raise ValueError(f"the claim {self._config.claim} is missing or invalid")
        given = _scopes(claims)
        scopes = frozenset(one for one in self._config.scopes if given & {one, _PREFIX + one})
        limit = self._config.workspaces
        workspaces = None if limit is None else _directories(claims.get(limit))
        owner = principal_id(self._config.issuer, name)
        return Principal(owner, scopes, workspaces, proof=self.proof)

    def close(self) -> None:
        """Stop the fetch that may run: no more tokens come."""
        if self._fetching:
            self._fetching.cancel()

    @property
    def _usable(self) -> Sequence[Key]:
        """The keys; none after KEEP seconds."""
        return self._keys if time.monotonic() - self._fetched < self._config.keep else ()

    def _pick(self, signed: jws.CompactSignature) -> Key | None:
        """The key with the id and algorithm of a token. A token without a key id needs an issuer
        with exactly one key for the algorithm."""
        header = signed.headers()
        named = (key for key in self._usable if header.get("kid") in (None, key.kid))
        found = [key for key in named if _REGISTRY.filter_algorithms(key, [header["alg"]])]
        return found[0] if len(found) == 1 else None

    def _fetch_keys(self) -> asyncio.Task[None] | None:
        """The running fetch, which this call may start; None if the last one began just now."""
        if self._fetching and not self._fetching.done():
            return self._fetching
        if time.monotonic() - self._begun < self._config.retry:
            return None
        self._begun = time.monotonic()
        self._fetching = asyncio.create_task(self._fetch())
        return self._fetching

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(FETCH_WITHIN):
                keys = _read_keys(await self._read())
        except (aiohttp.ClientError, OSError, ValueError) as error:
            facts = {"issuer": self._config.issuer, "reason": str(error) or type(error).__name__}
            log.warning("cannot fetch the keys of the OpenID issuer", extra=facts)
            return
        self._keys, self._fetched = keys, time.monotonic()
        self._verified.clear()  # the issuer may have revoked a key
        kids = sorted({str(key.kid) for key in keys})
        log.info("fetched the keys of the OpenID issuer", extra={"kids": kids})

    async def _read(self) -> dict[str, Any]:
        source = self._config.jwks
        if source and "://" not in source:
            return await asyncio.to_thread(_read_file, Path(source))
        timeout = aiohttp.ClientTimeout(total=FETCH_WITHIN)
        async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session:
            if source is None:
                document = await _get(session, discovery(self._config.issuer))
                if document.get("issuer") != self._config.issuer:  # OpenID Connect Discovery §4.3
                    raise ValueError("the discovery document belongs to another issuer")
                source = trusted_url(str(document.get("jwks_uri")))
            return await _get(session, source)


def principal_id(issuer: str, name: str) -> str:
    """A unique id: it differs from all token names and from all principals of other issuers."""
    return f"oidc:{hashlib.sha256(issuer.encode()).hexdigest()[:8]}:{quote(name, safe='@')}"


def _cause_of(error: Exception) -> str:
    """The cause of a refusal, for the log."""
    match error:
        case BadSignatureError():
            return "signature"
        case ExpiredTokenError():
            return "expired"
        case ClaimError(claim="aud"):
            return "audience"
    return UNKNOWN


def _scopes(claims: Mapping[str, Any]) -> set[str]:
    """The scopes of a token: a text with spaces (RFC 8693), or a list as some providers send it."""
    found: set[str] = set()
    for value in (claims.get("scope"), claims.get("scp")):
        words = value.split(" ") if isinstance(value, str) else value
        if isinstance(words, list):
            found.update(word for word in words if isinstance(word, str))
    return found


def _directories(value: Any) -> tuple[str, ...]:
    """The real paths of a claim: one path, or a list. Raises ValueError for other values."""
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not 0 < len(found) <= MAX_DIRECTORIES:
        raise ValueError("the claim has no directories")
    if not all(isinstance(one, str) and one.startswith("/") and "\0" not in one for one in found):
        raise ValueError("the claim has a value that is not an absolute path")
    return tuple(map(os.path.realpath, found))


# --- tokens and keys ---------------------------------------------------------------------------


class _Registry(jws.JWSRegistry):
    """It ignores unknown header parameters (RFC 7515 §4)."""

    max_header_length = max_payload_length = MAX_TOKEN
    max_signature_length = 2 * max(RSA_BITS) // 8

    def check_header(self, header: dict[str, Any]) -> None:
        super().check_header(header)
        self.get_alg(header["alg"])
        if header.get("typ", "").lower() not in TYPES or not {"crit", "b64"}.isdisjoint(header):
            raise ValueError("the token has another purpose or needs an extension")


_REGISTRY = _Registry(algorithms=ALGORITHMS, strict_check_header=False)


async def _get(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    """Does not follow redirects: their targets are not trusted."""
    data = bytearray()
    async with session.get(url, allow_redirects=False) as response:
        if response.status != 200:
            raise ValueError(f"{url} answers {response.status}")
        async for chunk in response.content.iter_any():
            data += chunk
            if len(data) > MAX_BYTES:
                break
    return _parse(data)


def _read_file(path: Path) -> dict[str, Any]:
    with path.expanduser().open("rb") as file:
        return _parse(file.read(MAX_BYTES + 1))


def _parse(data: bytes | bytearray) -> dict[str, Any]:
    """Raises ValueError for a document that is too large, or not a JSON object."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    document = orjson.loads(data)
    if not isinstance(document, dict):
        raise ValueError("the document is not a JSON object")
    return document


def _read_keys(document: Mapping[str, Any]) -> Sequence[Key]:
    """The keys of a JWK Set that can verify a token. Ignores other keys (RFC 7517 §5). Raises
    ValueError if none is left."""
    listed = document.get("keys")
    found = []
    for jwk in listed[:MAX_KEYS] if isinstance(listed, list) else ():
        # Not KeySet.import_key_set: it rejects the set for one bad key.
        with contextlib.suppress(JoseError, ValueError, TypeError, KeyError, AttributeError):
            found.append(_read_key(jwk))
    if not found:
        raise ValueError("the JWK Set has no key that can verify a token")
    return found


def _read_key(jwk: dict[str, Any]) -> Key:
    """The public part of a key. Raises an error for a key that cannot verify a token."""
    if jwk["kty"] == "RSA" and base64_to_int(jwk["n"]).bit_length() not in RSA_BITS:
        raise ValueError("the size of the RSA key is not supported")
    key = JWKRegistry.import_key({name: jwk[name] for name in _PUBLIC if name in jwk})
    key.check_key_op("verify")
    if not _REGISTRY.filter_algorithms(key, ALGORITHMS):
        raise ValueError("no algorithm accepts the key")
    return key
