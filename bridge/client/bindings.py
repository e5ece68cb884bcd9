"""The bindings: an operation as an HTTP request, and the response as JSON in the shape of 1.0."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from bridge.a2a import NEWEST, OLDEST
from bridge.client import shapes
from bridge.client.failure import NAMES, REASONS, ClientError
from bridge.client.shapes import Json

SEND, STREAM, GET, LIST, CANCEL, SUBSCRIBE, EXTENDED_CARD = (
    "SendMessage",
    "SendStreamingMessage",
    "GetTask",
    "ListTasks",
    "CancelTask",
    "SubscribeToTask",
    "GetExtendedAgentCard",
)
PUSH_CREATE, PUSH_GET, PUSH_LIST, PUSH_DELETE = (
    "CreateTaskPushNotificationConfig",
    "GetTaskPushNotificationConfig",
    "ListTaskPushNotificationConfigs",
    "DeleteTaskPushNotificationConfig",
)
Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """`body` None: a request without one."""

    method: str
    url: str
    body: Json | None = None


class Binding(ABC):
    """The binding of one interface of a card. `tenant`: its routing identifier."""

    name: str
    version: str = NEWEST
    content_type = "application/json"

    def __init__(self, url: str, tenant: str | None) -> None:
        self.url = url.rstrip("/")
        self.tenant = tenant

    @abstractmethod
    def request(self, operation: str, params: Json) -> HttpRequest: ...

    @abstractmethod
    def result(self, operation: str, status: int, body: Any) -> Any:
        """The result in the body of a response or of an event. Raises ClientError."""


# --- JSON-RPC ----------------------------------------------------------------------------------


def _same(value: Any) -> Any:
    return value


_OLD: Mapping[str, tuple[str, Convert, Convert]] = {
    SEND: ("message/send", shapes.downgrade_send, shapes.upgrade),
    STREAM: ("message/stream", shapes.downgrade_send, shapes.upgrade),
    GET: ("tasks/get", _same, shapes.upgrade_task),
    LIST: ("tasks/list", shapes.downgrade_list, shapes.upgrade_page),
    CANCEL: ("tasks/cancel", _same, shapes.upgrade_task),
    SUBSCRIBE: ("tasks/resubscribe", _same, shapes.upgrade),
    EXTENDED_CARD: ("agent/getAuthenticatedExtendedCard", _same, _same),
    PUSH_CREATE: (
        "tasks/pushNotificationConfig/set",
        shapes.downgrade_push,
        shapes.upgrade_push,
    ),
    PUSH_GET: (
        "tasks/pushNotificationConfig/get",
        shapes.downgrade_push_name,
        shapes.upgrade_push,
    ),
    PUSH_LIST: (
        "tasks/pushNotificationConfig/list",
        shapes.downgrade_push_name,
        lambda configs: {"configs": [shapes.upgrade_push(one) for one in configs or ()]},
    ),
    PUSH_DELETE: ("tasks/pushNotificationConfig/delete", shapes.downgrade_push_name, _same),
}
"""The method of 0.3, the translation of its parameters, and the translation of its result."""


class JsonRpcBinding(Binding):
    name = "JSONRPC"

    def __init__(self, url: str, tenant: str | None, version: str = NEWEST) -> None:
        super().__init__(url, tenant)
        self.url = url  # a trailing slash is part of the address
        self.version = version
        self._ids = itertools.count(1)

    def request(self, operation: str, params: Json) -> HttpRequest:
        if self.tenant:
            params = {**params, "tenant": self.tenant}
        method = operation
        if self.version == OLDEST:
            method, convert, _ = _OLD[operation]
            params = convert(params)
        body = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        return HttpRequest("POST", self.url, body)

    def result(self, operation: str, status: int, body: Any) -> Any:
        if not isinstance(body, dict) or not ("result" in body or "error" in body):
            raise _invalid_answer(f"HTTP {status}: the body is not a JSON-RPC response")
        if body.get("error"):
            raise _rpc_error(body["error"])
        result = body.get("result")
        return _OLD[operation][2](result) if self.version == OLDEST else result


def _rpc_error(error: Any) -> ClientError:
    if not isinstance(error, dict):
        return _invalid_answer("the error of the response is not an object")
    code = error.get("code")
    number = code if isinstance(code, int) else -32603
    name = _reason(error.get("data")) or NAMES.get(number, "InternalError")
    return ClientError(name, str(error.get("message") or name), a2a_code=code)


# --- HTTP+JSON ---------------------------------------------------------------------------------

_PUSHES = "/tasks/{taskId}/pushNotificationConfigs"
_ROUTES: Mapping[str, tuple[str, str]] = {
    SEND: ("POST", "/message:send"),
    STREAM: ("POST", "/message:stream"),
    GET: ("GET", "/tasks/{id}"),
    LIST: ("GET", "/tasks"),
    CANCEL: ("POST", "/tasks/{id}:cancel"),
    SUBSCRIBE: ("GET", "/tasks/{id}:subscribe"),
    EXTENDED_CARD: ("GET", "/extendedAgentCard"),
    PUSH_CREATE: ("POST", _PUSHES),
    PUSH_GET: ("GET", _PUSHES + "/{id}"),
    PUSH_LIST: ("GET", _PUSHES),
    PUSH_DELETE: ("DELETE", _PUSHES + "/{id}"),
}


class RestBinding(Binding):
    name = "HTTP+JSON"
    content_type = "application/a2a+json"

    def request(self, operation: str, params: Json) -> HttpRequest:
        method, route = _ROUTES[operation]
        named = {name for name in params if "{" + name + "}" in route}
        path = route.format(**{name: quote(str(params[name]), safe="") for name in named})
        left = {name: value for name, value in params.items() if name not in named}
        prefix = f"/{quote(self.tenant, safe='')}" if self.tenant else ""
        url = f"{self.url}{prefix}{path}"
        if method == "POST":
            return HttpRequest(method, url, left)
        query = urlencode({name: _query(value) for name, value in left.items()})
        return HttpRequest(method, f"{url}?{query}" if query else url)

    def result(self, operation: str, status: int, body: Any) -> Any:
        if isinstance(body, dict) and isinstance(body.get("error"), dict):
            raise _status_error(status, body["error"])
        if status >= 400:
            raise _status_error(status, {"message": f"HTTP {status}"})
        return body


def _query(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _status_error(http: int, error: Json) -> ClientError:
    """The error of a google.rpc.Status. The name is the one that JSON-RPC would have."""
    name = _reason(error.get("details")) or _reason(error.get("data"))
    if name is None:
        name = "InternalError" if http >= 500 else "InvalidRequestError"
    code = error.get("status") or error.get("code")
    return ClientError(name, str(error.get("message") or name), a2a_code=code)


def _reason(details: Any) -> str | None:
    for one in details if isinstance(details, list) else ():
        if isinstance(one, dict) and one.get("reason") in REASONS:
            return REASONS[one["reason"]]
    return None


def _invalid_answer(text: str) -> ClientError:
    return ClientError("InvalidAgentResponseError", text)
