"""An artifact of a task while it grows, and the updates about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from bridge.task.events import ArtifactChunk
from bridge.task.message import Part, TextPart

ANSWER_ID = "assistant-response"
SUBAGENT = "subagent-"  # begins the id of an artifact with the text of a sub-agent
LAST_WORDS = 64 * 1024  # characters of the answer that the final status repeats
GAP = "\n\n"  # between two blocks of an answer: clients add no separator
LOOSE = 256  # pieces of a text that are joined together: a piece costs more than its few letters
MOST_TEXT = 512 * 1024  # characters in one update: the JS SDK accepts 4 MiB per line of a stream


class ArtifactUpdate(NamedTuple):  # much cheaper to make than a frozen dataclass, once per event
    """`append` adds `parts` to the artifact; otherwise the artifact is created or replaced."""

    artifact_id: str
    parts: tuple[Part, ...]
    name: str | None = None
    description: str | None = None
    append: bool = False
    last_chunk: bool = False
    metadata: Mapping[str, Any] | None = None


@dataclass(slots=True)
class Artifact:
    """The current state of an artifact. Streamed text is kept in pieces. They are joined by a read,
    and some of them now and then, so that the cost of an append does not grow with the text."""

    id: str
    name: str | None = None
    description: str | None = None
    metadata: Mapping[str, Any] | None = None
    open: bool = True
    _parts: list[Part] = field(default_factory=list)
    _pieces: list[str] | None = None  # of the last text part, while it grows
    _loose: int = 0  # pieces at the end that were not joined yet

    def extend(self, parts: Iterable[Part]) -> None:
        self._join()
        self._parts.extend(parts)

    def add_text(self, text: str, new_block: bool, append: bool = True) -> list[ArtifactUpdate]:
        """Add a piece of text. A new block begins with a blank line, unless the text before it
        ends in a newline. `append`: clients know the artifact."""
        if new_block or self._pieces is None:
            self._join()
            self._pieces = []
            text = self._gap() + text
        self._pieces.append(text)
        self._loose += 1
        if self._loose == LOOSE:
            self._pieces[-LOOSE:] = ["".join(self._pieces[-LOOSE:])]
            self._loose = 0
        return [
            ArtifactUpdate(
                self.id,
                (TextPart(text[start : start + MOST_TEXT]),),
                self.name,
                append=append or start > 0,
            )
            for start in range(0, len(text) or 1, MOST_TEXT)
        ]

    def add_chunk(self, chunk: ArtifactChunk, append: bool) -> ArtifactUpdate:
        """Add the parts of a chunk. The chunk itself says whether more will come."""
        self.extend(chunk.parts)
        self.open = False
        return ArtifactUpdate(
            self.id,
            chunk.parts,
            name=chunk.name,
            description=chunk.description,
            append=append,
            last_chunk=chunk.last_chunk,
            metadata=chunk.metadata,
        )

    def retract(self, length: int) -> ArtifactUpdate:
        """Remove the last `length` characters of text, and the gaps between them."""
        self._join()
        while length > 0 and self._parts and isinstance(part := self._parts[-1], TextPart):
            self._parts.pop()
            said = len(part.text) - len(self._gap())
            if said > length:
                self._pieces = [part.text[:-length]]
            length -= said
        return ArtifactUpdate(self.id, tuple(self.parts) or (TextPart(""),), self.name)

    def close(self) -> ArtifactUpdate:
        """End the artifact: it gets no more text."""
        self.open = False
        end = (TextPart(""),)  # an artifact update must have a part (§4.1.7)
        return ArtifactUpdate(self.id, end, self.name, append=True, last_chunk=True)

    @property
    def last_block(self) -> str:
        """The last block of text, without the gap before it."""
        last = self.parts[-1] if self.parts else None
        return last.text.strip() if isinstance(last, TextPart) else ""

    def _gap(self) -> str:
        """The separator between these parts and a new block."""
        last = self._parts[-1] if self._parts else None
        before = last.text if isinstance(last, TextPart) else ""
        return GAP if before and not before.endswith("\n") else ""

    @property
    def parts(self) -> Sequence[Part]:
        if self._pieces is None:
            return self._parts
        self._pieces, self._loose = ["".join(self._pieces)], 0
        return [*self._parts, TextPart(self._pieces[0])]

    def snapshot(self) -> Artifact:
        """A copy that does not change when this artifact grows."""
        pieces = None if self._pieces is None else [*self._pieces]
        return replace(self, _parts=[*self._parts], _pieces=pieces)

    def drop_content(self) -> None:
        """Drop the content, except the end of a text that can still grow."""
        if self._pieces is None:
            self._parts = self._parts[-1:]
        else:
            self._parts.clear()
            self._pieces, self._loose = [_kept("".join(self._pieces))], 0

    def _join(self) -> None:
        if self._pieces is not None:
            self._parts.append(TextPart("".join(self._pieces)))
            self._pieces, self._loose = None, 0


def _kept(text: str) -> str:
    """The end of a text that can still grow. It begins with a letter of its own, so that
    `last_block` is longer than LAST_WORDS if that of the whole text is."""
    start = max(0, len(text.rstrip()) - LAST_WORDS - 1)
    while start > 0 and text[start].isspace():
        start -= 1
    return text[start:]


def end_of(text: str) -> str:
    """`text`, or its end if it is long: the artifact has all of it."""
    return text if len(text) <= LAST_WORDS else f"[…] {text[-LAST_WORDS:]}"
