"""A span that has ended, without a library."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from bridge.telemetry.tracing.catalog import SpanKind, Value
from bridge.telemetry.tracing.context import TraceContext

_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_ATTRIBUTE = re.compile(r"\{([^{}]+)\}")


@dataclass(frozen=True, slots=True)
class EndedSpan:
    """`begin`, `end`: nanoseconds since 1970. `failed`: its status is an error. `links`: other
    spans."""

    kind: SpanKind
    context: TraceContext
    begin: int
    end: int
    attributes: Mapping[str, Value]
    failed: bool = False
    links: Sequence[TraceContext] = ()

    @property
    def name(self) -> str:
        return _ATTRIBUTE.sub(lambda found: str(self.attributes[found[1]]), self.kind.name)


Emit = Callable[[EndedSpan], None]
"""Takes a span of a trace that is recorded."""


def nanoseconds(time: datetime) -> int:
    return (time - _EPOCH) // _MICROSECOND * 1000
