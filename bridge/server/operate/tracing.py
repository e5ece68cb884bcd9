"""The traces of a server: the observers that make spans, and their way to the collector."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from bridge.a2a.codec import ERRORS, INTERNAL_ERROR
from bridge.errors import BridgeError
from bridge.push.notifier import Push
from bridge.server import recording, registry
from bridge.server.agents.configured import REPLAY, ConfiguredAgent
from bridge.server.extras import span_queue
from bridge.server.settings.root import Settings
from bridge.server.state_dir import State
from bridge.store.handle import readable
from bridge.store.protocol import Store, TaskHead, TaskQuery
from bridge.store.replay import blank_task
from bridge.store.serialization import load_events, moment
from bridge.task.events import Event
from bridge.task.message import Message
from bridge.telemetry.tracing.catalog import PROVIDERS
from bridge.telemetry.tracing.content import Clean, Content
from bridge.telemetry.tracing.context import TRACES, make_sampler
from bridge.telemetry.tracing.requests import PushSpans, RequestSpans
from bridge.telemetry.tracing.tasks import TaskSpans
from bridge.telemetry.tracing.turns import UNSENT, TracedAgent

if TYPE_CHECKING:
    from bridge.telemetry.tracing.exporter import SpanQueue

SETTLE_WITHIN = 1.0  # seconds for the spans of restored tasks at the end of the server
MARK = "spans"  # a file of the state folder while spans may wait
CLOSE_WITHIN = 2.0  # seconds for the last spans; a collector that is down delays the end so long


class Tracing:
    """`requests` observes requests. `versions`: of the CLIs, by agent id."""

    def __init__(self, settings: Settings, queue: SpanQueue, state: State, clean: Clean) -> None:
        self._queue = queue
        self._store = state.store
        self._mark = state.folder / MARK if state.folder else None
        traces = settings.traces
        capture = traces.instrumentation_genai_capture_message_content
        self._content = Content(clean) if capture else None
        self._agents: dict[str, TaskSpans] = {}
        self._names: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self.requests = RequestSpans(queue.add, code_of, self._names, self.versions)
        TRACES.sampler = make_sampler(traces.traces_sampler, traces.traces_sampler_arg)
        TRACES.observer = self.requests

    def agent(self, agent: ConfiguredAgent) -> TaskSpans:
        """The observer of the tasks of an agent; the same one after a change of the agent."""
        found = traced_agent(agent)
        self._names[agent.id] = found.name
        known = self._agents.get(agent.id)
        if known is None:
            journal = partial(read_journal, self._store)
            known = self._agents[agent.id] = TaskSpans(
                found, self._queue.add, journal, self._content
            )
        known.agent = found
        return known

    async def resend(self) -> None:
        """Send the spans of the tasks that ended shortly before the last server was killed: it may
        not have sent them. Call it before tasks are restored. Raises Unavailable."""
        if self._mark is None:
            return
        killed = self._mark.exists()
        self._mark.touch(mode=0o600)
        agents = tuple(self._agents)
        newest = (await self._store.list(TaskQuery(agents=agents, limit=1))).heads
        if not killed or not newest:
            return
        since = newest[0].changed - UNSENT // timedelta(microseconds=1)
        for head in (await self._store.list(TaskQuery(agents=agents, changed_since=since))).heads:
            if head.state.terminal and head.node in (None, self._store.node):
                await self._resend(head)

    async def _resend(self, head: TaskHead) -> None:
        try:
            prompt = readable(Message, await self._store.prompt(head.task_id))
        except LookupError:
            return
        task = blank_task(head)
        if prompt:
            task.history.append(prompt)
            self._agents[head.context.agent].restore(task)

    def redact(self, clean: Clean) -> None:
        """Redact the secrets that `clean` knows from later spans."""
        self._queue.clean = clean
        if self._content:
            self._content.clean = clean

    def count_drops(self, dropped: Callable[[int], None]) -> None:
        """Call `dropped` with the number of spans that were not sent, on the event loop."""
        loop = asyncio.get_running_loop()

        def later(count: int) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(dropped, count)

        self._queue.dropped = later

    async def close(self) -> None:
        """Send the last spans. Takes at most SETTLE_WITHIN and CLOSE_WITHIN. The store is open."""
        await asyncio.gather(*(one.settle(SETTLE_WITHIN) for one in self._agents.values()))
        if self._mark:
            self._mark.unlink(missing_ok=True)
        TRACES.sampler = TRACES.observer = None
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()

        def work() -> None:
            self._queue.close(CLOSE_WITHIN)
            loop.call_soon_threadsafe(ended.set)

        # Not a thread of the loop, which would wait for it at its end.
        threading.Thread(target=work, daemon=True, name="last spans").start()
        await ended.wait()


def open_tracing(settings: Settings, state: State, push: Push, clean: Clean) -> Tracing | None:
    """The traces of the settings; None without an endpoint. Raises ConfigurationError."""
    queue = span_queue(settings, clean)
    if queue is None:
        return None
    push.delivery.attempted = PushSpans(queue.add).attempted
    return Tracing(settings, queue, state, clean)


def traced_agent(agent: ConfiguredAgent) -> TracedAgent:
    adapter = agent.adapter
    if adapter.name == REPLAY:
        path = agent.settings.agent.replay_file or recording.EXAMPLE
        adapter = registry.load(recording.dialect(str(path)))
    return TracedAgent(
        agent.id,
        agent.settings.agent.name or agent.id,
        PROVIDERS.get(adapter.name, adapter.name),
        agent.settings.agent.model,
        adapter.cache_apart,
    )


def code_of(error: BaseException) -> int:
    """The JSON-RPC code of an error."""
    known = ERRORS.get(type(error)) if isinstance(error, BridgeError) else None
    return (known or INTERNAL_ERROR)[0]


async def read_journal(
    store: Store, task_id: str
) -> AsyncIterator[tuple[Sequence[Event], datetime]]:
    """The committed events of a task, each batch with its time. Raises as Store.read() does."""
    await store.flush()
    number = 0
    while piece := await store.read(task_id, number):
        for batch in piece:
            yield load_events(batch.events), moment(batch.time)
        number = piece[-1].number
        await asyncio.sleep(0)
