"""The settings of the places of tasks, and of the notifications that leave them."""

from __future__ import annotations

from typing import Literal
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic import Field

from bridge.server.settings.sections import Section, prefixed
from bridge.server.settings.values import (
    BusPlace,
    LeaseTime,
    Limit,
    NodeName,
    Shares,
    StorePlace,
    is_database,
)


def _password(url: str) -> str:
    """The password in the URL; the URL itself if it cannot be read."""
    try:
        parts = urlsplit(url)
        return unquote(parts.password or parse_qs(parts.query).get("password", [""])[0])
    except ValueError:
        return url


class StoreSettings(Section, alias_generator=prefixed("bridge_")):
    """Store: the place of tasks."""

    mode: StorePlace = Field(default="durable", alias="bridge_store", repr=False)
    """Storage of tasks. durable: in BRIDGE_STATE_DIR; memory: until the server stops; a URL
    postgresql://USER:PASSWORD@HOST/DATABASE: in this database. The URL requires the extra
    `postgres` and a state folder."""
    store_file: str | None = None
    """Path of a file with that URL, instead of BRIDGE_STORE. Other users must not be able to write
    to it."""
    bus: BusPlace = Field(default="notify", repr=False)
    """Carrier of hints between the servers of a database. notify: the database itself; a URL
    redis://USER:PASSWORD@HOST or rediss://…: Redis, for many servers. The URL requires the extra
    `redis`."""
    bus_file: str | None = None
    """Path of a file with that URL, instead of BRIDGE_BUS. Other users must not be able to write to
    it."""
    node: NodeName | None = None
    """Name of this server among those of a database, as `role:instance`. Unset: the default agent,
    the name of the machine and a part of the id in BRIDGE_STATE_DIR."""
    share: Shares = ()
    """Folders that other servers of the database have, too: NAME or NAME=PATH, separated by commas;
    without a path, all workspaces. A server with the same NAME must have the same files at the same
    path. It continues the contexts there if this server is lost."""
    lease_ms: LeaseTime = 15_000
    """Milliseconds without a sign of life after which other servers of the database take this one
    for lost; equal on all servers."""
    state_dir: str | None = None
    """Folder for data that survives a restart. Unset: $XDG_STATE_HOME/coding-agent-bridge/PORT, or
    none if PORT is 0."""
    max_store_bytes: Limit = 2 * 1024**3
    """Maximum size in bytes of the stored tasks, at most 256 MiB with BRIDGE_STORE=memory. The
    oldest finished tasks are removed."""

    @property
    def database(self) -> str | None:
        """The URL of the database; None for the embedded stores."""
        return self.mode if is_database(self.mode) else None

    @property
    def shown(self) -> str:
        """The URL of the database without user, password and options; "" without a database."""
        try:
            parts = urlsplit(self.database or "")
            netloc = parts.netloc.rpartition("@")[2]
            return parts._replace(netloc=netloc, query="", fragment="").geturl()
        except ValueError:
            return "postgresql://…"

    @property
    def passwords(self) -> set[str]:
        """The passwords in the URLs."""
        return set(filter(None, map(_password, (self.database or "", self.redis or ""))))

    @property
    def redis(self) -> str | None:
        """The URL of Redis; None if the database carries the hints."""
        return None if self.bus == "notify" else self.bus


class PushSettings(Section, alias_generator=prefixed("bridge_push_")):
    """Push notifications: the receivers that they can reach."""

    allow_private: bool = False
    """Allow push notifications to private addresses and over http://, for local use."""
    key: str | None = Field(default=None, repr=False)
    """Fernet keys that encrypt the secrets of push configs in a database, separated by commas: the
    first one encrypts, all decrypt. Without a key, a server with a database has no push
    notifications. The embedded stores need none."""
    key_file: str | None = None
    """Path of a file with these keys, instead of BRIDGE_PUSH_KEY."""
    relay: Literal["redis"] | None = None
    """redis: notifications go through BRIDGE_REDIS_URL to `coding-agent-bridge push-worker`, which
    sends them. They are encrypted with BRIDGE_PUSH_KEY. Unset: the server sends them."""
