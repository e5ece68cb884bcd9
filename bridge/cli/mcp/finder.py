"""The bridge for a directory: found by its description, or started."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from bridge.client import config
from bridge.client.credentials import (
    Credentials,
    CredentialStore,
    is_loopback,
    origin_of,
    socket_of,
)
from bridge.client.failure import NO_SERVER, ClientError
from bridge.client.local_server import LocalServer, running
from bridge.errors.program import command
from bridge.process import procfs
from bridge.sandbox import mark

READY_WITHIN = 10.0  # seconds that a start may take
RETURNS_WITHIN = 60.0  # seconds that a bridge of its operator may be away; its tasks are there
FAILED_FOR = 5.0  # seconds in which a failed start is not repeated
_LOOK_EVERY = 0.05  # seconds; a started bridge announces itself by a file
_MOST_REASON = 500  # characters


@dataclass(frozen=True, slots=True)
class Address:
    """A bridge, and the token for it. `local`: it runs on this machine. `socket`: the path of its
    Unix socket, if it is reached through that."""

    url: str
    token: str | None
    local: bool
    socket: str | None = None

    @classmethod
    def of(cls, reference: str, token: str | None) -> Address:
        """`reference`: a URL, or unix:PATH."""
        if socket := socket_of(reference):
            return cls("http://localhost", token, True, socket)
        return cls(reference, token, is_loopback(reference))


class Connections:
    """Connections over TCP, and through each Unix socket: a bridge that starts again may have
    another one. They close together."""

    def __init__(self) -> None:
        self._open: dict[str | None, aiohttp.ClientSession] = {}

    async def __aenter__(self) -> Connections:
        return self

    async def __aexit__(self, *error: object) -> None:
        for session in self._open.values():
            await session.close()

    def through(self, socket: str | None) -> aiohttp.ClientSession:
        """`socket`: the path of a Unix socket; None for TCP."""
        if socket not in self._open:
            connector = (
                aiohttp.UnixConnector(socket, limit=0) if socket else aiohttp.TCPConnector(limit=0)
            )
            self._open[socket] = aiohttp.ClientSession(
                connector=connector, read_bufsize=2**18, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._open[socket]


class BridgeFinder:
    """`url`: the address of the bridge; None: the bridge of this user whose agents may work in
    `cwd`. `starts`: start one if there is none."""

    def __init__(self, cwd: str, *, url: str | None, starts: bool) -> None:
        self._cwd = os.path.realpath(cwd)
        self._url = url.rstrip("/") if url else None
        self._starts = starts
        self._starting: asyncio.Task[LocalServer] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._failure: tuple[float, ClientError] | None = None
        self._folder = config.chosen_state_folder() or config.state_home() / _name(self._cwd)
        self._expected_until = 0.0

    async def find(self) -> Address:
        """Raises ClientError if none is found and none can be started."""
        if self._url:
            return self._given(self._url)
        server, now = self._present(), asyncio.get_running_loop().time()
        if server and server not in running([self._folder / "server.json"]):
            self._expected_until = now + RETURNS_WITHIN  # its operator starts it
        if server is None:
            if not self._starts or now < self._expected_until:
                text = f"no bridge serves {self._cwd}; start one: {command('--root', self._cwd)}"
                raise ClientError(NO_SERVER, text)
            server = await self._started()
        return Address.of(server.url, server.token)

    def _given(self, url: str) -> Address:
        origin = origin_of(url)
        servers = running(config.description_files())
        token = next((one.token for one in servers if origin_of(one.url) == origin), None)
        if token is None:
            token = CredentialStore(config.credentials_file()).tokens().get(origin)
        address = Address.of(url, token)
        if token:
            Credentials(origin, "auth login", bearer=token).check(address.url)
        return address

    def _present(self) -> LocalServer | None:
        """The running bridge with the most specific root that contains the directory."""
        found = [one for one in running(config.description_files()) if one.depth(self._cwd)]
        return max(found, key=lambda one: one.depth(self._cwd), default=None)

    # --- the start of a bridge -------------------------------------------------------------------

    async def _started(self) -> LocalServer:
        """One start for all requests that wait for it."""
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
        folder = self._folder
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = folder.with_name(f"{folder.name}.log")
        try:
            async with asyncio.timeout(READY_WITHIN):
                with _locked(folder.with_name(f"{folder.name}.lock")) as lock:
                    while not lock():  # another process starts one
                        if server := self._present():
                            return server
                        await asyncio.sleep(_LOOK_EVERY)
                    return self._present() or await self._run(folder, log)
        except TimeoutError:
            text = f"the bridge was not ready within {READY_WITHIN:g} s; see {log}"
            raise ClientError(NO_SERVER, text) from None

    async def _run(self, folder: Path, log: Path) -> LocalServer:
        """Start a bridge, and wait until it announces itself."""
        process = self._process = _spawn(self._cwd, folder, log)
        while not (found := running([folder / "server.json"])):
            if process.poll() is not None:
                raise ClientError(NO_SERVER, f"the bridge did not start: {_reason(log)}")
            await asyncio.sleep(_LOOK_EVERY)
        return found[0]


def _spawn(cwd: str, folder: Path, log: Path) -> subprocess.Popen[bytes]:
    """A bridge for `cwd` in a session of its own, so that it outlives the client. Without -P, it
    would import modules of the repository."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "bridge", "--root", cwd, "--port", "0"],
            cwd=cwd,
            env=config.environment(BRIDGE_STATE_DIR=str(folder)),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    finally:
        os.close(output)


def _is_below_a_bridge() -> bool:
    """Whether this process descends from a bridge, which would serve itself without end."""
    above = map(procfs.environment, procfs.lineage(os.getpid()))
    return mark.read("self") is not None or any(map(procfs.markers, above))


def _name(cwd: str) -> str:
    """The name of the state folder of a bridge for this directory."""
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
