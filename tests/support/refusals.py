"""Servers that refuse to start. A process that has imported the bridge forks for each of them:
the start of an interpreter costs 0.7 s of a processor, and there are a hundred of them."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from tests import CHECKOUT
from tests.support.bridge_process import environment

WITHIN = 60  # seconds until a server that starts after all is ended
_PROGRAM = """
import json, os, signal, sys
from bridge.cli.main import main

for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if not child:
        signal.alarm(order["within"])
        os.environ.clear()
        os.environ.update(order["env"])
        os.chdir(order["cwd"])
        os.dup2(os.open(order["log"], os.O_WRONLY | os.O_CREAT, 0o600), 2)
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(0, 1)
        sys.exit(main(order["argv"]))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@cache
def _forker() -> subprocess.Popen[str]:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT), "PYTHONWARNINGS": "error"}
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(process.communicate)  # which ends its input
    return process


def refused(workspace: Path, *arguments: str, **env: Any) -> str:
    """The log of a server with the same arguments as those of `bridge`, which refuses to start.
    Its status is that of wrong settings, and the log has no traceback."""
    log = workspace.parent / "refusal"
    log.unlink(missing_ok=True)
    home, variables = environment(workspace, env)
    order = {"argv": arguments, "env": variables, "cwd": str(home), "log": str(log)}
    forker = _forker()
    assert forker.stdin and forker.stdout
    forker.stdin.write(json.dumps({**order, "within": WITHIN}) + "\n")
    forker.stdin.flush()
    status = int(forker.stdout.readline())
    text = log.read_text()
    assert status == 2, f"exit status {status}:\n{text}"
    assert "Traceback" not in text, text
    return text
