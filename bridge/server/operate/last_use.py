"""The day on which each token was last used, kept in the state folder."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Container
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from bridge.files.folders import closing, open_folder, remove_drafts, replace_file

log = logging.getLogger(__name__)

NAME = "last-use.json"


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


class LastUse:
    """`folder`: None for days in memory. `known`: the names that count, so that their number is
    bounded. The file is written once per token and day."""

    def __init__(
        self,
        folder: Path | None,
        known: Callable[[], Container[str]],
        today: Callable[[], str] = _today,
    ) -> None:
        self._folder = folder
        self._known = known
        self._today = today
        self._days: dict[str, str] = {}
        self._writing: asyncio.Future[None] | None = None
        if folder:
            self._days = _read(folder / NAME)
            with suppress(OSError), closing(open_folder(folder)) as fd:
                remove_drafts(NAME, fd)

    def of(self, name: str) -> str | None:
        """The day (UTC) as YYYY-MM-DD."""
        return self._days.get(name)

    def used(self, name: str) -> None:
        """The principal with this name has sent a request."""
        today = self._today()
        if self._days.get(name) == today or name not in self._known():
            return
        self._days[name] = today
        if self._folder and (self._writing is None or self._writing.done()):
            loop = asyncio.get_running_loop()
            self._writing = loop.run_in_executor(None, self._write, self._folder)

    def _write(self, folder: Path) -> None:
        try:
            with closing(open_folder(folder)) as fd:
                replace_file(NAME, fd, json.dumps(self._days))
        except OSError as error:
            log.warning("the last use of tokens is not kept", extra={"reason": error.strerror})


def _read(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text())
        return {str(name): str(day) for name, day in found.items()}
    except (OSError, ValueError, AttributeError):
        return {}
