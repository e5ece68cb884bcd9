"""The interface of a store that several servers share, in addition to Store: requests to the server
that has a context, and decisions that only one server may make.

All methods raise Unavailable while the database cannot be reached.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from bridge.store.changes import ContextKey, Fence, MessageKey
from bridge.store.protocol import KnownMessage, Store

ANSWER_WITHIN = 10.0  # seconds for the answer to a command
Take = Callable[[], Awaitable[Fence | None]]
"""Takes a context of a lost server: its fence, None if another server has it by now. Raises
Unavailable."""


@dataclass(frozen=True, slots=True)
class Command:
    """A request for the server that has the context. `id` is unique. `sender`: the id of the server
    that waits for the answer. `kind`, `principal` and `body`: see runtime/nodes/commands.py."""

    id: str
    context: ContextKey
    sender: str
    kind: str
    principal: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A server that uses the store. `name` is for people, `runs`: whether it is connected now,
    `seen`: when it last showed that it runs, `working`: the number of its unfinished tasks.
    `agents`: the ids of those that it serves. `silent`: seconds since `seen`, by the clock of the
    database. `state`: up, draining, away or fenced. `slots`: for live sessions. `offers`: the
    skills, models and modes of its agents, by their ids. `age`: seconds since this server saw its
    newest beat."""

    id: str
    name: str
    version: str
    runs: bool
    seen: int
    working: int
    agents: Sequence[str]
    silent: float
    state: str = "up"
    slots: int = 0
    offers: Mapping[str, Any] = field(default_factory=dict)
    age: float | None = None

    @property
    def role(self) -> str:
        return role_of(self.name)


def role_of(name: str) -> str:
    """The role of the server with this name (BRIDGE_NODE)."""
    return name.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Holder:
    """The server that has a context: its id, its name for people, and whether it runs now."""

    id: str
    name: str
    runs: bool


class HintCarrier(Protocol):
    """Carries hints between the servers of a shared store; its loss makes reads late. `works`:
    whether hints arrive, as far as it is known."""

    @property
    def kind(self) -> str: ...

    @property
    def works(self) -> bool: ...


class Cluster(Protocol):
    """The other servers of a store."""

    async def nodes(self) -> Sequence[NodeStatus]:
        """All servers, by name."""

    async def holder(self, key: ContextKey) -> Holder | None:
        """The server that has the context; None if no server does."""

    async def assign(self, key: ContextKey, node: str) -> bool:
        """Give a context that was not begun, and that no running server has, to the server with the
        id `node`. False: it was begun, or a server has it."""

    async def ask(self, command: Command, holder: str) -> bytes | None:
        """Give the command to the server with the id `holder`, and wait for its answer. None: that
        server does not have the context any more, and the command has no effect. Raises Unavailable
        without an answer within ANSWER_WITHIN seconds; its text says whether the command may still
        take effect."""

    def commands(self) -> AsyncIterator[Command]:
        """The commands for the contexts of this server, in their order, without an end. A command
        that an earlier server took and did not answer (CommandDone) comes again."""

    async def reserve(self, key: MessageKey) -> KnownMessage | None:
        """The task of a message that a server has accepted. Else None, and no other server accepts
        the message before unreserve(). Waits while another server decides about it."""

    async def unreserve(self, key: MessageKey) -> None:
        """The message is refused."""

    async def admit(self, owner: str, task_id: str, *, tasks: int, per_minute: int) -> None:
        """Count a start of the principal `owner` at all servers. Raises TooManyRequests if it has
        `tasks` unfinished tasks, or had `per_minute` starts in the last minute; 0 means no limit.
        """

    async def withdraw(self, task_id: str) -> None:
        """The task with this id does not start."""

    async def unplaced(self, agents: Sequence[str], most: int) -> Sequence[ContextKey]:
        """At most `most` contexts with unfinished tasks that no server has, the owner with the
        fewest running tasks first. Another server may claim them first."""

    def on_work(self, call: Callable[[], None]) -> None:
        """Call `call` when there may be unplaced contexts. A call may be lost."""

    def take_over(self) -> None:
        """Take the contexts of lost servers from now on."""

    async def keep_own(self) -> None:
        """Take no more contexts of lost servers."""

    async def offer(self) -> None:
        """Tell the other servers about unplaced contexts."""


class SharedStore(Store, Protocol):
    """A store that several servers may use."""

    @property
    def cluster(self) -> Cluster: ...

    @property
    def cluster_id(self) -> str:
        """A name of the servers of this store, which other servers do not have; known after
        open()."""

    @property
    def bus(self) -> HintCarrier: ...
