"""The store of the servers that tests start. BRIDGE_TEST_STORE, the URL of a PostgreSQL database
whose role may create schemas, makes them store all tasks there instead: each folder of a state has
a schema of its own.

    BRIDGE_TEST_STORE=postgresql://… python -m pytest tests/server tests/real
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote

import psycopg

from bridge.server.state_dir import State
from bridge.store.postgres.connect import parse
from bridge.store.postgres.sealing import Seal
from bridge.store.postgres.store import PostgresStore
from tests.support.servers import PUSH_KEY, on_postgres

CHOSEN = "BRIDGE_TEST_STORE"


def _execute(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(b"SET client_min_messages = warning")
        connection.execute(statement.encode())


def _schema(url: str, name: str) -> str:
    """The URL of this schema, which is created if it does not exist."""
    _execute(url, f"CREATE SCHEMA IF NOT EXISTS {name}")
    return f"{url}{'&' if '?' in url else '?'}options={quote(f'-csearch_path={name}')}"


async def new_state() -> tuple[State, Callable[[], None]]:
    """The state of a server in this process, and a function that removes it after its end."""
    url = os.environ.get(CHOSEN)
    if not url:
        return State(), lambda: None
    name = f"test_{secrets.token_hex(8)}"
    address = parse(_schema(url, name))
    store = PostgresStore(address, secrets.token_hex(8), seal=Seal(PUSH_KEY))
    await store.open()
    state = State(store, markers=f"{secrets.token_hex(8)}.", shared=store)
    return state, lambda: _execute(url, f"DROP SCHEMA {name} CASCADE")


def settings_of(workspace: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Settings that put the tasks of a server process there, unless `env` names a store."""
    url = os.environ.get(CHOSEN)
    if not url or "BRIDGE_STORE" in env:
        return {}
    folder = env.get("BRIDGE_STATE_DIR") or str(workspace.parent / "state-of-test")
    name = f"test_{hashlib.sha256(folder.encode()).hexdigest()[:16]}"
    return {**on_postgres(_schema(url, name)), "BRIDGE_STATE_DIR": folder}
