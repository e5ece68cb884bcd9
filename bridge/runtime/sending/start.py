"""The launch parameters of a context: those that its first message chooses, which later messages
cannot change."""

from __future__ import annotations

import re
import uuid

from bridge.a2a.requests import SendParams
from bridge.adapter import Adapter, SessionStart
from bridge.auth.principal import Principal
from bridge.errors import InvalidParams
from bridge.runtime.extension import Options, read_options
from bridge.task.message import Message
from bridge.workspace.paths import Workspaces, check_place

CONTEXT_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


class ContextStarts:
    """Decides with which parameters a context begins. `models`: those that the operator allows.
    All methods raise InvalidParams."""

    def __init__(
        self, adapter: type[Adapter], workspaces: Workspaces, models: tuple[str, ...]
    ) -> None:
        self._adapter = adapter
        self._workspaces = workspaces
        self._models = models

    def options(self, message: Message, params: SendParams) -> Options:
        """The choices of the client in the metadata."""
        metadata = message.metadata, params.metadata
        return read_options(*metadata, adapter=self._adapter, models=self._models)

    def new(self, options: Options, message: Message, principal: Principal) -> SessionStart:
        """The parameters of the new context of this message."""
        named = message.context_id
        if named is not None and not CONTEXT_ID.fullmatch(named):
            text = "contextId may have up to 128 letters, digits and _ . : -"
            raise InvalidParams(text, [("message.contextId", text)])
        cwd = self._workspaces.resolve(options.cwd, principal.workspaces)
        return SessionStart(cwd, str(uuid.uuid4()), options=options.session, owner=principal.id)

    def check(self, start: SessionStart, options: Options, principal: Principal) -> None:
        """The principal may use the directory of a known context, and the options are its own."""
        check_place(start.cwd, principal.workspaces)
        self.check_same(start, options)

    def check_same(self, start: SessionStart, options: Options) -> None:
        """The options are those of a known context, as far as they are given."""
        if options.cwd is not None and self._workspaces.resolve(options.cwd) != start.cwd:
            text = "this context works in another directory; begin a new context"
            raise InvalidParams(text, [("metadata.bridge.cwd", text)])
        for name in ("model", "mode", "budget_usd"):
            wanted = getattr(options.session, name)
            if wanted is not None and wanted != getattr(start.options, name):
                text = f"this context began with another {name}; begin a new context"
                raise InvalidParams(text, [(f"metadata.bridge.{name}", text)])
