"""Children whose output is spooled."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bridge.process import process_tree
from bridge.process.agent_process import AgentProcess, Hooks, ProcessLimits
from bridge.process.line_splitter import LongLine
from bridge.process.spawn import Start, start_child
from bridge.process.spool import Spool, prepare

WITHIN = 60.0


LIMIT = 2**20  # bytes of a line
LIMITS = ProcessLimits(LIMIT)


class Reader:
    """The reader of a child, with all received lines."""

    def __init__(self) -> None:
        self.lines: list[bytes | LongLine] = []
        self.batches = 0
        self.exits: list[int] = []
        self.ends = 0
        self._told = asyncio.Event()

    @property
    def hooks(self) -> Hooks:
        return Hooks(self._on_lines, self._on_exit, self._on_end)

    def _on_lines(self, lines: list[bytes | LongLine]) -> None:
        self.lines += lines
        self.batches += 1
        self._told.set()

    def _on_exit(self, code: int) -> None:
        self.exits.append(code)
        self._told.set()

    def _on_end(self) -> None:
        self.ends += 1
        self._told.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(WITHIN):
            while not condition():
                self._told.clear()
                await self._told.wait()


class Children:
    """Starts children in folders of their own, and attaches to them. `inputs`: the files of their
    input, as a launcher has them."""

    def __init__(self, folder: Path) -> None:
        self.inputs: dict[Path, int] = {}
        self._folder = folder
        self._last: dict[Path, AgentProcess] = {}  # that is attached; the others have detached
        self._markers: dict[Path, str] = {}

    async def start(self, *argv: str) -> tuple[Path, AgentProcess, Reader]:
        folder, reader = self._folder / uuid.uuid4().hex, Reader()
        start = Start(argv, {"PATH": os.environ["PATH"]}, "/")
        self._markers[folder] = start.marker
        work = partial(process_tree.register, partial(start_child, start, folder))
        child = await asyncio.to_thread(work)
        assert child.stdin is not None
        self.inputs[folder] = os.dup(child.stdin)
        process = self._last[folder] = AgentProcess(
            child,
            start.marker,
            Spool(folder, stdin=child.stdin),
            hooks=reader.hooks,
            limits=LIMITS,
            reap=process_tree.reaper(child.pid, folder),
        )
        return folder, process, reader

    async def shell(self, script: str) -> tuple[Path, AgentProcess, Reader]:
        return await self.start("/bin/sh", "-c", script)

    def left(self, out: bytes = b"", status: str | None = None) -> Path:
        """The folder of a child that has ended."""
        folder = self._folder / uuid.uuid4().hex
        with prepare(folder) as fds:
            self.inputs[folder] = os.dup(fds[-1])
        (folder / "out").write_bytes(out)
        if status is not None:
            (folder / "exit").write_text(status)
        self._markers[folder] = uuid.uuid4().hex
        return folder

    def attach(
        self, folder: Path, position: int = 0, **options: Any
    ) -> tuple[AgentProcess, Reader]:
        """`options`: those of Spool."""
        reader, channel = Reader(), self.spool(folder, position, **options)
        marker = self._markers[folder]
        process = AgentProcess.attach(
            channel, marker, reader.hooks, limits=LIMITS, position=position
        )
        self._last[folder] = process
        return process, reader

    def spool(self, folder: Path, position: int = 0, **options: Any) -> Spool:
        """The streams, as the next server has them."""
        return Spool(folder, position, os.dup(self.inputs[folder]), **options)

    def forget(self, folder: Path) -> None:
        """The child has ended, and its state does not matter."""
        del self._last[folder]

    async def stop(self) -> None:
        for process in self._last.values():
            async with asyncio.timeout(WITHIN):
                await process.stop(grace=0.5)
        for file in self.inputs.values():
            os.close(file)


async def ended(process: AgentProcess) -> int:
    async with asyncio.timeout(WITHIN):
        return await process.wait()
