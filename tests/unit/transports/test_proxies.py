"""Only a trusted proxy names its client."""

from __future__ import annotations

from typing import Any

from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from bridge.transports.listener.proxies import Proxies
from tests.support.cases import each


def seen(remote: str, *given: tuple[str, str], trusted: tuple[str, ...] = ("10.0.0.0/8",)) -> Any:
    headers: CIMultiDict[str] = CIMultiDict(given)
    request = make_mocked_request("GET", "/", headers=headers).clone(remote=remote)
    found = Proxies(trusted).seen(request)
    return found.remote, found.scheme


FOR, PROTO = "X-Forwarded-For", "X-Forwarded-Proto"
CASES = [
    ("10.1.2.3", [(FOR, "203.0.113.9")], ("203.0.113.9", "http")),
    ("10.1.2.3", [(FOR, "1.1.1.1, 203.0.113.9")], ("203.0.113.9", "http")),
    ("10.1.2.3", [(FOR, "1.1.1.1"), (FOR, "2001:db8::1")], ("2001:db8::1", "http")),
    ("10.1.2.3", [(PROTO, "https")], ("10.1.2.3", "https")),
    ("10.1.2.3", [(PROTO, "javascript"), (FOR, "x")], ("10.1.2.3", "http")),
    ("11.1.2.3", [(FOR, "203.0.113.9"), (PROTO, "https")], ("11.1.2.3", "http")),
    ("::1", [(FOR, "203.0.113.9")], ("::1", "http")),
]


@each("remote, given, expected", CASES)
def test_the_last_hop_of_a_trusted_proxy_is_the_peer(
    remote: str, given: list[tuple[str, str]], expected: tuple[str, str]
) -> None:
    assert seen(remote, *given) == expected


def test_without_the_setting_no_header_counts() -> None:
    assert seen("127.0.0.1", (FOR, "203.0.113.9"), trusted=()) == ("127.0.0.1", "http")
