"""The run of `coding-agent-bridge stdio`: a server whose only client is the parent process."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import stat
import sys
from collections.abc import Sequence
from dataclasses import replace

from bridge.auth.principal import OPERATOR, Principal
from bridge.errors import ConfigurationError, RequestError
from bridge.sandbox.kernel import LIBC
from bridge.server.app import ServedAgent
from bridge.server.lifecycle import serve
from bridge.server.settings.load import Loaded, load
from bridge.transports.envelope.connection import EnvelopeAgent, EnvelopeConnection
from bridge.transports.envelope.stdio import Frame, Framing, PipeReader, PipeWriter

log = logging.getLogger(__name__)

ADDRESS = "http://localhost"
VERSIONS = ("0.3", "1.0")
_PR_SET_PDEATHSIG = 1


def run(options: argparse.Namespace) -> int:
    """Serve the parent process until it closes stdin. Returns the exit status."""
    received, sent = _take_descriptors()
    loaded = _loaded(options)
    client = ParentProcess(options, loaded, received, sent)
    log_pipe = _silence(sent)
    try:
        return asyncio.run(serve(loaded, client))
    except ConfigurationError:  # main() prints it; there was no frame
        os.dup2(log_pipe, 2)
        raise


def _take_descriptors() -> tuple[int, int]:
    """Copies of stdin and stdout. In their places are null and stderr, so that no other code reads
    requests or writes between answers."""
    received, sent = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return received, sent


def _loaded(options: argparse.Namespace) -> Loaded:
    """The settings, without those of listeners. Tasks are in memory, unless there is a folder."""
    flags = {
        "host": "127.0.0.1",
        "port": "0",
        "bridge_auth": "none",
        "agent_adapter": options.adapter,
        "agent_repo_path": options.root,
        "config_file": options.config,
    }
    loaded = load(flags, options.env_file)
    changes: dict[str, object] = {"bridge_unix_socket": None, "bridge_grpc_port": None}
    store = loaded.settings.store
    if store.state_dir is None and store.mode == "durable":
        changes["bridge_store"] = "memory"
    return replace(loaded, settings=loaded.settings.updated(changes))


class ParentProcess:
    """The parent process as the client. `received` and `sent`: its descriptors."""

    def __init__(
        self, options: argparse.Namespace, loaded: Loaded, received: int, sent: int
    ) -> None:
        server = loaded.settings.server
        self._agent: str | None = options.agent
        self._principal = _principal(loaded, options.principal)
        self._defaults = _defaults(options.a2a_version)
        self._received = received
        self._sent = sent
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


def _principal(loaded: Loaded, name: str | None) -> Principal:
    """The operator, or the principal of [tokens.NAME]. Raises ConfigurationError."""
    if name is None:
        return OPERATOR
    token = loaded.settings.auth.tokens.get(name)
    if token is None:
        raise ConfigurationError(f"--as {name}: there is no [tokens.{name}] in CONFIG_FILE.")
    return token.principal(name)


def _defaults(version: str | None) -> dict[str, str]:
    if version is None:
        return {}
    if version not in VERSIONS:
        raise ConfigurationError(f"--a2a-version {version}: the versions are 0.3 and 1.0.")
    return {"A2A-Version": version}


def _silence(sent: int) -> int:
    """Drop the log if stderr is the pipe of stdout: the lines of a log would lie between frames, or
    in a long one. Returns a copy of stderr as it was."""
    before = os.dup(2)
    one, other = os.fstat(sent), os.fstat(2)
    same = (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
    if same and not stat.S_ISCHR(one.st_mode):
        null = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (1, 2):
            os.dup2(null, descriptor)
        os.close(null)
    return before
