"""The demonstration: start the bridge with a recorded session of Claude Code, and delegate a task
to it by `run`. Without a terminal, each question is allowed."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

REQUEST = "Add a --shout flag to greet.py"
LIMIT = 600.0  # seconds for the whole run; then the server is killed, which ends every wait here
CHECKOUT = Path(__file__).resolve().parent.parent
PROGRAM = [sys.executable, "-P", "-m", "bridge"]
PASSED = ("PATH", "HOME", "TERM", "LANG", "LC_ALL", "NO_COLOR", "PAGER")
ASKS = 11  # the exit status of a task that waits for an answer


def main() -> int:
    with start() as (workspace, env):
        if sys.stdin.isatty() and sys.stdout.isatty():
            print("y allows a request; ? shows all keys.\n", flush=True)
            return subprocess.call([*PROGRAM, "run", REQUEST], cwd=workspace, env=env)
        status, task = said(["send", REQUEST], workspace, env)
        while status == ASKS:
            status, task = said(["answer", task, "Allow"], workspace, env)
        return status


def said(words: list[str], workspace: str, env: dict[str, str]) -> tuple[int, str]:
    """Run a command of the client, and print its output. Returns its status, and its task."""
    done = subprocess.run(
        [*PROGRAM, *words, "--exit-state"],
        cwd=workspace,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    print(f"$ cab {shlex.join(words)}\n{done.stdout}", flush=True)
    return done.returncode, next(iter(re.findall(r"(?m)^Task: (\S+)$", done.stdout)), "")


@contextlib.contextmanager
def start() -> Iterator[tuple[str, dict[str, str]]]:
    """Start a server on a free port, with an empty folder as its workspace. Yields this folder, and
    the environment of its clients."""
    with tempfile.TemporaryDirectory() as workspace, tempfile.TemporaryDirectory() as state:
        known = {name: os.environ[name] for name in PASSED if name in os.environ}
        env = {**known, "XDG_STATE_HOME": state, "PYTHONPATH": str(CHECKOUT)}
        server = subprocess.Popen(
            [*PROGRAM, "--adapter", "replay", "--port", "0", "--root", workspace],
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        killer = threading.Timer(LIMIT, server.kill)
        killer.start()
        try:
            assert server.stderr
            banner: list[str] = []
            for line in server.stderr:
                banner.append(line)
                if "endpoint " in line:
                    break
            else:
                sys.exit("the server did not start:\n" + "".join(banner))
            threading.Thread(target=server.stderr.read, daemon=True).start()
            yield workspace, env
        finally:
            server.terminate()
            server.wait(timeout=20)
            killer.cancel()


if __name__ == "__main__":
    sys.exit(main())
