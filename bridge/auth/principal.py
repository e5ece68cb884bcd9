"""Principals and their rights. Every request has a principal; every task and context has an owner.

authorize() checks every operation, and every object that an operation names. An object of another
owner looks exactly like an object that does not exist.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import ClassVar, Literal, get_args

from bridge.errors import Forbidden, TaskNotFound

Scope = Literal["run", "read", "cancel", "approve", "metrics", "admin"]
"""The right to start tasks, to read them, to cancel them, to answer questions of their agents, and
to read the metrics; `admin` includes all rights, also for tasks of other principals."""
SCOPES: frozenset[Scope] = frozenset(get_args(Scope))


@dataclass(frozen=True, slots=True)
class Principal:
    """The sender of a request. `workspaces`: real paths of its allowed directories, with their
    subdirectories; None: all directories of the agent. `proof` identifies the credential of the
    request (see Identity.is_valid), without a secret; "" for none. `expires`: when that credential
    ends, in seconds since 1970."""

    id: str
    scopes: frozenset[Scope] = SCOPES
    workspaces: tuple[str, ...] | None = None
    proof: str = field(default="", repr=False, compare=False)
    expires: float | None = field(default=None, compare=False)

    @property
    def expired(self) -> bool:
        return self.expires is not None and time.time() >= self.expires

    def bare(self) -> Principal:
        """The principal without its credential, for other servers."""
        return Principal(self.id, self.scopes, self.workspaces)

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes or "admin" in self.scopes

    def sees(self, owner: str) -> bool:
        return owner == self.id or "admin" in self.scopes


OPERATOR = Principal("local")
"""The principal of the token in the state folder, and of BRIDGE_TOKEN."""
RESERVED = frozenset({"rule", "timeout", "limit"})
"""Names in the audit log for answers that the server gave instead of a client."""
MOST_HASHES = 2  # tokens of one principal at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The limits of a principal; 0 means unlimited.

    `running`: CLIs at work; further tasks wait. `tasks`: unfinished tasks, whether they run, wait
    or ask. `starts_per_minute`: new tasks, as a burst and as the rate after it. `streams`: open
    streams. `stored_bytes`: size of its finished tasks in the store; the oldest are removed first.
    """

    running: int = 4
    tasks: int = 100
    starts_per_minute: int = 60
    streams: int = 100
    stored_bytes: int = 256 * 1024 * 1024

    def __post_init__(self) -> None:
        for one in fields(Quota):
            if getattr(self, one.name) < 0:
                raise ValueError(f"{one.name} must be 0 (unlimited) or more")

    @classmethod
    def none(cls) -> Quota:
        return cls(**{one.name: 0 for one in fields(Quota)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant(Quota):
    """The rights and limits of a principal of CONFIG_FILE."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}  # for unknown keys in TOML

    scopes: tuple[Scope, ...] = ("run", "read", "cancel", "approve")
    workspaces: tuple[str, ...] | None = None

    def principal(self, name: str) -> Principal:
        real = None if self.workspaces is None else tuple(map(os.path.realpath, self.workspaces))
        return Principal(name, frozenset(self.scopes), real)


@dataclass(frozen=True, slots=True, kw_only=True)
class Token(Grant):
    """A token of CONFIG_FILE: its SHA-256, or those of two tokens while clients move to a new one,
    and the rights and limits of its principal. `expires`: when the tokens end; RFC 3339. `redis`:
    the principal may send requests through Redis."""

    hash: str | tuple[str, ...]
    expires: datetime | None = None
    redis: bool = False

    def __post_init__(self) -> None:
        Grant.__post_init__(self)
        if self.expires and self.expires.tzinfo is None:
            raise ValueError("expires must have a time zone, as in 2030-01-31T00:00:00Z")
        if not 1 <= len(self.hashes) <= MOST_HASHES:
            raise ValueError(f"hash must be one value, or a list of up to {MOST_HASHES}")

    @property
    def hashes(self) -> tuple[str, ...]:
        return (self.hash,) if isinstance(self.hash, str) else self.hash

    @property
    def until(self) -> float | None:
        """The end of the tokens in seconds since 1970."""
        return self.expires.timestamp() if self.expires else None


def authorize(
    principal: Principal, scope: Scope, task_id: str | None = None, owner: str | None = None
) -> None:
    """Raise Forbidden if the principal lacks the scope, and TaskNotFound if it names a task that it
    may not see. `owner`: the owner of the task; None: the task does not exist."""
    if not principal.may(scope):
        raise Forbidden(f"These credentials do not allow this: the scope {scope!r} is missing.")
    if task_id is not None and not (owner is not None and principal.sees(owner)):
        raise TaskNotFound.of_task(task_id)


class Tokens:
    """The principals by the digests of their tokens."""

    def __init__(self, principals: Iterable[tuple[bytes, Principal]]) -> None:
        self._principals = tuple(principals)

    def __bool__(self) -> bool:
        return bool(self._principals)

    def __iter__(self) -> Iterator[Principal]:
        return (principal for _, principal in self._principals)

    @property
    def digests(self) -> frozenset[bytes]:
        return frozenset(known for known, _ in self._principals)

    def find(self, token: str) -> Principal | None:
        """The principal of a token, or None. The time does not depend on the token."""
        return self.of(digest(token))

    def of(self, given: bytes) -> Principal | None:
        """The principal of the token with this digest, or None."""
        found = None
        for known, principal in self._principals:
            if hmac.compare_digest(known, given):
                found = principal
        return found


def digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
