"""Redacts the secrets that the server knows from its output, also if a CLI splits a secret over
two pieces."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeVar
from urllib.parse import quote

from bridge.task.events import (
    ENDINGS,
    AgentEvent,
    ArtifactChunk,
    Question,
    Retracted,
    Text,
    Thought,
)
from bridge.task.message import TextPart

MARK = "[redacted]"
RETRACTABLE = 64 * 1024  # characters of an answer that can be retracted with a known new end
SHORTEST = 8  # characters; a shorter value matches everywhere and protects nothing
T = TypeVar("T")

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
_NO_SECRET = re.compile(
    r"(?:_FILE|_PATH|_DIR|_URL|_ID|_SOCK|_HELPER|^BRIDGE_AUTH|^GIT_CONFIG_KEY_\d+)$", re.IGNORECASE
)
# Each alternative begins with a letter, so that a search skips most of a text, and no word is read
# twice, however often it begins like a secret.
_LOOKS_LIKE_ONE = (
    r"sk-(?<!\wsk-)[A-Za-z0-9_-]{16,}+"  # OpenAI, Anthropic and others
    r"|gh(?<!\wgh)[pousr]_[A-Za-z0-9]{30,}+|github_pat_(?<!\wgithub_pat_)\w{40,}+"
    r"|glpat-(?<!\wglpat-)[\w-]{20,}+|xox(?<!\wxox)[abprs]-[\w-]{10,}+"
    r"|AKIA(?<!\wAKIA)[0-9A-Z]{16}\b|AIza(?<!\wAIza)[\w-]{35}"
    r"|eyJ(?<![\w-]eyJ)[\w-]{8,}+\.eyJ[\w-]{8,}+\.[\w-]{16,}+"  # a JWT
    r"|\.eyJ[\w-]{8,}+(?:\.[\w-]{16,}+)++"  # one behind a hyphen, without its header
    r"|Bearer [A-Za-z0-9._~+/=-]{16,}+"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)


def secrets_of(environment: Mapping[str, str]) -> set[str]:
    """The values of variables with a name that indicates a secret."""
    return {
        value
        for name, value in environment.items()
        if _SECRET_NAME.search(name) and not _NO_SECRET.search(name)
    }


class Secrets:
    """`values` are redacted in all their encodings. With `patterns`, text that looks like a
    credential is redacted, too."""

    def __init__(self, values: Iterable[str] = (), patterns: bool = False) -> None:
        long = {value for value in values if len(value) >= SHORTEST}
        self.values = sorted({form for one in long for form in _forms(one)}, key=len, reverse=True)
        found = [*map(re.escape, self.values), *([_LOOKS_LIKE_ONE] if patterns else [])]
        self._pattern = re.compile("|".join(found) or r"(?!)")
        self._beginnings = [(value, value[:2], len(value) - 1) for value in self.values]
        self._patterns = patterns

    def __bool__(self) -> bool:
        return bool(self.values) or self._patterns

    def found(self, text: str) -> Sequence[re.Match[str]]:
        return list(self._pattern.finditer(text)) if self._suspects(text) else ()

    def clean(self, text: str) -> str:
        return self._pattern.sub(MARK, text) if self._suspects(text) else text

    def clean_all(self, value: T) -> T:
        """`value` with all its texts redacted; the same object if it contains no secret."""
        cleaned: T = self._cleaned(value)
        return cleaned

    def beginning(self, text: str) -> int:
        """The first position in `text` of a secret that may continue after the end of `text`; the
        length of `text` if there is none."""
        if not text:
            return 0
        first, last = len(text), text[-1]
        for value, head, most in self._beginnings:
            at = text.find(head, -most)
            while at >= 0 and not value.startswith(text[at:]):
                at = text.find(head, at + 1)
            if at < 0 and head[0] == last:
                at = len(text) - 1
            if 0 <= at < first:
                first = at
        return first

    def _suspects(self, text: str) -> bool:
        for value in self.values:  # a plain loop: this runs for all output of an agent
            if value in text:
                return True
        return self._patterns

    def _cleaned(self, value: Any) -> Any:
        match value:
            case str():
                return self.clean(value)
            case None | bool() | int() | float():
                return value
            case dict():
                made: Any = {self._cleaned(key): self._cleaned(one) for key, one in value.items()}
                return value if made == value else made
            case list() | tuple():
                made = type(value)(map(self._cleaned, value))
                return value if made == value else made
        changed = {}
        for name in _members(value.__class__):
            member = getattr(value, name)
            if (clean := self._cleaned(member)) is not member:
                changed[name] = clean
        return replace(value, **changed) if changed else value


@cache
def _members(kind: Any) -> tuple[str, ...]:
    """The names of a dataclass's members; empty for other types."""
    return tuple(one.name for one in fields(kind) if one.init) if is_dataclass(kind) else ()


NO_SECRETS = Secrets()


class Redactor:
    """Redacts secrets from the events of one CLI. Text that may be the beginning of a secret waits
    for the following text, at the latest for a question or the end of the turn."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._held: dict[_Key, tuple[str, _Growing]] = {}
        self._length = 0  # of the answer, as the CLI sent it
        self._marks: list[tuple[int, int]] = []  # in it: the end of each secret, its length
        self._end: list[str] = []  # of the answer, as it was delivered
        self._end_length = 0

    def clean(self, events: Iterable[AgentEvent]) -> list[AgentEvent]:
        if not self._secrets:
            return list(events)
        told: list[AgentEvent] = []
        for event in events:  # a plain loop, for the same reason
            told += self._told(event)
        return told

    def flush(self) -> list[AgentEvent]:
        """The text that still waits at the end of the turn."""
        rest = [one for key in list(self._held) for one in self._rest(key)]
        self._length, self._marks = 0, []
        self._keep_end("")
        return rest

    def _told(self, event: AgentEvent) -> list[AgentEvent]:
        match event:
            case Text():
                key = ("text", event.parent)
                rest = self._rest(key) if event.new_block else []
                return rest + self._more(key, event, event.new_block)
            case Thought():
                return self._more(("thought", None), event)
            case ArtifactChunk(parts=(TextPart(),)):
                return self._more(("artifact", event.id), event, not event.append)
            case Retracted(length):
                return self._retracted(length)
            case Question():  # a person decides by the whole text; the next one is a new block
                return [*self._rest(_ANSWER), self._secrets.clean_all(event)]
            case _ if isinstance(event, ENDINGS):
                return [*self.flush(), self._secrets.clean_all(event)]
            case _:
                return [self._secrets.clean_all(event)]

    def _more(self, key: _Key, event: _Growing, begins: bool = False) -> list[AgentEvent]:
        """The events to deliver now, for a text that continues with `event` or `begins` with it."""
        held = "" if begins else self._held.pop(key, ("", event))[0]
        text = held + _text(event)
        found = self._secrets.found(text)
        if key == _ANSWER:
            self._length += len(text) - len(held)
            before = self._length - len(text)
            self._marks += [(before + one.end(), len(one[0])) for one in found]
        clean = self._secrets.clean(text) if found else text
        whole = isinstance(event, ArtifactChunk) and event.last_chunk
        end = len(clean) if whole else self._secrets.beginning(clean)
        if end < len(clean):
            self._held[key] = clean[end:], event
        if key == _ANSWER:
            self._add_to_end(clean[:end])
        if not (end or begins or whole):
            return []
        untouched = end == len(text) and not held and not found
        return [event if untouched else _with_text(event, clean[:end])]

    def _rest(self, key: _Key) -> list[AgentEvent]:
        """The text that waits under `key`, if no text follows it."""
        if key not in self._held:
            return []
        text, event = self._held.pop(key)
        if key == _ANSWER:
            self._add_to_end(text)
        match event:
            case Text():
                return [replace(event, text=text, new_block=False)]
            case ArtifactChunk():
                return [replace(_chunk(event, text), append=True)]
            case Thought():
                return [Thought(text)]

    def _retracted(self, length: int) -> list[AgentEvent]:
        """The CLI retracts `length` characters. Some of them may still wait or be redacted."""
        self._length -= length
        held, event = self._held.pop(_ANSWER, ("", Text("")))
        if length < len(held):
            self._held[_ANSWER] = held[:-length], event
            return []
        length -= len(held)
        while self._marks and self._marks[-1][0] > self._length:
            end, size = self._marks.pop()
            length += len(MARK) - min(size, end - self._length)  # a mark is retracted as a whole
        told = "".join(self._end)
        told = told[: max(0, len(told) - length)]
        begun = len(told) - self._secrets.beginning(told)
        if begun:  # the new end may begin a secret, now that its following text is gone
            self._held[_ANSWER] = told[-begun:], Text("")
            told = told[:-begun]
        self._keep_end(told)
        return [Retracted(length + begun)] if length + begun > 0 else []

    def _add_to_end(self, text: str) -> None:
        self._end.append(text)
        self._end_length += len(text)
        if self._end_length > 2 * RETRACTABLE:
            self._keep_end("".join(self._end)[-RETRACTABLE:])

    def _keep_end(self, text: str) -> None:
        self._end = [text]
        self._end_length = len(text)


_Key = tuple[str, str | None]
_Growing = Text | Thought | ArtifactChunk
_ANSWER: _Key = ("text", None)


def _text(event: _Growing) -> str:
    return _part(event).text if isinstance(event, ArtifactChunk) else event.text


def _with_text(event: _Growing, text: str) -> _Growing:
    if _text(event) == text:
        return event
    return _chunk(event, text) if isinstance(event, ArtifactChunk) else replace(event, text=text)


def _chunk(event: ArtifactChunk, text: str) -> ArtifactChunk:
    return replace(event, parts=(replace(_part(event), text=text),))


def _part(event: ArtifactChunk) -> TextPart:
    (part,) = event.parts
    assert isinstance(part, TextPart)
    return part


def _forms(value: str) -> Iterator[str]:
    """A value without encoding, and its encodings for JSON, addresses and headers."""
    yield value
    yield json.dumps(value)[1:-1]
    yield quote(value, safe="")
    yield base64.b64encode(value.encode("utf-8", "surrogateescape")).decode().rstrip("=")
