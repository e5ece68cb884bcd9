"""`coding-agent-bridge backup DIR`: the state of a server, while it runs or while it is stopped."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bridge.cli.operate.running import ServerPlace, find_server, post, refusal
from bridge.client.local_server import LocalServer
from bridge.errors import ConfigurationError
from bridge.server.operate.backup import back_up_stopped
from bridge.server.settings.load import Loaded
from bridge.task.text import exact

NO_ROUTE = (404, 405)  # of a version without backups


def backup(folder: str, state: str | None, load: Callable[[], Loaded]) -> int:
    """Write a backup into the new folder `folder`, and print a summary. `state`: the state folder
    of the server. Returns the exit status. Raises ConfigurationError and ClientError."""
    done = back_up(os.path.abspath(folder), find_server(state, load))
    schema = "" if done["schema"] is None else f", schema {done['schema']}"
    size = f"{done['bytes'] / 1e6:.1f} MB in {done['files']} files{schema}"
    print(f"backup in {exact(done['folder'])}: {size}, {done['seconds']:.1f} s")
    print("not in it:")
    for name, reason in done["leftOut"].items():
        print(f"  {exact(name)}: {exact(reason)}")
    print("keep it where no agent works: it has all prompts and outputs")
    if done["note"]:
        print(f"note: {exact(done['note'])}")
    return 0


def back_up(target: str, place: ServerPlace) -> dict[str, Any]:
    """The members of a BackupDone. Raises ConfigurationError."""
    if place.server:
        return asyncio.run(_of_running(place.server, target))
    if place.folder is None:
        raise ConfigurationError("no server runs, and the settings have no state folder: --state")
    settings = place.settings
    done = back_up_stopped(
        place.folder,
        Path(target),
        settings.audit_file if settings else None,
        database=settings is None or settings.store.database is None,
    )
    return done.as_json()


async def _of_running(server: LocalServer, target: str) -> dict[str, Any]:
    status, answer = await post(server, "/admin/backup", {"folder": target})
    if status == 200 and isinstance(answer, dict):
        return answer
    if status in NO_ROUTE:
        text = "it is of a version without backups: stop it first"
        raise ConfigurationError(f"the server at {server.url} cannot make a backup: {text}")
    raise ConfigurationError(f"the server at {server.url}: {refusal(answer, status)}")
