"""Tokens of an OpenID provider. The provider here is real: it serves real keys over HTTP."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import settings as how
from hypothesis import strategies as st
from joserfc import jws
from joserfc.jwk import ECKey, RSAKey

from bridge.auth.authentication import FAILURES
from bridge.auth.oidc import LEEWAY, MAX_BYTES, Issuer, OidcConfig, principal_id
from bridge.auth.principal import Principal
from bridge.errors import ConfigurationError, Unavailable
from bridge.server.settings.load import load
from tests.support.bridge_process import bridge
from tests.support.client import Json, RpcError, artifact_text, task_id
from tests.support.counting import counted
from tests.support.principals import As as Caller
from tests.support.served import Server, serving

AUDIENCE = "bridge"
EVERYTHING = "run read cancel approve"
WITHIN = 60.0
Key = RSAKey | ECKey
KEYS: dict[str, Key] = {
    "rsa": RSAKey.generate_key(2048),
    "ec": ECKey.generate_key("P-256"),
    "ec-384": ECKey.generate_key("P-384"),
    "ec-521": ECKey.generate_key("P-521"),
    "next": ECKey.generate_key("P-256"),
    "stranger": RSAKey.generate_key(2048),
}
ALGORITHM = {"rsa": "RS256", "ec": "ES256", "ec-384": "ES384", "ec-521": "ES512", "next": "ES256"}


NOTHING: Mapping[str, Any] = {}


def jwk(name: str, **more: Any) -> Json:
    return {**KEYS[name].as_dict(private=False), "kid": name, "use": "sig", **more}


class Provider:
    """An OpenID provider with configurable responses; `asked` has the requested paths."""

    def __init__(self) -> None:
        self.url = ""
        self.keys: Any = {"keys": [jwk(name) for name in ("rsa", "ec", "ec-384", "ec-521")]}
        self.metadata: Json = {}
        self.answers: Callable[[web.Request], Any] | None = None
        self.asked: list[str] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        if self.answers:
            answer = await self.answers(request)
            assert isinstance(answer, web.StreamResponse)
            return answer
        if request.path == "/.well-known/openid-configuration":
            known = {"issuer": self.url, "jwks_uri": f"{self.url}/keys", **self.metadata}
            return web.json_response(known)
        return web.json_response(self.keys)

    def token(self, *, key: str = "rsa", header: Mapping[str, Any] = NOTHING, **claims: Any) -> str:
        """A valid token with these changes; None removes a claim."""
        now = int(time.time())
        every = {"iss": self.url, "aud": AUDIENCE, "sub": "ada", "iat": now, "exp": now + 300}
        claims = {**every, "scope": EVERYTHING, **claims}
        about = {"alg": ALGORITHM.get(key, "RS256"), "kid": key, "typ": "at+jwt", **header}
        return signed(KEYS[key], about, claims)


def signed(key: Key, header: Mapping[str, Any], claims: Any) -> str:
    """A token with any header and any claims."""
    about = {name: value for name, value in header.items() if value is not None}
    if isinstance(claims, dict):
        claims = {name: value for name, value in claims.items() if value is not None}
    start = crafted(about, claims).rpartition(".")[0]
    algorithm = jws.JWSRegistry.algorithms[about["alg"]]
    return f"{start}.{encoded(algorithm.sign(start.encode(), key))}"


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def crafted(header: Any, claims: Any, signature: bytes = b"x" * 256) -> str:
    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), signature)
    return ".".join(map(encoded, parts))


@pytest_asyncio.fixture
async def provider() -> AsyncIterator[Provider]:
    provider = Provider()
    app = web.Application()
    app.router.add_get("/{any:.*}", provider.handle)
    async with TestServer(app, host="127.0.0.1") as server:
        provider.url = str(server.make_url("")).rstrip("/")
        yield provider


def trusting(provider: Provider, **more: Any) -> dict[str, Any]:
    """Settings of a server that trusts it."""
    return {
        "bridge_oidc_issuer": provider.url,
        "bridge_oidc_audience": (AUDIENCE, "another"),
        **more,
    }


def quick(provider: Provider, **times: float) -> dict[str, Any]:
    """The same, and keys may be fetched again at once."""
    scopes: Any = tuple(EVERYTHING.split())
    issuer = OidcConfig(provider.url, (AUDIENCE, "another"), scopes, **{"retry": 0.0, **times})  # type: ignore[arg-type]
    return trusting(provider, issuer=issuer)


async def ask(server: Server, token: str, method: str = "ListTasks", **params: Any) -> int:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    headers = {"A2A-Version": "1.0", "Authorization": f"Bearer {token}"}
    async with server.http.post(f"{server.url}/a2a", json=body, headers=headers) as response:
        await response.read()
        if response.status == 401:
            assert response.headers["WWW-Authenticate"] == 'Bearer realm="coding-agent-bridge"'
        return response.status


class As(Caller):
    """A client with a token."""

    def __init__(self, server: Server, token: str) -> None:
        super().__init__(server, "anonymous")
        self.token = token

    async def post(self, body: Any, **more: str) -> Any:
        return await super().post(body, Authorization=f"Bearer {self.token}", **more)


# --- what is taken, and what is not ------------------------------------------------------------

GOOD: dict[str, Callable[[Provider], str]] = {
    "as it should be": lambda p: p.token(),
    "of a list of audiences": lambda p: p.token(aud=["x", "another"]),
    "signed by P-256": lambda p: p.token(key="ec"),
    "signed by P-384": lambda p: p.token(key="ec-384"),
    "signed by P-521": lambda p: p.token(key="ec-521"),
    "signed by RSA-PSS": lambda p: p.token(header={"alg": "PS384"}),
    "of no type": lambda p: p.token(header={"typ": None}),
    "of another type": lambda p: p.token(header={"typ": "JWT"}),
    "just expired": lambda p: p.token(exp=time.time() - LEEWAY / 2),
    "of a clock that is fast": lambda p: p.token(
        iat=time.time() + LEEWAY / 2, nbf=time.time() + LEEWAY / 2
    ),
    "with a header that nobody knows": lambda p: p.token(header={"nonce": "x", "ver": 2}),
    "with long claims": lambda p: p.token(groups=["g" * 30] * 100),
}


def bad_header(**header: Any) -> Callable[[Provider], str]:
    return lambda p: p.token(header=header)


def bad_claims(**claims: Any) -> Callable[[Provider], str]:
    return lambda p: p.token(**claims)


def in_seconds(**claims: float) -> Callable[[Provider], str]:
    def token(provider: Provider) -> str:
        times: Json = {name: time.time() + value for name, value in claims.items()}
        return provider.token(**times)

    return token


def with_secret(secret: bytes) -> Callable[[Provider], str]:
    """HS256, with the public key as the secret, which is public."""

    def token(provider: Provider) -> str:
        claims = json.loads(jws.extract_compact(provider.token().encode()).payload)
        start = crafted({"alg": "HS256", "kid": "rsa"}, claims).rpartition(".")[0]
        return f"{start}.{encoded(hmac.digest(secret, start.encode(), 'sha256'))}"

    return token


def of_another_key(**header: Any) -> Callable[[Provider], str]:
    """Signed by a key that the token itself offers."""
    own = KEYS["stranger"].as_dict(private=False)
    return lambda p: p.token(key="stranger", header={"kid": "rsa", "jwk": own, **header})


def without_signature(alg: str) -> Callable[[Provider], str]:
    def token(provider: Provider) -> str:
        _, claims, _ = provider.token().split(".")
        header = encoded(json.dumps({"alg": alg, "kid": "rsa"}).encode())
        return f"{header}.{claims}."

    return token


def changed(part: int, instead: Callable[[str], str]) -> Callable[[Provider], str]:
    def token(provider: Provider) -> str:
        parts = provider.token().split(".")
        parts[part] = instead(parts[part])
        return ".".join(parts)

    return token


PEM = KEYS["rsa"].as_pem(private=False)
DER = KEYS["rsa"].public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
BAD: dict[str, Callable[[Provider], str]] = {
    "expired": in_seconds(exp=-LEEWAY - 2),
    "without an end": bad_claims(exp=None),
    "with a nonsensical end": bad_claims(exp="tomorrow"),
    "with an end that is true": bad_claims(exp=True),
    "with an end that is no number": bad_claims(exp=float("nan")),
    "not yet good": in_seconds(nbf=LEEWAY + 60),
    "issued tomorrow": in_seconds(iat=86400),
    "for another audience": bad_claims(aud="somebody"),
    "for no audience": bad_claims(aud=None),
    "for an empty audience": bad_claims(aud=[]),
    "for an audience within another": bad_claims(aud=f"{AUDIENCE}-2"),
    "for an odd audience": bad_claims(aud={AUDIENCE: 1}),
    "of another issuer": bad_claims(iss="https://id.example"),
    "of an issuer that is longer": lambda p: p.token(iss=p.url + "/"),
    "of two issuers": lambda p: p.token(iss=[p.url, "x"]),
    "of no issuer": bad_claims(iss=None),
    "of nobody": bad_claims(sub=None),
    "of an empty name": bad_claims(sub=""),
    "of a number": bad_claims(sub=1),
    "of a long name": bad_claims(sub="x" * 256),
    "of half a character": bad_claims(sub="\ud800"),
    "bound to a key": bad_claims(cnf={"jkt": "x"}),
    "for a logout": bad_header(typ="logout+jwt"),
    "of an odd type": bad_header(typ=1),
    "with a critical header": bad_header(crit=["exp"], exp=1),
    "with an unencoded payload": bad_header(b64=True, crit=["b64"]),
    "with a key id that is a path": bad_header(kid="../../dev/null"),
    "with a key id of a database": bad_header(kid="rsa' OR '1'='1"),
    "with a key id that is a list": bad_header(kid=["rsa"]),
    "with an algorithm of another key": lambda p: p.token(key="ec", header={"kid": "rsa"}),
    "with a key of its own": of_another_key(),
    "with keys elsewhere": of_another_key(jku="http://127.0.0.1:1/keys"),
    "with a certificate elsewhere": of_another_key(x5u="http://127.0.0.1:1/x", x5c=["AAAA"]),
    "of the public key as a secret": with_secret(PEM),
    "of the public key as another secret": with_secret(PEM.strip()),
    "of the public key in binary": with_secret(DER),
    "unsigned": without_signature("none"),
    "unsigned in capitals": without_signature("NONE"),
    "unsigned by RSA": without_signature("RS256"),
    "with a signature of zeros": changed(2, lambda text: "A" * len(text)),
    "with another's claims": changed(1, lambda text: text[:-8] + "AAAAAAAA"),
    "with padding": changed(2, lambda text: text + "=="),
    "with a fourth part": changed(2, lambda text: f"{text}.{text}"),
    "with a header that is a list": lambda p: crafted([1], {}),
    "with a header that is deep": lambda p: (
        crafted({}, {})[:2] + base64.urlsafe_b64encode(b"[" * 3000).decode() + ".AAAA.AAAA"
    ),
    "huge": lambda p: p.token(x="x" * 5900),
    "with claims that are a list": lambda p: signed(
        KEYS["rsa"], {"alg": "RS256", "kid": "rsa"}, [1]
    ),
}


@pytest.mark.parametrize("name", GOOD)
async def test_a_good_token_is_taken(provider: Provider, tmp_path: Path, name: str) -> None:
    async with serving(tmp_path, **trusting(provider)) as server:
        assert await ask(server, GOOD[name](provider)) == 200


@pytest.mark.parametrize("name", BAD)
async def test_a_token_is_refused(provider: Provider, tmp_path: Path, name: str) -> None:
    async with serving(tmp_path, **trusting(provider)) as server:
        assert await ask(server, provider.token()) == 200
        assert await ask(server, BAD[name](provider)) in (401, 431 if name == "huge" else 401)
    assert set(provider.asked) == {"/.well-known/openid-configuration", "/keys"}
    assert len(provider.asked) <= 2  # what a bearer says makes nobody ask at once


async def test_a_token_counts_until_its_end_however_often_it_came(
    provider: Provider, tmp_path: Path
) -> None:
    async with serving(tmp_path, **trusting(provider)) as server:
        token = provider.token(exp=time.time() - LEEWAY + 1.0)
        assert await ask(server, token) == 200
        async with asyncio.timeout(WITHIN):
            while await ask(server, token) == 200:
                pass
        assert await ask(server, token) == 401


@pytest.mark.parametrize(
    ("claims", "cause"),
    [
        ({"exp": 1}, "expired"),
        ({"aud": "another"}, "audience"),
        ({"aud": None}, "audience"),
        ({"key": "stranger", "header": {"kid": "rsa"}}, "signature"),
        ({"key": "stranger"}, "unknown"),
        ({"iss": "https://other.example"}, "unknown"),
    ],
)
async def test_the_log_has_the_cause_of_a_refusal(
    provider: Provider, claims: dict[str, Any], cause: str
) -> None:
    issuer = Issuer(OidcConfig(provider.url, (AUDIENCE,), ("run",)))
    good = issuer.find(provider.token())
    assert isinstance(good, Awaitable) and isinstance(await good, Principal)
    found = issuer.find(provider.token(**claims))
    assert (await found if isinstance(found, Awaitable) else found) == cause


async def test_a_token_is_verified_once(provider: Provider) -> None:
    """Each further request with it costs a few calls, and no cryptography."""
    issuer = Issuer(OidcConfig(provider.url, (AUDIENCE,), ("run",)))
    token = provider.token()
    found = issuer.find(token)
    assert isinstance(found, Awaitable) and isinstance(await found, Principal)
    with counted() as calls:
        for _ in range(100):
            assert isinstance(issuer.find(token), Principal)
    assert sum(calls.by_code.values()) < 100 * 10
    assert len(provider.asked) == 2


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Any]]:
    """The result for a token of an issuer whose keys are in a file."""
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    file.write_text(json.dumps({"keys": [jwk("rsa"), jwk("ec")]}))
    provider = Provider()
    provider.url = "https://id.example"

    async def make() -> Issuer:
        issuer = Issuer(OidcConfig(provider.url, (AUDIENCE,), ("run",), str(file)))
        found = issuer.find(provider.token())
        assert isinstance(found, Awaitable) and isinstance(await found, Principal)
        return issuer

    async def find(text: str) -> Any:
        return issuer.find(text)

    loop = asyncio.new_event_loop()
    issuer = loop.run_until_complete(make())
    yield lambda text: loop.run_until_complete(find(text))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


HEADERS = st.dictionaries(
    st.sampled_from(["alg", "kid", "typ", "jku", "x5c", "jwk", "b64", "crit"]),
    st.one_of(
        st.sampled_from(["RS256", "ES256", "none", "rsa", "ec", "JWT", "x"]),
        st.integers(),
        st.none(),
        st.lists(st.text()),
    ),
)
PARTS = st.lists(st.binary(max_size=60), min_size=3, max_size=3)


@how(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.text(),
        PARTS.map(lambda parts: ".".join(map(encoded, parts))),
        HEADERS.map(lambda header: crafted({"alg": "RS256", "kid": "rsa", **header}, {"exp": 1})),
    )
)
def test_no_text_makes_it_stumble(warm: Callable[[str], Any], text: str) -> None:
    assert warm(text) in ("unknown", "expired", "signature", "audience")


# --- what it may do, and whose things it sees --------------------------------------------------


@pytest.mark.parametrize(
    ("claims", "reads", "runs"),
    [
        ({"scope": EVERYTHING}, True, True),
        ({"scope": "openid bridge:run bridge:read"}, True, True),
        ({"scope": None, "scp": ["read", "run"]}, True, True),
        ({"scope": "read"}, True, False),
        ({"scope": "run"}, False, True),
        ({"scope": None}, False, False),
        ({"scope": "openid reader", "scp": 7}, False, False),
        ({"scope": {"read": 1}, "scp": [["run"]]}, False, False),
    ],
)
async def test_scopes_are_those_of_the_token(
    provider: Provider, tmp_path: Path, claims: Json, reads: bool, runs: bool
) -> None:
    async with serving(tmp_path, **trusting(provider)) as server:
        token = provider.token(**claims)
        assert await forbidden(server, token, "ListTasks") is not reads
        message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "text hi"}]}
        assert await forbidden(server, token, "SendMessage", message=message) is not runs


async def forbidden(server: Server, token: str, method: str, **params: Any) -> bool:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    response = await As(server, token).post(body)
    answer = json.loads(await response.read())
    assert response.status in (200, 403)
    return "error" in answer and "the scope" in answer["error"]["message"]


@pytest.mark.parametrize("lets", [True, False])
async def test_the_scope_admin_needs_a_setting_of_the_operator(
    provider: Provider, tmp_path: Path, lets: bool
) -> None:
    scopes = {"bridge_oidc_scopes": ("run", "read", "admin")} if lets else {}
    async with serving(tmp_path, **trusting(provider, **scopes)) as server:
        task = await As(server, provider.token(sub="ada")).send("text hello")
        boss = As(server, provider.token(sub="boss", scope="read admin bridge:admin"))
        assert (await listed(boss) == [task_id(task)]) is lets


async def test_two_principals_do_not_see_each_others_tasks(
    provider: Provider, tmp_path: Path
) -> None:
    async with serving(tmp_path, **trusting(provider)) as server:
        ada = As(server, provider.token(sub="ada"))
        task = await ada.send("text mine", contextId="same")
        assert artifact_text(task) == "mine"
        for other in ("ada/same", "Ada", "ada ", "local", "oidc:ada"):
            stranger = As(server, provider.token(sub=other))
            assert await listed(stranger) == []
            their = await stranger.send("text theirs", contextId="same")
            assert artifact_text(their) == "theirs"
            assert await listed(stranger) == [task_id(their)]
        again = As(server, provider.token(sub="ada", jti="another"))
        assert await listed(again) == [task_id(task)]


async def listed(client: As) -> list[str]:
    return [task["id"] for task in (await client.call("ListTasks", {}))["tasks"]]


async def test_a_bearer_is_known_by_the_claim_that_was_chosen(
    provider: Provider, tmp_path: Path
) -> None:
    async with serving(tmp_path, **trusting(provider, bridge_oidc_claim="email")) as server:
        mine: Json = {"email": "ada@example.org"}
        assert await ask(server, provider.token(email_verified=True, **mine)) == 200
        assert await ask(server, provider.token(email_verified=False, **mine)) == 401
        assert await ask(server, provider.token(**mine)) == 401
        assert await ask(server, provider.token()) == 401


@given(st.text(max_size=8, alphabet="ab/:%é \n~@"), st.text(max_size=8, alphabet="ab/:%é \n~@"))
def test_no_two_names_are_one_principal(one: str, other: str) -> None:
    first, second = (
        principal_id("https://id.example", one),
        principal_id("https://id.example", other),
    )
    assert (first == second) is (one == other)
    assert "/" not in first and first.isascii() and first.isprintable()
    assert principal_id("https://id.example/", one) != first


async def test_it_goes_together_with_other_tokens(provider: Provider, tmp_path: Path) -> None:
    own = "a-token-of-the-operator"
    async with serving(tmp_path, **trusting(provider, bridge_token=own)) as server:
        assert await ask(server, own) == 200
        assert await ask(server, provider.token()) == 200
        assert await ask(server, "another-token-of-somebody") == 401
        for _ in range(FAILURES - 1):
            assert await ask(server, provider.token(aud="x")) == 401
        assert await ask(server, provider.token(aud="x")) == 429
        assert await ask(server, provider.token()) == 200
        assert await ask(server, own) == 200


# --- keys --------------------------------------------------------------------------------------


async def test_a_key_that_is_new_is_fetched_once_and_one_that_is_gone_counts_no_more(
    provider: Provider, tmp_path: Path
) -> None:
    known = provider.keys
    old, new = provider.token(), provider.token(key="next")
    async with serving(tmp_path, **quick(provider)) as server:
        assert await ask(server, old) == 200
        provider.keys = {"keys": [jwk("next")]}
        assert [await ask(server, new), await ask(server, old)] == [200, 401]
    provider.keys = known
    async with serving(tmp_path, **trusting(provider)) as server:
        assert await ask(server, old) == 200
        provider.keys = {"keys": [jwk("next")]}
        asked = len(provider.asked)
        assert await ask(server, new) == 401  # it is too soon to ask again
        for number in range(5):
            assert await ask(server, provider.token(header={"kid": f"{number}"})) == 401
        assert len(provider.asked) == asked


async def test_keys_are_fetched_again_while_tokens_come(provider: Provider, tmp_path: Path) -> None:
    async with serving(tmp_path, **quick(provider, refresh=0.0)) as server:
        token = provider.token()
        assert await ask(server, token) == 200
        provider.keys = {"keys": [jwk("next")]}
        async with asyncio.timeout(WITHIN):
            while await ask(server, token) == 200:  # which is remembered as verified
                pass


async def test_without_a_key_id_the_only_key_counts(provider: Provider, tmp_path: Path) -> None:
    keys = {"keys": [{**jwk("rsa"), "kid": None}, jwk("ec")]}
    provider.keys = {"keys": [{k: v for k, v in one.items() if v} for one in keys["keys"]]}
    async with serving(tmp_path, **quick(provider, refresh=0.0)) as server:
        assert await ask(server, provider.token(header={"kid": None})) == 200
        assert await ask(server, provider.token(key="stranger", header={"kid": None})) == 401
        provider.keys["keys"].append(jwk("stranger"))
        async with asyncio.timeout(WITHIN):
            while await ask(server, provider.token(header={"kid": None})) == 200:
                pass


WEAK = rsa.generate_private_key(65537, 1024).public_key().public_numbers().n.to_bytes(128)
UNUSABLE: dict[str, Any] = {
    "no set": [],
    "nothing in it": {"keys": []},
    "no list": {"keys": {"rsa": jwk("rsa")}},
    "for encryption": {"keys": [jwk("rsa", use="enc")]},
    "of another algorithm": {"keys": [jwk("rsa", alg="RSA-OAEP")]},
    "a secret": {"keys": [{"kty": "oct", "k": "A" * 43, "kid": "rsa"}]},
    "a weak one": {"keys": [jwk("rsa", n=encoded(WEAK))]},
    "odd members": {"keys": [1, {"kty": ["RSA"]}, {"kty": "EC", "crv": 1}, jwk("rsa", n=[1])]},
    "no point": {"keys": [jwk("ec", x="AAAA")]},
}


@pytest.mark.parametrize("name", UNUSABLE)
async def test_keys_that_verify_nothing(
    provider: Provider, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    provider.keys = UNUSABLE[name]
    async with serving(tmp_path, **trusting(provider)) as server:
        assert await ask(server, provider.token()) == 503
    assert "cannot fetch the keys of the OpenID issuer" in caplog.text


async def test_a_bad_key_does_not_disable_the_others(provider: Provider, tmp_path: Path) -> None:
    odd: list[Any] = [1, {"kty": "AKP", "kid": "x"}, jwk("ec-384", x="AAAA"), jwk("rsa", n=[1])]
    secret = {"kty": "oct", "k": "A" * 43, "kid": "rsa"}
    private = {**KEYS["ec"].as_dict(private=True), "kid": "ec"}
    provider.keys = {"keys": [*odd, secret, private, jwk("ec-521", key_ops=["sign"])]}
    async with serving(tmp_path, **trusting(provider)) as server:
        assert await ask(server, provider.token(key="ec")) == 200
        for kid in ("rsa", "ec-384", "ec-521"):
            assert await ask(server, provider.token(key=kid)) == 401


async def test_a_key_id_of_two_keys_is_ambiguous(provider: Provider, tmp_path: Path) -> None:
    provider.keys = {"keys": [jwk("ec"), jwk("next", kid="ec"), jwk("rsa", kid="ec")]}
    async with serving(tmp_path, **trusting(provider)) as server:
        assert await ask(server, provider.token(key="ec")) == 401
        assert await ask(server, provider.token(header={"kid": "ec"})) == 200


# --- a provider that does not do as it should --------------------------------------------------


async def refusing(_: web.Request) -> web.StreamResponse:
    return web.Response(status=500)


async def elsewhere(request: web.Request) -> web.StreamResponse:
    return web.Response(status=302, headers={"Location": "/moved"})


async def no_json(_: web.Request) -> web.StreamResponse:
    return web.Response(text="<html>")


async def giant(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(64):
        await response.write(b" " * MAX_BYTES)
    return response


async def cut_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b"{")
    assert request.transport
    request.transport.close()
    return response


BROKEN = {one.__name__: one for one in (refusing, elsewhere, no_json, giant, cut_off)}
REASONS = {
    "refusing": "answers 500",
    "elsewhere": "answers 302",
    "no_json": "unexpected character",
    "giant": f"more than {MAX_BYTES} bytes",
    "cut_off": "not completed",
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_provider_is_reported_and_used_after_its_recovery(
    provider: Provider,
    tmp_path: Path,
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    provider.answers = BROKEN[name]
    async with serving(tmp_path, **quick(provider)) as server:
        assert await ask(server, provider.token()) == 503
        assert await ask(server, "no-token") == 401
        told = [one for one in caplog.records if "cannot fetch the keys" in one.msg]
        assert told and all(REASONS[name] in vars(one)["reason"] for one in told)
        provider.answers = None
        assert await ask(server, provider.token()) == 200
        provider.answers = BROKEN[name]  # what is known still counts
        assert await ask(server, provider.token(jti="1")) == 200
        assert await ask(server, provider.token(header={"kid": "2"})) == 401
    assert "/moved" not in provider.asked


async def test_a_provider_that_is_slow_holds_up_no_other(
    provider: Provider, tmp_path: Path
) -> None:
    released = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        await released.wait()
        return web.Response(status=500)

    own = "a-token-of-the-operator"
    provider.answers = slow
    settings = quick(provider, wait=0.3, retry=30.0)
    async with serving(tmp_path, bridge_token=own, **settings) as server:
        begun = time.monotonic()
        waiting = asyncio.create_task(ask(server, provider.token()))
        assert await ask(server, own) == 200
        assert not waiting.done()
        assert await waiting == 503
        assert 0.3 <= time.monotonic() - begun < WITHIN
        assert len(provider.asked) == 1
        released.set()


async def test_a_provider_that_speaks_for_another_is_not_believed(
    provider: Provider, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for metadata in (
        {"issuer": "https://id.example"},
        {"issuer": None},
        {"jwks_uri": "http://id.example/keys"},
        {"jwks_uri": provider.url.replace("//", "//anybody@") + "/keys"},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": None},
    ):
        provider.metadata = metadata
        async with serving(tmp_path, **quick(provider)) as server:
            assert await ask(server, provider.token()) == 503
    assert "/keys" not in provider.asked


async def test_keys_that_cannot_be_fetched_again_do_not_count_for_ever(
    provider: Provider,
) -> None:
    issuer = Issuer(OidcConfig(provider.url, (AUDIENCE,), ("run",), keep=0.5))
    finding = issuer.find(provider.token())
    assert isinstance(finding, Awaitable) and isinstance(await finding, Principal)
    await asyncio.sleep(0.5)  # their time, by the clock of the keys
    with pytest.raises(Unavailable):
        issuer.find(provider.token(jti="1"))


# --- the whole server --------------------------------------------------------------------------


async def test_the_server_starts_without_its_provider_and_says_so(
    workspace: Path, tmp_path: Path
) -> None:
    env: Json = {"BRIDGE_OIDC_ISSUER": "http://127.0.0.1:1", "BRIDGE_OIDC_AUDIENCE": AUDIENCE}
    async with bridge(workspace, AGENT_ADAPTER="replay", BRIDGE_AUTH="token", **env) as server:
        async with ClientSession() as http:
            headers = {"Authorization": f"Bearer {crafted({'alg': 'RS256'}, {})}"}
            async with http.get(f"{server.url}/tasks", headers=headers) as response:
                assert response.status == 503
                assert int(response.headers["Retry-After"]) > 0
            async with http.get(f"{server.url}/tasks") as response:
                assert response.status == 401
    assert "cannot fetch the keys of the OpenID issuer" in server.log
    assert "Traceback" not in server.log


async def test_keys_can_be_in_a_file(workspace: Path, tmp_path: Path) -> None:
    provider = Provider()
    provider.url = "https://id.example/realm"
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [jwk("rsa")]}))
    env: Json = {
        "BRIDGE_OIDC_ISSUER": provider.url,
        "BRIDGE_OIDC_AUDIENCE": AUDIENCE,
        "BRIDGE_OIDC_JWKS": str(file),
        "HOST": "0.0.0.0",
    }
    async with bridge(workspace, AGENT_ADAPTER="replay", **env) as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        async with ClientSession() as http:
            for token, status in ((provider.token(), 200), (provider.token(aud="x"), 401)):
                headers = {"Authorization": f"Bearer {token}", "A2A-Version": "1.0"}
                async with http.get(f"{url}/tasks", headers=headers) as response:
                    assert response.status == status


@pytest.mark.parametrize(
    ("env", "about"),
    [
        ({"BRIDGE_OIDC_ISSUER": "https://id.example"}, "BRIDGE_OIDC_AUDIENCE"),
        ({"BRIDGE_OIDC_AUDIENCE": "x"}, "BRIDGE_OIDC_ISSUER"),
        ({"BRIDGE_OIDC_ISSUER": "http://id.example", "BRIDGE_OIDC_AUDIENCE": "x"}, "https://"),
        ({"BRIDGE_OIDC_ISSUER": "https://a:b@id.example"}, "https://"),
        ({"BRIDGE_OIDC_ISSUER": "id.example"}, "https://"),
        ({"BRIDGE_OIDC_JWKS": "http://id.example/keys"}, "https://"),
        ({"BRIDGE_OIDC_SCOPES": "fly"}, "BRIDGE_OIDC_SCOPES"),
    ],
)
def test_settings_that_cannot_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, env: dict[str, str], about: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=about):
        load({})


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_the_card_says_where_tokens_come_from(
    provider: Provider, tmp_path: Path, version: str
) -> None:
    address = f"{provider.url}/.well-known/openid-configuration"
    chosen = trusting(provider, bridge_card=version)
    async with serving(tmp_path, **chosen) as server:
        async with server.http.get(f"{server.url}/.well-known/agent-card.json") as response:
            card = await response.json()
        headers = {"Authorization": f"Bearer {provider.token()}"}
        async with server.http.get(f"{server.url}/openapi.json", headers=headers) as response:
            described = await response.json()
    openid = {"type": "openIdConnect", "openIdConnectUrl": address}
    if version == "0.3":
        assert card["securitySchemes"]["oidc"] == openid
        assert card["security"] == [{one: []} for one in ("bearer", "apiKey", "basic", "oidc")]
    else:
        scheme = {"openIdConnectSecurityScheme": {"openIdConnectUrl": address}}
        assert card["securitySchemes"]["oidc"] == scheme
        assert card["securityRequirements"][-1] == {"schemes": {"oidc": {"list": []}}}
    assert described["components"]["securitySchemes"]["oidc"] == openid
    assert described["security"] == [{"bearer": []}, {"oidc": []}]


@pytest.mark.parametrize("claim", ["one", "list"])
async def test_a_claim_limits_a_bearer_to_directories(
    provider: Provider, tmp_path: Path, claim: str
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    inside = str(tmp_path / "a")
    settings = trusting(provider, bridge_oidc_workspaces_claim="dirs")
    async with serving(tmp_path, **settings) as server:
        given = inside if claim == "one" else [inside]
        alice = As(server, provider.token(dirs=given))
        task = await alice.send("cwd")
        assert task["artifacts"][0]["parts"][0]["text"] == inside
        for cwd in (str(tmp_path), str(tmp_path / "b")):
            with pytest.raises(RpcError, match="outside the directories"):
                await alice.send("cwd", metadata={"bridge": {"cwd": cwd}})
        wrongs: list[Any] = [None, [], "relative", ["a", 1], {"a": 1}, ["/a\0b"]]
        for wrong in wrongs:
            claims: dict[str, Any] = {} if wrong is None else {"dirs": wrong}
            assert await ask(server, provider.token(**claims)) == 401
