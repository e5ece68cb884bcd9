"""Selects the agent for a message or a task.

A message goes to the agent that has its task or its context. A message that begins a conversation
may name in `metadata.bridge` an `agent`, a `skill` of the card (also as `metadata.skillId`) or a
`profile`. Otherwise a keyword of a profile selects the agent. Without a match the message goes to
the default agent (docs/extension.md).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from bridge.a2a.codec import Page
from bridge.a2a.pagination import decode_position, encode_position
from bridge.a2a.requests import ListParams, SendParams
from bridge.auth.principal import Principal, Scope, authorize
from bridge.errors import InvalidParams
from bridge.runtime.audience import Listener
from bridge.runtime.extension import Profile, known_value
from bridge.runtime.sending.send import Sent
from bridge.runtime.tasks import TaskManager
from bridge.store.changes import ContextKey
from bridge.store.cluster import Cluster
from bridge.store.handle import TaskHandle
from bridge.store.protocol import Store, TaskQuery
from bridge.store.serialization import micros


class Router:
    """The agents behind one address, by id; the first is the default. `skills` maps each skill to
    its agent. The keywords of `profiles` are tried in their order. `cluster`: the other servers of
    the store. `withdrawn`: agents of an earlier version that no version has any more."""

    def __init__(
        self,
        managers: Mapping[str, TaskManager],
        store: Store,
        skills: Mapping[str, str] | None = None,
        profiles: Mapping[str, Profile] | None = None,
        cluster: Cluster | None = None,
        withdrawn: Sequence[str] = (),
    ) -> None:
        self._cluster = cluster
        self._withdrawn = withdrawn
        self._managers = managers
        self._store = store
        self._skills = skills or {}
        self._profiles = profiles or {}
        self._default = next(iter(managers))
        self.quotas = managers[self._default].quotas

    async def send(self, params: SendParams, principal: Principal) -> Sent:
        """Begin a task, or answer the question of a task. Raises RequestError."""
        agent, profile, named = await self._choose(params, principal)
        model = profile.model if profile else None
        if model and named:
            params = replace(params, metadata=_with_model(params, model))
        elif model:  # a word of the message changes no conversation that has begun
            params = replace(params, model=model)
        return await self._managers[agent].send(params, principal)

    async def get(self, task_id: str, principal: Principal, scope: Scope = "read") -> TaskHandle:
        """The task; the client knows it from now on. Raises Forbidden and TaskNotFound."""
        manager = await self._of(task_id, principal)
        return await manager.get(task_id, principal, scope)

    async def list(
        self, asked: ListParams, principal: Principal
    ) -> tuple[Sequence[TaskHandle], Page]:
        """One page of the tasks that the principal may see. Raises InvalidParams."""
        authorize(principal, "read")
        query = TaskQuery(
            agents=tuple(self._managers),
            owner=None if principal.may("admin") else principal.id,
            context_id=asked.context_id,
            state=asked.state,
            changed_since=micros(asked.changed_since) if asked.changed_since else None,
            after=decode_position(asked.page_token),
            limit=asked.page_size,
        )
        page = await self._store.list(query)
        found = [await self._managers[h.context.agent].find(h.task_id) for h in page.heads]
        shown = [handle for handle in found if handle]
        for handle in shown:
            handle.show()
        return shown, Page(encode_position(page.after), page.total)

    async def cancel(self, task_id: str, principal: Principal) -> TaskHandle:
        manager = await self._of(task_id, principal)
        return await manager.cancel(task_id, principal)

    async def subscribe(self, task_id: str, again: bool, principal: Principal) -> TaskHandle:
        """`again`: the client resumes a broken stream, which may have ended already."""
        manager = await self._of(task_id, principal)
        return await manager.subscribe(task_id, again, principal)

    def listen(self, handle: TaskHandle) -> AbstractContextManager[Listener]:
        """The context in which a client listens to the task; see TaskManager.listen()."""
        return self._managers[handle.agent].listen(handle)

    async def settled(self, sent: Sent) -> None:
        """Wait until the task, after this message, has ended or waits for the client."""
        await self._managers[sent.handle.agent].settled(sent)

    def directory(self, handle: TaskHandle) -> str | None:
        """The working directory of the task, if the server has its context."""
        return self._managers[handle.agent].directory(handle)

    def working(self, marker: str) -> TaskHandle | None:
        """The task of the session whose processes have this marker."""
        found = (one.working(marker) for one in self._managers.values())
        return next(filter(None, found), None)

    def begin(self, handle: TaskHandle, pause: float) -> AsyncIterator[None]:
        """Wait until the kind of the reply (Message or Task) is known; see TaskManager.begin()."""
        return self._managers[handle.agent].begin(handle, pause)

    # --- selection of the agent ------------------------------------------------------------------

    async def _of(self, task_id: str, principal: Principal) -> TaskManager:
        """The manager of the task. The default agent's manager rejects an unknown task."""
        agent = None
        if len(self._managers) > 1:
            agent = await self._having(principal, task_id, None)
        return self._managers[agent or self._default]

    async def _having(
        self, principal: Principal, task_id: str | None, context_id: str | None
    ) -> str | None:
        """The agent of the task, or else of the context, if the principal may see it."""
        if len(self._managers) == 1:
            return self._default
        if task_id is not None:
            head = await self._store.head(task_id)
            visible = head and principal.sees(head.context.owner)
            agent = head.context.agent if head and visible else None
            return agent if agent in self._managers else None
        for agent, manager in self._managers.items():
            if context_id and manager.has_context(principal.id, context_id):
                return agent
        if context_id and self._cluster:
            for agent in self._managers:
                if await self._cluster.holder(ContextKey(agent, principal.id, context_id)):
                    return agent
        return None

    async def _choose(
        self, params: SendParams, principal: Principal
    ) -> tuple[str, Profile | None, bool]:
        """The agent, the profile of the message or None, and whether the client named the profile.
        Raises InvalidParams."""
        message = params.message
        wishes = _wishes(message.metadata, params.metadata)
        name = wishes.get("profile")
        profile: Profile | None = known_value("profile", name, self._profiles) if name else None
        chosen = self._named(wishes, profile)
        owner = await self._having(principal, message.task_id, message.context_id)
        begun = message.task_id or (len(self._managers) > 1 and owner)
        if not (begun or wishes):
            found = (one for one in self._profiles.values() if one.found_in(message.text))
            profile = next(found, None)
            chosen = profile.agent if profile else None
        if owner and chosen and owner != chosen:
            text = f"this conversation is with {owner}, at this address; begin a new context"
            raise InvalidParams(text, [("metadata.bridge.agent", text)])
        agent = owner or chosen or self._default
        context_id = message.context_id
        if self._withdrawn and context_id and not message.task_id:
            if not self._managers[agent].has_context(principal.id, context_id):
                await self._refuse_withdrawn(principal, context_id)
        return agent, profile, bool(name)

    async def _refuse_withdrawn(self, principal: Principal, context_id: str) -> None:
        """Raise InvalidParams if an agent that was withdrawn had the conversation: another agent
        would begin a new one with this id."""
        query = TaskQuery(agents=self._withdrawn, limit=1)
        if not (await self._store.list(query)).heads:
            self._withdrawn = ()  # the usual case: later messages need no read
            return
        page = await self._store.list(replace(query, owner=principal.id, context_id=context_id))
        for head in page.heads:
            agent = head.context.agent
            text = f"this conversation was with {agent}, which was withdrawn; begin a new context"
            raise InvalidParams(text, [("message.contextId", text)])

    def _named(self, wishes: Mapping[str, str], profile: Profile | None) -> str | None:
        """The agent that the client named directly, or with a skill or profile."""
        if "agent" in wishes:
            known_value("agent", wishes["agent"], self._managers)
            return wishes["agent"]
        if "skill" in wishes:
            agent: str = known_value("skill", wishes["skill"], self._skills)
            return agent
        return profile.agent if profile else None


def _wishes(*metadata: Mapping[str, Any] | None) -> dict[str, str]:
    """The names that the client chose. If several metadata contain one, the first one counts."""
    found: dict[str, str] = {}
    for one in filter(None, reversed(metadata)):
        bridge = one.get("bridge")
        named = {"skill": one.get("skillId"), **(bridge if isinstance(bridge, dict) else {})}
        for name in ("agent", "skill", "profile"):
            if named.get(name) is None:
                continue
            if not isinstance(named[name], str):
                text = f"metadata.bridge.{name}: not a string"
                raise InvalidParams(text, [(f"metadata.bridge.{name}", "not a string")])
            found[name] = named[name]
    return found


def _with_model(params: SendParams, model: str) -> dict[str, Any]:
    """The request's metadata with `model`. A choice of the client, in either metadata, wins."""
    metadata = dict(params.metadata or {})
    bridge = metadata.get("bridge")
    return {**metadata, "bridge": {"model": model, **(bridge if isinstance(bridge, dict) else {})}}


def skills_of(agents: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """The agent of each skill, from the skills of each agent. The id of an agent is also its skill.
    A skill of several agents belongs to the first of them."""
    found = {agent: agent for agent in agents}
    for agent, skills in agents.items():
        for skill in skills:
            found.setdefault(skill, agent)
    return found
