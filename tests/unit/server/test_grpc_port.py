"""The address of the gRPC port on the cards."""

from __future__ import annotations

from bridge.server.agents.grpc_port import GrpcPlace
from tests.support.cases import each

HERE, THERE = "http://127.0.0.1:41242/agents/a", "https://agents.example.org"


@each(
    ("host", "public", "address", "url"),
    [
        ("127.0.0.1", None, HERE, "127.0.0.1:50051"),
        ("127.0.0.1", None, "http://localhost:41242", "127.0.0.1:50051"),
        ("::1", None, "http://[::1]:41242", "[::1]:50051"),
        ("127.0.0.1", None, THERE, None),
        ("127.0.0.1", "grpc.example.org:443", THERE, "grpc.example.org:443"),
        ("0.0.0.0", None, THERE, "agents.example.org:50051"),
        ("0.0.0.0", None, HERE, "127.0.0.1:50051"),
        ("192.0.2.1", None, THERE, "agents.example.org:50051"),
        ("192.0.2.1", None, HERE, "192.0.2.1:50051"),
        ("::", None, "http://[2001:db8::1]:41242", "[2001:db8::1]:50051"),
    ],
)
def test_a_card_has_an_address_that_its_reader_can_reach(
    host: str, public: str | None, address: str, url: str | None
) -> None:
    assert GrpcPlace(host, 50051, public, "a").url(address) == url
