"""Makes the sessions of one agent."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bridge.adapter import Adapter, AgentConfig, SessionStart
from bridge.errors import LaunchError
from bridge.process.guard import MOVABLE
from bridge.sandbox.profile import Sandbox
from bridge.session.first_start import FirstStart
from bridge.session.redaction import NO_SECRETS, Secrets
from bridge.session.session import Session
from bridge.session.tally import SessionTally
from bridge.session.turn import TurnLimits


@dataclass(slots=True, kw_only=True)
class SessionFactory:
    """`adapter` makes the adapter of each session. `environment`: the variables of the CLI. The
    markers of this server's processes begin with `markers`. `spools`: the folder for the streams of
    sessions that survive the server; None for pipes. `inputs`: the files of the input of sessions
    of an earlier server, by their ids. `sandbox`: the boundary of each CLI process; None for no
    boundary. `secrets` are redacted from the output of later sessions. `shares`: the real paths of
    the folders with the same files on several servers, by name; empty if the CLI cannot resume a
    conversation on another one. `tally` counts the sessions. `traces`: the processes get
    TRACEPARENT. `restore` restores the modes of own files after an agent."""

    adapter: Callable[[AgentConfig, SessionStart], Adapter]
    config: AgentConfig
    environment: Mapping[str, str]
    limits: TurnLimits
    markers: str = ""
    spools: Path | None = None
    inputs: dict[str, int] = field(default_factory=dict)
    sandbox: Sandbox | None = None
    secrets: Secrets = NO_SECRETS
    shares: Mapping[str, Sequence[str]] = field(default_factory=dict)
    first: FirstStart = field(default_factory=FirstStart)
    tally: SessionTally = field(default_factory=SessionTally)
    traces: bool = False
    restore: Callable[[], None] = lambda: None

    def share(self, cwd: str) -> str | None:
        """The share with the directory; None if it is on this server alone."""
        for name, paths in self.shares.items():
            if any(os.path.commonpath([path, cwd]) == path for path in paths):
                return name
        return None

    def make(self, start: SessionStart, session_id: str | None = None) -> Session:
        """A session with a process that is not started yet. `session_id`: the id from an earlier
        server; None for a new session. Raises LaunchError."""
        self.restore()
        session_id = session_id or uuid.uuid4().hex + (MOVABLE if self.share(start.cwd) else "")
        trusted = self.config.project_config or start.trusted is True
        adapter = self.adapter(replace(self.config, project_config=trusted), start)
        spool = self.spools / session_id if self.spools else None
        environment, rules = self.environment, None
        sandbox = self.sandbox.of(session_id) if self.sandbox else None
        if sandbox:
            sandbox.prepare(start.cwd, start.session_id if start.resume else None)
            ahead = None if start.owner else session_id
            try:
                own = sandbox.temporary_folder(start.owner, ahead)
                environment = sandbox.variables(own)
                rules = sandbox.rules(start.cwd, start.folder, own)
            except OSError as error:
                text = f"cannot make a folder for temporary files: {error.strerror}"
                raise LaunchError(text) from error
        marker = f"{self.markers}{session_id}"
        session = Session(
            adapter,
            environment,
            self.limits,
            marker,
            spool=spool,
            rules=rules,
            secrets=self.secrets,
        )
        session.stdin = self.inputs.pop(session_id, None)
        session.tally, session.traces = self.tally, self.traces
        if sandbox:
            self.first.order(session, lambda: sandbox.new)
            session.after_stop = sandbox.clear if sandbox is not self.sandbox else None
        return session
