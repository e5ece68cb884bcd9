"""Optional parts of the server: libraries of an extra, and modules that cost memory. Only this
module imports them, each at its first use."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge import __version__
from bridge.auth.authentication import TokenIssuer
from bridge.errors import ConfigurationError
from bridge.errors.extras import install_line
from bridge.server.agents.node import NodeAgents, digest
from bridge.server.settings.broker import redis_principals
from bridge.server.settings.root import Settings
from bridge.store.cluster import SharedStore

if TYPE_CHECKING:
    from bridge.a2a.signing import CardKeys
    from bridge.push.redis_report import RedisReport
    from bridge.push.relay import RedisRelay
    from bridge.push.worker import PushWorker
    from bridge.store.postgres.bus import MakeBus
    from bridge.store.postgres.connect import Probe
    from bridge.store.redis_address import RedisAddress
    from bridge.telemetry.metrics.exposition import Exposition
    from bridge.telemetry.tracing.exporter import SpanQueue
    from bridge.transports.envelope.websocket import Identify, WebSockets
    from bridge.transports.grpc.server import GrpcServer
    from bridge.transports.mcp.server import McpConfig, McpServer
    from bridge.transports.redis.server import RedisTransport

log = logging.getLogger(__name__)


def token_issuer(settings: Settings) -> TokenIssuer | None:
    """The OpenID provider whose tokens the server accepts, if one is configured. Requires a running
    event loop. Raises ConfigurationError if the extra `oidc` is missing."""
    auth = settings.auth
    if auth.oidc_issuer is None or not auth.config.required:
        return None
    from bridge.auth import oidc

    config = oidc.OidcConfig(
        issuer=auth.oidc_issuer,
        audiences=auth.oidc_audience,
        scopes=auth.oidc_scopes,
        jwks=auth.oidc_jwks,
        claim=auth.oidc_claim,
        workspaces=auth.oidc_workspaces_claim,
    )
    return oidc.Issuer(config)


def postgres_store(
    settings: Settings, node: str, name: str, agents: Mapping[str, Any], host: NodeAgents
) -> SharedStore:
    """The store in the database of BRIDGE_STORE, for the server with this id and name. `agents`:
    the offers of its agents, by their ids. Raises ConfigurationError, also if the extra `postgres`
    is missing."""
    with _needs_postgres():
        from bridge.store.postgres.connect import parse
        from bridge.store.postgres.membership import Terms
        from bridge.store.postgres.sealing import Seal
        from bridge.store.postgres.store import PostgresStore
    address = parse(settings.store.database or "")
    if address.exposed:
        log.warning(
            "prompts and output cross the network without protection: add "
            "sslmode=verify-full to the URL of BRIDGE_STORE"
        )
    key = settings.push.key
    seal = Seal(key) if key else None
    terms = Terms(
        name=name,
        version=__version__,
        lease=settings.store.lease_ms / 1000,
        grace=settings.constants.node_grace_ms / 1000,
        shares=[*settings.shares],
        agents=agents,
        slots=settings.server.max_sessions,
        config=digest(settings, [*agents]),
    )
    store = PostgresStore(address, node, seal=seal, terms=terms, host=host)
    if settings.store.redis:
        store.use_bus(redis_bus(settings.store.redis))
    return store


def redis_bus(url: str) -> MakeBus:
    """Carries hints by the Redis of BRIDGE_BUS. Raises ConfigurationError, also if the extra
    `redis` is missing."""
    with _needs_redis():
        from bridge.store.postgres.redis_bus import RedisBus
        from bridge.store.redis_address import parse_redis
    address = parse_redis(url)
    if address.exposed:
        log.warning(
            "hints with output cross the network without protection: use rediss:// in BRIDGE_BUS"
        )
    return functools.partial(RedisBus, address)


async def probe_bus(url: str) -> tuple[str, float]:
    """The place of the Redis of BRIDGE_BUS, and the milliseconds of an answer. Raises
    ConfigurationError."""
    with _needs_redis():
        from bridge.store.redis_address import parse_redis
    address = parse_redis(url)
    return address.shown, (await _reported(address)).milliseconds


async def _reported(address: RedisAddress) -> RedisReport:
    """The properties of Redis. Raises ConfigurationError if it does not answer."""
    from bridge.push.redis_report import report
    from bridge.store.redis_address import REDIS_ERRORS, cause_of

    try:
        return await report(address)
    except REDIS_ERRORS as error:
        raise ConfigurationError(f"cannot use {address.shown}: {cause_of(error)}") from error


def _broker_address(settings: Settings) -> RedisAddress:
    """The Redis of BRIDGE_REDIS_URL, with its password. Raises ConfigurationError, also if the
    extra `redis` is missing."""
    redis = settings.redis
    if redis.url is None:
        raise ConfigurationError("push-worker requires BRIDGE_REDIS_URL.")
    with _needs("redis", "BRIDGE_REDIS_URL is set"):
        from bridge.store.redis_address import parse_redis
    return parse_redis(redis.url, "BRIDGE_REDIS_URL").with_password(redis.password)


async def redis_report(settings: Settings) -> tuple[str, RedisReport | None]:
    """The place of the Redis of BRIDGE_REDIS_URL, and its properties; None if it does not answer.
    Raises ConfigurationError for invalid settings."""
    address = _broker_address(settings)
    try:
        return address.shown, await _reported(address)
    except ConfigurationError:
        return address.shown, None


async def check_broker(settings: Settings) -> tuple[str, RedisReport, Sequence[str]]:
    """The place of the Redis of BRIDGE_REDIS_URL, its properties, and the commands that the user
    may not use. Raises ConfigurationError."""
    address = _broker_address(settings)
    found = await _reported(address)
    from bridge.push.redis_report import refused

    names = redis_principals(settings.auth.tokens)
    relay = settings.push.relay is not None
    return address.shown, found, await refused(address, settings.redis.prefix, names, relay=relay)


def redis_transport(settings: Settings, *, identity: str, consumer: str) -> RedisTransport:
    """Requests through Redis, which are not read yet. `identity`: of the store; `consumer`: of this
    server. Requires a running event loop. Raises ConfigurationError."""
    address, chosen = _broker_address(settings), settings.redis
    from bridge.transports.redis.replies import ReplyLimits
    from bridge.transports.redis.server import RedisConfig, RedisTransport

    if address.exposed:
        log.warning(
            "prompts and output cross the network without protection: use rediss:// in "
            "BRIDGE_REDIS_URL"
        )
    config = RedisConfig(
        prefix=chosen.prefix,
        identity=identity,
        consumer=consumer,
        claim=settings.constants.redis_claim_ms / 1000,
        replies=ReplyLimits(settings.constants.redis_reply_items, chosen.reply_ttl_ms / 1000),
    )
    return RedisTransport(address, config)


def push_relay(settings: Settings, server: str) -> RedisRelay:
    """The way of push notifications through Redis. `server`: the id of this server. Requires a
    running event loop. Raises ConfigurationError."""
    address = _broker_address(settings)
    with _needs("redis", "BRIDGE_PUSH_RELAY is redis"):
        from bridge.push.relay import RedisRelay, RelayConfig
    lease = settings.constants.push_lease_ms / 1000
    config = RelayConfig(settings.redis.prefix, server, settings.push.key or "", lease)
    return RedisRelay(address, config)


def push_worker(settings: Settings) -> PushWorker:
    """The worker of `coding-agent-bridge push-worker`. Requires a running event loop. Raises
    ConfigurationError."""
    address = _broker_address(settings)
    if settings.push.key is None:
        raise ConfigurationError(
            "push-worker requires BRIDGE_PUSH_KEY or BRIDGE_PUSH_KEY_FILE, with the keys of the "
            "servers."
        )
    with _needs("redis", "push-worker needs Redis"):
        from bridge.push.worker import PushWorker, WorkerConfig
    config = WorkerConfig(
        settings.redis.prefix,
        settings.push.key,
        settings.constants.push_lease_ms / 1000,
        allow_private=settings.push.allow_private,
    )
    return PushWorker(address, config)


async def probe_database(settings: Settings) -> Probe:
    """Reach the database of BRIDGE_STORE, and change nothing. Raises ConfigurationError."""
    with _needs_postgres():
        from bridge.store.postgres.connect import parse, probe
    return await probe(parse(settings.store.database or ""))


@contextlib.contextmanager
def _needs(extra: str, setting: str) -> Iterator[None]:
    """Raises ConfigurationError for a missing library of the extra, which the setting requires."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").startswith("bridge"):
            raise
        raise ConfigurationError(
            f"{setting}, and a library for it is missing: {install_line(extra)}"
        ) from None


_needs_postgres = functools.partial(_needs, "postgres", "BRIDGE_STORE is a PostgreSQL database")
_needs_redis = functools.partial(_needs, "redis", "BRIDGE_BUS is the URL of Redis")


def grpc_server(settings: Settings, port: int) -> GrpcServer:
    """The listener of gRPC, which is bound and does not serve yet. Requires a running event loop.
    Raises OSError if the port cannot be used, and ConfigurationError, also if the extra `grpc` is
    missing."""
    chosen, server = settings.grpc, settings.server
    try:
        from bridge.transports.grpc.server import GrpcConfig, GrpcServer
    except ImportError as error:
        if (error.name or "").startswith("bridge"):
            raise
        library = "grpcio" if (error.name or "").startswith("grpc") else "protobuf"
        raise ConfigurationError(
            f"BRIDGE_GRPC_PORT is set, but {library} is not installed: {install_line('grpc')}"
        ) from None
    config = GrpcConfig(
        host=chosen.host,
        port=port,
        certificate=Path(chosen.tls_cert).expanduser() if chosen.tls_cert else None,
        key=Path(chosen.tls_key).expanduser() if chosen.tls_key else None,
        max_body=server.max_body_bytes,
        stall=server.stall_timeout_ms / 1000,
    )
    return GrpcServer(config)


def web_sockets(settings: Settings, identify: Identify) -> WebSockets | None:
    """The WebSocket connections, with BRIDGE_WEBSOCKET."""
    if not settings.server.websocket:
        return None
    from bridge.transports.envelope.websocket import WebSockets

    ping = settings.constants.websocket_ping_ms / 1000
    return WebSockets(identify, ping=ping, max_frame=settings.server.max_body_bytes)


def mcp_library() -> tuple[type[McpServer], type[McpConfig]]:
    """The MCP server and its configuration. The import takes about a second of CPU time."""
    from bridge.transports.mcp.server import McpConfig, McpServer

    return McpServer, McpConfig


def metrics_library() -> type[Exposition] | None:
    """The registry of metrics; None if the extra `metrics` is missing."""
    try:
        from bridge.telemetry.metrics.exposition import Exposition
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("bridge"):
            raise
        return None
    return Exposition


def span_queue(settings: Settings, clean: Callable[[str], str]) -> SpanQueue | None:
    """The way of spans to the collector of OTEL_EXPORTER_OTLP_ENDPOINT, if there is one. Raises
    ConfigurationError, also if the extra `otel` is missing."""
    traces = settings.traces
    if traces.endpoint is None:
        return None
    with _needs("otel", "An endpoint of OTEL_EXPORTER_OTLP is set"):
        from bridge.telemetry.tracing.exporter import SpanQueue
    return SpanQueue(
        traces.endpoint,
        traces.headers,
        service=traces.service_name,
        version=__version__,
        clean=clean,
    )


def card_signer(keys: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Signs a card with the keys of this file. Raises ConfigurationError, also if the extra
    `signing` is missing."""
    from bridge.a2a import signing

    loaded = load_card_keys(Path(keys).expanduser(), signing=True)
    return functools.partial(signing.sign, keys=loaded)


def load_card_keys(path: Path, *, signing: bool) -> CardKeys:
    """The keys of a JWK Set in a file, to sign or to verify cards with. Other users must not have
    access to a file with private keys. Raises ConfigurationError, without key material."""
    from bridge.a2a.signing import MAX_BYTES

    data, mode = read_file(path, MAX_BYTES)
    remedy = f"Run: chmod 600 {path}" if mode & 0o077 else ""
    return read_card_keys(data, str(path), signing=signing, remedy=remedy)


def read_card_keys(data: bytes, place: str, *, signing: bool, remedy: str) -> CardKeys:
    """The keys of a JWK Set from a file or URL. `remedy`: for private keys, if other users can read
    the place. Raises ConfigurationError, without key material."""
    from bridge.a2a.canonical_card import SignatureError
    from bridge.a2a.signing import parse_json, read_keys

    try:
        document = parse_json(data)
    except SignatureError:
        document = None
    jwks = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(jwks, list) or not all(isinstance(jwk, dict) for jwk in jwks) or not jwks:
        raise ConfigurationError(f'{place} is not a JWK Set with keys: {{"keys": [{{…}}, …]}}')
    if remedy and any("d" in jwk or "k" in jwk for jwk in jwks):
        text = "has private keys and is accessible to other users"
        raise ConfigurationError(f"{place} {text}. {remedy}")
    try:
        return read_keys(jwks, signing=signing)
    except ConfigurationError as problem:
        raise ConfigurationError(f"{place}: {problem}") from None


def read_file(path: Path, limit: int) -> tuple[bytes, int]:
    """The bytes of a file, and the mode of the same inode. Raises ConfigurationError for a file
    that is not readable or larger than `limit` bytes."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(limit + 1)
    except OSError as error:
        raise ConfigurationError(f"Cannot read {path}: {error.strerror}") from None
    if len(data) > limit:
        raise ConfigurationError(f"{path} is larger than {limit} bytes.")
    return data, stat.S_IMODE(status.st_mode)
