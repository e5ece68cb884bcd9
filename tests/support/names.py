"""Host names with chosen addresses."""

from __future__ import annotations

import socket

from aiohttp.abc import AbstractResolver, ResolveResult


class Names(AbstractResolver):
    """Answers with one list of addresses after the other; the last is for ever."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.closed = False

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        self.asked.append(host)
        addresses = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [
            ResolveResult(hostname=host, host=address, port=port, family=0, proto=0, flags=0)
            for address in addresses
        ]

    async def close(self) -> None:
        self.closed = True


def host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
