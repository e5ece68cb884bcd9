"""The ids of traces and spans, and the decision whether a trace is recorded. W3C Trace Context.

The ids of the spans of a turn follow from the task and the number of an event: each server that has
the events makes the same spans.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bridge.task.message import Message
from bridge.task.state import Task

_HEADER = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
NO_SPAN = "0" * 16
"""The span id of a trace without a request: its turn has no parent."""
ALWAYS = 1 << 64

Sampler = Callable[["TraceContext | None", str], bool]
"""Whether to record the trace of a request with this parent and this trace id."""


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span of a trace. `sampled`: the trace is recorded. `parent`: the id of the span above it,
    if it is known."""

    trace_id: str
    span_id: str
    sampled: bool
    parent: str | None = None

    @property
    def header(self) -> str:
        """The value of `traceparent`."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"

    def below(self, *names: object) -> TraceContext:
        """A span below this one. `names` identify it: equal names have equal ids."""
        parent = None if self.span_id == NO_SPAN else self.span_id
        return TraceContext(self.trace_id, span_id_of(*names), self.sampled, parent)


def read_header(value: str | None) -> TraceContext | None:
    """The span of a `traceparent`; None for none, or for an invalid one."""
    found = _HEADER.fullmatch(value.strip()) if value else None
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16):
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & 1))


def span_id_of(*names: object) -> str:
    """16 hex digits, never all zero."""
    digest = hashlib.sha256("\0".join(map(str, names)).encode("utf-8", "surrogatepass"))
    found = digest.hexdigest()[:16]
    return found if int(found, 16) else "1".zfill(16)


def traced(task: Task) -> TraceContext | None:
    """The span of the turn of a task whose prompt is known; None without a trace."""
    prompt = task.history[0] if task.history else None
    trace = prompt.trace if isinstance(prompt, Message) else None
    request = read_header(trace.header) if trace else None
    return request.below(task.id, "turn") if request else None


def make_sampler(name: str, ratio: float) -> Sampler:
    """The sampler with this name of OTEL_TRACES_SAMPLER. `ratio`: between 0 and 1, of the traces
    that `traceidratio` records."""
    by_parent, root = name.startswith("parentbased_"), name.removeprefix("parentbased_")
    if root != "traceidratio":
        ratio = 1.0 if root == "always_on" else 0.0
    bound = round(ratio * ALWAYS)

    def sample(parent: TraceContext | None, trace_id: str) -> bool:
        if parent and by_parent:
            return parent.sampled
        return int(trace_id[16:], 16) < bound

    return sample


class Traces:
    """Begins the traces of requests. `sampler`: None while the server has no traces. `observer`:
    the RequestObserver that makes spans, for requests without an Operation."""

    def __init__(self) -> None:
        self.sampler: Sampler | None = None
        self.observer: Any = None

    def request(self, traceparent: str | None) -> TraceContext | None:
        """The span of a new request. `traceparent`: from its client, not validated."""
        if self.sampler is None:
            return None
        parent = read_header(traceparent)
        if parent and parent.span_id == NO_SPAN:
            parent = None
        trace_id = parent.trace_id if parent else secrets.token_hex(16)
        sampled = self.sampler(parent, trace_id)
        return TraceContext(
            trace_id, secrets.token_hex(8), sampled, parent.span_id if parent else None
        )

    def alone(self) -> TraceContext | None:
        """The trace of a message without a request."""
        if self.sampler is None:
            return None
        trace_id = secrets.token_hex(16)
        return TraceContext(trace_id, NO_SPAN, self.sampler(None, trace_id))


TRACES = Traces()
"""The traces of this process."""
