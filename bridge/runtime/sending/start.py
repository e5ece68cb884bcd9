"""The launch parameters of a context: those that its first message chooses. Later messages may
change the mode and the model."""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection
from dataclasses import replace

from bridge.a2a.requests import SendParams
from bridge.adapter import Adapter, SessionStart
from bridge.auth.principal import Principal
from bridge.errors import InvalidParams
from bridge.runtime.extension import Options, check_model, known_value, read_options
from bridge.task.message import Message
from bridge.workspace.paths import Workspaces, check_place

CONTEXT_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


class ContextStarts:
    """Decides with which parameters a context begins. `models`: those that the operator allows.
    `role`: of this server. All methods raise InvalidParams."""

    def __init__(
        self, adapter: type[Adapter], workspaces: Workspaces, models: tuple[str, ...], role: str
    ) -> None:
        self._adapter = adapter
        self._workspaces = workspaces
        self._models = models
        self._role = role

    def options(self, message: Message, params: SendParams) -> Options:
        """The choices of the client in the metadata."""
        metadata = message.metadata, params.metadata
        return read_options(*metadata, adapter=self._adapter, models=self._models)

    def new(self, options: Options, params: SendParams, principal: Principal) -> SessionStart:
        """The parameters of the new context of this message."""
        named = params.message.context_id
        if named is not None and not CONTEXT_ID.fullmatch(named):
            text = "contextId may have up to 128 letters, digits and _ . : -"
            raise InvalidParams(text, [("message.contextId", text)])
        if options.role is not None:
            known_value("role", options.role, {self._role: True})
        cwd = self._workspaces.resolve(options.cwd, principal.workspaces)
        session = options.session
        if params.model and not session.model:
            check_model(params.model, self._models)
            session = replace(session, model=params.model)
        return SessionStart(
            cwd, str(uuid.uuid4()), options=session, owner=principal.id, role=options.role
        )

    def check(self, start: SessionStart, options: Options, principal: Principal) -> None:
        """The principal may use the directory of a known context, and the agent can resume its
        conversation and change those options that are not its own."""
        check_place(start.cwd, principal.workspaces)
        self._check_lasting(start, options)
        why = self._adapter.limitations.get("resume")
        if why and start.resume:  # the agent had another adapter, and this one would know nothing
            text = f"{self._adapter.name} cannot continue this conversation ({why})"
            text = f"{text}; begin a new context"
            raise InvalidParams(text, [("message.contextId", text)])
        for name in changed(start, options) if why else ():
            if name not in self._adapter.changes:
                text = f"this agent keeps the {name} of a context ({why}); begin a new context"
                raise InvalidParams(text, [(f"metadata.bridge.{name}", text)])

    def check_same(self, start: SessionStart, options: Options) -> None:
        """The options are those of a known context, as far as they are given."""
        self._check_lasting(start, options)
        for name in changed(start, options):
            text = f"an answer cannot change the {name}; choose it with the next message"
            raise InvalidParams(text, [(f"metadata.bridge.{name}", text)])

    def _check_lasting(self, start: SessionStart, options: Options) -> None:
        """The directory, the role and the budget are those of a known context, as far as they are
        given."""
        if options.role not in (None, self._role):
            text = f"this context is at a server with the role {self._role}; begin a new context"
            raise InvalidParams(text, [("metadata.bridge.role", text)])
        if options.cwd is not None and self._workspaces.resolve(options.cwd) != start.cwd:
            text = "this context works in another directory; begin a new context"
            raise InvalidParams(text, [("metadata.bridge.cwd", text)])
        wanted = options.session.budget_usd
        if wanted is not None and wanted != start.options.budget_usd:
            text = "this context began with another budget; begin a new context"
            raise InvalidParams(text, [("metadata.bridge.budgetUsd", text)])


def changed(start: SessionStart, options: Options) -> Collection[str]:
    """The names of those choices that are not the ones of the context: its mode and its model."""
    now = {"mode": (start.options.mode, start.mode), "model": (start.options.model,)}
    return [name for name, value in options.choices.items() if value not in now[name]]
