"""A2A 1.0 (specification 1.0.1): ProtoJSON, SCREAMING enums, results wrapped by member name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, model_validator

from bridge.a2a.card import (
    API_KEY,
    REDIS_BINDING,
    WEBSOCKET,
    Card,
    encode_abilities,
    encode_extensions,
    encode_origin,
)
from bridge.a2a.codec import Codec, Operation, without_none
from bridge.a2a.requests import (
    ONE_WRONG,
    HistoryLength,
    MessageRequest,
    Params,
    PushParams,
    SendParams,
    Texts,
    checked_base64,
    decode_push_config,
    name_or_number,
    parse,
)
from bridge.task.message import DataPart, Part, RawPart, Role, TextPart, UrlPart
from bridge.task.state import Task, Update
from bridge.task.transitions import TaskState

_IN_ORDER = (
    "submitted working completed failed canceled input-required rejected auth-required".split()
)
"""The states by their numbers, which begin with 1."""
_CONTENT = ("text", "raw", "url", "data")
_ITEMS = {
    "task": "task",
    "message": "message",
    "status-update": "statusUpdate",
    "artifact-update": "artifactUpdate",
}


class _Part(Params):
    ANY_JSON: ClassVar[frozenset[str]] = frozenset({"data"})

    text: str | None = None
    raw: Annotated[str, AfterValidator(checked_base64)] | None = None
    url: str | None = None
    data: Any = None
    media_type: str | None = None
    filename: str | None = None
    metadata: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _has_one_content(self) -> _Part:
        present = [
            name
            for name in _CONTENT
            if name in self.model_fields_set and (name == "data" or getattr(self, name) is not None)
        ]
        if len(present) != 1:
            raise ValueError("a part must have exactly one of text, raw, url and data")
        return self

    def decoded(self) -> Part:
        common = (self.media_type, self.filename, self.metadata)
        if self.text is not None:
            return TextPart(self.text, *common)
        if self.raw is not None:
            return RawPart(self.raw, *common)
        if self.url is not None:
            return UrlPart(self.url, *common)
        return DataPart(self.data, *common)


_PartList = Annotated[list[_Part], Field(min_length=1), ONE_WRONG]


class _Message(MessageRequest):
    role: Annotated[
        Literal["ROLE_USER", "ROLE_AGENT", "user", "agent", 1, 2], BeforeValidator(name_or_number)
    ]
    parts: _PartList


class _Parts(Params):
    parts: _PartList


class _Authentication(Params):
    scheme: str
    credentials: str | None = None


class PushConfigRequest(Params):
    """TaskPushNotificationConfig."""

    id: str | None = None
    task_id: str | None = None
    url: str = Field(min_length=1)
    token: str | None = None
    authentication: _Authentication | None = None


class PushNameRequest(Params):
    task_id: str = Field(min_length=1)
    id: str = Field(min_length=1)


class PushTaskRequest(Params):
    task_id: str = Field(min_length=1)


class _Configuration(Params):
    task_push_notification_config: PushConfigRequest | None = None
    accepted_output_modes: Texts = ()
    history_length: HistoryLength | None = None
    return_immediately: StrictBool = False


class SendRequest(Params):
    message: _Message
    configuration: _Configuration | None = None
    metadata: dict[str, Any] | None = None


class V1_0(Codec):
    version: ClassVar[str] = "1.0"
    has_grpc: ClassVar[bool] = True
    signs_cards: ClassVar[bool] = True
    methods: ClassVar[Mapping[str, Operation]] = {
        "SendMessage": Operation.SEND,
        "SendStreamingMessage": Operation.STREAM,
        "GetTask": Operation.GET,
        "ListTasks": Operation.LIST,
        "CancelTask": Operation.CANCEL,
        "SubscribeToTask": Operation.SUBSCRIBE,
        "CreateTaskPushNotificationConfig": Operation.PUSH_CREATE,
        "GetTaskPushNotificationConfig": Operation.PUSH_GET,
        "ListTaskPushNotificationConfigs": Operation.PUSH_LIST,
        "DeleteTaskPushNotificationConfig": Operation.PUSH_DELETE,
        "GetExtendedAgentCard": Operation.EXTENDED_CARD,
    }
    states: ClassVar[Mapping[TaskState, str]] = {
        state: f"TASK_STATE_{state.value.upper().replace('-', '_')}" for state in TaskState
    }
    numbers: ClassVar[Mapping[int, TaskState]] = dict(enumerate(map(TaskState, _IN_ORDER), 1))
    roles: ClassVar[Mapping[Role, str]] = {Role.USER: "ROLE_USER", Role.AGENT: "ROLE_AGENT"}

    def decode_send(self, params: Mapping[str, Any]) -> SendParams:
        decoded = parse(SendRequest, params)
        configuration = decoded.configuration or _Configuration()
        push = configuration.task_push_notification_config
        return SendParams(
            decoded.message.decoded(),
            blocking=not configuration.return_immediately,
            history_length=configuration.history_length,
            accepted_output_modes=configuration.accepted_output_modes,
            metadata=decoded.metadata,
            push=decode_push_config(push, push.task_id or "") if push else None,
        )

    def decode_push(self, operation: Operation, params: Mapping[str, Any]) -> PushParams:
        if operation is Operation.PUSH_CREATE:
            config = parse(PushConfigRequest, params)
            return decode_push_config(config, parse(PushTaskRequest, params).task_id)
        if operation is Operation.PUSH_LIST:
            return PushParams(parse(PushTaskRequest, params).task_id)
        named = parse(PushNameRequest, params)
        return PushParams(named.task_id, named.id)

    def decode_parts(self, parts: Any) -> tuple[Part, ...]:
        """Parts outside of a message, for the `jsonl` protocol. Raises InvalidParams."""
        return tuple(part.decoded() for part in parse(_Parts, {"parts": parts}).parts)

    def item(self, kind: str, encoded: dict[str, Any], final: bool) -> dict[str, Any]:
        return {_ITEMS[kind]: encoded}

    def encode_part(self, part: Part) -> dict[str, Any]:
        match part:
            case TextPart(text):
                encoded: dict[str, Any] = {"text": text}
            case RawPart(content):
                encoded = {"raw": content}
            case UrlPart(url):
                encoded = {"url": url}
            case DataPart(data):
                encoded = {"data": data}
        if part.media_type or part.filename or part.metadata:
            encoded |= without_none(
                mediaType=part.media_type, filename=part.filename, metadata=part.metadata
            )
        return encoded

    def encode_push(self, config: PushParams) -> dict[str, Any]:
        return without_none(
            taskId=config.task_id,
            id=config.config_id,
            url=config.url,
            authentication={"scheme": config.scheme} if config.scheme else None,
        )

    def encode_pushes(self, configs: Sequence[PushParams]) -> Any:
        return {"configs": [self.encode_push(config) for config in configs], "nextPageToken": ""}

    def encode_notification(self, task: Task, update: Update) -> dict[str, Any] | None:
        return self.encode_update(task, update, final=False)

    def encode_card(self, card: Card) -> dict[str, Any]:
        security: dict[str, Any] = {}
        if card.bearer:
            key = {"location": "header", "name": API_KEY}
            schemes: dict[str, Any] = {
                "bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer"}},
                "apiKey": {"apiKeySecurityScheme": key},
                "basic": {"httpAuthSecurityScheme": {"scheme": "Basic"}},
            }
            if card.oidc:
                address = {"openIdConnectUrl": card.oidc}
                schemes["oidc"] = {"openIdConnectSecurityScheme": address}
            security = {
                "securitySchemes": schemes,
                "securityRequirements": [{"schemes": {name: {"list": []}}} for name in schemes],
            }
        interfaces = [
            {"url": url, "protocolBinding": binding, "protocolVersion": self.version}
            for url, binding in ((card.url, "JSONRPC"), (card.rest_url, "HTTP+JSON"))
        ]
        if card.grpc:
            grpc = {"url": card.grpc, "protocolBinding": "GRPC", "protocolVersion": self.version}
            interfaces.append(grpc | without_none(tenant=card.tenant))
        if card.websocket:
            interfaces += [
                {"url": card.websocket, "protocolBinding": WEBSOCKET, "protocolVersion": version}
                for version in (self.version, "0.3")
            ]
        if card.redis:
            place = {"url": card.redis, "protocolBinding": REDIS_BINDING}
            interfaces.append(place | {"protocolVersion": self.version})
        return {
            "name": card.name,
            "description": card.description,
            "version": card.version,
            "supportedInterfaces": interfaces,
            "capabilities": {
                "streaming": True,
                "pushNotifications": card.push,
                "extendedAgentCard": card.extended,
                "extensions": encode_extensions(card),
            },
            **encode_abilities(card),
            **encode_origin(card),
            **security,
        }
