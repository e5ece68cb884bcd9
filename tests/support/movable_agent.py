"""The adapter `jsonl` with a program whose conversation is a file of its directory, so that any
server with the directory can resume it.

    python -I -S movable_agent.py

text X   say X       count   say how many prompts the conversation has had, in all its processes
append PATH SECONDS   append the time to a file again and again, for ever or for so long
wait PATH NAME        see tests/support/liveness.py
Each prompt is also a line of the file `prompts` in the directory.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

PROGRAM = str(Path(__file__).resolve())


def adapter() -> object:
    """The class, which only the server can import."""
    from bridge.server import registry

    class MovableJsonl(registry.load("jsonl")):  # type: ignore[misc]
        name = "movable"
        resumes_elsewhere = True
        may_reply = False
        limitations: ClassVar[Mapping[str, str]] = {}

    return MovableJsonl


def __getattr__(name: str) -> object:
    if name == "Movable":
        return adapter()
    raise AttributeError(name)


def say(kind: str, text: str = "") -> None:
    print(json.dumps({"type": kind, "text": text}), flush=True)


def append(path: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    with open(path, "ab", buffering=0) as file:
        while time.monotonic() < end:
            file.write(b"%d %d\n" % (time.clock_gettime_ns(time.CLOCK_BOOTTIME), os.getpid()))
            time.sleep(0.01)


def main() -> None:
    for line in sys.stdin:
        given = json.loads(line)
        if given["type"] != "prompt":
            continue
        with open("prompts", "a") as file:
            file.write(given["taskId"] + "\n")
        for command in given["text"].splitlines():
            word, _, rest = command.partition(" ")
            match word:
                case "text":
                    say("text", rest)
                    say("status", "x")
                case "count":
                    say("text", str(len(Path("prompts").read_text().splitlines())))
                case "append":
                    path, _, seconds = rest.partition(" ")
                    append(path, float(seconds or "inf"))
                case "wait":
                    path, name = rest.split()
                    with socket.socket(socket.AF_UNIX) as connection:
                        connection.connect(path)
                        connection.sendall(f"{name} {os.getpid()}\n".encode())
                        connection.recv(100)
        say("done")


if __name__ == "__main__":
    main()
