"""The servers of this user on this machine. Each server describes itself in a file."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bridge.client.failure import CREDENTIALS_MISSING, NO_SERVER, SEVERAL_SERVERS, ClientError
from bridge.errors.program import command

_LARGEST = 256 * 1024  # bytes of a file that is read
_LISTENS = b"0A"
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class LocalServer:
    """`url`: its address, or unix:PATH if it has only a Unix socket. `roots`: the directories that
    its agents may work in. `token_file`: None if it requires no token. `socket`: the path of its
    Unix socket. `inodes`: of its sockets that listen on TCP. `until_idle`: a command started it,
    and it ends by itself. `started`: seconds since 1970. `folder`: of its state, or a temporary
    one."""

    url: str
    pid: int
    agents: tuple[str, ...]
    roots: tuple[str, ...]
    token_file: Path | None
    socket: str | None = None
    inodes: frozenset[int] = frozenset()
    until_idle: bool = False
    started: float = 0.0
    folder: Path | None = None

    @property
    def token(self) -> str | None:
        """The operator's token. None if the server needs none, or if others can read the file.
        Raises ClientError if another program listens at the address of the server."""
        if self.token_file is None:
            return None
        if not self.inodes.issuperset(_listeners_at(self.url)):
            text = f"another program than the local server listens at {self.url}: no token is sent"
            raise ClientError(CREDENTIALS_MISSING, text, hint="restart the server")
        with contextlib.suppress(OSError, ValueError):
            fd = _open(self.token_file)
            try:
                return os.read(fd, _LARGEST).decode("ascii").strip()
            finally:
                os.close(fd)
        return None

    def depth(self, path: str) -> int:
        """The length of the deepest root that contains `path`; 0 if none does."""
        return max((len(root) for root in self.roots if is_below(path, root)), default=0)


def is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def running(files: Iterable[Path]) -> list[LocalServer]:
    """The servers that run. A file of another user, a file that others can read, and a file
    whose lock is free are ignored."""
    found: dict[str, LocalServer] = {}
    for file in files:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            path, described = _find(file)
            if described is not None:
                found.setdefault(os.path.realpath(path), _server(path, described))
    return [*found.values()]


def choose(servers: Sequence[LocalServer], cwd: str) -> LocalServer:
    """The server for a command in the directory `cwd`: the one with the deepest root above it; else
    the only one that a person started; else the only one. Raises ClientError."""
    if not servers:
        text = "no local server runs; start one, or name a server with --agent-card"
        raise ClientError(NO_SERVER, text, hint=command("serve"))
    of_people = [one for one in servers if not one.until_idle]
    best = covering(servers, cwd) or of_people or servers
    if len(best) == 1:
        return best[0]
    lines = "\n".join(f"--agent-card {one.url}  ({', '.join(one.roots)})" for one in servers)
    text = f"several local servers run; choose one:\n{lines}"
    hint = f"--agent-card {servers[0].url}"
    raise ClientError(SEVERAL_SERVERS, text, hint=hint)


def covering(servers: Sequence[LocalServer], cwd: str) -> list[LocalServer]:
    """The servers with the deepest root that contains the directory."""
    here = os.path.realpath(cwd)
    deepest = max((one.depth(here) for one in servers), default=0)
    return [one for one in servers if deepest and one.depth(here) == deepest]


def _read(path: Path) -> Any:
    """The content of a description; None for an ended server."""
    fd = _open(path)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return json.loads(os.read(fd, _LARGEST))
        return None
    finally:
        os.close(fd)


def _find(file: Path) -> tuple[Path, Any]:
    """A description with its path: that of the file, or the one to which the file leads. Only the
    process that holds the lock of a pointer may have written that one. Raises ValueError."""
    found = _read(file)
    if not found or "folder" not in found:
        return file, found
    path = Path("/", found["folder"], file.name)
    described = _read(path)
    if described and described["pid"] != found["pid"]:
        raise ValueError(f"{file} leads to the description of another server")
    return path, described


def _open(path: Path) -> int:
    """Raises OSError, or ValueError for a file that other users could have read or written."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(fd)
    ours = found.st_uid == os.geteuid() and not found.st_mode & 0o077
    if not (stat.S_ISREG(found.st_mode) and ours):
        os.close(fd)
        raise ValueError(f"{path} is not a private file of this user")
    return fd


def _server(path: Path, described: Any) -> LocalServer:
    if described["version"] != 1:
        raise ValueError(f"{path} has another format")
    name = described["token"]
    if name is not None and name != os.path.basename(name):
        raise ValueError(f"{path} names a token in another folder")
    return LocalServer(
        str(described["url"]),
        int(described["pid"]),
        tuple(map(str, described["agents"])),
        tuple(map(str, described["roots"])),
        token_file=path.parent / name if name else None,
        socket=str(described["socket"]) if described.get("socket") else None,
        inodes=frozenset(map(int, described.get("inodes", ()))),
        until_idle=described.get("untilIdle") is True,
        started=float(described.get("started", 0)),
        folder=path.parent,
    )


# --- the kernel's list of sockets (Linux) ---------------------------------------------------------


def _listeners_at(url: str) -> set[int]:
    """The inodes of the sockets that take connections to the host and port of `url`. Empty if this
    system does not list them, and for a host name.

    The kernel gives the number of an open socket to no other one. So it tells the server from
    another program, also where the descriptors of the server's process cannot be read."""
    parts = urlsplit(url)
    try:
        host, port = ipaddress.ip_address(parts.hostname or ""), parts.port
    except ValueError:
        return set()
    found = [(address, inode) for address, number, inode in _listening() if number == port]
    exact = {inode for address, inode in found if address == host}
    return exact or {inode for address, inode in found if address.is_unspecified}


def _listening() -> Iterator[tuple[_Address, int, int]]:
    """Address, port and inode. The kernel lists these sockets first."""
    for table in ("tcp", "tcp6"):
        with (
            contextlib.suppress(OSError, ValueError, IndexError),
            open(f"/proc/self/net/{table}", "rb") as file,
        ):
            rows = (line.split() for line in islice(file, 1, None))
            for row in takewhile(lambda row: row[3] == _LISTENS, rows):
                address, _, port = row[1].partition(b":")
                yield _address(address.decode()), int(port, 16), int(row[9])


def _address(text: str) -> _Address:
    """`text`: words of 32 bits in the order of this machine. Mapped IPv4 addresses become IPv4."""
    words = (int(text[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(text), 8))
    found = ipaddress.ip_address(b"".join(words))
    return getattr(found, "ipv4_mapped", None) or found
