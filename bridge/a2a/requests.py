"""The requests of clients: pydantic models of their JSON, and the parameters that all versions
share."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, TypeVar

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

from bridge.errors import InvalidParams
from bridge.task.message import Message, Role
from bridge.task.text import is_deep
from bridge.task.transitions import TaskState

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
# ProtoJSON accepts an enum's number as well as its name.
_ROLES: Mapping[str | int, Role] = {
    "ROLE_USER": Role.USER,
    "ROLE_AGENT": Role.AGENT,
    1: Role.USER,
    2: Role.AGENT,
    "user": Role.USER,
    "agent": Role.AGENT,
}


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
    result. `retries`: the client shows that an equal message is a retry, not a new message.
    `purpose`: `begin` never answers a question, `answer` only answers the question it names.
    `model`: of a new context, if the client chooses none."""

    message: Message
    blocking: bool
    history_length: int | None = None
    accepted_output_modes: tuple[str, ...] = ()
    metadata: Mapping[str, Any] | None = None
    push: PushParams | None = None
    reopens: bool = False
    attends: bool = False
    retries: bool = False
    purpose: Literal["any", "begin", "answer"] = "any"
    model: str | None = None


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


class TaskParams(Params):
    """The parameters of get, cancel and subscribe."""

    task_id: str = Field(min_length=1, validation_alias=AliasChoices("id", "taskId", "task_id"))
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


class MessageRequest(Params):
    """A message. Each version has its own names of roles and its own parts."""

    message_id: MessageId
    role: Any
    parts: Any
    task_id: str | None = None
    context_id: str | None = None
    reference_task_ids: TaskIds = ()
    extensions: Extensions = ()
    metadata: dict[str, Any] | None = None

    def decoded(self) -> Message:
        return Message(
            self.message_id,
            _ROLES[self.role],
            tuple(part.decoded() for part in self.parts),
            task_id=self.task_id or None,  # "" is the protobuf default and means absent
            context_id=self.context_id or None,
            reference_task_ids=self.reference_task_ids,
            extensions=self.extensions,
            metadata=self.metadata,
        )


def decode_push_config(config: Any, task_id: str) -> PushParams:
    """The config of a task. `config.authentication` is None or has `scheme` and `credentials`."""
    authentication = config.authentication
    return PushParams(
        task_id,
        config.id or None,
        config.url,
        token=config.token or None,
        scheme=authentication and authentication.scheme,
        credentials=authentication and authentication.credentials,
    )


def parse(model: type[P], params: Mapping[str, Any]) -> P:
    """`params` as `model`. Raises InvalidParams with all invalid fields; of a list, only the first
    invalid item."""
    if is_deep(params):  # orjson could not encode it again
        problem = "nested too deeply"
        raise InvalidParams(f"The params are {problem}.", [("params", problem)])
    try:
        return model.model_validate(params)
    except ValidationError as invalid:
        fields = [
            (".".join(map(str, problem["loc"])) or "params", problem["msg"])
            for problem in invalid.errors(include_url=False, include_input=False)
        ]
        text = "; ".join(f"{path}: {problem}" for path, problem in fields[:5])
        raise InvalidParams(f"Invalid params: {text}", fields) from None


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
