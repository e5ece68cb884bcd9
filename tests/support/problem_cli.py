"""A program for the `jsonl` adapter that misbehaves as its prompt says, and keeps a ledger.

    python -I -S problem_cli.py

The prompt's text is JSON: {"ledger": path, "seed": number, "steps": [[word, argument...], ...]}.
Before it writes a line to stdout, it appends to the ledger what it is about to write, so that the
ledger never has less than what was written; and so it does with what it reads. The steps:

    text N PAUSE SIZE   N pieces of text, numbered and hashed, PAUSE milliseconds apart
    flood N             the same at once
    drip PAUSE          one of them, byte by byte
    raw X   piece X     X (as latin-1) with a newline, or without one
    long N              a line of N bytes that is not JSON
    ask ID   unread ID  ask; read the answer and say what it was, or never read it
    stderr N            so many bytes there
    child KIND          start a process (see CHILDREN)
    late                SIGTERM makes it start another process, and end
    deaf  stop  silence ignore SIGTERM; stop itself; say nothing for ever
    close FD            close one of its streams
    reopen MODE         open stdout a second time, with "a" or "w", write there, close it
    kill  killgroup     SIGKILL to itself, or to its whole process group
    exit N              end
    end TYPE            the turn's last line; without this step it is "done". "nothing": none
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PROGRAM = str(Path(__file__).resolve())
LETTERS = 'abcdefghij é☃\u2028"\\😀'
Json = dict[str, Any]


def forever() -> None:
    while True:
        time.sleep(1000)


def write_all(fd: int, data: bytes) -> None:
    """All of `data`, however full the disk is now."""
    while data:
        try:
            data = data[os.write(fd, data) :]
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            time.sleep(0.02)


class Ledger:
    """The actions, a line of JSON each, in a file that only grows."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, *entries: Json) -> None:
        lines = "".join(json.dumps(entry) + "\n" for entry in entries)
        os.write(self._fd, lines.encode())


class Turn:
    def __init__(self, prompt: Json, lines: Iterator[bytes]) -> None:
        script = json.loads(prompt["text"])
        self.task = prompt["taskId"]
        self.ledger = Ledger(script["ledger"])
        self.steps: list[list[Any]] = script["steps"]
        self.random = random.Random(script["seed"])
        self.lines = lines
        self.seq = 0
        self.over = False
        self.ledger.note({"kind": "prompt", "task": self.task, "pid": os.getpid()})

    def run(self) -> None:
        for word, *arguments in self.steps:
            getattr(self, word)(*arguments)
            if self.over:
                return
        self.end("done")

    def end(self, kind: str) -> None:
        self.over = True
        self.ledger.note({"kind": "end", "type": kind})
        if kind != "nothing":
            self._say(type=kind, text="")

    # --- stdout --------------------------------------------------------------------------------

    def text(self, count: int, pause: float = 0, size: int = 20) -> None:
        for _ in range(count):
            entry, line = self._piece(size)
            self.ledger.note(entry)
            write_all(1, line)
            if pause:
                time.sleep(pause / 1000)

    def flood(self, count: int) -> None:
        while count > 0:
            pieces = [self._piece(20) for _ in range(min(count, 500))]
            self.ledger.note(*(entry for entry, _ in pieces))
            write_all(1, b"".join(line for _, line in pieces))
            count -= len(pieces)

    def drip(self, pause: float) -> None:
        entry, line = self._piece(20)
        self.ledger.note(entry)
        for one in line:
            write_all(1, bytes([one]))
            time.sleep(pause / 1000)

    def raw(self, text: str) -> None:
        self.ledger.note({"kind": "raw", "hex": text.encode("latin-1").hex()})
        write_all(1, text.encode("latin-1") + b"\n")

    def piece(self, text: str) -> None:
        self.ledger.note({"kind": "raw", "hex": text.encode("latin-1").hex()})
        write_all(1, text.encode("latin-1"))

    def long(self, length: int) -> None:
        self.ledger.note({"kind": "long", "length": length})
        chunk = b"x" * min(length, 1024 * 1024)
        for start in range(0, length, len(chunk)):
            write_all(1, chunk[: length - start])
        write_all(1, b"\n")

    def reopen(self, mode: str) -> None:
        entry, line = self._piece(20)
        self.ledger.note(entry)
        with open("/proc/self/fd/1", mode + "b") as out:
            out.write(line)

    def _piece(self, size: int) -> tuple[Json, bytes]:
        """A ledger's entry, and its line."""
        body = "".join(self.random.choices(LETTERS, k=size))
        sha = hashlib.sha256(body.encode()).hexdigest()[:12]
        entry = {"kind": "text", "seq": self.seq, "sha": sha}
        line = json.dumps({"type": "text", "text": f"{self.seq} {sha} {body}\n"}) + "\n"
        self.seq += 1
        return entry, line.encode()

    def _say(self, **members: Any) -> None:
        write_all(1, json.dumps(members).encode() + b"\n")

    # --- stdin ---------------------------------------------------------------------------------

    def ask(self, question: str) -> None:
        self.unread(question)
        for line in self.lines:
            said = read_line(line)
            if said.get("type") == "answer" and said.get("taskId") == self.task:
                answer = {"question": said.get("questionId"), "text": said.get("text")}
                self.ledger.note({"kind": "answer", **answer})
                return
            if said.get("type") != "cancel":
                self.ledger.note({"kind": "unexpected", "line": repr(line[:200])})
        self.over = True

    def unread(self, question: str) -> None:
        self.ledger.note({"kind": "question", "question": question})
        self._say(type="question", id=question, text=f"{question}?")

    # --- other trouble -------------------------------------------------------------------------

    def stderr(self, count: int) -> None:
        chunk = b"e" * 65535 + b"\n"
        for start in range(0, count, len(chunk)):
            write_all(2, chunk[: count - start])

    def close(self, fd: int) -> None:
        os.close(fd)

    def deaf(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def stop(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def silence(self) -> None:
        forever()

    def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def killgroup(self) -> None:
        os.killpg(0, signal.SIGKILL)

    def exit(self, code: int) -> None:
        os._exit(code)

    def late(self) -> None:
        def fork_and_end(*_: object) -> None:
            self.child("session")
            os._exit(0)

        signal.signal(signal.SIGTERM, fork_and_end)

    def child(self, kind: str) -> None:
        """Start it, and wait until it has written itself down."""
        ready, done = os.pipe()
        if os.fork() == 0:
            try:
                os.close(ready)
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                CHILDREN[kind](lambda: self._live(kind, done))
            finally:
                os._exit(1)
        os.close(done)
        os.read(ready, 1)
        os.close(ready)

    def _live(self, kind: str, done: int) -> None:
        self.ledger.note({"kind": "child", "pid": os.getpid(), "name": kind})
        os.write(done, b"!")
        forever()


# --- kinds of children -------------------------------------------------------------------------

Live = Callable[[], None]


def in_own_group(live: Live) -> None:
    os.setpgid(0, 0)
    live()


def in_own_session(live: Live) -> None:
    os.setsid()
    live()


def daemon(live: Live) -> None:
    os.setsid()
    if os.fork() == 0:
        live()
    os._exit(0)


def nohup(live: Live) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.setsid()
    for fd in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), fd)
    live()


def talks(live: Live) -> None:
    """Holds stdout open and keeps writing text there that belongs to no answer."""
    if os.fork() == 0:
        while True:
            time.sleep(0.05)
            write_all(1, b'{"type":"noise"}\n')
    live()


CHILDREN: dict[str, Callable[[Live], None]] = {
    "group": lambda live: live(),
    "own-group": in_own_group,
    "session": in_own_session,
    "daemon": daemon,
    "nohup": nohup,
    "talks": talks,
}


def read_line(line: bytes) -> Json:
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def main() -> None:
    """One script after the other. Other input between two scripts is recorded: the bridge has no
    reason to send it."""
    lines = iter(sys.stdin.buffer.readline, b"")
    last: Turn | None = None
    for line in lines:
        said = read_line(line)
        if said.get("type") == "prompt":
            last = Turn(said, lines)
            last.run()
        elif said.get("type") != "cancel" and last:
            last.ledger.note({"kind": "unexpected", "line": repr(line[:200])})


if __name__ == "__main__":
    if sys.argv[1:] == ["--version"]:
        print("0.0 (a problem)")
    else:
        main()
