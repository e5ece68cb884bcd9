"""The settings of Redis as a broker: of requests, and of push notifications."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, Field

from bridge.auth.principal import Token
from bridge.server.settings.sections import Section
from bridge.server.settings.storage import PushSettings


def _redis_url(value: str) -> str:
    if value.startswith(("redis://", "rediss://", "unix://")):
        return value
    raise ValueError("a URL redis://…, rediss://… or unix://… is expected")


def _prefixed(field: str) -> str:
    return f"bridge_redis_{field}"


RedisUrl = Annotated[str, AfterValidator(_redis_url)]


class RedisSettings(Section, alias_generator=_prefixed):
    """Redis: requests through Redis Streams. A table [tokens.NAME] with `redis = true` turns them
    on."""

    url: RedisUrl | None = Field(default=None, repr=False)
    """URL rediss://USER@HOST:PORT/DATABASE (redis://, unix://) of the broker of requests, and of
    push notifications with BRIDGE_PUSH_RELAY. Requires the extra `redis`."""
    password: str | None = Field(default=None, repr=False)
    """Password of the user in that URL."""
    password_file: str | None = None
    """Path of a file with that password, instead of BRIDGE_REDIS_PASSWORD. Other users must not be
    able to write to it."""
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] = "cab"
    """Beginning of the names of all keys. Servers of one database share it, others do not."""
    reply_ttl_ms: Annotated[int, Field(ge=1000, le=2**40)] = 86_400_000
    """Time in ms that an answer is kept after its end."""

    @property
    def secrets(self) -> set[str]:
        """The password, also that of the URL."""
        try:
            found = unquote(urlsplit(self.url or "").password or "")
        except ValueError:  # not a URL
            found = ""
        return {found, self.password or ""}


def missing(redis: RedisSettings, push: PushSettings, tokens: Mapping[str, Token]) -> str | None:
    """The error for settings that need Redis without BRIDGE_REDIS_URL, or a key for the relay;
    None if nothing is missing."""
    named = next(iter(redis_principals(tokens)), None)
    if named and redis.url is None:
        return f"[tokens.{named}] has redis = true, which requires BRIDGE_REDIS_URL."
    if push.relay is None:
        return None
    if redis.url is None:
        return "BRIDGE_PUSH_RELAY=redis requires BRIDGE_REDIS_URL."
    if push.key is None:
        return (
            "BRIDGE_PUSH_RELAY=redis requires BRIDGE_PUSH_KEY or BRIDGE_PUSH_KEY_FILE: it encrypts "
            "notifications with their credentials."
        )
    return None


def redis_principals(tokens: Mapping[str, Token]) -> Sequence[str]:
    """The names of the tokens whose principals may send requests through Redis."""
    return [name for name, token in tokens.items() if token.redis]


def redis_prefix(redis: RedisSettings, tokens: Mapping[str, Token]) -> str | None:
    """The prefix of requests through Redis; None if no principal may send any."""
    return redis.prefix if redis_principals(tokens) else None
