"""A program for the `jsonl` adapter that leaves a process behind, which no usual way finds again.

    python -I -S stray.py                  the CLI. Its prompts are JSON:
        {"stray": ID}     leave a process, and say so when it runs
        {"until": NAME}   do not end the turn before the file NAME exists in the working directory
    and it says how many turns there have been, with a full stop: a digit at the end of a text can
    be the beginning of the server's token, which waits for the following text.
    python -I -S stray.py ID FOLDER FD     the process: it closes FD when it runs

The process has other parents, a session of its own, no environment, another name, and it is not
dumpable. For each file NAME.ask in FOLDER with [port, token] in JSON it asks that server for its
tasks with that token, and writes the status of the answer to NAME.told.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import sys
import time
from pathlib import Path

PROGRAM = str(Path(__file__).resolve())


def main() -> None:
    turns = 0
    for line in sys.stdin:
        message = json.loads(line)
        if message["type"] != "prompt":
            continue
        wanted, turns = json.loads(message["text"]), turns + 1
        if "stray" in wanted:
            leave(wanted["stray"])
        say("text", text=f"{turns}.")
        while not os.path.exists(wanted.get("until", ".")):
            time.sleep(0.02)
        say("done")


def say(kind: str, **members: str) -> None:
    print(json.dumps({"type": kind, **members}), flush=True)


def leave(name: str) -> None:
    """Return when the process runs."""
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        argv = [sys.executable, "-I", "-S", PROGRAM, name, os.getcwd(), str(writing)]
        os.execve(sys.executable, argv, {})
    os.close(writing)
    os.wait()
    os.read(reading, 1)


def live_on(folder: Path, ready: int) -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
    libc.prctl(15, b"kworker/0:1", 0, 0, 0)  # PR_SET_NAME
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    with contextlib.suppress(OSError, ValueError):  # no confined process may
        import resource

        resource.setrlimit(10, (1, 1))
    os.close(ready)
    while True:
        for asked in folder.glob("*.ask"):
            port, token = json.loads(asked.read_text())
            asked.unlink()
            told = asked.with_suffix(".part")
            told.write_text(str(status(port, token)))
            told.rename(asked.with_suffix(".told"))
        time.sleep(0.02)


def status(port: int, token: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    headers = {"Authorization": f"Bearer {token}", "A2A-Version": "1.0"}
    connection.request("GET", "/tasks", headers=headers)
    return connection.getresponse().status


if __name__ == "__main__":
    if len(sys.argv) > 1:
        live_on(Path(sys.argv[2]), int(sys.argv[3]))
    main()
