"""Recordings of real CLIs: create a recording, and find the adapter for one.

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

DRAIN = 5.0  # seconds to read the rest of the pipes; a grandchild may keep them open
EXAMPLE = Path(__file__).parent / "example.jsonl"


def dialect(path: str) -> str:
    """The name of the adapter for the recording. Raises ConfigurationError."""
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
    """Run `argv` with stdin, stdout and stderr of this process, and record all data.

    A bridge can run this command in place of the CLI (AGENT_BINARY). Returns the exit status
    as a shell reports it. Raises ConfigurationError.
    """
    pipe = subprocess.PIPE
    try:
        child = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)
    except OSError as error:
        raise ConfigurationError(f"cannot start {argv[0]}: {error.strerror}") from None
    try:
        file = open(path, "w", encoding="utf-8")
    except OSError as error:
        child.kill()
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from None
    forwarded: list[int] = []

    def forward(number: int, _: object) -> None:
        forwarded.append(number)
        child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, forward)
    with child, file:
        tape = _Tape(file)
        note = {"note": "spawn", "argv": list(argv), "cwd": os.getcwd()}
        tape.write("note", {**note, "adapter": adapter or _guess(argv)})
        code = _copy_streams(tape, child)
        # The replay must not repeat an exit that a signal from outside caused.
        end = {"note": "stopped"} if forwarded else {"note": "exit", "rc": code}
        tape.write("note", end)
    return code if code >= 0 else 128 - code


def _copy_streams(tape: _Tape, child: subprocess.Popen[bytes]) -> int:
    """Copy all three streams until the child exits. Returns its exit code."""
    assert child.stdin and child.stdout and child.stderr
    # stdin may never end, so nothing waits for its thread.
    threading.Thread(target=tape.copy, args=("in", 0, child.stdin), daemon=True).start()
    streams = (("out", child.stdout, sys.stdout), ("err", child.stderr, sys.stderr))
    outputs = [
        threading.Thread(target=tape.copy, args=(name, source.fileno(), target), daemon=True)
        for name, source, target in streams
    ]
    for thread in outputs:
        thread.start()
    code = _end_of(child)
    for thread in outputs:
        thread.join(timeout=DRAIN)
    return code


def _end_of(child: subprocess.Popen[bytes]) -> int:
    """The exit code. A signal that comes just before a wait without a limit would be forwarded only
    after the wait, which may never end."""
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(timeout=1.0)


class _Tape:
    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._start = time.monotonic()
        self._lock = threading.Lock()

    def copy(self, direction: str, source: int, target: IO[Any]) -> None:
        """Copy bytes and record each complete line first. Uses descriptors, because a thread that
        waits in a buffered stdin keeps the interpreter from exiting."""
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
