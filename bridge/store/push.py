"""The changes of push notification configs."""

from __future__ import annotations

from dataclasses import dataclass, field


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
