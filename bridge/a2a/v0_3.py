"""A2A 0.3 over JSON-RPC (the shapes of its types.ts): `kind` discriminators, lower-case enums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, AliasChoices, Field, StrictBool, model_validator

from bridge.a2a.card import Card
from bridge.a2a.codec import (
    Codec,
    HistoryLength,
    Operation,
    Params,
    SendParams,
    checked_base64,
    encode_extensions,
    encode_skills,
    parse,
    without_none,
)
from bridge.message import DataPart, Message, Part, RawPart, Role, TextPart, UrlPart
from bridge.task import StatusUpdate, Task, TaskState, Update


class _File(Params):
    bytes: Annotated[str, AfterValidator(checked_base64)] | None = None
    uri: str | None = None
    name: str | None = None
    mime_type: str | None = None

    @model_validator(mode="after")
    def _has_one_content(self) -> _File:
        if (self.bytes is None) == (self.uri is None):
            raise ValueError("a file has either bytes or uri")
        return self


class _Part(Params):
    """`type` and `content` are what pages about A2A before 0.3 show."""

    kind: Literal["text", "file", "data"] = Field(validation_alias=AliasChoices("kind", "type"))
    text: str | None = Field(None, validation_alias=AliasChoices("text", "content"))
    file: _File | None = None
    data: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _has_its_content(self) -> _Part:
        if getattr(self, self.kind) is None:
            raise ValueError(f"a part of kind {self.kind} has a member {self.kind}")
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


class _Message(Params):
    message_id: str = Field(min_length=1)
    role: Literal["user", "agent"]
    parts: list[_Part] = Field(min_length=1, validation_alias=AliasChoices("parts", "content"))
    task_id: str | None = None
    context_id: str | None = None
    reference_task_ids: list[str] | None = None
    extensions: list[str] | None = None
    metadata: dict[str, Any] | None = None

    def decoded(self) -> Message:
        return Message(
            self.message_id,
            Role(self.role),
            tuple(part.decoded() for part in self.parts),
            self.task_id or None,
            self.context_id or None,
            tuple(self.reference_task_ids or ()),
            tuple(self.extensions or ()),
            self.metadata,
        )


class _Configuration(Params):
    accepted_output_modes: list[str] | None = None
    history_length: HistoryLength | None = None
    blocking: StrictBool | None = None


class _SendParams(Params):
    message: _Message
    configuration: _Configuration | None = None
    metadata: dict[str, Any] | None = None


class V0_3(Codec):
    version: ClassVar[str] = "0.3"
    methods: ClassVar[Mapping[str, Operation]] = {
        "message/send": Operation.SEND,
        "message/stream": Operation.STREAM,
        "message/sendStream": Operation.STREAM,
        "tasks/get": Operation.GET,
        "tasks/list": Operation.LIST,
        "tasks/cancel": Operation.CANCEL,
        "tasks/resubscribe": Operation.SUBSCRIBE,
        "agent/getAuthenticatedExtendedCard": Operation.EXTENDED_CARD,
    }
    states: ClassVar[Mapping[TaskState, str]] = {state: state.value for state in TaskState}
    roles: ClassVar[Mapping[Role, str]] = {role: role.value for role in Role}

    def kind(self, name: str) -> dict[str, Any]:
        return {"kind": name}

    def decode_send(self, params: Mapping[str, Any]) -> SendParams:
        decoded = parse(_SendParams, params)
        configuration = decoded.configuration or _Configuration()
        return SendParams(
            decoded.message.decoded(),
            # 0.3 has no default; its SDKs' servers block unless told otherwise.
            blocking=configuration.blocking is not False,
            history_length=configuration.history_length,
            accepted_output_modes=tuple(configuration.accepted_output_modes or ()),
            metadata=decoded.metadata,
        )

    def encode_sent(self, task: Task, history_length: int | None = None) -> dict[str, Any]:
        if task.reply:
            return self.encode_message(task.reply)
        return self.encode_task(task, history_length)

    def encode_update(self, task: Task, update: Update, final: bool) -> dict[str, Any]:
        if isinstance(update, StatusUpdate):
            return {**self.encode_status(task, update), "final": final}
        return self.encode_chunk(task, update)

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
            case DataPart(data):  # 0.3 knows objects only
                encoded = {
                    "kind": "data",
                    "data": data if isinstance(data, dict) else {"value": data},
                }
        if part.metadata:
            encoded["metadata"] = part.metadata
        return encoded

    def encode_card(self, card: Card) -> dict[str, Any]:
        security: dict[str, Any] = {}
        if card.bearer:
            security = {
                "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
                "security": [{"bearer": []}],
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
                "pushNotifications": False,
                "stateTransitionHistory": False,
                "extensions": encode_extensions(card),
            },
            "defaultInputModes": list(card.input_modes),
            "defaultOutputModes": list(card.output_modes),
            "skills": encode_skills(card),
            "supportsAuthenticatedExtendedCard": card.extended,
            **without_none(documentationUrl=card.documentation_url),
            **security,
        }
