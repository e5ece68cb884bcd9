"""The places of all servers of this user: their state folders and backups, and their workspaces.

Each server can have its state anywhere. So each start leaves a record in the default state home,
where every other server of the user finds it: agents must read no server's state, and a file in a
workspace must not configure a server.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bridge.files.folders import closing, open_folder, open_to_owner, replace_file
from bridge.sandbox.landlock import is_inside

log = logging.getLogger(__name__)

NAME = "places"
Record = dict[str, Any]


class Places:
    """The records in the folder `home`/places."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._real = os.path.realpath(home)
        self.folder = home / NAME
        self._known: tuple[int, list[Record]] | None = None

    def record(self, private: Iterable[Path] = (), workspaces: Iterable[str] = ()) -> None:
        """Remember the paths. Records whose paths are gone are removed. A home that cannot be
        written to keeps nothing."""
        paths = sorted(os.path.realpath(one) for one in private)
        roots = sorted({os.path.realpath(one) for one in workspaces})
        text = json.dumps({"private": paths, "workspaces": roots})
        name = hashlib.sha256(json.dumps(paths or roots).encode()).hexdigest()[:32]
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._open_to_owner()
            with closing(open_folder(self.folder)) as fd:
                replace_file(f"{name}.json", fd, text)
                for file in self.folder.glob("*.json"):
                    if not any(map(os.path.exists, _paths(_read(file)))):
                        file.unlink(missing_ok=True)
        except OSError as error:
            facts = {"folder": self.folder, "reason": error.strerror}
            log.info("other servers of this user cannot know the places of this one", extra=facts)

    def private(self) -> tuple[str, ...]:
        """What agents of no server may read. Raises OSError."""
        found = dict.fromkeys(path for one in self._records() for path in one["private"])
        return (self._real, *(one for one in found if not is_inside(one, self._real)))

    def workspace_of(self, path: str) -> str | None:
        """The workspace of a server in which the path lies. Raises OSError if the records cannot
        be read."""
        real = os.path.realpath(path)
        found = (root for one in self._records() for root in one["workspaces"])
        return next((root for root in found if is_inside(real, root)), None)

    def _records(self) -> list[Record]:
        """Raises OSError."""
        try:
            changed = os.stat(self.folder).st_ctime_ns
        except FileNotFoundError:
            return []
        except PermissionError:  # an agent has closed the folder above
            self._open_to_owner()
            changed = os.stat(self.folder).st_ctime_ns
        if self._known is None or self._known[0] != changed:
            self._open_to_owner()
            self._known = changed, [_read(one) for one in sorted(self.folder.glob("*.json"))]
        return self._known[1]

    def _open_to_owner(self) -> None:
        for folder in (self._home, self.folder):
            open_to_owner(folder)


def _read(file: Path) -> Record:
    """A record; an empty one if the file is damaged."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        open_to_owner(file)
        found = json.loads(file.read_text("utf-8"))
        return {name: [str(one) for one in found[name]] for name in ("private", "workspaces")}
    return {"private": [], "workspaces": []}


def _paths(record: Record) -> list[str]:
    return [*record["private"], *record["workspaces"]]
