"""`task download`: artifacts as files. An agent chooses their names, so that they are made safe."""

from __future__ import annotations

import base64
import binascii
import json
import mimetypes
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from bridge.cli.client.output import Fields, print_json
from bridge.cli.client.session import CommandSession
from bridge.client import bindings
from bridge.client.failure import ClientError, usage
from bridge.client.questions import text_of
from bridge.client.shapes import Json, short, state_of

File = tuple[str, bytes]
_WRONG = re.compile(r"[^\w.,+=@ -]")


async def download(session: CommandSession) -> int:
    """Save the artifacts of a task. Nothing is overwritten without --force."""
    options = session.options
    async with session.connect() as agent:
        task = await agent.call(bindings.GET, {"id": options.task, "historyLength": 0})
    artifacts = [
        one
        for one in task.get("artifacts") or ()
        if options.artifact in (None, one.get("name"), one.get("artifactId"))
    ]
    if not artifacts:
        raise usage(f"the task has no artifact {options.artifact or ''}".rstrip())
    files = list(_unique(file for one in artifacts for file in _files(one)))
    if options.directory == "-":
        for _, content in files:
            sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return 0
    saved = [_save(Path(options.directory), one, options.force) for one in files]
    if session.json:
        print_json({"task": task["id"], "files": [str(path) for path in saved]})
        return 0
    fields = Fields()
    fields.field("Task", task.get("id"))
    fields.field("Context", task.get("contextId"))
    fields.field("State", short(state_of(task)))
    for path in saved:
        fields.field("File", path)
    for url in (part["url"] for one in artifacts for part in one["parts"] if "url" in part):
        fields.field("URL", url)
    return 0


def _files(artifact: Json) -> Iterator[File]:
    """The files of an artifact: its texts as one file, and each file and data part. A URL is not
    fetched."""
    name = str(artifact.get("name") or artifact.get("artifactId") or "artifact")
    parts = artifact.get("parts") or ()
    text = text_of(parts)
    if text:
        yield _named(name, ".txt"), text.encode("utf-8", "replace")
    for part in parts:
        own = str(part.get("filename") or name)
        if "data" in part:
            content = json.dumps(part["data"], indent=2, ensure_ascii=False) + "\n"
            yield _named(own, ".json"), content.encode("utf-8", "replace")
        elif "raw" in part:
            kind = str(part.get("mediaType") or "")
            yield _named(own, mimetypes.guess_extension(kind) or ""), _decoded(str(part["raw"]))


def _decoded(raw: str) -> bytes:
    try:
        return base64.b64decode(raw + "=" * (-len(raw) % 4), altchars=b"-_" if "-" in raw else None)
    except binascii.Error as error:
        text = f"a file of the artifact is not base64: {error}"
        raise ClientError("InvalidAgentResponseError", text) from None


def _named(name: str, suffix: str) -> str:
    """A file name of one component, which is not hidden. `suffix`: for a name without one."""
    last = re.split(r"[/\\]", name)[-1]
    safe = _WRONG.sub("_", last).strip(" .")[:120] or "artifact"
    return safe if os.path.splitext(safe)[1] else safe + suffix


def _unique(files: Iterator[File]) -> Iterator[File]:
    seen: set[str] = set()
    for name, content in files:
        stem, suffix = os.path.splitext(name)
        number, chosen = 2, name
        while chosen in seen:
            chosen, number = f"{stem}-{number}{suffix}", number + 1
        seen.add(chosen)
        yield chosen, content


def _save(folder: Path, file: File, force: bool) -> Path:
    name, content = file
    path = folder / name
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    flags |= os.O_TRUNC if force else os.O_EXCL
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(os.open(path, flags, 0o666), "wb") as target:
            target.write(content)
    except FileExistsError:
        raise usage(f"{path} exists: add --force, or choose a folder with -d") from None
    except OSError as error:
        raise usage(f"cannot write {path}: {error.strerror}") from None
    return path
