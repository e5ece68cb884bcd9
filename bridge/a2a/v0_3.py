"""A2A 0.3 (the shapes of its types.ts, over JSON-RPC and HTTP+JSON): `kind` discriminators,
lower-case enums."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, AliasChoices, Field, StrictBool, model_validator

from bridge import errors
from bridge.a2a.card import API_KEY, Card, encode_abilities, encode_extensions, encode_origin
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
    parse,
)
from bridge.errors import InvalidParams
from bridge.task.message import DataPart, Part, RawPart, Role, TextPart, UrlPart
from bridge.task.state import StatusUpdate, Task, Update
from bridge.task.transitions import TaskState

_KINDS = {"text": "text", "content": "text", "file": "file", "data": "data"}


class _File(Params):
    bytes: Annotated[str, AfterValidator(checked_base64)] | None = None
    uri: str | None = None
    name: str | None = None
    mime_type: str | None = None

    @model_validator(mode="after")
    def _has_one_content(self) -> _File:
        if (self.bytes is None) == (self.uri is None):
            raise ValueError("a file must have either bytes or uri")
        return self


class _Part(Params):
    """`type` and `content` are spellings of documents about A2A before 0.3."""

    kind: Literal["text", "file", "data"] = Field(validation_alias=AliasChoices("kind", "type"))
    text: str | None = Field(None, validation_alias=AliasChoices("text", "content"))
    file: _File | None = None
    data: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_kind(cls, part: Any) -> Any:
        """Add the kind for clients that send one content member without it."""
        if not isinstance(part, dict) or any(part.get(n) is not None for n in ("kind", "type")):
            return part
        kinds = {_KINDS[name] for name in _KINDS if part.get(name) is not None}
        return {**part, "kind": kinds.pop()} if len(kinds) == 1 else part

    @model_validator(mode="after")
    def _has_its_content(self) -> _Part:
        if getattr(self, self.kind) is None:
            raise ValueError(f"a part of kind {self.kind} must have a member {self.kind}")
        return self

    def decoded(self) -> Part:
        if self.kind == "text":
            return TextPart(self.text or "", metadata=self.metadata)
        if self.kind == "data":
            return DataPart(self.data, metadata=self.metadata)
        assert self.file
        common = (self.file.mime_type, self.file.name, self.metadata)
        if self.file.bytes is not None:
            return RawPart(self.file.bytes, *common)
        return UrlPart(self.file.uri or "", *common)


class _Message(MessageRequest):
    role: Literal["user", "agent"]
    parts: Annotated[list[_Part], Field(min_length=1), ONE_WRONG] = Field(
        validation_alias=AliasChoices("parts", "content")
    )

    @model_validator(mode="before")
    @classmethod
    def _of_parts_alone(cls, message: Any) -> Any:
        """A message that only has parts, as in many examples and small clients, is a new message of
        the user. One with some of the other members has to have all that are required."""
        if not isinstance(message, dict):
            return message
        given = {name for name, value in message.items() if value is not None}
        alone = not given - {"parts", "content"}
        return {**message, "role": "user", "messageId": str(uuid.uuid4())} if alone else message


class _Authentication(Params):
    schemes: Annotated[list[str], Field(min_length=1), ONE_WRONG]
    credentials: str | None = None

    @property
    def scheme(self) -> str:
        return self.schemes[0]


class _PushConfig(Params):
    id: str | None = None
    url: str = Field(min_length=1)
    token: str | None = None
    authentication: _Authentication | None = None


class TaskPushNotificationConfig(Params):
    task_id: str = Field(min_length=1)
    push_notification_config: _PushConfig


class PushConfigParams(Params):
    id: str = Field(min_length=1)
    push_notification_config_id: str | None = None


class _Configuration(Params):
    push_notification_config: _PushConfig | None = None
    accepted_output_modes: Texts = ()
    history_length: HistoryLength | None = None
    blocking: StrictBool | None = None


class MessageSendParams(Params):
    message: _Message
    configuration: _Configuration | None = None
    metadata: dict[str, Any] | None = None


class V0_3(Codec):
    version: ClassVar[str] = "0.3"
    no_extended_card: ClassVar[type[errors.RequestError]] = errors.ExtendedCardNotConfigured
    errors_in_streams: ClassVar[bool] = True  # the official client finds an error only there
    media_type: ClassVar[str] = "application/json"
    default_push_id: ClassVar[bool] = True
    methods: ClassVar[Mapping[str, Operation]] = {
        "message/send": Operation.SEND,
        "message/stream": Operation.STREAM,
        "message/sendStream": Operation.STREAM,
        "tasks/get": Operation.GET,
        "tasks/list": Operation.LIST,
        "tasks/cancel": Operation.CANCEL,
        "tasks/resubscribe": Operation.SUBSCRIBE,
        "tasks/pushNotificationConfig/set": Operation.PUSH_CREATE,
        "tasks/pushNotificationConfig/get": Operation.PUSH_GET,
        "tasks/pushNotificationConfig/list": Operation.PUSH_LIST,
        "tasks/pushNotificationConfig/delete": Operation.PUSH_DELETE,
        "agent/getAuthenticatedExtendedCard": Operation.EXTENDED_CARD,
    }
    states: ClassVar[Mapping[TaskState, str]] = {state: state.value for state in TaskState}
    roles: ClassVar[Mapping[Role, str]] = {role: role.value for role in Role}

    def kind(self, name: str) -> dict[str, Any]:
        return {"kind": name}

    def decode_send(self, params: Mapping[str, Any]) -> SendParams:
        decoded = parse(MessageSendParams, params)
        configuration = decoded.configuration or _Configuration()
        push = configuration.push_notification_config
        return SendParams(
            decoded.message.decoded(),
            # 0.3 defines no default; the servers of its SDKs block by default.
            blocking=configuration.blocking is not False,
            history_length=configuration.history_length,
            accepted_output_modes=configuration.accepted_output_modes,
            metadata=decoded.metadata,
            reopens=True,  # Gemini CLI keeps the id of an aborted task
            push=decode_push_config(push, "") if push else None,
        )

    def decode_push(self, operation: Operation, params: Mapping[str, Any]) -> PushParams:
        if operation is Operation.PUSH_CREATE:
            created = parse(TaskPushNotificationConfig, params)
            return decode_push_config(created.push_notification_config, created.task_id)
        if "taskId" in params:  # of a path of HTTP+JSON
            config = params.get("id")
            params = {"id": params["taskId"], "pushNotificationConfigId": config}
        named = parse(PushConfigParams, params)
        if operation is Operation.PUSH_DELETE and not named.push_notification_config_id:
            problem = "Field required"
            field = "pushNotificationConfigId"
            raise InvalidParams(f"Invalid params: {field}: {problem}", [(field, problem)])
        return PushParams(named.id, named.push_notification_config_id or None)

    def item(self, kind: str, encoded: dict[str, Any], final: bool) -> dict[str, Any]:
        return {**encoded, "final": final} if kind == "status-update" else encoded

    def encode_part(self, part: Part) -> dict[str, Any]:
        match part:
            case TextPart(text):
                encoded: dict[str, Any] = {"kind": "text", "text": text}
            case RawPart(content):
                file = without_none(bytes=content, mimeType=part.media_type, name=part.filename)
                encoded = {"kind": "file", "file": file}
            case UrlPart(url):
                file = without_none(uri=url, mimeType=part.media_type, name=part.filename)
                encoded = {"kind": "file", "file": file}
            case DataPart(data):  # data of 0.3 is an object
                encoded = {
                    "kind": "data",
                    "data": data if isinstance(data, dict) else {"value": data},
                }
        if part.metadata:
            encoded["metadata"] = part.metadata
        return encoded

    def encode_push(self, config: PushParams) -> dict[str, Any]:
        inner = without_none(
            id=config.config_id,
            url=config.url,
            authentication={"schemes": [config.scheme]} if config.scheme else None,
        )
        return {"taskId": config.task_id, "pushNotificationConfig": inner}

    def encode_pushes(self, configs: Sequence[PushParams]) -> Any:
        return [self.encode_push(config) for config in configs]

    def encode_notification(self, task: Task, update: Update) -> dict[str, Any] | None:
        """The whole task (0.3 §9.5). An appended chunk causes no notification; the next
        status includes it."""
        if isinstance(update, StatusUpdate) or not update.append:
            return self.encode_task(task)
        return None

    def encode_card(self, card: Card) -> dict[str, Any]:
        security: dict[str, Any] = {}
        if card.bearer:
            schemes: dict[str, Any] = {
                "bearer": {"type": "http", "scheme": "bearer"},
                "apiKey": {"type": "apiKey", "in": "header", "name": API_KEY},
                "basic": {"type": "http", "scheme": "basic"},
            }
            if card.oidc:
                schemes["oidc"] = {"type": "openIdConnect", "openIdConnectUrl": card.oidc}
            security = {
                "securitySchemes": schemes,
                "security": [{name: []} for name in schemes],  # alternatives
            }
        return {
            "protocolVersion": "0.3.0",
            "name": card.name,
            "description": card.description,
            "version": card.version,
            "url": card.url,
            "preferredTransport": "JSONRPC",
            "additionalInterfaces": [{"url": card.url, "transport": "JSONRPC"}],
            "capabilities": {
                "streaming": True,
                "pushNotifications": card.push,
                "stateTransitionHistory": False,
                "extensions": encode_extensions(card),
            },
            **encode_abilities(card),
            "supportsAuthenticatedExtendedCard": card.extended,
            **encode_origin(card),
            **security,
        }
