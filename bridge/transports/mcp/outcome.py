"""The outcome of a task in pieces: the tool `result` and the resources `bridge://tasks/…`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from bridge.a2a.codec import timestamp
from bridge.a2a.requests import ListParams
from bridge.auth.principal import Principal
from bridge.errors import InvalidParams, TaskNotFound
from bridge.runtime.router import Router
from bridge.store.handle import durable
from bridge.task.message import Message
from bridge.task.state import Task
from bridge.task.text import one_line
from bridge.transports.json_body import in_thread, is_large
from bridge.transports.mcp.announced import MIME, uri_of
from bridge.transports.mcp.artifacts import artifact_text, named
from bridge.transports.mcp.news import log_lines
from bridge.transports.mcp.results import (
    PIECE,
    Json,
    answer_of,
    cut,
    last_words,
    reason_of,
    result,
    state_name,
)

MOST = 256 * 1024  # bytes of a resource
NEWEST = 20  # tasks in the list of resources
SUMMARY_WORDS = 2_000  # characters of the last words in a summary
PARTS = ("text", "log")
"""The parts that are resources, too."""
_URI = re.compile(r"bridge://tasks/([^/]{1,128})/(text|log)")


async def read_part(
    router: Router, task_id: str, part: str, principal: Principal, *, artifact: str | None = None
) -> str:
    """A part of the outcome; `artifact` names one for that part. Raises RequestError."""
    handle = await router.get(task_id, principal)
    await durable(None, handle)
    task = await handle.whole()
    if not is_large(handle.size, task):
        return _part(task, part, handle.agent, artifact)
    return await in_thread(_part, task.snapshot(), part, handle.agent, artifact)


def _part(task: Task, part: str, agent: str, artifact: str | None) -> str:
    match part:
        case "text":
            return answer_of(task)
        case "log":
            return "\n".join(log_lines(task))
        case "artifact":
            return artifact_text(task, artifact)
    return _summary(task, agent)


def _summary(task: Task, agent: str) -> str:
    seconds = (task.status_time - task.created).total_seconds()
    lines = [
        f"State: {state_name(task.state)}",
        f"Agent: {agent}",
        f"Prompt: {title_of(task)}",
        f"Seconds: {seconds:.1f}",
        f"Characters of text: {len(answer_of(task))}",
    ]
    if reason := reason_of(task):
        lines.append(f"Reason: {reason}")
    lines.append(f"Artifacts: {', '.join(named(task)) or 'none'}")
    words = last_words(task)
    return "\n".join([*lines, cut(words, SUMMARY_WORDS)] if words else lines)


def title_of(task: Task) -> str:
    """The first line of the prompt."""
    prompt = next((one for one in task.history if isinstance(one, Message)), None)
    text = prompt.text.strip() if prompt else ""
    return one_line(text.partition("\n")[0])


async def read_piece(router: Router, arguments: Mapping[str, Any], principal: Principal) -> Json:
    """The result of the tool `result`. Offsets and totals count characters."""
    task_id, part = arguments["task_id"], arguments["part"]
    offset, limit = arguments.get("offset", 0), arguments.get("limit", PIECE)
    artifact = arguments.get("artifact")
    whole = await read_part(router, task_id, part, principal, artifact=artifact)
    if offset > len(whole):
        raise InvalidParams(f"offset is above the total of {len(whole)} characters.")
    content = cut(whole[offset : offset + limit + 1], limit)
    shown: Json = {
        "task_id": task_id,
        "part": part,
        "content": content,
        "offset": offset,
        "total": len(whole),
    }
    end = offset + len(content)
    if end == len(whole):
        return result(shown, content)
    shown["next_offset"] = end
    if part not in PARTS:
        return result(shown, content)
    shown["uri"] = uri_of(task_id, part)
    found = result(shown, content)
    link = {"type": "resource_link", "uri": shown["uri"], "name": part, "mimeType": MIME}
    found["content"].append(link)
    return found


async def read_resource(router: Router, uri: str, principal: Principal) -> Json:
    """The contents of a resource. Raises TaskNotFound for an unknown one."""
    found = _URI.fullmatch(uri)
    if found is None:
        raise TaskNotFound("There are only bridge://tasks/{id}/text and bridge://tasks/{id}/log.")
    text = await read_part(router, found[1], found[2], principal)
    text = text[:MOST].encode("utf-8", "replace")[:MOST].decode("utf-8", "ignore")
    contents = [{"uri": uri, "mimeType": MIME, "text": text}]
    return {"resultType": "complete", "contents": contents}


async def list_resources(router: Router, principal: Principal) -> Sequence[Json]:
    """The answers of the newest own tasks that have ended."""
    found: list[Json] = []
    token = ""
    while len(found) < NEWEST:
        handles, page = await router.list(ListParams(page_size=50, page_token=token), principal)
        for handle in handles:
            if handle.task.state.terminal and handle.task.owner == principal.id:
                changed = timestamp(handle.task.status_time)
                title = title_of(await handle.listed())
                found.append(
                    {
                        "uri": uri_of(handle.task.id, "text"),
                        "name": f"{handle.task.id} text",
                        "title": title,
                        "mimeType": MIME,
                        "annotations": {"lastModified": changed},
                    }
                )
        token = page.next_token
        if not token:
            break
    return found[:NEWEST]
