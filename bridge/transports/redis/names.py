"""The names of keys in Redis, and the ids of the entries of an answer."""

from __future__ import annotations

import re
from dataclasses import dataclass

SNAPSHOT, UPDATE, END = 1, 2, 3
"""Kinds of entries of an answer: the task at update N, update N, and the end after update N. Their
ids are N-1, N-2 and N-3, so that Redis refuses an entry that it already has."""
CORRELATION = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""The ids that clients may choose for their requests."""


@dataclass(frozen=True, slots=True)
class RedisKeys:
    """The keys with this prefix. `name`: of a principal; `correlation`: the id of a request."""

    prefix: str

    @property
    def group(self) -> str:
        """The consumer group of the servers on each stream of requests."""
        return self.prefix

    @property
    def owner(self) -> str:
        return f"{self.prefix}:owner"

    @property
    def dead(self) -> str:
        return f"{self.prefix}:dead"

    def requests(self, name: str) -> str:
        return f"{self.prefix}:requests:{name}"

    def reply(self, name: str, correlation: str) -> str:
        return f"{self.prefix}:reply:{name}:{correlation}"


@dataclass(frozen=True, slots=True, order=True)
class ItemId:
    """The id of an entry of an answer. `number`: of an update of the task; `kind`: one of
    SNAPSHOT, UPDATE and END."""

    number: int
    kind: int

    def __str__(self) -> str:
        return f"{self.number}-{self.kind}"

    @classmethod
    def parse(cls, given: bytes) -> ItemId:
        """Raises ValueError."""
        number, _, kind = given.decode("ascii").partition("-")
        return cls(int(number), int(kind or 0))
