"""The requests of operators that read or change more than single tasks. All of them require the
scope `admin`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from aiohttp import web

from bridge.runtime.tasks import TaskManager
from bridge.server.operate.backup import Backups
from bridge.server.operate.monitor import with_scope
from bridge.server.operate.usage import usage
from bridge.store.protocol import Store
from bridge.telemetry.audit import Audit
from bridge.transports.operation import PRINCIPAL


@dataclass(frozen=True, slots=True)
class Administration:
    """`managers` are by agent id."""

    store: Store
    managers: Mapping[str, TaskManager]
    audit: Audit
    backups: Backups

    def attach(self, app: web.Application) -> None:
        """Add the routes."""
        of_usage = partial(usage, self.store, self.managers)
        app.add_routes(
            (
                web.post("/admin/backup", with_scope("admin", self.backups.handle)),
                web.get("/monitor/usage", with_scope("admin", of_usage)),
                web.delete("/monitor/tasks", with_scope("admin", self._delete)),
            )
        )

    async def _delete(self, request: web.Request) -> web.Response:
        """Delete the finished tasks of `principal` and its conversations without open tasks. Open
        tasks stay and are named: {"deleted", "conversations", "open": [id]}."""
        owner = request.query.get("principal")
        if not owner:
            return web.json_response({"error": "name the principal: ?principal=NAME"}, status=400)
        deleted, conversations, left = 0, 0, list[str]()
        for manager in self.managers.values():
            gone = await manager.removal.of_owner(owner)
            deleted += gone.tasks
            conversations += gone.conversations
            left += gone.open
        await self.store.flush()
        facts = {"owner": owner, "deleted": deleted, "open": len(left)}
        self.audit.action("tasks_deleted", request[PRINCIPAL].id, **facts)
        members = {"deleted": deleted, "conversations": conversations, "open": left}
        return web.json_response(members)
