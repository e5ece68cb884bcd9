"""A browser at the root of the server gets a page; other clients get the usual answers."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from aiohttp import ClientResponse

from tests.support.served import Server, serving

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/webp,*/*;q=0.8"


@pytest.fixture
async def server(workspace: Path) -> AsyncIterator[Server]:
    async with serving(workspace, bridge_token="a-secret-0123456789") as server:
        yield server


async def ask(server: Server, accept: str, path: str = "/", method: str = "GET") -> ClientResponse:
    headers = {"Accept": accept} if accept else {}
    response = await server.http.request(method, server.url + path, headers=headers)
    await response.read()
    return response


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


async def test_a_browser_gets_a_page_that_needs_no_token_and_runs_nothing(server: Server) -> None:
    response = await ask(server, BROWSER)
    text = await response.text()
    assert (response.status, response.content_type) == (200, "text/html")
    policy = response.headers["Content-Security-Policy"].split("; ")
    assert policy[0] == "default-src 'none'" and not any("unsafe" in one for one in policy)
    assert {"base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"} <= set(policy)
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Vary"] == "Accept"
    assert "curl -N" in text and "A2A-Version: 1.0" in text
    tags = Tags()
    tags.feed(text)
    assert not {tag for tag, _ in tags.found} & {"script", "style", "link", "img", "form", "iframe"}
    assert not [name for _, given in tags.found for name in given if name.startswith("on")]
    links = [given["href"] for tag, given in tags.found if tag == "a"]
    for link in links:
        assert link and link.startswith(server.url)
        assert (await ask(server, "", link.removeprefix(server.url))).status == 200


async def test_the_page_is_the_same_for_all_clients(server: Server) -> None:
    """It reveals nothing about the agent, its workspace or its tasks."""
    text = await (await ask(server, BROWSER)).text()
    assert not re.search(r"jsonl|workspace|a-secret", text)
    await server.client("1.0", Authorization="Bearer a-secret-0123456789").send("text private")
    assert await (await ask(server, BROWSER)).text() == text


@pytest.mark.parametrize(
    "accept", ["", "*/*", "application/json", "application/json, text/html", "text/html;q=0, */*"]
)
async def test_other_clients_get_json_as_before(server: Server, accept: str) -> None:
    response = await ask(server, accept)
    assert (response.status, response.content_type) == (401, "application/json")
    server.http.headers["Authorization"] = "Bearer a-secret-0123456789"
    response = await ask(server, accept)
    assert (response.status, response.content_type) == (405, "application/json")
    assert response.headers["Allow"] == "POST"


@pytest.mark.parametrize("path", ["/tasks", "/agents", "/a2a", "//", "/%2F", "/nothing"])
async def test_a_browser_anywhere_else_gets_json_as_before(server: Server, path: str) -> None:
    response = await ask(server, BROWSER, path)
    assert (response.status, response.content_type) == (401, "application/json")


async def test_a_head_request_has_the_headers_alone(server: Server) -> None:
    response = await ask(server, BROWSER, method="HEAD")
    assert (response.status, response.content_type) == (200, "text/html")
    assert await response.read() == b""


async def test_a_host_name_of_another_server_gets_no_page(server: Server) -> None:
    headers = {"Accept": BROWSER, "Host": "evil.example"}
    async with server.http.get(server.url + "/", headers=headers) as response:
        assert response.status == 421


async def test_the_public_address_is_the_one_on_the_page(workspace: Path) -> None:
    async with serving(workspace, public_url="https://public.example/a&b") as server:
        text = await (await ask(server, BROWSER)).text()
    assert "https://public.example/a&amp;b/.well-known/agent-card.json" in text
