"""Where requests may go. Nothing here leaves the machine: where an address is public, a socket
stands in for the internet and leads to a receiver on loopback."""

from __future__ import annotations

import asyncio
import datetime
import gzip
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import BaseTestServer, TestServer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bridge.errors import InvalidParams
from bridge.push.egress import (
    LATE,
    MAX_URL,
    REFUSED,
    UNREACHABLE,
    RequestFailed,
    check_url,
    forbidden,
    open_session,
    post,
)
from tests.support.cases import each
from tests.support.names import Names, host

WITHIN = 60.0
PUBLIC = "93.184.216.34"

NOT_PUBLIC = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.100.100.200",  # metadata
    "100.127.255.255",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",  # metadata
    "169.254.0.1",
    "169.254.169.254",  # metadata
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.192",  # metadata
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",  # IPv4-compatible
    "::10.0.0.1",
    "::ffff:0:0",
    "::ffff:127.0.0.1",  # IPv4-mapped
    "::ffff:a9fe:a9fe",
    "::ffff:168.63.129.16",
    "::ffff:0:127.0.0.1",  # IPv4-translated
    "64:ff9b::7f00:1",  # NAT64
    "64:ff9b::10.0.0.1",
    "64:ff9b::169.254.169.254",
    "64:ff9b:1::127.0.0.1",  # NAT64 of the local network
    "64:ff9b:1:7f00:0:100::",
    "64:ff9b:1:ffff::8.8.8.8",
    "100::1",  # discard
    "2001::1",  # Teredo
    "2001:0:7f00:1::",
    "2001:0:4136:e378:8000:63bf:80ff:fffe",
    "2001:2::1",  # benchmarks
    "2001:10::1",
    "2001:20::1",
    "2001:db8::1",
    "2002:7f00:1::",  # 6to4
    "2002:a9fe:a9fe::",
    "2002:808:808::",
    "2600:1f00::5efe:10.0.0.1",  # ISATAP
    "2600:1f00::200:5efe:169.254.169.254",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",  # metadata
    "fdff:ffff::1",
    "fe80::1",
    "fe80::1%eth0",
    "febf::1",
    "fec0::1",
    "feff::1",
    "ff02::1",
    "ff0e::1",
]
ON_THE_INTERNET = [
    "1.1.1.1",
    "9.255.255.255",
    "11.0.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.1",
    "168.63.129.15",
    "169.253.255.255",
    "172.15.255.255",
    "172.32.0.0",
    "192.0.1.1",
    "192.167.255.255",
    "198.17.255.255",
    "198.20.0.0",
    "223.255.255.255",
    "::ffff:8.8.8.8",
    "64:ff9b::8.8.8.8",
    "2600:1f00::5efe:8.8.8.8",
    "2606:4700:4700::1111",
    "2a00:1450:4001:80b::200e",
]
ODD_SPELLINGS = [
    "127.1",
    "127.0.1",
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "0x7f.0.0.0x1",
    "0177.0.0.1",
    "017700000001",
    "127.0.0.1.",
    "8.8.8.8.",
    "256.0.0.1",
    "1.2.3.4.5",
    "0x",
    "0x7f.0x1",
    "example.0x7f",
    "00000127.0.0.1",
    "%31%32%37.0.0.1",
]


class Internet:
    """Makes sockets whose connections all end at one port of loopback, and records their intended
    addresses."""

    def __init__(self, port: int = 9) -> None:
        self.dialled: list[str] = []
        dialled = self.dialled

        class Socket(socket.socket):
            def connect(self, address: Any) -> None:
                dialled.append(address[0])
                super().connect(("127.0.0.1", port))

        def open_socket(**kind: Any) -> socket.socket:
            return Socket(**{**kind, "family": socket.AF_INET})

        self.open_socket = open_socket


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[BaseTestServer]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    async with TestServer(app) as server:
        yield server


async def send(session: ClientSession, url: str) -> int | str:
    """The status, or the class of the failure."""
    async with asyncio.timeout(WITHIN):
        try:
            return await post(session, url, b"{}", {})
        except RequestFailed as failure:
            return str(failure)


# --- addresses ---------------------------------------------------------------------------------


@each("address", NOT_PUBLIC)
def test_a_value_that_is_not_on_the_internet_is_forbidden(address: str) -> None:
    assert forbidden(address)


@each("address", ON_THE_INTERNET)
def test_neighbours_of_closed_networks_are_open(address: str) -> None:
    assert not forbidden(address)


@each("address", ["", "localhost", "127.1", "x::1", "/run/socket"])
def test_a_value_that_is_not_an_address_is_forbidden(address: str) -> None:
    assert forbidden(address)


async def test_no_literal_that_is_not_public_is_dialled() -> None:
    internet = Internet()
    async with open_session(open_socket=internet.open_socket) as session:
        for address in NOT_PUBLIC:
            if "%" not in address:
                assert await send(session, f"http://{host(address)}/") == REFUSED, address
    assert internet.dialled == []


async def test_no_name_that_leads_to_such_an_address_is_dialled() -> None:
    internet = Internet()
    for address in NOT_PUBLIC:
        names = Names([address])
        async with open_session(resolver=names, open_socket=internet.open_socket) as session:
            assert await send(session, "http://receiver.example/") == REFUSED, address
            assert await send(session, "https://receiver.example/") == REFUSED, address
        assert names.asked == ["receiver.example"] * 2
        assert names.closed
    assert internet.dialled == []


async def test_odd_spellings_of_addresses_reach_nothing_with_the_systems_own_resolver() -> None:
    """The C library takes 0x7f.1 for an address, so that a name leads to loopback."""
    async with serving(accept) as server:
        async with open_session() as session:
            for spelling in [*ODD_SPELLINGS, "localhost"]:
                url = f"http://{spelling}:{server.port}/"
                assert await send(session, url) in (REFUSED, UNREACHABLE), spelling


async def test_a_name_that_is_rebound_is_refused_at_its_second_connection() -> None:
    heard: list[str] = []

    async def once(request: web.Request) -> web.Response:
        heard.append(request.host)
        return web.Response(headers={"Connection": "close"})

    async with serving(once) as server:
        internet = Internet(server.port or 0)
        names = Names([PUBLIC], ["127.0.0.1"])
        async with open_session(resolver=names, open_socket=internet.open_socket) as session:
            url = f"http://rebinding.example:{server.port}/"
            assert await send(session, url) == 200
            assert await send(session, url) == REFUSED
    assert len(heard) == 1
    assert internet.dialled == [PUBLIC]


async def test_of_a_name_with_several_addresses_only_public_ones_are_dialled() -> None:
    async with serving(accept) as server:
        internet = Internet(server.port or 0)
        names = Names(["127.0.0.1", "::1", PUBLIC, "10.0.0.1"])
        async with open_session(resolver=names, open_socket=internet.open_socket) as session:
            assert await send(session, f"http://mixed.example:{server.port}/") == 200
    assert internet.dialled == [PUBLIC]


async def test_private_addresses_can_be_allowed() -> None:
    async with serving(accept) as server, open_session(allow_private=True) as session:
        assert await send(session, f"http://127.0.0.1:{server.port}/") == 200
        assert await send(session, f"http://localhost:{server.port}/") == 200


# --- urls --------------------------------------------------------------------------------------


@each("address", NOT_PUBLIC)
def test_literals_that_are_not_public_are_refused_at_registration(address: str) -> None:
    with pytest.raises(InvalidParams):
        check_url(f"http://{host(address)}/callback")
    if "%" not in address:
        check_url(f"http://{host(address)}/callback", allow_private=True)


@each("spelling", ODD_SPELLINGS)
def test_odd_spellings_are_refused_even_where_private_addresses_are_allowed(spelling: str) -> None:
    with pytest.raises(InvalidParams):
        check_url(f"http://{spelling}/")
    if spelling != "127.0.0.1.":
        with pytest.raises(InvalidParams):
            check_url(f"http://{spelling}/", allow_private=True)


@each(
    "url",
    [
        "",
        "/path",
        "//receiver.example/",
        "receiver.example/path",
        "file:///etc/passwd",
        "ftp://receiver.example/",
        "gopher://receiver.example/",
        "javascript:alert(1)",
        "http:///path",
        "http://",
        "http://.",
        "http://:80/",
        "http://user@receiver.example/",
        "http://user:password@receiver.example/",
        "http://@receiver.example/",
        "http://receiver.example@127.0.0.1/",
        "http://receiver.example\\@127.0.0.1/",
        "http://receiver.example/#fragment",
        "http://receiver.example/#",
        "http://receiver.example:0/",
        "http://receiver.example:65536/",
        "http://receiver.example:x/",
        "http://receiver.example/\r\nX: y",
        "http://receiver.example/\n",
        "http://receiver.example/\t",
        " http://receiver.example/",
        "http://receiver .example/",
        "http://receiver%2eexample/",
        "http://receiver!example/",
        "http://[::1/",
        "http://[v1.x]/",
        "http://\uff11\uff12\uff17.0.0.1/",  # full-width digits
        "http://127\u30020\u30020\u30021/",  # ideographic full stops
        "http://\u24dbocalhost/",
        "http://localhost/",
        "http://LOCALHOST./",
        "http://any.localhost/",
        "http://receiver.example/" + "x" * MAX_URL,
    ],
)
def test_a_url_that_cannot_be_a_receiver_is_refused_and_says_why(url: str) -> None:
    with pytest.raises(InvalidParams, match="The callback URL ") as caught:
        check_url(url)
    assert caught.value.fields[0][0] == "url"


@each(
    "url",
    [
        "https://receiver.example",
        "https://receiver.example/hook?task=1&x=a%20b",
        "https://receiver.example:8443/",
        "HTTPS://Receiver.Example./",
        "https://under_score.example/",
        "https://b\u00fccher.example/",
        "https://1e100.example/",
        f"https://{PUBLIC}/",
        "https://[2606:4700:4700::1111]:443/",
        "https://receiver.example/a@b:c",
    ],
)
def test_ordinary_urls_are_accepted(url: str) -> None:
    check_url(url)


def test_nothing_goes_out_in_the_clear_but_for_local_use() -> None:
    with pytest.raises(InvalidParams, match="must begin with https://"):
        check_url("http://receiver.example/")
    check_url("http://receiver.example/", allow_private=True)


# --- answers -----------------------------------------------------------------------------------


async def accept(request: web.Request) -> web.Response:
    return web.Response()


async def test_redirects_are_not_followed() -> None:
    heard: list[str] = []

    async def redirect(request: web.Request) -> web.Response:
        heard.append(request.path)
        return web.Response(status=307, headers={"Location": "/elsewhere"})

    async with serving(redirect) as server, open_session(allow_private=True) as session:
        assert await send(session, str(server.make_url("/here"))) == 307
    assert heard == ["/here"]


async def test_the_environments_proxy_and_netrc_are_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    seen: list[dict[str, str]] = []

    async def look(request: web.Request) -> web.Response:
        seen.append(dict(request.headers))
        return web.Response(headers={"Set-Cookie": "a=b"})

    async with serving(look) as server, open_session(allow_private=True) as session:
        assert await send(session, str(server.make_url("/"))) == 200
        assert await send(session, str(server.make_url("/"))) == 200
    for headers in seen:
        assert not {"Authorization", "Cookie"} & headers.keys()
        assert headers["Accept-Encoding"] == "identity"


async def test_an_answer_without_end_is_cut_and_counts_by_its_status() -> None:
    sent: list[int] = []
    cut = asyncio.Event()

    async def flood(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"x" * 4096)
                sent.append(4096)
        finally:
            cut.set()

    async with serving(flood) as server, open_session(allow_private=True) as session:
        assert await send(session, str(server.make_url("/"))) == 200
        async with asyncio.timeout(WITHIN):
            await cut.wait()


async def test_a_compressed_answer_is_not_unpacked() -> None:
    bomb = gzip.compress(b"\0" * 2**24)
    assert len(bomb) < 2**16  # read whole, if not unpacked

    async def explode(request: web.Request) -> web.Response:
        return web.Response(body=bomb, headers={"Content-Encoding": "gzip"})

    async with serving(explode) as server, open_session(allow_private=True) as session:
        async with session.post(server.make_url("/")) as response:
            assert await response.read() == bomb
        assert await send(session, str(server.make_url("/"))) == 200


async def test_silence_is_a_timeout_wherever_it_begins() -> None:
    over = asyncio.Event()

    async def stall(request: web.Request) -> web.StreamResponse:
        await over.wait()
        return web.Response()

    async def accept_only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(3):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await over.wait()
        writer.close()

    raw = await asyncio.start_server(accept_only, "127.0.0.1", 0)
    port = raw.sockets[0].getsockname()[1]
    async with serving(stall) as server:
        async with open_session(allow_private=True, timeout=0.2) as session:
            assert await send(session, str(server.make_url("/"))) == LATE
            assert await send(session, f"http://127.0.0.1:{port}/") == LATE
        over.set()
    raw.close()
    await raw.wait_closed()


async def test_a_body_that_never_ends_does_not_undo_the_status() -> None:
    over = asyncio.Event()

    async def half(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"half")
        await over.wait()
        return response

    async with serving(half) as server:
        async with open_session(allow_private=True, timeout=0.2) as session:
            assert await send(session, str(server.make_url("/"))) == 200
        over.set()


async def test_failures_are_named_by_class_without_texts_of_the_system() -> None:
    async def close_early(request: web.Request) -> web.Response:
        assert request.transport
        request.transport.close()
        return web.Response()

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        unused = listener.getsockname()[1]
        async with serving(close_early) as server, open_session(allow_private=True) as session:
            assert await send(session, str(server.make_url("/"))) == UNREACHABLE
            assert await send(session, f"http://127.0.0.1:{unused}/") == UNREACHABLE
            assert await send(session, "http://a..b/") == UNREACHABLE
            assert await send(session, f"http://{'x' * 70}.example/") == UNREACHABLE


async def test_a_certificate_without_a_trusted_issuer_is_refused(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate(tmp_path / "certificate.pem"))
    app = web.Application()
    app.router.add_post("/", accept)
    server = TestServer(app, scheme="https")
    await server.start_server(ssl=context)
    try:
        async with open_session(allow_private=True) as session:
            assert await send(session, f"https://127.0.0.1:{server.port}/") == UNREACHABLE
    finally:
        await server.close()


def certificate(path: Path) -> Path:
    """A key and a certificate for 127.0.0.1, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    today = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(today - day)
        .not_valid_after(today + day)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + signed.public_bytes(serialization.Encoding.PEM)
    )
    return path
