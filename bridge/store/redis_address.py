"""The address of a Redis server, and clients for it. Needs the extra `redis`: only modules that
server/extras.py imports when a setting asks for Redis import this one."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis, UnixDomainSocketConnection
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import RedisError

from bridge.errors import ConfigurationError

ANSWER_WITHIN = 5.0  # seconds for an answer
RETRIES, FIRST, LONGEST = 3, 0.05, 0.5  # of redis-py, for a connection that is lost; in seconds
REDIS_ERRORS = (RedisError, OSError, TimeoutError)
"""The errors of a command."""


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """`options`: of a connection, with the password; `shown` is without it. `exposed`: the content
    crosses a network without TLS and a verified server."""

    options: Mapping[str, Any]
    shown: str
    exposed: bool

    def client(self, connections: int = 1, *, repeats: bool = True) -> Any:
        """A client with at most so many connections; with several of them, a command waits for a
        free one. `repeats`: it repeats a command on a new connection for about a second. Its type
        is Any, because the types of redis-py describe all versions of the protocol at once."""
        backoff = ExponentialBackoff(cap=LONGEST, base=FIRST)
        fixed = {
            "protocol": 2,
            "decode_responses": False,
            "retry": Retry(backoff, RETRIES) if repeats else Retry(NoBackoff(), 0),
            "socket_connect_timeout": ANSWER_WITHIN,
            "socket_timeout": None,  # asyncio bounds each wait, also one that blocks on purpose
            "max_connections": connections,
        }
        options: dict[str, Any] = {**self.options, **fixed}
        if connections == 1:
            return Redis.from_pool(ConnectionPool(**options))
        return Redis.from_pool(BlockingConnectionPool(**options, timeout=None))

    def with_password(self, password: str | None) -> RedisAddress:
        """The same place with this password, if it is not None."""
        if password is None:
            return self
        return replace(self, options={**self.options, "password": password})


def parse_redis(url: str, setting: str = "BRIDGE_BUS") -> RedisAddress:
    """The address in a URL redis://, rediss:// or unix://. Raises ConfigurationError, which names
    the setting, without the password."""
    try:
        options: dict[str, Any] = dict(parse_url(url))
        kind = options.get("connection_class")
        given = {name: value for name, value in options.items() if name != "connection_class"}
        pool: Any = ConnectionPool(**options)
        pool.make_connection()  # it checks the names of the options
    except (TypeError, ValueError, RedisError):  # their texts have parts of the URL
        raise ConfigurationError(
            f"{setting}: a URL such as rediss://user:password@host:6379/0 is expected; write "
            "reserved characters of a password as %XX"
        ) from None
    if kind is UnixDomainSocketConnection:
        return RedisAddress(options, f"Redis at {given.get('path')}", exposed=False)
    host = given.get("host", "localhost")
    verified = url.startswith("rediss://") and (
        given.get("ssl_cert_reqs", "required") == "required"
        and given.get("ssl_check_hostname", True)
    )
    shown = f"Redis at {host}:{given.get('port', 6379)}"
    return RedisAddress(options, shown, not verified and not _is_local(host))


def _is_local(host: str) -> bool:
    try:
        return host in ("", "localhost") or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


async def ping(client: Any) -> float:
    """The milliseconds of an answer. Raises REDIS_ERRORS."""
    await client.ping()
    begun = time.perf_counter()
    await client.ping()
    return 1000 * (time.perf_counter() - begun)


def cause_of(error: BaseException) -> str:
    """The text of an error of Redis without a full stop, or else the name of its class."""
    return str(error).strip().rstrip(".") or type(error).__name__
