"""The tasks of one context: those so far, and new ones as they begin, of this and other clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from urllib.parse import quote

from bridge.client import bindings
from bridge.client.agent import RemoteAgent, page_of
from bridge.client.failure import ClientError, ConnectionLost
from bridge.client.shapes import TERMINAL, Json, state_of
from bridge.errors.program import command

_MOST_TASKS = 100  # of a page
_RETRY = 1.0  # seconds until a broken feed is opened again
_NO_LIST = ("UnsupportedOperationError", "MethodNotFoundError")


class Conversation:
    """`context_id` None: the first message begins the context. `owners`: the principals of tasks,
    as far as known."""

    def __init__(
        self, agent: RemoteAgent, context_id: str | None, poll_interval: float = 2.0
    ) -> None:
        self.context_id = context_id
        self.owners: dict[str, str] = {}
        self._agent = agent
        self._poll_interval = poll_interval
        self._known: set[str] = set()
        self._begun: asyncio.Queue[str] = asyncio.Queue()

    async def past(self) -> list[Json]:
        """The tasks that have ended, the oldest first. begun() then returns the others. Raises
        ClientError."""
        if self.context_id is None:
            return []
        tasks = await list_tasks(self._agent, self.context_id)
        await self._learn_owners(self.context_id)
        for task in tasks:
            if state_of(task) in TERMINAL:
                self._known.add(task["id"])
            else:
                self.add(task["id"])
        return [task for task in tasks if state_of(task) in TERMINAL]

    async def begun(self) -> str:
        """The id of the next task that this client has not followed yet."""
        return await self._begun.get()

    def add(self, task_id: str, owner: str | None = None) -> bool:
        """Add a task. Returns whether it was unknown."""
        if owner:
            self.owners[task_id] = owner
        new = task_id not in self._known
        if new:
            self._known.add(task_id)
            self._begun.put_nowait(task_id)
        return new

    async def watch(self) -> None:
        """Add the new tasks of other clients as long as this runs: by the feed of a bridge, else by
        polling. Raises ClientError if the server refuses both."""
        if self._agent.card.is_bridge:
            try:
                await self._read_feed()
            except ClientError:  # an older bridge, or a token without the scope
                pass
        while True:
            await asyncio.sleep(self._poll_interval)
            if self.context_id is None:
                continue
            try:
                for task in await list_tasks(self._agent, self.context_id):
                    self.add(task["id"])
            except ConnectionLost:
                continue

    async def _read_feed(self) -> None:
        after: str | None = None
        while True:
            try:
                async with aclosing(self._agent.feed(self._page("events"), after)) as changes:
                    async for event_id, change in changes:
                        after = event_id or after
                        if self.context_id and change.get("contextId") == self.context_id:
                            self.add(str(change.get("id")), change.get("owner"))
            except ConnectionLost:
                pass
            await asyncio.sleep(_RETRY)

    async def _learn_owners(self, context_id: str) -> None:
        if not self._agent.card.is_bridge:
            return
        try:
            found = await self._agent.get(self._page(f"tasks?contextId={quote(context_id)}"))
        except ClientError:  # the token has not the scope `admin`
            return
        self.owners |= {one["id"]: one["owner"] for one in found["tasks"] if one.get("owner")}

    def _page(self, name: str) -> str:
        agent = self._agent
        base = agent.server.url if agent.server else agent.card.url or agent.binding.url
        return page_of(base, f"/monitor/{name}")


async def find(agent: RemoteAgent, name: str) -> tuple[str, Json]:
    """The context with the id `name`, and its newest task; or the task with that id, and its
    context. Raises ClientError."""
    task = await _task(agent, name)
    if task:
        return str(task.get("contextId")), task
    tasks = await list_tasks(agent, name)
    if not tasks:
        raise _unknown(name)
    return name, tasks[-1]


async def find_all(agent: RemoteAgent, name: str) -> tuple[str, list[str]]:
    """The context with the id `name`, and the ids of all its tasks in the order in which they run;
    or the context of the task with that id, and that id. Raises ClientError."""
    task = await _task(agent, name)
    if task:
        return str(task.get("contextId")), [task["id"]]
    found = {one["id"]: one async for page in _pages_of(agent, name) for one in page}
    if not found:
        raise _unknown(name)
    return name, [one["id"] for one in _in_order(name, [*found.values()])]


async def _task(agent: RemoteAgent, task_id: str) -> Json | None:
    """The task without its history; None for an unknown one."""
    try:
        task: Json = await agent.call(bindings.GET, {"id": task_id, "historyLength": 0})
    except ClientError as error:
        if error.code != "TaskNotFoundError":
            raise
        return None
    return task


def _unknown(name: str) -> ClientError:
    text = f"{name} is neither a task nor a context with tasks"
    return ClientError("TaskNotFoundError", text, hint=command("task", "list"))


async def list_tasks(agent: RemoteAgent, context_id: str) -> list[Json]:
    """The newest tasks of a context in the order in which they run. Empty if the server lists none.
    Raises ClientError."""
    async with aclosing(_pages_of(agent, context_id)) as found:
        return _in_order(context_id, await anext(found, []))


async def _pages_of(agent: RemoteAgent, context_id: str) -> AsyncGenerator[list[Json]]:
    """The tasks of a context, the newest first; none if the server lists no tasks."""
    try:
        async with aclosing(pages(agent, {"contextId": context_id})) as found:
            async for page in found:
                yield page
    except ClientError as error:
        if error.code not in _NO_LIST:
            raise


async def pages(agent: RemoteAgent, params: Json) -> AsyncGenerator[list[Json]]:
    """The pages of a list of tasks, without their histories. Raises ClientError."""
    params = {"pageSize": _MOST_TASKS, "historyLength": 0, **params}
    while True:
        page = await agent.call(bindings.LIST, params)
        yield page.get("tasks") or []
        if not page.get("nextPageToken"):
            return
        params["pageToken"] = page["nextPageToken"]


def _in_order(context_id: str, newest_first: Sequence[Json]) -> list[Json]:
    """The tasks of the context, in the order in which they run."""
    own = [one for one in newest_first if one.get("contextId") == context_id]
    return sorted(reversed(own), key=_turn)


def _turn(task: Json) -> int:
    """Ended tasks come before the running one, and that before those that wait for it."""
    if state_of(task) in TERMINAL:
        return 0
    return 2 if state_of(task) == "TASK_STATE_SUBMITTED" else 1
