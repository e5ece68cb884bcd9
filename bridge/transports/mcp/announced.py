"""The MCP server in its own words: the answers to a client that only lists it.

The command `mcp` gives them while no server runs, so that a client that lists its servers starts
none. So this module needs neither a server nor a library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from bridge import __version__
from bridge.task.nearest import LONGEST_NAME, nearest

Json = dict[str, Any]
LIST = Path(__file__).with_name("tools.json")
"""The tools, with the common parts of their schemas below `$defs`."""
NAME = "coding-agent-bridge"
EXTENSION = "io.modelcontextprotocol/tasks"
MODERN = "2026-07-28"  # the first revision without sessions
SESSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""The revisions with sessions, the newest one last."""
META = "io.modelcontextprotocol/"
"""The beginning of the names of members of `_meta`."""
# Lists depend on the configuration and on the credentials.
TTL = {
    "server/discover": 60_000,
    "tools/list": 60_000,
    "resources/list": 0,
    "resources/templates/list": 60_000,
    "resources/read": 0,
}
"""Milliseconds for which a client may use an answer again."""
SCOPE: Final = "private"
INVALID_REQUEST, METHOD_NOT_FOUND, UNSUPPORTED_VERSION = -32600, -32601, -32022
_NEED_A_SERVER = ("tools/call", "resources/read", "tasks/get", "tasks/update", "tasks/cancel")
_METHODS = ("initialize", "ping", *TTL, *_NEED_A_SERVER)
_SIMILAR = 0.8  # at least; the names of MCP resemble each other
MIME = "text/plain"
_CAPABILITIES = {
    "tools": {"listChanged": False},
    "resources": {"listChanged": False, "subscribe": False},
}
_INFO = {"name": NAME, "version": __version__}


def uri_of(task_id: str, part: str) -> str:
    return f"bridge://tasks/{task_id}/{part}"


TEMPLATES = [
    {"uriTemplate": uri_of("{id}", part), "name": name, "mimeType": MIME}
    for part, name in (("text", "The answer of a task"), ("log", "The steps of a task"))
]


def load_tools() -> Sequence[Mapping[str, Any]]:
    """The tools in the order of the list, with each `$ref` resolved."""
    document = orjson.loads(LIST.read_bytes())
    found: Sequence[Mapping[str, Any]] = _resolved(document["tools"], document["$defs"])
    return found


def _resolved(value: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_resolved(one, definitions) for one in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return _resolved(definitions[name], definitions)
    return {name: _resolved(member, definitions) for name, member in value.items()}


def not_found(method: str) -> str:
    """The error for an unknown method."""
    hint = nearest(method[:LONGEST_NAME], _METHODS, _SIMILAR)
    return f"Method not found.{hint}" if hint else "Method not found"


def negotiated(initialize: Mapping[str, Any]) -> str:
    """The revision of the session that this request begins."""
    asked = _members(initialize.get("params")).get("protocolVersion")
    return asked if asked in SESSIONS else SESSIONS[-1]


def answer(request: Json, *, in_session: bool) -> Json | None:
    """The response of a server without tasks. None if the request needs a server. `in_session`:
    the client has begun a session."""
    method, meta = request["method"], _members(_members(request.get("params")).get("_meta"))
    revision = meta.get(f"{META}protocolVersion")
    if not isinstance(method, str):
        return _error(request, INVALID_REQUEST, "method must be a string.")
    if revision not in (None, MODERN):
        data = {"supported": [MODERN], "requested": revision}
        return _error(request, UNSUPPORTED_VERSION, "Unsupported protocol version", data)
    if revision is None and not in_session and method != "initialize":
        return _error(request, INVALID_REQUEST, "Bad Request: Missing session ID")
    if method in _NEED_A_SERVER:
        return None
    found = _of_a_session(request) if revision is None else _of_the_modern(method)
    if found is None:
        return _error(request, METHOD_NOT_FOUND, not_found(method), method)
    return {"jsonrpc": "2.0", "id": request["id"], "result": found}


def _of_a_session(request: Json) -> Json | None:
    """The result in a revision with sessions; None for a method that it does not have."""
    if request["method"] == "ping":
        return {}
    if request["method"] == "initialize":
        revision = negotiated(request)
        return {"protocolVersion": revision, "capabilities": _CAPABILITIES, "serverInfo": _INFO}
    return _list(request["method"])


def _of_the_modern(method: str) -> Json | None:
    """The result in the revision without sessions."""
    found = _list(method)
    if method == "server/discover":
        capabilities = {**_CAPABILITIES, "extensions": {EXTENSION: {}}}
        found = {"supportedVersions": [MODERN], "capabilities": capabilities}
    if found is None:
        return None
    hint = {"ttlMs": TTL[method], "cacheScope": SCOPE}
    return {"resultType": "complete", **found, **hint, "_meta": {f"{META}serverInfo": _INFO}}


def _list(method: str) -> Json | None:
    match method:
        case "tools/list":
            return {"tools": load_tools()}
        case "resources/list":
            return {"resources": []}
        case "resources/templates/list":
            return {"resourceTemplates": TEMPLATES}
    return None


def _members(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _error(request: Json, code: int, text: str, data: Any = None) -> Json:
    error = {"code": code, "message": text} | ({} if data is None else {"data": data})
    return {"jsonrpc": "2.0", "id": request["id"], "error": error}
