"""Signed agent cards: the canonical form, keys, valid and invalid signatures, the command, and the
official SDK as the other side."""

from __future__ import annotations

import base64
import contextlib
import copy
import hashlib
import hmac
import ipaddress
import json
import os
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1
from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as generate
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from joserfc import jws
from joserfc.jwk import ECKey, OctKey, RSAKey

from bridge import __version__
from bridge.a2a.canonical_card import CARD, Member, SignatureError, normalize
from bridge.a2a.card import Card, Skill
from bridge.a2a.card_shapes import encode_card
from bridge.a2a.codecs import CODECS
from bridge.a2a.signing import (
    NO_EMPTY,
    PAYLOAD,
    CardKeys,
    canonical_json,
    judge,
    new_key,
    sign,
)
from bridge.cli.card import WELL_KNOWN, fetch, verify_command
from bridge.errors import ConfigurationError
from bridge.errors.extras import install_line
from bridge.server.extras import load_card_keys
from tests import CHECKOUT
from tests.support.cases import each

Signed = dict[str, Any]


def a_card(bearer: bool = True, description: str = "Grüße, 🧑‍💻 \u2028") -> Card:
    return Card(
        name="An agent",
        description=description,
        version=__version__,
        url="http://127.0.0.1:1/a2a/jsonrpc",
        rest_url="http://127.0.0.1:1/a2a/rest",
        skills=(Skill("code", "Coding", "Writes code.", ("code",), ("Mend it.",)),),
        input_modes=("text/plain",),
        output_modes=("text/plain", "application/json"),
        bearer=bearer,
    )


def unsigned(bearer: bool = True, description: str = "Grüße, 🧑‍💻 \u2028") -> Signed:
    return encode_card(a_card(bearer, description), "1.0")


def key_file(folder: Path, *jwks: Mapping[str, Any], mode: int = 0o600, name: str = "keys") -> Path:
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"keys": jwks}))
    path.chmod(mode)
    return path


@pytest.fixture
def jwks() -> list[dict[str, Any]]:
    return [new_key("ES256", "first"), new_key("ES256", "second")]


@pytest.fixture
def keys(tmp_path: Path, jwks: list[dict[str, Any]]) -> CardKeys:
    return load_keys(key_file(tmp_path, *jwks))


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def canonical_card(card: Signed) -> bytes:
    return canonical_json(normalize(card)[0])


def load_keys(path: Path) -> CardKeys:
    return load_card_keys(path, signing=True)


def load_trusted_keys(path: Path) -> CardKeys:
    return load_card_keys(path, signing=False)


def kids(keys: CardKeys) -> list[str | None]:
    return [key.kid for key in keys]


def verify(card: Any, keys: CardKeys) -> list[str]:
    """The ids of the keys that signed the card. Raises SignatureError without a valid signature."""
    verdicts = judge(card, keys)
    good = [verdict.kid for verdict in verdicts if verdict.counts]
    if not good:
        raise SignatureError("; ".join(f"{one.kid}: {one.says}" for one in verdicts))
    return good


def protected(signature: Mapping[str, str]) -> Any:
    text = signature["protected"]
    return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def forged(card: Signed, header: object, key: Mapping[str, Any] | bytes = b"") -> Signed:
    """The card with one signature over any header: by a private JWK, by HMAC with a secret, or
    invalid without a key."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    text = f"{base64url(raw)}.{base64url(canonical_card(card))}".encode()
    if isinstance(key, bytes):
        made = hmac.digest(key, text, hashlib.sha256) if key else b"\0"
    else:
        made = jws.JWSRegistry.algorithms["ES256"].sign(text, ECKey.import_key(dict(key)))
    signature = {"protected": base64url(raw), "signature": base64url(made)}
    return {**card, "signatures": [signature]}


def refused(card: Any, keys: CardKeys) -> str:
    with pytest.raises(SignatureError) as caught:
        verify(card, keys)
    return str(caught.value)


# --- canonical JSON: the vectors of RFC 8785 ---------------------------------------------------

NUMBERS = """
0000000000000000 0
8000000000000000 0
0000000000000001 5e-324
8000000000000001 -5e-324
7fefffffffffffff 1.7976931348623157e+308
ffefffffffffffff -1.7976931348623157e+308
4340000000000000 9007199254740992
c340000000000000 -9007199254740992
4430000000000000 295147905179352830000
44b52d02c7e14af5 9.999999999999997e+22
44b52d02c7e14af6 1e+23
44b52d02c7e14af7 1.0000000000000001e+23
444b1ae4d6e2ef4e 999999999999999700000
444b1ae4d6e2ef4f 999999999999999900000
444b1ae4d6e2ef50 1e+21
3eb0c6f7a0b5ed8c 9.999999999999997e-7
3eb0c6f7a0b5ed8d 0.000001
41b3de4355555553 333333333.3333332
41b3de4355555554 333333333.33333325
41b3de4355555555 333333333.3333333
41b3de4355555556 333333333.3333334
41b3de4355555557 333333333.33333343
becbf647612f3696 -0.0000033333333333333333
43143ff3c1cb0959 1424953923781206.2
""".split("\n")[1:-1]


@each("line", NUMBERS)
def test_numbers_are_written_as_in_appendix_b(line: str) -> None:
    bits, text = line.split()
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical_json(number).decode() == text


@each("value", [float("nan"), float("inf"), 2**53, "\ud800", {"\ud800": 1}])
def test_values_outside_of_i_json_have_no_canonical_form(value: object) -> None:
    with pytest.raises(SignatureError, match="no canonical form"):
        canonical_json(value)


def test_values_are_written_as_in_section_3_2_2() -> None:
    given = r"""{
      "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
      "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
      "literals": [null, true, false]
    }"""
    wanted = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        r'"string":"€$\u000f\nA' + "'" + r'B\"\\\\\"/"}'
    )
    assert canonical_json(json.loads(given)) == wanted.encode()


def test_members_are_sorted_by_utf_16_as_in_section_3_2_3() -> None:
    given = {
        "\u20ac": "Euro Sign",
        "\r": "Carriage Return",
        "\ufb33": "Hebrew Letter Dalet With Dagesh",
        "1": "One",
        "\U0001f600": "Emoji: Grinning Face",
        "\u0080": "Control",
        "\u00f6": "Latin Small Letter O With Diaeresis",
    }
    assert list(json.loads(canonical_json(given)).values()) == [
        "Carriage Return",
        "One",
        "Control",
        "Latin Small Letter O With Diaeresis",
        "Euro Sign",
        "Emoji: Grinning Face",
        "Hebrew Letter Dalet With Dagesh",
    ]


# --- which members are signed ------------------------------------------------------------------


def shown(card: Signed) -> Any:
    return json.loads(canonical_card(card))


def test_the_example_of_the_specification() -> None:
    given = {
        "name": "Example Agent",
        "description": "",
        "capabilities": {"streaming": False, "pushNotifications": False, "extensions": []},
        "skills": [],
    }
    seen = shown(given)
    assert {name: seen[name] for name in given} == {
        "name": "Example Agent",
        "description": "",
        "capabilities": {"streaming": False, "pushNotifications": False},
        "skills": [],
    }


def test_required_members_are_there_even_if_the_card_leaves_them_out() -> None:
    assert shown({}) == {
        "name": "",
        "description": "",
        "version": "",
        "supportedInterfaces": [],
        "capabilities": {},
        "defaultInputModes": [],
        "defaultOutputModes": [],
        "skills": [],
    }


def test_null_is_as_good_as_absent() -> None:
    assert canonical_card({"name": None, "documentationUrl": None}) == canonical_card({})


def test_optional_members_stay_if_they_were_set() -> None:
    seen = shown({"documentationUrl": "", "iconUrl": "", "provider": {}})
    assert (seen["documentationUrl"], seen["iconUrl"]) == ("", "")
    assert seen["provider"] == {"url": "", "organization": ""}


def test_empty_values_deep_in_a_card() -> None:
    extension = {"uri": "x", "description": "", "required": False, "params": {"a": [], "b": None}}
    scheme = {"httpAuthSecurityScheme": {"scheme": "Bearer", "bearerFormat": ""}}
    flows = {"oauth2SecurityScheme": {"flows": {"clientCredentials": {"scopes": {"a": ""}}}}}
    seen = shown(
        {
            "capabilities": {"extensions": [extension]},
            "securitySchemes": {"m": {"mtlsSecurityScheme": {}}, "b": scheme, "o": flows},
            "securityRequirements": [{"schemes": {"b": {"list": []}}}],
            "skills": [{"id": "a", "examples": [], "securityRequirements": []}],
        }
    )
    assert seen["capabilities"]["extensions"] == [{"uri": "x", "params": {"a": [], "b": None}}]
    assert seen["securitySchemes"] == {
        "m": {"mtlsSecurityScheme": {}},
        "b": {"httpAuthSecurityScheme": {"scheme": "Bearer"}},
        "o": {
            "oauth2SecurityScheme": {
                "flows": {"clientCredentials": {"scopes": {"a": ""}, "tokenUrl": ""}}
            }
        },
    }
    assert seen["securityRequirements"] == [{"schemes": {"b": {}}}]
    assert seen["skills"] == [{"id": "a", "name": "", "description": "", "tags": []}]


def test_a_value_of_another_type_does_not_count_as_empty() -> None:
    odd = {"capabilities": {"extensions": [{"required": 0, "description": False}]}, "skills": ""}
    seen = shown(odd)
    assert seen["capabilities"] == odd["capabilities"]
    assert seen["skills"] == ""


def test_a_card_may_be_deep_but_not_bottomless() -> None:
    def nested(levels: int) -> Signed:
        value: Any = 1
        for _ in range(levels):
            value = [value]
        return {"capabilities": {"extensions": [{"params": {"a": value}}]}}

    canonical_card(nested(90))
    for levels in (100, 100_000):
        with pytest.raises(SignatureError, match="nested"):
            canonical_card(nested(levels))


# --- round trips -------------------------------------------------------------------------------


@pytest.mark.parametrize("bearer", [True, False])
def test_a_key_verifies_its_signatures(tmp_path: Path, bearer: bool) -> None:
    keys = load_keys(key_file(tmp_path, new_key("ES256", "a")))
    card = unsigned(bearer)
    before = copy.deepcopy(card)
    signed = sign(card, keys)
    assert card == before
    assert {name: signed[name] for name in card} == card
    assert protected(signed["signatures"][0]) == {"alg": "ES256", "typ": "JOSE", "kid": "a"}
    assert set(signed["signatures"][0]) == {"protected", "signature"}
    assert verify(json.loads(json.dumps(signed)), keys) == ["a"]


def test_the_header_says_alg_typ_and_kid_in_this_order(keys: CardKeys) -> None:
    first = sign(unsigned(), keys)["signatures"][0]["protected"]
    assert first == base64url(b'{"alg":"ES256","typ":"JOSE","kid":"first"}')


def test_public_keys_verify_signatures_of_private_ones(tmp_path: Path, keys: CardKeys) -> None:
    path = key_file(tmp_path, *keys.as_dict()["keys"], mode=0o644, name="public")
    assert verify(sign(unsigned(), keys), load_trusted_keys(path)) == ["first", "second"]


def test_public_keys_have_nothing_private(keys: CardKeys, jwks: list[dict[str, Any]]) -> None:
    published = keys.as_dict()
    public = [{name: value for name, value in jwk.items() if name != "d"} for jwk in jwks]
    assert published == {"keys": public}
    assert all(jwk["use"] == "sig" for jwk in public)
    assert all(jwk["d"] not in json.dumps(published) for jwk in jwks)


def test_the_order_of_members_does_not_matter(keys: CardKeys) -> None:
    signed = sign(unsigned(), keys)
    assert verify(dict(reversed(signed.items())), keys) == ["first", "second"]


def test_a_card_verifies_as_a_typed_client_writes_it_again(keys: CardKeys) -> None:
    """Without the empty values that protobuf leaves out, and with empty ones spelled out."""
    signed = sign(unsigned(description=""), keys)
    del signed["description"]
    names = [name for one in signed["securityRequirements"] for name in one["schemes"]]
    signed["securityRequirements"] = [{"schemes": {name: {}}} for name in names]
    signed["provider"] = None
    signed["skills"][0]["securityRequirements"] = []
    signed["supportedInterfaces"][0]["tenant"] = ""
    assert verify(signed, keys) == ["first", "second"]


def test_a_card_verifies_once_unknown_members_are_removed_but_not_with_them(keys: CardKeys) -> None:
    signed = sign(unsigned(), keys)
    assert "it does not fit" in refused({**signed, "url": "https://evil.example"}, keys)
    signed["skills"][0]["more"] = None
    assert "it does not fit" in refused(signed, keys)
    del signed["skills"][0]["more"]
    assert verify(signed, keys) == ["first", "second"]


def test_only_the_pure_card_of_1_0_is_signed(keys: CardKeys) -> None:
    for versions in ("both", "0.3"):
        with pytest.raises(ConfigurationError, match=r"BRIDGE_CARD=1\.0.*\burl\b"):
            sign(encode_card(a_card(), versions), keys)
    assert encode_card(a_card(), "1.0") == CODECS[0].encode_card(a_card())


def test_signatures_that_a_card_had_are_replaced(keys: CardKeys) -> None:
    assert verify(sign(sign(unsigned(), keys), keys), keys) == ["first", "second"]


def test_the_same_card_gets_the_same_signatures(keys: CardKeys) -> None:
    assert sign(unsigned(), keys) == sign(unsigned(), keys)
    again = sign(unsigned(), keys)
    again["signatures"][0].clear()
    assert sign(unsigned(), keys)["signatures"][0] != {}


def test_large_cards_verify(keys: CardKeys) -> None:
    assert verify(sign(unsigned(description="x" * 900_000), keys), keys)


# --- the form of the official SDKs -------------------------------------------------------------


def test_a_card_without_empty_values_is_signed_once_by_each_key(keys: CardKeys) -> None:
    assert len(sign(unsigned(bearer=False), keys)["signatures"]) == 2


def test_a_card_with_empty_values_is_signed_in_the_form_of_the_sdks_too(keys: CardKeys) -> None:
    signed = sign(unsigned(bearer=True), keys)
    forms = [protected(signature).get(PAYLOAD) for signature in signed["signatures"]]
    assert forms == [None, None, NO_EMPTY, NO_EMPTY]
    assert [verdict.counts for verdict in judge(signed, keys)] == [True, True, False, False]


def test_the_signature_for_the_sdks_does_not_let_the_bearer_token_be_taken_away(
    keys: CardKeys,
) -> None:
    """The signature would be valid for the card without its requirement, but for the type in its
    header."""
    signed = sign(unsigned(bearer=True), keys)
    for_sdks = signed["signatures"][2:]
    stripped = {**signed, "signatures": for_sdks}
    del stripped["securityRequirements"]
    assert "omits empty values" in refused(stripped, keys)
    assert "omits empty values" in refused({**signed, "signatures": for_sdks}, keys)


# --- rotation ----------------------------------------------------------------------------------


def test_a_client_with_the_old_key_and_one_with_the_new_key_both_verify(tmp_path: Path) -> None:
    old, new = new_key("ES256", "old"), new_key("ES256", "new")
    signed = sign(unsigned(), load_keys(key_file(tmp_path, old, new)))
    for jwk in (old, new):
        public = load_keys(key_file(tmp_path, jwk)).as_dict()
        trusted = load_trusted_keys(key_file(tmp_path, *public["keys"], mode=0o644, name="public"))
        assert verify(signed, trusted) == [jwk["kid"]]


def test_a_key_that_is_not_trusted_does_not_count(tmp_path: Path, keys: CardKeys) -> None:
    others = load_keys(key_file(tmp_path, new_key("ES256", "other"), name="others"))
    assert refused(sign(unsigned(), keys), others).startswith(
        "first: no trusted key has this id; second: no trusted key has this id"
    )


def test_another_key_with_the_same_id_does_not_verify(tmp_path: Path, keys: CardKeys) -> None:
    imposter = load_keys(key_file(tmp_path, new_key("ES256", "first"), name="imposter"))
    assert "does not fit" in refused(sign(unsigned(), imposter), keys)


# --- tampering ---------------------------------------------------------------------------------


def leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each place of a card: its container, and its name or index."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for place, inner in list(pairs):
        yield value, place
        if isinstance(inner, dict | list):
            yield from leaves(inner)


def changes(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value, str(value), int(value)]
    if isinstance(value, str):
        return [value + " ", value.swapcase() if value.swapcase() != value else "x", 0]
    return [[*value, "x"] if isinstance(value, list) else {**value, "x": "y"}, "x"]


def test_a_card_does_not_verify_with_any_one_value_changed(keys: CardKeys) -> None:
    signed = sign(unsigned(), keys)
    content = {name: value for name, value in signed.items() if name != "signatures"}
    tried = 0
    for container, place in leaves(content):
        was = container[place]
        for changed in changes(was):
            container[place] = changed
            refused({**content, "signatures": signed["signatures"]}, keys)
            tried += 1
        container[place] = was
    assert tried > 60
    assert verify({**content, "signatures": signed["signatures"]}, keys)


def test_a_card_does_not_verify_with_any_one_member_taken_away(keys: CardKeys) -> None:
    signed = sign(unsigned(), keys)
    content = {name: value for name, value in signed.items() if name != "signatures"}
    for container, place in leaves(content):
        was = copy.copy(container)
        del container[place]
        left = {**content, "signatures": signed["signatures"]}
        if (place, was[place]) in (("list", []), ("required", False)):
            assert verify(left, keys)  # the same meaning: protobuf does not write these
        else:
            refused(left, keys)
        container.clear()
        container.update(was) if isinstance(container, dict) else container.extend(was)


@pytest.mark.parametrize("part", ["protected", "signature"])
def test_no_character_of_a_signature_can_be_changed(keys: CardKeys, part: str) -> None:
    signed = sign(unsigned(bearer=False), keys)
    signed["signatures"].pop()
    good = signed["signatures"][0][part]
    for place in range(len(good)):
        for other in "A_z":
            if other != good[place]:
                signed["signatures"][0][part] = good[:place] + other + good[place + 1 :]
                refused(signed, keys)
    odd: list[Any] = [good + "=", good + "\n", " " + good, good + "A", "", None, 7]
    for wrong_one in odd:
        signed["signatures"][0][part] = wrong_one
        refused(signed, keys)


def test_one_bad_signature_does_not_spoil_a_good_one(keys: CardKeys) -> None:
    signed = sign(unsigned(bearer=False), keys)
    signed["signatures"][0]["signature"] = "AAAA"
    signed["signatures"].insert(0, "nonsense")
    assert verify(signed, keys) == ["second"]


@pytest.mark.parametrize("card", [{}, {"signatures": []}, {"signatures": "x"}, [], None, "card"])
def test_a_card_without_signatures_is_not_verified(keys: CardKeys, card: Any) -> None:
    assert refused(card, keys) == "The card has no signatures."


# --- attacks on the header ---------------------------------------------------------------------


def pem(key: ECKey) -> list[bytes]:
    """A secret that a careless verifier might derive from the public key."""
    public = key.public_key
    formats = [
        (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        (Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        (Encoding.X962, PublicFormat.UncompressedPoint),
        (Encoding.X962, PublicFormat.CompressedPoint),
    ]
    made = [public.public_bytes(*one) for one in formats]
    return [*made, made[0].strip(), json.dumps(key.as_dict(private=False)).encode()]


def test_the_public_key_is_not_a_secret_for_hs256(
    tmp_path: Path, jwks: list[dict[str, Any]]
) -> None:
    private = ECKey.import_key(jwks[0])
    keys = load_keys(key_file(tmp_path, jwks[0]))
    for secret in pem(private):
        card = forged(unsigned(), {"alg": "HS256", "typ": "JOSE", "kid": "first"}, secret)
        assert refused(card, keys) == "first: its alg is HS256, but the key is for ES256"
        lying = forged(unsigned(), {"alg": "ES256", "typ": "JOSE", "kid": "first"}, secret)
        assert "does not fit" in refused(lying, keys)


@pytest.mark.parametrize(
    "alg", ["none", "None", "NONE", "", "HS256", "HS512", "RS256", "ES384", "ES256K"]
)
def test_no_other_algorithm_is_accepted(
    keys: CardKeys, jwks: list[dict[str, Any]], alg: str
) -> None:
    card = forged(unsigned(), {"alg": alg, "kid": "first"}, jwks[0])
    assert "but the key is for" in refused(card, keys)
    card["signatures"][0]["signature"] = ""
    refused(card, keys)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"crit": ["exp"], "exp": 1}, "crit"),
        ({"crit": ["b64"], "b64": True}, "crit"),
        ({"crit": []}, "crit"),
        ({"b64": False}, "crit"),
        ({PAYLOAD: "other"}, "unknown"),
        ({PAYLOAD: None}, "unknown"),
        ({PAYLOAD: ["x"]}, "unknown"),
        ({"kid": None}, "needs alg and kid"),
        ({"kid": ["first"]}, "needs alg and kid"),
        ({"alg": None}, "needs alg and kid"),
        ({"kid": "someone"}, "no trusted key"),
    ],
)
def test_a_header_that_demands_or_says_something_else_is_refused(
    keys: CardKeys, jwks: list[dict[str, Any]], header: dict[str, Any], reason: str
) -> None:
    good = {"alg": "ES256", "typ": "JOSE", "kid": "first"}
    assert verify(forged(unsigned(), good, jwks[0]), keys) == ["first"]
    assert reason in refused(forged(unsigned(), {**good, **header}, jwks[0]), keys)


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b"7", b"{", b"\xff", b'{"alg":"ES256","kid":"x","kid":"first"}', b"[" * 100_000],
)
def test_a_header_that_is_not_an_object_of_single_members_is_refused(
    keys: CardKeys, jwks: list[dict[str, Any]], raw: bytes
) -> None:
    refused(forged(unsigned(), raw, jwks[0]), keys)


def test_other_header_parameters_are_ignored(keys: CardKeys, jwks: list[dict[str, Any]]) -> None:
    """Also a key and an address of keys in the card: they are not trusted."""
    header = {"alg": "ES256", "kid": "first", "other": 1, "jwk": {}}
    for jku in ("https://e.example", None):
        given = forged(unsigned(), {**header, "jku": jku}, jwks[0])
        assert verify(given, keys) == ["first"]


def test_two_signatures_with_one_key_id_are_refused(keys: CardKeys) -> None:
    signed = sign(unsigned(bearer=False), keys)
    first, second = signed["signatures"]
    signed["signatures"] = [first, second, first]
    assert verify(signed, keys) == ["second"]
    signed["signatures"] = [first, {**first, "signature": "AAAA"}]
    assert "more than one signature has this key id" in refused(signed, keys)


def test_foreign_text_is_printed_in_one_line_without_control_characters(
    keys: CardKeys,
) -> None:
    header = {"alg": "\x1b[2J", "kid": "a\nb\x1b]0;x\x07" + "y" * 5000}
    text = refused(forged(unsigned(), header, b"x"), keys)
    assert text.isprintable() and len(text) < 400


# --- key files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o602, 0o777])
@pytest.mark.parametrize("load", [load_keys, load_trusted_keys])
def test_a_file_with_secrets_that_others_may_use_is_refused(
    tmp_path: Path, jwks: list[dict[str, Any]], load: Callable[[Path], CardKeys], mode: int
) -> None:
    for jwk in jwks:
        path = key_file(tmp_path, jwk, mode=mode)
        with pytest.raises(ConfigurationError, match=f"chmod 600 {path}"):
            load(path)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_that_only_its_owner_may_read_is_taken(
    tmp_path: Path, jwks: list[dict[str, Any]], mode: int
) -> None:
    assert kids(load_keys(key_file(tmp_path, *jwks, mode=mode))) == ["first", "second"]


def wrong(tmp_path: Path, *jwks: Mapping[str, Any]) -> str:
    """Why the keys are refused; in which nothing of them may appear."""
    path = key_file(tmp_path, *jwks)
    with pytest.raises(ConfigurationError) as caught:
        load_keys(path)
    text, chain = str(caught.value), caught.value
    assert chain.__suppress_context__ or chain.__context__ is None
    for jwk in jwks:
        for name in ("d", "k", "x", "y"):
            material = jwk.get(name)
            assert not isinstance(material, str) or len(material) < 8 or material not in text
    assert str(path) in text
    return text


def test_a_key_without_an_id_is_refused(tmp_path: Path) -> None:
    good = new_key("ES256", "a")
    for kid in (None, "", 7, "two words", "x" * 129, "é", "a\n"):
        assert "key 2: its kid must have" in wrong(
            tmp_path, good, {**new_key("ES256", "a"), "kid": kid}
        )
    assert "its kid must have" in wrong(tmp_path, {n: v for n, v in good.items() if n != "kid"})


def test_two_keys_with_one_id_are_refused(tmp_path: Path) -> None:
    same = new_key("ES256", "same"), new_key("ES256", "same")
    assert "two keys have the id same" in wrong(tmp_path, *same)
    with pytest.raises(ConfigurationError, match="two keys have the id same"):
        load_trusted_keys(key_file(tmp_path, *same))


def test_a_shared_secret_neither_signs_nor_verifies(tmp_path: Path, keys: CardKeys) -> None:
    """A public card needs a public key."""
    secret = {**OctKey.generate_key(256).as_dict(private=True), "kid": "secret", "alg": "HS256"}
    assert "kty EC, crv P-256" in wrong(tmp_path, new_key("ES256", "a"), secret)
    trusted = load_trusted_keys(key_file(tmp_path, secret, *keys.as_dict()["keys"]))
    assert kids(trusted) == ["first", "second"]


def test_a_public_key_cannot_sign(tmp_path: Path) -> None:
    public = {name: value for name, value in new_key("ES256", "a").items() if name != "d"}
    assert "a public key cannot sign" in wrong(tmp_path, public)
    with pytest.raises(ConfigurationError, match="public and cannot sign"):
        sign(unsigned(), load_trusted_keys(key_file(tmp_path, public)))


def test_broken_numbers_of_an_elliptic_key_are_refused(tmp_path: Path) -> None:
    good, other = new_key("ES256", "a"), new_key("ES256", "b")
    assert "not a valid number for the curve" in wrong(tmp_path, {**good, "d": other["d"]})
    assert "not a valid number for the curve" in wrong(tmp_path, {**good, "x": other["x"]})
    assert "not a valid number for the curve" in wrong(
        tmp_path, {**good, "d": base64url(b"\xff" * 32)}
    )
    for name in ("x", "y", "d"):
        for odd in (good[name][:-4], good[name] + "AAAA", "", None, 7):
            assert "not a valid number for the curve" in wrong(tmp_path, {**good, name: odd})


def test_other_kinds_of_keys_cannot_sign(tmp_path: Path) -> None:
    rsa = {**RSAKey.generate_key(2048).as_dict(private=True), "kid": "a"}
    larger = {**ECKey.generate_key("P-384").as_dict(private=True), "kid": "a"}
    for jwk in (rsa, larger, {"kid": "a"}, {"kid": "a", "kty": ["EC"]}):
        assert "kty EC, crv P-256" in wrong(tmp_path, jwk)
    assert "use sig" in wrong(tmp_path, {**new_key("ES256", "a"), "use": "enc"})
    assert "alg ES256" in wrong(tmp_path, {**new_key("ES256", "a"), "alg": "HS256"})


def test_other_kinds_of_keys_are_passed_over_when_verifying(tmp_path: Path, keys: CardKeys) -> None:
    rsa = {**RSAKey.generate_key(2048).as_dict(private=False), "kid": "rsa"}
    larger = {**ECKey.generate_key("P-384").as_dict(private=False), "kid": "larger"}
    published = keys.as_dict()["keys"]
    path = key_file(tmp_path, rsa, larger, *published, mode=0o644, name="public")
    assert kids(load_trusted_keys(path)) == ["first", "second"]
    with pytest.raises(ConfigurationError, match="no P-256 key"):
        load_trusted_keys(key_file(tmp_path, rsa, larger))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        "{}",
        '{"keys":{}}',
        '{"keys":[]}',
        '{"keys":[7]}',
        '{"keys":[],"keys":[{"kty":"oct"}]}',
        "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\n",
    ],
)
def test_a_value_that_is_not_a_set_of_keys_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError) as caught:
        load_keys(path)
    assert str(caught.value).startswith(f"{path} is not a JWK Set") and "MHc" not in str(
        caught.value
    )


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"Cannot read .*No such file"):
        load_keys(tmp_path / "absent.json")
    with pytest.raises(ConfigurationError, match=r"Cannot read .*Is a directory"):
        load_keys(tmp_path)
    large = tmp_path / "large"
    large.write_bytes(b" " * (1024 * 1024 + 1))
    with pytest.raises(ConfigurationError, match="larger"):
        load_keys(large)


def test_keys_do_not_show_themselves(keys: CardKeys, jwks: list[dict[str, Any]]) -> None:
    for text in (repr(keys), str(keys), f"{keys!r}"):
        assert jwks[0]["d"] not in text and jwks[1]["d"] not in text


def test_a_new_key_is_new_and_can_be_used(tmp_path: Path) -> None:
    one, two = new_key("ES256", "one"), new_key("ES256", "two")
    assert one["d"] != two["d"]
    assert (one["kid"], one["alg"], one["use"]) == ("one", "ES256", "sig")
    load_keys(key_file(tmp_path, one, two))
    for kind, kid in (("RS256", "a"), ("HS256", "a"), ("ES256", ""), ("ES256", "a b")):
        with pytest.raises(ConfigurationError):
            new_key(kind, kid)


def test_keys_made_by_another_library_are_taken(tmp_path: Path) -> None:
    numbers = generate(SECP256R1()).private_numbers()
    whole = {
        "d": numbers.private_value,
        "x": numbers.public_numbers.x,
        "y": numbers.public_numbers.y,
    }
    parts = {name: base64url(number.to_bytes(32, "big")) for name, number in whole.items()}
    keys = load_keys(key_file(tmp_path, {"kty": "EC", "crv": "P-256", "kid": "a", **parts}))
    assert verify(sign(unsigned(), keys), keys) == ["a"]


# --- without the libraries ---------------------------------------------------------------------


@each("library", ["joserfc", "rfc8785"])
def test_without_its_libraries_the_module_names_the_extra(library: str) -> None:
    program = f"""
import sys
sys.modules[{library!r}] = None
from bridge.errors import ConfigurationError
try:
    import bridge.a2a.signing
except ConfigurationError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    wanted = f"Signed cards need {library}: {install_line('signing')}\n"
    assert done.stdout == wanted


# --- the command -------------------------------------------------------------------------------


@pytest.fixture
def public_file(tmp_path: Path, keys: CardKeys) -> str:
    path = key_file(tmp_path, *keys.as_dict()["keys"], mode=0o644, name="public")
    return str(path)


def card_file(tmp_path: Path, card: Signed) -> str:
    path = tmp_path / "card.json"
    path.write_text(json.dumps(card))
    return str(path)


def test_the_command_says_which_signatures_of_a_file_are_good(
    tmp_path: Path, keys: CardKeys, capsys: pytest.CaptureFixture[str]
) -> None:
    path = card_file(tmp_path, sign(unsigned(), keys))
    trusted = key_file(tmp_path, keys.as_dict()["keys"][0], mode=0o644, name="trusted")
    assert verify_command([path, "--keys", str(trusted)]) == 0
    assert capsys.readouterr() == (
        "first ES256: verified\n"
        "second ES256: no trusted key has this id\n"
        "first ES256: fits the form of the SDKs, which omits empty values\n"
        "second ES256: no trusted key has this id\n",
        "",
    )


def test_the_command_ends_with_1_if_no_signature_is_good(
    tmp_path: Path, keys: CardKeys, public_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    signed = sign(unsigned(bearer=False), keys)
    changed = card_file(tmp_path, {**signed, "name": "Another"})
    assert verify_command([changed, "--keys", public_file]) == 1
    assert capsys.readouterr().out.startswith("first ES256: it does not fit")
    assert verify_command([card_file(tmp_path, unsigned()), "--keys", public_file]) == 1
    assert capsys.readouterr() == ("", "coding-agent-bridge: The card has no signatures.\n")


def test_the_command_ends_with_2_if_it_cannot_tell(
    tmp_path: Path, public_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    twice = tmp_path / "twice.json"
    twice.write_text('{"name":"a","name":"b","signatures":[{}]}')
    array = tmp_path / "array.json"
    array.write_text("[]")
    nan = tmp_path / "nan.json"
    nan.write_text('{"signatures":[NaN]}')
    for place in (str(tmp_path / "absent"), str(twice), str(array), str(nan), "http://[bad"):
        assert verify_command([place, "--keys", public_file]) == 2
        seen = capsys.readouterr()
        assert seen.out == "" and seen.err.startswith("coding-agent-bridge: ")
        assert seen.err.count("\n") == 1
    assert verify_command([str(twice), "--keys", str(tmp_path / "absent")]) == 2
    with pytest.raises(SystemExit) as ended:
        verify_command([str(twice)])
    assert ended.value.code == 2


@contextmanager
def web(
    answer: Callable[[BaseHTTPRequestHandler], None], tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """A server with a scripted response."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        if tls:
            server.socket = tls.wrap_socket(server.socket, True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def serving(body: bytes, status: int = 200) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(request: BaseHTTPRequestHandler) -> None:
        right = request.path in (WELL_KNOWN, "/card")
        request.send_response(status if right else 404)
        request.end_headers()
        try:
            request.wfile.write(body)
        except OSError:
            pass  # the client had enough

    return answer


def test_the_command_fetches_cards(
    keys: CardKeys, public_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with web(serving(json.dumps(sign(unsigned(), keys)).encode())) as address:
        for place in (address, address + "/", address + "/card"):
            assert verify_command([place, "--keys", public_file]) == 0
        capsys.readouterr()
        assert verify_command([address + "/elsewhere", "--keys", public_file]) == 2
        assert "answers 404" in capsys.readouterr().err
    assert verify_command([address, "--keys", public_file]) == 2
    assert "Cannot fetch" in capsys.readouterr().err


def test_the_command_refuses_large_files_and_other_json(
    public_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with web(serving(b"<html>")) as address:
        assert verify_command([address, "--keys", public_file]) == 2
        assert "has no card" in capsys.readouterr().err
    with web(serving(b" " * 3_000_000)) as address:
        assert verify_command([address, "--keys", public_file]) == 2
        assert "is larger than" in capsys.readouterr().err


async def test_a_server_that_drips_is_not_waited_for() -> None:
    """The limit is for the whole answer, not from one byte to the next."""
    over = threading.Event()

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        try:
            while not over.wait(0.05):
                request.wfile.write(b" ")
        except OSError:
            pass

    with web(answer) as address:
        began = time.monotonic()
        with pytest.raises(ConfigurationError, match=r"did not answer within 0\.3 s"):
            await fetch(address, within=0.3)
        assert time.monotonic() - began < 60
        over.set()


# --- keys at a URL -----------------------------------------------------------------------------


def certificate(subject: str, issuer: tuple[x509.Name, Any] | None = None) -> tuple[Any, Any]:
    """A certificate of 127.0.0.1 and its key; without an issuer, it is one of an authority."""
    key, now = generate(SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, subject)])
    signer_name, signer = issuer or (name, key)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(signer_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), False)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), True)
        .sign(signer, SHA256())
    )
    return made, key


def certificate_files(folder: Path) -> tuple[Path, Path]:
    """The certificate of an authority, and a certificate that it signed, with its key."""
    authority, key = certificate("An authority")
    signed, own = certificate("A server", (authority.subject, key))
    (folder / "ca.pem").write_bytes(authority.public_bytes(Encoding.PEM))
    secret = own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "server.pem").write_bytes(signed.public_bytes(Encoding.PEM) + secret)
    return folder / "ca.pem", folder / "server.pem"


def publishing(places: Mapping[str, bytes]) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(request: BaseHTTPRequestHandler) -> None:
        body = places.get(request.path)
        request.send_response(302 if request.path == "/moved" else 200 if body else 404)
        request.send_header("Location", "/keys")
        request.end_headers()
        with contextlib.suppress(OSError):  # the client has seen enough
            request.wfile.write(body or b"")

    return answer


VERIFIES = """
import contextlib, io, json, sys
from bridge.cli.card import verify_command
for argv in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = verify_command(argv)
    print(json.dumps([status, out.getvalue(), err.getvalue()]))
"""


def test_the_trusted_keys_may_be_at_a_url(tmp_path: Path, keys: CardKeys) -> None:
    """Takes seconds: one process trusts the authority, and one does not."""
    card = card_file(tmp_path, sign(unsigned(bearer=False), keys))
    other = {"keys": [new_key("ES256", "other")]}
    del other["keys"][0]["d"]
    places = {
        "/keys": json.dumps(keys.as_dict(private=False)).encode(),
        "/other": json.dumps(other).encode(),
        "/private": json.dumps({"keys": [new_key("ES256", "first")]}).encode(),
        "/page": b"<html>",
        "/large": b" " * 3_000_000,
    }
    authority, server = certificate_files(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server)
    with web(publishing(places), context) as address:

        def verdicts(trusted: Path | None, *urls: str) -> list[tuple[int, str]]:
            given = {"SSL_CERT_FILE": str(trusted)} if trusted else {}
            done = subprocess.run(
                [sys.executable, "-c", VERIFIES],
                input=json.dumps([[card, "--keys", url] for url in urls]),
                env={"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT), **given},
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            )
            found = [json.loads(line) for line in done.stdout.splitlines()]
            assert all(err.count("\n") <= 1 for _, _, err in found)
            return [
                (status, out or err.removeprefix("coding-agent-bridge: "))
                for status, out, err in found
            ]

        names = ("/keys", "/other", "/moved", "/absent", "/page", "/large", "/private")
        good, foreign, *wrong = verdicts(authority, *(address + name for name in names))
        assert good == (0, "first ES256: verified\nsecond ES256: verified\n")
        assert foreign == (
            1,
            "first ES256: no trusted key has this id\nsecond ES256: no trusted key has this id\n",
        )
        assert {status for status, _ in wrong} == {2}
        moved, absent, page, large, private = [text for _, text in wrong]
        assert moved == f"{address}/moved redirects, which is not followed.\n"
        assert absent == f"{address}/absent answers 404.\n"
        assert page.startswith(f"{address}/page is not a JWK Set with keys")
        assert large == f"{address}/large is larger than 1048576 bytes.\n"
        assert private.startswith(f"{address}/private has private keys and is accessible to other")

        plain = address.replace("https", "http")
        untrusted, insecure, unknown = verdicts(None, address, plain, "ftp://127.0.0.1/keys")
        assert untrusted[0] == insecure[0] == unknown[0] == 2
        assert untrusted[1].startswith(f"{address} has no valid certificate: ")
        assert insecure[1].startswith(f"{plain} is not an https URL")
        assert unknown[1].startswith("ftp://127.0.0.1/keys is not an https URL")


# --- the official SDK --------------------------------------------------------------------------

SDK = CHECKOUT / ".venvs/a2a-sdk-v1/bin/python"

SDK_VERIFIES = """
import json, sys
from a2a.types import AgentCard
from google.protobuf.json_format import ParseDict
try:
    from a2a.utils.signing import SignatureVerificationError, create_signature_verifier
    from jwt import PyJWK
except ImportError as missing:
    print(json.dumps({"lacks": str(missing)}))
    sys.exit()
given = json.load(sys.stdin)
keys = {jwk["kid"]: jwk for jwk in given["keys"]}
verify = create_signature_verifier(lambda kid, jku: PyJWK(keys[kid]), given["algorithms"])
def good(card):
    try:
        verify(ParseDict(card, AgentCard(), ignore_unknown_fields=True))
    except SignatureVerificationError:
        return False
    return True
print(json.dumps([good(card) for card in given["cards"]]))
"""

SDK_SIGNS = """
import json, sys
from a2a.types import AgentCard
from google.protobuf.json_format import MessageToDict, ParseDict
try:
    from a2a.utils.signing import create_agent_card_signer
    from jwt import PyJWK
except ImportError as missing:
    print(json.dumps({"lacks": str(missing)}))
    sys.exit()
given = json.load(sys.stdin)
for jwk in given["keys"]:
    header = {"alg": jwk["alg"], "kid": jwk["kid"], "typ": "JOSE", "jku": None}
    signed = create_agent_card_signer(PyJWK(jwk), header)(ParseDict(given["card"], AgentCard()))
    given["card"] = MessageToDict(signed)
print(json.dumps(given["card"]))
"""

SDK_READS = """
import json, sys
from a2a.types import AgentCard
from google.protobuf.json_format import MessageToDict, ParseDict
card = ParseDict(json.load(sys.stdin), AgentCard(), ignore_unknown_fields=True)
print(json.dumps(MessageToDict(card)))
"""

SDK_SHAPES = """
import json
from a2a.types import AgentCard
from google.api import field_behavior_pb2 as behavior
def shape(message):
    return {field.json_name: member(field) for field in message.fields}
def member(field):
    required = behavior.REQUIRED in field.GetOptions().Extensions[behavior.field_behavior]
    inner = field.message_type
    is_map = bool(inner) and inner.GetOptions().map_entry
    if is_map:
        inner = inner.fields_by_name["value"].message_type
    known = inner and inner.full_name.startswith("lf.a2a.")
    if is_map:
        empty = {}
    elif field.is_repeated:
        empty = []
    elif inner:
        empty = {} if required else None
    else:
        empty = None if field.has_presence else field.default_value
    container = ("map" if is_map else "list" if field.is_repeated else "") if known else ""
    return [empty, required, shape(inner) if known else None, container]
card = shape(AgentCard.DESCRIPTOR)
del card["signatures"]
print(json.dumps(card))
"""


def sdk(program: str, given: object = None) -> Any:
    """The output of a program in the environment of the official SDK."""
    assert SDK.exists(), f"{SDK} is missing: run scripts/install"
    done = subprocess.run(
        [SDK, "-c", program],
        env={"PATH": os.environ["PATH"]},
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    if isinstance(said, dict) and "lacks" in said:
        pytest.skip(f"the SDK cannot sign: {said['lacks']}")
    return said


def as_json(shape: Mapping[str, Member]) -> Any:
    return {
        name: [one.empty, one.required, as_json(one.shape) if one.shape else None, one.container]
        for name, one in shape.items()
    }


@pytest.mark.real
def test_the_members_that_are_known_are_those_of_the_sdks_protobuf() -> None:
    assert as_json(CARD) == sdk(SDK_SHAPES)


@pytest.mark.real
@pytest.mark.parametrize("description", ["Grüße, 🧑‍💻 \u2028", ""])
@pytest.mark.parametrize("bearer", [True, False])
def test_a_card_verifies_after_the_sdk_has_read_and_written_it(
    keys: CardKeys, bearer: bool, description: str
) -> None:
    signed = sign(unsigned(bearer, description), keys)
    for card in (
        signed,
        {**signed, "url": "http://x", "skills": [{**signed["skills"][0], "y": 1}]},
    ):
        assert verify(sdk(SDK_READS, card), keys) == ["first", "second"]


@pytest.mark.real
@pytest.mark.parametrize("kid", ["first", "second"])
def test_the_sdk_verifies_our_signatures(
    keys: CardKeys, jwks: list[dict[str, Any]], kid: str
) -> None:
    """With a key it trusts, cards with and without empty values; and not if they are changed."""
    trusted = [jwk for jwk in keys.as_dict()["keys"] if jwk["kid"] == kid]
    good = [
        sign(unsigned(bearer, text), keys) for bearer in (True, False) for text in ("x", "é", "")
    ]
    for card in good:
        card["signatures"] = [one for one in card["signatures"] if protected(one)["kid"] == kid]
    bad = [{**card, "name": "Another"} for card in good]
    given = {"cards": [*good, *bad], "keys": trusted, "algorithms": [trusted[0]["alg"]]}
    assert sdk(SDK_VERIFIES, given) == [True] * len(good) + [False] * len(bad)


@pytest.mark.real
def test_we_verify_signatures_of_the_sdk_without_empty_values(
    keys: CardKeys, jwks: list[dict[str, Any]]
) -> None:
    """The SDK signs cards of other servers without empty values, so its signature proves nothing
    about them."""
    signed = sdk(SDK_SIGNS, {"card": unsigned(bearer=False), "keys": jwks})
    assert verify(signed, keys) == ["first", "second"]
    partly = sdk(SDK_SIGNS, {"card": unsigned(bearer=True), "keys": jwks})
    assert "does not fit" in refused(partly, keys)
