"""Signatures of agent cards (1.0 §8.4): JWS with the canonical card as its detached payload.

What is signed is the card without `signatures`, in the form that every reader can arrive at: of the
members that 1.0 knows, the required ones are always there, the optional ones if they were set, and
the others unless they are empty; written as RFC 8785 says. Members that 1.0 does not know belong to
it as they are, so none can be added to a signed card; a card that has some is not signed at all,
because typed readers would miss them.

The official SDKs check another form: they leave out every empty value, required or not. A card
that has empty values is therefore signed in both forms. The second kind of signature says so in its
protected header (PAYLOAD) and is no proof here, since it would also fit a card from which, say, the
requirement of a bearer token (whose list of scopes is empty) had been taken away.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import functools
import json
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias
from urllib.parse import urlsplit

import aiohttp

from bridge.errors import BridgeError, ConfigurationError

try:
    import rfc8785
    from joserfc import jws
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OctKey
except ModuleNotFoundError as missing:
    raise ConfigurationError(
        f"Signed cards need {missing.name}: pip install 'coding-agent-bridge[signing]'"
    ) from None

PAYLOAD = "urn:coding-agent-bridge:payload"
"""Header parameter of signatures over another form of the card; its one value is NO_EMPTY."""
NO_EMPTY = "without-empty-values"

MAX_BYTES = 1024 * 1024  # of a card, and of a key file
MAX_DEPTH = 100  # of a card; the JSON reader of protobuf allows as much
MIN_SECRET = 32  # bytes of an HS256 key (RFC 7518 §3.2)
FETCH_WITHIN = 10.0  # seconds
WELL_KNOWN = "/.well-known/agent-card.json"
KID = re.compile(r"[!-~]{1,128}")  # ASCII that can be seen

Key: TypeAlias = ECKey | OctKey


class SignatureError(BridgeError):
    """No signature of a card can be relied on. `str(error)` says why, for each of them."""


# --- keys --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    """Keys by their ids. They do not appear in its repr."""

    by_kid: Mapping[str, Key] = field(repr=False)


def load_keys(path: Path) -> Keys:
    """The keys to sign with: a JWK Set of private P-256 keys and of secrets, in a file that nobody
    else may read. Raises ConfigurationError, which never holds what is in the file but key ids."""
    keys = _load(path, _read_key)
    if any(not key.is_private for key in keys.by_kid.values()):
        raise ConfigurationError(f"{path}: a public key cannot sign; its member d is missing.")
    return keys


def load_trusted_keys(path: Path) -> Keys:
    """The keys to verify with: a JWK Set, public or not. Keys that sign in ways that are not known
    here are passed over (RFC 7517 §5). A file with secrets must be readable by its owner alone."""
    return _load(path, lambda jwk: _read_key(jwk) if _is_known(jwk) else None)


def public_keys(keys: Keys) -> dict[str, Any]:
    """The JWK Set for those who verify: no private part and no secret is in it."""
    public = {kid: key for kid, key in keys.by_kid.items() if isinstance(key, ECKey)}
    return {"keys": [_jwk(key.as_dict(private=False), kid) for kid, key in public.items()]}


def new_key(kind: str, kid: str) -> dict[str, Any]:
    """A new private JWK, for "ES256" or "HS256"; it goes into the `keys` of a JWK Set."""
    if not KID.fullmatch(kid):
        raise ConfigurationError("A key id is 1 to 128 ASCII characters without spaces.")
    if kind == "ES256":
        return _jwk(ECKey.generate_key("P-256").as_dict(private=True), kid)
    if kind == "HS256":
        return _jwk(OctKey.generate_key(8 * MIN_SECRET).as_dict(private=True), kid)
    raise ConfigurationError(f"{kind} is no kind of key: ES256 or HS256.")


def _jwk(made: Mapping[str, Any], kid: str) -> dict[str, Any]:
    names = (name for name in ("kty", "crv", "x", "y", "d", "k") if name in made)
    alg = "ES256" if made["kty"] == "EC" else "HS256"
    return {**{name: made[name] for name in names}, "kid": kid, "alg": alg, "use": "sig"}


def _load(path: Path, read: Callable[[Mapping[str, Any]], Key | None]) -> Keys:
    """The keys that `read` makes of the members of the set in `path`, None being passed over."""
    keys: dict[str, Key] = {}
    for number, jwk in enumerate(_read_set(path), 1):
        try:
            key = read(jwk)
        except ConfigurationError as problem:
            raise ConfigurationError(f"{path}, key {number}: {problem}") from None
        if key is None:
            continue
        if jwk["kid"] in keys:
            raise ConfigurationError(f"{path}: two keys have the id {jwk['kid']}.")
        keys[jwk["kid"]] = key
    if not keys:
        raise ConfigurationError(f"{path} has no P-256 key and no secret.")
    return Keys(keys)


def _read_set(path: Path) -> list[dict[str, Any]]:
    data, mode = _read_file(path)
    try:
        whole = _json(data)
    except SignatureError:
        whole = None
    jwks = whole.get("keys") if isinstance(whole, dict) else None
    if not isinstance(jwks, list) or not all(isinstance(jwk, dict) for jwk in jwks) or not jwks:
        raise ConfigurationError(f'{path} is no JWK Set: {{"keys": [{{…}}, …]}} with at least one.')
    if mode & 0o077 and any("d" in jwk or "k" in jwk for jwk in jwks):
        raise ConfigurationError(f"{path} holds secrets and others may read it: chmod 600 {path}")
    return jwks


def _read_file(path: Path) -> tuple[bytes, int]:
    """What is in a file, and its mode; of the same file even if the name is given to another."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise ConfigurationError(f"{path} is larger than {MAX_BYTES} bytes.")
    return data, stat.S_IMODE(status.st_mode)


def _is_known(jwk: Mapping[str, Any]) -> bool:
    kind = (jwk.get("kty"), jwk.get("crv"))
    return kind in (("EC", "P-256"), ("oct", None)) and jwk.get("use", "sig") == "sig"


def _read_key(jwk: Mapping[str, Any]) -> Key:
    """Raises ConfigurationError; neither it nor what it was raised from holds parts of the key."""
    if not isinstance(jwk.get("kid"), str) or not KID.fullmatch(jwk["kid"]):
        raise ConfigurationError("it needs a kid of 1 to 128 ASCII characters without spaces.")
    if not _is_known(jwk):
        raise ConfigurationError("it must be kty EC with crv P-256, or kty oct, and its use sig.")
    elliptic = jwk["kty"] == "EC"
    alg = "ES256" if elliptic else "HS256"
    if jwk.get("alg", alg) != alg:
        raise ConfigurationError(f"its alg must be {alg}.")
    names = ("x", "y", *(("d",) if "d" in jwk else ())) if elliptic else ("k",)
    lengths = [_length(jwk.get(name)) for name in names]
    if elliptic and lengths != [32] * len(names):
        raise ConfigurationError("x, y and d must be 32 bytes each, in base64url without padding.")
    if not elliptic and lengths[0] < MIN_SECRET:
        raise ConfigurationError(
            f"k must be {MIN_SECRET} bytes or more, in base64url without padding."
        )
    parts = {name: jwk[name] for name in ("kty", *(("crv",) if elliptic else ()), *names)}
    try:
        return ECKey.import_key(parts) if elliptic else OctKey.import_key(parts)
    except (JoseError, ValueError):
        raise ConfigurationError("its numbers are no key of that curve.") from None


def _length(value: Any) -> int:
    try:
        return len(_from_base64url(value))
    except SignatureError:
        return 0


# --- the form that is signed -------------------------------------------------------------------


class Member(NamedTuple):
    """A member of an object of the card. `empty`: the default of its type, None if its presence
    alone says something. `shape`: of it, or of what is in it where it is a list or a map."""

    empty: Any
    required: bool = False
    shape: Mapping[str, Member] | None = None
    container: str = ""  # "list" or "map"


Shape: TypeAlias = Mapping[str, Member]


def _is(shape: Shape, required: bool = False) -> Member:
    return Member({} if required else None, required, shape)


def _list_of(shape: Shape, required: bool = False) -> Member:
    return Member([], required, shape, "list")


def _map_of(shape: Shape) -> Member:
    return Member({}, False, shape, "map")


TEXT, FLAG, LIST = Member(""), Member(False), Member([])
OPTIONAL = Member(None)
REQUIRED_TEXT, REQUIRED_LIST, REQUIRED_MAP = Member("", True), Member([], True), Member({}, True)

FLOW: Shape = {"refreshUrl": TEXT, "tokenUrl": REQUIRED_TEXT, "scopes": REQUIRED_MAP}
FLOWS: Shape = {
    "authorizationCode": _is({**FLOW, "authorizationUrl": REQUIRED_TEXT, "pkceRequired": FLAG}),
    "clientCredentials": _is(FLOW),
    "deviceCode": _is({**FLOW, "deviceAuthorizationUrl": REQUIRED_TEXT}),
    "implicit": _is({"authorizationUrl": TEXT, "refreshUrl": TEXT, "scopes": Member({})}),
    "password": _is({"tokenUrl": TEXT, "refreshUrl": TEXT, "scopes": Member({})}),
}
SCHEME: Shape = {
    "apiKeySecurityScheme": _is(
        {"description": TEXT, "location": REQUIRED_TEXT, "name": REQUIRED_TEXT}
    ),
    "httpAuthSecurityScheme": _is(
        {"description": TEXT, "scheme": REQUIRED_TEXT, "bearerFormat": TEXT}
    ),
    "oauth2SecurityScheme": _is(
        {"description": TEXT, "flows": _is(FLOWS, required=True), "oauth2MetadataUrl": TEXT}
    ),
    "openIdConnectSecurityScheme": _is({"description": TEXT, "openIdConnectUrl": REQUIRED_TEXT}),
    "mtlsSecurityScheme": _is({"description": TEXT}),
}
REQUIREMENT: Shape = {"schemes": _map_of({"list": LIST})}
EXTENSION: Shape = {"uri": TEXT, "description": TEXT, "required": FLAG, "params": OPTIONAL}
CAPABILITIES: Shape = {
    "streaming": OPTIONAL,
    "pushNotifications": OPTIONAL,
    "extendedAgentCard": OPTIONAL,
    "extensions": _list_of(EXTENSION),
}
INTERFACE: Shape = {
    "url": REQUIRED_TEXT,
    "protocolBinding": REQUIRED_TEXT,
    "protocolVersion": REQUIRED_TEXT,
    "tenant": TEXT,
}
SKILL: Shape = {
    "id": REQUIRED_TEXT,
    "name": REQUIRED_TEXT,
    "description": REQUIRED_TEXT,
    "tags": REQUIRED_LIST,
    "examples": LIST,
    "inputModes": LIST,
    "outputModes": LIST,
    "securityRequirements": _list_of(REQUIREMENT),
}
CARD: Shape = {
    "name": REQUIRED_TEXT,
    "description": REQUIRED_TEXT,
    "version": REQUIRED_TEXT,
    "supportedInterfaces": _list_of(INTERFACE, required=True),
    "provider": _is({"url": REQUIRED_TEXT, "organization": REQUIRED_TEXT}),
    "documentationUrl": OPTIONAL,
    "iconUrl": OPTIONAL,
    "capabilities": _is(CAPABILITIES, required=True),
    "securitySchemes": _map_of(SCHEME),
    "securityRequirements": _list_of(REQUIREMENT),
    "defaultInputModes": REQUIRED_LIST,
    "defaultOutputModes": REQUIRED_LIST,
    "skills": _list_of(SKILL, required=True),
}


def canonical_card(card: Mapping[str, Any]) -> bytes:
    """What §8.4 signs of a card. Raises SignatureError for one that has no canonical form."""
    return canonical_json(_to_sign(card)[0])


def canonical_json(value: Any) -> bytes:
    """RFC 8785. Raises SignatureError for what I-JSON cannot say: NaN, 2**53, half a surrogate."""
    try:
        return rfc8785.dumps(value)
    except ValueError as error:
        raise SignatureError(f"The card has no canonical form: {error}") from None


def _to_sign(card: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The card with its members as §8.4.1 wants them, and the names that 1.0 does not know."""
    _check_depth(card)
    unknown: list[str] = []
    rest = {name: value for name, value in card.items() if name != "signatures"}
    return _members(rest, CARD, unknown), unknown


def _members(value: Any, shape: Shape, unknown: list[str]) -> Any:
    if not isinstance(value, dict):
        return value  # the wrong type, as it is: no reader of 1.0 takes it
    strange = {name: inner for name, inner in value.items() if name not in shape}
    unknown += strange
    known = {name: _member(value.get(name), member, unknown) for name, member in shape.items()}
    return {**strange, **{name: inner for name, inner in known.items() if inner is not None}}


def _member(value: Any, member: Member, unknown: list[str]) -> Any:
    """A member as it is signed, or None where it is not. null is as good as absent (ProtoJSON)."""
    if value is None:
        if not member.required:
            return None
        value = member.empty
    if not member.required and type(value) is type(member.empty) and value == member.empty:
        return None
    if member.shape is None:
        return value
    if member.container == "list" and isinstance(value, list):
        return [_members(item, member.shape, unknown) for item in value]
    if member.container == "map" and isinstance(value, dict):
        return {name: _members(item, member.shape, unknown) for name, item in value.items()}
    return value if member.container else _members(value, member.shape, unknown)


def _without_empty(value: Any) -> Any:
    """What the official SDKs make of a card: "", [], {} and null are left out, from the inside
    out. None where nothing is left."""
    if isinstance(value, dict):
        pairs = ((name, _without_empty(inner)) for name, inner in value.items())
        return {name: inner for name, inner in pairs if inner is not None} or None
    if isinstance(value, list):
        return [inner for inner in map(_without_empty, value) if inner is not None] or None
    return None if value == "" else value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise SignatureError(f"The card is nested more than {MAX_DEPTH} deep.")


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


# --- signing -----------------------------------------------------------------------------------


def sign(card: dict[str, Any], keys: Keys) -> dict[str, Any]:
    """The card with a signature by each key, or two by each where the SDKs check another form, in
    the place of those it had. The same card and keys get the same signatures in this process, so
    that caches can compare cards. Raises ConfigurationError for all but a pure 1.0 card, and
    SignatureError for one that has no canonical form."""
    whole, unknown = _to_sign(card)
    if unknown:
        names = ", ".join(sorted(set(unknown)))
        raise ConfigurationError(
            f"Only a pure 1.0 card can be signed (BRIDGE_CARD=1.0); this one has {names}, too."
        )
    payload = canonical_json(whole)
    for_sdks = canonical_json(_without_empty(whole) or {})
    forms = [("", payload)] if payload == for_sdks else [("", payload), (NO_EMPTY, for_sdks)]
    signatures = [_sign(keys, kid, form, data) for form, data in forms for kid in keys.by_kid]
    return {**card, "signatures": [dict(signature) for signature in signatures]}


@functools.lru_cache(maxsize=256)
def _sign(keys: Keys, kid: str, form: str, payload: bytes) -> dict[str, str]:
    key = keys.by_kid[kid]
    if not key.is_private:
        raise ConfigurationError(f"The key {kid} is public and cannot sign.")
    header = {"alg": _alg(key), "typ": "JOSE", "kid": kid, **({PAYLOAD: form} if form else {})}
    token = jws.serialize_compact(header, payload, key, registry=_Registry(key))
    protected, _, signature = token.split(".")
    return {"protected": protected, "signature": signature}


def _alg(key: Key) -> str:
    """The one algorithm of a key. It follows from the key, never from what a signature says."""
    return "ES256" if isinstance(key, ECKey) else "HS256"


class _Registry(jws.JWSRegistry):
    """What the library is allowed to do with a key: the algorithm of that key and no other."""

    max_header_length = max_payload_length = 2 * MAX_BYTES

    def __init__(self, key: Key) -> None:
        super().__init__(algorithms=[_alg(key)])

    def check_header(self, header: Mapping[str, Any]) -> None:
        """`_claim` has done it. What is not known is no error (RFC 7515 §4), and neither is the
        `"jku": null` that the official SDK writes."""


# --- verifying ---------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """About one signature. `counts`: the card can be relied on for its sake."""

    kid: str
    alg: str
    counts: bool
    says: str


@dataclass(frozen=True, slots=True)
class _Claim:
    """A signature as it is found on a card, nothing about it being true yet."""

    kid: str = ""
    alg: str = ""
    form: str = ""
    protected: str = ""
    signature: str = ""
    problem: str = ""


def verify(card: Mapping[str, Any], keys: Keys) -> list[str]:
    """The ids of the keys that signed this card. Raises SignatureError where there is none."""
    verdicts = judge(card, keys)
    good = [verdict.kid for verdict in verdicts if verdict.counts]
    if not good:
        raise SignatureError("; ".join(f"{one.kid}: {one.says}" for one in verdicts))
    return good


def judge(card: Mapping[str, Any], keys: Keys) -> list[Verdict]:
    """One verdict for each signature. Raises SignatureError where there is nothing to judge."""
    found = card.get("signatures") if isinstance(card, dict) else None
    if not isinstance(found, list) or not found:
        raise SignatureError("The card has no signatures.")
    whole, _ = _to_sign(card)
    payloads = {
        "": canonical_json(whole),
        NO_EMPTY: canonical_json(_without_empty(whole) or {}),
    }
    claims = [_claim(entry) for entry in found]
    times = Counter((claim.kid, claim.form) for claim in claims)
    twice = {kid for (kid, _), number in times.items() if number > 1}
    return [_verdict(claim, claim.kid in twice, payloads, keys) for claim in claims]


def _verdict(claim: _Claim, twice: bool, payloads: Mapping[str, bytes], keys: Keys) -> Verdict:
    kid, alg = _shown(claim.kid), _shown(claim.alg)
    key = keys.by_kid.get(claim.kid)
    problem = claim.problem
    if not problem and twice:
        problem = "more than one signature has this key id"
    if not problem and key is None:
        problem = "no trusted key has this id"
    if problem or key is None:
        return Verdict(kid, alg, False, problem)
    if claim.alg != _alg(key):
        return Verdict(kid, alg, False, f"it says {alg}, but the key is for {_alg(key)}")
    if not _fits(claim, payloads[claim.form], key):
        return Verdict(
            kid, alg, False, "it does not fit: the card was changed, or another key signed it"
        )
    if claim.form == NO_EMPTY:
        return Verdict(kid, alg, False, "fits what the SDKs check, which leaves out empty values")
    return Verdict(kid, alg, True, "verified")


def _fits(claim: _Claim, payload: bytes, key: Key) -> bool:
    token = f"{claim.protected}.{_to_base64url(payload)}.{claim.signature}"
    try:
        jws.deserialize_compact(token, key, registry=_Registry(key))
    except (JoseError, ValueError):
        return False
    return True


def _claim(entry: Any) -> _Claim:
    entry = entry if isinstance(entry, dict) else {}
    protected, signature = entry.get("protected"), entry.get("signature")
    try:
        header = _json(_from_base64url(protected))
        _from_base64url(signature)
    except SignatureError as error:
        return _Claim(problem=str(error))
    if not isinstance(header, dict):
        return _Claim(problem="its protected header is no JSON object")
    kid, alg, form = header.get("kid"), header.get("alg"), header.get(PAYLOAD, "")
    if not isinstance(kid, str) or not isinstance(alg, str):
        return _Claim(problem="its protected header needs alg and kid")
    problem = ""
    if "crit" in header or "b64" in header:
        problem = "its protected header demands what is not known here (crit)"
    elif form not in ("", NO_EMPTY):
        problem, form = f"its protected header has an unknown {PAYLOAD}", ""
    return _Claim(kid, alg, form, protected, signature, problem)


# --- the command -------------------------------------------------------------------------------


def verify_command(argv: Sequence[str]) -> int:
    """`card verify`. Exit status: 0 if a signature counts, 1 if none does, 2 if it cannot tell."""
    parser = argparse.ArgumentParser(
        prog="coding-agent-bridge card verify",
        description="Say of each signature of an agent card whether it is good. Exit status: "
        "0 if one is, 1 if none is, 2 if the card or the keys cannot be had.",
    )
    parser.add_argument("card", metavar="URL_OR_FILE", help="a card, or the address of its server")
    parser.add_argument(
        "--keys", metavar="FILE", type=Path, required=True, help="JWK Set of the keys you trust"
    )
    options = parser.parse_args(argv)
    try:
        verdicts = judge(read_card(options.card), load_trusted_keys(options.keys))
    except ConfigurationError as error:
        print(f"coding-agent-bridge: {error}", file=sys.stderr)
        return 2
    except SignatureError as error:
        print(f"coding-agent-bridge: {error}", file=sys.stderr)
        return 1
    for verdict in verdicts:
        print(f"{verdict.kid} {verdict.alg}: {verdict.says}")
    return 0 if any(verdict.counts for verdict in verdicts) else 1


def read_card(place: str) -> dict[str, Any]:
    """The card at an address or in a file. Raises ConfigurationError."""
    if place.startswith(("http://", "https://")):
        data = asyncio.run(fetch(place))
    else:
        data, _ = _read_file(Path(place))
    try:
        card = _json(data)
    except SignatureError as error:
        raise ConfigurationError(f"{place} is no card: {error}") from None
    if not isinstance(card, dict):
        raise ConfigurationError(f"{place} is no card: it is no JSON object.")
    return card


async def fetch(address: str, within: float = FETCH_WITHIN) -> bytes:
    """What is at an address; without a path in it, the card of that server."""
    data = bytearray()
    try:
        if urlsplit(address).path in ("", "/") and not urlsplit(address).query:
            address = address.rstrip("/") + WELL_KNOWN
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=within)) as session,
            session.get(address, max_redirects=3) as response,
        ):
            if response.status != 200:
                raise ConfigurationError(f"{address} answers {response.status}.")
            async for chunk in response.content.iter_chunked(65536):
                data += chunk
                if len(data) > MAX_BYTES:
                    raise ConfigurationError(f"{address} is larger than {MAX_BYTES} bytes.")
    except TimeoutError:
        raise ConfigurationError(f"{address} did not answer within {within:g} s.") from None
    except (aiohttp.ClientError, ValueError) as error:
        raise ConfigurationError(f"cannot fetch {address}: {error}") from None
    return bytes(data)


# --- JSON and base64url, as strict as their RFCs -----------------------------------------------


def _json(data: bytes) -> Any:
    """I-JSON: no member twice, of which readers might see different ones, and no NaN."""
    try:
        return json.loads(data.decode(), object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise SignatureError("it is not JSON that everybody reads alike.") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError
    return members


def _no_constant(_name: str) -> NoReturn:
    raise ValueError


def _to_base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _from_base64url(text: Any) -> bytes:
    """Only what `_to_base64url` makes: no padding, no other characters, no stray last bits."""
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (TypeError, ValueError):
        data = b""
    if not data or _to_base64url(data) != text:
        raise SignatureError("it has something that is not base64url.")
    return data


def _shown(text: str) -> str:
    """Somebody else's word, fit for a terminal and a line."""
    return text if KID.fullmatch(text) else ascii(text[:128])
