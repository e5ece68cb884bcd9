"""The sockets of the server: bound before anything starts, and their limits."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Sequence

from bridge.auth.authentication import Identity
from bridge.errors import ConfigurationError
from bridge.server.banner import Listening
from bridge.server.operate.port_users import reason
from bridge.server.operate.ports import Ports
from bridge.server.operate.systemd import InheritedSockets
from bridge.server.settings.root import Settings
from bridge.transports.listener.connection_limits import ConnectionLimits
from bridge.transports.listener.unix_socket import UnixSocket, check_place, listen


def listen_tcp(
    settings: Settings, inherited: InheritedSockets, ports: Ports
) -> list[socket.socket] | None:
    """The inherited sockets, or else sockets on HOST and PORT; no sockets for PORT=none. Prints an
    error and returns None if that fails, or if a server listens on the Unix socket. A server binds
    before it starts anything, so that a second one on the same port ends without side effects."""
    server, host, port = settings.server, settings.server.host, settings.server.port
    where, step = server.unix_socket or "", "set BRIDGE_UNIX_SOCKET to another path"
    try:
        if inherited.unix is None:
            check_unix_socket(settings)
        if inherited.http:
            ports.keep_others(inherited.http)
            return list(inherited.http)
        where, step = f"{host}:{port}", "choose another with --port"
        return [] if port is None else ports.listen(host, port)
    except OSError as error:
        text = f"cannot listen on {where}: {reason(error, port)}; {step}"
        print(f"coding-agent-bridge: {text}", file=sys.stderr, flush=True)
        return None


def check_unix_socket(settings: Settings) -> None:
    """Raises ConfigurationError or OSError if the server cannot listen on its Unix socket."""
    if settings.server.unix_socket:
        check_place(settings.server.unix_socket, settings.server.unix_group)


def listen_unix(
    settings: Settings, unused: contextlib.ExitStack, inherited: socket.socket | None = None
) -> UnixSocket | None:
    """The Unix socket: `inherited`, or else a new one. The lock of the state folder is held by now,
    so that a second server with this folder removes no socket; and no other thread creates folders
    yet, which would get the umask of the socket."""
    path = settings.server.unix_socket
    if path is None:
        return None
    try:
        made = (
            UnixSocket(path, inherited) if inherited else listen(path, settings.server.unix_group)
        )
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {path}: {error.strerror}") from error
    unused.callback(made.close)
    unused.callback(made.listening.close)
    return made


def limits(settings: Settings) -> ConnectionLimits:
    """The limits of connections."""
    server, constants = settings.server, settings.constants
    return ConnectionLimits(
        connections=server.max_connections,
        per_peer=server.max_connections_per_peer,
        header=constants.header_timeout_ms / 1000,
        body=constants.body_timeout_ms / 1000,
        stall=server.stall_timeout_ms / 1000,
        per_second=server.max_connections_per_second,
    )


def address_of(
    sockets: Sequence[socket.socket], unix: UnixSocket | None, identity: Identity
) -> Listening:
    """`sockets`: those of HTTP, the one that the banner names first."""
    tcp = [one.getsockname()[:2] for one in sockets]
    host, port = tcp[0] if tcp else ("", 0)
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}" if tcp else None
    inodes = tuple(os.fstat(one.fileno()).st_ino for one in sockets)
    if unix is None:
        return Listening(url, inodes=inodes)
    return Listening(url, unix.path, identity.knows_users, inodes)
