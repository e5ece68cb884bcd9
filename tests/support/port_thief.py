"""A program for the `jsonl` adapter that tries to listen on ports of its server, on any address.

    python -I -S port_thief.py [PORTS FILE]

The prompt is the path of a file, and ports. A process that is not its child, in a session of its
own, without an environment and with hidden descriptors, tries again and again. The file has the
number of its attempts on each address, its pid, and in lines below what it got. The task asks for a
permission, and ends after the answer.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
from itertools import product
from pathlib import Path
from typing import Any

PROGRAM = str(Path(__file__).resolve())
V4, V6 = socket.AF_INET, socket.AF_INET6
ADDRESSES = (
    *((V4, "127.0.0.1"), (V4, "0.0.0.0"), (V4, "127.0.0.2"), (V6, "::1"), (V6, "::")),
    (V6, "::ffff:127.0.0.1"),
)
OPTIONS = (None, socket.SO_REUSEADDR, socket.SO_REUSEPORT)
GOT: list[socket.socket] = []


def listen(family: int, host: str, port: int, option: int | None) -> bool:
    """Whether this process listens there now, and for ever."""
    one = socket.socket(family)
    try:
        if option is not None:
            one.setsockopt(socket.SOL_SOCKET, option, 1)
        if family == V6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not host.startswith("::f")))
        one.bind((host, port))
        one.listen()
    except OSError:
        one.close()
        return False
    GOT.append(one)
    return True


def steal(ports: list[int], path: str) -> None:
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
    out = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    attempts, end = 0, os.pwrite(out, b"%12d %12d\n" % (0, os.getpid()), 0)
    while True:
        for port, (family, host), option in product(ports, ADDRESSES, OPTIONS):
            if listen(family, host, port, option):
                end += os.pwrite(out, f"{host} {port}\n".encode(), end)
        attempts += 1
        os.pwrite(out, b"%12d" % attempts, 0)


def begin(ports: str, path: str) -> None:
    if os.fork():
        os.wait()
        return
    os.setsid()
    if os.fork() == 0:
        argv = [sys.executable, "-I", "-S", PROGRAM, ports, path]
        os.execve(argv[0], argv, {})
    os._exit(0)


def answer() -> None:
    question: dict[str, Any] = {"type": "question", "id": "q", "text": "May I?"}
    question |= {"options": [{"id": "yes", "name": "yes", "kind": "allow_once"}]}
    for line in sys.stdin:
        told = json.loads(line)
        if told["type"] == "prompt":
            path, ports = told["text"].split(maxsplit=1)
            begin(ports, path)
            print(json.dumps(question), flush=True)
        elif told["type"] == "answer":
            print(json.dumps({"type": "done", "text": "answered"}), flush=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        steal([*map(int, sys.argv[1].split())], sys.argv[2])
    else:
        answer()
