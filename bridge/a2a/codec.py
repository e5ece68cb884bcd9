"""The interface and the common parts of the codecs, one per protocol version.

A codec has tables (methods, states, error codes) and pure functions between JSON and the types that
all versions share. Only codecs know the names of a version.
"""

from __future__ import annotations

import base64
import binascii
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import (
    AliasChoices,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel

from bridge import errors
from bridge.a2a.card import EXTENSION, Card
from bridge.task.artifact import Artifact, ArtifactUpdate
from bridge.task.message import DataPart, Message, Part, Role, TextPart
from bridge.task.render import history, status_message, status_metadata, task_metadata
from bridge.task.state import StatusUpdate, Task, TaskState, Update
from bridge.task.text import is_deep

ERROR_DOMAIN = "a2a-protocol.org"
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


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


@dataclass(frozen=True, slots=True)
class PushParams:
    """A push notification config, or its name, with an empty `url`. `config_id` None: the server
    names a new config, or any config matches."""

    task_id: str
    config_id: str | None = None
    url: str = ""
    token: str | None = None
    scheme: str | None = None
    credentials: str | None = None


@dataclass(frozen=True, slots=True)
class SendParams:
    """`blocking`: the answer waits until the task has ended or asks the client. `reopens`: the id
    of a finished task, with its context, begins the next task. `attends`: the client receives the
    result. `retries`: the client shows that an equal message is a retry, not a new message."""

    message: Message
    blocking: bool
    history_length: int | None = None
    accepted_output_modes: tuple[str, ...] = ()
    metadata: Mapping[str, Any] | None = None
    push: PushParams | None = None
    reopens: bool = False
    attends: bool = False
    retries: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """The position of a page. `next_token`: empty for the last page. `total`: of all pages."""

    next_token: str
    total: int


@dataclass(frozen=True, slots=True)
class TaskParams:
    task_id: str
    history_length: int | None = None
    metadata: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ListParams:
    """`changed_since`: lower limit for the time of the status. `page_token`: `next_token` of the
    previous page; empty for the first page."""

    context_id: str | None = None
    state: TaskState | None = None
    changed_since: datetime | None = None
    page_size: int = 50
    page_token: str = ""
    history_length: int | None = None
    include_artifacts: bool = False


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


class Params(BaseModel):
    """Base of the request models. They accept camelCase and snake_case, ignore unknown members,
    and treat null as absent (ProtoJSON), except for the members of ANY_JSON."""

    ANY_JSON: ClassVar[frozenset[str]] = frozenset()

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True
    )

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, params: Any) -> Any:
        if not isinstance(params, dict):
            return params
        return {k: v for k, v in params.items() if v is not None or k in cls.ANY_JSON}


P = TypeVar("P", bound=Params)


def name_or_number(value: Any) -> Any:
    """A member of an enum in ProtoJSON. Rejects booleans, which are integers in Python."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("must be a name or a number")
    return value


def _time(value: Any) -> Any:
    """A text of RFC 3339. pydantic would also accept seconds since 1970."""
    if not isinstance(value, str) or not _DATE.match(value):
        raise ValueError("must be a time such as 2026-01-31T12:00:00Z")
    return value


# Report only the first invalid item of a list, so that the error is not larger than the request.
ONE_WRONG: Any = Field(fail_fast=True)
HistoryLength = Annotated[StrictInt, Field(ge=0)]
Texts = Annotated[tuple[str, ...], ONE_WRONG]
# Limits of a message, because every answer with its task repeats it.
MessageId = Annotated[str, Field(min_length=1, max_length=256)]
_TaskId = Annotated[str, Field(max_length=256)]
_Uri = Annotated[str, Field(max_length=1024)]
TaskIds = Annotated[tuple[_TaskId, ...], Field(max_length=64), ONE_WRONG]
Extensions = Annotated[tuple[_Uri, ...], Field(max_length=64), ONE_WRONG]


class TaskRequest(Params):
    id: str = Field(min_length=1, validation_alias=AliasChoices("id", "taskId", "task_id"))
    history_length: HistoryLength | None = None
    metadata: dict[str, Any] | None = None


class ListRequest(Params):
    context_id: str | None = None
    status: Annotated[str | int, BeforeValidator(name_or_number)] | None = None
    status_timestamp_after: Annotated[AwareDatetime, BeforeValidator(_time)] | None = None
    page_size: Annotated[StrictInt, Field(ge=1, le=100)] | None = None
    page_token: str | None = None
    history_length: HistoryLength | None = None
    include_artifacts: StrictBool = False


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
    has_rest: ClassVar[bool] = False
    """The version has the HTTP+JSON binding."""
    signs_cards: ClassVar[bool] = False
    """A card of the version can carry signatures."""
    errors_in_streams: ClassVar[bool] = False
    """A client that accepts only event streams gets an error as an event."""
    default_push_id: ClassVar[bool] = False
    """No id, and the id `default`, name the first push config that was set without an id."""

    def __init__(self, extended: bool = False) -> None:
        self.extended = extended

    @abstractmethod
    def decode_send(self, params: Mapping[str, Any]) -> SendParams: ...

    def decode_task(self, params: Mapping[str, Any]) -> TaskParams:
        """The parameters of get, cancel and subscribe. Raises InvalidParams."""
        decoded = parse(TaskRequest, params)
        return TaskParams(decoded.id, decoded.history_length, decoded.metadata)

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

    def encode_sent(self, task: Task, history_length: int | None = None) -> dict[str, Any]:
        """The result of a send: a task or, if the agent replied directly, a message. It is also
        the first item of a stream."""
        reply = status_message(task, task.reply)
        if reply:
            return self.encode_reply(reply)
        return self.item("task", self.encode_task(task, history_length), final=False)

    def encode_reply(self, message: Message) -> dict[str, Any]:
        """The result of a send that is a message."""
        return self.item("message", self.encode_message(message), final=False)

    def encode_update(self, task: Task, update: Update, final: bool) -> dict[str, Any]:
        """An item of a stream. `final`: it is the last item."""
        if isinstance(update, ArtifactUpdate):
            return self.item("artifact-update", self.encode_chunk(task, update), final)
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
        self, task: Task, history_length: int | None = None, with_artifacts: bool = True
    ) -> dict[str, Any]:
        messages = [self.encode_message(message) for message in history(task, history_length)]
        kept = task.artifacts.values() if with_artifacts else ()
        artifacts = [self.encode_artifact(artifact) for artifact in kept]
        return without_none(
            **self.kind("task"),
            id=task.id,
            contextId=task.context_id,
            status=self._status(task.state, task.status_time, status_message(task, task.status)),
            history=messages or None,
            artifacts=artifacts or None,
            metadata=task_metadata(task),
        )

    def encode_page(self, tasks: Iterable[Task], asked: ListParams, page: Page) -> dict[str, Any]:
        """The result of a list. All members are always present (§3.1.4)."""
        return {
            "tasks": [
                self.encode_task(task, asked.history_length, asked.include_artifacts)
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

    def encode_artifact(self, artifact: Artifact) -> dict[str, Any]:
        parts = tuple(artifact.parts) or (TextPart(""),)  # one part at least (§4.1.7)
        return self._artifact(
            artifact.id, artifact.name, artifact.description, parts, artifact.metadata
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
            status=self._status(update.state, update.time, message),
            metadata=metadata,
        )

    def encode_chunk(self, task: Task, update: ArtifactUpdate) -> dict[str, Any]:
        return {
            **self.kind("artifact-update"),
            "taskId": task.id,
            "contextId": task.context_id,
            "artifact": self._artifact(
                update.artifact_id,
                update.name,
                update.description,
                update.parts or (TextPart(""),),
                update.metadata,
            ),
            "append": update.append,
            "lastChunk": update.last_chunk,
        }

    def _state(self, name: str | int | None) -> TaskState | None:
        """The state of a filter; None for the unspecified state of ProtoJSON."""
        if name in (None, "", 0, "TASK_STATE_UNSPECIFIED"):
            return None
        for state, spelled in self.states.items():
            if name == spelled or (isinstance(name, int) and self.numbers.get(name) is state):
                return state
        raise errors.InvalidParams(f"Unknown state {name!r}.", [("status", "unknown state")])

    def _status(self, state: TaskState, time: datetime, message: Message | None) -> dict[str, Any]:
        return without_none(
            state=self.states[state],
            timestamp=timestamp(time),
            message=self.encode_message(message) if message else None,
        )

    def _artifact(
        self,
        artifact_id: str,
        name: str | None,
        description: str | None,
        parts: Iterable[Part],
        metadata: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        return without_none(
            artifactId=artifact_id,
            name=name,
            description=description,
            parts=list(map(self.encode_part, parts)),
            metadata=metadata,
        )

    def encode_error(self, error: Exception) -> dict[str, Any]:
        """A JSON-RPC error object. Unexpected exceptions reveal no details."""
        code, reason = ERRORS.get(type(error), INTERNAL_ERROR)  # type: ignore[arg-type]
        known = isinstance(error, errors.RequestError)
        details: list[dict[str, Any]] = [
            {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": reason,
                "domain": ERROR_DOMAIN,
                "metadata": dict(error.details) if isinstance(error, errors.RequestError) else {},
            }
        ]
        if isinstance(error, errors.InvalidParams) and error.fields:
            violations = [{"field": path, "description": text} for path, text in error.fields]
            details.append(
                {
                    "@type": "type.googleapis.com/google.rpc.BadRequest",
                    "fieldViolations": violations,
                }
            )
        if isinstance(error, errors.TooManyRequests | errors.Unavailable):
            delay = f"{error.seconds}s"
            details.append(
                {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}
            )
        message = str(error) if known else "Internal error; the server's log has the details."
        return {"code": code, "message": message, "data": details}


def parse(model: type[P], params: Mapping[str, Any]) -> P:
    """`params` as `model`. Raises InvalidParams with all invalid fields; of a list, only the first
    invalid item."""
    if is_deep(params):  # orjson could not encode it again
        problem = "nested too deeply"
        raise errors.InvalidParams(f"The params are {problem}.", [("params", problem)])
    try:
        return model.model_validate(params)
    except ValidationError as invalid:
        fields = [
            (".".join(map(str, problem["loc"])) or "params", problem["msg"])
            for problem in invalid.errors(include_url=False, include_input=False)
        ]
        text = "; ".join(f"{path}: {problem}" for path, problem in fields[:5])
        raise errors.InvalidParams(f"Invalid params: {text}", fields) from None


def checked_base64(value: str) -> str:
    """`value` as standard base64. ProtoJSON also allows the URL alphabet and missing padding.
    Raises ValueError."""
    text = value.replace("-", "+").replace("_", "/")
    text += "=" * (-len(text) % 4)
    try:
        base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from None
    return text


def timestamp(time: datetime) -> str:
    """RFC 3339 in UTC with milliseconds and a Z (§5.6.1)."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def encode_extensions(card: Card) -> list[dict[str, Any]]:
    """EXTENSION, with the details of an extended card as its parameters."""
    about = "metadata.bridge: working directory, tools, usage and permissions of coding agents"
    extension = {"uri": EXTENSION, "description": about, "required": card.extension_required}
    return [extension | ({"params": dict(card.details)} if card.details else {})]


def encode_skills(card: Card) -> list[dict[str, Any]]:
    return [
        {
            "id": skill.id,
            "name": skill.name,
            "description": skill.description,
            "tags": list(skill.tags),
            "examples": list(skill.examples),
            "inputModes": list(card.input_modes),
            "outputModes": list(card.output_modes),
        }
        for skill in card.skills
    ]


def without_none(**members: Any) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}
