"""The pipes to the parent process, which has started this program as its only client."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping

from bridge.a2a import VERSIONS
from bridge.errors import ConfigurationError, RequestError
from bridge.sandbox.kernel import LIBC
from bridge.server.operate.signals import on_signal
from bridge.transports.envelope.connection import Answers, EnvelopeConnection
from bridge.transports.envelope.forwarding import ForwardedAnswers, Post
from bridge.transports.envelope.stdio import Frame, Framing, PipeReader, PipeWriter

_PR_SET_PDEATHSIG = 1


class ParentPipes:
    """`pipes`: the descriptors of the requests and of the answers. `version`: of requests that name
    none. `longest`: bytes of a request; `stall`: see PipeWriter; `wait`: seconds for answers after
    the end of the requests. Raises ConfigurationError."""

    def __init__(
        self,
        pipes: tuple[int, int],
        version: str | None,
        *,
        longest: int,
        stall: float,
        wait: float,
    ) -> None:
        self._received, self._sent = pipes
        self._defaults = _defaults(version)
        self._stall = stall
        self._wait = wait
        self._framing = Framing(longest)
        self._killed = asyncio.Event()

    def serve(self, answers: Answers) -> None:
        """Serve the parent from now on."""
        self._writer = PipeWriter(self._sent, self._framing, self._stall)
        self._requests = EnvelopeConnection(answers, self._writer, defaults=self._defaults)
        self._end_with_parent()
        self._reader = PipeReader(self._received, self._framing, self._receive)

    def forward(self, post: Post) -> None:
        """Forward its requests to another server from now on."""
        self.serve(ForwardedAnswers(post))

    async def left(self) -> None:
        """Return after the end of the requests, the answers that come within `wait` included; after
        the loss of the reader of the answers; or when the parent was killed."""
        events = (self._reader.ended, self._writer.lost, self._killed)
        await _first(*(asyncio.create_task(one.wait()) for one in events))
        if self._reader.ended.is_set() and not self._killed.is_set():
            finished = asyncio.create_task(self._requests.finished())
            lost = asyncio.create_task(self._writer.lost.wait())
            await _first(finished, lost, within=self._wait)

    async def end(self, within: float) -> int:
        """Write the last answers. Returns the exit status."""
        if not self._writer.lost.is_set():
            await _first(asyncio.create_task(self._requests.finished()), within=within)
        await self._requests.close(left=False)
        await self._writer.close(within)
        return 1 if self._writer.lost.is_set() else 0

    async def _receive(self, frame: Frame) -> None:
        if isinstance(frame, RequestError):
            await self._requests.refuse(frame)
        else:
            await self._requests.receive(frame)

    def _end_with_parent(self) -> None:
        """Note the end of a parent whose end of the pipe another process keeps open. The kernel
        also sends the signal when only the thread ends that started this process."""
        if sys.platform != "linux":
            return
        parent = os.getppid()

        def check() -> None:
            if os.getppid() != parent:
                self._killed.set()

        on_signal(signal.SIGUSR1, check)
        LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGUSR1), 0, 0, 0)
        check()


async def _first(*tasks: asyncio.Task[object], within: float | None = None) -> None:
    """Wait for the first of them, at most this time in seconds, and cancel the others."""
    await asyncio.wait(tasks, timeout=within, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


def _defaults(version: str | None) -> Mapping[str, str]:
    if version is None:
        return {}
    if version not in VERSIONS:
        raise ConfigurationError(f"--a2a-version {version}: the versions are 0.3 and 1.0.")
    return {"A2A-Version": version}
