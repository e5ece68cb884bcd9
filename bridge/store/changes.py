"""The changes that a store commits, and the keys of contexts and messages.

Times are microseconds since 1970. Prompts, events and starts are bytes of JSON (serialization.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from bridge.task.transitions import TaskState

LOCAL = "local"
"""The owner whose names have no prefix: the only one until there were several principals."""


# --- keys ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OwnedKey:
    """Something that an owner has named by `id`, at one agent."""

    agent: str
    owner: str
    id: str

    @property
    def name(self) -> str:
        """The id within the agent: two owners may choose the same one."""
        return self.id if self.owner == LOCAL else f"{self.owner}/{self.id}"


@dataclass(frozen=True, slots=True)
class ContextKey(OwnedKey):
    """One conversation; its contextId."""


@dataclass(frozen=True, slots=True)
class MessageKey(OwnedKey):
    """One message of a client: its messageId and the digest of its content."""

    digest: bytes


@dataclass(frozen=True, slots=True)
class Fence:
    """The right to write one context. A later claim has a larger token. `saved`: the context has
    a ContextSaved that this process has perhaps not read."""

    context: ContextKey
    token: int
    saved: bool = field(default=False, compare=False)


# --- contexts, tasks and sessions ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ContextSaved:
    """`start` is a SessionStart: directory, options, and the conversation of the CLI. `share`: the
    servers with this share can continue the context; None: only this one."""

    context: ContextKey
    start: bytes
    share: str | None = None


@dataclass(frozen=True, slots=True)
class ContextRemoved:
    context: ContextKey


@dataclass(frozen=True, slots=True)
class TaskCreated:
    """`prompt` is a Message. `thoughts`: the task shows them. `attended`: the task is canceled
    when its client has left. `hidden`: it may still become a direct Message, so other servers do
    not show it before TaskShown."""

    task_id: str
    context: ContextKey
    created: int
    prompt: bytes
    thoughts: bool = False
    attended: bool = False
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class TaskShown:
    """The task stays a task: other servers show it, too. Only a shared store gets this."""

    task_id: str


@dataclass(frozen=True, slots=True)
class MessageAccepted:
    """The message belongs to the task. `replaces`: the task that the message belonged to so far,
    None for an unknown message. Where the store knows another one, the append is a Conflict."""

    key: MessageKey
    task_id: str
    replaces: str | None = None


@dataclass(frozen=True, slots=True)
class TaskBegun:
    """The CLI may have seen the prompt: no server sends it again."""

    task_id: str


class EventBatch(NamedTuple):  # much cheaper to make than a frozen dataclass, once per event
    """Events of a task. `number` counts from 1 without gaps; `last` is the number of the newest
    update after the batch. `state` and `changed` are the TaskState and the time of the newest
    status in the batch; None in a batch without a status, and in one that was read back."""

    task_id: str
    number: int
    time: int
    events: bytes
    last: int
    state: TaskState | None = None
    changed: int | None = None


@dataclass(frozen=True, slots=True)
class TaskRemoved:
    """Also removes its events, messages and push configs. Reads omit the task at once. It need not
    exist."""

    task_id: str


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """`id` is the name of the session's folder, `start` the SessionStart of its launch."""

    id: str
    context: ContextKey
    start: bytes


class OutputRead(NamedTuple):
    """The committed events account for this many bytes of the session's output."""

    session_id: str
    position: int


@dataclass(frozen=True, slots=True)
class InputRecorded:
    """`given` is an AdapterInput that the CLI may get after the commit."""

    session_id: str
    given: bytes


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """Also removes its inputs. The session need not exist."""

    session_id: str


@dataclass(frozen=True, slots=True)
class CommandDone:
    """The command with this id (see Cluster) is answered; `sender` waits for that."""

    id: str
    sender: str
    answer: bytes


# --- push notifications --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PushConfig:
    """A receiver of the updates of a task; clients choose its id. `version`: of the protocol at its
    creation; `extended`: its creator activated the extension. `cursor`: the number of the newest
    update that was delivered or skipped. `attempts`: failed ones of the next notification. `due`:
    the time of its next attempt."""

    task_id: str
    id: str
    url: str = field(repr=False)  # many receivers use the URL as a secret
    version: str
    token: str | None = field(default=None, repr=False)
    scheme: str | None = None
    credentials: str | None = field(default=None, repr=False)
    extended: bool = False
    cursor: int = 0
    attempts: int = 0
    due: int = 0


@dataclass(frozen=True, slots=True)
class PushSaved:
    """A config with the same id is replaced; it keeps its cursor and attempts, and is due now. Like
    the other push changes, it has no effect if its task or config does not exist."""

    config: PushConfig


@dataclass(frozen=True, slots=True)
class PushAdvanced:
    """The new position of a config (see PushConfig). A cursor never goes back."""

    task_id: str
    config_id: str
    cursor: int
    attempts: int = 0
    due: int = 0


@dataclass(frozen=True, slots=True)
class PushFailed:
    """A dead letter: the notification of update `number` gets no further attempt. `error`: the
    class of the last failure."""

    task_id: str
    config_id: str
    number: int
    attempts: int
    error: str
    time: int


@dataclass(frozen=True, slots=True)
class PushRemoved:
    """Also removes the dead letters of the config."""

    task_id: str
    config_id: str


PushChange = PushSaved | PushAdvanced | PushFailed | PushRemoved


Change = (
    ContextSaved
    | ContextRemoved
    | TaskCreated
    | MessageAccepted
    | TaskBegun
    | TaskShown
    | EventBatch
    | TaskRemoved
    | SessionOpened
    | OutputRead
    | InputRecorded
    | SessionClosed
    | CommandDone
    | PushChange
)
