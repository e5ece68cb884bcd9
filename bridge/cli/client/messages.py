"""The parts of a message, from the words of a command line."""

from __future__ import annotations

import base64
import json
import mimetypes
import os
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bridge.client.failure import usage
from bridge.client.shapes import Json


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
    texts = [] if text is None else [("text", sys.stdin.read() if text == "-" else text, None)]
    parts = [_part(*one) for one in (*texts, *given)]
    if not parts:
        raise usage("a message is necessary: TEXT, --text, --file or --data")
    return parts


def _part(kind: str, value: str, media_type: str | None) -> Json:
    named = {"mediaType": media_type} if media_type else {}
    if kind == "text":
        return {"text": value, **named}
    if kind == "data":
        return {"data": _read_json(value), **named}
    if value.startswith(("http://", "https://")):
        return {"url": value, **named}
    guessed = media_type or mimetypes.guess_type(value)[0]
    named = {"mediaType": guessed} if guessed else {}
    try:
        content = Path(value).read_bytes()
    except OSError as error:
        raise usage(f"cannot read {value}: {error.strerror}") from None
    raw = base64.b64encode(content).decode()
    return {"raw": raw, "filename": os.path.basename(value), **named}


def _read_json(path: str) -> Any:
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text("utf-8")
        return json.loads(text)
    except OSError as error:
        raise usage(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise usage(f"{path} is not JSON: {error}") from None
