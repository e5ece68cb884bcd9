"""A stand-in for systemd: the socket to which a service sends its notifications."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WITHIN = 60.0  # seconds for each notification


class NotifySocket:
    """A real datagram socket; `address` is the value of NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.setblocking(False)
        self.received: list[str] = []  # lines, in order

    async def until(self, line: str) -> str:
        """Return the first line that begins with `line` and was not returned before."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(WITHIN):
            while True:
                datagram = (await loop.sock_recv(self._socket, 4096)).decode()
                lines = datagram.split("\n")
                self.received += lines
                found = next((one for one in lines if one.startswith(line)), None)
                if found is not None:
                    return found

    def waiting(self) -> list[str]:
        """The lines that have arrived and were not read yet."""
        lines: list[str] = []
        while True:
            try:
                lines += self._socket.recv(4096).decode().split("\n")
            except BlockingIOError:
                return lines

    def close(self) -> None:
        self._socket.close()


@contextmanager
def notify_socket(folder: Path) -> Iterator[NotifySocket]:
    made = NotifySocket(str(folder / "notify"))
    try:
        yield made
    finally:
        made.close()
