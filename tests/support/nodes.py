"""Several servers on one database: hosts of stores without agents."""

from __future__ import annotations

import asyncio
from typing import Any

from bridge.store.postgres.membership import Take
from bridge.store.protocol import ContextKey, Fence


class RecordingHost:
    """Records the calls of the store, and takes what it is offered."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.taken: dict[ContextKey, Fence] = {}
        self.changed = asyncio.Event()

    def fenced(self, copied: bool) -> None:
        self._note("fenced", copied)

    def renewed(self, until: float) -> None:
        self._note("renewed", until)

    def doubt(self, doubtful: bool) -> None:
        self._note("doubt", doubtful)

    async def adopt(self, key: ContextKey, take: Take) -> None:
        fence = await take()
        if fence:
            self.taken[key] = fence
            self._note("adopt", key)

    async def finish(self, key: ContextKey, take: Take) -> Fence | None:
        fence = await take()
        if fence:
            self._note("finish", key)
        return fence

    def _note(self, name: str, value: Any) -> None:
        self.calls.append((name, value))
        self.changed.set()

    def had(self, name: str) -> list[Any]:
        """The values of the calls with this name."""
        return [value for one, value in self.calls if one == name]

    async def called(self, name: str, within: float = 30.0) -> Any:
        """The value of the first call with this name, once there is one."""
        async with asyncio.timeout(within):
            while not self.had(name):
                self.changed.clear()
                await self.changed.wait()
        return self.had(name)[0]
