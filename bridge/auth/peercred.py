"""The socket at the other end of a TCP connection, as this machine's kernel knows it (Linux).

The kernel knows both ends of a connection inside the machine. sock_diag(7) finds the other end by
the addresses of the connection; it needs no privilege.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST, _NLM_F_DUMP = 1, 0x300
_NO_COOKIE = b"\xff" * 8
_NO_ADDRESS = bytes(16)
_ESTABLISHED = 1
_ALL_STATES = 0xFFFFFFFF
_LISTENING = 1 << 10 | 1 << 13  # or only bound, which Linux reports from 6.8 on
_HEADER = struct.Struct("=IHHII")
# family, protocol, extensions, padding, states; then ports (of the network), addresses, interface
_REQUEST = struct.Struct("=BBBxI2s2s16s16sI8s")
_ATTRIBUTE = struct.Struct("=HH")  # length with this header, type
_CGROUP_ID = 21  # INET_DIAG_CGROUP_ID, Linux 5.8
_SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_PORT_AT = _HEADER.size + 4  # after family, state, timer and retransmissions
_UID_AT = _HEADER.size + 4 + 48 + 12  # family … retransmissions, the socket's id, expiry and queues
_ATTRIBUTES_AT = _UID_AT + 8  # uid, inode


@dataclass(frozen=True, slots=True)
class SocketPeer:
    """A socket of this machine. `inode` identifies it in /proc/PID/fd. `group`: the id of the
    control group (version 2) of its creator, which is the inode of the folder of the group; None
    if the kernel does not report it."""

    uid: int
    inode: int
    group: int | None


def peer_of(sockname: Any, peername: Any) -> SocketPeer | None:
    """The other end of the connection between two addresses in the form of the socket module. None
    if this machine has no such established socket: the other end is on another machine or in
    another network namespace, or one side has closed. Raises OSError if resources are exhausted."""
    try:
        ours, theirs = address(sockname[0]), address(peername[0])
        family = socket.AF_INET6 if theirs.version == 6 else socket.AF_INET
        return _ask(family, (theirs.packed, peername[1]), (ours.packed, sockname[1]))
    except OSError as error:
        if error.errno in _SCARCE:
            raise
        return None
    except (ValueError, TypeError, IndexError, AttributeError):
        return None


def listeners(port: int) -> list[SocketPeer]:
    """The sockets that listen on the port, on any address of this machine. Raises OSError."""
    return [
        _described(one)
        for family in (socket.AF_INET, socket.AF_INET6)
        for one in _dump(family, _LISTENING)
        if one[_PORT_AT : _PORT_AT + 2] == struct.pack("!H", port)
    ]


def _dump(family: int, states: int) -> Iterator[bytes]:
    """A message of the kernel for each socket."""
    ends = (bytes(2), bytes(2), _NO_ADDRESS, _NO_ADDRESS)
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, states, *ends, 0, bytes(8))
    length = _HEADER.size + len(body)
    header = _HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST | _NLM_F_DUMP, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(1.0)  # the kernel answers at once
        netlink.send(header + body)
        while True:
            answer = netlink.recv(65536)
            while answer:
                size, kind, _, _, _ = _HEADER.unpack_from(answer)
                if kind != _SOCK_DIAG_BY_FAMILY:  # the end, or an error
                    return
                yield answer[:size]
                answer = answer[(size + 3) & ~3 :]


def address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address of a socket; mapped IPv4 addresses become IPv4. Raises ValueError."""
    found = ipaddress.ip_address(text.partition("%")[0])
    return getattr(found, "ipv4_mapped", None) or found


def _ask(family: int, source: tuple[bytes, int], target: tuple[bytes, int]) -> SocketPeer | None:
    ports = [struct.pack("!H", port) for _, port in (source, target)]
    addresses = [packed.ljust(16, b"\0") for packed, _ in (source, target)]
    body = _REQUEST.pack(
        family, socket.IPPROTO_TCP, 0, _ALL_STATES, *ports, *addresses, 0, _NO_COOKIE
    )
    length = _HEADER.size + len(body)
    header = _HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(1.0)  # the kernel answers at once
        netlink.send(header + body)
        answer = netlink.recv(4096)
    size, kind, _, _, _ = _HEADER.unpack_from(answer)
    if kind != _SOCK_DIAG_BY_FAMILY or answer[_HEADER.size + 1] != _ESTABLISHED:
        return None
    return _described(answer[:size])


def _described(message: bytes) -> SocketPeer:
    uid, inode = struct.unpack_from("=II", message, _UID_AT)
    return SocketPeer(uid, inode, _group(message[_ATTRIBUTES_AT:]))


def _group(attributes: bytes) -> int | None:
    at = 0
    while at + _ATTRIBUTE.size <= len(attributes):
        length, kind = _ATTRIBUTE.unpack_from(attributes, at)
        if length < _ATTRIBUTE.size:
            return None
        if kind == _CGROUP_ID:
            found: int = struct.unpack_from("=Q", attributes, at + _ATTRIBUTE.size)[0]
            return found
        at += (length + 3) & ~3
    return None
