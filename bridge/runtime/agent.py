"""The settings of one agent: of its contexts, and for its clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from bridge.runtime.extension import OnDisconnect, ThoughtsFor
from bridge.session.factory import SessionFactory
from bridge.session.prewarm import NOTHING, PrewarmPlan
from bridge.store.protocol import Retention
from bridge.task.rules.approval_policy import Rule
from bridge.telemetry.audit import NO_AUDIT, Audit
from bridge.telemetry.observation import TaskObserver
from bridge.workspace.attachments import Attachments
from bridge.workspace.project_config import TRUSTING, ProjectConfigPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """The agent behind the contexts of one address. `sessions` makes its sessions.

    `idle_seconds`: how long an idle session is kept. `rules`: the operator's decisions on
    questions. `thoughts`: those of the model are kept. `patience`: seconds that a question waits
    for its answer; 0 = unlimited. `most_bytes`: of a task in the store, and of its lines in the
    audit log; 0 = unlimited. `trust`: the policy for a repository's own settings; `warm`: the
    sessions that are started ahead of their tasks. `check` raises WorkspaceError if no CLI can work
    in a directory. `replies`: the agent may answer with a Message instead of a task. `observers`
    see the events of all tasks.
    """

    sessions: SessionFactory
    idle_seconds: float
    attachments: Attachments
    steers: bool = False
    rules: tuple[Rule, ...] = ()
    thoughts: bool = True
    patience: float = 0.0
    most_bytes: int = 0
    audit: Audit = NO_AUDIT
    trust: ProjectConfigPolicy = TRUSTING
    warm: PrewarmPlan = NOTHING
    check: Callable[[str], None] = lambda cwd: None
    replies: bool = False
    observers: Sequence[TaskObserver] = ()


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules for clients of an agent. `models`: the models that they may choose. `when_busy`:
    a message to a busy context waits for its turn, is refused, or joins the running turn if the
    CLI can take it. `queue`: the maximum number of waiting tasks of one context. `on_disconnect`:
    the treatment of a task without a client for `grace` seconds. `retention`: the finished tasks
    that are kept. `role`: of the server."""

    thoughts: ThoughtsFor = "request"
    models: tuple[str, ...] = ()
    when_busy: Literal["queue", "reject", "steer"] = "queue"
    queue: int = 100
    on_disconnect: OnDisconnect = "continue"
    grace: float = 10.0
    retention: Retention = field(default_factory=Retention)
    role: str = ""


DEFAULT_POLICY = Policy()
