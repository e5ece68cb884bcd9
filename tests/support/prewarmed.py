"""Servers that start CLIs in advance."""

from __future__ import annotations

import asyncio

from tests.support.client import Client

WITHIN = 60.0


async def warm_in(client: Client, number: int) -> None:
    async with asyncio.timeout(WITHIN):
        while True:
            async with client.session.get(f"{client.url}/health") as response:
                (agent,) = (await response.json())["agents"].values()
            if agent["warm"] == number:
                return
            await asyncio.sleep(0.01)
