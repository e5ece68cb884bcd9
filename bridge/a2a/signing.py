"""Signatures of agent cards (1.0 §8.4): JWS with the canonical card as its detached payload.

The payload is the card without `signatures`, in the form of bridge/a2a/canonical_card.py, as text
of RFC 8785. A card with members that 1.0 does not define is never signed, because typed readers
would drop them.

The official SDKs verify another form: they omit every empty value, required or not. A card with
empty values is therefore signed in both forms. The second kind of signature is marked in its
protected header (PAYLOAD). It proves nothing here, since it also fits a card without, for example,
the requirement of a bearer token, which has an empty list of scopes.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bridge.a2a.canonical_card import SignatureError, normalize, without_empty
from bridge.errors import ConfigurationError
from bridge.errors.extras import install_line

try:
    import rfc8785
    from joserfc import jws
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, KeySet
    from joserfc.util import urlsafe_b64decode
except ModuleNotFoundError as missing:
    raise ConfigurationError(
        f"Signed cards need {missing.name}: {install_line('signing')}"
    ) from None

PAYLOAD = "urn:coding-agent-bridge:payload"
"""Header parameter of signatures over another form of the card; its one value is NO_EMPTY."""
NO_EMPTY = "without-empty-values"
ALGORITHM = "ES256"
VERIFIED = "verified"

MAX_BYTES = 1024 * 1024  # of a card, and of a key file
KID = re.compile(r"[!-~]{1,128}")  # visible ASCII


# --- keys --------------------------------------------------------------------------------------


class CardKeys(KeySet):
    """P-256 keys with unique ids. Its repr shows no part of a key."""

    __hash__ = object.__hash__  # `_sign` caches by identity


def read_keys(jwks: Sequence[Mapping[str, Any]], *, signing: bool) -> CardKeys:
    """The P-256 keys of a JWK Set. For signing, all keys must be private; otherwise the function
    ignores keys of other kinds (RFC 7517 §5). Raises ConfigurationError without key material."""
    keys: dict[str, ECKey] = {}
    for number, jwk in enumerate(jwks, 1):
        if signing or _is_known(jwk):
            try:
                key = _read_key(jwk, signing)
            except ConfigurationError as problem:
                raise ConfigurationError(f"key {number}: {problem}") from None
            if jwk["kid"] in keys:
                raise ConfigurationError(f"two keys have the id {jwk['kid']}.")
            keys[jwk["kid"]] = key
    if not keys:
        raise ConfigurationError("the JWK Set has no P-256 key.")
    return CardKeys(list(keys.values()))


def new_key(kind: str, kid: str) -> dict[str, Any]:
    """A new private JWK, for the `keys` of a JWK Set. Raises ConfigurationError."""
    if not KID.fullmatch(kid):
        raise ConfigurationError("A key id has 1 to 128 ASCII characters without spaces.")
    if kind != ALGORITHM:
        raise ConfigurationError(f"Unknown kind of key {kind}. Use {ALGORITHM}.")
    about: Any = {"kid": kid, "alg": ALGORITHM, "use": "sig"}
    return dict(ECKey.generate_key("P-256", about).as_dict(private=True))


def _is_known(jwk: Mapping[str, Any]) -> bool:
    kind = (jwk.get("kty"), jwk.get("crv"), jwk.get("use", "sig"), jwk.get("alg", ALGORITHM))
    return kind == ("EC", "P-256", "sig", ALGORITHM)


def _read_key(jwk: Mapping[str, Any], signing: bool) -> ECKey:
    if not isinstance(jwk.get("kid"), str) or not KID.fullmatch(jwk["kid"]):
        raise ConfigurationError("its kid must have 1 to 128 ASCII characters without spaces.")
    if not _is_known(jwk):
        required = f"kty EC, crv P-256, use sig and alg {ALGORITHM}"
        raise ConfigurationError(f"its members must be {required}.")
    if signing and "d" not in jwk:
        raise ConfigurationError("a public key cannot sign; its member d is missing.")
    names = ("kty", "crv", "x", "y", "d", "kid", "alg", "use")
    try:
        return ECKey.import_key({name: jwk[name] for name in names if name in jwk})
    except (JoseError, ValueError):
        raise ConfigurationError("its x, y or d is not a valid number for the curve.") from None


# --- signing -----------------------------------------------------------------------------------


def canonical_json(value: Any) -> bytes:
    """RFC 8785. Raises SignatureError for values outside of I-JSON: NaN, 2**53, half a surrogate
    pair."""
    try:
        return rfc8785.dumps(value)
    except ValueError as error:
        raise SignatureError(f"The card has no canonical form: {error}") from None


def _payloads(card: Mapping[str, Any]) -> dict[str, bytes]:
    """Both forms of a normalized card, by the value of PAYLOAD."""
    return {"": canonical_json(card), NO_EMPTY: canonical_json(without_empty(card) or {})}


def sign(card: dict[str, Any], keys: CardKeys) -> dict[str, Any]:
    """The card with one signature per key, or two where the form of the SDKs differs; they replace
    earlier signatures. Equal calls give equal signatures within a process, so that caches can
    compare cards. Raises ConfigurationError for members that 1.0 does not define, and
    SignatureError for a card without a canonical form."""
    whole, unknown = normalize(card)
    if unknown:
        names = ", ".join(sorted(set(unknown)))
        raise ConfigurationError(
            f"Only a pure 1.0 card can be signed. Set BRIDGE_CARD=1.0 to remove {names}."
        )
    payloads = _payloads(whole)
    if payloads[NO_EMPTY] == payloads[""]:
        del payloads[NO_EMPTY]
    kids = [str(key.kid) for key in keys]
    signed = [_sign(keys, kid, form, data) for form, data in payloads.items() for kid in kids]
    return {**card, "signatures": [dict(signature) for signature in signed]}


@functools.lru_cache(maxsize=256)
def _sign(keys: CardKeys, kid: str, form: str, payload: bytes) -> dict[str, str]:
    key = keys.get_by_kid(kid)
    if not key.is_private:
        raise ConfigurationError(f"The key {kid} is public and cannot sign.")
    header = {"alg": ALGORITHM, "typ": "JOSE", "kid": kid, **({PAYLOAD: form} if form else {})}
    token = jws.serialize_compact(header, payload, key, registry=_REGISTRY)
    protected, _, signature = token.split(".")
    return {"protected": protected, "signature": signature}


class _Registry(jws.JWSRegistry):
    max_header_length = max_payload_length = 2 * MAX_BYTES

    def check_header(self, header: Mapping[str, Any]) -> None:
        """`_read_claim` checks it. It ignores unknown parameters (RFC 7515 §4) and the
        `"jku": null` of the official SDK."""


_REGISTRY = _Registry(algorithms=[ALGORITHM])


# --- verifying ---------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """The result for one signature: VERIFIED, or the reason why it does not count."""

    kid: str
    alg: str
    says: str

    @property
    def counts(self) -> bool:
        return self.says == VERIFIED


class _Claim(NamedTuple):
    """A signature of a card before its verification. `problem`: why it cannot be verified."""

    kid: str = ""
    alg: str = ""
    form: str = ""
    protected: str = ""
    signature: str = ""
    problem: str = ""


def judge(card: Mapping[str, Any], keys: CardKeys) -> list[Verdict]:
    """One verdict for each signature. Raises SignatureError for a card without signatures."""
    found = card.get("signatures") if isinstance(card, dict) else None
    if not isinstance(found, list) or not found:
        raise SignatureError("The card has no signatures.")
    payloads = _payloads(normalize(card)[0])
    claims = list(map(_read_claim, found))
    times = Counter((claim.kid, claim.form) for claim in claims)
    twice = {kid for (kid, _), number in times.items() if number > 1}
    verdicts = []
    for claim in claims:
        says = _judge(claim, twice=claim.kid in twice, payloads=payloads, keys=keys)
        verdicts.append(Verdict(_shown(claim.kid), _shown(claim.alg), says))
    return verdicts


def _judge(claim: _Claim, *, twice: bool, payloads: Mapping[str, bytes], keys: CardKeys) -> str:
    if claim.problem:
        return claim.problem
    if twice:
        return "more than one signature has this key id"
    if claim.kid not in {key.kid for key in keys}:
        return "no trusted key has this id"
    if claim.alg != ALGORITHM:
        return f"its alg is {_shown(claim.alg)}, but the key is for {ALGORITHM}"
    try:
        jws.deserialize_compact(
            f"{claim.protected}..{claim.signature}",
            keys.get_by_kid(claim.kid),
            registry=_REGISTRY,
            payload=payloads[claim.form],
        )
    except (JoseError, ValueError):
        return "it does not fit: the card was changed, or another key signed it"
    return "fits the form of the SDKs, which omits empty values" if claim.form else VERIFIED


def _read_claim(entry: Any) -> _Claim:
    entry = entry if isinstance(entry, dict) else {}
    protected, signature = entry.get("protected"), entry.get("signature")
    if not isinstance(protected, str) or not isinstance(signature, str):
        return _Claim(problem="it needs the texts protected and signature")
    try:
        header = parse_json(urlsafe_b64decode(protected.encode()))
    except (ValueError, SignatureError):
        return _Claim(problem="its protected header is not base64url of valid JSON")
    kid, alg = (header.get("kid"), header.get("alg")) if isinstance(header, dict) else (None, None)
    if not isinstance(kid, str) or not isinstance(alg, str):
        return _Claim(problem="its protected header needs alg and kid")
    form, problem = header.get(PAYLOAD, ""), ""
    if "crit" in header or "b64" in header:
        problem = "its protected header has unsupported critical parameters (crit)"
    elif form not in ("", NO_EMPTY):
        problem, form = f"its protected header has an unknown {PAYLOAD}", ""
    return _Claim(kid, alg, form, protected, signature, problem=problem)


def parse_json(data: bytes) -> Any:
    """I-JSON: unique member names, and no NaN. Raises SignatureError."""
    try:
        # int() refuses the names of the constants: NaN and Infinity.
        return json.loads(data.decode(), object_pairs_hook=_unique, parse_constant=int)
    except (ValueError, RecursionError):
        raise SignatureError("it is not valid JSON with unique member names.") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError
    return members


def _shown(text: str) -> str:
    """Foreign text in a form that is safe for a terminal and fits into one line."""
    return text if KID.fullmatch(text) else ascii(text[:128])
