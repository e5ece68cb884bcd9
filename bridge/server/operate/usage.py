"""The usage of finished tasks: by day, principal, agent and model.

`GET /monitor/usage?since=DATE` requires the scope `admin`. DATE is YYYY-MM-DD in UTC, by default 30
days ago. A task counts at the day of its end, with the model that its CLI reported last. Only tasks
that the store still has count:

    {"since": DATE, "usage": [{"day", "principal", "agent", "model", "tasks",
        "inputTokens", "outputTokens", "cacheReadTokens", "cacheCreationTokens", "totalTokens",
        "costUsd"}]}

`model` is null if the CLI did not report one. A figure that no CLI reported is 0.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from aiohttp import web

from bridge.store.protocol import Store, TaskHead, TaskQuery
from bridge.store.serialization import load_events, micros, moment
from bridge.task.events import Started, Usage

log = logging.getLogger(__name__)

DAYS = timedelta(days=30)
AT_ONCE = 50  # tasks of one read: commits may wait for it
FIGURES = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheCreationTokens", "totalTokens")
COST = "costUsd"

Key = tuple[str, str, str, str | None]
"""Day, principal, agent and model."""


@dataclass(slots=True)
class UsageSum:
    tasks: int = 0
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FIGURES, 0))
    usd: float = 0.0

    def add(self, used: Usage | None) -> None:
        self.tasks += 1
        facts = _figures(used) if used else {}
        for name in FIGURES:
            self.tokens[name] += int(_number(facts.get(name)))
        self.usd += _number(facts.get(COST))


async def usage(store: Store, agents: Iterable[str], request: web.Request) -> web.Response:
    """See above. Raises Unavailable."""
    given = request.query.get("since")
    try:
        since = date.fromisoformat(given) if given else datetime.now(UTC).date() - DAYS
    except ValueError:
        return web.json_response({"error": "since must be a date: YYYY-MM-DD"}, status=400)
    sums = await summed(store, list(agents), since)
    rows = [
        {
            "day": day,
            "principal": principal,
            "agent": agent,
            "model": model,
            "tasks": one.tasks,
            **one.tokens,
            COST: round(one.usd, 6),
        }
        for (day, principal, agent, model), one in sorted(sums.items(), key=_order)
    ]
    return web.json_response({"since": since.isoformat(), "usage": rows})


async def summed(store: Store, agents: Sequence[str], since: date) -> Mapping[Key, UsageSum]:
    """The sums of the tasks that ended on this day or later. Raises Unavailable."""
    begin = micros(datetime.combine(since, time(), UTC))
    page = await store.list(TaskQuery(agents=agents, changed_since=begin))
    heads = {one.task_id: one for one in page.heads if one.state.terminal}
    ids, sums = list(heads), dict[Key, UsageSum]()
    for first in range(0, len(ids), AT_ONCE):
        chosen = ids[first : first + AT_ONCE]
        models, used = _read(await store.reports(chosen))
        for task_id in chosen:
            key = _key(heads[task_id], models.get(task_id))
            sums.setdefault(key, UsageSum()).add(used.get(task_id))
    return sums


def _read(batches: Iterable[tuple[str, bytes]]) -> tuple[dict[str, str], dict[str, Usage]]:
    """The last model and the last usage of each task."""
    models, used = dict[str, str](), dict[str, Usage]()
    for task_id, written in batches:
        try:
            events = load_events(written)
        except (ValueError, LookupError, TypeError):
            log.warning("a damaged task is not in the usage", extra={"task": task_id})
            continue
        for event in events:
            if isinstance(event, Usage):
                used[task_id] = event
            elif isinstance(event, Started) and event.model:
                models[task_id] = event.model
    return models, used


def _key(head: TaskHead, model: str | None) -> Key:
    day = moment(head.changed).date().isoformat()
    return day, head.context.owner, head.context.agent, model


def _order(item: tuple[Key, UsageSum]) -> tuple[str, ...]:
    return tuple(part or "" for part in item[0])


def _figures(used: Usage) -> dict[str, Any]:
    """The figures by the names that clients see; `extra` may have any of them."""
    facts = {
        "inputTokens": used.input_tokens,
        "outputTokens": used.output_tokens,
        "totalTokens": used.total_tokens,
        COST: used.cost_usd,
    }
    return {**facts, **(used.extra or {})}


def _number(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and 0 <= value < 2**53 else 0
