"""The demonstration: start the bridge, delegate a task, watch it, answer its questions.

The code after `start` is an ordinary A2A client that uses only the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Json = dict[str, Any]
REQUEST = "Add a --shout flag to greet.py"
LIMIT = 80.0  # seconds for the whole run; then the server is killed, which ends every wait here


def main() -> int:
    with start() as (url, token):
        print(f"The bridge listens at {url} and plays a recorded session of Claude Code.\n")
        show("you", REQUEST)
        answer: str | None = REQUEST
        task_id = question = None
        state = ""
        while answer:
            state, task_id, question = watch(send(url, token, answer, task_id, question))
            answer = "allow" if state == "TASK_STATE_INPUT_REQUIRED" else None
            if answer:
                show("you", answer)
    return 0 if state == "TASK_STATE_COMPLETED" else 1


@contextlib.contextmanager
def start() -> Iterator[tuple[str, str]]:
    """Start a server on a free port, with an empty folder as its workspace. Yields its JSON-RPC
    address and the operator's token."""
    with tempfile.TemporaryDirectory() as workspace, tempfile.TemporaryDirectory() as state:
        command = [sys.executable, "-m", "bridge", "--adapter", "replay", "--port", "0"]
        server = subprocess.Popen(
            [*command, "--root", workspace],
            stderr=subprocess.PIPE,
            text=True,
            env={"PATH": os.environ.get("PATH", os.defpath), "XDG_STATE_HOME": state},
        )
        killer = threading.Timer(LIMIT, server.kill)
        killer.start()
        try:
            assert server.stderr
            banner: list[str] = []
            token = ""
            for line in server.stderr:
                banner.append(line)
                if file := re.match(r"  token\s+(/.+)", line):
                    token = Path(file[1]).read_text().strip()
                if found := re.search(r"endpoint\s+(\S+)", line):
                    break
            else:
                sys.exit("the server did not start:\n" + "".join(banner))
            threading.Thread(target=server.stderr.read, daemon=True).start()
            yield found[1], token
        finally:
            server.terminate()
            server.wait(timeout=20)
            killer.cancel()


def send(
    url: str, token: str, text: str, task_id: str | None, question: str | None
) -> Iterator[Json]:
    """Send a message, and yield the items of its stream. With `task_id` the message answers the
    question of that task."""
    message: Json = {
        "messageId": os.urandom(8).hex(),
        "role": "ROLE_USER",
        "parts": [{"text": text}],
    }
    if task_id:
        message["taskId"] = task_id
    if question:  # a program answers faster than a person reads, so it names the question
        message["parts"].append({"data": {"questionId": question}})
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage"}
    body = json.dumps({**call, "params": {"message": message}}).encode()
    headers = {
        "Content-Type": "application/json",
        "A2A-Version": "1.0",
        "Authorization": f"Bearer {token}",
    }
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30) as stream:
        for line in stream:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])["result"]


def watch(items: Iterator[Json]) -> tuple[str, str, str | None]:
    """Print a stream for people. Returns the last state, the task's id, and the id of the open
    question."""
    state = task_id = ""
    question = None
    talking = False
    for item in items:
        kind, update = next(iter(item.items()))
        task_id = update.get("taskId") or update["id"]
        if kind == "artifactUpdate" and update["artifact"]["artifactId"] == "assistant-response":
            text = "".join(part.get("text", "") for part in update["artifact"]["parts"])
            if text:
                first = f"{'agent':>8}  " + text.lstrip("\n")
                print(text if talking else first, end="", flush=True)
                talking = True
            continue
        if talking:
            print()
            talking = False
        if kind == "statusUpdate":
            state = update["status"]["state"]
            question = show_status(state, update).get("questionId")
    return state, task_id, question


def show_status(state: str, update: Json) -> Json:
    """Print an update. Returns the object for programs in its message."""
    message = update["status"].get("message") or {}
    text = "".join(part.get("text", "") for part in message.get("parts", []))
    data: Json = message.get("metadata", {}).get("bridge", {})
    if state == "TASK_STATE_INPUT_REQUIRED":
        show("asks", text)
    elif data.get("type") == "tool_call":
        arguments = data["input"]
        show("tool", f"{data['name']} {arguments.get('command') or arguments.get('file_path', '')}")
    elif data.get("type") == "tool_result":
        for change in data.get("changes", []):
            show("change", change["diff"])
        if not data.get("changes"):
            show("", str(data["output"]))
    elif state == "TASK_STATE_COMPLETED":  # its message repeats the last block of the answer
        show_result(update.get("metadata", {}))
        show("state", state)
    else:
        model = update.get("metadata", {}).get("bridge", {}).get("model", "")
        show("state", f"{state} {model} {text}".strip())
    return data


def show_result(metadata: Json) -> None:
    usage, result = metadata.get("usage", {}), metadata.get("bridge", {}).get("result", {})
    tokens, cost, changed = (
        usage.get("totalTokens"),
        usage.get("costUsd"),
        result.get("changedFiles"),
    )
    show("result", f"{tokens} tokens, ${cost}, changed: {', '.join(changed or [])}")


def show(label: str, text: str) -> None:
    lines = text.rstrip().splitlines() or [""]
    print(f"{label:>8}  {lines[0]}")
    if lines[1:]:
        print(textwrap.indent("\n".join(lines[1:]), " " * 10))


if __name__ == "__main__":
    sys.exit(main())
