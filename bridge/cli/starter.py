"""Starts a server for a directory that has none. It ends when nothing has used it for a while."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bridge.client import config
from bridge.client.failure import NO_SERVER, ClientError
from bridge.client.local_server import LocalServer, running
from bridge.process import procfs
from bridge.sandbox import mark

READY_WITHIN = 20.0  # seconds that a start may take; clients of MCP wait as long
FAILED_FOR = 5.0  # seconds in which a failed start is not repeated
_LOOK_EVERY = 0.05  # seconds; a started server announces itself by a file
_MOST_REASON = 500  # characters
# The server is a child of a shell that has ended: some MCP clients end all processes below theirs.
_DETACHED = '"$@" >&2 & echo $!'


class Starter:
    """The server of this user for a directory."""

    def __init__(self, cwd: str) -> None:
        self._cwd = os.path.realpath(cwd)
        self._is_home = self._cwd == os.path.realpath(os.path.expanduser("~"))
        self._starting: asyncio.Task[LocalServer] | None = None
        self._failure: tuple[float, ClientError] | None = None
        self._folder = config.chosen_state_folder() or config.state_home() / _name(self._cwd)

    def present(self) -> LocalServer | None:
        """The running server with the most specific root that contains the directory."""
        found = [one for one in running(config.description_files()) if one.depth(self._cwd)]
        return max(found, key=lambda one: one.depth(self._cwd), default=None)

    async def start(self) -> LocalServer:
        """One start for all callers that wait for it. Raises ClientError."""
        loop = asyncio.get_running_loop()
        if self._failure and loop.time() - self._failure[0] < FAILED_FOR:
            raise self._failure[1]
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._start())
        try:
            return await asyncio.shield(self._starting)
        except ClientError as error:
            self._failure = loop.time(), error
            raise
        except OSError as error:
            text = f"cannot start a bridge: {error.filename}: {error.strerror}"
            raise ClientError(NO_SERVER, text) from None

    async def _start(self) -> LocalServer:
        if _is_below_a_bridge():
            text = "no bridge is started by an agent of a bridge; set BRIDGE_URL, and a token of it"
            raise ClientError(NO_SERVER, text)
        if self._is_home:
            text = f"{self._cwd} is your home directory, and agents do not work in all of it"
            raise ClientError(NO_SERVER, text, hint="cd to a project")
        folder = self._folder
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = folder.with_name(f"{folder.name}.log")
        try:
            async with asyncio.timeout(READY_WITHIN):
                with _locked(folder.with_name(f"{folder.name}.lock")) as lock:
                    while not lock():  # another process starts one
                        if server := self.present():
                            return server
                        await asyncio.sleep(_LOOK_EVERY)
                    return self.present() or await self._run(folder, log)
        except TimeoutError:
            text = f"the bridge was not ready within {READY_WITHIN:g} s; see {log}"
            raise ClientError(NO_SERVER, text) from None

    async def _run(self, folder: Path, log: Path) -> LocalServer:
        """Start a server, and wait until it announces itself."""
        pid = _spawn(self._cwd, folder, log)
        while not (found := running([folder / "server.json"])):
            if _has_ended(pid):
                raise ClientError(NO_SERVER, f"the bridge did not start: {_reason(log)}")
            await asyncio.sleep(_LOOK_EVERY)
        return found[0]


def _spawn(cwd: str, folder: Path, log: Path) -> int:
    """Start a server for `cwd`. Returns its pid. Without -P, it would import modules of the
    repository."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        line = [sys.executable, "-P", "-m", "bridge", "--root", cwd, "--port", "0", "--until-idle"]
        done = subprocess.run(
            ["/bin/sh", "-c", _DETACHED, "sh", *line],
            cwd=cwd,
            env=config.environment(BRIDGE_STATE_DIR=str(folder)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,
            check=True,
        )
        return int(done.stdout)
    finally:
        os.close(output)


def _has_ended(pid: int) -> bool:
    """Whether the process is gone, or a zombie as far as this system tells."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return sys.platform == "linux" and not procfs.start_time(pid)


def _is_below_a_bridge() -> bool:
    """Whether this process descends from a bridge, which would serve itself without end."""
    above = map(procfs.environment, procfs.lineage(os.getpid()))
    return mark.read("self") is not None or any(map(procfs.markers, above))


def _name(cwd: str) -> str:
    """The name of the state folder of a server for this directory."""
    return f"ws-{hashlib.sha256(os.fsencode(cwd)).hexdigest()[:16]}"


@contextmanager
def _locked(path: Path) -> Iterator[Callable[[], bool]]:
    """A function that tries to take the lock of a file, which is released at the end."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def take() -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    try:
        yield take
    finally:
        os.close(fd)


def _reason(log: Path) -> str:
    """The last line of the log."""
    lines = log.read_text("utf-8", "replace").split("\n")
    found = [line.strip() for line in lines if line.strip()]
    return found[-1][:_MOST_REASON] if found else f"see {log}"
