"""Recordings of real CLIs: making them, and finding out what dialect they are in.

One JSON object per line: `t` seconds since the start, `dir` in | out | err | note, `data` the
parsed JSON of a line, or its text. The first line is the note `spawn` with argv and adapter.
"""

from __future__ import annotations

import contextlib
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

DRAIN = 5.0  # seconds for what is left in the pipes; a grandchild may hold them open for ever
EXAMPLE = Path(__file__).parent / "example.jsonl"


def dialect(path: str) -> str:
    """Name of the adapter that understands the recording. Raises ConfigurationError."""
    try:
        with open(path, encoding="utf-8") as file:
            first = json.loads(next(file, "{}"))
        note = first["data"]
        return str(note.get("adapter") or _guess(note["argv"]))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{path} is not a recording: {error!r}") from None


def _guess(argv: Sequence[str]) -> str:
    return "claude-code" if os.path.basename(argv[0]) == "claude" else "jsonl"


def record(path: str, argv: Sequence[str], adapter: str | None = None) -> int:
    """Run `argv` with our own stdin, stdout and stderr, and write down all that passes.

    Stands in for the CLI itself, so that a bridge can be pointed at it (CLAUDE_CODE_PATH).
    Returns the exit status as a shell gives it. Raises ConfigurationError.
    """
    pipe = subprocess.PIPE
    try:
        child = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)
    except OSError as error:
        raise ConfigurationError(f"cannot start {argv[0]}: {error.strerror}") from None
    passed_on: list[int] = []

    def pass_on(number: int, _: object) -> None:
        passed_on.append(number)
        child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, pass_on)
    with child, _tape_file(path, child) as file:
        tape = _Tape(file)
        note = {"note": "spawn", "argv": list(argv), "cwd": os.getcwd()}
        tape.write("note", {**note, "adapter": adapter or _guess(argv)})
        code = _pass_through(tape, child)
        # An end that came from outside is not the CLI's own, and not to be played.
        end = {"note": "stopped"} if passed_on else {"note": "exit", "rc": code}
        tape.write("note", end)
    return code if code >= 0 else 128 - code


def _tape_file(path: str, child: subprocess.Popen[bytes]) -> IO[str]:
    try:
        return open(path, "w", encoding="utf-8")
    except OSError as error:
        child.kill()
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from None


def _pass_through(tape: _Tape, child: subprocess.Popen[bytes]) -> int:
    """Copy all three streams until the child has ended. Returns its exit code."""
    assert child.stdin and child.stdout and child.stderr
    # Our stdin may stay open for ever: that thread is left behind.
    threading.Thread(target=tape.copy, args=("in", 0, child.stdin), daemon=True).start()
    streams = (("out", child.stdout, sys.stdout), ("err", child.stderr, sys.stderr))
    outputs = [
        threading.Thread(target=tape.copy, args=(name, source.fileno(), target), daemon=True)
        for name, source, target in streams
    ]
    for thread in outputs:
        thread.start()
    code = child.wait()
    for thread in outputs:
        thread.join(timeout=DRAIN)
    return code


class _Tape:
    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._start = time.monotonic()
        self._lock = threading.Lock()

    def copy(self, direction: str, source: int, target: IO[Any]) -> None:
        """Pass bytes on; each complete line is written down first. Descriptors, because a thread
        that waits in a buffered stdin keeps the interpreter from ending."""
        rest = b""
        with contextlib.suppress(OSError, ValueError):
            while data := os.read(source, 65536):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self.write(direction, _parsed(line))
                while data:
                    data = data[os.write(target.fileno(), data) :]
        if rest:
            self.write(direction, _parsed(rest))
        if direction == "in":
            target.close()

    def write(self, direction: str, data: Any) -> None:
        with self._lock:
            seconds = round(time.monotonic() - self._start, 4)
            if not self._file.closed:
                self._file.write(json.dumps({"t": seconds, "dir": direction, "data": data}) + "\n")
                self._file.flush()


def _parsed(line: bytes) -> Any:
    text = line.decode(errors="replace")
    try:
        return json.loads(text)
    except ValueError:
        return text
