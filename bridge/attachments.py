"""What comes with a message: how large it may be, and where files go that a CLI cannot be given.

A part that the CLI takes in its own protocol stays as it is. Any other file is put into a private
folder of the task, and a `file://` part takes its place: the prompt names the path. A client's own
`file://` part stays where it lies, which must be inside the workspace.
"""

from __future__ import annotations

import asyncio
import hashlib
import mimetypes
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

import orjson

from bridge.errors import ContentTypeNotSupported, InvalidParams, LaunchError
from bridge.message import DataPart, Message, Part, RawPart, TextPart, UrlPart, media_type
from bridge.workspace import Workspaces

_UNUSUAL = re.compile(r"[^A-Za-z0-9._-]+")  # in a file's name


@dataclass(frozen=True, slots=True)
class PartLimits:
    """Bytes that one part may have: text and data as UTF-8, raw as decoded, file on disk; and how
    many parts a message may have."""

    text: int = 1024 * 1024
    raw: int = 5 * 1024 * 1024
    file: int = 25 * 1024 * 1024
    parts: int = 64


class Attachments:
    """The parts that one agent's clients send. `input_modes` are the media types that its CLI
    takes as parts, `takes_urls` says that it fetches remote files itself. `folder`: where files
    are put; None for a temporary one, which close() removes. `owner`: the user and the group that
    the files are given to."""

    def __init__(
        self,
        workspaces: Workspaces,
        input_modes: Sequence[str],
        takes_urls: bool,
        folder: Path | None = None,
        limits: PartLimits = PartLimits(),
        owner: tuple[int, int] | None = None,
    ) -> None:
        self._workspaces = workspaces
        self._modes = input_modes
        self._takes_urls = takes_urls
        self._folder = folder
        self._temporary: Path | None = None
        self._limits = limits
        self._owner = owner

    # --- when a message comes ------------------------------------------------------------------

    def check(self, message: Message, within: Sequence[str] | None = None) -> Message:
        """The message with the paths of its files resolved, which must lie `within`, too. Raises
        InvalidParams where there are too many parts, one is too large or a file is not in the
        workspace, ContentTypeNotSupported for what no agent behind this server can be given."""
        if len(message.parts) > self._limits.parts:
            text = f"has {len(message.parts)} parts; BRIDGE_MAX_PARTS is {self._limits.parts}"
            raise InvalidParams(f"The message {text}.", [("message.parts", text)])
        numbered = enumerate(message.parts)
        parts = tuple(self._checked(number, part, within) for number, part in numbered)
        return replace(message, parts=parts)

    def _checked(self, number: int, part: Part, within: Sequence[str] | None) -> Part:
        match part:
            case TextPart(text):
                self._check_size(number, len(text.encode()), self._limits.text, "TEXT")
            case DataPart(data):
                self._check_size(number, len(orjson.dumps(data)), self._limits.text, "TEXT")
            case RawPart(content):
                self._check_size(number, _decoded_size(content), self._limits.raw, "RAW")
                return part  # its media type does not matter: it can be put into a file
            case UrlPart(url) if url.lower().startswith("file:"):
                path, size = self._workspaces.file(url, within)
                self._check_size(number, size, self._limits.file, "FILE")
                return replace(part, url=path.as_uri())
            case UrlPart() if not self._takes_urls:
                text = "This agent takes files by value (raw, or bytes in 0.3), not by address."
                raise ContentTypeNotSupported(text)
        if not self._takes(part):
            modes = ", ".join(self._modes)
            raise ContentTypeNotSupported(
                f"This agent cannot read {media_type(part)}, only {modes}."
            )
        return part

    def _check_size(self, number: int, size: int, limit: int, name: str) -> None:
        if size > limit:
            text = f"has {size} bytes; BRIDGE_MAX_{name}_BYTES is {limit}"
            raise InvalidParams(f"Part {number} {text}.", [(f"message.parts.{number}", text)])

    def _takes(self, part: Part) -> bool:
        return any(fnmatch(media_type(part), pattern) for pattern in self._modes)

    # --- when its turn begins ------------------------------------------------------------------

    def fits(self, message: Message) -> bool:
        """Whether the CLI can be given the message as it is."""
        return not self._foreign(message)

    async def save(self, context_id: str, task_id: str, message: Message) -> Message:
        """The message as its CLI can be given it, files put down where that is needed. Raises
        LaunchError if they cannot be."""
        numbers = self._foreign(message)
        if not numbers:
            return message
        parts = list(message.parts)
        folder = self._context_folder(context_id) / task_id
        try:
            await asyncio.to_thread(_write, folder, parts, numbers)
            if self._owner:
                await asyncio.to_thread(_give_away, folder, self._owner)
        except OSError as error:
            raise LaunchError(f"an attached file cannot be kept: {error.strerror}") from error
        return replace(message, parts=tuple(parts))

    def _foreign(self, message: Message) -> list[int]:
        """The parts that must become files, by their place."""
        return [
            number
            for number, part in enumerate(message.parts)
            if isinstance(part, RawPart) and not self._takes(part)
        ]

    def folder(self, context_id: str) -> str | None:
        """The folder that the context's CLI must be able to read, if there is one."""
        if self._folder is None and self._temporary is None:
            return None
        folder = self._context_folder(context_id)
        return str(folder) if folder.is_dir() else None

    def forget(self, context_id: str, task_id: str) -> None:
        """Remove the files of a task, if it had any."""
        folder = self.folder(context_id)
        if folder:
            shutil.rmtree(Path(folder) / task_id, ignore_errors=True)
            if not os.listdir(folder):
                os.rmdir(folder)

    def close(self) -> None:
        """Remove what was only temporary."""
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _context_folder(self, context_id: str) -> Path:
        if self._folder is None and self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="coding-agent-bridge-"))
            if self._owner:
                os.chown(self._temporary, *self._owner)
        base = self._folder or self._temporary
        assert base
        # The client chose the id; as a name it might be `..`
        return base / hashlib.sha256(context_id.encode()).hexdigest()[:32]


def _decoded_size(base64: str) -> int:
    return len(base64) // 4 * 3 - base64[-2:].count("=")


def _write(folder: Path, parts: list[Part], numbers: Sequence[int]) -> None:
    """Put the numbered parts into `folder`, and in `parts` what stands for them there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number in numbers:
        part = parts[number]
        assert isinstance(part, RawPart)
        path = folder / f"{number}-{_file_name(part)}"
        with open(path, "wb", opener=_private) as file:
            file.write(part.content())
        parts[number] = UrlPart(path.as_uri(), media_type(part), part.filename, part.metadata)


def _give_away(folder: Path, owner: tuple[int, int]) -> None:
    for path in (folder.parent, folder, *folder.iterdir()):
        os.chown(path, *owner)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _file_name(part: RawPart) -> str:
    """A name that means no directory and hides nothing, with the suffix that programs look at."""
    suffix = mimetypes.guess_extension(media_type(part)) or ""
    name = os.path.basename(part.filename or "") or f"file{suffix}"
    return _UNUSUAL.sub("_", name)[-100:].lstrip("._-") or "file"
