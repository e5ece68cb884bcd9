"""The parent process as the only client of a server, on stdin and stdout."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence

from bridge.auth.principal import OPERATOR, Principal
from bridge.errors import ConfigurationError, RequestError
from bridge.sandbox.kernel import LIBC
from bridge.server.app import ServedAgent
from bridge.server.settings.root import Settings
from bridge.transports.envelope.connection import EnvelopeAgent, EnvelopeConnection
from bridge.transports.envelope.stdio import Frame, Framing, PipeReader, PipeWriter

log = logging.getLogger(__name__)

ADDRESS = "http://localhost"
VERSIONS = ("0.3", "1.0")
_PR_SET_PDEATHSIG = 1


class ParentProcess:
    """The parent process as the client. `pipes`: the descriptors of its requests and its answers;
    `agent`: the id of its agent; `principal`: the name in [tokens.NAME] of its rights; `version`:
    of requests that name none."""

    def __init__(
        self,
        settings: Settings,
        pipes: tuple[int, int],
        *,
        agent: str | None,
        principal: str | None,
        version: str | None,
    ) -> None:
        server = settings.server
        self._agent = agent
        self._principal = _principal(settings, principal)
        self._defaults = _defaults(version)
        self._received, self._sent = pipes
        self._stall = server.stall_timeout_ms / 1000
        self._wait = 0.0 if server.on_stop == "keep" else server.drain_ms / 1000
        self._framing = Framing(server.max_body_bytes)
        self._killed = asyncio.Event()

    async def begin(self, root: ServedAgent, agents: Sequence[ServedAgent]) -> None:
        """Serve its requests from now on. Raises ConfigurationError."""
        served = root
        if self._agent is not None:
            found = {one.id: one for one in agents}
            if self._agent not in found:
                names = ", ".join(found)
                raise ConfigurationError(f"--agent {self._agent}: the agents are {names}.")
            served = found[self._agent]
        log.info("serving the parent process", extra={"agent": served.id})
        self._writer = PipeWriter(self._sent, self._framing, self._stall)
        agent = EnvelopeAgent(served.operations, ADDRESS, served.extension_required)
        self._requests = EnvelopeConnection(
            agent,
            self._writer,
            identify=self._identify,
            defaults=self._defaults,
            binding="stdio",
        )
        self._end_with_parent()
        self._reader = PipeReader(self._received, self._framing, self._receive)

    async def left(self) -> None:
        """Return after the end of stdin, the answers that come within BRIDGE_DRAIN_MS included;
        after the loss of stdout; or when the parent was killed."""
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

    async def _identify(self) -> Principal:
        return self._principal

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

        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, check)
        LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGUSR1), 0, 0, 0)
        check()


async def _first(*tasks: asyncio.Task[object], within: float | None = None) -> None:
    """Wait for the first of them, at most this time in seconds, and cancel the others."""
    await asyncio.wait(tasks, timeout=within, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


def _principal(settings: Settings, name: str | None) -> Principal:
    """The operator, or the principal of [tokens.NAME]. Raises ConfigurationError."""
    if name is None:
        return OPERATOR
    token = settings.auth.tokens.get(name)
    if token is None:
        raise ConfigurationError(f"--as {name}: there is no [tokens.{name}] in CONFIG_FILE.")
    return token.principal(name)


def _defaults(version: str | None) -> dict[str, str]:
    if version is None:
        return {}
    if version not in VERSIONS:
        raise ConfigurationError(f"--a2a-version {version}: the versions are 0.3 and 1.0.")
    return {"A2A-Version": version}
