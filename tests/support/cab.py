"""The command-line client as a process of its own, in an environment of its own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridge.errors.program import NAMES, command
from tests import CHECKOUT
from tests.support.forked_command import run_forked

WITHIN = 60.0  # seconds that a command may take
COMMAND = (sys.executable, "-P", "-m", "bridge")


def installed(folder: Path) -> Path:
    """A new folder for PATH with the program by its two names, as an installation has them. They
    need PYTHONPATH."""
    folder.mkdir(parents=True)
    for name in NAMES:
        text = "import sys\nfrom bridge.__main__ import main\nsys.exit(main())\n"
        (folder / name).write_text(f"#!{sys.executable} -P\n{text}")
        (folder / name).chmod(0o755)
    return folder


@dataclass(frozen=True, slots=True)
class Done:
    """An ended command. `status` is negative for a signal."""

    status: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """JSON Lines."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def ids(self) -> list[str]:
        """The short ids in the table of tasks."""
        return re.findall(r"(?m)^([0-9a-f]{8})  ", self.text)

    def fields(self, label: str) -> list[str]:
        """The values of all fields of the text output with this label."""
        lines = [line for line in self.text.splitlines() if line.startswith(f"{label}: ")]
        return [line.removeprefix(f"{label}: ") for line in lines]

    def field(self, label: str) -> str:
        """The value of the last field with this label."""
        found = self.fields(label)
        assert found, f"no {label} in:\n{self.text}\n{self.err}"
        return found[-1]

    @property
    def error(self) -> str:
        """The code of the error in the text for people."""
        found = re.findall(r"(?m)^coding-agent-bridge: (\w+_ERR_\w+|\w+Error): ", self.err)
        assert len(found) == 1, self.err
        return str(found[0])


class Cab:
    """Runs commands in `cwd`. Its environment is PATH, HOME, and `env`, nothing of ours."""

    def __init__(self, cwd: Path, home: Path, **env: str) -> None:
        self.cwd = cwd
        self.home = home
        self.env: dict[str, str] = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "PYTHONPATH": str(CHECKOUT),
            "PYTHONWARNINGS": "error",
            **env,
        }

    async def start(
        self, *words: str, env: Mapping[str, str] | None = None, stdin: int | None = None
    ) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *COMMAND,
            *words,
            cwd=self.cwd,
            env={**self.env, **(env or {})},
            stdin=asyncio.subprocess.DEVNULL if stdin is None else stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=2**25,
        )

    async def run(
        self, *words: str, env: Mapping[str, str] | None = None, stdin: bytes | None = None
    ) -> Done:
        """Run a command to its end, in a process that has its imports already."""
        environment = {**self.env, **(env or {})}
        done = await asyncio.to_thread(
            run_forked, words, cwd=self.cwd, env=environment, stdin=stdin
        )
        return Done(done.returncode, done.stdout.encode(), done.stderr)

    async def paste(self, line: str, **replaced: str) -> Done:
        """Run a command line that the client has printed, with its capital words replaced."""
        words = [replaced.get(word, word) for word in shlex.split(line)]
        called = shlex.split(command())
        assert words[: len(called)] == called
        return await self.run(*words[len(called) :])


async def ended(process: asyncio.subprocess.Process) -> Done:
    try:
        async with asyncio.timeout(WITHIN):
            out, err = await process.communicate()
    except TimeoutError:
        process.send_signal(signal.SIGKILL)
        out, err = await process.communicate()
        raise AssertionError(f"the client did not end:\n{out!r}\n{err.decode()}") from None
    assert process.returncode is not None
    return Done(process.returncode, out, err.decode())
