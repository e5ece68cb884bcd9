"""Requests to URLs of clients. They must not reach addresses that only this machine can reach.

The socket factory of the connector checks the address. An earlier check could see another address:
a name may resolve differently, literals skip the resolver, and a redirect leads elsewhere.
`check_url` only reports early to the client that a URL would fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_address
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from bridge.errors import InvalidParams

TIMEOUT = 15.0  # seconds for one whole request; A2A 1.0 §13.2 recommends 10 to 30
MAX_URL = 2048
MAX_RESPONSE = 64 * 1024  # bytes of a response that are read and discarded
LOOKUPS_AT_ONCE = 8  # threads; a name server without an answer blocks one for many seconds

RETRIED = {408, 425, 429}  # statuses below 500 of a temporary failure
REFUSED = "refused address"
UNREACHABLE = "connection failed"
LATE = "timeout"

# An explicit list, because `is_global` of the standard library changes between patch releases.
_CLOSED_V4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # unspecified, "this network"
            "10.0.0.0/8",
            "100.64.0.0/10",  # carrier NAT; cloud metadata at 100.100.100.200
            "127.0.0.0/8",
            "168.63.129.16/32",  # cloud metadata at a public address
            "169.254.0.0/16",  # link-local; cloud metadata at 169.254.169.254
            "172.16.0.0/12",
            "192.0.0.0/24",  # protocol assignments; cloud metadata at 192.0.0.192
            "192.0.2.0/24",  # documentation, as are 198.51.100 and 203.0.113
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, broadcast
        ),
    )
)
_OPEN_V6 = IPv6Network("2000::/3")  # global unicast; not ::1, fc00::/7, fe80::/10 …
_CLOSED_V6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocol assignments; Teredo, which embeds an IPv4 address
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4, which embeds an IPv4 address
            "3fff::/20",  # documentation
        ),
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")  # IPv4 addresses in an IPv6-only network
_ISATAP = (0x00005EFE, 0x02005EFE)  # upper half of an interface id that embeds an IPv4 address
_NAME = re.compile(r"[a-z0-9_.-]+")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class RequestFailed(Exception):
    """A request without an answer. `str(error)` is one of "refused address", "connection failed"
    and "timeout"; it reveals nothing else about the network."""


class RefusedAddress(OSError):
    """A forbidden address. An OSError, so that aiohttp tries the other addresses of the name."""

    def __init__(self) -> None:
        super().__init__(REFUSED)


def is_final(status: int) -> bool:
    """Whether a receiver that answers with this status would refuse the request again."""
    return status < 500 and status not in RETRIED


# --- addresses ---------------------------------------------------------------------------------


def forbidden(address: str) -> bool:
    """Whether a numeric address is not public, or embeds an address that is not public."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return True
    if isinstance(ip, IPv4Address):
        return any(ip in network for network in _CLOSED_V4)
    embedded = str(IPv4Address(int(ip) & 0xFFFFFFFF))
    if ip.ipv4_mapped or ip in _NAT64:
        return forbidden(embedded)
    if (int(ip) >> 32) & 0xFFFFFFFF in _ISATAP and forbidden(embedded):
        return True
    return ip not in _OPEN_V6 or any(ip in network for network in _CLOSED_V6)


# --- urls --------------------------------------------------------------------------------------


def check_url(url: str, allow_private: bool = False) -> None:
    """Raise InvalidParams unless `url` is a valid receiver: an unambiguous https URL, or also http
    with `allow_private`. Does not resolve names: the check at the connection decides."""
    problem = _problem(url, allow_private)
    if problem:
        raise InvalidParams(f"The callback URL {problem}.", [("url", problem)])


def host_of(url: str) -> str:
    """The host of a URL that has passed check_url, in the form of the client library."""
    return URL(url).raw_host or ""


def _problem(url: str, allow_private: bool) -> str:
    """The reason to reject the URL; empty for a valid one."""
    if len(url) > MAX_URL:
        return f"is longer than {MAX_URL} characters"
    if any(ord(character) <= 0x20 or character in "\x7f\\" for character in url):
        return "contains a space, a control character or a backslash"
    try:
        parsed = URL(url)  # the parser of the HTTP client
        authority = urlsplit(url).netloc
    except ValueError:
        return "is not a URL"
    if parsed.scheme not in ("http", "https"):
        return "must begin with http:// or https://"
    if "@" in authority or parsed.user is not None:
        return "must not contain a user name or password"
    if "[" in authority and not _is_address(parsed.raw_host or ""):
        return "must have an IPv6 address inside the brackets"
    if "#" in url:
        return "must not have a fragment"
    if not parsed.port:
        return "must not have port 0"
    problem = _host_problem(parsed.raw_host or "", allow_private)
    if not problem and parsed.scheme == "http" and not allow_private:
        return "must begin with https://, to protect the notifications in transit"
    return problem


def _host_problem(host: str, allow_private: bool) -> str:
    name = host.removesuffix(".")
    if _is_address(host):
        closed = forbidden(host)
    elif not _NAME.fullmatch(name):
        return "must have a name or an address as its host"
    elif _NUMBER.fullmatch(name.rpartition(".")[2]):
        # Some parsers read 127.1, 0x7f.1 and 2130706433 as addresses, others as names.
        return "must have an address of four decimal numbers, or an [IPv6] address"
    else:
        closed = name == "localhost" or name.endswith(".localhost")
    return "points to an address that is not public" if closed and not allow_private else ""


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


# --- requests ----------------------------------------------------------------------------------


def open_session(
    *,
    allow_private: bool = False,
    timeout: float = TIMEOUT,
    resolver: AbstractResolver | None = None,
    open_socket: Callable[..., socket.socket] = socket.socket,
) -> aiohttp.ClientSession:
    """A session that connects only to public addresses, unless `allow_private`.

    It ignores proxies and credentials of the environment, stores no cookies and decompresses
    nothing. The session closes `resolver`; the caller closes the session.
    """

    def dial(info: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _, address = info
        if not allow_private and forbidden(address[0]):
            raise RefusedAddress
        return open_socket(family=family, type=kind, proto=protocol)

    connector = _Connector(
        resolver=resolver or _Resolver(),
        use_dns_cache=False,  # the next attempt finds a receiver at a new address
        socket_factory=dial,
    )
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=timeout),
        trust_env=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        read_bufsize=MAX_RESPONSE // 4,
        headers={"User-Agent": "coding-agent-bridge", "Accept-Encoding": "identity"},
    )


async def post(
    session: aiohttp.ClientSession, url: str, body: bytes, headers: Mapping[str, str]
) -> int:
    """Send `body` and return the status of the answer. Does not follow redirects and ignores the
    content. Raises RequestFailed without an answer."""
    try:
        async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
            await _discard(response)
            return response.status
    except TimeoutError:
        raise RequestFailed(LATE) from None
    except aiohttp.ClientConnectorError as error:
        refused = isinstance(error.os_error, RefusedAddress)
        raise RequestFailed(REFUSED if refused else UNREACHABLE) from None
    except aiohttp.InvalidURL:  # for example an unusual spelling of an address
        raise RequestFailed(REFUSED) from None
    except (aiohttp.ClientError, OSError, ValueError):  # ValueError: not a DNS name
        raise RequestFailed(UNREACHABLE) from None


async def _discard(response: aiohttp.ClientResponse) -> None:
    """Read a short body, so that the connection can be reused; close the connection after a long
    one. Errors do not matter, since the status has arrived."""
    left = MAX_RESPONSE
    with contextlib.suppress(aiohttp.ClientError, OSError):  # a TimeoutError is an OSError
        while left > 0 and (data := await response.content.read(left)):
            left -= len(data)
        if left > 0:
            return
    response.close()


class _Connector(aiohttp.TCPConnector):
    """Also closes a resolver of the caller, which TCPConnector leaves open."""

    async def close(self, *, abort_ssl: bool = False) -> None:
        await super().close(abort_ssl=abort_ssl)
        await self._resolver.close()


class _Resolver(AbstractResolver):
    """Resolves names in threads of its own: clients choose the names, and slow ones must not occupy
    the default executor of the event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(LOOKUPS_AT_ONCE, thread_name_prefix="resolve")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        look_up = partial(
            socket.getaddrinfo,
            host,
            port,
            family=family,
            type=socket.SOCK_STREAM,
            flags=socket.AI_ADDRCONFIG,
        )
        found = await asyncio.get_running_loop().run_in_executor(self._threads, look_up)
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=port,
                family=family,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for family, _, protocol, _, address in found
        ]

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
