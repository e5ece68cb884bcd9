"""The operations of administrators (scope `admin`): reload the configuration, list tokens, and end
the tasks of a principal."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from aiohttp import web

from bridge.auth.principal import OPERATOR, Grant, Token
from bridge.errors import ConfigurationError, RequestError
from bridge.runtime.tasks import TaskManager
from bridge.server.operate.last_use import LastUse
from bridge.server.operate.monitor import with_scope
from bridge.server.operate.reload import Reloader
from bridge.server.state_dir import State
from bridge.store.protocol import Store, TaskQuery


class TokenAdministration:
    """`managers` are by agent id."""

    def __init__(
        self,
        reloader: Reloader,
        store: Store,
        managers: Mapping[str, TaskManager],
        last_use: LastUse,
    ) -> None:
        self._reloader = reloader
        self._store = store
        self._managers = managers
        self._last_use = last_use

    def attach(self, app: web.Application) -> None:
        app.router.add_post("/admin/reload", with_scope("admin", self._reload))
        app.router.add_get("/admin/tokens", with_scope("admin", self._tokens))
        app.router.add_get("/admin/tokens/{name}", with_scope("admin", self._token))
        app.router.add_post("/admin/tokens/{name}/cancel", with_scope("admin", self._cancel))

    async def _reload(self, request: web.Request) -> web.Response:
        """The changes; 409 with `error` if a source is invalid, and nothing has changed then."""
        try:
            changes = await self._reloader.reload()
        except ConfigurationError as problem:
            return web.json_response({"error": str(problem)}, status=409)
        return web.json_response(asdict(changes))

    async def _tokens(self, request: web.Request) -> web.Response:
        """The tables [tokens] and [unix_users], without hashes."""
        auth = self._reloader.loaded.settings.auth
        tables: Sequence[tuple[str, Mapping[str, Grant]]] = (
            ("tokens", auth.tokens),
            ("unix_users", auth.unix_users),
        )
        listed = [self._shown(t, name, one) for t, table in tables for name, one in table.items()]
        return web.json_response({"tokens": listed})

    def _shown(self, table: str, name: str, grant: Grant) -> dict[str, Any]:
        until = grant.expires if isinstance(grant, Token) else None
        return {
            "name": name,
            "table": table,
            "scopes": list(grant.scopes),
            "expires": until.isoformat() if until else None,
            "expired": until is not None and until.timestamp() <= time.time(),
            "lastUse": self._last_use.of(name),
        }

    async def _token(self, request: web.Request) -> web.Response:
        """Whether the principal is configured, and the number of its tasks."""
        name = request.match_info["name"]
        auth = self._reloader.loaded.settings.auth
        known = name in auth.tokens or name in auth.unix_users
        tasks = sum(head.context.owner == name for head in await self._heads())
        return web.json_response({"name": name, "configured": known, "tasks": tasks})

    async def _cancel(self, request: web.Request) -> web.Response:
        """End the open tasks of the principal."""
        name, canceled = request.match_info["name"], 0
        for head in await self._heads():
            manager = self._managers.get(head.context.agent)
            if manager is None or head.context.owner != name or head.state.terminal:
                continue
            try:
                await manager.cancel(head.task_id, OPERATOR)
                canceled += 1
            except RequestError:
                continue  # it has ended meanwhile
        return web.json_response({"name": name, "canceled": canceled})

    async def _heads(self) -> Sequence[Any]:
        page = await self._store.list(TaskQuery(agents=tuple(self._managers)))
        return page.heads


def administer(
    app: web.Application, reloader: Reloader, state: State, managers: Mapping[str, TaskManager]
) -> None:
    """Add the operations to `app`, and count the use of tokens."""
    last_use = LastUse(state.folder, lambda: reloader.loaded.settings.auth.names)
    reloader.identity.used = last_use.used
    TokenAdministration(reloader, state.store, managers, last_use).attach(app)
