"""A call as a request: its metadata and its connection."""

from __future__ import annotations

import pytest

from bridge.auth.authentication import Identity
from bridge.auth.config import AuthConfig
from bridge.errors import Unauthenticated
from bridge.transports.grpc.request import RpcRequest, address_of
from tests.support.cases import each


@each(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.1:80", ("127.0.0.1", 80)),
        ("ipv6:%5B::1%5D:80", ("::1", 80)),
        ("ipv6:%5B::ffff:127.0.0.1%5D:80", ("::ffff:127.0.0.1", 80)),
        ("ipv6:[fe80::1%25eth0]:80", ("fe80::1%eth0", 80)),
        ("unix:/run/x", None),
        ("ipv4:127.0.0.1", None),
        ("", None),
    ],
)
def test_the_peer_is_an_address(peer: str, address: tuple[str, int] | None) -> None:
    assert address_of(peer) == address


def test_metadata_are_headers_whose_names_ignore_case() -> None:
    metadata = (("a2a-version", "1.0"), ("trace-bin", b"\xff"), ("a2a-extensions", "a"))
    request = RpcRequest(metadata, "ipv4:127.0.0.1:80", ("127.0.0.1", 90))
    assert request.headers["A2A-Version"] == "1.0"
    assert "trace-bin" not in request.headers
    assert request.remote == "127.0.0.1"
    assert request.transport.get_extra_info("sockname") == ("127.0.0.1", 90)
    assert request.transport.get_extra_info("peername") == ("127.0.0.1", 80)


def test_each_call_has_a_connection_of_its_own() -> None:
    """A later connection may have the same port, and a cache by connection must not know it."""
    first, second = (RpcRequest((), "ipv4:127.0.0.1:80", None) for _ in range(2))
    assert len({first.transport, second.transport}) == 2


async def test_a_call_has_no_user_as_a_client_of_the_unix_socket_has() -> None:
    """Only a token identifies its client, also if a peer has the form of a Unix socket."""
    identity = Identity(AuthConfig(required=True, same_user=True))
    rejected: list[tuple[str, str, str]] = []
    identity.report = lambda peer, scheme, cause: rejected.append((peer, scheme, cause))
    for peer in ("ipv4:127.0.0.1:80", "unix:/run/x"):
        for ours in (("127.0.0.1", 90), None):
            with pytest.raises(Unauthenticated):
                await identity(RpcRequest((), peer, ours))
    local, unknown = ("127.0.0.1", "bearer", "missing"), ("", "bearer", "missing")
    assert rejected == [local, local, unknown, unknown]
