"""The listener of the gRPC binding: its port, limits, certificate and services."""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from bridge.auth.token_bucket import RateLimitedLogs
from bridge.errors import ConfigurationError
from bridge.transports.grpc.health import Health
from bridge.transports.grpc.request import GrpcAgent
from bridge.transports.grpc.service import SERVICE, A2AService, Identify

log = logging.getLogger(__name__)
# grpcio writes a traceback for each stream whose client leaves.
logging.getLogger("grpc._cython.cygrpc").addFilter(RateLimitedLogs())

MOST_CALLS = 1000  # at once on all connections; 100 on one connection
METADATA = 32 * 1024  # bytes of the metadata of a call


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcConfig:
    """`port` 0: any free port. `certificate` and `key`: paths of PEM files; None: no TLS, only on
    loopback. `max_body`: bytes of a message. `stall`: seconds after which a stream ends if its
    client does not read."""

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None
    max_body: int
    stall: float


class GrpcServer:
    """A listener that is bound and does not serve yet. Needs a running event loop. Raises
    ConfigurationError, and OSError if the address cannot be used, which is its filename."""

    def __init__(self, config: GrpcConfig) -> None:
        self._config = config
        self._health: Health | None = None
        self._service: A2AService | None = None
        host = _numeric(config.host)
        self._server = grpc.aio.server(
            options=_options(config),
            maximum_concurrent_rpcs=MOST_CALLS,
            compression=grpc.Compression.NoCompression,
        )
        address = f"[{host}]:{config.port}" if ":" in host else f"{host}:{config.port}"
        try:
            _check_free(host, config.port)
            self.port = self._bind(address)
        except (OSError, RuntimeError) as error:
            number = getattr(error, "errno", None) or errno.EADDRINUSE
            raise OSError(number, os.strerror(number), address) from None
        everywhere = ipaddress.ip_address(host).is_unspecified
        self._ours = None if everywhere else (host, self.port)
        self.host = host
        self.address = f"{address.rpartition(':')[0]}:{self.port}"

    def _bind(self, address: str) -> int:
        config = self._config
        if config.certificate and config.key:
            credentials = _Certificate(config.certificate, config.key).credentials()
            port: int = self._server.add_secure_port(address, credentials)
        else:
            port = self._server.add_insecure_port(address)
        return port

    async def start(
        self, agents: Mapping[str, GrpcAgent], identify: Identify, serves: Callable[[], bool]
    ) -> None:
        """Serve the agents, by tenant; the tenant "" is the agent at the root. `serves`: whether
        the server accepts tasks now."""
        self._service = service = A2AService(
            agents, identify, ours=self._ours, stall=self._config.stall
        )
        self._health = Health(serves, frozenset({SERVICE}))
        handlers = [service.handler(), self._health.handler()]
        self._server.add_generic_rpc_handlers(tuple(handlers))
        await self._server.start()

    @property
    def cut(self) -> int:
        """The number of clients that were cut because they did not read."""
        return self._service.cut if self._service else 0

    def drain(self) -> None:
        """Answer new calls with Unavailable from now on; open calls continue."""
        if self._service and self._health:
            self._service.stop()
            self._health.stop()

    async def stop(self, grace: float) -> None:
        """End the open calls after at most `grace` seconds, and close the port."""
        self.drain()
        await self._server.stop(grace)


def _options(config: GrpcConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", config.max_body),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", METADATA),
        ("grpc.absolute_max_metadata_size", METADATA),
        ("grpc.max_concurrent_streams", 100),
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.max_connection_idle_ms", 300_000),
        ("grpc.compression_enabled_algorithms_bitset", 1),  # identity
        ("grpc.so_reuseport", 0),  # otherwise a second server takes a part of the connections
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),  # pings of clients
    ]


def _numeric(host: str) -> str:
    """The address of a host name: the kernel names the process of a client only by the exact
    address of the listener. Raises ConfigurationError."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigurationError(f"BRIDGE_GRPC_HOST={host}: {error.strerror}") from None
    return str(found[0][4][0])


def _check_free(host: str, port: int) -> None:
    """Raise OSError if the port cannot be used. grpcio writes lines of its own to stderr for it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    socket.create_server((host, port), family=family).close()


class _Certificate:
    """A certificate chain and its key in PEM files, which are read again if they change. Raises
    ConfigurationError."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._paths = (certificate, key)
        try:
            self._seen = self._state()
            self._current = self._read()
        except OSError as error:  # also ssl.SSLError
            names = "BRIDGE_GRPC_TLS_CERT and BRIDGE_GRPC_TLS_KEY"
            raise ConfigurationError(f"{names}: {error.strerror or error}") from None

    def credentials(self) -> Any:
        return grpc.dynamic_ssl_server_credentials(self._current, self._changed)

    def _state(self) -> tuple[tuple[int, ...], ...]:
        found = [os.stat(path) for path in self._paths]
        return tuple((one.st_ino, one.st_size, one.st_mtime_ns) for one in found)

    def _read(self) -> Any:
        """grpcio accepts any bytes and fails at each handshake; the module ssl checks the files."""
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self._paths)
        chain, key = (path.read_bytes() for path in self._paths)
        return grpc.ssl_server_certificate_configuration([(key, chain)])

    def _changed(self) -> Any:
        """The new certificate, or None; runs in a thread of grpcio at each handshake."""
        try:
            state = self._state()
            if state == self._seen:
                return None
            self._seen = state
            self._current = self._read()
        except OSError as error:
            log.warning("the TLS certificate cannot be read again", extra={"reason": str(error)})
            return None
        return self._current
