"""The ids of spans, headers of other programs, and the decision to record."""

from __future__ import annotations

from datetime import UTC, datetime

from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

from bridge.task.message import Message, MessageTrace, Role
from bridge.task.state import Task
from bridge.telemetry.tracing.context import (
    NO_SPAN,
    TraceContext,
    Traces,
    make_sampler,
    read_header,
    traced,
)
from tests.support.cases import each

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_a_header_is_read_and_written() -> None:
    for flags, sampled in (("00", False), ("01", True), ("03", True)):
        found = read_header(f"00-{TRACE}-{SPAN}-{flags}")
        assert found == TraceContext(TRACE, SPAN, sampled)
        assert found and found.header == f"00-{TRACE}-{SPAN}-0{int(sampled)}"
    assert read_header(f"01-{TRACE}-{SPAN}-01-later") == TraceContext(TRACE, SPAN, True)


@each(
    "value",
    [
        *(None, "", "00", TRACE, f"00-{TRACE}-{SPAN}", f"00-{TRACE.upper()}-{SPAN}-01"),
        *(f"ff-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01-more", f"00-{'0' * 32}-{SPAN}-01"),
        *(f"00-{TRACE}\n-{SPAN}-01", f"00-{TRACE}-{SPAN}-zz", f"00-{TRACE}-{SPAN}-01" * 2),
    ],
    ids=repr,
)
def test_an_invalid_header_is_none(value: str | None) -> None:
    traces = Traces()
    traces.sampler = make_sampler("always_on", 1.0)
    assert read_header(value) is None
    begun = traces.request(value)
    assert begun and begun.parent is None and begun.trace_id != TRACE


def test_a_parent_without_an_id_is_none() -> None:
    traces = Traces()
    traces.sampler = make_sampler("always_on", 1.0)
    begun = traces.request(f"00-{TRACE}-{NO_SPAN}-01")
    assert begun and begun.parent is None and begun.trace_id != TRACE


def test_without_traces_no_request_has_a_span() -> None:
    assert Traces().request(f"00-{TRACE}-{SPAN}-01") is None
    assert Traces().alone() is None


def test_the_client_decides_else_the_sampler() -> None:
    yes, no = TraceContext(TRACE, SPAN, True), TraceContext(TRACE, SPAN, False)
    low, high = "f" * 16 + "0" * 15 + "1", "0" * 16 + "f" * 16
    table = {
        "always_on": (True, True, True, True),
        "always_off": (False, False, False, False),
        "traceidratio": (True, True, True, False),
        "parentbased_always_on": (True, False, True, True),
        "parentbased_always_off": (True, False, False, False),
        "parentbased_traceidratio": (True, False, True, False),
    }
    for name, expected in table.items():
        sample = make_sampler(name, 0.5)
        found = sample(yes, low), sample(no, low), sample(None, low), sample(None, high)
        assert found == expected, name


def test_the_ratio_is_that_of_other_programs() -> None:
    """The trace ids of a whole system are sampled together."""
    theirs, ours = TraceIdRatioBased(0.3), make_sampler("traceidratio", 0.3)
    ids = [f"{number * 0x9E3779B97F4A7C15 % 2**64:032x}" for number in range(1, 500)]
    found = [ours(None, one) for one in ids]
    assert found == [
        theirs.should_sample(None, int(one, 16), "").decision is Decision.RECORD_AND_SAMPLE
        for one in ids
    ]
    assert 100 < sum(found) < 200


def test_equal_events_have_equal_spans() -> None:
    def task(task_id: str, header: str) -> Task:
        one = Task(task_id, "c", datetime(2026, 1, 1, tzinfo=UTC))
        one.history.append(Message("m", Role.USER, (), trace=MessageTrace(header)))
        return one

    one = traced(task("a", f"00-{TRACE}-{SPAN}-01"))
    assert one and one == traced(task("a", f"00-{TRACE}-{SPAN}-01"))
    assert (one.trace_id, one.parent, one.sampled) == (TRACE, SPAN, True)
    other = traced(task("b", f"00-{TRACE}-{SPAN}-00"))
    assert other and other.span_id != one.span_id and not other.sampled
    assert one.below("a", 1, "x") == one.below("a", 1, "x")
    assert len({one.below("a", n, "x").span_id for n in range(50)}) == 50
    alone = traced(task("a", f"00-{TRACE}-{NO_SPAN}-01"))
    assert alone and alone.parent is None
    assert traced(Task("a", "c", datetime(2026, 1, 1, tzinfo=UTC))) is None
