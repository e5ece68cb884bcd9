"""`coding-agent-bridge doctor --migrate`: the next start of this version, tried on a copy of the
tasks. The server of the earlier version may run meanwhile."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from bridge.cli.doctor.report import Check, as_json, failed, ok, section, status
from bridge.cli.operate.backup import back_up
from bridge.cli.operate.running import ServerPlace, find_server
from bridge.errors import ConfigurationError
from bridge.server.operate.upgrade import DryRun, try_migration
from bridge.server.settings.load import Loaded
from bridge.server.state_dir import DATABASE

NAME = "migration"
STEP = "keep the earlier version, and report this; docs/backup.md has the way back"


def migrate(load: Callable[[], Loaded], *, for_programs: bool) -> int:
    """Print the check, `for_programs` as JSON in the shape of the doctor. Returns the exit status:
    0 if the migration would succeed, otherwise 1. Raises ConfigurationError and ClientError."""
    checks = [_check(find_server(None, load))]
    code = status(checks, ())
    shown = json.dumps(as_json(code, checks, ()), indent=2) if for_programs else None
    print(shown or section("tasks", checks))
    return code


def _check(place: ServerPlace) -> Check:
    if place.settings and place.settings.store.database:
        return ok(NAME, "the tasks are in PostgreSQL: docs/nodes.md has its migrations")
    if not place.server and place.folder and not (place.folder / DATABASE).exists():
        return ok(NAME, f"not necessary: {place.folder} has no tasks")
    with tempfile.TemporaryDirectory(prefix="bridge-migrate-", dir=_beside(place.folder)) as folder:
        copy = Path(folder, "copy")
        try:
            back_up(str(copy), place)
            tried = asyncio.run(try_migration(copy / DATABASE))
        except ConfigurationError as error:
            return failed(NAME, str(error), STEP)
    return ok(NAME, _text(tried), before=tried.before, after=tried.after, tasks=tried.tasks)


def _text(tried: DryRun) -> str:
    if tried.before == tried.after:
        return f"not necessary: {tried.tasks} tasks have schema {tried.after}"
    return (
        f"schema {tried.before} to {tried.after}: {tried.tasks} tasks in {tried.seconds:.1f} s; "
        f"the start needs {tried.needed / 1e6:.0f} MB of disk"
    )


def _beside(folder: Path | None) -> Path | None:
    """The parent of the state folder: the copy should be on the same disk. None for the default of
    temporary files, if this user may not write there."""
    if folder is None:
        return None
    try:
        with tempfile.TemporaryFile(dir=folder.parent):
            return folder.parent
    except OSError:
        return None
