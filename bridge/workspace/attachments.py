"""The parts of a message: their limits, and the folders for files that a CLI does not take as
parts.

A part that the CLI takes in its own protocol stays unchanged. Any other file is written to a new
folder of the task, and a `file://` part takes its place: the prompt names the path. The file of a
client's own `file://` part stays in its place, which must be inside the workspace.

The CLI reads these folders, and its sandbox keeps it from writing there. The server does not rely
on that: it opens each folder below the base folder by a descriptor, follows no link, and writes
only to files that it has just created (bridge/files/folders.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import mimetypes
import os
import re
import shutil
import tempfile
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

import orjson

from bridge.errors import ContentTypeNotSupported, InvalidParams, LaunchError
from bridge.files.folders import (
    NEW_FILE,
    PASSAGE,
    closing,
    keep_own,
    open_folder,
    own_folder,
    remove,
)
from bridge.task.message import DataPart, Message, Part, RawPart, TextPart, UrlPart, media_type
from bridge.workspace.paths import Workspaces

_HEAD = 32  # characters of Base64: enough for the patterns below
_IMAGES = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF....WEBP", re.DOTALL),
}
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
    """The parts that one agent's clients send. `input_modes` are the media types that its CLI takes
    as parts; with `takes_urls` it fetches remote files itself. Without `takes_files`, files of
    other types are refused. `folder`: the folder for files; None for a temporary one, which close()
    removes. `group`: the group of a CLI that runs as another user; it may read the files, which
    belong to the user of this process."""

    def __init__(
        self,
        workspaces: Workspaces,
        input_modes: Sequence[str],
        *,
        takes_urls: bool,
        takes_files: bool = True,
        folder: Path | None = None,
        limits: PartLimits = PartLimits(),
        group: int | None = None,
    ) -> None:
        self._workspaces = workspaces
        self._modes = input_modes
        self._known = ", ".join(input_modes)
        self._takes_urls = takes_urls
        self._takes_files = takes_files
        self._folder = folder
        self._temporary = folder is None
        self._base: int | None = None  # the descriptor of `_folder`, once it was needed
        self._limits = limits
        self._group = group

    # --- when a message comes ------------------------------------------------------------------

    def check(self, message: Message, within: Sequence[str] | None = None) -> Message:
        """The message with the resolved paths of its files, which must lie `within`, too. Raises
        InvalidParams if there are too many parts, a part is too large or a file is not in the
        workspace, and ContentTypeNotSupported for parts that no agent of this server takes. Data of
        a type that the CLI does not read is dropped later: see read()."""
        if len(message.parts) > self._limits.parts:
            text = f"has {len(message.parts)} parts; the limit is {self._limits.parts}"
            raise InvalidParams(f"The message {text}.", [("message.parts", text)])
        numbered = enumerate(message.parts)
        parts = tuple(self._checked(number, part, within) for number, part in numbered)
        if not any(self._reads(part) for part in parts):
            kinds = ", ".join(map(media_type, parts))
            raise ContentTypeNotSupported(f"This agent reads none of {kinds}, only {self._known}.")
        return replace(message, parts=parts)

    def _checked(self, number: int, part: Part, within: Sequence[str] | None) -> Part:
        match part:
            case TextPart(text):
                self._check_size(number, len(text.encode()), self._limits.text)
            case DataPart(data):
                if self._reads(part):
                    self._check_size(number, len(orjson.dumps(data)), self._limits.text)
                return part
            case RawPart(content):
                size = len(content) // 4 * 3 - content[-2:].count("=")  # after decoding
                self._check_size(number, size, self._limits.raw)
                part = _as_its_bytes(number, part)
                if self._takes_files:
                    return part  # its media type does not matter: it can be put into a file
            case UrlPart(url) if url.lower().startswith("file:"):
                path, size = self._workspaces.file(url, within)
                self._check_size(number, size, self._limits.file)
                part = replace(part, url=path.as_uri())
                if self._takes_files:
                    return part
            case UrlPart() if not self._takes_urls:
                text = "This agent takes files by value (raw, or bytes in 0.3), not by address."
                raise ContentTypeNotSupported(text)
        if not self._takes(part):
            raise ContentTypeNotSupported(
                f"This agent cannot read {media_type(part)}, only {self._known}."
            )
        return part

    def _check_size(self, number: int, size: int, limit: int) -> None:
        if size > limit:
            text = f"has {size} bytes; the limit is {limit} bytes"
            raise InvalidParams(f"Part {number} {text}.", [(f"message.parts.{number}", text)])

    def _takes(self, part: Part) -> bool:
        kind = media_type(part)
        kinds = (kind, "application/json") if kind.endswith("+json") else (kind,)
        return any(fnmatch(one, pattern) for pattern in self._modes for one in kinds)

    def _reads(self, part: Part) -> bool:
        """Whether the CLI, or the bridge itself, reads the part if it is data."""
        if not isinstance(part, DataPart) or self._takes(part):
            return True
        return isinstance(part.data, dict) and "questionId" in part.data

    # --- when its turn begins ------------------------------------------------------------------

    def fits(self, message: Message) -> bool:
        """Whether the CLI can be given the message as it is."""
        return not self._foreign(message) and all(map(self._reads, message.parts))

    def read(self, message: Message) -> tuple[Message, tuple[str, ...]]:
        """The message without the data that the CLI does not read, and the types of that."""
        parts = tuple(part for part in message.parts if self._reads(part))
        left = tuple(media_type(part) for part in message.parts if not self._reads(part))
        return replace(message, parts=parts), left

    async def save(self, context_id: str, task_id: str, message: Message) -> Message:
        """The message in the form that the CLI takes; other files are written to the task's folder.
        Raises LaunchError if that fails."""
        numbers = self._foreign(message)
        if not numbers:
            return message
        parts = list(message.parts)
        try:
            where = (*self._open_base(), _name(context_id), task_id)
            await asyncio.to_thread(self._write, where, parts, numbers)
        except OSError as error:
            raise LaunchError(f"an attached file cannot be kept: {error.strerror}") from error
        return replace(message, parts=tuple(parts))

    def _write(
        self, where: tuple[int, Path, str, str], parts: list[Part], numbers: Sequence[int]
    ) -> None:
        """Put the numbered parts into a new folder, and in `parts` what stands for them there."""
        base, path, context_name, task_name = where
        with closing(own_folder(context_name, base, self._group)) as context:
            remove(task_name, context)  # left from before a restart
            os.mkdir(task_name, 0o700, dir_fd=context)
            with closing(open_folder(task_name, context)) as task:
                keep_own(task, self._group)
                for number in numbers:
                    part = parts[number]
                    assert isinstance(part, RawPart)
                    name = f"{number}-{_file_name(part)}"
                    fd = os.open(name, NEW_FILE, 0o600, dir_fd=task)
                    with open(fd, "wb") as file:
                        keep_own(fd, self._group, 0o640)
                        file.write(part.content())
                    url = (path / context_name / task_name / name).as_uri()
                    parts[number] = UrlPart(url, media_type(part), part.filename, part.metadata)

    def _foreign(self, message: Message) -> list[int]:
        """The parts that must become files, by their place."""
        return [
            number
            for number, part in enumerate(message.parts)
            if isinstance(part, RawPart) and not self._takes(part)
        ]

    def folder(self, context_id: str) -> str | None:
        """The folder that the context's CLI must be able to read, if there is one."""
        if self._base is None and not (self._folder and os.path.lexists(self._folder)):
            return None
        name = _name(context_id)
        try:
            base, path = self._open_base()
            os.close(open_folder(name, base))
        except OSError:
            return None
        return str(path / name)

    def forget(self, context_id: str, task_id: str) -> None:
        """Remove the files of a task, if it had any."""
        if self.folder(context_id) is None:
            return
        base, _ = self._open_base()
        name = _name(context_id)
        with contextlib.suppress(OSError), closing(open_folder(name, base)) as context:
            remove(task_id, context)
            if not os.listdir(context):
                os.rmdir(name, dir_fd=base)

    def close(self) -> None:
        """Remove the temporary folder."""
        if self._base is not None:
            os.close(self._base)
            self._base = None
        if self._temporary and self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _open_base(self) -> tuple[int, Path]:
        """The base folder, by a descriptor that stays open: it remains the same folder, whatever
        its path leads to later."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="coding-agent-bridge-"))
        if self._base is None:
            self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder = self._folder.parent.resolve() / self._folder.name
            self._base = own_folder(self._folder, None, self._group, PASSAGE)
        return self._base, self._folder


def _as_its_bytes(number: int, part: RawPart) -> RawPart:
    """The part with the media type of its content, if that is an image or should be one: models
    refuse an image of another type, and with it the conversation."""
    kind = media_type(part)
    if not kind.startswith(("image/", "text/")):
        return part
    head = b64decode(part.base64[:_HEAD])
    found = next((image for image, begins in _IMAGES.items() if begins.match(head)), None)
    if found is None and kind in _IMAGES:
        text = f"Part {number} is called {kind}, but its content is not an image of a known kind."
        raise ContentTypeNotSupported(text)
    return part if found in (None, kind) else replace(part, media_type=found)


def _name(context_id: str) -> str:
    """Of a context's folder. The client chose the id; as a name it might be `..`."""
    return hashlib.sha256(context_id.encode()).hexdigest()[:32]


def _file_name(part: RawPart) -> str:
    """A name that means no directory and hides nothing, with the suffix that programs look at."""
    suffix = mimetypes.guess_extension(media_type(part)) or ""
    name = os.path.basename(part.filename or "") or f"file{suffix}"
    return _UNUSUAL.sub("_", name)[-100:].lstrip("._-") or "file"
