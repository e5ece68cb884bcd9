"""Find a pooler in transaction mode, which would drop LISTEN, locks and settings of sessions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from bridge.errors import ConfigurationError
from bridge.store.postgres.connect import Connection

_BACKEND = "SELECT pg_backend_pid()"
ROUNDS = 3
Rows = Callable[[str], Awaitable[Sequence[tuple[Any, ...]]]]
"""Runs a query in another session."""


async def refuse_pooler(connection: Connection, rows: Rows) -> None:
    """Raises ConfigurationError if two sessions that are open at the same time have the same
    backend."""
    for _ in range(ROUNDS):
        ((own,),) = await (await connection.execute(_BACKEND)).fetchall()
        ((other,),) = await rows(_BACKEND)
        if own == other:
            raise ConfigurationError(
                "a pooler in transaction mode is before it, and the server needs sessions. Use "
                "the address of the database itself, or a pool in session mode."
            )
