"""The interface and the common parts of the codecs, one per protocol version.

A codec has tables (methods, states, error codes) and pure functions between JSON and the types that
all versions share. Only codecs know the names of a version.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, ClassVar

from bridge import errors
from bridge.a2a.card import Card
from bridge.a2a.requests import (
    ListParams,
    ListRequest,
    PushParams,
    SendParams,
    TaskParams,
    parse,
)
from bridge.task.artifact import Artifact, ArtifactUpdate
from bridge.task.message import DataPart, Message, Part, Role, TextPart
from bridge.task.render import history, status_message, status_metadata, task_metadata
from bridge.task.state import StatusUpdate, Task, Update
from bridge.task.transitions import TaskState

ERROR_DOMAIN = "a2a-protocol.org"


class Operation(Enum):
    """An operation of the protocol (1.0 §5.3)."""

    SEND = "send"
    STREAM = "stream"
    GET = "get"
    LIST = "list"
    CANCEL = "cancel"
    SUBSCRIBE = "subscribe"
    EXTENDED_CARD = "extended-card"
    PUSH_CREATE = "push-create"
    PUSH_GET = "push-get"
    PUSH_LIST = "push-list"
    PUSH_DELETE = "push-delete"


STREAMING = frozenset({Operation.STREAM, Operation.SUBSCRIBE})
"""The operations whose answer is a stream."""


@dataclass(frozen=True, slots=True)
class Page:
    """The position of a page. `next_token`: empty for the last page. `total`: of all pages."""

    next_token: str
    total: int


# JSON-RPC code and ErrorInfo reason of each error (1.0.1 §5.4, §9.5), the same in both versions.
ERRORS: Mapping[type[errors.BridgeError], tuple[int, str]] = {
    errors.TaskNotFound: (-32001, "TASK_NOT_FOUND"),
    errors.TaskNotCancelable: (-32002, "TASK_NOT_CANCELABLE"),
    errors.PushNotificationNotSupported: (-32003, "PUSH_NOTIFICATION_NOT_SUPPORTED"),
    errors.UnsupportedOperation: (-32004, "UNSUPPORTED_OPERATION"),
    errors.ContentTypeNotSupported: (-32005, "CONTENT_TYPE_NOT_SUPPORTED"),
    errors.ExtendedCardNotConfigured: (-32007, "EXTENDED_AGENT_CARD_NOT_CONFIGURED"),
    errors.ExtensionSupportRequired: (-32008, "EXTENSION_SUPPORT_REQUIRED"),
    errors.VersionNotSupported: (-32009, "VERSION_NOT_SUPPORTED"),
    errors.ParseError: (-32700, "PARSE_ERROR"),
    errors.InvalidRequest: (-32600, "INVALID_REQUEST"),
    errors.BodyTooLarge: (-32600, "BODY_TOO_LARGE"),
    errors.Unauthenticated: (-32600, "UNAUTHENTICATED"),
    errors.TooManyRequests: (-32600, "TOO_MANY_REQUESTS"),
    errors.Forbidden: (-32600, "PERMISSION_DENIED"),
    errors.MethodNotFound: (-32601, "METHOD_NOT_FOUND"),
    errors.InvalidParams: (-32602, "INVALID_PARAMS"),
    errors.Unavailable: (-32603, "UNAVAILABLE"),
    errors.DataLoss: (-32603, "DATA_LOSS"),
}
INTERNAL_ERROR = (-32603, "INTERNAL_ERROR")


Seal = Callable[[dict[str, Any]], Any]
"""Replaces a part of a large task by its JSON, which takes less memory than objects."""


def _as_it_is(encoded: dict[str, Any]) -> dict[str, Any]:
    return encoded


class Codec(ABC):
    """One protocol version: its tables, and the shapes that differ between versions.

    `extended`: the client activates EXTENSION and gets the facts of messages as data parts.
    """

    version: ClassVar[str]
    methods: ClassVar[Mapping[str, Operation]]
    """JSON-RPC method names, including wrong spellings of real clients."""
    states: ClassVar[Mapping[TaskState, str]]
    roles: ClassVar[Mapping[Role, str]]
    numbers: ClassVar[Mapping[int, TaskState]] = {}
    """The states by enum number, for versions with numbers."""

    no_extended_card: ClassVar[type[errors.RequestError]] = errors.UnsupportedOperation
    """The error for a request of the extended card from an agent without one."""
    has_grpc: ClassVar[bool] = False
    """The gRPC binding speaks the version."""
    signs_cards: ClassVar[bool] = False
    """A card of the version can carry signatures."""
    errors_in_streams: ClassVar[bool] = False
    """A client that accepts only event streams gets an error as an event."""
    media_type: ClassVar[str] = "application/a2a+json"
    """The media type of push notifications and, unless the client names another one, of answers
    over HTTP+JSON."""
    default_push_id: ClassVar[bool] = False
    """No id, and the id `default`, name the first push config that was set without an id."""

    def __init__(self, extended: bool = False) -> None:
        self.extended = extended

    @abstractmethod
    def decode_send(self, params: Mapping[str, Any]) -> SendParams: ...

    def decode_task(self, params: Mapping[str, Any]) -> TaskParams:
        """Raises InvalidParams."""
        return parse(TaskParams, params)

    def decode_list(self, params: Mapping[str, Any]) -> ListParams:
        decoded = parse(ListRequest, params)
        return ListParams(
            context_id=decoded.context_id or None,
            state=self._state(decoded.status),
            changed_since=decoded.status_timestamp_after,
            page_size=decoded.page_size or 50,
            page_token=decoded.page_token or "",
            history_length=decoded.history_length,
            include_artifacts=decoded.include_artifacts,
        )

    @abstractmethod
    def decode_push(self, operation: Operation, params: Mapping[str, Any]) -> PushParams:
        """The parameters of the four operations on push notification configs."""

    @abstractmethod
    def encode_push(self, config: PushParams) -> dict[str, Any]:
        """A config without its credentials, which are write-only."""

    @abstractmethod
    def encode_pushes(self, configs: Sequence[PushParams]) -> Any: ...

    @abstractmethod
    def encode_notification(self, task: Task, update: Update) -> dict[str, Any] | None:
        """The body of a notification; None for no notification."""

    @abstractmethod
    def item(self, kind: str, encoded: dict[str, Any], final: bool) -> dict[str, Any]:
        """An object as the result of a send, or as an item of a stream. `kind`: "task", "message",
        "status-update" or "artifact-update"; `final`: the last item."""

    def encode_sent(
        self, task: Task, history_length: int | None = None, *, seal: Seal = _as_it_is
    ) -> dict[str, Any]:
        """The result of a send: a task or, if the agent replied directly, a message. It is also
        the first item of a stream."""
        reply = status_message(task, task.reply)
        if reply:
            return self.encode_reply(reply)
        encoded = self.encode_task(task, history_length, seal=seal)
        return self.item("task", encoded, final=False)

    def encode_reply(self, message: Message) -> dict[str, Any]:
        """The result of a send that is a message."""
        return self.item("message", self.encode_message(message), final=False)

    def encode_update(self, task: Task, update: Update, final: bool) -> dict[str, Any]:
        """An item of a stream. `final`: it is the last item."""
        if isinstance(update, ArtifactUpdate):
            encoded = {
                **self.kind("artifact-update"),
                "taskId": task.id,
                "contextId": task.context_id,
                "artifact": self._artifact(update.artifact_id, update),
                "append": update.append,
                "lastChunk": update.last_chunk,
            }
            return self.item("artifact-update", encoded, final)
        message, metadata = status_message(task, update), status_metadata(update)
        return self.item(
            "status-update", self.encode_status(task, update, message, metadata), final
        )

    @abstractmethod
    def encode_part(self, part: Part) -> dict[str, Any]: ...

    @abstractmethod
    def encode_card(self, card: Card) -> dict[str, Any]: ...

    def kind(self, name: str) -> dict[str, Any]:
        """The member with the type of an object, in versions with such a member."""
        return {}

    def encode_task(
        self,
        task: Task,
        history_length: int | None = None,
        with_artifacts: bool = True,
        *,
        seal: Seal = _as_it_is,
    ) -> dict[str, Any]:
        """`seal`: applied to each message and artifact as soon as it is encoded."""
        said = status_message(task, task.status)
        newest = self.encode_message(said) if said else None
        messages = [
            # Usually the last message is the newest one.
            newest if newest and message == said else seal(self.encode_message(message))
            for message in history(task, history_length)
        ]
        kept = task.artifacts.values() if with_artifacts else ()
        artifacts = [seal(self._artifact(artifact.id, artifact)) for artifact in kept]
        return without_none(
            **self.kind("task"),
            id=task.id,
            contextId=task.context_id,
            status=self._status(task.state, task.status_time, newest),
            history=messages or None,
            artifacts=artifacts or None,
            metadata=task_metadata(task),
        )

    def encode_page(
        self, tasks: Iterable[Task], asked: ListParams, page: Page, *, seal: Seal = _as_it_is
    ) -> dict[str, Any]:
        """The result of a list. All members are always present (§3.1.4)."""
        return {
            "tasks": [
                self.encode_task(task, asked.history_length, asked.include_artifacts, seal=seal)
                for task in tasks
            ],
            "nextPageToken": page.next_token,
            "pageSize": asked.page_size,
            "totalSize": page.total,
        }

    def encode_message(self, message: Message) -> dict[str, Any]:
        parts = [self.encode_part(part) for part in message.parts]
        metadata = message.metadata
        if message.facts and self.extended:
            parts.append(self.encode_part(DataPart(message.facts)))
        elif message.facts:
            metadata = {**(metadata or {}), "bridge": message.facts}
        return without_none(
            **self.kind("message"),
            messageId=message.id,
            role=self.roles[message.role],
            parts=parts,
            taskId=message.task_id,
            contextId=message.context_id,
            referenceTaskIds=list(message.reference_task_ids) or None,
            extensions=list(message.extensions) or None,
            metadata=metadata,
        )

    def encode_status(
        self,
        task: Task,
        update: StatusUpdate,
        message: Message | None,
        metadata: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        return without_none(
            **self.kind("status-update"),
            taskId=task.id,
            contextId=task.context_id,
            status=self._status(
                update.state, update.time, self.encode_message(message) if message else None
            ),
            metadata=metadata,
        )

    def _state(self, name: str | int | None) -> TaskState | None:
        """The state of a filter; None for the unspecified state of ProtoJSON."""
        if name in (None, "", 0, "TASK_STATE_UNSPECIFIED"):
            return None
        for state, spelled in self.states.items():
            if name == spelled or (isinstance(name, int) and self.numbers.get(name) is state):
                return state
        raise errors.InvalidParams(f"Unknown state {name!r}.", [("status", "unknown state")])

    def _status(
        self, state: TaskState, time: datetime, message: dict[str, Any] | None
    ) -> dict[str, Any]:
        return without_none(
            state=self.states[state],
            timestamp=timestamp(time),
            message=message,
        )

    def _artifact(self, artifact_id: str, content: Artifact | ArtifactUpdate) -> dict[str, Any]:
        parts = content.parts or (TextPart(""),)  # one part at least (§4.1.7)
        return without_none(
            artifactId=artifact_id,
            name=content.name,
            description=content.description,
            parts=list(map(self.encode_part, parts)),
            metadata=content.metadata,
        )

    def encode_error(self, error: Exception) -> dict[str, Any]:
        """A JSON-RPC error object. Unexpected exceptions reveal no details."""
        code, reason = ERRORS.get(type(error), INTERNAL_ERROR)  # type: ignore[arg-type]
        message, facts = "Internal error; the server's log has the details.", {}
        if isinstance(error, errors.RequestError):
            message, facts = str(error), dict(error.details)
        details = [_detail("ErrorInfo", reason=reason, domain=ERROR_DOMAIN, metadata=facts)]
        if isinstance(error, errors.InvalidParams) and error.fields:
            violations = [{"field": path, "description": text} for path, text in error.fields]
            details.append(_detail("BadRequest", fieldViolations=violations))
        if isinstance(error, errors.TooManyRequests | errors.Unavailable):
            details.append(_detail("RetryInfo", retryDelay=f"{error.seconds}s"))
        return {"code": code, "message": message, "data": details}


def _detail(kind: str, **members: Any) -> dict[str, Any]:
    """A message of google.rpc as ProtoJSON of google.protobuf.Any."""
    return {"@type": f"type.googleapis.com/google.rpc.{kind}", **members}


def timestamp(time: datetime) -> str:
    """RFC 3339 in UTC with milliseconds and a Z (§5.6.1)."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def without_none(**members: Any) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}
