"""CPU microseconds of the recorder for one event, and of the server for one GetTask.

Run `python -m scripts.benchmarks.costs`, in turns with another revision on a busy machine. The
rounds alternate between the measures; the smallest result counts.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

from bridge.runtime.recorder import Recorder
from bridge.store.changes import ContextKey
from bridge.store.handle import TaskHandle, TaskHandles
from bridge.store.memory import MemoryStore
from bridge.store.protocol import Store
from bridge.store.sqlite.store import SqliteStore
from bridge.task.events import Text
from bridge.task.message import Message, Role, TextPart
from bridge.task.state import Task
from bridge.telemetry.audit import NO_AUDIT
from bridge.telemetry.gc_tuning import collect_seldom
from scripts.benchmarks.client import Loop
from scripts.benchmarks.measures import one_stream
from scripts.benchmarks.servers import Server, Target, make_agent

ROUNDS = 15
EVENTS = 2_000  # of a round
SECONDS = 0.5  # of a round of GetTask
TEXT = Text("hello world, some text. ")


async def recorded(store: Store) -> Callable[[], Awaitable[float]]:
    """A round of the recorder with this store."""
    await store.open()
    tasks = TaskHandles("agent", store)
    recorder = Recorder(
        tasks,
        NO_AUDIT,
        on_status=lambda task, updates: None,
        on_end=lambda task: None,
        on_lost=lambda task: None,
    )
    handle = TaskHandle(Task("task", "context", datetime.now(UTC)))
    handle.fence = await store.claim(ContextKey("agent", "local", "context"), "node", 3600.0)
    recorder.begin(handle, Message("message", Role.USER, (TextPart("prompt"),)))

    async def measure() -> float:
        began = time.process_time()
        for number in range(EVENTS):
            recorder.record(handle, [TEXT])
            if number % 20 == 0:  # as after a chunk of output
                await asyncio.sleep(0)
        await store.flush()
        return (time.process_time() - began) / EVENTS

    return measure


def answered(server: Server, task_id: str) -> float:
    """A round of GetTask for a finished task, on one busy connection."""
    with Loop(server.address) as loop:
        caller = loop.call(server.get_task_request(task_id))
        began = server.cpu_seconds()
        loop.run_for(SECONDS)
        return (server.cpu_seconds() - began) / len(caller.milliseconds)


async def record(folder: Path) -> dict[str, float]:
    stores: dict[str, Store] = {
        "memory": MemoryStore(),
        "SQLite": SqliteStore(folder / "state" / "tasks.db"),
    }
    measures = {name: await recorded(store) for name, store in stores.items()}
    collect_seldom()
    found = [{name: await measure() for name, measure in measures.items()} for _ in range(ROUNDS)]
    for store in stores.values():
        await store.close()
    return {name: min(one[name] for one in found) for name in measures}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="costs-") as name:
        folder = Path(name)
        for store, cost in asyncio.run(record(folder)).items():
            print(f"record, {store:8} {cost * 1e6:8.2f} us an event")
        for kind in ("memory", "durable"):
            with Target("bridge", make_agent(folder), folder, kind).serving() as server:
                task_id = one_stream(server, 30.0, n=10).task_id()
                cost = min(answered(server, task_id) for _ in range(ROUNDS))
            print(f"GetTask, {kind:7} {cost * 1e6:8.1f} us an answer")


if __name__ == "__main__":
    main()
