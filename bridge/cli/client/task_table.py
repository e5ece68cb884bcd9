"""The table of tasks: one row for each, those that ask first."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from bridge.client import bindings
from bridge.client.agent import RemoteAgent, page_of
from bridge.client.failure import ClientError
from bridge.client.questions import facts_of, text_of
from bridge.client.shapes import Json, short, state_of
from bridge.client.short_ids import shortened
from bridge.task.facts import usage_of
from bridge.task.text import one_line, visible

GROUPS = ("Needs you", "Running", "Waiting for a slot", "Done", "Failed", "Canceled")
_WORDS = {
    "input-required": "Needs you",
    "auth-required": "Needs you",
    "completed": "Done",
    "failed": "Failed",
    "rejected": "Failed",
    "canceled": "Canceled",
}
_TITLES = ("ID", "STATE", "AGE", "AGENT", "DIRECTORY", "COST", "PROMPT")
_MOST_PROMPTS = 40  # tasks of which the prompt is read: each needs a request
_AT_ONCE = 8  # requests
_HISTORY = 100  # messages that are read to find the first one
_WIDEST = 24  # characters of the name of an agent or a directory


def word_of(found: Json) -> str:
    """The word for the state of a task or of a status update."""
    facts = facts_of((found.get("status") or {}).get("message") or {})
    if facts.get("type") == "queued":
        return "Waiting for a slot"
    return _WORDS.get(short(state_of(found)), "Running")


def ordered(tasks: Iterable[Json]) -> list[Json]:
    """The tasks by their words, in the order of GROUPS."""
    return sorted(tasks, key=lambda task: GROUPS.index(word_of(task)))


@dataclass(slots=True)
class Details:
    """The members of tasks that a list does not have. They are read once for each task."""

    prompts: dict[str, str] = field(default_factory=dict)
    monitored: Mapping[str, Json] = field(default_factory=dict)

    async def read(self, agent: RemoteAgent, tasks: Sequence[Json]) -> None:
        """Read the details of the tasks, as far as the server and its token allow it."""
        new = [task["id"] for task in tasks[:_MOST_PROMPTS] if task["id"] not in self.prompts]
        for start in range(0, len(new), _AT_ONCE):
            some = new[start : start + _AT_ONCE]
            found = await asyncio.gather(*(_prompt(agent, one) for one in some))
            self.prompts |= dict(zip(some, found, strict=True))
        if agent.card.is_bridge and any(task["id"] not in self.monitored for task in tasks):
            self.monitored = await _monitored(agent)


async def _prompt(agent: RemoteAgent, task_id: str) -> str:
    """The first line of the first message of a user."""
    try:
        task = await agent.call(bindings.GET, {"id": task_id, "historyLength": _HISTORY})
    except ClientError:  # the task is gone
        return ""
    said = (one for one in task.get("history") or () if one.get("role") == "ROLE_USER")
    first: Json = next(said, {})
    text = text_of(first.get("parts") or ()).strip()
    return one_line(text.partition("\n")[0])


async def _monitored(agent: RemoteAgent) -> Mapping[str, Json]:
    """The agent, the directory and the begin of tasks by their ids; a token may not see them."""
    base = agent.server.url if agent.server else agent.card.url or agent.binding.url
    try:
        found = await agent.get(page_of(base, "/monitor/tasks"))
    except ClientError:
        return {}
    return {one["id"]: one for one in found["tasks"]}


def table(
    tasks: Sequence[Json], details: Details, now: datetime, width: int | None = None
) -> list[str]:
    """The title and a row for each task; nothing without tasks. `width`: the rows are cut there. A
    column without values is left out."""
    if not tasks:
        return []
    ids = shortened([str(task.get("id")) for task in tasks])
    rows = [_cells(task, ids, details, now) for task in tasks]
    used = [place for place in range(len(_TITLES)) if any(row[place] for row in rows)]
    shown = [[row[place] for place in used] for row in (_TITLES, *rows)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = [
        "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip()
        for row in shown
    ]
    return [
        line if width is None or len(line) <= width else f"{line[: width - 1]}…" for line in lines
    ]


def _cells(task: Json, ids: Mapping[str, str], details: Details, now: datetime) -> tuple[str, ...]:
    identity = str(task.get("id"))
    known = details.monitored.get(identity, {})
    usage = (task.get("metadata") or {}).get("usage")
    cost = usage_of(usage).cost_usd if isinstance(usage, dict) else None
    begun = known.get("created") or (task.get("status") or {}).get("timestamp")
    return (
        ids[identity],
        word_of(task).removesuffix(" for a slot"),
        age(begun, now),
        visible(str(known.get("agent") or ""))[:_WIDEST],
        _directory(str(known.get("cwd") or "")),
        "" if cost is None else money(cost),
        details.prompts.get(identity, ""),
    )


def money(cost: float) -> str:
    """`$0.0032`, `$1.50`."""
    return f"${cost:.2f}" if cost >= 0.1 or not cost else f"${cost:.4f}"


def age(since: object, now: datetime) -> str:
    """`40s`, `5m`, `3h`, `2d`."""
    try:
        seconds = int((now - datetime.fromisoformat(str(since))).total_seconds())
    except (ValueError, TypeError):
        return ""
    units = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
    unit, size = next((one for one in units if seconds >= one[1]), units[-1])
    return f"{max(seconds, 0) // size}{unit}"


def _directory(path: str) -> str:
    home = os.path.expanduser("~")
    shown = visible(f"~{path.removeprefix(home)}" if path.startswith(f"{home}/") else path)
    return shown if len(shown) <= _WIDEST else f"…{shown[1 - _WIDEST :]}"


def today() -> datetime:
    return datetime.now(UTC)
