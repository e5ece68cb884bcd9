"""The exceptions of the bridge, named by the side at fault. Wire codes are in a2a/.

BridgeError
├── ConfigurationError          the operator: a setting, a file or a binary (exit status 2)
├── LaunchError                 the CLI: it could not be started
├── InputUnknown                the server: a restart lost the position in a CLI's input
├── WorkspaceError              the directory that a CLI works in: deleted, or not readable
└── RequestError                the client
    ├── ParseError              the body is not JSON
    ├── InvalidRequest          JSON, but over a limit, or not a JSON-RPC 2.0 request
    ├── MethodNotFound
    ├── InvalidParams           has the wrong fields
    ├── BodyTooLarge
    ├── Unauthenticated
    ├── TooManyRequests         retry later
    ├── Forbidden               a known client without the right
    ├── Unavailable             shutting down or at a limit: retry later
    ├── DataLoss                the stored data of a task is damaged: a retry is useless
    ├── TaskNotFound            unknown, expired, or of another owner
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

TYPE_CHECKING = False  # a name that type checkers know: the module typing takes long to import
if TYPE_CHECKING:
    from typing import Any


class BridgeError(Exception):
    """Raised on purpose. `str(error)` says what to do about it and holds no secret."""


class ConfigurationError(BridgeError):
    """The operator's configuration is invalid or not available."""


class LaunchError(BridgeError):
    """The CLI could not be started. `problem` is the text for clients, without paths of the
    server."""

    def __init__(self, message: str, problem: str | None = None) -> None:
        super().__init__(message)
        self.problem = problem or message


class InputUnknown(BridgeError):
    """An earlier server ended while it wrote to the stdin of a CLI: the number of sent bytes is
    unknown."""


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
    """`fields`: pairs of path and problem, as in google.rpc.BadRequest."""

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
    """`of_task` is the error for each task that the principal cannot see: it was removed, it never
    existed, or it belongs to another owner. Nothing in the error tells which."""

    @classmethod
    def of_task(cls, task_id: str) -> TaskNotFound:
        return cls("Task not found: it has expired or never existed.", taskId=task_id[:256])


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
