"""The adapter `jsonl` with a program that behaves as the official test suite of A2A asks by the
prefix of `messageId`. A prefix that it does not know completes the task. It reads text only,
because the suite sends a file of an unknown type and wants a refusal."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

PROGRAM = str(Path(__file__).resolve())
Json = dict[str, Any]

WORKS = 2.0  # seconds; the suite tells a send that waits from one that does not
FILE = {"filename": "output.txt", "mediaType": "text/plain"}
REMOTE = {"url": "https://example.com/output.txt", **FILE}
ANSWER = {"type": "done", "text": "Hello from TCK"}


def artifact(part: Json, **members: Any) -> Json:
    return {"type": "artifact", "artifactId": "1", "parts": [part], **members}


def text(content: str, **members: Any) -> Json:
    return artifact({"text": content}, **members)


WORKING, DONE = {"type": "status", "text": "working"}, {"type": "done"}
# The first prefix that fits decides: a longer one stands before a shorter one.
BEHAVIOR: dict[str, tuple[Json, ...]] = {
    "tck-artifact-text": (text("Generated text content"), DONE),
    "tck-artifact-file-url": (artifact(REMOTE), DONE),
    "tck-artifact-file": (artifact({"raw": "dGNr", **FILE}), DONE),
    "tck-artifact-data": (artifact({"data": {"key": "value", "count": 42}}), DONE),
    "tck-message-response": ({"type": "message", "text": "Direct message response"},),
    "tck-input-required": ({"type": "question", "id": "q", "text": "Go on?", "options": []},),
    "tck-auth-required": ({"type": "auth_required", "id": "a", "text": "Log in first."},),
    "tck-reject-task": ({"type": "rejected", "text": "rejected"},),
    "tck-delayed-complete": (WORKING, {"type": "pause"}, DONE),
    "tck-stream-001": (WORKING, text("Stream hello from TCK"), DONE),
    "tck-stream-002": ({"type": "message", "text": "Stream message-only response"},),
    "tck-stream-003": (WORKING, text("Stream task lifecycle"), DONE),
    "tck-stream-ordering-001": (WORKING, text("Ordered output"), DONE),
    "tck-stream-artifact-text": (WORKING, text("Streamed text content"), DONE),
    "tck-stream-artifact-file": (WORKING, artifact({"raw": "dGNr", **FILE}), DONE),
    "tck-stream-artifact-chunked": (
        *(WORKING, text("chunk-1 ", lastChunk=False)),
        *(text("chunk-2", append=True, lastChunk=True), DONE),
    ),
}


def adapter() -> object:
    """The class, which only the server can import."""
    from bridge.server import registry

    class TextOnlyJsonl(registry.load("jsonl")):  # type: ignore[misc]
        name = "suite"
        input_modes = ("text/plain",)
        takes_files = takes_urls = False

    return TextOnlyJsonl


def __getattr__(name: str) -> object:
    if name == "TextOnly":
        return adapter()
    raise AttributeError(name)


def behavior(message_id: str) -> tuple[Json, ...]:
    found = (events for prefix, events in BEHAVIOR.items() if message_id.startswith(prefix))
    return next(found, (ANSWER,))


def main() -> None:
    for line in sys.stdin:
        received = json.loads(line)
        if received["type"] not in ("prompt", "answer"):
            continue
        for event in behavior(received["messageId"]):
            if event["type"] == "pause":
                time.sleep(WORKS)
            else:
                print(json.dumps(event), flush=True)


if __name__ == "__main__":
    main()
