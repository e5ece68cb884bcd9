"""`coding-agent-bridge health`: asks the server of these settings over loopback or its Unix socket.
The command is for health checks of containers and units, and needs neither curl nor a token."""

from __future__ import annotations

import http.client
import ipaddress
import json
import socket
import sys
from typing import Any

from bridge.server.settings.root import Settings

WITHIN = 5.0  # seconds for the whole answer
_LARGEST = 64 * 1024  # bytes of an answer that are read


class _UnixConnection(http.client.HTTPConnection):
    """A connection to the server on a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=WITHIN)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(WITHIN)
        self.sock.connect(self._path)


def health(settings: Settings, *, ready: bool) -> int:
    """Print the answer of /health, or of /ready. Returns 0 for a server that serves, or is ready,
    else 1."""
    try:
        connection = _connection(settings)
    except ValueError as error:
        print(f"coding-agent-bridge: {error}", file=sys.stderr)
        return 1
    try:
        connection.request("GET", "/ready" if ready else "/health", headers={"Host": "localhost"})
        response = connection.getresponse()
        body = _words(response.read(_LARGEST))
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        print(f"coding-agent-bridge: no answer: {reason}", file=sys.stderr)
        return 1
    finally:
        connection.close()
    print(body)
    return 0 if response.status == http.client.OK else 1


def _connection(settings: Settings) -> http.client.HTTPConnection:
    """Raises ValueError if the settings do not name the address."""
    server = settings.server
    if server.port is None and server.unix_socket:
        return _UnixConnection(server.unix_socket)
    if not server.port:
        raise ValueError("PORT=0 names no port: set PORT to the port of the server")
    return http.client.HTTPConnection(_reachable(server.host), server.port, timeout=WITHIN)


def _reachable(host: str) -> str:
    """An address of this machine at which a server that listens on `host` answers."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "::1"
    return host


def _words(body: bytes) -> str:
    """The status and the reasons of an answer, on one line."""
    try:
        found: Any = json.loads(body)
        reasons = found.get("reasons") or []
        return " ".join(map(str, [found["status"], *reasons]))
    except (ValueError, LookupError, AttributeError, TypeError):
        return "the answer is not from coding-agent-bridge"
