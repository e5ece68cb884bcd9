"""The servers of a store by their roles: a client may choose where a conversation begins."""

from __future__ import annotations

from bridge.runtime.extension import known_value
from bridge.runtime.nodes.commands import Elsewhere
from bridge.store.changes import ContextKey
from bridge.store.cluster import Cluster, Holder, NodeStatus


class Roles:
    """`agent`: the id of the agent of the conversations. `node`: the id of this server."""

    def __init__(self, cluster: Cluster, agent: str, node: str) -> None:
        self._cluster = cluster
        self._agent = agent
        self._node = node

    async def direct(self, key: ContextKey, role: str) -> None:
        """Return if this server shall decide about the message that chooses `role`. Raises
        Elsewhere if another one shall: the one that has the context, or for a new context the one
        with the most free slots of those with the role. Raises InvalidParams for a role that no
        running server has, and Unavailable."""
        holder = await self._cluster.holder(key)
        if holder is None or not holder.runs:
            best = await self._best(role)
            if await self._cluster.assign(key, best.id):
                holder = Holder(best.id, best.name, runs=True)
        if holder and holder.id != self._node:
            raise Elsewhere(key, holder)

    async def _best(self, role: str) -> NodeStatus:
        servers: dict[str, list[NodeStatus]] = {}
        for one in await self._cluster.nodes():
            serves = one.id == self._node or self._agent in one.agents
            if serves and one.slots and one.state == "up":
                servers.setdefault(one.role, []).append(one)
        return max(known_value("role", role, servers), key=self._preference)

    def _preference(self, server: NodeStatus) -> tuple[bool, int]:
        """This server is the nearest one, if it has a free slot."""
        free = server.slots - server.working
        return free > 0 and server.id == self._node, free
