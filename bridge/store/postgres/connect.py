"""The address of a PostgreSQL database, its connections, and the errors of connections."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

from bridge.errors import ConfigurationError
from bridge.store.postgres.liveness import INTERVAL
from bridge.store.postgres.schema import LOCK_CLASS

Connection = AsyncConnection[TupleRow]

# A server that is gone must show within seconds, also if it sends no FIN.
DEFAULTS: dict[str, str | int | None] = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 15000,
    "target_session_attrs": "read-write",  # with several hosts: the primary
    "application_name": "coding-agent-bridge",
    "client_encoding": "utf8",
}
# A stopped server must not hold its locks for ever; an acknowledged commit must be on the disk.
PREPARE = (
    "SET idle_in_transaction_session_timeout = '60s'",
    "SELECT set_config('synchronous_commit', 'on', false) "
    "WHERE current_setting('synchronous_commit') = 'off'",
)
ANSWER_WITHIN = 10.0  # seconds for a statement that does little
_PROBE = b"""SELECT current_setting('server_version'), current_setting('fsync'),
    current_setting('full_page_writes')"""
_BROKEN = ("08", "57", "58", "53")  # classes of SQLSTATE: the connection, or the server itself


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """`conninfo` has the password, if there is one; `shown` does not."""

    conninfo: str
    shown: str
    exposed: bool

    async def connect(self) -> Connection:
        """A connection in autocommit mode. Raises psycopg.Error."""
        connection = await AsyncConnection.connect(self.conninfo, autocommit=True)
        try:
            with limited(connection):
                await prepare(connection)
        except BaseException:
            await connection.close()
            raise
        return connection


@dataclass(frozen=True, slots=True)
class Probe:
    """A database that was reached. `version`: of the server; `milliseconds`: of the fastest of some
    round trips; `durable`: a commit is on the disk."""

    place: str
    version: str
    milliseconds: float
    durable: bool
    exposed: bool


async def probe(address: DatabaseAddress) -> Probe:
    """Connect to the database, and change nothing. Raises ConfigurationError."""
    try:
        connection = await address.connect()
        async with connection:
            times = []
            for _ in range(5):
                begun = time.perf_counter()
                found = await connection.execute(_PROBE)
                times.append(1000 * (time.perf_counter() - begun))
            ((version, fsync, pages),) = await found.fetchall()
    except (psycopg.Error, OSError) as error:
        raise explain(address, error) from error
    durable = fsync == pages == "on"
    return Probe(address.shown, version.split()[0], min(times), durable, address.exposed)


async def prepare(connection: Connection) -> None:
    """Set the session up, also behind a pooler that ignores such parameters at the start."""
    for statement in PREPARE:
        await connection.execute(statement.encode())


def parse(url: str) -> DatabaseAddress:
    """The address in a URL of libpq. Raises ConfigurationError, without the password."""
    try:
        given = conninfo_to_dict(url)
        conninfo = make_conninfo("", **{**DEFAULTS, **given})
    except psycopg.Error as error:
        cause = re.sub('".*"', "…", str(error).strip(), flags=re.DOTALL)  # a part of the URL
        raise ConfigurationError(
            f"BRIDGE_STORE: {cause}. A URL such as postgresql://user@host:5432/database is "
            "expected; write reserved characters of a password as %XX, or use PGPASSFILE."
        ) from None
    return DatabaseAddress(conninfo, _shown(given), _exposed(given))


def _shown(given: Mapping[str, Any]) -> str:
    hosts = str(given.get("host") or given.get("hostaddr") or "the local socket").split(",")
    ports = [port or "5432" for port in str(given.get("port") or "").split(",")]
    ports += ports[-1:] * (len(hosts) - len(ports))
    places = ", ".join(f"{host}:{port}" for host, port in zip(hosts, ports, strict=False))
    name = given.get("dbname") or given.get("user")
    return f"the database {name} at {places}" if name else f"the database at {places}"


def _exposed(given: Mapping[str, Any]) -> bool:
    """Whether the content crosses a network without a verified server."""
    if given.get("sslmode") == "verify-full":
        return False
    hosts = str(given.get("hostaddr") or given.get("host") or "").split(",")
    return not all(map(is_local, hosts))


def is_local(host: str) -> bool:
    if host in ("", "localhost") or host.startswith(("/", "@")):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@contextlib.contextmanager
def limited(connection: Connection, seconds: float = ANSWER_WITHIN) -> Iterator[None]:
    """Cut the connection if the answers to the statements in this context take longer."""
    limit = asyncio.get_running_loop().call_later(seconds, cut, connection)
    try:
        yield
    finally:
        limit.cancel()


def cut(connection: Connection) -> None:
    """End the wait for an answer: the driver reads the end of the connection. A canceled wait would
    ask the server again, and could wait for ever."""
    with contextlib.suppress(OSError, psycopg.Error):
        with socket.socket(fileno=os.dup(connection.fileno())) as one:
            one.shutdown(socket.SHUT_RDWR)


def explain(address: DatabaseAddress, error: Exception) -> ConfigurationError:
    """The error of a server that cannot open its store: what, where, and the next step."""
    state = getattr(error, "sqlstate", None) or ""
    cause = _cause(error)
    if state.startswith("28") or "authentication" in cause or "password" in cause:
        step = "Check the user and the password (BRIDGE_STORE, BRIDGE_STORE_FILE or PGPASSFILE)."
    elif state == "3D000" or 'database "' in cause:  # the driver has no code of a start that fails
        step = "Create it with createdb, or correct BRIDGE_STORE."
    elif state == "42501":
        step = "The role needs CREATE and USAGE on its schema (GRANT ALL ON SCHEMA …)."
    else:
        step = "Start PostgreSQL, or correct BRIDGE_STORE."
    return ConfigurationError(f"cannot use {address.shown}: {cause}. {step}")


def _cause(error: Exception) -> str:
    lines = [line.strip(" \t-") for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


def is_lost(error: Exception) -> bool:
    """Whether the connection or its server has failed, so that a new connection may work."""
    state = getattr(error, "sqlstate", None)
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | OSError)
    return str(state).startswith(_BROKEN)


def is_defect(error: Exception) -> bool:
    """Whether a statement or its values are wrong, so that a retry cannot succeed. It can
    after a missing table or right: the operator can restore it."""
    if not isinstance(error, psycopg.Error):
        return isinstance(error, TypeError | ValueError | LookupError | AttributeError)
    state = error.sqlstate
    if state is None:  # found by the driver
        return isinstance(error, psycopg.DataError | psycopg.ProgrammingError)
    return state[:2] in ("22", "23", "42") and state not in ("42P01", "42501")


async def show_presence(connection: Connection, node: str, lease: float) -> None:
    """Show other servers that this node runs, as long as the connection is open. A node that stops
    within a transaction must not delay its fence for long."""
    most = f"SET idle_in_transaction_session_timeout = {int(1000 * INTERVAL * lease)}"
    await connection.execute(most.encode())
    await connection.execute(
        "SELECT pg_try_advisory_lock_shared(%s, hashtext(current_schema() || %s))",
        (LOCK_CLASS + 1, node),
    )
