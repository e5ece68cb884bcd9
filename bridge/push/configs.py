"""The queue of push notifications on disk, which survives a crash of the machine.

`PushQueue` is its interface, so that several servers can share another implementation.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import orjson

from bridge.errors import BridgeError, ConfigurationError, InvalidParams
from bridge.store.database import open_database, sync_directory, transaction

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

T = TypeVar("T")
CONFIGS_PER_TASK = 10
MAX_BACKLOG = 64 * 1024 * 1024  # bytes per receiver, including dead letters
BACKLOG_FULL = "backlog full"
DATABASE, KEY = "push.db", "push.key"

# Migration number N converts a database of version N to version N + 1. Only append.
MIGRATIONS = (
    """
    CREATE TABLE seal (proof BLOB NOT NULL);
    CREATE TABLE config (
        task TEXT NOT NULL,
        id TEXT NOT NULL,
        version TEXT NOT NULL,
        sealed BLOB NOT NULL,      -- url, token, scheme and credentials
        cursor INTEGER NOT NULL,   -- number of the newest update that was queued or skipped
        held INTEGER NOT NULL,     -- bytes of the queued payloads
        position INTEGER NOT NULL, -- order of creation within the task
        PRIMARY KEY (task, id)
    );
    CREATE TABLE delivery (
        task TEXT NOT NULL,
        config TEXT NOT NULL,
        number INTEGER NOT NULL,
        version TEXT NOT NULL,     -- protocol version of the payload
        payload BLOB NOT NULL,
        attempts INTEGER NOT NULL,
        due REAL NOT NULL,
        state TEXT NOT NULL,       -- pending or dead; delivered ones are deleted
        error TEXT NOT NULL,
        time REAL NOT NULL,        -- of the last change
        PRIMARY KEY (task, config, number),
        FOREIGN KEY (task, config) REFERENCES config (task, id) ON DELETE CASCADE
    );
    CREATE INDEX pending ON delivery (task, config, number) WHERE state = 'pending';
    """,
)


def check_room(count: int) -> None:
    """Raise InvalidParams if a task with `count` configs has reached the limit."""
    if count >= CONFIGS_PER_TASK:
        raise InvalidParams(f"A task has at most {CONFIGS_PER_TASK} push notification configs.")


class QueueUnavailable(BridgeError):
    """The queue is not available now, for example because the disk is full. Retry later."""


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a config. Clients choose its id, which is unique only within its task."""

    task_id: str
    config_id: str


@dataclass(frozen=True, slots=True)
class PushConfig:
    """The receiver of the updates of a task. `version`: of the protocol at its creation.
    `extended`: its creator activated EXTENSION."""

    id: str
    task_id: str
    url: str = field(repr=False)  # many receivers use the URL as a secret
    token: str | None = field(default=None, repr=False)
    scheme: str | None = None
    credentials: str | None = field(default=None, repr=False)
    version: str = "1.0"
    extended: bool = False

    @property
    def key(self) -> Key:
        return Key(self.task_id, self.id)

    def shown(self) -> PushConfig:
        """The config without its secrets, which are write-only."""
        return replace(self, token=None, credentials=None)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A new notification. With an `error`, it is a dead letter at once."""

    number: int
    payload: bytes = field(repr=False)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A pending notification. `due`: seconds since 1970, the time of its next attempt."""

    key: Key
    number: int
    version: str
    payload: bytes = field(repr=False)
    attempts: int
    due: float


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A notification without further attempts. `error`: the class of the last failure."""

    config_id: str
    number: int
    attempts: int
    error: str
    time: float


class PushQueue(Protocol):
    """Configs and their pending deliveries. Changes are durable when a method returns. All methods
    raise QueueUnavailable, and then have changed nothing."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def put(self, config: PushConfig, cursor: int) -> None:
        """Store `config` for updates after number `cursor`. It replaces a config with the same id,
        keeps its cursor, and makes its pending deliveries due at the new URL. Raises InvalidParams
        if the task has too many configs."""
        ...

    async def get(self, key: Key) -> tuple[PushConfig, int] | None:
        """The config with its secrets, and its cursor."""
        ...

    async def configs(self, task_id: str) -> list[PushConfig]:
        """The configs with their secrets, in the order of their creation."""
        ...

    async def tasks(self) -> set[str]:
        """Ids of all tasks that have configs."""
        ...

    async def remove(self, key: Key) -> None:
        """Delete the config and its deliveries, if it exists."""
        ...

    async def forget(self, task_id: str) -> None:
        """Delete all configs and deliveries of the task."""
        ...

    async def add(self, key: Key, outgoing: Sequence[Outgoing], cursor: int) -> None:
        """Store all of `outgoing` or nothing, and advance the cursor. Ignores notifications up to
        the cursor, and all notifications of a deleted config."""
        ...

    async def pending(self) -> set[Key]:
        """The configs with pending deliveries."""
        ...

    async def first(self, key: Key) -> tuple[PushConfig, Delivery] | None:
        """The next delivery of a config."""
        ...

    async def delivered(self, delivery: Delivery) -> None: ...

    async def postpone(self, delivery: Delivery, due: float, error: str) -> None:
        """Record a failed attempt; the next one is at `due`."""
        ...

    async def bury(self, delivery: Delivery, error: str) -> None:
        """Record the failure of the last attempt."""
        ...

    async def dead(self, task_id: str) -> list[DeadLetter]: ...


class SqliteQueue:
    """The queue in a directory of its own, or in memory without one (for tests).

    One thread uses the database. Each write is one transaction, which is on the disk when the
    method returns (synchronous=FULL, against power loss). The database is locked while it is open,
    since two servers would deliver everything twice.
    """

    def __init__(
        self, directory: Path | None, *, backlog: int = MAX_BACKLOG, lock_wait: float = 5.0
    ) -> None:
        self._directory = directory
        self._backlog = backlog
        self._lock_wait = lock_wait
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="push-queue")
        self._database: sqlite3.Connection
        self._key = b""
        self._fernet: Fernet | None = None

    async def open(self) -> None:
        """Raises ConfigurationError if the directory is not usable."""
        await self._run(self._open)

    async def close(self) -> None:
        await self._run(self._close)
        self._thread.shutdown()

    async def put(self, config: PushConfig, cursor: int) -> None:
        await self._run(lambda: self._put(config, cursor))

    async def get(self, key: Key) -> tuple[PushConfig, int] | None:
        query = "SELECT task, id, version, sealed, cursor FROM config WHERE task = ? AND id = ?"
        rows = await self._run(lambda: self._rows(query, key.task_id, key.config_id))
        return (self._config(rows[0][:4]), rows[0][4]) if rows else None

    async def configs(self, task_id: str) -> list[PushConfig]:
        query = "SELECT task, id, version, sealed FROM config WHERE task = ? ORDER BY position"
        return [self._config(row) for row in await self._run(lambda: self._rows(query, task_id))]

    async def tasks(self) -> set[str]:
        rows = await self._run(lambda: self._rows("SELECT DISTINCT task FROM config"))
        return {task for (task,) in rows}

    async def remove(self, key: Key) -> None:
        statement = "DELETE FROM config WHERE task = ? AND id = ?"
        await self._run(lambda: self._write(statement, key.task_id, key.config_id))

    async def forget(self, task_id: str) -> None:
        await self._run(lambda: self._write("DELETE FROM config WHERE task = ?", task_id))

    async def add(self, key: Key, outgoing: Sequence[Outgoing], cursor: int) -> None:
        await self._run(lambda: self._add(key, outgoing, cursor))

    async def pending(self) -> set[Key]:
        query = "SELECT DISTINCT task, config FROM delivery WHERE state = 'pending'"
        return {Key(*row) for row in await self._run(lambda: self._rows(query))}

    async def first(self, key: Key) -> tuple[PushConfig, Delivery] | None:
        query = """
            SELECT config.task, id, config.version, sealed,
                   number, delivery.version, payload, attempts, due
            FROM delivery JOIN config ON config.task = delivery.task AND id = config
            WHERE delivery.task = ? AND config = ? AND state = 'pending'
            ORDER BY number LIMIT 1"""
        rows = await self._run(lambda: self._rows(query, key.task_id, key.config_id))
        return (self._config(rows[0][:4]), Delivery(key, *rows[0][4:])) if rows else None

    async def delivered(self, delivery: Delivery) -> None:
        await self._run(lambda: self._delivered(delivery))

    async def postpone(self, delivery: Delivery, due: float, error: str) -> None:
        await self._run(lambda: self._failed(delivery, "pending", due, error))

    async def bury(self, delivery: Delivery, error: str) -> None:
        await self._run(lambda: self._failed(delivery, "dead", delivery.due, error))

    async def dead(self, task_id: str) -> list[DeadLetter]:
        query = """
            SELECT config, number, attempts, error, time FROM delivery
            WHERE task = ? AND state = 'dead' ORDER BY config, number"""
        rows = await self._run(lambda: self._rows(query, task_id))
        return [DeadLetter(*row) for row in rows]

    async def _run(self, work: Callable[[], T]) -> T:
        """Run `work` in the database thread. A cancelled caller does not wait for its end."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as error:
            raise QueueUnavailable(f"the push queue is not available: {error}") from error

    # --- in the database's thread: opening -----------------------------------------------------

    def _open(self) -> None:
        path = self._directory / DATABASE if self._directory else None
        self._database = open_database(path, MIGRATIONS, self._lock_wait)
        try:
            self._key = _key(self._directory / KEY) if self._directory else _new_key()
            if self._rows("SELECT 1 FROM config LIMIT 1"):
                self._cipher()  # detect a wrong key at the start
        except sqlite3.Error as error:
            self._database.close()
            raise ConfigurationError(f"cannot use {path}: {error}") from error
        except OSError as error:
            self._database.close()
            raise ConfigurationError(f"cannot use {error.filename}: {error.strerror}") from error
        except BaseException:
            self._database.close()
            raise

    def _cipher(self) -> Fernet:
        if self._fernet is None:
            # Imported at its first use: it takes 7 MiB, and few servers have receivers.
            library = importlib.import_module("cryptography.fernet")
            fernet: Fernet = library.Fernet(self._key)
            self._prove_key(fernet, library.InvalidToken)
            self._fernet = fernet
        return self._fernet

    def _prove_key(self, fernet: Fernet, wrong: type[Exception]) -> None:
        if not self._rows("SELECT 1 FROM config LIMIT 1"):
            self._write("DELETE FROM seal")  # the database accepts any key
        proofs = self._rows("SELECT proof FROM seal")
        if not proofs:
            self._write("INSERT INTO seal VALUES (?)", fernet.encrypt(b"bridge"))
            return
        try:
            fernet.decrypt(proofs[0][0])
        except wrong:
            raise ConfigurationError(
                f"{KEY} is not the key of {DATABASE}. Remove both to start with an empty queue."
            ) from None

    def _close(self) -> None:
        self._database.close()

    # --- in the database's thread: queries -----------------------------------------------------

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        return self._database.execute(query, values).fetchall()

    def _write(self, statement: str, *values: object) -> int:
        """Returns the number of changed rows."""
        return self._database.execute(statement, values).rowcount

    def _put(self, config: PushConfig, cursor: int) -> None:
        names = (config.task_id, config.id)
        with transaction(self._database):
            replaced = self._write(
                "UPDATE config SET version = ?, sealed = ? WHERE task = ? AND id = ?",
                config.version,
                self._seal(config),
                *names,
            )
            if replaced:
                again = "UPDATE delivery SET due = 0 WHERE task = ? AND config = ?"
                self._write(again, *names)
                return
            ((count, position),) = self._rows(
                "SELECT count(*), coalesce(max(position), 0) FROM config WHERE task = ?", names[0]
            )
            check_room(count)
            self._write(
                "INSERT INTO config VALUES (?, ?, ?, ?, ?, 0, ?)",
                *names,
                config.version,
                self._seal(config),
                cursor,
                position + 1,
            )

    def _add(self, key: Key, outgoing: Sequence[Outgoing], cursor: int) -> None:
        names = (key.task_id, key.config_id)
        with transaction(self._database):
            query = "SELECT version, cursor, held FROM config WHERE task = ? AND id = ?"
            rows = self._rows(query, *names)
            if not rows:
                return
            version, known, held = rows[0]
            for one in outgoing:
                if one.number > known:
                    held += self._insert(names, version, one, room=self._backlog - held)
            statement = "UPDATE config SET cursor = ?, held = ? WHERE task = ? AND id = ?"
            self._write(statement, max(cursor, known), held, *names)

    def _insert(self, names: tuple[str, str], version: str, one: Outgoing, room: int) -> int:
        """Returns the stored bytes. Above the backlog limit, the notification becomes a dead letter
        without a payload: an absent receiver must not fill the disk."""
        if len(one.payload) > room:
            one = Outgoing(one.number, b"", BACKLOG_FULL)
        state = "dead" if one.error else "pending"
        row = (*names, one.number, version, one.payload, state, one.error, time.time())
        self._write("INSERT INTO delivery VALUES (?, ?, ?, ?, ?, 0, 0, ?, ?, ?)", *row)
        return len(one.payload)

    def _delivered(self, delivery: Delivery) -> None:
        names = (delivery.key.task_id, delivery.key.config_id)
        with transaction(self._database):
            statement = "DELETE FROM delivery WHERE task = ? AND config = ? AND number = ?"
            if self._write(statement, *names, delivery.number):
                statement = "UPDATE config SET held = held - ? WHERE task = ? AND id = ?"
                self._write(statement, len(delivery.payload), *names)

    def _failed(self, delivery: Delivery, state: str, due: float, error: str) -> None:
        statement = """UPDATE delivery SET attempts = ?, state = ?, due = ?, error = ?, time = ?
                       WHERE task = ? AND config = ? AND number = ?"""
        changed = (delivery.attempts + 1, state, due, error, time.time())
        names = (delivery.key.task_id, delivery.key.config_id, delivery.number)
        self._write(statement, *changed, *names)

    # --- encryption ----------------------------------------------------------------------------

    def _seal(self, config: PushConfig) -> bytes:
        """The encrypted values of the client. URLs may be secrets, too."""
        secrets = (config.url, config.token, config.scheme, config.credentials)
        words = (*secrets, config.extended)
        return self._cipher().encrypt(orjson.dumps(words))

    def _config(self, row: tuple[Any, ...]) -> PushConfig:
        task, identity, version, sealed = row
        words = orjson.loads(self._cipher().decrypt(sealed))
        url, token, scheme, credentials, extended = (*words, False)[:5]  # older servers wrote four
        return PushConfig(
            identity,
            task,
            url,
            token=token,
            scheme=scheme,
            credentials=credentials,
            version=version,
            extended=extended,
        )


# --- private files -----------------------------------------------------------------------------


def _key(path: Path) -> bytes:
    """The key in `path`, which the first call creates atomically."""
    if not path.exists():
        draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, _new_key())
            os.fsync(fd)
            os.link(draft, path)
        except FileExistsError:  # another server was faster
            pass
        finally:
            os.close(fd)
            draft.unlink()
        sync_directory(path.parent)
    return path.read_bytes()


def _new_key() -> bytes:
    """A key in the format of Fernet.generate_key()."""
    return base64.urlsafe_b64encode(os.urandom(32))
