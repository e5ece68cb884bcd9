"""Recordings of real CLIs: making them, and finding out what dialect they are in.

One JSON object per line: `t` seconds since the start, `dir` in | out | err | note, `data` the
parsed JSON of a line, or its text. The first line is the note `spawn` with argv and adapter.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from bridge.errors import ConfigurationError

EXAMPLE = Path(__file__).parent / "example.jsonl"


def dialect(path: str) -> str:
    """Name of the adapter that understands the recording. Raises ConfigurationError."""
    try:
        with open(path, encoding="utf-8") as file:
            first = json.loads(next(file, "{}"))
        note = first["data"]
        return str(note.get("adapter") or _guess(note["argv"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{path} is not a recording: {error!r}") from None


def _guess(argv: Sequence[str]) -> str:
    return "claude-code" if os.path.basename(argv[0]) == "claude" else "jsonl"


def record(path: str, argv: Sequence[str], adapter: str | None = None) -> int:
    """Run `argv` with our own stdin, stdout and stderr, and write down all that passes.

    Stands in for the CLI itself, so that a bridge can be pointed at it (CLAUDE_CODE_PATH).
    Returns the exit status as a shell gives it.
    """
    try:
        child = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise ConfigurationError(f"cannot start {argv[0]}: {error.strerror}") from None
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _: child.send_signal(received))
    with open(path, "w", encoding="utf-8") as file:
        tape = _Tape(file)
        note = {"note": "spawn", "argv": list(argv), "cwd": os.getcwd()}
        tape.write("note", {**note, "adapter": adapter or _guess(argv)})
        assert child.stdin and child.stdout and child.stderr
        copies = [
            threading.Thread(target=tape.copy, args=("out", child.stdout, sys.stdout.buffer)),
            threading.Thread(target=tape.copy, args=("err", child.stderr, sys.stderr.buffer)),
        ]
        copy_in = threading.Thread(
            target=tape.copy, args=("in", sys.stdin.buffer, child.stdin), daemon=True
        )
        for thread in (copy_in, *copies):
            thread.start()
        code = child.wait()
        for thread in copies:
            thread.join(timeout=5)
        tape.write("note", {"note": "exit", "rc": code})
    return code if code >= 0 else 128 - code


class _Tape:
    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._start = time.monotonic()
        self._lock = threading.Lock()

    def copy(self, direction: str, source: IO[bytes], target: IO[bytes]) -> None:
        """Pass lines on, each of them written down first."""
        try:
            for line in source:
                self.write(direction, _parsed(line))
                target.write(line)
                target.flush()
        except (BrokenPipeError, ValueError):
            pass
        if direction == "in":
            target.close()

    def write(self, direction: str, data: Any) -> None:
        with self._lock:
            seconds = round(time.monotonic() - self._start, 4)
            if not self._file.closed:
                self._file.write(json.dumps({"t": seconds, "dir": direction, "data": data}) + "\n")
                self._file.flush()


def _parsed(line: bytes) -> Any:
    text = line.decode(errors="replace").rstrip("\n")
    try:
        return json.loads(text)
    except ValueError:
        return text
