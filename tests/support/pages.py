"""The commands of a page, followed literally: a reader types them in order into one shell, with
default settings and a fresh home, and compares the output with the page.

Each block of a page is `sh` (a script, which must succeed) or `console` (commands after `$ `, each
with its output, where `…` stands for any text, and a line of its own for any lines). A command that
ends in `&` is ready when the output of the page has appeared. The blocks between the marks
`<!-- not run: REASON -->` and `<!-- run -->` are left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from bridge.process import replayer
from bridge.server.recording import EXAMPLE
from tests import CHECKOUT
from tests.support.cab import installed
from tests.support.debian import checkout
from tests.support.ordinary_user import command as as_ordinary_user
from tests.support.own_network import PROGRAM as OWN_NETWORK
from tests.support.terminal import Terminal

WITHIN = 60.0  # seconds for each command
_PART = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+) -->|(?P<run><!-- run -->)"
    r"|```(?P<kind>sh|console)\n(?P<text>.*?)^```)$",
    re.MULTILINE | re.DOTALL,
)
_COLUMNS = 250  # no path of a test is cut
_FIGURE = re.compile(r"(?<= )\d+(?:\\\.\d+)?(?!\w)")  # in an escaped text
_ANY_FIGURE = r"\\d+(?:\.\\d+)?"
_TYPED = re.compile(r"cab (run|chat) ")
_ENVIRONMENT = ("LANG", "LC_ALL")
_CLAUDE = """#!/bin/sh
case $1 in
--version) echo "2.1.330 (Claude Code)" ;;
auth | mcp) ;;
*) exec {python} -IS {player} {recording} 0 ;;
esac
"""
_UV = """#!/bin/sh
[ "$*" = "tool install ." ] && [ -f pyproject.toml ] || exit 1
mkdir -p ~/.local/bin && ln -s {program}/* ~/.local/bin/
echo "Resolved 1 package"
echo "Installed 2 executables: cab, coding-agent-bridge"
"""

INSTALLED = """```console
$ uv tool install .
$ cd ~/my/project
```
"""
SERVING = """```console
$ touch ~/bridge.toml
$ CONFIG_FILE=~/bridge.toml cab serve &
…
  try it     …
$ cab send "Add a --shout flag to greet.py"
$ cd
```
"""
"""What a reader of a page has done before: a server with a task, and nothing in the home."""


@dataclass(frozen=True, slots=True)
class Block:
    """`reason`: why it is not run, or an empty text."""

    kind: str
    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Command:
    """`output` is that of the page."""

    text: str
    output: str


def blocks(page: str) -> list[Block]:
    found: list[Block] = []
    reason = ""
    for part in _PART.finditer(page):
        if part["kind"]:
            found.append(Block(part["kind"], part["text"], reason))
        else:
            reason = part["reason"] or ""
    return found


def commands(block: Block) -> list[Command]:
    """Those of a console with their outputs; a script is one command."""
    if block.kind == "sh":
        return [Command(f"trap 'return 1' ERR\n{block.text}trap - ERR", "")]
    found = []
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        length = next(number for number in range(1, len(lines) + 1) if _whole(lines[:number]))
        found.append(Command("\n".join(lines[:length]), "\n".join(lines[length:])))
    return found


def _whole(lines: Sequence[str]) -> bool:
    """Whether the shell would wait for no other line."""
    try:
        shlex.split("\n".join(lines), comments=True)
    except ValueError:
        return False
    return not lines[-1].endswith("\\")


def pattern(output: str) -> re.Pattern[str]:
    """What the output of a page stands for: a figure is an example."""
    lines = []
    for line in output.splitlines():
        text = ".*".join(map(re.escape, line.split("…")))
        lines.append(r"(?:.*\n)*?" if line == "…" else rf"{_FIGURE.sub(_ANY_FIGURE, text)} *\n")
    return re.compile("".join(lines))


class Reader:
    """A shell. `transcript` is all its output."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self._process = process
        self._folder = folder
        self._number = 0
        self.transcript = ""

    async def follow(self, page: str) -> list[str]:
        """Type the commands of a page. Returns the output of each block that was run."""
        return [
            "".join([await self.type(command) for command in commands(block)])
            for block in blocks(page)
            if not block.reason
        ]

    async def type(self, command: Command) -> str:
        """Run a command that must succeed with the output of the page. Returns its output."""
        if command.text.endswith("&"):
            return await self._begin(command)
        if _TYPED.match(command.text):
            shown = await self._press(command.text)
        else:
            shown = await self._run(command.text)
        self.transcript += f"$ {command.text}\n{shown}"
        if command.output:
            assert pattern(command.output).fullmatch(shown), (
                f"the page shows of `{command.text}`:\n{command.output}\n\nit is:\n{shown}"
            )
        return shown

    async def leave(self) -> None:
        """End the shell, all servers and all programs in its background."""
        try:
            await self._run('trap - ERR; [ -z "$(command -v cab)" ] || cab stop --all')
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()

    async def _run(self, line: str, *, log: Path | None = None) -> str:
        self._number += 1
        file = self._folder / f"{self._number}.sh"
        file.write_text(line + "\n")
        end = f"end of command {self._number}: "
        where = f" > {log} 2>&1" if log else ""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f'. {file} < /dev/null{where}\necho "\n{end}$?"\n'.encode())
        shown = ""
        async with asyncio.timeout(WITHIN):
            while not (found := re.search(rf"\n{end}(\d+)\n", shown)):
                data = await self._process.stdout.read(65536)
                assert data, f"`{line}` failed, and ended the shell:\n{self.transcript}{shown}"
                shown += data.decode(errors="replace")
        shown = shown[: found.start()]
        assert found[1] == "0", f"`{line}` ended with {found[1]}:\n{self.transcript}{shown}"
        return shown if not shown or shown.endswith("\n") else f"{shown}\n"

    async def _begin(self, command: Command) -> str:
        log = self._folder / f"log-{self._number}"
        await self._run(command.text, log=log)
        async with asyncio.timeout(WITHIN):
            while not pattern(command.output).match(log.read_text("utf-8")):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        self.transcript += f"$ {command.text}\n{log.read_text('utf-8')}"
        return log.read_text("utf-8")

    async def _press(self, line: str) -> str:
        """Run a command at a terminal, and allow what it asks for. Another process holds the
        terminal, because the shell has none."""
        holder = ("sh", "-c", "tty; exec sleep 300")
        terminal = Terminal(holder, self._folder, {"PATH": os.environ["PATH"]}, _COLUMNS, 100)
        try:
            await terminal.shows("/dev/")
            place = terminal.text.strip()
            os.chmod(place, 0o666)  # the shell may be that of another user
            typed = f"TERM=xterm-256color {line} < {place} > {place} 2>&1"
            async with asyncio.TaskGroup() as both:
                both.create_task(self._run(typed))
                for tool in ("Edit", "Bash"):
                    await terminal.allows(f"Claude Code asks to use {tool}")
            await terminal.shows("Resume: ")
        finally:
            terminal.close()
        return terminal.text.replace(place, "").strip() + "\n"


@asynccontextmanager
async def reading(folder: Path, *, ordinary: bool = False) -> AsyncIterator[Reader]:
    """A reader with files in `folder`: a checkout, which is the current directory, a CLI (a
    recording of Claude Code), and a project, ~/my/project. The home has nothing else. `ordinary`:
    an ordinary user without control groups."""
    own_network = (sys.executable, "-IS", OWN_NETWORK)
    probe = await asyncio.create_subprocess_exec(
        *own_network, "true", stderr=asyncio.subprocess.PIPE
    )
    if refusal := (await probe.communicate())[1]:
        pytest.skip(f"this machine gives a program no network of its own: {refusal.decode()}")
    home, programs = folder / "home", folder / "bin"
    checkout(folder / "checkout")
    (home / "my/project").mkdir(parents=True)
    (home / "my/project/greet.py").write_text("print('Hello')\n")
    own = installed(programs / "own")
    _program(programs / "uv", _UV.format(program=own))
    played = {"python": sys.executable, "player": replayer.__file__, "recording": EXAMPLE}
    _program(programs / "parrot", '#!/bin/sh\necho \'{"kind": "over"}\'\n')  # of docs/adapters.md
    _program(programs / "claude", _CLAUDE.format(**played))
    env = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    env |= {"HOME": str(home), "PYTHONPATH": str(CHECKOUT)}
    env["PATH"] = f"{programs}:{home}/.local/bin:/usr/local/bin:/usr/bin:/bin"
    shell = (*own_network, "bash", "--noprofile", "--norc")
    process = await asyncio.create_subprocess_exec(
        *(as_ordinary_user(folder, *shell) if ordinary else shell),
        cwd=folder / "checkout",
        env=env,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    reader = Reader(process, folder)
    try:
        yield reader
    except BaseException:
        with contextlib.suppress(AssertionError, TimeoutError):  # its last command may still run
            await reader.leave()
        raise
    else:
        await reader.leave()
    finally:
        _end_all(folder)


def _end_all(folder: Path) -> None:
    """Servers that a failed test has left. They end their agents."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(str(folder) in word for word in process.cmdline()):
                process.terminate()


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
