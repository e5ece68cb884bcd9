"""The order of the first starts in new private folders of a CLI."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

from bridge.session.session import Session

ALONE_WITHIN = 10.0  # seconds in which a CLI has created its database


class FirstStart:
    """A CLI whose database does not exist yet starts alone, since two processes that create it can
    fail. The other sessions wait until it has taken its first prompt or has ended, at most `within`
    seconds. A session that continues a process of an earlier server starts nothing: it neither
    waits nor lets others wait."""

    def __init__(self, within: float = ALONE_WITHIN) -> None:
        self._within = within
        self._over: asyncio.Event | None = None

    def order(self, session: Session, new: Callable[[], bool]) -> None:
        """Give the session its place when it starts. `new`: see Sandbox.new."""
        session.before_start = partial(self._enter, session, new)

    async def _enter(self, session: Session, new: Callable[[], bool]) -> None:
        if not new():
            return
        if self._over is None:
            self._over = asyncio.Event()
            session.streams.on_ready = self._over.set
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._within):
                await self._over.wait()
