"""A PostgreSQL server for the tests: the one of BRIDGE_TEST_POSTGRES (a URL whose role may create
schemas), or one that the first test of a process starts, with a folder and a port of its own. Root
starts it as another user, because PostgreSQL refuses to run as root."""

from __future__ import annotations

import base64
import ctypes
import os
import pwd
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from tests.support import programs
from tests.support.free_port import free_port
from tests.support.unprivileged import NOBODY

WITHIN = 60.0  # seconds for each command
# fsync stays on, so that a crash of the server is a fair test.
OPTIONS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_permissions": "0777",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "autovacuum": "off",
}


class Postgres:
    """`url`: of its database. `folder` is None for a server that was not started here."""

    def __init__(self, url: str, folder: Path | None = None, tools: Path = Path()) -> None:
        self.url = url
        self._folder = folder
        self._tools = tools

    @property
    def port(self) -> int:
        return int(psycopg.conninfo.conninfo_to_dict(self.url).get("port") or 5432)

    @property
    def restarts(self) -> bool:
        """Whether a test may restart it."""
        return self._folder is not None

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        assert self._folder
        options = {**OPTIONS, "port": self.port, "unix_socket_directories": self._folder}
        given = " ".join(f"-c {name}={value}" for name, value in options.items())
        with _without_orphans():
            self._control("start", "-w", "-l", str(self._folder / "log"), "-o", given)

    def checkpoint(self) -> None:
        """Make the next recovery short: earlier tests have written much."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("CHECKPOINT")

    def crash(self) -> None:
        """Stop it without a checkpoint, as a crash would."""
        self._control("stop", "-m", "immediate")

    def _control(self, *arguments: str) -> None:
        assert self._folder
        command = [str(self._tools / "pg_ctl"), "-D", str(self._folder / "data"), "-s", *arguments]
        _run(command)

    @contextmanager
    def schema(self) -> Iterator[str]:
        """The URL of a new schema, which is removed at the end."""
        name = f"test_{secrets.token_hex(8)}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}".encode())
        try:
            mark = "&" if "?" in self.url else "?"
            yield f"{self.url}{mark}options={quote(f'-csearch_path={name}')}"
        finally:
            with psycopg.connect(self.url, autocommit=True) as connection:
                connection.execute(b"SET lock_timeout = '5s'; SET client_min_messages = warning")
                connection.execute(f"DROP SCHEMA {name} CASCADE".encode())


@contextmanager
def _without_orphans() -> Iterator[None]:
    """Orphans go to init, and not to this process, which a test may have made their reaper: a
    server in this process would kill PostgreSQL with its own descendants."""
    if sys.platform != "linux":
        yield
        return
    libc, before = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(_GET_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(_SET_SUBREAPER, 0, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_SET_SUBREAPER, before.value, 0, 0, 0)


_SET_SUBREAPER, _GET_SUBREAPER = 36, 37  # of prctl(2)


def _run(command: list[str]) -> None:
    if os.geteuid() == 0:
        uid, gid = _user()
        user = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups"]
        command = [*user, *command]
    with tempfile.TemporaryFile() as output:  # a pipe would stay open in the server
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=False,
            cwd="/",
            timeout=WITHIN,
        )
        output.seek(0)
        assert done.returncode == 0, output.read().decode()


def _user() -> tuple[int, int]:
    """The user and group for a server that root starts. Other tests count the processes of
    the user nobody."""
    try:
        found = pwd.getpwnam("postgres")  # the package of Debian creates it
    except KeyError:
        return NOBODY, NOBODY
    return found.pw_uid, found.pw_gid


def _tools() -> Path:
    """The folder of the programs of PostgreSQL; Debian does not put it into PATH. Skips the test
    where they are missing."""
    found = shutil.which("pg_ctl")
    if found:
        return Path(found).resolve().parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: path.parts[-2])
    if not folders:
        pytest.skip(programs.missing("postgresql"))
    return folders[-1]


@contextmanager
def started() -> Iterator[Postgres]:
    """A server of its own, until the end."""
    tools = _tools()
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as name:  # a short path of a socket
        if os.geteuid() == 0:
            os.chown(name, *_user())
        command = [str(tools / "initdb"), "-D", f"{name}/data", "-U", "postgres", "-A", "trust"]
        _run([*command, "-E", "UTF8", "--no-locale", "--no-sync"])
        url = f"postgresql://postgres@/postgres?host={quote(name)}&port={free_port()}"
        server = Postgres(url, Path(name), tools)
        server.start()
        try:
            yield server
        finally:
            server.crash()


# No text of a test begins as this key: text that may be the beginning of a secret waits.
PUSH_KEY = base64.urlsafe_b64encode(b"\xff" * 32).decode()


def on_postgres(url: str) -> dict[str, str]:
    """The settings of a server that stores its tasks there."""
    return {"BRIDGE_STORE": url, "BRIDGE_PUSH_KEY": PUSH_KEY}


@pytest.fixture(scope="session")
def database() -> Iterator[Postgres]:
    """The PostgreSQL server of this process."""
    given = os.environ.get("BRIDGE_TEST_POSTGRES")
    if given:
        yield Postgres(given)
        return
    with started() as server:
        yield server


@pytest.fixture
def postgres_url(database: Postgres) -> Iterator[str]:
    """The URL of a new schema."""
    with database.schema() as url:
        yield url
