"""How many connections each peer may make."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

from bridge.auth.token_bucket import TokenBucket

SHARED = frozenset({"127.0.0.1", "::1"})
"""Addresses that all programs of this machine have, a reverse proxy among them: those are many
clients, and a limit for each address would let one of them lock out the others."""
MOST_PEERS = 10_000  # that are remembered
BACKLOG = 4096  # connections that the kernel keeps until they are accepted
ACCEPTED_AT_ONCE = 16  # by one pass of the loop, so that whoever is connected already has a turn
REFUSED_AT_ONCE = 64  # which costs much less
AT_ONCE = struct.pack("ii", 1, 0)  # of SO_LINGER: on, no seconds


class Peers:
    """The connections that each peer may make: `rate` per second, and `burst` at once; SHARED ones
    in place of that `shared` at once, and ten times the rate. Without a rate, all that come."""

    def __init__(self, rate: float, burst: float, shared: float) -> None:
        self._rate = rate
        self._burst = burst
        self._shared = shared
        self._buckets: dict[str | int, TokenBucket] = {}

    def admits(self, peer: str | int) -> bool:
        return not self._rate or self._bucket(peer).take()

    def charge(self, peer: str | int, connections: float) -> None:
        """Count something that a peer did as so many connections. Not of SHARED ones: the others
        there would have to pay for it."""
        if self._rate and peer not in SHARED:
            self._bucket(peer).charge(connections)

    def _bucket(self, peer: str | int) -> TokenBucket:
        found = self._buckets.pop(peer, None)
        if found is None:
            if len(self._buckets) >= MOST_PEERS:
                del self._buckets[next(iter(self._buckets))]
            shared = peer in SHARED
            rate, burst = (10 * self._rate, self._shared) if shared else (self._rate, self._burst)
            found = TokenBucket(rate, burst)
        self._buckets[peer] = found  # the last one, so that the first one is the longest unused
        return found


class Door(socket.socket):
    """A listening socket, in place of `listening`, that cuts whom `admits` does not, before
    anything is made for them. asyncio accepts from it as from any other."""

    def __init__(self, listening: socket.socket, admits: Callable[[str | int], bool]) -> None:
        super().__init__(fileno=listening.detach())
        self._admits = admits

    def listen(self, backlog: int = BACKLOG) -> None:
        """asyncio has one number for what waits and for what is accepted at once."""
        super().listen(BACKLOG)

    def accept(self) -> tuple[socket.socket, Any]:
        for _ in range(REFUSED_AT_ONCE):
            connection, address = super().accept()
            if self._admits(peer_of(address)):
                return connection, address
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
            connection.close()
        raise BlockingIOError  # the others have to wait for the next pass


def peer_of(address: Any) -> str | int:
    """What connections are counted by. Whoever has an IPv6 address has 2**64 of them."""
    if not address or isinstance(address, str | bytes):
        return ""
    host = str(address[0]).partition("%")[0]
    if ":" not in host or host in SHARED:
        return host
    return int(ip_address(host)) >> 64
