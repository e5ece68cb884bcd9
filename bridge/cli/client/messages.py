"""The parts of a message, from the words of a command line."""

from __future__ import annotations

import base64
import contextlib
import mimetypes
import os
import sys
import uuid
from collections.abc import Sequence
from typing import Any

import orjson

from bridge.client.failure import usage
from bridge.client.shapes import Json

LARGEST = 100 * 1024 * 1024  # bytes of a part; a device or a pipe may have no end


def new_message(
    parts: Sequence[Json], task_id: str | None, context_id: str | None, message_id: str | None
) -> Json:
    message: Json = {
        "messageId": message_id or str(uuid.uuid4()),
        "role": "ROLE_USER",
        "parts": list(parts),
    }
    ids = {"taskId": task_id, "contextId": context_id}
    return {**message, **{name: value for name, value in ids.items() if value}}


def message_parts(text: str | None, given: Sequence[tuple[str, str, str | None]]) -> list[Json]:
    """The parts of a message in the order of the command line. Raises ClientError."""
    if text == "-":
        text = _decoded(_content("-"), "stdin", "save it and send it with --file")
        if not text.strip():
            raise usage("stdin is empty: it has no message")
    texts = [] if text is None else [("text", text, None)]
    parts = [_part(*one) for one in (*texts, *given)]
    if not parts:
        raise usage("a message is necessary: TEXT, --text, --file or --data")
    return parts


def _part(kind: str, value: str, media_type: str | None) -> Json:
    named = {"mediaType": media_type} if media_type else {}
    if kind == "text":
        return {"text": _decoded(os.fsencode(value), "the text", "send it with --file"), **named}
    if kind == "data":
        return {"data": _read_json(value), **named}
    if value.startswith(("http://", "https://")):
        return {"url": value, **named}
    guessed = media_type or mimetypes.guess_type(value)[0]
    named = {"mediaType": guessed} if guessed else {}
    raw = base64.b64encode(_content(value)).decode()
    name = os.fsencode(os.path.basename(value)).decode("utf-8", "replace")
    return {"raw": raw, "filename": name, **named}


def _read_json(path: str) -> Any:
    try:
        return orjson.loads(_content(path))
    except ValueError as error:
        raise usage(f"{path} is not JSON: {error}") from None


def _content(path: str) -> bytes:
    """The bytes of a file, or of stdin (`-`). Raises ClientError."""
    try:
        with contextlib.ExitStack() as opened:
            file = sys.stdin.buffer if path == "-" else opened.enter_context(open(path, "rb"))
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise usage(f"cannot read {path}: {error.strerror}") from None
    if len(content) > LARGEST:
        raise usage(f"{path} has more than {LARGEST >> 20} MiB, which no message takes")
    return content


def stdin_line() -> str:
    """The first line of stdin. Raises ClientError."""
    return _decoded(sys.stdin.buffer.readline(LARGEST), "stdin").strip()


def _decoded(content: bytes, name: str, remedy: str | None = None) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise usage(f"{name} is not UTF-8 at byte {error.start}", remedy) from None
