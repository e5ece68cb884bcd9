"""Requests that the server accepts: host names, origins, fetch metadata of browsers, and bodies,
against the real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import ClientResponse

from bridge.errors import ConfigurationError
from bridge.server.settings.load import load
from bridge.server.settings.root import Settings
from bridge.transports.json_body import MAX_DEPTH, MAX_TOKENS
from tests.support.bridge_process import bridge
from tests.support.cases import each
from tests.support.client import Json
from tests.support.served import Server, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")
WITHIN = 60.0
PAGE = "https://app.example"
SETTINGS: Json = {
    "bridge_allowed_hosts": ["build.example", "2001:db8::1"],
    "bridge_allowed_origins": [PAGE],
    "public_url": "https://public.example/bridge",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    """One server for all tests. Refused requests begin no task, so at its end it has only the tasks
    of the tests themselves."""
    async with serving(tmp_path_factory.mktemp("workspace"), **SETTINGS) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def closed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    """A server with the defaults."""
    async with serving(tmp_path_factory.mktemp("workspace")) as server:
        yield server


async def ask(
    server: Server, *headers: str, target: str = "/health", method: str = "GET", body: bytes = b""
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to a request of exactly these lines."""
    host, port = server.url.removeprefix("http://").split(":")
    return await ask_at((host, int(port)), *headers, target=target, method=method, body=body)


async def ask_at(
    address: tuple[str, int],
    *headers: str,
    target: str = "/health",
    method: str = "GET",
    body: bytes = b"",
) -> tuple[int, dict[str, str], bytes]:
    lines = [f"{method} {target} HTTP/1.1", *headers, "Connection: close"]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    async with asyncio.timeout(WITHIN):
        reader, writer = await asyncio.open_connection(*address)
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        answer = await reader.read()
        writer.close()
    head, _, rest = answer.partition(b"\r\n\r\n")
    first, *others = head.decode("latin-1").split("\r\n")
    found = {k.lower(): v for k, _, v in (line.partition(": ") for line in others)}
    return int(first.split()[1]), found, rest


async def raw(server: Server, sent: bytes) -> bytes:
    """All that the server answers to these bytes before it closes the connection."""
    host, port = server.url.removeprefix("http://").split(":")
    async with asyncio.timeout(WITHIN):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        answer = await reader.read()
        writer.close()
    return answer


def reason(body: bytes) -> str:
    (detail,) = json.loads(body)["error"]["details"]
    return str(detail["reason"])


# --- host names --------------------------------------------------------------------------------

ALLOWED = (
    *("localhost", "LOCALHOST", "LocalHost:80", "localhost:1", "localhost.", "localhost.:41242"),
    *("127.0.0.1", "127.0.0.1:65535", "[::1]", "[::1]:80", "build.example", "Build.Example:8080"),
    *("build.example.", "[2001:db8::1]", "[2001:DB8::1]:80", "public.example"),
)
OTHERS = (
    *("evil.example", "evil.example:41242", "127.0.0.1.evil.example", "localhost.evil.example"),
    *("xlocalhost", "localhostx", "localhost-", "127.0.0.2", "127.0.0.11", "127.1", "0x7f.1"),
    *("2130706433", "0.0.0.0", "[::]", "[::ffff:127.0.0.1]", "[::2]", "localhost..", "example"),
    *("www.build.example", "build.example.evil", "app.example", "*", "%6cocalhost", "localhost%00"),
)
MALFORMED = (
    *("", " ", ":80", "[::1", "::1", "[::1]]", "localhost:", "localhost:x", "localhost:123456"),
    *("user@localhost", "localhost@evil.example", "user:pass@127.0.0.1:80", "localhost, evil"),
    *("localhost evil", "localhost/evil", "http://localhost", "localhost#", "localhost?", "[x]"),
    *("localh\u00f6st", "localhost:80:80", "localhost\\evil", ".", "localhost\tx"),
)


@each("host", ALLOWED)
async def test_a_name_of_the_server_is_answered(server: Server, host: str) -> None:
    status, _, body = await ask(server, f"Host: {host}")
    assert status == 200, body


@each("host", OTHERS)
async def test_a_name_of_another_principal_is_refused(server: Server, host: str) -> None:
    for method, target in (("GET", "/health"), ("POST", "/a2a/jsonrpc"), ("GET", "/no/such")):
        status, _, body = await ask(server, f"Host: {host}", method=method, target=target)
        assert status in (421, 400), body
        assert status == 421 or not host.replace("-", "").replace(".", "").isalnum()
    assert b"build" not in body and b"public" not in body, "the answer lists what is allowed"
    assert len(host) < 9 or host.encode() not in body


async def test_the_refusal_names_the_setting_and_is_always_the_same(server: Server) -> None:
    answers = {(await ask(server, f"Host: {host}"))[2] for host in ("a.example", "b.example")}
    (body,) = answers
    assert reason(body) == "HOST_NOT_ALLOWED"
    assert "BRIDGE_ALLOWED_HOSTS" in json.loads(body)["error"]["message"]


@each("host", MALFORMED)
async def test_a_value_that_is_not_a_host_name_is_refused(server: Server, host: str) -> None:
    status, _, body = await ask(server, f"Host: {host}")
    assert status in (400, 421), body


@each(
    "lines",
    [
        (),
        ("Host: localhost", "Host: localhost"),
        ("Host: localhost", "Host: evil.example"),
        ("Host: evil.example", "host: localhost"),
    ],
)
async def test_a_request_needs_exactly_one_host(server: Server, lines: tuple[str, ...]) -> None:
    status, _, body = await ask(server, *lines)
    assert status == 400, body


@each(
    "target",
    [
        "http://localhost/health",
        "http://evil.example/health",
        "HTTP://127.0.0.1/health",
        "//evil.example/health",
        "localhost/health",
    ],
)
async def test_the_target_is_a_path(server: Server, target: str) -> None:
    status, _, body = await ask(server, "Host: localhost", target=target)
    assert status == (404 if target.startswith("//") else 400), body


async def test_a_server_on_all_addresses_answers_to_the_one_that_was_used(
    workspace: Path,
) -> None:
    """It cannot know them beforehand; and an address, other than a name, leads nowhere else."""
    settings: Json = {"HOST": "0.0.0.0", "BRIDGE_TOKEN": "t" * 16, "AGENT_ADAPTER": "replay"}
    async with bridge(workspace, **settings) as process:
        port = int(process.url.rpartition(":")[2])
        for to, host, status in (
            ("127.0.0.2", "127.0.0.2", 200),
            ("127.0.0.2", "0.0.0.0", 200),
            ("127.0.0.2", "127.0.0.3", 421),
            ("127.0.0.2", "two.example", 421),
        ):
            answer = await ask_at((to, port), f"Host: {host}")
            assert answer[0] == status, (to, host)


# --- origins and what browsers say -------------------------------------------------------------


@each(
    "origin",
    [
        *("https://evil.example", "null", "", "http://app.example", "https://app.example:8443"),
        *("https://app.example.evil", "https://APP.example", "https://app.example/", "*"),
        *("http://127.0.0.1", "http://localhost", "file://", "https://app.example, https://x"),
    ],
)
@each("method", ["GET", "POST", "OPTIONS", "DELETE", "HEAD"])
async def test_another_origin_is_refused(server: Server, origin: str, method: str) -> None:
    status, headers, body = await ask(server, "Host: localhost", f"Origin: {origin}", method=method)
    assert status == 403
    assert not [name for name in headers if name.startswith("access-control")]
    if body:
        assert reason(body) == "ORIGIN_NOT_ALLOWED"
        assert b"app.example" not in body


async def test_without_a_setting_no_origin_may_do_anything(closed: Server) -> None:
    own = f"Origin: {closed.url}"
    for origin in (own, f"Origin: {PAGE}", "Origin: null"):
        status, headers, _ = await ask(closed, "Host: localhost", origin)
        assert status == 403
        assert not [name for name in headers if name.startswith("access-control")]
    _, headers, _ = await ask(closed, "Host: localhost")
    assert "vary" not in headers and not [one for one in headers if one.startswith("access-")]


async def test_two_origins_are_refused(server: Server) -> None:
    lines = ("Host: localhost", f"Origin: {PAGE}", f"Origin: {PAGE}")
    assert (await ask(server, *lines))[0] == 403


async def test_an_allowed_origin_gets_only_the_necessary_headers(server: Server) -> None:
    lines = ("Host: localhost", f"Origin: {PAGE}", "Sec-Fetch-Site: cross-site")
    status, headers, _ = await ask(server, *lines)
    assert status == 200
    assert headers["access-control-allow-origin"] == PAGE
    assert "access-control-allow-credentials" not in headers
    assert headers["vary"] == "Origin"
    _, headers, _ = await ask(server, *lines, target="/.well-known/agent-card.json")
    assert headers["vary"] == "Host, Origin"


async def test_an_allowed_origin_may_ask_before(server: Server) -> None:
    asked = ("Access-Control-Request-Method: POST", "Access-Control-Request-Headers: a2a-version")
    lines = ("Host: localhost", f"Origin: {PAGE}", *asked)
    status, headers, body = await ask(server, *lines, method="OPTIONS", target="/a2a/jsonrpc")
    assert (status, body) == (204, b"")
    assert headers["access-control-allow-origin"] == PAGE
    assert "POST" in headers["access-control-allow-methods"]
    for name in ("content-type", "authorization", "a2a-version", "last-event-id"):
        assert name in headers["access-control-allow-headers"].lower()
    assert "*" not in "".join(headers.values())


async def test_an_allowed_origin_must_authenticate(tmp_path: Path) -> None:
    settings: Json = {"bridge_allowed_origins": [PAGE], "bridge_token": "t" * 16}
    async with serving(tmp_path, **settings) as server:
        lines = ("Host: localhost", f"Origin: {PAGE}")
        status, headers, _ = await ask(server, *lines, target="/tasks")
        assert (status, headers["access-control-allow-origin"]) == (401, PAGE)


@each(
    ("site", "status"),
    [
        *(("none", 200), ("same-origin", 200)),
        *(("cross-site", 403), ("same-site", 403), ("nonsense", 403), ("", 403), ("None", 403)),
    ],
)
async def test_fetch_metadata_counts_without_an_origin(
    server: Server, site: str, status: int
) -> None:
    found, _, _ = await ask(server, "Host: localhost", f"Sec-Fetch-Site: {site}")
    assert found == status


async def test_requests_of_other_sites_begin_no_task(server: Server) -> None:
    client = server.client()
    before = (await (await server.http.get(f"{server.url}/health")).json())["agents"]
    message = {"message": client.message("text x", contextId="foreign")}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": message}
    crossing: tuple[dict[str, str], ...] = (
        {"Origin": "https://evil.example"},
        {"Origin": "null", "Content-Type": "text/plain"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "evil.example"},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"Content-Type": ""},
        {"Content-Type": "text/plain; application/json"},
        {"Content-Type": "application/jsonp"},
    )
    for headers in crossing:
        response = await client.post(body, **headers)
        assert response.status in (403, 415, 421), headers
    assert (await (await server.http.get(f"{server.url}/health")).json())["agents"] == before


# --- content types of HTTP+JSON ----------------------------------------------------------------


@each(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
async def test_requests_that_a_form_can_send_are_refused(server: Server, kind: str) -> None:
    task = await server.client().send("ask q-1 Really?")
    cancel = f"/tasks/{task['id']}:cancel"
    lines = ("Host: localhost", "A2A-Version: 1.0", f"Content-Type: {kind}", "Content-Length: 0")
    status, _, body = await ask(server, *lines, method="POST", target=cancel)
    assert (status, reason(body)) == (415, "CONTENT_TYPE_NOT_SUPPORTED")
    status, _, _ = await ask(server, *lines[:2], method="POST", target=cancel)
    assert status == 200


# --- headers of answers ------------------------------------------------------------------------


@each(
    ("method", "target", "host"),
    [
        ("GET", "/health", "localhost"),
        ("GET", "/no/such", "localhost"),
        ("GET", "/a2a/jsonrpc", "localhost"),
        ("POST", "/a2a/jsonrpc", "localhost"),
        ("GET", "/health", "evil.example"),
        ("GET", "/.well-known/agent-card.json", "localhost"),
        ("BAD METHOD", "/", "localhost"),
    ],
)
async def test_every_answer_is_safe_in_a_browser(
    server: Server, method: str, target: str, host: str
) -> None:
    _, headers, body = await ask(server, f"Host: {host}", method=method, target=target)
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "json" in headers["content-type"]
    json.loads(body)


async def test_headers_are_bounded_one_by_one_in_number_and_together(server: Server) -> None:
    ones = {
        "one too long": ["X: " + "x" * 9000],
        "too many": [f"X-{n}: x" for n in range(200)],
        "too much": [f"X-{n}: {'x' * 4000}" for n in range(10)],
    }
    for name, lines in ones.items():
        status, _, body = await ask(server, "Host: localhost", *lines)
        assert (status, reason(body)) == (431, "HEADERS_TOO_LARGE"), name
    status, _, _ = await ask(server, "Host: localhost", "Authorization: Bearer " + "x" * 7000)
    assert status == 200


CHUNKED = (
    "POST /a2a/jsonrpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    "A2A-Version: 1.0\r\nTransfer-Encoding: chunked"
)
LONG = "x" * 4 * 1024**2  # more than a socket takes at once: the client sends on after the error


@each(
    ("lines", "status", "code"),
    [
        (f"GET / HTTP/1.1\r\nX: {LONG}", 431, "HEADERS_TOO_LARGE"),
        (f"GET / HTTP/1.1\r\n{LONG}: 1", 431, "HEADERS_TOO_LARGE"),
        (f"GET /{LONG} HTTP/1.1", 414, "URI_TOO_LONG"),
        (f"{LONG.upper()} / HTTP/1.1", 400, "MALFORMED_REQUEST"),
        (f"{CHUNKED}\r\n\r\nno chunk\r\n{LONG}", 400, "MALFORMED_REQUEST"),
        (f'{CHUNKED}\r\n\r\n5\r\n"no chunk\r\n{LONG}', 400, "MALFORMED_REQUEST"),
    ],
    ids=["value", "name", "target", "method", "chunk", "second chunk"],
)
async def test_a_client_that_sends_on_reads_the_error_about_its_request(
    server: Server, lines: str, status: int, code: str
) -> None:
    answer = await raw(server, f"{lines}\r\nHost: localhost\r\n\r\n".encode())
    assert int(answer.split()[1]) == status
    assert reason(answer.partition(b"\r\n\r\n")[2]) == code


@each("protocol", ["h2c", "websocket", "tcp", "foo"])
async def test_nothing_behind_an_upgrade_waits_for_an_answer(server: Server, protocol: str) -> None:
    """The first request is served; the connection then closes, so the second may be sent again."""
    asked = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    upgrade = f"Connection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n".encode()
    answer = await raw(server, asked + upgrade + asked + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nConnection: close\r\n" in answer
    assert answer.count(b"HTTP/1.1 ") == 1


# --- JSON --------------------------------------------------------------------------------------


async def post(server: Server, body: bytes) -> tuple[ClientResponse, Json]:
    response = await server.client().post(body)
    return response, await response.json()


def in_request(value: str) -> bytes:
    """A request for no task, with `value` somewhere in it."""
    text = '{"jsonrpc":"2.0","id":7,"method":"GetTask","params":{"id":"none","x":%s}}'
    return (text % value).encode()


SHAPES = {
    "arrays": lambda n: "[" * n + "]" * n,
    "objects": lambda n: '{"a":' * n + "1" + "}" * n,
    "both": lambda n: '[{"a":' * (n // 2) + "1" + "}]" * (n // 2),
    "among many": lambda n: "[" + "[1]," * 1000 + "[" * (n - 1) + "]" * (n - 1) + "]",
    "behind strings of brackets": lambda n: '["]]}}\\"\\\\",' * n + "1" + "]" * n,
}


@each("shape", SHAPES)
async def test_json_has_a_limit_of_depth(server: Server, shape: str) -> None:
    own = 2  # levels of the request itself
    _, answer = await post(server, in_request(SHAPES[shape](MAX_DEPTH - own)))
    assert answer["error"]["code"] == -32001, answer
    for depth in (MAX_DEPTH - own + 2, 500, 50_000):
        _, answer = await post(server, in_request(SHAPES[shape](depth)))
        assert answer["error"]["code"] == -32600
        assert f"more than {MAX_DEPTH} levels" in answer["error"]["message"]


async def test_brackets_in_strings_are_not_nesting(server: Server) -> None:
    for text in ("[" * 10_000, '\\"[{' * 10_000, "[" * 300_000, ",[]" * 300_000, "\\\\" * 40_000):
        _, answer = await post(server, in_request(f'"{text}"'))
        assert answer["error"]["code"] == -32001, text[:20]


@each(
    "body",
    [
        b'"' * 1_000_001,
        b'"\\' * 500_000,
        b'["' + b"\\" * 1_000_001,
        b'"\\"' * 300_000,
        b'{"a":"' + b"[" * 1_000_000,
        b"[" * 1_000_000,
        b"]" * 1_000_000,
        b"[1," * 300_000,
        b"\\" * 1_000_000,
        b"[" + b"1," * 500_000 + b"1]",
        b"[" + b'{"a":1},' * 100_000 + b"1]",
    ],
    ids=lambda body: body[:9].decode(),
)
async def test_megabytes_of_nonsense_are_refused_at_once(server: Server, body: bytes) -> None:
    async with asyncio.timeout(60):
        _, answer = await post(server, body)
    assert answer["error"]["code"] in (-32700, -32600)


async def test_a_request_has_so_many_members_and_no_more(server: Server) -> None:
    numbers = "[" + "1," * (MAX_TOKENS - 100) + "1]"
    _, answer = await post(server, in_request(numbers))
    assert answer["error"]["code"] == -32001
    _, answer = await post(server, in_request("[" + "1," * MAX_TOKENS + "1]"))
    assert answer["error"]["code"] == -32600
    assert str(MAX_TOKENS) in answer["error"]["message"]


@each(
    "digits",
    [str(2**64), str(-(2**63) - 1), "9" * 20, "1" + "0" * 20, "9" * 400, "-1" + "0" * 5000],
    ids=lambda digits: str(len(digits)),
)
async def test_integers_above_64_bits_are_refused(server: Server, digits: str) -> None:
    for value in (digits, f"[{digits}]", f'{{"id":{digits}}}', f"[{digits},{digits}]"):
        _, answer = await post(server, in_request(value))
        assert (answer["error"]["code"], answer["id"]) == (-32600, 7), value[:50]


@each("number", [2**64 - 1, -(2**63), 2**63, 0, -1])
async def test_integers_of_64_bits_are_read(server: Server, number: int) -> None:
    _, answer = await post(server, in_request(str(number)))
    assert answer["error"]["code"] == -32001


@each(
    "digits", [str(2**64), str(-(2**63) - 1), "1" + "0" * 20, "9" * 400, "1" + "0" * 5000], ids=len
)
async def test_an_id_above_64_bits_is_not_echoed(server: Server, digits: str) -> None:
    body = in_request("1").replace(b'"id":7', b'"id":%s' % digits.encode())
    for asked in (body, body.replace(b'"x":1', b'"x":%s' % digits.encode())):
        response, answer = await post(server, asked)
        assert (response.status, answer["error"]["code"], answer["id"]) == (200, -32600, None)


async def test_an_id_that_is_sent_twice_is_not_echoed(server: Server) -> None:
    twice = in_request("1").replace(b'"id":7', b'"id":7,"id":8')
    for body in (twice, twice.replace(b'"x":1', b'"x":%d' % 2**64)):
        _, answer = await post(server, body)
        assert (answer["error"]["code"], answer["id"]) == (-32600, None)


async def test_a_message_has_so_many_parts_and_no_more(tmp_path: Path) -> None:
    async with serving(tmp_path, bridge_max_parts=3) as server:
        for version in ("1.0", "0.3"):
            client = server.client(version)
            part = client.text_part("text a\n")
            assert (await client.send([part] * 3))["status"]
            method = "message/send" if version == "0.3" else "SendMessage"
            params = {"message": client.message([part] * 4)}
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            error = (await (await client.post(body)).json())["error"]
            assert error["code"] == -32602
            assert "the limit is 3" in error["message"]


async def test_a_body_that_says_that_it_is_too_large_is_not_read(tmp_path: Path) -> None:
    async with serving(tmp_path, bridge_max_body_bytes=1024) as server:
        lines = ("Host: localhost", "Content-Type: application/json", "Content-Length: 999999999")
        host, port = server.url.removeprefix("http://").split(":")
        async with asyncio.timeout(WITHIN):
            reader, writer = await asyncio.open_connection(host, int(port))
            head = ["POST /a2a/jsonrpc HTTP/1.1", *lines, "", ""]
            writer.write("\r\n".join(head).encode())
            assert (await reader.readline()).startswith(b"HTTP/1.1 413")
            writer.close()


# --- settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        *("*", "*.example.org", "http://example.org", "example.org:80", "example.org/", "a b\x00"),
        *("[::1", "::1]x", "user@example.org", "ex\u00e4mple"),
    ],
)
async def test_a_host_that_would_never_match_is_not_a_setting(value: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"agent_repo_path": str(tmp_path)}
    with pytest.raises(ConfigurationError, match="BRIDGE_ALLOWED_HOSTS"):
        load({**given, "bridge_allowed_hosts": [value]})


@pytest.mark.parametrize(
    "value", ["*", "null", "example.org", "https://example.org/", "https://*.example.org", "https:"]
)
async def test_an_origin_that_would_never_match_is_not_a_setting(
    value: str, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"agent_repo_path": str(tmp_path)}
    with pytest.raises(ConfigurationError, match="BRIDGE_ALLOWED_ORIGINS"):
        load({**given, "bridge_allowed_origins": [value]})


async def test_origins_are_compared_as_browsers_write_them() -> None:
    origins = ["HTTP://App.Example:80", "https://a:443", "https://a:80", "vscode-webview://1abc"]
    given: dict[str, Any] = {"bridge_allowed_origins": origins}
    settings = Settings().updated(given)
    wanted = ("http://app.example", "https://a", "https://a:80", "vscode-webview://1abc")
    assert settings.server.allowed_origins == wanted
