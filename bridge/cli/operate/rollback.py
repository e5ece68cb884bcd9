"""`coding-agent-bridge rollback`: the tasks of before the last upgrade."""

from __future__ import annotations

from collections.abc import Callable

from bridge.cli.operate.running import find_server
from bridge.errors import ConfigurationError
from bridge.server.operate.upgrade import return_to_kept
from bridge.server.settings.load import Loaded


def rollback(state: str | None, load: Callable[[], Loaded]) -> int:
    """Put `tasks.db.schema-N` back, and print the loss. Returns the exit status. Raises
    ConfigurationError and ClientError."""
    place = find_server(state, load)
    if place.server:
        raise ConfigurationError(
            f"the server at {place.server.url} (pid {place.server.pid}) runs: stop it first"
        )
    if place.settings and place.settings.store.database:
        raise ConfigurationError("the tasks are in PostgreSQL: restore its own backup")
    if place.folder is None:
        raise ConfigurationError("the settings have no state folder: --state")
    done = return_to_kept(place.folder)
    print(f"{place.folder} has the tasks of schema {done.schema} again")
    if done.lost is None:
        print("  later tasks are lost; their number is unknown to this version")
    else:
        print(f"  {done.lost} later tasks are lost, and later events of {done.changed} tasks")
    print("  open tasks end as failed (reason restart) at the next start")
    print(f"  the other tasks are in {done.aside}, which you can remove")
    return 0
