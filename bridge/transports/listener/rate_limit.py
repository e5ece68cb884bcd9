"""A limit for the rate of connections per peer."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

from bridge.auth.token_bucket import TokenBucket, TokenBuckets
from bridge.auth.unix_peer import Connection, peer_uid

SHARED = frozenset({"127.0.0.1", "::1"})
"""Addresses of all programs of this machine, including a reverse proxy. They stand for many
clients; with the limit of one address, one client could lock out the others."""
USER = "uid:"
"""The beginning of the key of a user of this machine, on the Unix socket."""
MOST_PEERS = 10_000  # with a bucket
BACKLOG = 4096  # connections that wait in the kernel
ACCEPTED_AT_ONCE = 16  # by one pass of the event loop, so that open connections get their turn
REFUSED_AT_ONCE = 64  # by one pass; a refusal costs much less
AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 seconds


class Peers:
    """The connections of each peer: `rate` per second and `burst` at once. SHARED addresses and
    users of this machine have ten times the rate and `shared` at once. A rate of 0 means
    unlimited."""

    def __init__(self, rate: float, burst: float, shared: float) -> None:
        self._rate = rate
        self._burst = burst
        self._shared = shared
        self._buckets: TokenBuckets[str | int] = TokenBuckets(MOST_PEERS)

    def change(self, rate: float, burst: float, shared: float) -> None:
        """Use other limits from now on, with a full burst for each peer."""
        self._rate, self._burst, self._shared = rate, burst, shared
        self._buckets = TokenBuckets(MOST_PEERS)

    def admits(self, peer: str | int) -> bool:
        return not self._rate or self._bucket(peer).take()

    def charge(self, peer: str | int, connections: float) -> None:
        """Count an action of a peer as a number of connections. SHARED addresses are exempt: their
        other clients would pay for it."""
        if self._rate and peer not in SHARED:
            self._bucket(peer).charge(connections)

    def _bucket(self, peer: str | int) -> TokenBucket:
        if peer in SHARED or str(peer).startswith(USER):
            return self._buckets.get(peer, 10 * self._rate, self._shared)
        return self._buckets.get(peer, self._rate, self._burst)


class RateLimitedListener(socket.socket):
    """A listening socket that takes over the descriptor of `listening`. It closes connections of
    peers that `admits` rejects, before the server creates any object for them."""

    def __init__(self, listening: socket.socket, admits: Callable[[str | int], bool]) -> None:
        super().__init__(fileno=listening.detach())
        self._admits = admits

    def listen(self, backlog: int = BACKLOG) -> None:
        """asyncio uses one number for the kernel queue and for the connections per pass."""
        super().listen(BACKLOG)

    def accept(self) -> tuple[socket.socket, Any]:
        for _ in range(REFUSED_AT_ONCE):
            connection, address = super().accept()
            if self._admits(peer_at(connection, address)):
                return connection, address
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
            connection.close()
        raise BlockingIOError  # the next pass accepts the others


def peer_at(connection: Connection | None, address: Any) -> str | int:
    """The key of a peer by its address, or of the user at the other end of a Unix socket."""
    if connection is not None and connection.family == socket.AF_UNIX:
        uid = peer_uid(connection)
        return f"{USER}{'?' if uid is None else uid}"
    return peer_of(address)


def peer_of(address: Any) -> str | int:
    """The key of a peer: an IPv4 address, or the /64 network of an IPv6 address."""
    if not address or isinstance(address, str | bytes):
        return ""
    host = str(address[0]).partition("%")[0]
    if ":" not in host or host in SHARED:
        return host
    return int(ip_address(host)) >> 64
