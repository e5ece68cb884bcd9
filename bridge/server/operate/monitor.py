"""The state of all tasks for operators: read-only JSON, and a feed of state changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from bridge.a2a.codec import timestamp
from bridge.auth.principal import Principal, Scope
from bridge.auth.revocations import Revocations
from bridge.errors import Unavailable
from bridge.runtime.tasks import TaskManager
from bridge.store.cluster import Cluster, NodeStatus
from bridge.store.event_log import EventLog
from bridge.store.handle import TaskHandle, headed
from bridge.store.protocol import Store, TaskHead, TaskQuery
from bridge.store.serialization import moment
from bridge.task.silence import silent_since
from bridge.task.state import StatusUpdate, Task
from bridge.task.transitions import TaskState
from bridge.transports import sse
from bridge.transports.negotiation import retry_after
from bridge.transports.operation import PRINCIPAL
from bridge.transports.rest import encode_error, encode_stream_error, respond_error

_WAITS = {TaskState.SUBMITTED, TaskState.INPUT_REQUIRED}  # for a slot or a client
FEED = 1000  # state changes that a client can read after a reconnect
Change = dict[str, Any]


class Monitor:
    """Reports the tasks of the agents from now on. `managers` are by agent id; `sessions` returns
    the figures of sessions. `max_age`: seconds without a sign of life after which a server is not
    discovered any more."""

    def __init__(
        self,
        store: Store,
        managers: Mapping[str, TaskManager],
        sessions: Callable[[], Mapping[str, Any]],
        cluster: Cluster | None = None,
        max_age: float = 120.0,
        revocations: Revocations | None = None,
    ) -> None:
        self._revocations = revocations or Revocations()
        self._cluster = cluster
        self._max_age = max_age
        self._store = store
        self._sessions = sessions
        self._managers = managers
        self._feed: EventLog[Change] = EventLog(keep=FEED)
        for agent_id, manager in managers.items():
            self.watch(agent_id, manager)

    def watch(self, agent_id: str, manager: TaskManager) -> None:
        """Report the tasks of one more agent."""
        manager.watch(partial(self._changed, agent_id))

    def close(self) -> None:
        """End the feed and its responses."""
        self._feed.close()

    def routes(self) -> Sequence[web.RouteDef]:
        return (
            web.get("/monitor/agents", with_scope("admin", self._agents)),
            web.get("/monitor/tasks", with_scope("admin", self._tasks)),
            web.get("/monitor/events", with_scope("read", self._events)),
            web.get("/nodes", with_scope("admin", self._nodes)),
        )

    async def _agents(self, request: web.Request) -> web.Response:
        listed = []
        for agent_id, manager in self._managers.items():
            page = await self._store.list(TaskQuery(agents=(agent_id,)))
            states = Counter(head.state.value for head in page.heads)
            listed.append({"id": agent_id, **manager.figures(), "tasks": dict(states)})
        return web.json_response({"agents": listed, "sessions": dict(self._sessions())})

    async def _tasks(self, request: web.Request) -> web.Response:
        """Filters: `agent`, `state` (in the spelling of 0.3), `contextId`, `owner` (`self`: the
        principal of the request), and with a shared store `node`, the name of a server."""
        wanted = request.query
        states = {state.value for state in TaskState}
        if wanted.get("state") and wanted["state"] not in states:
            text = f"state must be one of {', '.join(sorted(states))}"
            return web.json_response({"error": text}, status=400)
        owner = request[PRINCIPAL].id if wanted.get("owner") == "self" else wanted.get("owner")
        node = wanted.get("node")
        listed = []
        names = {one.id: one.name for one in await self._servers()}
        for agent_id, manager in self._managers.items():
            if wanted.get("agent") not in (None, agent_id):
                continue
            query = TaskQuery(
                agents=(agent_id,),
                context_id=wanted.get("contextId"),
                state=TaskState(wanted["state"]) if wanted.get("state") else None,
            )
            for head in (await self._store.list(query)).heads:
                name = names.get(head.node or "")
                if owner not in (None, head.context.owner) or node not in (None, name):
                    continue
                task = await self._found(manager, head)
                if task:
                    placed: Change = {"node": name} if self._cluster else {}
                    _, placed["cwd"] = manager.beginning(task) or (None, None)
                    listed.append({"agent": agent_id, **placed, **_summary(task)})
        return web.json_response({"tasks": listed})

    async def _found(self, manager: TaskManager, head: TaskHead) -> Task | None:
        """The task without its content. One that does not wait for anything has no more than its
        head, so that a task of another server need not be read."""
        if self._cluster and head.state not in _WAITS:
            return headed(head)
        handle = await manager.find(head.task_id)
        return handle.task if handle else None

    async def _nodes(self, request: web.Request) -> web.Response:
        """The servers that share the store; none if it is not shared. `state`: `up`, `draining`,
        `away` (it shows no sign of life) or `fenced` (other servers took it for lost). `beatAge`:
        milliseconds since this server has seen its newest sign of life; null before that."""
        listed = [
            {
                "id": one.id,
                "name": one.name,
                "self": one.id == self._store.node,
                "state": one.state,
                "beatAge": None if one.age is None else round(1000 * one.age),
                "version": one.version,
                "seen": timestamp(moment(one.seen)),
                "working": one.working,
            }
            for one in await self._servers()
        ]
        return web.json_response({"nodes": listed})

    async def discovered(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """The servers of each agent, by its id; empty if the store is not shared."""
        found: dict[str, list[Mapping[str, Any]]] = {}
        for one in await self._servers():
            if one.state != "up" or one.silent > self._max_age:
                continue
            instance = one.name.removeprefix(f"{one.role}:")
            seen = timestamp(moment(one.seen))
            facts = {"role": one.role, "instance_id": instance, "last_seen": seen}
            for agent in one.agents:
                offer = {"slots": one.slots, **one.offers.get(agent, {})}
                found.setdefault(agent, []).append(
                    {"name": one.name, **facts, "capabilities": offer}
                )
        return found

    async def _servers(self) -> Sequence[NodeStatus]:
        return await self._cluster.nodes() if self._cluster else ()

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events, from now on or after `Last-Event-ID`. Without the scope `admin`:
        those of the principal's own tasks."""
        principal: Principal = request[PRINCIPAL]
        seen = sse.last_event_id(request)
        after = self._feed.last if seen is None else seen
        return await sse.respond_feed(
            request,
            self._feed,
            after,
            lambda change: principal.sees(change["owner"]),
            held=partial(self._revocations.hold, principal),
            encode_error=encode_stream_error,
        )

    def _changed(self, agent_id: str, handle: TaskHandle, updates: Sequence[StatusUpdate]) -> None:
        about = {"agent": agent_id, **_summary(handle.task)}
        self._feed.append(
            [
                {**about, "state": update.state.value, "changed": timestamp(update.time)}
                for update in updates
            ]
        )


def with_scope(scope: Scope, handler: Handler) -> Handler:
    """Requires the scope; `admin` for responses with the tasks of all principals."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if not request[PRINCIPAL].may(scope):
            text = f"These credentials do not allow this: the scope '{scope}' is missing."
            return web.json_response({"error": text}, status=403)
        try:
            return await handler(request)
        except Unavailable as error:  # the store cannot be read
            response = respond_error(request, encode_error(error))
            response.headers.update(retry_after(error))
            return response

    return handle


def _summary(task: Task) -> Change:
    """The members of a task without its content, which belongs to its client."""
    return {
        "id": task.id,
        "contextId": task.context_id,
        "owner": task.owner,
        "state": task.state.value,
        "created": timestamp(task.created),
        "changed": timestamp(task.status_time),
        "waitsFor": task.question.kind if task.question else "slot" if task.queued else None,
        "queued": asdict(task.queued) if task.queued else None,
        "silentSince": silent_since(task),
    }
