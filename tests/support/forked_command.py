"""`python -m bridge COMMAND` without the start of an interpreter, which takes most of the time of a
short command: a process that has imported the commands forks for each one."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import CHECKOUT

WITHIN = 60.0  # seconds for a command
PROGRAM = """
import asyncio, json, os, sys
from bridge.cli.doctor.command import doctor
from bridge.cli.doctor.talk import Within
from bridge.cli.main import main
from bridge.server.settings.load import load

def hurried(agent, live, within):
    work = doctor(load({}), agent, live=live, for_programs=True, within=Within(**within))
    return asyncio.run(work)

def run(order):
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    for number, path in enumerate((os.devnull, order["out"], order["err"])):
        os.dup2(os.open(path, os.O_RDWR), number)
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


class ForkedCommands:
    """Commands that run one after the other, each in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process = process
        self._out, self._err = folder / "stdout", folder / "stderr"

    def run(
        self,
        *arguments: str,
        cwd: Path,
        env: Mapping[str, str],
        hurried: Mapping[str, Any] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. `hurried`: call `doctor` with these arguments instead."""
        self._out.write_text("")
        self._err.write_text("")
        order = {"arguments": arguments, "cwd": str(cwd), "env": dict(env), "hurried": hurried}
        line = json.dumps({**order, "out": str(self._out), "err": str(self._err)})
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], WITHIN)
        assert ready, f"{arguments} did not end: {self._out.read_text()}{self._err.read_text()}"
        code = int(self._process.stdout.readline())
        return subprocess.CompletedProcess(
            arguments, code, self._out.read_text(), self._err.read_text()
        )


@contextmanager
def forked_commands(folder: Path) -> Iterator[ForkedCommands]:
    """`folder`: for the output of the commands."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT)}
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield ForkedCommands(process, folder)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
