"""The servers that share a database, for operators."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence

from aiohttp import web

from bridge.a2a.codec import timestamp
from bridge.errors import Unavailable
from bridge.server.monitor import with_scope
from bridge.store.protocol import Store
from bridge.store.serialization import moment
from bridge.transports.negotiation import retry_after
from bridge.transports.rest import encode_error, respond_error


class Nodes:
    """Shows the servers of `store`: none if no other server can use it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def routes(self) -> Sequence[web.RouteDef]:
        return (web.get("/nodes", with_scope("admin", self._nodes)),)

    async def _nodes(self, request: web.Request) -> web.Response:
        """`state` is `up` for a server that is connected to the database now, else `away`."""
        try:
            found = await self._store.nodes()
        except Unavailable as error:
            response = respond_error(request, encode_error(error))
            response.headers.update(retry_after(error))
            return response
        listed = [
            {
                "id": one.id,
                "name": one.name,
                "self": one.id == self._store.node,
                "state": "up" if one.runs else "away",
                "version": one.version,
                "seen": timestamp(moment(one.seen)),
                "working": one.working,
            }
            for one in found
        ]
        return web.json_response({"nodes": listed})


def default_name(agent: str, node: str) -> str:
    """The name of a server without BRIDGE_NODE. `node`: its id."""
    host = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:50]
    return f"{agent}:{host}-{node[:6]}"
