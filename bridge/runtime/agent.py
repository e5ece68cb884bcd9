"""The settings that the contexts of one agent share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bridge.session.factory import SessionFactory
from bridge.session.prewarm import NOTHING, PrewarmPlan
from bridge.task.approval_policy import Rule
from bridge.telemetry.audit import NO_AUDIT, Audit
from bridge.workspace.attachments import Attachments
from bridge.workspace.project_config import TRUSTING, ProjectConfigPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """The agent behind the contexts of one address. `sessions` makes its sessions.

    `idle_seconds`: how long an idle session is kept. `rules`: the operator's decisions on
    questions. `patience`: seconds that a question waits for its answer; 0 = unlimited. `trust`:
    the policy for a repository's own settings; `warm`: the sessions that are started ahead of
    their tasks. `check` raises WorkspaceError if no CLI can work in a directory. `replies`: the
    agent may answer with a Message instead of a task.
    """

    sessions: SessionFactory
    idle_seconds: float
    attachments: Attachments
    steers: bool = False
    resumes_next_minute: bool = False
    rules: tuple[Rule, ...] = ()
    patience: float = 0.0
    audit: Audit = NO_AUDIT
    trust: ProjectConfigPolicy = TRUSTING
    warm: PrewarmPlan = NOTHING
    check: Callable[[str], None] = lambda cwd: None
    replies: bool = False
