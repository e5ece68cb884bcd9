"""The order of the first starts in new private folders of a CLI."""

from __future__ import annotations

import asyncio
import contextlib

from bridge.session.session import Session

ALONE_WITHIN = 10.0  # seconds in which a CLI has created its files


class FirstStart:
    """The first CLI in new private folders starts alone, since two processes that create the same
    database can fail. The other sessions wait until it has taken its first prompt or has ended, at
    most `within` seconds."""

    def __init__(self, within: float = ALONE_WITHIN) -> None:
        self._within = within
        self._over: asyncio.Event | None = None

    def order(self, session: Session, new: bool) -> None:
        """Give the session its place. `new`: see Sandbox.new."""
        if new and self._over is None:
            self._over = asyncio.Event()
            session.streams.on_ready = self._over.set
        elif self._over and not self._over.is_set():
            session.before_start = self._wait

    async def _wait(self) -> None:
        assert self._over
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._within):
                await self._over.wait()
