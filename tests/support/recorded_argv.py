"""A stand-in for any CLI: it writes down how it was started and what it was told, and ends.

    path = install(folder)      a program to be started in place of a CLI
    started(folder)             what all of them wrote down

It speaks as much of the dialects as it takes to be told a prompt: JSON-RPC, whose requests it
answers, lines of JSON, all of stdin, and a terminal.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import shlex
import sys
from pathlib import Path
from typing import Any

Json = dict[str, Any]

# A shell leaves signals that are ignored as they are, and Python does not.
_STUB = """#!/bin/sh
to={folder}/started.$$
cat /proc/$$/environ >"$to.environ"
cat /proc/self/status >"$to.status"
exec {python} -I -S {program} "$to" "$@"
"""
PROMPTS = ("session/prompt", "turn/start", "user", "prompt")  # methods and types of lines
ANSWER = {
    **{"protocolVersion": 1, "authMethods": [], "sessionId": "s"},
    **{"agentCapabilities": {"promptCapabilities": {"image": True, "embeddedContext": True}}},
    **{"userAgent": "x/0.0", "thread": {"id": "t"}, "turn": {"id": "u"}, "model": "m"},
}
WITHIN = 20.0  # seconds until it has been told a prompt, or never is
PAUSE = 0.3  # seconds without more, on a terminal: that was the prompt


def install(folder: Path, program: Path | None = None) -> Path:
    """A program that writes into `folder`; it lies there, too, unless `program` is its path."""
    folder.mkdir(exist_ok=True)
    words = {"folder": folder, "python": sys.executable, "program": Path(__file__)}
    path = program or folder / "agent"
    path.write_text(_STUB.format(**{name: shlex.quote(str(one)) for name, one in words.items()}))
    path.chmod(0o755)
    return path


def started(folder: Path) -> list[Json]:
    """`argv` (without the program), `environ`, `fds`, `cwd`, `umask`, `ignored` and `blocked`
    signals, `pid`, `session`, `terminal` (that which controls it), `core`, `no_new_privs`, and
    `stdin` as it was read, in no order."""
    return [json.loads(path.read_text()) for path in folder.glob("started.*.json")]


def main(to: str, argv: list[str]) -> None:
    record = describe(to, argv)
    record["stdin"] = listen().decode(errors="surrogateescape")
    Path(f"{to}.new").write_text(json.dumps(record))
    os.rename(f"{to}.new", f"{to}.json")


def describe(to: str, argv: list[str]) -> Json:
    fds = descriptors()
    environ = Path(f"{to}.environ").read_bytes().decode(errors="surrogateescape")
    lines = Path(f"{to}.status").read_text().splitlines()
    status = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    umask = os.umask(0o077)
    return {
        "argv": argv,
        "environ": dict(one.split("=", 1) for one in environ.split("\0") if one),
        "fds": fds,
        "cwd": os.getcwd(),
        "umask": umask,
        "ignored": numbers(status["SigIgn"]),
        "blocked": numbers(status["SigBlk"]),
        "pid": os.getpid(),
        "session": os.getsid(0),
        "terminal": controlling_terminal(),
        "core": resource.getrlimit(resource.RLIMIT_CORE),
        "no_new_privs": status["NoNewPrivs"] == "1",
    }


def descriptors() -> list[int]:
    """Those that are open, but for the one that lists them."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            os.fstat(int(name))
            found.append(int(name))
    return sorted(found)


def numbers(mask: str) -> list[int]:
    """The signals of a mask in /proc."""
    return [number for number in range(1, 65) if int(mask, 16) >> (number - 1) & 1]


def controlling_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR))
    except OSError:
        return False
    return True


def listen() -> bytes:
    """The messages to the CLI up to its first prompt."""
    heard, terminal = b"", os.isatty(0)
    if terminal:
        say(b"multi> ")
    while select.select([0], [], [], PAUSE if terminal and heard else WITHIN)[0]:
        data = os.read(0, 65536)
        heard += data
        if not data or (b"\n" in data and any([answer(one) for one in finished(heard, data)])):
            break
    return heard


def finished(heard: bytes, data: bytes) -> list[bytes]:
    """The lines that `data` has completed."""
    before = heard[: len(heard) - len(data)].rpartition(b"\n")[2]
    return (before + data).split(b"\n")[:-1]


def answer(line: bytes) -> bool:
    """Answer a request. Whether it was the prompt."""
    try:
        told = json.loads(line)
    except ValueError:
        return False
    if not isinstance(told, dict):
        return False
    if told.get("method") in PROMPTS or told.get("type") in PROMPTS:
        return True
    if "method" in told and "id" in told:
        version = {"jsonrpc": told["jsonrpc"]} if "jsonrpc" in told else {}
        say(json.dumps({**version, "id": told["id"], "result": ANSWER}).encode() + b"\n")
    return False


def say(data: bytes) -> None:
    os.write(1, data)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
