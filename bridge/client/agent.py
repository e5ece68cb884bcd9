"""A remote agent: its card, the binding that was chosen, and the operations of A2A."""

from __future__ import annotations

import shlex
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from bridge.a2a import NEWEST, OLDEST
from bridge.client import bindings
from bridge.client.bindings import Binding, HttpRequest
from bridge.client.card import LOCALHOST, AgentCard, address_of, read_file
from bridge.client.connection import ANSWER_WITHIN, HttpConnection, lost
from bridge.client.credentials import UNIX, Credentials, CredentialStore, origin_of, socket_of
from bridge.client.failure import (
    CARD_INVALID,
    CARD_NOT_FOUND,
    CREDENTIALS_MISSING,
    ClientError,
    usage,
)
from bridge.client.local_server import LocalServer, choose
from bridge.client.shapes import EXTENSION, Json

_EXTENSION_HEADERS = {NEWEST: "A2A-Extensions", OLDEST: "X-A2A-Extensions"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The agent to talk to, and how. `reference`: a card; None: the local server for the directory
    `cwd`. `servers` are the local ones. `source` names the origin of the given credentials."""

    reference: str | None
    cwd: str
    servers: Sequence[LocalServer]
    store: CredentialStore
    bearer: str | None = None
    api_key: str | None = None
    source: str = "--bearer"
    transports: Sequence[str] = ()
    version: str | None = None
    parameters: Sequence[tuple[str, str]] = ()
    insecure: bool = False
    trace: Callable[[str], None] | None = field(default=None)

    @property
    def server(self) -> LocalServer | None:
        """The local server that the reference means. Raises ClientError."""
        if self.reference is None:
            return choose(self.servers, self.cwd)
        if path := socket_of(self.reference):
            return next((one for one in self.servers if one.socket == path), None)
        url = address_of(self.reference)
        origin = origin_of(url) if url else None
        return next((one for one in self.servers if origin_of(one.url) == origin), None)


class RemoteAgent:
    """An agent and a connection to it. `server`: the local server, if it is one of this user.
    `base`: an address at the origin of its server; None for a card from a file."""

    def __init__(
        self,
        card: AgentCard,
        binding: Binding,
        connection: HttpConnection,
        server: LocalServer | None = None,
        socket: str | None = None,
    ) -> None:
        """`socket`: the path of the Unix socket that all requests use."""
        self.base = server.url if server and socket is None else card.url
        self.card = card
        self.binding = binding
        self.server = server
        self._connection = connection

    @property
    def streams(self) -> bool:
        return self.card.has("streaming")

    @property
    def credentials(self) -> Credentials | None:
        return self._connection.credentials

    def redacted(self, text: str) -> str:
        return self._connection.redacted(text)

    async def call(self, operation: str, params: Json) -> Any:
        """The result of an operation, in the shape of 1.0. Raises ClientError."""
        request = self.binding.request(operation, params)
        # A server may ignore the wish for an immediate answer to a send.
        within = None if operation == bindings.SEND else ANSWER_WITHIN
        headers = self._headers(params, request, "application/json")
        status, body = await self._connection.fetch(request, headers, within)
        return self.binding.result(operation, status, body)

    async def stream(
        self, operation: str, params: Json, after: str | None = None
    ) -> AsyncGenerator[tuple[str | None, Json]]:
        """The items of a stream with the ids of their events. `after`: the id of the last event
        that was received before. Raises ClientError."""
        request = self.binding.request(operation, params)
        headers = self._headers(params, request, "text/event-stream")
        if after is not None:
            headers["Last-Event-ID"] = after
        async with aclosing(self._connection.events(request, headers)) as events:
            async for status, (event_id, body) in events:
                item = self.binding.result(operation, status, body)
                if isinstance(item, dict):
                    yield event_id, item

    async def get(self, url: str) -> Any:
        """The JSON at an address of the same server. Raises ClientError."""
        status, body = await self._connection.fetch(HttpRequest("GET", url), {})
        if status != 200 or body is None:
            raise ClientError("InvalidAgentResponseError", f"{url}: HTTP {status}")
        return body

    async def feed(
        self, url: str, after: str | None = None
    ) -> AsyncGenerator[tuple[str | None, Json]]:
        """The objects of an event stream at an address of the same server, with their ids. `after`:
        the id of the last one that was received before. Raises ClientError."""
        headers = {"Accept": "text/event-stream"}
        if after is not None:
            headers["Last-Event-ID"] = after
        async with aclosing(self._connection.events(HttpRequest("GET", url), headers)) as events:
            async for status, (event_id, body) in events:
                if status != 200 or not isinstance(body, dict):
                    raise ClientError("InvalidAgentResponseError", f"{url}: HTTP {status}")
                yield event_id, body

    def _headers(self, params: Json, request: HttpRequest, accept: str) -> dict[str, str]:
        headers = {"Accept": accept}
        if request.body is not None:
            headers["Content-Type"] = self.binding.content_type
        message_id = (params.get("message") or {}).get("messageId")
        if message_id and self.card.is_bridge:
            headers["Idempotency-Key"] = message_id
        return headers


@asynccontextmanager
async def connect(target: Target) -> AsyncIterator[RemoteAgent]:
    """Read the card, and choose the interface and the credentials. Raises ClientError."""
    server = target.server
    reference = target.reference or (server.url if server else "")
    socket = socket_of(reference)
    connector: aiohttp.BaseConnector = aiohttp.TCPConnector(ssl=not target.insecure)
    if socket:
        connector = aiohttp.UnixConnector(socket)
        if target.trace:
            target = replace(target, trace=partial(_trace_socket, target.trace, socket))
    async with aiohttp.ClientSession(
        connector=connector, read_bufsize=2**18, cookie_jar=aiohttp.DummyCookieJar()
    ) as session:
        card = await find_card(session, target, reference)
        binding = card.select(target.transports, target.version)
        if socket:
            binding.url = LOCALHOST + urlsplit(binding.url).path
        elif server and origin_of(binding.url) != origin_of(server.url):
            # The card has the public address of the server; its token goes to the local one.
            path = "/a2a/rest" if binding.name == "HTTP+JSON" else "/a2a/jsonrpc"
            binding.url = server.url + path
        headers = {"A2A-Version": binding.version, "User-Agent": "coding-agent-bridge"}
        if card.is_bridge:
            headers[_EXTENSION_HEADERS[binding.version]] = EXTENSION
        connection = HttpConnection(
            session,
            headers,
            secret_headers=dict(target.parameters),
            credentials=_credentials(target, card, binding, server=server, socket=socket),
            api_key=card.api_key,
            trace=target.trace,
        )
        yield RemoteAgent(card, binding, connection, server, socket)


def _trace_socket(trace: Callable[[str], None], socket: str, text: str) -> None:
    """Complete the command of curl."""
    if text.startswith("curl "):
        text = f"curl --unix-socket {shlex.quote(socket)} {text.removeprefix('curl ')}"
    trace(text)


async def find_card(session: aiohttp.ClientSession, target: Target, reference: str) -> AgentCard:
    """The card of a reference. The request has no credentials. Raises ClientError."""
    url = address_of(reference)
    return read_file(reference) if url is None else await _download(session, url, target)


async def _download(session: aiohttp.ClientSession, url: str, target: Target) -> AgentCard:
    if target.trace:
        target.trace(f"curl {url}")
    timeout = aiohttp.ClientTimeout(total=ANSWER_WITHIN, sock_connect=10)
    headers = {"Accept": "application/json", "A2A-Version": target.version or NEWEST}
    try:
        async with session.get(url, timeout=timeout, headers=headers) as response:
            if response.status in (401, 403):
                text = f"the agent card at {url} requires credentials"
                raise ClientError(CREDENTIALS_MISSING, text, a2a_code=response.status)
            if response.status != 200:
                text = f"{url} has no agent card: HTTP {response.status}"
                raise ClientError(CARD_NOT_FOUND, text, a2a_code=response.status)
            content = await response.json(content_type=None)
    except ValueError as error:
        raise ClientError(CARD_INVALID, f"{url} is not a JSON document: {error}") from None
    except TimeoutError:
        raise lost(url, OSError("no answer")) from None
    except (aiohttp.ClientError, ssl.SSLError, OSError) as error:
        raise lost(url, error) from error
    return AgentCard(content, url)


def _credentials(
    target: Target,
    card: AgentCard,
    binding: Binding,
    *,
    server: LocalServer | None,
    socket: str | None,
) -> Credentials | None:
    """The credentials for the origin of the interface. Those of the command line or the
    environment belong to the origin of the card. Those of a Unix socket are stored by its path."""
    origin = origin_of(binding.url)
    owner = origin_of(card.url) if card.url else origin
    if target.bearer or target.api_key:
        if target.bearer and target.api_key:
            raise usage("--bearer and --api-key exclude each other")
        owner = origin if server else owner
        return Credentials(owner, target.source, target.bearer, target.api_key)
    stored = target.store.tokens().get(f"{UNIX}{socket}" if socket else origin)
    if stored:
        return Credentials(origin, str(target.store.path), bearer=stored)
    if server and server.token and (socket or origin == origin_of(server.url)):
        return Credentials(origin, str(server.token_file), bearer=server.token)
    return None


def page_of(url: str, path: str) -> str:
    """The address of `path` at the origin of `url`."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{path}"
