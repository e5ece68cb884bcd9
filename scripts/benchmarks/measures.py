"""The measures. A measure takes a kind of server and sizes, starts servers of that kind, and yields
(name of a figure, figure). It checks every stream for lost, duplicate and misordered texts; these
are errors, unless the measure counts them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bridge.server.settings.root import NAMES
from scripts.benchmarks import processes
from scripts.benchmarks.client import Loop, Stream, TooSlow
from scripts.benchmarks.servers import CARD, Server, Target
from scripts.benchmarks.transcript import Faults, Mark, Transcript, faults

MIB, KIB = 2**20, 2**10
Figures = Iterator[tuple[str, float]]


@dataclass(frozen=True)
class Sizes:
    """The sizes of all measures. `cap`: time limit of a stream in seconds."""

    growth: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    pace_seconds: int = 5
    many: int = 500
    first: int = 15
    idle: tuple[int, ...] = (100, 500)
    live: int = 2_000
    retained_tasks: int = 6
    retained_texts: int = 1_000  # of 4 KiB
    calls_seconds: float = 2.0
    beside_rate: int = 2_000
    get: tuple[int, ...] = (10_000, 100_000)
    subscribers: tuple[int, ...] = (1, 10, 50)
    fan_events: int = 20_000
    fan_seconds: int = 3
    slow_seconds: int = 8
    slow_rate: int = 2_000
    cancels: int = 20
    cancel_beside: int = 100
    late_events: int = 4_000
    late_rate: int = 2_000
    late_after: float = 1.0  # seconds
    warm: int = 5
    cap: float = 90.0


class Faulty(Exception):
    """Texts were lost, duplicate or out of order."""


# --- streams --------------------------------------------------------------------------------------


def heard(stream: Stream, events: int) -> Transcript:
    """The delivered texts. Raises Faulty unless every text came once and in order."""
    transcript = stream.transcript()
    found = transcript.faults(events)
    if any(found) or not transcript.ended:
        raise Faulty(f"of {events} texts: {found}, ended: {transcript.ended}")
    return transcript


def one_stream(server: Server, cap: float, **knobs: int) -> Transcript:
    """Send one message to a new context, and read its stream to the end."""
    with Loop(server.address) as loop:
        stream = loop.stream(server.send_request(**knobs))
        loop.run_to_end(1, cap, f"{knobs['n']:,} texts")
    return heard(stream, knobs["n"])


def warm_up(server: Server) -> None:
    one_stream(server, 30, n=200)


def _per_second(count: int) -> dict[str, int]:
    """The agent's knobs for `count` texts per second, written two at a time."""
    return {"gap_us": 2_000_000 // count, "burst": 2}


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def latencies(marks: Sequence[Mark]) -> list[float]:
    """Milliseconds from the agent's write to the client's receive."""
    return [(mark.received - mark.written) / 1e6 for mark in marks]


# --- one task -------------------------------------------------------------------------------------


def rate(target: Target, sizes: Sizes) -> Figures:
    rates: dict[int, float] = {}
    with target.serving() as server:
        warm_up(server)
        for events in sizes.growth:
            runs = [_rate(server, events, sizes.cap) for _ in range(5 if events <= 10_000 else 1)]
            rates[events] = statistics.median(runs)
            yield f"rate.{events}", rates[events]
    small = 10_000 if 10_000 in rates else min(rates)
    yield "flatness", rates[max(rates)] / rates[small]


def _rate(server: Server, events: int, cap: float) -> float:
    written, received = one_stream(server, cap, n=events).span()
    return events / (received - written) * 1e9


def first(target: Target, sizes: Sizes) -> Figures:
    """For `jsonl`, where the first line may be an answer without a task, and for `generic`, where
    the task is visible at once. Both read the same line."""
    frame, text = _firsts(target, sizes.first)
    start = statistics.median(target.agent.start_ms() for _ in range(sizes.first))
    yield "first.frame", frame
    yield "first.text", text
    yield "first.cli", start
    yield "first.beyond_frame", frame - start
    yield "first.beyond_text", text - start
    if target.store:
        generic = {"AGENT_ADAPTER": "generic", "AGENT_TEXT_FIELD": "text"}
        yield "first.task", _firsts(target, sizes.first, **generic)[0]
    else:
        yield "first.task", frame


def _firsts(target: Target, times: int, **settings: str) -> tuple[float, float]:
    """Medians of the milliseconds from a request to its first event, and to its first text."""
    with target.serving(**settings) as server:
        warm_up(server)
        found = [_first(server) for _ in range(times)]
    frames, texts = zip(*found, strict=True)
    return statistics.median(frames), statistics.median(texts)


def _first(server: Server) -> tuple[float, float]:
    with Loop(server.address) as loop:
        stream = loop.stream(server.send_request(n=1))
        loop.run_to_end(1, 30, "a text")
    transcript = heard(stream, 1)
    (mark,) = transcript.marks()
    frame = transcript.first_frame_at() - stream.sent
    return frame / 1e6, (mark.received - stream.sent) / 1e6


def warm(target: Target, sizes: Sizes) -> Figures:
    """A CLI that takes 500 ms to start, without and with one prewarmed session."""
    if target.store and "bridge_warm_sessions" not in NAMES:
        return
    for count in (0, 1) if target.store else (0,):
        with target.serving("--start-ms", "500", BRIDGE_WARM_SESSIONS=str(count)) as server:
            texts = []
            for _ in range(sizes.warm):
                before = server.agents()
                time.sleep(0.8 if count else 0)  # the next one is started meanwhile
                texts.append(_first(server)[1])
                processes.kill(before & server.agents())
            yield f"warm.{count}", statistics.median(texts)


# --- tasks at a pace ------------------------------------------------------------------------------


def pace(target: Target, sizes: Sizes) -> Figures:
    for streams, per_second in ((20, 50), (1, 200)):
        name = f"pace.{streams}x{per_second}"
        yield from _paced(target, name, streams, per_second, sizes)


def many(target: Target, sizes: Sizes) -> Figures:
    yield from _paced(target, "many", sizes.many, 10, sizes)


def _paced(target: Target, name: str, streams: int, per_second: int, sizes: Sizes) -> Figures:
    """Figures of the time in which all of them run, without the starts of the CLIs."""
    texts = int(per_second * (sizes.pace_seconds + 0.015 * streams))
    what = f"{streams} streams"
    with target.serving() as server, Loop(server.address) as loop:
        warm_up(server)
        knobs = {"n": texts, "gap_us": 1_000_000 // per_second}
        requests = [server.send_request(**knobs) for _ in range(streams)]
        opened = loop.crowd(requests, sizes.cap, what)
        cpu, counted = server.cpu_seconds(), time.monotonic_ns()
        loop.run_for(0.3)  # input that arrived during the search of a thousand processes
        began = time.monotonic_ns()
        loop.run_to_end(streams, texts / per_second + sizes.cap, what)
        cpu = server.cpu_seconds() - cpu
    found = [stream.transcript() for stream in opened]
    marks = [mark for one in found for mark in one.marks() if mark.written > counted]
    ages = latencies([mark for mark in marks if mark.written > began])
    if not ages:
        raise TooSlow(f"{streams} streams: the first had ended before the last began")
    yield f"{name}.cpu", cpu / len(marks) * 1e6
    yield f"{name}.p50", percentile(ages, 0.5)
    yield f"{name}.p99", percentile(ages, 0.99)
    yield f"{name}.max", max(ages)
    yield f"{name}.lost", sum(sum(one.faults(texts)) for one in found)


# --- memory ---------------------------------------------------------------------------------------


def memory(target: Target, sizes: Sizes) -> Figures:
    with target.serving() as server, Loop(server.address) as loop:
        warm_up(server)
        time.sleep(0.5)
        idle, helpers = server.rss_bytes(), server.helpers_bytes()
        yield "idle", idle / MIB
        yield "idle.helpers", helpers / MIB
        for count in sizes.idle:
            _hold(server, loop, count - loop.streaming, sizes.cap)
            yield f"idle.{count}", (server.rss_bytes() - idle) / count / KIB
            yield f"idle.{count}.helpers", (server.helpers_bytes() - helpers) / count / KIB


def _hold(server: Server, loop: Loop, count: int, cap: float) -> float:
    """Add `count` streams with one text each, which then stay silent. Returns seconds."""
    began = time.monotonic()
    requests = [server.send_request(n=1, hold_ms=600_000) for _ in range(count)]
    loop.crowd(requests, cap, f"{count} live streams")
    took = time.monotonic() - began
    loop.run_for(1.0)
    return took


def live(target: Target, sizes: Sizes) -> Figures:
    with target.serving() as server, Loop(server.address) as loop:
        warm_up(server)
        yield "live.seconds", _hold(server, loop, sizes.live, sizes.cap)
        yield "live.rss", server.rss_bytes() / MIB


def retained(target: Target, sizes: Sizes) -> Figures:
    """The slope over the tasks after the first, which also allocates reused memory."""
    size, points = 4096, []
    with target.serving() as server:
        warm_up(server)
        for done in range(sizes.retained_tasks):
            one_stream(server, sizes.cap, n=sizes.retained_texts, bytes=size)
            time.sleep(0.3)
            points.append((float(done * sizes.retained_texts * size), float(server.rss_bytes())))
    yield "retained", statistics.linear_regression(*zip(*points[1:], strict=True)).slope


# --- calls ----------------------------------------------------------------------------------------


def calls(target: Target, sizes: Sizes) -> Figures:
    with target.serving() as server:
        task_id = one_stream(server, 30, n=10).task_id()
        for name, request in (
            ("card", server.request(CARD)),
            ("get", server.get_task_request(task_id)),
        ):
            answers, cpu = _calls(server, request, sizes.calls_seconds)
            yield f"{name}.rate", answers / sizes.calls_seconds
            yield f"{name}.cpu", cpu / answers * 1e6
            yield f"{name}.per_core", answers / cpu if cpu else 0.0


def _calls(server: Server, request: bytes, seconds: float) -> tuple[int, float]:
    """Answers to 16 busy connections, and the server's CPU seconds."""
    with Loop(server.address) as loop:
        callers = [loop.call(request) for _ in range(16)]
        cpu = server.cpu_seconds()
        loop.run_for(seconds)
        cpu = server.cpu_seconds() - cpu
    return sum(len(caller.milliseconds) for caller in callers), cpu


def beside(target: Target, sizes: Sizes) -> Figures:
    """Requests for the card on one connection, beside a busy stream."""
    texts = int(sizes.beside_rate * (sizes.calls_seconds + 0.5))
    with target.serving() as server, Loop(server.address) as loop:
        warm_up(server)
        request = server.send_request(n=texts, **_per_second(sizes.beside_rate))
        (stream,) = loop.crowd([request], 30, "a text")
        caller = loop.call(server.request(CARD))
        loop.run_for(sizes.calls_seconds)
        loop.remove(caller)
        loop.run_to_end(1, sizes.cap, f"{texts:,} texts")
        heard(stream, texts)
    yield "beside.p99", percentile(caller.milliseconds, 0.99)


def get(target: Target, sizes: Sizes) -> Figures:
    """GetTask of a large task, while it works and after its end."""
    for events in sizes.get:
        with target.serving() as server, Loop(server.address) as loop:
            warm_up(server)
            stream = loop.stream(server.send_request(n=events, hold_ms=600_000))
            loop.run_to(stream, b"~%08d@" % (events - 1), sizes.cap, f"{events:,} texts")
            yield f"get.{events}.live", _get(server, stream.transcript().task_id())
            task_id = one_stream(server, sizes.cap, n=events).task_id()
            yield f"get.{events}.finished", _get(server, task_id)


def _get(server: Server, task_id: str) -> float:
    return statistics.median(server.ask("GetTask", {"id": task_id})[0] for _ in range(5))


# --- several clients of a task --------------------------------------------------------------------


def fan(target: Target, sizes: Sizes) -> Figures:
    for count in sizes.subscribers:
        with target.serving() as server:
            warm_up(server)
            cpu = server.cpu_seconds()
            found = _subscribed(server, count, sizes.cap, n=sizes.fan_events)
            cpu = server.cpu_seconds() - cpu
            began, delivered = found[0].span()[0], sizes.fan_events * len(found)
            ended = max(one.span()[1] for one in found)
            yield f"fan.{count}.rate", delivered / (ended - began) * 1e9
            yield f"fan.{count}.cpu", cpu / delivered * 1e6
            texts = 200 * sizes.fan_seconds
            found = _subscribed(server, count, sizes.cap, n=texts, gap_us=5_000)
            ages = [age for one in found for age in latencies(one.marks())]
            yield f"fan.{count}.p99", percentile(ages, 0.99)


def _subscribed(server: Server, count: int, cap: float, **knobs: int) -> list[Transcript]:
    """A task that begins after all its subscribers: the input of each, the sender first."""
    with Loop(server.address) as loop:
        sender = loop.stream(server.send_request(wait_ms=500 + 10 * count, **knobs))
        loop.run_to(sender, b"data:", 30, "an event")
        request = server.subscribe_request(sender.transcript().task_id())
        streams = [sender, *(loop.stream(request) for _ in range(count))]
        loop.run_to_end(count + 1, cap, f"{knobs['n']:,} texts to {count} subscribers")
    return [heard(stream, knobs["n"]) for stream in streams]


def late(target: Target, sizes: Sizes) -> Figures:
    """Subscribers that join a running task: the texts of each at the end."""
    with target.serving() as server, Loop(server.address) as loop:
        warm_up(server)
        request = server.send_request(n=sizes.late_events, **_per_second(sizes.late_rate))
        streams = loop.crowd([request], 30, "a text")
        loop.run_for(sizes.late_after)
        request = server.subscribe_request(streams[0].transcript().task_id())
        streams += [loop.stream(request) for _ in range(5)]
        loop.run_to_end(6, sizes.cap, f"{sizes.late_events:,} texts to late subscribers")
    found = [stream.transcript().faults(sizes.late_events) for stream in streams]
    for name, total in zip(Faults._fields, map(sum, zip(*found, strict=True)), strict=True):
        yield f"late.{name}", total


# --- a reader that does not read ------------------------------------------------------------------


def slow(target: Target, sizes: Sizes) -> Figures:
    texts = sizes.slow_rate * sizes.slow_seconds
    with target.serving() as server, Loop(server.address) as loop:
        control = _beside(server, loop, loop.stream(_large(server, sizes)), sizes)
        loop.run_to_end(2, sizes.cap, f"{texts:,} texts")
    with target.serving() as server, Loop(server.address) as loop:
        stream = Stream(loop, _large(server, sizes), receive_buffer=16 * KIB)
        beside = _beside(server, loop, stream, sizes)
        found, resumed = _read_on(server, loop, stream, sizes)
    yield "slow.growth", (beside.growth - control.growth) / MIB
    yield "slow.p99", beside.p99
    yield "slow.p99.control", control.p99
    yield "slow.ratio", beside.p99 / control.p99
    yield "slow.faults", sum(found)
    yield "slow.resumed", resumed


class Beside(NamedTuple):
    """The effects of a reader: growth of the server, and latency of a neighbour."""

    growth: int
    p99: float


def _large(server: Server, sizes: Sizes) -> bytes:
    texts = sizes.slow_rate * sizes.slow_seconds
    return server.send_request(n=texts, bytes=1024, **_per_second(sizes.slow_rate))


def _beside(server: Server, loop: Loop, large: Stream, sizes: Sizes) -> Beside:
    """Until all is written and the neighbour has its complete stream; `large` may still read."""
    before = peak = processes.rss_bytes(server.pid)
    count = 100 * (sizes.slow_seconds - 1)
    neighbour = loop.stream(server.send_request(n=count, gap_us=10_000))
    end = time.monotonic() + sizes.slow_seconds + 0.5
    while time.monotonic() < end or not neighbour.ended:
        if time.monotonic() > end + sizes.cap:
            raise TooSlow("the neighbour of a large stream")
        loop.run_for(0.1)
        peak = max(peak, processes.rss_bytes(server.pid))
    return Beside(peak - before, percentile(latencies(heard(neighbour, count).marks()), 0.99))


def _read_on(server: Server, loop: Loop, stream: Stream, sizes: Sizes) -> tuple[Faults, int]:
    """Read the unread rest of the stream, and resume it after a cut. Returns the faults in all of
    it, and the number of resumptions."""
    body, resumed = b"", 0
    loop.add(stream)
    while True:
        loop.run_to_end(loop.ended + 1, sizes.cap, "reading on")
        transcript = stream.transcript()
        body += transcript.whole_frames()
        after = transcript.last_event_id()
        if transcript.ended or after is None or resumed == 10:
            return faults(body, sizes.slow_rate * sizes.slow_seconds), resumed
        resumed += 1
        stream = loop.stream(server.subscribe_request(transcript.task_id(), after))


# --- cancels --------------------------------------------------------------------------------------


def cancel(target: Target, sizes: Sizes) -> Figures:
    """Time from the request until no process of the task is left, not even a zombie."""
    took = []
    with target.serving() as server, Loop(server.address) as loop:
        warm_up(server)
        _hold(server, loop, sizes.cancel_beside, sizes.cap)
        for _ in range(sizes.cancels):
            took.append(_cancel(server, loop))
    yield "cancel.median", statistics.median(took)
    yield "cancel.max", max(took)


def _cancel(server: Server, loop: Loop) -> float:
    before = server.family()
    request = server.send_request(n=1, hold_ms=600_000)
    (stream,) = loop.crowd([request], 30, "a text")
    started = server.family() - before
    assert started, "the task has no process"
    began = time.monotonic()
    server.ask("CancelTask", {"id": stream.transcript().task_id()})
    if not processes.gone(started, 30):
        raise TooSlow("a canceled task still has a process after 30 s")
    return (time.monotonic() - began) * 1000


ALONE = ("rate", "pace", "many", "first", "memory", "live", "calls", "beside")
"""The measures for aiohttp alone, which has no tasks beyond their streams."""
Measure = Callable[[Target, Sizes], Figures]
MEASURES: dict[str, Measure] = {
    measure.__name__: measure
    for measure in (
        *(rate, pace, many, first, warm, memory, live, retained),
        *(calls, beside, get, fan, slow, cancel, late),
    )
}
