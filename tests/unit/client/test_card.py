"""References of cards, and the interface that the client chooses."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.client.card import AgentCard, address_of, problems
from bridge.client.failure import ClientError

WELL_KNOWN = "/.well-known/agent-card.json"


def card(*interfaces: tuple[str, str], **members: Any) -> AgentCard:
    listed = [
        {"url": f"https://h/{n}", "protocolBinding": binding, "protocolVersion": version}
        for n, (binding, version) in enumerate(interfaces)
    ]
    return AgentCard({"supportedInterfaces": listed, **members}, "https://h" + WELL_KNOWN)


@pytest.mark.parametrize(
    ("reference", "url"),
    [
        ("example.com", "https://example.com" + WELL_KNOWN),
        ("example.com:8443", "https://example.com:8443" + WELL_KNOWN),
        ("localhost:41242", "http://localhost:41242" + WELL_KNOWN),
        ("127.0.0.1", "http://127.0.0.1" + WELL_KNOWN),
        ("http://h:1/", "http://h:1" + WELL_KNOWN),
        ("https://h/agents/a/card.json", "https://h/agents/a/card.json"),
        ("file:///tmp/card.json", None),
        ("./card.json", None),
        ("/tmp/card.json", None),
    ],
)
def test_a_reference_is_a_host_a_url_or_a_file(reference: str, url: str | None) -> None:
    assert address_of(reference) == url


def test_the_first_interface_that_the_client_speaks_is_chosen() -> None:
    found = card(("GRPC", "1.0"), ("HTTP+JSON", "1.0"), ("JSONRPC", "1.0"))
    assert found.select((), None).url == "https://h/1"
    assert found.select(("JSONRPC",), None).url == "https://h/2"
    assert found.select(("GRPC", "JSONRPC"), None).url == "https://h/2"
    only = card(("JSONRPC", "1.0"))
    assert only.select(("HTTP+JSON",), None).name == "JSONRPC"


def test_0_3_is_spoken_only_if_the_caller_says_so() -> None:
    old = AgentCard({"url": "https://h/a", "protocolVersion": "0.3.0"})
    with pytest.raises(ClientError) as refused:
        old.select((), None)
    assert refused.value.code == "VersionNotSupportedError"
    assert refused.value.hint == "--a2a-version 0.3"
    assert old.select((), "0.3").version == "0.3"
    with pytest.raises(ClientError):
        card(("JSONRPC", "2.0")).select((), None)
    with pytest.raises(ClientError):
        card(("HTTP+JSON", "0.3")).select((), "0.3")


def test_the_tenant_of_the_interface_is_kept_exactly() -> None:
    interface = {"url": "https://h", "protocolBinding": "JSONRPC", "tenant": "a b"}
    found = AgentCard({"supportedInterfaces": [interface]})
    assert found.select((), None).tenant == "a b"


@pytest.mark.parametrize("content", [[], "x", {}, {"supportedInterfaces": [{"url": 1}]}])
def test_a_card_without_an_interface_is_invalid(content: Any) -> None:
    with pytest.raises(ClientError) as refused:
        AgentCard(content)
    assert (refused.value.code, refused.value.status) == ("A2ACLI_ERR_CARD_INVALID", 1)


@pytest.mark.parametrize(
    ("scheme", "place"),
    [
        ({"apiKeySecurityScheme": {"location": "query", "name": "key"}}, ("query", "key")),
        ({"type": "apiKey", "in": "cookie", "name": "sid"}, ("cookie", "sid")),
        ({"httpAuthSecurityScheme": {"scheme": "Bearer"}}, ("header", "X-API-Key")),
    ],
)
def test_an_api_key_goes_where_the_card_says(scheme: Any, place: tuple[str, str]) -> None:
    assert card(("JSONRPC", "1.0"), securitySchemes={"s": scheme}).api_key == place


def test_a_validation_names_each_problem() -> None:
    found = problems({"name": "a", "skills": [{"id": "x"}], "supportedInterfaces": [{}]})
    assert "version: must be a text" in found
    assert "skills[0].tags: is missing" in found
    assert "supportedInterfaces[0].protocolBinding: is missing" in found
