"""A collector of traces: it reads OTLP over HTTP, and keeps the spans."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

WITHIN = 60.0  # seconds
KINDS = {1: "internal", 2: "server", 3: "client", 4: "producer", 5: "consumer"}


@dataclass(frozen=True)
class Span:
    """`links`: pairs of the ids of a trace and a span. `begin`, `end`: nanoseconds."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent: str
    begin: int
    end: int
    attributes: dict[str, Any]
    links: list[tuple[str, str]]
    failed: bool

    @property
    def operation(self) -> str:
        """The first word of its name."""
        return self.name.partition(" ")[0]


class Collector:
    """Refuses all spans while `down`. `bodies`: as they were received, uncompressed."""

    url: str

    def __init__(self) -> None:
        self.down = False
        self.spans: list[Span] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.resources: list[dict[str, Any]] = []
        self.refused = 0
        self._arrived = asyncio.Condition()

    @property
    def env(self) -> dict[str, str]:
        """The variables of a server that sends its spans here, and soon."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}

    async def handle(self, request: web.Request) -> web.Response:
        data = await request.read()
        if request.headers.get("Content-Encoding") == "gzip":
            data = gzip.decompress(data)
        async with self._arrived:
            self._arrived.notify_all()
            if self.down:
                self.refused += 1
                return web.Response(status=503)
            self.bodies.append(data)
            self.headers.append(dict(request.headers))
            asked = ExportTraceServiceRequest.FromString(data)
            for group in asked.resource_spans:
                self.resources.append(_members(group.resource.attributes))
                for scope in group.scope_spans:
                    self.spans += map(_span, scope.spans)
        return web.Response(content_type="application/x-protobuf")

    def named(self, operation: str) -> list[Span]:
        """The spans whose name begins with this word."""
        return [span for span in self.spans if span.operation == operation]

    def one(self, operation: str) -> Span:
        """The only span whose name begins with this word; it may have been sent twice."""
        (span, *others) = self.named(operation)
        assert all(other == span for other in others), [span, *others]
        return span

    async def has(self, operation: str, count: int = 1) -> list[Span]:
        """So many spans whose name begins with this word, once they are there."""
        async with asyncio.timeout(WITHIN), self._arrived:
            await self._arrived.wait_for(lambda: len(self.named(operation)) >= count)
        return self.named(operation)

    async def has_turn(self, task_id: str) -> None:
        """Return when the span of a turn of this task is there."""
        async with asyncio.timeout(WITHIN), self._arrived:
            await self._arrived.wait_for(
                lambda: any(
                    one.attributes["a2a.task.id"] == task_id for one in self.named("invoke_agent")
                )
            )

    async def refuses(self) -> None:
        """Return after a request that was refused."""
        async with asyncio.timeout(WITHIN), self._arrived:
            await self._arrived.wait_for(lambda: self.refused > 0)


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """A collector on a port of its own."""
    collector = Collector()
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/traces", collector.handle)
    async with TestServer(app) as server:
        collector.url = str(server.make_url("")).rstrip("/")
        yield collector


def check_whole(spans: list[Span], root: str) -> None:
    """All spans are of one trace, and the parent of each is one of them, or `root`. A span that was
    sent twice was equal, but for that of a request that was interrupted."""
    assert len({span.trace_id for span in spans}) == 1, spans
    known = {span.span_id for span in spans} | {root}
    assert not [span for span in spans if span.parent not in known], spans
    for span in spans:
        twins = [one for one in spans if one.span_id == span.span_id]
        assert all(one == span or one.kind == "server" for one in twins), twins
        assert {(one.name, one.parent) for one in twins} == {(span.name, span.parent)}


def _span(span: Any) -> Span:
    return Span(
        span.name,
        KINDS[span.kind],
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _members(span.attributes),
        [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        span.status.code == 2,
    )


def _members(pairs: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in pairs}
