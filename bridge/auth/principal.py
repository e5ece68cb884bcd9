"""Who may do what. Every request has a principal; every task and context has an owner.

authorize() is the one gate: in front of every operation, and of every object that one names. What
is another's looks exactly like what does not exist.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import ClassVar, Literal, get_args

from bridge.errors import Forbidden, TaskNotFound

Scope = Literal["run", "read", "cancel", "approve", "admin"]
"""Begin tasks, see them, cancel them, answer the questions of their agents; and, for `admin`, do
all of that with the tasks of others, too."""
SCOPES: frozenset[Scope] = frozenset(get_args(Scope))


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks. `workspaces`: real paths of the directories below which it may work; None for all
    that the agent may."""

    id: str
    scopes: frozenset[Scope] = SCOPES
    workspaces: tuple[str, ...] | None = None

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes or "admin" in self.scopes

    def sees(self, owner: str) -> bool:
        return owner == self.id or "admin" in self.scopes


OPERATOR = Principal("local")
"""Who runs the server: bearers of the token in the state folder, and of BRIDGE_TOKEN."""
NOBODY = frozenset({"rule", "timeout", "limit"})
"""By whom questions are answered that no client has answered; no principal is called so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """How much of the server a principal may use; 0 for no limit of its own.

    `running`: CLIs that work for it at once, further tasks wait. `tasks`: those that have not
    ended, whether they run, wait or ask. `streams`: those that are open. `stored_bytes`: what its
    finished tasks take in the store, of which the oldest go.
    """

    running: int = 4
    tasks: int = 100
    starts_per_minute: int = 60
    streams: int = 100
    stored_bytes: int = 256 * 1024 * 1024

    def __post_init__(self) -> None:
        for one in fields(Quota):
            if getattr(self, one.name) < 0:
                raise ValueError(f"{one.name} is 0 (no limit) or more")

    @classmethod
    def none(cls) -> Quota:
        return cls(**{one.name: 0 for one in fields(Quota)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Token(Quota):
    """A token as the operator has it in CONFIG_FILE: its SHA-256, and what its bearer may do, and
    how much of it."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}  # it is read from TOML

    hash: str
    scopes: tuple[Scope, ...] = ("run", "read", "cancel", "approve")
    workspaces: tuple[str, ...] | None = None


def authorize(
    principal: Principal, scope: Scope, task_id: str | None = None, owner: str | None = None
) -> None:
    """Raises Forbidden unless the principal has the scope; and TaskNotFound unless it may see the
    task that it names, if it names one. `owner`: whose that is; None for one that there is not."""
    if not principal.may(scope):
        raise Forbidden(f"These credentials do not allow this: the scope {scope!r} is missing.")
    if task_id is not None and not (owner is not None and principal.sees(owner)):
        raise TaskNotFound("No such task.", taskId=task_id[:256])


class Tokens:
    """The principals by their tokens, of which only the digests are kept."""

    def __init__(self, principals: Iterable[tuple[bytes, Principal]]) -> None:
        self._principals = tuple(principals)

    def __bool__(self) -> bool:
        return bool(self._principals)

    def find(self, token: str) -> Principal | None:
        """Whose token it is. Takes as long for a wrong one as for any other."""
        given = digest(token)
        found = None
        for known, principal in self._principals:
            if hmac.compare_digest(known, given):
                found = principal
        return found


def digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
