"""Which user of this machine is at the other end of a TCP connection on loopback (Linux).

The kernel knows both ends: the other one's socket is asked for by the connection's addresses
(sock_diag(7), which anybody may do), and its owner is in the answer.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
from typing import Any

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_NO_COOKIE = b"\xff" * 8
_ESTABLISHED = 1
_ALL_STATES = 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")
# family, protocol, extensions, padding, states; then ports (of the network), addresses, interface
_REQUEST = struct.Struct("=BBBxI2s2s16s16sI8s")
_SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_UID_AT = _HEADER.size + 4 + 48 + 12  # family … retransmissions, the socket's id, expiry and queues


def uid_of_peer(sockname: Any, peername: Any) -> int | None:
    """The user whose process has the other end of the connection between these two addresses, as
    sockets give them; None where that cannot be found out, as for another machine's. Raises OSError
    where it can be found out later: there is no descriptor, or no memory, to ask with now."""
    try:
        ours, theirs = _address(sockname[0]), _address(peername[0])
        if not theirs.is_loopback:
            return None
        family = socket.AF_INET6 if ours.version == 6 else socket.AF_INET
        answer = _ask(family, (theirs.packed, peername[1]), (ours.packed, sockname[1]))
    except OSError as error:
        if error.errno in _SCARCE:
            raise
        return None
    except (ValueError, TypeError, IndexError, AttributeError):
        return None
    return answer


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """What the other side connected to: a socket for both families has IPv4 ones inside IPv6."""
    address = ipaddress.ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def _ask(family: int, source: tuple[bytes, int], target: tuple[bytes, int]) -> int | None:
    ports = [struct.pack("!H", port) for _, port in (source, target)]
    addresses = [address.ljust(16, b"\0") for address, _ in (source, target)]
    body = _REQUEST.pack(
        family, socket.IPPROTO_TCP, 0, _ALL_STATES, *ports, *addresses, 0, _NO_COOKIE
    )
    length = _HEADER.size + len(body)
    header = _HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(1.0)  # the kernel answers at once
        netlink.send(header + body)
        answer = netlink.recv(4096)
    _, kind, _, _, _ = _HEADER.unpack_from(answer)
    state = answer[_HEADER.size + 1]
    if kind != _SOCK_DIAG_BY_FAMILY or state != _ESTABLISHED:
        return None
    uid: int = struct.unpack_from("=I", answer, _UID_AT)[0]
    return uid
