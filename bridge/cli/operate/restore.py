"""`coding-agent-bridge restore DIR --state NEW`: a state folder from a backup."""

from __future__ import annotations

import os
from pathlib import Path

from bridge.client import config
from bridge.client.local_server import running
from bridge.errors import ConfigurationError
from bridge.server.operate.backup_folder import read_manifest
from bridge.server.operate.restore import restore


def restore_command(backup: str, state: str, *, same_id: bool) -> int:
    """Make the state folder `state` from the backup, and print a summary. Returns the exit status.
    Raises ConfigurationError."""
    source, target = Path(os.path.abspath(backup)), Path(os.path.abspath(state))
    if same_id:
        _refuse_twins(read_manifest(source).id)
    done = restore(source, target, same_id=same_id)
    print(f"restored {done.tasks} tasks in {done.folder}, schema {done.schema}")
    if done.schema < done.newest:
        print(f"  the first start migrates them to schema {done.newest}")
    print("  open tasks end as failed (reason restart) at the first start")
    if same_id:
        print("  the id of the server is the same: never run both servers")
    elif done.push:
        print(f"  {done.push} push configs were removed: the first server has them still")
    print(f"start: BRIDGE_STATE_DIR={done.folder} coding-agent-bridge")
    return 0


def _refuse_twins(identity: str) -> None:
    """Raise ConfigurationError if a server of this user with this id runs."""
    for server in running(config.description_files()):
        try:
            same = server.folder and (server.folder / "id").read_text().strip() == identity
        except OSError:
            continue
        if same:
            raise ConfigurationError(
                f"the server at {server.url} has the id of this backup, and two servers with one "
                "id end each other's processes: stop it, or leave out --same-id"
            )
