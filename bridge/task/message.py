"""Messages and their parts, independent of the protocol version (A2A 1.0 §4.1, 0.3 §6).

The four part types are the content members of a 1.0 Part. A file's bytes stay base64: they arrive,
are stored and leave in this form.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Role(Enum):
    USER = "user"
    AGENT = "agent"
    __hash__ = object.__hash__  # Enum.__hash__ is a Python function


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str
    media_type: str | None = None
    filename: str | None = None
    metadata: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RawPart:
    base64: str
    media_type: str | None = None
    filename: str | None = None
    metadata: Mapping[str, Any] | None = None

    def content(self) -> bytes:
        return b64decode(self.base64)


@dataclass(frozen=True, slots=True)
class UrlPart:
    url: str
    media_type: str | None = None
    filename: str | None = None
    metadata: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class DataPart:
    data: Any
    media_type: str | None = None
    filename: str | None = None
    metadata: Mapping[str, Any] | None = None


Part = TextPart | RawPart | UrlPart | DataPart


@dataclass(frozen=True, slots=True)
class MessageTrace:
    """The span of the request that brought a message, as the value of a `traceparent`. The other
    members are facts of the request: `parent` is the id of the span of its client, `method` the
    name of its method, and `waits`: it was answered at the first question or the end."""

    header: str
    parent: str | None = None
    method: str = ""
    binding: str = ""
    request_id: str = ""
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """`facts`: the content of the bridge's own words in `parts`, for programs. A client that asks
    for the bridge's extension gets them as a data part. Every other client gets them in
    `metadata.bridge`, since many clients print each data part as JSON. `trace`: of the request that
    brought it, if the server has traces. `choices`: the `mode` and the `model` that it chose in a
    conversation that had begun before. Clients see neither."""

    id: str
    role: Role
    parts: tuple[Part, ...]
    task_id: str | None = None
    context_id: str | None = None
    reference_task_ids: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    metadata: Mapping[str, Any] | None = None
    facts: Mapping[str, Any] | None = field(default=None, repr=False)  # see idempotency.py
    trace: MessageTrace | None = field(default=None, repr=False, compare=False)
    choices: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

    @property
    def text(self) -> str:
        """All text parts, joined by a blank line."""
        return "\n\n".join(part.text for part in self.parts if isinstance(part, TextPart))


class AnswerWay(dict[str, str]):
    """`via` and `client` of an answer, which a binding puts into the metadata of its message below
    the key `mcp`. Metadata that a client sends is a plain dict, so that no client can forge it."""


def media_type(part: Part) -> str:
    """The part's media type, or the one its kind implies (§4.1.6: text/plain, application/json)."""
    if part.media_type:
        return part.media_type.partition(";")[0].strip().lower()
    match part:
        case TextPart():
            return "text/plain"
        case DataPart():
            return "application/json"
        case RawPart() | UrlPart():
            return "application/octet-stream"
