"""Everything the bridge raises on purpose, named by whose fault it is. Wire codes live in a2a/.

BridgeError
├── ConfigurationError          the operator: a setting, a file or a binary (exit status 2)
├── LaunchError                 the CLI: it could not be started
├── WorkspaceError              the directory that a CLI works in: deleted, or not readable
└── RequestError                the client
    ├── ParseError              the body is not JSON
    ├── InvalidRequest          JSON, but beyond our limits, or not a JSON-RPC 2.0 request
    ├── MethodNotFound
    ├── InvalidParams           carries the fields that are wrong
    ├── BodyTooLarge
    ├── Unauthenticated
    ├── TooManyRequests         wait before you try again
    ├── Forbidden               who is known, but may not do this
    ├── Unavailable             shutting down or out of room: try again later
    ├── DataLoss                what was written down of a task is damaged: nothing to try again
    ├── TaskNotFound            unknown and foreign look the same
    ├── TaskNotCancelable
    ├── UnsupportedOperation
    ├── ExtendedCardNotConfigured
    ├── PushNotificationNotSupported
    ├── ContentTypeNotSupported
    ├── ExtensionSupportRequired
    └── VersionNotSupported
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class BridgeError(Exception):
    """Raised on purpose. `str(error)` says what to do about it and holds no secret."""


class ConfigurationError(BridgeError):
    """The operator asked for something that cannot be had."""


class LaunchError(BridgeError):
    """The CLI could not be started. `problem` is what clients may be told: no paths of ours."""

    def __init__(self, message: str, problem: str | None = None) -> None:
        super().__init__(message)
        self.problem = problem or message


class WorkspaceError(BridgeError):
    """No CLI can work in the directory. `name` is what clients may call it, `cause` the system's
    words; the message has the full path."""

    def __init__(self, path: str, name: str, cause: str) -> None:
        super().__init__(f"{path} cannot be worked in: {cause}")
        self.name = name
        self.cause = cause


class RequestError(BridgeError):
    """A client's request cannot be served. `details` are facts for programs, strings only."""

    def __init__(self, message: str, **details: str) -> None:
        super().__init__(message)
        self.details: Mapping[str, str] = details


class ParseError(RequestError):
    pass


class InvalidRequest(RequestError):
    """`body`: the request as far as it could be decoded."""

    def __init__(self, message: str, body: Any = None) -> None:
        super().__init__(message)
        self.body = body


class MethodNotFound(RequestError):
    pass


class InvalidParams(RequestError):
    """`fields`: (path, what is wrong with it) pairs, as google.rpc.BadRequest wants them."""

    def __init__(self, message: str, fields: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.fields = tuple(fields)


class BodyTooLarge(RequestError):
    pass


class Unauthenticated(RequestError):
    pass


class TooManyRequests(RequestError):
    """`seconds`: how long to wait."""

    def __init__(self, message: str, seconds: int = 60) -> None:
        super().__init__(message)
        self.seconds = seconds


class Forbidden(RequestError):
    pass


class Unavailable(RequestError):
    """`seconds`: how long to wait."""

    seconds = 1


class DataLoss(RequestError):
    pass


class TaskNotFound(RequestError):
    pass


class TaskNotCancelable(RequestError):
    pass


class UnsupportedOperation(RequestError):
    pass


class ExtendedCardNotConfigured(RequestError):
    pass


class PushNotificationNotSupported(RequestError):
    pass


class ContentTypeNotSupported(RequestError):
    pass


class ExtensionSupportRequired(RequestError):
    pass


class VersionNotSupported(RequestError):
    pass
