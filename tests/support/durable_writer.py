"""A program that writes numbered things down, says which of them are durable, and is killed: for
the tests that cut the power. What is written is a function of its number, so that what is there
afterwards can be told to be the first so many of them, or not.

`python -m tests.support.durable_writer` does what each line of its stdin says (Order, as JSON) in
a child of its own, one after the other: forked, so that nothing has to be imported again. A child
says `pid NUMBER`, `acked NUMBER`…, and `failed REASON` or `wrong REASON` if it cannot go on;
`dead` is said for it once it is.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from bridge.adapter import SessionStart
from bridge.errors import BridgeError
from bridge.runtime.recorder import Recorder
from bridge.server.state_dir import open_state
from bridge.store.changes import (
    Change,
    ContextKey,
    ContextSaved,
    MessageAccepted,
    MessageKey,
    PushAdvanced,
    PushConfig,
    PushFailed,
    PushSaved,
    TaskCreated,
    TaskRemoved,
)
from bridge.store.handle import TaskHandle, TaskHandles
from bridge.store.protocol import Retention, TaskQuery
from bridge.store.serialization import dump, load_events
from bridge.store.sqlite.store import SqliteStore
from bridge.task.events import Done, Event, Text
from bridge.task.message import Message, Role, TextPart
from bridge.task.state import Task
from bridge.telemetry.audit import NO_AUDIT

LIVES = 60  # seconds at most, whatever becomes of the test
STEPS = 25  # things that are written about a task: that it is there, events, its end
KEPT = 2  # finished tasks
AGENT = "agent"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
Acked = Callable[[int], None]
State = Mapping[str, Any]
"""What is there of each task that is there."""


@dataclass(frozen=True, slots=True)
class Order:
    """Continue with number `first` in `folder`, at a pace that `seed` sets. `synchronous`: the mode
    of SQLite, if it differs from the bridge's."""

    kind: str
    folder: str
    first: int
    seed: int
    synchronous: str = ""


def task_id(block: int) -> str:
    return f"task-{block}"


@cache
def tail(number: int) -> str:
    """Words of any length, from a part of a page to several pages."""
    return f"{number} " + "x" * random.Random(number).choice((10, 300, 3000, 15000))


def blocks(number: int) -> range:
    """The tasks that are there after all things up to `number`."""
    newest, step = divmod(number, STEPS)
    last = step == STEPS - 1  # which removes the oldest
    return range(max(0, newest - KEPT + last), newest + 1)


def survived(state: State, expected: Callable[[int], State]) -> int:
    """The number up to which all rows exist; -1 without a row. Raises AssertionError if the rows
    are not the first ones without a gap."""
    if not state:
        return -1
    newest = max(int(identity.removeprefix("task-")) for identity in state)
    for number in reversed(range(newest * STEPS, (newest + 1) * STEPS)):
        if state == expected(number):
            return number
    raise AssertionError(f"this is no prefix of what was written: {state!r:.2000}")


# --- tasks ---------------------------------------------------------------------------------------


def event(number: int) -> Event:
    return Done() if number % STEPS == STEPS - 2 else Text(tail(number))


def prompt(block: int) -> Message:
    return Message(f"message-{block}", Role.USER, (TextPart(tail(block)),))


def expected_tasks(number: int) -> State:
    """Each with its prompt, its events, and whether its message is known to have been taken."""
    return {
        task_id(block): (
            prompt(block),
            [
                event(one)
                for one in range(block * STEPS + 1, (block + 1) * STEPS - 1)
                if one <= number
            ],
            True,
        )
        for block in blocks(number)
        if number >= 0
    }


def _key(block: int) -> MessageKey:
    return MessageKey(AGENT, "local", f"message-{block}", b"digest")


async def read_tasks(store: SqliteStore) -> State:
    """As a server does that starts; and the events that it replays."""
    tasks = TaskHandles(AGENT, store)
    await tasks.restore()
    state = {}
    for head in (await store.list(TaskQuery(agents=(AGENT,)))).heads:
        identity, events, after = head.task_id, list[Event](), 0
        while batches := await store.read(identity, after):
            events += [one for batch in batches for one in load_events(batch.events)]
            after = batches[-1].number
        known = await store.message(_key(int(identity.removeprefix("task-"))))
        handle = await tasks.find(identity)
        assert handle
        taken = known is not None and known.task_id == identity
        state[identity] = ((await handle.whole()).history[0], events, taken)
    return state


class Pace:
    """The number of rows without a reported commit."""

    def __init__(self, seed: int, acked: Acked, first: int) -> None:
        self._random = random.Random(seed)
        self._acked = acked
        self._newest = first - 1
        self._changed = asyncio.Event()

    def then(self, number: int) -> Callable[[object], None]:
        def durable(error: object) -> None:
            assert error is None
            self._acked(number)
            self._newest = number
            self._changed.set()

        return durable

    async def __call__(self, number: int) -> None:
        most = self._random.choice((0, 0, 3, 10))
        while number - self._newest > most:
            self._changed.clear()
            await self._changed.wait()


async def write_tasks(order: Order, acked: Acked) -> None:
    store = SqliteStore(Path(order.folder) / "tasks.db")
    await store.open()
    if order.synchronous:
        await store._journal.read(f"PRAGMA synchronous = {order.synchronous}")
    assert await read_tasks(store) == expected_tasks(order.first - 1), (
        "something else is on the disk"
    )
    tasks = TaskHandles(AGENT, store)
    await tasks.restore()
    pace = Pace(order.seed, acked, order.first)

    def nothing(*told: object) -> None: ...

    recorder = Recorder(tasks, NO_AUDIT, on_status=nothing, on_end=nothing, on_lost=nothing)
    for number in count(order.first):
        block, step = divmod(number, STEPS)
        then = pace.then(number)
        if step == 0:
            accepted = MessageAccepted(_key(block), task_id(block))
            handle = TaskHandle(Task(task_id(block), "context", NOW))
            recorder.begin(handle, prompt(block), [accepted])
            store.append((), fence=None, then=then)
        elif step == STEPS - 1:
            await store.flush()  # the end is expired only after its commit
            expired = await store.expired(Retention(AGENT, tasks=KEPT), 0)
            store.append([TaskRemoved(one) for one in expired], fence=None)
            store.append((), fence=None, then=then)
        else:
            found = await tasks.find(task_id(block))
            assert found
            recorder.record(found, [event(number)])
            store.append((), fence=None, then=then)
        await pace(number)


# --- push notifications --------------------------------------------------------------------------


def config(block: int) -> PushConfig:
    url = f"https://example.com/{block}"
    first = block * STEPS
    return PushConfig(task_id(block), "config", url, "1.0", token=tail(block), cursor=first)


def expected_push(number: int) -> State:
    """Each with its config at its cursor, and its dead letters: every second notification."""
    state: dict[str, Any] = {}
    for block in blocks(number) if number >= 0 else ():
        last = min(number, (block + 1) * STEPS - 2)
        dead = [_failed(one) for one in range(block * STEPS + 1, last + 1) if one % 2]
        state[task_id(block)] = ([replace(config(block), cursor=last)], dead)
    return state


def _failed(number: int) -> PushFailed:
    return PushFailed(task_id(number // STEPS), "config", number, 1, tail(number), number)


async def read_push(store: SqliteStore) -> State:
    return {
        one.task_id: (await store.push_configs(one.task_id), await store.push_failures(one.task_id))
        for one in await store.push_configs()
    }


async def write_push(order: Order, acked: Acked) -> None:
    store = SqliteStore(Path(order.folder) / "tasks.db")
    await store.open()
    if order.synchronous:
        await store._journal.read(f"PRAGMA synchronous = {order.synchronous}")
    assert await read_push(store) == expected_push(order.first - 1), "something else is on the disk"
    pace = Pace(order.seed, acked, order.first)
    for number in count(order.first):
        block, step = divmod(number, STEPS)
        changes: list[Change] = [PushAdvanced(task_id(block), "config", number)]
        if step == 0:
            key = ContextKey(AGENT, "local", "context")
            begun = TaskCreated(task_id(block), key, 0, dump(prompt(block)))
            changes = [begun, PushSaved(config(block))]
        elif step == STEPS - 1:
            changes = [TaskRemoved(task_id(block - KEPT))]
        elif number % 2:
            changes.append(_failed(number))
        store.append(changes, fence=None, then=pace.then(number))
        await pace(number)


# --- a folder that is new ------------------------------------------------------------------------


async def write_state(order: Order, acked: Acked) -> None:
    """Contexts, in a folder that is made for them."""
    state = await open_state(Path(order.folder))
    start = dump(SessionStart("/", "session"))
    for number in count(order.first):
        key = ContextKey(AGENT, "local", f"context-{number}")
        state.store.append([ContextSaved(key, start)], fence=None)
        await state.store.flush()
        acked(number)


# --- the process ---------------------------------------------------------------------------------

WRITERS = {"tasks": write_tasks, "push": write_push, "state": write_state}


def _say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def _write(order: Order) -> None:
    """Until it is killed."""
    signal.alarm(LIVES)
    _say("pid", os.getpid())
    try:
        asyncio.run(WRITERS[order.kind](order, lambda number: _say("acked", number)))
    except (BridgeError, OSError, sqlite3.Error) as error:  # as is right when the power is off
        _say("failed", repr(error))
    except BaseException as error:
        _say("wrong", repr(error))
    while True:
        signal.pause()


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _write(Order(**json.loads(line)))
        os.waitpid(child, 0)
        _say("dead")


if __name__ == "__main__":
    main()
