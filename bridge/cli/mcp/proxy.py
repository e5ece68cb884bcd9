"""Forwards the messages of one MCP client to a bridge, and its answers back.

A line is one POST, and each message of its response is one line. A bridge that restarts gets the
open requests again, with the same `Bridge-Call`, so that no call begins a second task.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from bridge.cli.mcp.finder import Address, BridgeFinder
from bridge.cli.mcp.front import Json, error_message
from bridge.client.connection import CONNECT_WITHIN, read_events
from bridge.client.failure import ClientError
from bridge.transports.mcp.announced import META, negotiated

REPEATS_FOR = 60.0  # seconds after which an unreachable bridge is an error
PAUSES = (0.1, 0.2, 0.4, 0.8, 1.0)  # seconds between two attempts; the last one repeats
MOST_LOSSES = 3  # of the connection of one request; a restart causes one
ANSWERS_AT_END = 0.4  # seconds for answers that are on their way when the client leaves
INTERNAL_ERROR = -32603
NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_META = f"{META}protocolVersion"
_MOST_ID = 100  # characters of a request id in a header
_RETRY = (502, 503, 504)
_PLAIN = re.compile(r"(?! )[\x20-\x7e]*(?<! )")


class _Lost(Exception):
    """The connection ended before the answer."""


@dataclass(frozen=True, slots=True)
class _Session:
    """A session of a revision that begins with `initialize`. `id`: None before a bridge has begun
    it."""

    id: str | None
    revision: str


class Proxy:
    """`http` returns the connections through a Unix socket, or over TCP for None. `write` gets each
    message for the client. `cwd` is the directory of the client."""

    def __init__(
        self,
        finder: BridgeFinder,
        http: Callable[[str | None], aiohttp.ClientSession],
        write: Callable[[Json], None],
        cwd: str,
    ) -> None:
        self._finder = finder
        self._http = http
        self._write = write
        self._cwd = cwd
        self._name = secrets.token_hex(16)
        self._calls: dict[str, tuple[Json, asyncio.Task[None]]] = {}
        self._first: asyncio.Task[None] | None = None  # later messages wait for it
        self._initialize: Json | None = None
        self._session: _Session | None = None
        self._renewing = asyncio.Lock()
        self._asked: dict[str, tuple[Any, str]] = {}  # ids of the bridge, and the calls that asked
        self._reached = False  # a bridge has answered

    def adopt(self, initialize: Json) -> None:
        """The client has begun a session of which no bridge knows."""
        self._initialize, self._session = initialize, _Session(None, negotiated(initialize))

    def receive(self, message: Json) -> None:
        """Begin to forward a message of the client."""
        if "method" in message and "id" in message:
            name = _key(message["id"])
            call = asyncio.create_task(self._call(name, message, self._first))
            self._calls[name] = message, call
            if message["method"] == "initialize":
                self._first = call
        elif message.get("method") == "notifications/cancelled":
            self._cancel(message)
        elif "method" in message:
            self._notify(message)
        else:
            self._answer(message)

    async def close(self) -> None:
        """The client has left. Answers that are on their way still arrive. Tasks continue: a
        `delegate` that waits is called again without waiting, since a closed one ends its task."""
        tasks = [task for _, task in self._calls.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=ANSWERS_AT_END)
        waiting = [message for message, _ in self._calls.values() if _waits(message)]
        again = [asyncio.create_task(self._repeat_at_end(one)) for one in waiting]
        if again:
            await asyncio.wait(again, timeout=ANSWERS_AT_END)
        for task in (*tasks, *again, *filter(None, [self._first])):
            task.cancel()

    # --- messages that need no answer ------------------------------------------------------------

    def _cancel(self, message: Json) -> None:
        """Close the POST of a call. Revisions with sessions also need the notification."""
        found = self._calls.get(_key((message.get("params") or {}).get("requestId")))
        if self._session:
            self._notify(message, then=found[1].cancel if found else None)
        elif found:
            found[1].cancel()

    def _answer(self, message: Json) -> None:
        """The response of the client to a request of the bridge."""
        asked, _ = self._asked.pop(_key(message.get("id")), (None, ""))
        if asked is not None:
            self._notify({**message, "id": asked})

    def _notify(self, message: Json, then: Callable[[], object] | None = None) -> None:
        """Send a message after the ones before it. Requests wait for it."""
        self._first = asyncio.create_task(self._send(message, self._first, then))

    async def _send(
        self,
        message: Json,
        before: asyncio.Task[None] | None,
        then: Callable[[], object] | None,
    ) -> None:
        if before:
            await asyncio.wait([before])
        # A bridge that restarts meanwhile has lost the request that the message names.
        with suppress(ClientError, aiohttp.ClientError, OSError):
            if self._finder.is_there():
                address = await self._finder.find()
                headers = self._headers(address, message)
                async with self._open(address, message, headers):
                    pass
        if then:
            then()

    # --- requests --------------------------------------------------------------------------------

    async def _call(self, name: str, message: Json, before: asyncio.Task[None] | None) -> None:
        """Forward a request until it is answered."""
        if before:
            await asyncio.wait([before])
        if message["method"] == "initialize":
            self._initialize, self._session = message, None
        try:
            await self._until_answered(name, message)
        except ClientError as error:
            self._write(
                error_message(message["id"], INTERNAL_ERROR, f"coding-agent-bridge: {error}")
            )
        except Exception as error:
            self._write(
                error_message(message["id"], INTERNAL_ERROR, f"coding-agent-bridge: {error!r}")
            )
            raise
        finally:
            self._forget_questions(name)
            self._calls.pop(name, None)

    async def _until_answered(self, name: str, message: Json) -> None:
        """Raises ClientError if no bridge can be reached."""
        loop = asyncio.get_running_loop()
        deadline, attempt, losses = loop.time() + REPEATS_FOR, 0, 0
        while True:
            session = self._session
            try:
                address = await self._finder.find()
                if session and session.id is None:
                    await self._renew(session)
                if await self._post(name, address, message):
                    return
                await self._renew(session)
                problem = ClientError("", "the bridge ended the session")
            except ClientError as error:
                problem = error
            except aiohttp.ClientConnectorError as error:
                problem = ClientError("", str(error))
            except (_Lost, aiohttp.ClientError, OSError) as error:
                self._reached, losses = True, losses + 1
                problem = ClientError("", f"no answer from the bridge: {error}")
            self._forget_questions(name)
            if not self._reached or losses >= MOST_LOSSES or loop.time() > deadline:
                raise problem
            await asyncio.sleep(PAUSES[min(attempt, len(PAUSES) - 1)])
            attempt += 1

    async def _post(self, name: str, address: Address, message: Json) -> bool:
        """Forward a request and its response. Returns False if the bridge does not know the
        session, which ended with an earlier process. Raises _Lost and errors of aiohttp."""
        headers = self._headers(address, message)
        async with self._open(address, message, headers) as response:
            if response.status in _RETRY:
                raise _Lost(f"HTTP {response.status}")
            if response.status == 404 and "Mcp-Session-Id" in headers:
                return False
            self._reached = True
            if response.content_type != "text/event-stream":
                answer = _answer_in(await response.read(), response.status, message["id"])
                self._answered(message, answer, response)
                return True
            async for _, found in read_events(response.content.iter_any()):
                if not isinstance(found, dict):
                    continue
                if "method" not in found:
                    self._answered(message, found, response)
                    return True
                self._write(self._as_asked(name, found))
        raise _Lost("the response ended early")

    def _answered(self, message: Json, answer: Json, response: aiohttp.ClientResponse) -> None:
        session = response.headers.get("Mcp-Session-Id")
        if message is self._initialize and session and "result" in answer:
            self._session = _Session(session, str(answer["result"].get("protocolVersion")))
        self._write(answer)

    async def _repeat_at_end(self, message: Json) -> None:
        params = message["params"]
        arguments = {**(params.get("arguments") or {}), "wait_seconds": 0}
        address = await self._finder.find()
        headers = self._headers(address, message)
        repeated = {**message, "params": {**params, "arguments": arguments}}
        async with self._open(address, repeated, headers) as response:
            await response.read()

    # --- sessions, and the questions of the bridge in them ---------------------------------------

    async def _renew(self, lost: _Session | None) -> None:
        """Begin a session in place of the lost one, or of one that no bridge knows. The client does
        not see it."""
        async with self._renewing:
            if self._session is not lost or self._initialize is None:
                return
            address = await self._finder.find()
            headers = self._headers(address, self._initialize)
            async with self._open(address, self._initialize, headers) as response:
                await response.read()
                session = response.headers.get("Mcp-Session-Id")
            if session is None:
                raise ClientError("", f"the bridge began no session: HTTP {response.status}")
            if lost:
                self._session = _Session(session, lost.revision)
                ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
                await self._send(ready, None, None)

    def _as_asked(self, name: str, message: Json) -> Json:
        """A message of the bridge. The id of a request becomes unique: a bridge counts from 0
        in each session."""
        if "id" not in message:
            return message
        asked = f"bridge-{secrets.token_hex(8)}"
        self._asked[_key(asked)] = message["id"], name
        return {**message, "id": asked}

    def _forget_questions(self, name: str) -> None:
        """The bridge does not wait for the answers to the questions of this call any more."""
        for key in [key for key, (_, call) in self._asked.items() if call == name]:
            del self._asked[key]
            params = {"requestId": json.loads(key), "reason": "The call has ended."}
            cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
            self._write(cancelled)

    # --- HTTP -------------------------------------------------------------------------------------

    def _open(self, address: Address, message: Json, headers: Mapping[str, str]) -> Any:
        return self._http(address.socket).post(
            f"{address.url}/mcp",
            data=io.BytesIO(orjson.dumps(message)),
            headers=headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_WITHIN),
        )

    def _headers(self, address: Address, message: Json) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
        }
        if address.token:
            headers["Authorization"] = f"Bearer {address.token}"
        if address.local and self._cwd.isprintable():
            headers["Bridge-Cwd"] = self._cwd
        if "id" in message and len(_key(message["id"])) <= _MOST_ID:
            headers["Bridge-Call"] = f"{self._name}:{_key(message['id'])}"
        params, method = message.get("params") or {}, message.get("method")
        modern = (params.get("_meta") or {}).get(_META) if isinstance(params, dict) else None
        if modern:
            name = params.get(NAMED.get(str(method), "taskId"))
            headers["MCP-Protocol-Version"] = str(modern)
            headers["Mcp-Method"] = str(method)
            if isinstance(name, str):
                headers["Mcp-Name"] = _header_value(name)
        elif self._session and self._session.id and method != "initialize":
            headers["Mcp-Session-Id"] = self._session.id
            headers["MCP-Protocol-Version"] = self._session.revision
        return headers


def _waits(message: Json) -> bool:
    """Whether the message is a call of a revision without sessions that can begin a task."""
    params = message.get("params")
    if message["method"] != "tools/call" or not isinstance(params, dict):
        return False
    return params.get("name") == "delegate" and _META in (params.get("_meta") or {})


def _key(identity: Any) -> str:
    """The id of a request: 1 and "1" differ."""
    return json.dumps(identity)


def _answer_in(body: bytes, status: int, identity: Any) -> Json:
    """The response to a request. An error of HTTP becomes one of JSON-RPC."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        found = None
    if isinstance(found, dict) and "jsonrpc" in found:
        return {**found, "id": identity}
    error = found.get("error") if isinstance(found, dict) else None
    said = error.get("message") if isinstance(error, dict) else error
    text = f"coding-agent-bridge: HTTP {status}{f': {said}' if said else ''}"
    return error_message(identity, INTERNAL_ERROR, text)


def _header_value(text: str) -> str:
    """`text`, encoded if a header cannot have it as it is."""
    if _PLAIN.fullmatch(text) and not text.startswith("=?base64?"):
        return text
    return f"=?base64?{base64.b64encode(text.encode('utf-8', 'surrogatepass')).decode()}?="
