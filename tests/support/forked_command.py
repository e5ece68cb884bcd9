"""`python -m bridge COMMAND` without the start of an interpreter, which takes most of the time of a
short command: a process that has imported the commands forks for each one. Each worker of the
tests has one such process, from the first command until the worker ends. A test that kills all
processes below its own ends it, and the next command starts another one."""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from tests import CHECKOUT

WITHIN = 60  # seconds until a command that does not end is killed
PROGRAM = """
import asyncio, json, os, signal, sys
from bridge.cli.doctor.command import doctor
from bridge.cli.doctor.talk import Within
import bridge.cli.client.command
from bridge.cli.main import main
from bridge.server.settings.load import load

def hurried(agent, live, within):
    work = doctor(load({}), agent, live=live, for_programs=True, within=Within(**within))
    return asyncio.run(work)

def run(order):
    signal.alarm(order["within"])
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    for number, path in enumerate((order["in"], order["out"], order["err"])):
        os.dup2(os.open(path, os.O_RDWR), number)
    sys.stdin = open(0)
    try:
        return hurried(**order["hurried"]) if order["hurried"] else main(order["arguments"])
    except SystemExit as end:
        return end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        sys.stdout.flush()

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os._exit(run(json.loads(line)) or 0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@cache
def _started(number: int) -> subprocess.Popen[str]:
    """The process with this number; the earlier ones have ended."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT)}
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    atexit.register(process.communicate)  # which ends its input
    return process


def _process() -> subprocess.Popen[str]:
    return next(one for one in map(_started, count()) if one.poll() is None)


def run_forked(
    arguments: Sequence[str] = (),
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdin: bytes | None = None,
    hurried: Mapping[str, Any] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. `hurried`: call `doctor` with these arguments instead."""
    process = _process()
    assert process.stdin and process.stdout
    with tempfile.TemporaryDirectory() as folder:
        given, out, err = (Path(folder, name) for name in ("stdin", "stdout", "stderr"))
        given.write_bytes(stdin or b"")
        out.touch()
        err.touch()
        order = {"arguments": arguments, "cwd": str(cwd), "env": dict(env), "hurried": hurried}
        files = {"in": str(given), "out": str(out), "err": str(err)}
        line = json.dumps({**order, **files, "within": WITHIN})
        process.stdin.write(line + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], WITHIN + 10)
        assert ready, f"{arguments} did not end: {out.read_text()}{err.read_text()}"
        code = int(process.stdout.readline())
        said = (path.read_bytes().decode() for path in (out, err))
        return subprocess.CompletedProcess(arguments, code, *said)
