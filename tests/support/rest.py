"""A client of the HTTP+JSON binding, and the table of its errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from bridge import errors
from tests.support.client import Json

A2A = "application/a2a+json"


PLAIN = "application/json"


ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"


BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest"


HOOK = {"url": "https://example.org/hook"}


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    media_type: str
    body: Any
    headers: Mapping[str, str]

    @property
    def error(self) -> Json:
        error: Json = self.body["error"]
        return error

    @property
    def reason(self) -> str:
        """Of an error; empty for none."""
        if "error" not in self.body:
            return ""
        (info,) = [one for one in self.error["details"] if one["@type"] == ERROR_INFO]
        assert info["domain"] == "a2a-protocol.org"
        assert all(isinstance(value, str) for value in info["metadata"].values())
        return str(info["reason"])

    @property
    def wrong_fields(self) -> list[str]:
        """The description of the request's fields in the error."""
        found = [one for one in self.error["details"] if one["@type"] == BAD_REQUEST]
        return [violation["field"] for one in found for violation in one["fieldViolations"]]


class Rest:
    """A client of the binding. `headers` go with every request; A2A-Version is 1.0 without them."""

    def __init__(self, http: aiohttp.ClientSession, url: str, **headers: str) -> None:
        self._http = http
        self._url = url
        self._headers = {"A2A-Version": "1.0", **headers}

    async def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """The answer, in full. `body`: JSON, or bytes as they are."""
        async with self._request(method, path, body, headers or {}) as response:
            data = await response.read()
            kind = response.headers.get("Content-Type", "").partition(";")[0]
            decoded = json.loads(data) if data and kind in (A2A, PLAIN) else data
            return Answer(response.status, kind, decoded, response.headers)

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.ask("GET", path, headers=headers)

    async def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return await self.ask("POST", path, body, headers)

    async def send(self, text: str, configuration: Json | None = None, **members: Any) -> Json:
        """A task, sent and unwrapped."""
        body = {"message": message(text, **members), "configuration": configuration or {}}
        answer = await self.post("/message:send", body)
        assert answer.status == 200, answer
        task: Json = answer.body["task"]
        return task

    async def items(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[Json]:
        """The items of a stream, as they come."""
        async with self._request(method, path, body, headers or {}) as response:
            assert response.status == 200, await response.read()
            assert response.headers["Content-Type"] == "text/event-stream"
            async for line in response.content:
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])

    def _request(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> Any:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        kind = {"Content-Type": A2A} if data is not None else {}
        all_headers = {**kind, **self._headers, **headers}
        given = {name: value for name, value in all_headers.items() if value}
        return self._http.request(
            method,
            self._url + path,
            data=data,
            headers=given,
            skip_auto_headers=("Accept", "Content-Type"),
        )


def message(text: str, **members: Any) -> Json:
    return {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": text}], **members}


# What the specification says of each (1.0.1 §5.4), and what we have beyond it.
TABLE = {
    errors.TaskNotFound: (-32001, "TASK_NOT_FOUND", 404, "NOT_FOUND"),
    errors.TaskNotCancelable: (-32002, "TASK_NOT_CANCELABLE", 400, "FAILED_PRECONDITION"),
    errors.PushNotificationNotSupported: (
        *(-32003, "PUSH_NOTIFICATION_NOT_SUPPORTED"),
        *(400, "FAILED_PRECONDITION"),
    ),
    errors.UnsupportedOperation: (-32004, "UNSUPPORTED_OPERATION", 400, "FAILED_PRECONDITION"),
    errors.ContentTypeNotSupported: (
        *(-32005, "CONTENT_TYPE_NOT_SUPPORTED"),
        *(400, "INVALID_ARGUMENT"),
    ),
    errors.ExtendedCardNotConfigured: (
        *(-32007, "EXTENDED_AGENT_CARD_NOT_CONFIGURED"),
        *(400, "FAILED_PRECONDITION"),
    ),
    errors.ExtensionSupportRequired: (
        *(-32008, "EXTENSION_SUPPORT_REQUIRED"),
        *(400, "FAILED_PRECONDITION"),
    ),
    errors.VersionNotSupported: (-32009, "VERSION_NOT_SUPPORTED", 400, "FAILED_PRECONDITION"),
    errors.ParseError: (-32700, "PARSE_ERROR", 400, "INVALID_ARGUMENT"),
    errors.InvalidRequest: (-32600, "INVALID_REQUEST", 400, "INVALID_ARGUMENT"),
    errors.MethodNotFound: (-32601, "METHOD_NOT_FOUND", 404, "NOT_FOUND"),
    errors.InvalidParams: (-32602, "INVALID_PARAMS", 400, "INVALID_ARGUMENT"),
    errors.BodyTooLarge: (-32600, "BODY_TOO_LARGE", 413, "RESOURCE_EXHAUSTED"),
    errors.Unauthenticated: (-32600, "UNAUTHENTICATED", 401, "UNAUTHENTICATED"),
    errors.TooManyRequests: (-32600, "TOO_MANY_REQUESTS", 429, "RESOURCE_EXHAUSTED"),
    errors.Forbidden: (-32600, "PERMISSION_DENIED", 403, "PERMISSION_DENIED"),
    errors.Unavailable: (-32603, "UNAVAILABLE", 503, "UNAVAILABLE"),
    errors.DataLoss: (-32603, "DATA_LOSS", 500, "DATA_LOSS"),
}


def check_unrouted(answer: Answer, status: int) -> None:
    """Check that `answer` reports an unknown path or method, in the shape of all errors."""
    assert (answer.status, answer.media_type, answer.reason) == (status, PLAIN, "METHOD_NOT_FOUND")
    assert answer.error.keys() == {"code", "status", "message", "details"}
    name = "NOT_FOUND" if status == 404 else "UNIMPLEMENTED"
    assert (answer.error["code"], answer.error["status"]) == (status, name)
    assert answer.error["message"]
