"""The shapes of both protocol versions, written down a second time.

The codecs are held against this file, so nothing here is taken from them: names, enums and codes
are those of the specifications. There are three things for each version:

* writers of requests, the inverse of what a codec decodes;
* readers of answers, the inverse of what it encodes: a member that is missing, unknown or of the
  wrong type is a failure;
* `sayable` and `settled`, which say all that a version may lose of a model.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, ClassVar, TypeVar

import orjson

from bridge.a2a.card import Card, Skill
from bridge.a2a.codec import Codec, Page
from bridge.a2a.requests import ListParams, PushParams, SendParams, TaskParams
from bridge.a2a.v0_3 import V0_3
from bridge.a2a.v1_0 import V1_0
from bridge.task.artifact import ArtifactUpdate
from bridge.task.message import DataPart, Message, Part, RawPart, Role, TextPart, UrlPart
from bridge.task.render import history, status_message, status_metadata, task_metadata
from bridge.task.state import StatusUpdate, Task
from bridge.task.transitions import TaskState

T = TypeVar("T")
Json = dict[str, Any]
Path = tuple[str | int, ...]

FREE = ("data", "metadata", "params")  # members whose content is anybody's JSON
EXTENSION = "urn:coding-agent-bridge:v1"


# --- members that are not there ------------------------------------------------------------------


class _Absent:
    """Stands for a member that a request leaves out."""


ABSENT = _Absent()


def maybe(value: Any) -> Any:
    """A member that is left out if it has no content."""
    return ABSENT if value is None else value


def left_out(value: Any) -> Any:
    """The request without its absent members."""
    if isinstance(value, dict):
        return {k: left_out(v) for k, v in value.items() if v is not ABSENT}
    return [left_out(one) for one in value] if isinstance(value, list) else value


def as_null(value: Any, but: Sequence[str] = ()) -> Any:
    """The request with null for its absent members, but for those where null is a value."""
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if v is not ABSENT or k not in but}
        return {k: None if v is ABSENT else as_null(v, but) for k, v in kept.items()}
    return [as_null(one, but) for one in value] if isinstance(value, list) else value


# --- walking through what is not free JSON -------------------------------------------------------


def in_snake_case(value: Any) -> Any:
    """The value with its own members renamed; free JSON stays as it is."""
    if isinstance(value, dict):
        return {
            re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name): (
                member if name in FREE else in_snake_case(member)
            )
            for name, member in value.items()
        }
    return [in_snake_case(one) for one in value] if isinstance(value, list) else value


def with_more(value: Any, more: Mapping[str, Any]) -> Any:
    """The value with further members in each of its objects."""
    if isinstance(value, dict):
        own = {k: v if k in FREE else with_more(v, more) for k, v in value.items()}
        return {**more, **own}
    return [with_more(one, more) for one in value] if isinstance(value, list) else value


def members(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Everything in the value with its path; of free JSON only the whole."""
    pairs: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list):
        pairs = enumerate(value)
    for name, member in pairs:
        yield (*path, name), member
        if name not in FREE:
            yield from members(member, (*path, name))


def changed(value: Any, path: Path, to: Any) -> Any:
    """A copy with another value at the path; ABSENT takes the member away."""
    (name, *rest) = path
    copy = value.copy()
    if rest:
        copy[name] = changed(value[name], tuple(rest), to)
    elif to is ABSENT:
        del copy[name]
    else:
        copy[name] = to
    return copy


def dotted(path: Path) -> str:
    return ".".join(map(str, path))


# --- reading -------------------------------------------------------------------------------------


class Reader:
    """An object that is read member by member. A member that was not read in the end is a
    failure."""

    def __init__(self, value: Any) -> None:
        assert isinstance(value, dict), f"not an object: {value!r}"
        self._left = dict(value)

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        assert kind or not self._left, f"unknown members: {sorted(self._left)}"

    def any(self, name: str) -> Any:
        assert name in self._left, f"{name} is missing"
        return self._left.pop(name)

    def need(self, name: str, kind: type[T]) -> T:
        value = self.any(name)
        assert type(value) is kind, f"{name} is {value!r}"
        return value

    def may(self, name: str, kind: type[T]) -> T | None:
        return self.need(name, kind) if name in self._left else None

    def fixed(self, name: str, value: Any) -> None:
        """A member with a constant value."""
        found = self.need(name, type(value))
        assert found == value, f"{name} is {found!r}"

    def has(self, name: str) -> bool:
        return name in self._left


def strings(value: list[Any] | None) -> tuple[str, ...]:
    for one in value or ():
        assert type(one) is str, one
    return tuple(value or ())


def some(value: list[Any] | None) -> list[Any]:
    """An optional list is left out rather than empty."""
    assert value != []
    return value or []


def moment(text: str) -> datetime:
    """RFC 3339 in UTC, with milliseconds and a Z (1.0 §5.6.1)."""
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text), text
    return datetime.fromisoformat(text)


def plain_json(value: Any) -> Any:
    """The value as a client has it: through JSON, with the rules for all that is answered."""
    back = orjson.loads(orjson.dumps(value))
    for path, member in members(back):
        assert member is not None or path[-1] in FREE, f"{dotted(path)} is null"
    return back


@dataclass(frozen=True, slots=True)
class StatusSeen:
    state: TaskState
    time: datetime
    message: Message | None
    metadata: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class TaskSeen:
    """The content of a task in an answer; an artifact is the update that would create it."""

    id: str
    context_id: str
    status: StatusSeen
    history: tuple[Message, ...]
    artifacts: tuple[ArtifactUpdate, ...]
    metadata: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class UpdateSeen:
    """An item of a stream. Only 0.3 marks the last one."""

    task_id: str
    context_id: str
    update: StatusSeen | ArtifactUpdate
    final: bool | None = None


Item = Message | TaskSeen | UpdateSeen


@dataclass(frozen=True, slots=True)
class ErrorSeen:
    code: int
    reason: str
    message: str
    details: Mapping[str, Any]
    fields: tuple[tuple[str, str], ...]


# Code and reason (1.0.1 §5.4, §9.5, JSON-RPC 2.0 §5.1), by the name of what is raised. The reasons
# of those errors that A2A has no name for are ours.
ERRORS: Mapping[str, tuple[int, str]] = {
    "TaskNotFound": (-32001, "TASK_NOT_FOUND"),
    "TaskNotCancelable": (-32002, "TASK_NOT_CANCELABLE"),
    "PushNotificationNotSupported": (-32003, "PUSH_NOTIFICATION_NOT_SUPPORTED"),
    "UnsupportedOperation": (-32004, "UNSUPPORTED_OPERATION"),
    "ContentTypeNotSupported": (-32005, "CONTENT_TYPE_NOT_SUPPORTED"),
    "ExtendedCardNotConfigured": (-32007, "EXTENDED_AGENT_CARD_NOT_CONFIGURED"),
    "ExtensionSupportRequired": (-32008, "EXTENSION_SUPPORT_REQUIRED"),
    "VersionNotSupported": (-32009, "VERSION_NOT_SUPPORTED"),
    "ParseError": (-32700, "PARSE_ERROR"),
    "InvalidRequest": (-32600, "INVALID_REQUEST"),
    "MethodNotFound": (-32601, "METHOD_NOT_FOUND"),
    "InvalidParams": (-32602, "INVALID_PARAMS"),
    "BodyTooLarge": (-32600, "BODY_TOO_LARGE"),
    "Unauthenticated": (-32600, "UNAUTHENTICATED"),
    "Forbidden": (-32600, "PERMISSION_DENIED"),
    "TooManyRequests": (-32600, "TOO_MANY_REQUESTS"),
    "Unavailable": (-32603, "UNAVAILABLE"),
    "DataLoss": (-32603, "DATA_LOSS"),
}


def read_error(value: Any) -> ErrorSeen:
    """The same in both versions: the data of a 0.3 error is free."""
    with Reader(value) as error:
        code, message = error.need("code", int), error.need("message", str)
        about, *more = error.need("data", list)
    with Reader(about) as info:
        info.fixed("@type", "type.googleapis.com/google.rpc.ErrorInfo")
        info.fixed("domain", "a2a-protocol.org")
        reason, details = info.need("reason", str), info.need("metadata", dict)
    strings([*details.values()])
    assert len(more) <= 1
    if reason in ("TOO_MANY_REQUESTS", "UNAVAILABLE"):
        with Reader(*more) as hint:
            hint.fixed("@type", "type.googleapis.com/google.rpc.RetryInfo")
            assert re.fullmatch("[0-9]+s", hint.need("retryDelay", str))
        more = []
    return ErrorSeen(code, reason, message, details, _violations(*more))


def _violations(value: Any = None) -> tuple[tuple[str, str], ...]:
    if value is None:
        return ()
    with Reader(value) as bad:
        bad.fixed("@type", "type.googleapis.com/google.rpc.BadRequest")
        found = some(bad.need("fieldViolations", list))
    return tuple(_violation(one) for one in found)


def _violation(value: Any) -> tuple[str, str]:
    with Reader(value) as one:
        return one.need("field", str), one.need("description", str)


def _skill(value: Any) -> Skill:
    with Reader(value) as one:
        for name in ("inputModes", "outputModes"):  # those of the card
            strings(one.need(name, list))
        return Skill(
            one.need("id", str),
            one.need("name", str),
            one.need("description", str),
            strings(one.need("tags", list)),
            strings(one.need("examples", list)),
        )


def _with_extension(card: Card, extensions: list[Any]) -> Card:
    """Our extension; its parameters are those of the extended card."""
    (value,) = extensions
    with Reader(value) as one:
        one.fixed("uri", EXTENSION)
        assert one.need("description", str)
        one.fixed("required", False)
        return replace(card, details=one.may("params", dict))


# --- what the versions share ---------------------------------------------------------------------


class Wire(ABC):
    """One version. `any_json`: members of requests for which null is a value."""

    codec: ClassVar[Codec]
    states: ClassVar[Mapping[str, TaskState]]
    roles: ClassVar[Mapping[str, Role]]
    any_json: ClassVar[tuple[str, ...]] = ()
    foreign: ClassVar[tuple[str, ...]]
    """Members that only the other version, or none, knows."""

    @property
    def version(self) -> str:
        return self.codec.version

    # what a version can say

    @abstractmethod
    def sayable(self, part: Part) -> Part:
        """The part as far as this version has words for it."""

    @abstractmethod
    def settled(self, part: Part) -> Part:
        """The part in one form for equivalent forms: empty and absent."""

    def seen_message(self, message: Message) -> Message:
        parts = tuple(self.settled(self.sayable(part)) for part in message.parts)
        facts = {"bridge": message.facts} if message.facts else {}
        metadata = {**(message.metadata or {}), **facts} if facts else message.metadata
        return replace(message, parts=parts, metadata=metadata, facts=None)

    def seen_status(self, task: Task, update: StatusUpdate) -> StatusSeen:
        return self._seen_status(
            update.state, update.time, status_message(task, update), status_metadata(update)
        )

    def _seen_status(
        self,
        state: TaskState,
        time: datetime,
        message: Message | None,
        metadata: Mapping[str, Any] | None = None,
    ) -> StatusSeen:
        seen = self.seen_message(message) if message else None
        return StatusSeen(state, time.astimezone(UTC), seen, metadata)

    def seen_chunk(self, update: ArtifactUpdate) -> ArtifactUpdate:
        """An artifact has one part at least (1.0 §4.1.7): an empty text if there is none."""
        parts = tuple(self.settled(self.sayable(part)) for part in update.parts)
        return update._replace(parts=parts or (TextPart(""),))

    def seen_task(
        self, task: Task, length: int | None = None, with_artifacts: bool = True
    ) -> TaskSeen:
        count = len(task.history)
        first = 0 if length is None else max(0, count - length)
        artifacts = [
            ArtifactUpdate(
                one.id, tuple(one.parts), one.name, one.description, metadata=one.metadata
            )
            for one in (task.artifacts.values() if with_artifacts else ())
        ]
        return TaskSeen(
            task.id,
            task.context_id,
            self._seen_status(task.state, task.status_time, status_message(task, task.status)),
            tuple(map(self.seen_message, history(task, None)[first:count])),
            tuple(map(self.seen_chunk, artifacts)),
            task_metadata(task),
        )

    @abstractmethod
    def seen_card(self, card: Card) -> Card: ...

    def seen_push(self, config: PushParams) -> PushParams:
        """Secrets are never shown again."""
        return replace(config, token=None, credentials=None, scheme=config.scheme or None)

    # writing

    @abstractmethod
    def write_part(self, part: Part) -> Json: ...

    @abstractmethod
    def write_send(self, params: SendParams) -> Json: ...

    @abstractmethod
    def write_push(self, config: PushParams) -> Json:
        """The params of the operation that creates a config."""

    @abstractmethod
    def write_push_name(self, task_id: str, config_id: str | None) -> Json: ...

    def write_message(self, message: Message) -> Json:
        names = {role: name for name, role in self.roles.items()}
        return {
            "messageId": message.id,
            "role": names[message.role],
            "parts": [self.write_part(part) for part in message.parts],
            "taskId": maybe(message.task_id),
            "contextId": maybe(message.context_id),
            "referenceTaskIds": [*message.reference_task_ids] or ABSENT,
            "extensions": [*message.extensions] or ABSENT,
            "metadata": maybe(message.metadata),
        }

    def write_task_params(self, params: TaskParams) -> Json:
        return {
            "id": params.task_id,
            "historyLength": maybe(params.history_length),
            "metadata": maybe(params.metadata),
        }

    def write_list_params(self, params: ListParams, after: str | None) -> Json:
        """`after` is the time of the filter as the client spells it."""
        names = {state: name for name, state in self.states.items()}
        return {
            "contextId": maybe(params.context_id),
            "status": names[params.state] if params.state else ABSENT,
            "statusTimestampAfter": maybe(after),
            "pageSize": ABSENT if params.page_size == 50 else params.page_size,
            "pageToken": params.page_token or ABSENT,
            "historyLength": maybe(params.history_length),
            "includeArtifacts": params.include_artifacts or ABSENT,
        }

    # reading

    def object(self, value: Any, kind: str) -> Reader:
        """An object of the kind, which only 0.3 names."""
        return Reader(value)

    @abstractmethod
    def read_part(self, value: Any) -> Part: ...

    @abstractmethod
    def read_sent(self, value: Any) -> Message | TaskSeen: ...

    @abstractmethod
    def read_update(self, value: Any) -> UpdateSeen: ...

    @abstractmethod
    def read_notification(self, value: Any) -> TaskSeen | UpdateSeen | None: ...

    @abstractmethod
    def read_push(self, value: Any) -> PushParams: ...

    @abstractmethod
    def read_pushes(self, value: Any) -> list[PushParams]: ...

    @abstractmethod
    def read_card(self, value: Any) -> Card: ...

    def read_parts(self, found: Reader) -> tuple[Part, ...]:
        return tuple(self.settled(self.read_part(one)) for one in some(found.need("parts", list)))

    def read_message(self, value: Any) -> Message:
        with self.object(value, "message") as found:
            return Message(
                found.need("messageId", str),
                self.roles[found.need("role", str)],
                self.read_parts(found),
                found.may("taskId", str),
                found.may("contextId", str),
                strings(some(found.may("referenceTaskIds", list))),
                strings(some(found.may("extensions", list))),
                found.may("metadata", dict),
            )

    def read_status(self, value: Any, metadata: Mapping[str, Any] | None = None) -> StatusSeen:
        with Reader(value) as found:
            message = found.may("message", dict)
            return StatusSeen(
                self.states[found.need("state", str)],
                moment(found.need("timestamp", str)),
                None if message is None else self.read_message(message),
                metadata,
            )

    def read_artifact(
        self, value: Any, append: bool = False, last_chunk: bool = False
    ) -> ArtifactUpdate:
        with Reader(value) as found:
            return ArtifactUpdate(
                found.need("artifactId", str),
                self.read_parts(found),
                found.may("name", str),
                found.may("description", str),
                append,
                last_chunk,
                found.may("metadata", dict),
            )

    def read_task(self, value: Any) -> TaskSeen:
        with self.object(value, "task") as found:
            return TaskSeen(
                found.need("id", str),
                found.need("contextId", str),
                self.read_status(found.any("status")),
                tuple(map(self.read_message, some(found.may("history", list)))),
                tuple(map(self.read_artifact, some(found.may("artifacts", list)))),
                found.may("metadata", dict),
            )

    def read_status_update(self, value: Any) -> UpdateSeen:
        with self.object(value, "status-update") as found:
            identity = found.need("taskId", str), found.need("contextId", str)
            update = self.read_status(found.any("status"), found.may("metadata", dict))
            final = found.need("final", bool) if self.version == "0.3" else None
            return UpdateSeen(*identity, update, final)

    def read_artifact_update(self, value: Any) -> UpdateSeen:
        with self.object(value, "artifact-update") as found:
            identity = found.need("taskId", str), found.need("contextId", str)
            flags = found.need("append", bool), found.need("lastChunk", bool)
            return UpdateSeen(*identity, self.read_artifact(found.any("artifact"), *flags))

    def read_page(self, value: Any) -> tuple[list[TaskSeen], Page, int]:
        """Tasks, where the page stands, and its size; every member is there (1.0 §3.1.4)."""
        with Reader(value) as found:
            return (
                [self.read_task(one) for one in found.need("tasks", list)],
                Page(found.need("nextPageToken", str), found.need("totalSize", int)),
                found.need("pageSize", int),
            )


# --- 1.0 -----------------------------------------------------------------------------------------


class NewWire(Wire):
    codec = V1_0()
    states: ClassVar[Mapping[str, TaskState]] = {
        "TASK_STATE_SUBMITTED": TaskState.SUBMITTED,
        "TASK_STATE_WORKING": TaskState.WORKING,
        "TASK_STATE_INPUT_REQUIRED": TaskState.INPUT_REQUIRED,
        "TASK_STATE_AUTH_REQUIRED": TaskState.AUTH_REQUIRED,
        "TASK_STATE_COMPLETED": TaskState.COMPLETED,
        "TASK_STATE_CANCELED": TaskState.CANCELED,
        "TASK_STATE_FAILED": TaskState.FAILED,
        "TASK_STATE_REJECTED": TaskState.REJECTED,
    }
    roles: ClassVar[Mapping[str, Role]] = {"ROLE_USER": Role.USER, "ROLE_AGENT": Role.AGENT}
    any_json = ("data",)
    foreign = ("tenant", "kind", "type", "content", "file", "blocking", "pushNotificationConfig")

    def sayable(self, part: Part) -> Part:
        return part

    def settled(self, part: Part) -> Part:
        """In proto3, an empty string or map is an absent one."""
        return replace(
            part,
            media_type=part.media_type or None,
            filename=part.filename or None,
            metadata=part.metadata or None,
        )

    def seen_card(self, card: Card) -> Card:
        return replace(card, details=card.details or None)

    def write_part(self, part: Part) -> Json:
        content: Json = {"text": ABSENT, "raw": ABSENT, "url": ABSENT, "data": ABSENT}
        match part:
            case TextPart(text):
                content["text"] = text
            case RawPart(base64):
                content["raw"] = base64
            case UrlPart(url):
                content["url"] = url
            case DataPart(data):
                content["data"] = data
        return {
            **content,
            "mediaType": maybe(part.media_type),
            "filename": maybe(part.filename),
            "metadata": maybe(part.metadata),
        }

    def write_send(self, params: SendParams) -> Json:
        configuration = {
            "taskPushNotificationConfig": self.write_push(params.push) if params.push else ABSENT,
            "acceptedOutputModes": [*params.accepted_output_modes] or ABSENT,
            "historyLength": maybe(params.history_length),
            "returnImmediately": ABSENT if params.blocking else True,
        }
        return {
            "message": self.write_message(params.message),
            "configuration": configuration,
            "metadata": maybe(params.metadata),
        }

    def write_push(self, config: PushParams) -> Json:
        """Flat; a config within a send may leave its task to be found out."""
        secret = {"scheme": config.scheme, "credentials": maybe(config.credentials)}
        return {
            "id": maybe(config.config_id),
            "taskId": config.task_id or ABSENT,
            "url": config.url,
            "token": maybe(config.token),
            "authentication": ABSENT if config.scheme is None else secret,
        }

    def write_push_name(self, task_id: str, config_id: str | None) -> Json:
        return {"taskId": task_id, "id": maybe(config_id)}

    def read_part(self, value: Any) -> Part:
        with Reader(value) as found:
            common = (
                found.may("mediaType", str),
                found.may("filename", str),
                found.may("metadata", dict),
            )
            if found.has("text"):
                return TextPart(found.need("text", str), *common)
            if found.has("raw"):
                return RawPart(found.need("raw", str), *common)
            if found.has("url"):
                return UrlPart(found.need("url", str), *common)
            return DataPart(found.any("data"), *common)

    def read_sent(self, value: Any) -> Message | TaskSeen:
        with Reader(value) as found:
            if found.has("message"):
                return self.read_message(found.any("message"))
            return self.read_task(found.any("task"))

    def read_update(self, value: Any) -> UpdateSeen:
        with Reader(value) as found:
            if found.has("statusUpdate"):
                return self.read_status_update(found.any("statusUpdate"))
            return self.read_artifact_update(found.any("artifactUpdate"))

    def read_notification(self, value: Any) -> UpdateSeen:
        return self.read_update(value)

    def read_push(self, value: Any) -> PushParams:
        with Reader(value) as found:
            task_id, config_id = found.need("taskId", str), found.may("id", str)
            url, secret = found.need("url", str), found.may("authentication", dict)
        scheme = None
        if secret is not None:
            with Reader(secret) as authentication:
                scheme = authentication.need("scheme", str)
        return PushParams(task_id, config_id, url, scheme=scheme)

    def read_pushes(self, value: Any) -> list[PushParams]:
        with Reader(value) as found:
            found.fixed("nextPageToken", "")
            return [self.read_push(one) for one in found.need("configs", list)]

    def read_card(self, value: Any) -> Card:
        with Reader(value) as found:
            can = Reader(found.any("capabilities"))
            rpc, rest = map(_interface, found.need("supportedInterfaces", list))
            assert (rpc[0], rest[0]) == ("JSONRPC", "HTTP+JSON")
            card = Card(
                found.need("name", str),
                found.need("description", str),
                found.need("version", str),
                rpc[1],
                tuple(map(_skill, found.need("skills", list))),
                strings(found.need("defaultInputModes", list)),
                strings(found.need("defaultOutputModes", list)),
                rest[1],
                icon_url=found.may("iconUrl", str),
                provider=_provider(found),
                bearer=self._bearer(found),
            )
        with can:
            can.fixed("streaming", True)
            card = replace(
                card,
                push=can.need("pushNotifications", bool),
                extended=can.need("extendedAgentCard", bool),
            )
            return _with_extension(card, can.need("extensions", list))

    def _bearer(self, found: Reader) -> bool:
        if not found.has("securitySchemes"):
            return False
        key = {"location": "header", "name": "X-API-Key"}
        schemes = {
            "bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer"}},
            "apiKey": {"apiKeySecurityScheme": key},
            "basic": {"httpAuthSecurityScheme": {"scheme": "Basic"}},
        }
        found.fixed("securitySchemes", schemes)
        wanted: list[Any] = [{"schemes": {name: {"list": []}}} for name in schemes]
        found.fixed("securityRequirements", wanted)
        return True


def _provider(found: Reader) -> tuple[str, str] | None:
    named = found.may("provider", dict)
    if named is None:
        return None
    with Reader(named) as provider:
        return provider.need("organization", str), provider.need("url", str)


def _interface(value: Any) -> tuple[str, str]:
    with Reader(value) as found:
        found.fixed("protocolVersion", "1.0")
        return found.need("protocolBinding", str), found.need("url", str)


# --- 0.3 -----------------------------------------------------------------------------------------


class OldWire(Wire):
    codec = V0_3()
    states: ClassVar[Mapping[str, TaskState]] = {
        "submitted": TaskState.SUBMITTED,
        "working": TaskState.WORKING,
        "input-required": TaskState.INPUT_REQUIRED,
        "auth-required": TaskState.AUTH_REQUIRED,
        "completed": TaskState.COMPLETED,
        "canceled": TaskState.CANCELED,
        "failed": TaskState.FAILED,
        "rejected": TaskState.REJECTED,
    }
    roles: ClassVar[Mapping[str, Role]] = {"user": Role.USER, "agent": Role.AGENT}
    foreign = ("tenant", "raw", "filename", "mediaType", "returnImmediately")

    def sayable(self, part: Part) -> Part:
        """Only files have a media type and a name, and data is an object."""
        match part:
            case TextPart(text):
                return TextPart(text, metadata=part.metadata)
            case DataPart(data):
                value = data if isinstance(data, dict) else {"value": data}
                return DataPart(value, metadata=part.metadata)
        return part

    def settled(self, part: Part) -> Part:
        """Empty metadata of a part are not sent."""
        return replace(part, metadata=part.metadata or None)

    def seen_card(self, card: Card) -> Card:
        """This version is not offered over HTTP+JSON."""
        return replace(card, rest_url="", details=card.details or None)

    def write_part(self, part: Part) -> Json:
        content: Json = {"text": ABSENT, "file": ABSENT, "data": ABSENT}
        match part:
            case TextPart(text):
                kind, content["text"] = "text", text
            case RawPart(base64):
                kind, content["file"] = "file", self._file(part, base64, ABSENT)
            case UrlPart(url):
                kind, content["file"] = "file", self._file(part, ABSENT, url)
            case DataPart(data):
                kind, content["data"] = "data", data
        return {"kind": kind, **content, "metadata": maybe(part.metadata)}

    def _file(self, part: Part, content: Any, uri: Any) -> Json:
        about = {"mimeType": maybe(part.media_type), "name": maybe(part.filename)}
        return {"bytes": content, "uri": uri, **about}

    def write_send(self, params: SendParams) -> Json:
        configuration = {
            "pushNotificationConfig": self._inner(params.push) if params.push else ABSENT,
            "acceptedOutputModes": [*params.accepted_output_modes] or ABSENT,
            "historyLength": maybe(params.history_length),
            "blocking": ABSENT if params.blocking else False,
        }
        return {
            "message": self.write_message(params.message),
            "configuration": configuration,
            "metadata": maybe(params.metadata),
        }

    def write_push(self, config: PushParams) -> Json:
        return {"taskId": config.task_id, "pushNotificationConfig": self._inner(config)}

    def _inner(self, config: PushParams) -> Json:
        secret = {"schemes": [config.scheme], "credentials": maybe(config.credentials)}
        return {
            "id": maybe(config.config_id),
            "url": config.url,
            "token": maybe(config.token),
            "authentication": ABSENT if config.scheme is None else secret,
        }

    def write_push_name(self, task_id: str, config_id: str | None) -> Json:
        return {"id": task_id, "pushNotificationConfigId": maybe(config_id)}

    def object(self, value: Any, kind: str) -> Reader:
        found = Reader(value)
        found.fixed("kind", kind)
        return found

    def read_part(self, value: Any) -> Part:
        with Reader(value) as found:
            metadata = found.may("metadata", dict)
            match found.need("kind", str):
                case "text":
                    return TextPart(found.need("text", str), metadata=metadata)
                case "data":
                    return DataPart(found.need("data", dict), metadata=metadata)
                case "file":
                    return self._read_file(found.any("file"), metadata)
                case kind:
                    raise AssertionError(f"a part of kind {kind}")

    def _read_file(self, value: Any, metadata: Mapping[str, Any] | None) -> Part:
        with Reader(value) as found:
            common = found.may("mimeType", str), found.may("name", str), metadata
            if found.has("bytes"):
                return RawPart(found.need("bytes", str), *common)
            return UrlPart(found.need("uri", str), *common)

    def read_sent(self, value: Any) -> Message | TaskSeen:
        return self.read_message(value) if value["kind"] == "message" else self.read_task(value)

    def read_update(self, value: Any) -> UpdateSeen:
        if value["kind"] == "status-update":
            return self.read_status_update(value)
        return self.read_artifact_update(value)

    def read_notification(self, value: Any) -> TaskSeen | None:
        """Always the whole task."""
        return None if value is None else self.read_task(value)

    def read_push(self, value: Any) -> PushParams:
        with Reader(value) as outer:
            task_id, inner = outer.need("taskId", str), outer.any("pushNotificationConfig")
        with Reader(inner) as found:
            config_id, url = found.may("id", str), found.need("url", str)
            secret = found.may("authentication", dict)
        scheme = None
        if secret is not None:
            with Reader(secret) as authentication:
                (scheme,) = strings(authentication.need("schemes", list))
        return PushParams(task_id, config_id, url, scheme=scheme)

    def read_pushes(self, value: Any) -> list[PushParams]:
        assert isinstance(value, list)
        return [self.read_push(one) for one in value]

    def read_card(self, value: Any) -> Card:
        with Reader(value) as found:
            can = Reader(found.any("capabilities"))
            found.fixed("protocolVersion", "0.3.0")
            found.fixed("preferredTransport", "JSONRPC")
            url = found.need("url", str)
            found.fixed("additionalInterfaces", [{"url": url, "transport": "JSONRPC"}])
            card = Card(
                found.need("name", str),
                found.need("description", str),
                found.need("version", str),
                url,
                tuple(map(_skill, found.need("skills", list))),
                strings(found.need("defaultInputModes", list)),
                strings(found.need("defaultOutputModes", list)),
                "",
                icon_url=found.may("iconUrl", str),
                provider=_provider(found),
                bearer=self._bearer(found),
                extended=found.need("supportsAuthenticatedExtendedCard", bool),
            )
        with can:
            can.fixed("streaming", True)
            can.fixed("stateTransitionHistory", False)
            card = replace(card, push=can.need("pushNotifications", bool))
            return _with_extension(card, can.need("extensions", list))

    def _bearer(self, found: Reader) -> bool:
        if not found.has("securitySchemes"):
            return False
        schemes = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            "basic": {"type": "http", "scheme": "basic"},
        }
        found.fixed("securitySchemes", schemes)
        found.fixed("security", [{name: []} for name in schemes])
        return True


WIRES: tuple[Wire, ...] = (NewWire(), OldWire())


def in_utc(params: ListParams) -> ListParams:
    """The same params with the time in UTC, so that they can be compared member by member."""
    if params.changed_since is None:
        return params
    return replace(params, changed_since=params.changed_since.astimezone(UTC))
