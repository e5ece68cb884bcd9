"""What all carriers of hints have in common, over a carrier whose sessions the test controls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bridge.store.postgres.bus import Bus

WITHIN = 60.0


class Sessions(Bus):
    """`deaf`: sessions that hear nothing. A session that sends is of no use after cut()."""

    kind = "test"
    errors = (OSError,)

    def __init__(self, deaf: int) -> None:
        self.restarts = 0
        super().__init__(heard=lambda payload: None, restored=self._count)
        self._deaf = deaf
        self._sends = self._broken = False
        self._heard_one = asyncio.Event()
        self.probe = 0.01

    def _count(self) -> None:
        self.restarts += 1

    async def listen(self) -> None:
        self.established()
        self.answered = True
        while self.answered:
            self._heard_one.clear()
            self.ask()
            try:
                async with asyncio.timeout(self.probe):
                    await self._heard_one.wait()
            except TimeoutError:
                continue
            if self.restarts > self._deaf:
                self.take(self.alive)

    async def deliver(self, channels: Sequence[str], payloads: Sequence[str]) -> None:
        self._sends = True
        if self._broken:
            raise OSError("the session has ended")
        if self.alive in payloads:
            self._heard_one.set()

    async def hang_up(self) -> None:
        self._sends = self._broken = False

    def cut(self) -> None:
        self._broken = self._sends


async def test_hints_return_with_the_next_session() -> None:
    """The probe of a new session is not sent by a session that was cut."""
    bus = Sessions(deaf=1)
    bus.start("c", "cluster", "n", 1)
    async with asyncio.timeout(WITHIN):
        while bus.works:  # noqa: ASYNC110
            await asyncio.sleep(0)
        while not bus.works:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert bus.restarts == 2
    await bus.close()
