"""Ids that a person has shortened: the beginning of an id names it, if no other one begins so."""

from __future__ import annotations

import re
from collections.abc import Collection

from bridge.client import bindings
from bridge.client.agent import RemoteAgent
from bridge.client.failure import ClientError, usage
from bridge.client.shapes import Json

SHORT = 8  # characters of an id in a list, or more if they are not unique
_BEGUN = re.compile(r"[0-9a-f][0-9a-f-]{3,34}")
_MOST_PAGES = 20
_PAGE = 100  # tasks


async def whole_id(agent: RemoteAgent, begun: str, *, members: Collection[str]) -> str:
    """The id that begins with `begun`, of the listed tasks, in one of their `members` (`id`,
    `contextId`); else `begun` itself. Raises ClientError if several ids begin so."""
    if not _BEGUN.fullmatch(begun):
        return begun
    found: set[str] = set()
    params: Json = {"pageSize": _PAGE, "historyLength": 0}
    for _ in range(_MOST_PAGES):
        try:
            page = await agent.call(bindings.LIST, params)
        except ClientError:  # the server lists no tasks, or refuses: the command itself will tell
            return begun
        ids = {str(task.get(name)) for task in page.get("tasks") or () for name in members}
        found |= {one for one in ids if one.startswith(begun)}
        if begun in found or not page.get("nextPageToken"):
            break
        params["pageToken"] = page["nextPageToken"]
    if begun in found or not found:
        return begun
    if len(found) > 1:
        raise usage(f"several ids begin with {begun}: {', '.join(sorted(found)[:5])}")
    return found.pop()


def shortened(ids: Collection[str]) -> dict[str, str]:
    """The short form of each id."""
    length = SHORT
    while length < 36 and len({one[:length] for one in ids}) < len(set(ids)):
        length += 4
    return {one: one[:length] for one in ids}
