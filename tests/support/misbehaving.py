"""Child programs that misbehave on demand. Run by path, with nothing but the standard library.

    python misbehaving.py BEHAVIOUR [SOCKET]     does it at once
    python misbehaving.py                        a CLI that misbehaves when its prompt says so

As a CLI it speaks both the `jsonl` protocol and Claude Code's: it answers each prompt properly,
unless the prompt's text is the name of a behaviour. A file `at-start` in its directory names one
to show before anything else. SOCKET is where it tells that it lives (tests/support/liveness.py).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAM = str(Path(__file__).resolve())
_open: list[socket.socket] = []  # kept open until the process ends


def report(name: str) -> None:
    """Report a process of this name to the test."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(sys.argv[2])
    connection.sendall(f"{name} {os.getpid()}\n".encode())
    _open.append(connection)


def forever() -> None:
    while True:
        time.sleep(1000)


def fork(then: Callable[[], None]) -> None:
    if os.fork() == 0:
        try:
            then()
            forever()
        finally:
            os._exit(1)


# --- processes and their families --------------------------------------------------------------


def lives() -> None:
    report("child")
    forever()


def ignores_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    report("child")
    forever()


def stops_itself() -> None:
    report("child")
    os.kill(os.getpid(), signal.SIGSTOP)
    forever()


def has_a_family() -> None:
    """Descendants of every kind that agents are known to have, all deaf to SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    fork(lambda: report("in-the-group"))
    fork(own_session)
    fork(daemon)
    fork(cleared)
    fork(own_group)
    report("child")
    forever()


def own_group() -> None:
    os.setpgid(0, 0)
    report("own-group")


def own_session() -> None:
    os.setsid()
    fork(lambda: report("below-own-session"))
    report("own-session")


def daemon() -> None:
    """A double fork: its parent has ended, and the kernel gave it a new parent."""
    os.setsid()
    fork(lambda: report("daemon"))
    os._exit(0)


def cleared() -> None:
    os.setsid()
    os.execve(sys.executable, [sys.executable, PROGRAM, "cleared_environment", sys.argv[2]], {})


def cleared_environment() -> None:
    """Nor can other programs of its user look into it, and it has another name."""
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
    ctypes.CDLL(None).prctl(15, b"kworker", 0, 0, 0)  # PR_SET_NAME
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    report("cleared-environment")
    forever()


def leaves_strays() -> None:
    """Orphans, beside a helper that is a child in a session of its own."""
    fork(helper)
    for stray in (orphan, cleared):
        if os.fork() == 0:
            fork(stray)
            os._exit(0)
    report("child")
    forever()


def helper() -> None:
    os.setsid()
    report("helper")


def orphan() -> None:
    os.setsid()
    fork(lambda: report("below-the-orphan"))
    report("orphan")


def leaves_a_cleared_orphan() -> None:
    """Ends, and leaves a child in its session that has no environment."""
    if os.fork() == 0:
        argv = [sys.executable, PROGRAM, "cleared_environment", sys.argv[2]]
        os.execve(sys.executable, argv, {})
    os._exit(0)


def hides() -> None:
    """Leaves a process that has no session, parent or environment of its origin."""
    if os.fork() == 0:
        cleared()
    os._exit(0)


def leaves_an_orphan_that_ends() -> None:
    """Ends first; its orphan ends on request."""
    if os.fork() == 0:
        os.setsid()
        report("orphan")
        _open[0].recv(10)
        os._exit(0)
    os._exit(0)


def lives_late() -> None:
    report("born-late")
    forever()


def forks_when_terminated() -> None:
    """SIGTERM makes it start something that knows nothing of SIGTERM, and end."""

    def fork_and_end(*_: object) -> None:
        began, begins = os.pipe()  # closed by exec
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.execve(sys.executable, [sys.executable, PROGRAM, "lives_late", sys.argv[2]], {})
        os.close(begins)
        os.read(began, 1)
        os._exit(0)

    signal.signal(signal.SIGTERM, fork_and_end)
    report("child")
    forever()


def has_a_daemon_at_once() -> None:
    fork(own_session)
    report("child")
    forever()


def closes_stdin() -> None:
    os.close(0)
    report("child")
    forever()


def describes_itself() -> None:
    umask = os.umask(0)
    fds = [fd for fd in range(256) if _is_open(fd)]
    own = {"sid": os.getsid(0), "pgid": os.getpgid(0), "pid": os.getpid()}
    print(json.dumps({**own, "umask": umask, "fds": fds, "cwd": os.getcwd()}), flush=True)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


# --- what a CLI may do instead of answering ----------------------------------------------------


def exits() -> None:
    print("I have no licence to run here", file=sys.stderr, flush=True)
    sys.exit(3)


def exits_without_a_word() -> None:
    os._exit(0)


def prints_garbage() -> None:
    out = sys.stdout.buffer
    out.write(b'\x00\xff\xfe garbage\r\n{\n[]\nnull\n"text"\n{}\n{"type":null}\n{"type":[]}\n')
    out.write(b'\xed\xa0\x80\n{"type":"text"\n' + b"[" * 5000 + b"\n" + b"1" * 5000 + b"\n")
    out.flush()
    sys.exit(1)


def prints_a_long_line() -> None:
    """50 MB without a newline, then the newline, then nothing more."""
    for _ in range(50):
        sys.stdout.buffer.write(b"x" * 1_000_000)
    sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()
    sys.exit(1)


def never_answers() -> None:
    forever()


def floods_stderr() -> None:
    for _ in range(50):
        sys.stderr.buffer.write(b"e" * 1_000_000)
    sys.stderr.buffer.write(b"\nthe last words\n")
    sys.stderr.buffer.flush()
    sys.exit(1)


def leaves_half_a_line() -> None:
    sys.stdout.write('a whole line\n{"type":"text","text":"ha')
    sys.stdout.flush()
    os._exit(1)


def dies_by_a_signal() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def closes_stdout() -> None:
    os.close(1)
    forever()


def closes_stdin_and_stdout() -> None:
    os.close(0)
    os.close(1)
    forever()


# --- the CLI -----------------------------------------------------------------------------------


def cli() -> None:
    at_start = Path("at-start")
    if "--version" in sys.argv:
        print("0.0 (misbehaving)")
        return
    if at_start.exists():
        globals()[at_start.read_text().strip()]()
    for text in sys.stdin:
        line = json.loads(text)
        if line["type"] == "prompt":
            said = line["text"]
        elif line["type"] == "user":
            said = line["message"]["content"][0]["text"]
        else:
            continue
        say({"type": "text", "text": "so far"} if line["type"] == "prompt" else claude("so far"))
        behaviour = globals().get(said)
        if behaviour:
            behaviour()
        elif line["type"] == "prompt":
            say({"type": "done"})
        else:
            result = {"type": "result", "subtype": "success", "is_error": False, "result": "ok"}
            say(result)


def claude(text: str) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"type": "assistant", "message": {"id": "msg-1", "content": content}}


def say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in globals():
        globals()[sys.argv[1]]()
    else:
        cli()
