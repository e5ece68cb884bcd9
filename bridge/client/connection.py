"""HTTP requests of the client: credentials of their origin only, no redirects, and a trace without
secrets."""

from __future__ import annotations

import json
import shlex
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
import orjson
from aiohttp.client_exceptions import UnixClientConnectorError

from bridge.client.bindings import HttpRequest
from bridge.client.credentials import UNIX, Credentials, origin_of
from bridge.client.failure import (
    AUTH_FAILED,
    CREDENTIALS_MISSING,
    UNREACHABLE,
    ClientError,
    ConnectionLost,
)
from bridge.errors.program import command

CONNECT_WITHIN = 10.0  # seconds
ANSWER_WITHIN = 60.0
SILENCE = 15.0  # seconds without a byte after which a stream counts as broken
_TRACED = 16 * 1024  # characters of a body in the trace
_RETRY = (502, 503, 504)
Event = tuple[str | None, Any]
"""The id of a server-sent event, and its JSON."""


class HttpConnection:
    """`headers` go with every request; `secret_headers` too, but the trace hides their values.
    `api_key`: the place and the name of an API key. `trace` gets each request and response as
    lines for people."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        headers: Mapping[str, str],
        *,
        secret_headers: Mapping[str, str],
        credentials: Credentials | None,
        api_key: tuple[str, str],
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self._session = session
        self._headers = headers
        self._secret_headers = secret_headers
        self.credentials = credentials
        self._api_key = api_key
        self._trace = trace

    async def fetch(
        self, request: HttpRequest, headers: Mapping[str, str], within: float | None = ANSWER_WITHIN
    ) -> tuple[int, Any]:
        """The status and the JSON of the response; None for a body that is not JSON. Raises
        ClientError."""
        timeout = aiohttp.ClientTimeout(total=within, sock_connect=CONNECT_WITHIN)
        try:
            async with self._open(request, headers, timeout) as response:
                body = await response.read()
                self._traced(f"< {response.status} {body[:_TRACED].decode(errors='replace')}")
                decoded = _decoded(body)
                self._check(response, decoded)
                return response.status, decoded
        except TimeoutError:
            raise ConnectionLost(f"no answer from {origin_of(request.url)}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise lost(request.url, error) from error

    async def events(
        self, request: HttpRequest, headers: Mapping[str, str]
    ) -> AsyncGenerator[tuple[int, Event]]:
        """The events of a response with its status. A response that is not an event stream is one
        event. Raises ClientError."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_WITHIN, sock_read=SILENCE)
        try:
            async with self._open(request, headers, timeout) as response:
                if response.content_type != "text/event-stream":
                    decoded = _decoded(await response.read())
                    self._check(response, decoded)
                    yield response.status, (None, decoded)
                    return
                async for event in read_events(response.content.iter_any()):
                    self._traced(f"< {event[0] or ''} {json.dumps(event[1])[:_TRACED]}")
                    yield response.status, event
        except TimeoutError:
            raise ConnectionLost(f"{origin_of(request.url)} is silent") from None
        except (aiohttp.ClientError, OSError) as error:
            raise lost(request.url, error) from error

    def _open(
        self, request: HttpRequest, headers: Mapping[str, str], timeout: aiohttp.ClientTimeout
    ) -> Any:
        url, secret = self._with_credentials(request.url)
        shown = {**self._headers, **headers}
        hidden = dict.fromkeys(self._secret_headers, "[REDACTED]")
        self._traced(_curl(request, {**shown, **hidden}, list(secret)))
        return self._session.request(
            request.method,
            url,
            data=None if request.body is None else orjson.dumps(request.body),
            headers={**shown, **self._secret_headers, **secret},
            timeout=timeout,
            allow_redirects=False,
        )

    def _with_credentials(self, url: str) -> tuple[Any, dict[str, str]]:
        """The URL and the headers with the credentials, if they belong to its origin."""
        found = self.credentials
        if found is None or found.origin != origin_of(url):
            return url, {}
        found.check(url)
        if found.bearer:
            return url, {"Authorization": f"Bearer {found.bearer}"}
        place, name = self._api_key
        value = found.api_key or ""
        if place == "query":
            joint = "&" if urlsplit(url).query else "?"
            return f"{url}{joint}{quote(name)}={quote(value)}", {}
        return url, {"Cookie": f"{name}={value}"} if place == "cookie" else {name: value}

    def _check(self, response: aiohttp.ClientResponse, body: Any) -> None:
        """Raises ClientError for a status that no binding describes."""
        status, where = response.status, origin_of(str(response.url))
        if status in (401, 407) or (status == 403 and not _is_protocol_error(body)):
            raise self._refused(where, status, body)
        if status in _RETRY:
            raise ConnectionLost(f"{where} is not available now (HTTP {status})")
        if 300 <= status < 400:
            text = f"{where} redirects to another address; redirects are not followed"
            raise ClientError(UNREACHABLE, text)

    def _refused(self, where: str, status: int, body: Any) -> ClientError:
        said = _message(body) or f"HTTP {status}"
        sent = self.credentials is not None and self.credentials.origin == where
        if sent and self.credentials:
            text = f"{where} refuses the credentials of {self.credentials.source}: {said}"
            return ClientError(AUTH_FAILED, text, a2a_code=status)
        hint = command("auth", "login", where)
        text = f"{where} requires credentials: {said}"
        if self.credentials:
            text += f" (those of {self.credentials.source} belong to {self.credentials.origin})"
        return ClientError(CREDENTIALS_MISSING, text, hint=hint, a2a_code=status)

    def _traced(self, text: str) -> None:
        if self._trace:
            self._trace(self.redacted(text))

    def redacted(self, text: str) -> str:
        """`text` without the credentials of this connection."""
        found = self.credentials
        secrets = {
            **({found.bearer: "$A2ACLI_BEARER"} if found and found.bearer else {}),
            **({found.api_key: "$A2ACLI_API_KEY"} if found and found.api_key else {}),
            **dict.fromkeys(filter(None, self._secret_headers.values()), "[REDACTED]"),
        }
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, secrets[secret])
        return text


def lost(url: str, error: Exception) -> ClientError:
    """The failure of a connection. One of TLS does not end by a retry."""
    where = origin_of(url)
    if isinstance(error, UnixClientConnectorError):
        where = f"{UNIX}{error.path}"
    if isinstance(error, aiohttp.ClientSSLError):
        return ClientError(UNREACHABLE, f"TLS with {where} failed: {error}")
    if isinstance(error, aiohttp.InvalidURL):
        return ClientError(UNREACHABLE, f"{url} is not a valid address")
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return ConnectionLost(f"cannot reach {where}: {reason}")


async def read_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[Event]:
    """The events of a stream with JSON in their data. Lines may have any length."""
    event_id: str | None = None
    data: list[bytes] = []
    async for line in read_lines(chunks):
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif name == b"id":
            event_id = value.decode("ascii", "replace")
        elif not line and data:
            yield event_id, _decoded(b"\n".join(data))
            data = []


async def read_lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The lines of a stream without their ends, of any length. The rest without an end is lost."""
    pieces: list[bytes] = []
    async for chunk in chunks:
        first, *rest = chunk.split(b"\n")
        pieces.append(first)
        for piece in rest:
            yield b"".join(pieces).removesuffix(b"\r")
            pieces = [piece]


def _decoded(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _is_protocol_error(body: Any) -> bool:
    """Whether the body has an error of A2A; its own error says more than the status."""
    error = body.get("error") if isinstance(body, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    return isinstance(code, int) and -32100 < code <= -32001


def _message(body: Any) -> str:
    error = body.get("error") if isinstance(body, dict) else None
    return str(error.get("message") or "") if isinstance(error, dict) else ""


_SECRET_MEMBERS = ("token", "credentials")


def _hidden(value: Any) -> Any:
    """A body without the secrets of push notification configs."""
    if isinstance(value, dict):
        return {
            name: "[REDACTED]" if name in _SECRET_MEMBERS and isinstance(one, str) else _hidden(one)
            for name, one in value.items()
        }
    return [_hidden(one) for one in value] if isinstance(value, list) else value


def _curl(request: HttpRequest, headers: Mapping[str, str], secret: list[str]) -> str:
    words = ["curl", "-X", request.method, shlex.quote(request.url)]
    for name, value in headers.items():
        words += ["-H", shlex.quote(f"{name}: {value}")]
    for name in secret:
        value = "Bearer $A2ACLI_BEARER" if name == "Authorization" else "$A2ACLI_API_KEY"
        words += ["-H", f'"{name}: {value}"']
    if request.body is not None:
        words += ["-d", shlex.quote(json.dumps(_hidden(request.body))[:_TRACED])]
    return " ".join(words)
