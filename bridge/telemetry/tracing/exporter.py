"""The way of spans to a collector, by OTLP over HTTP. Needs the extra `otel`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from bridge.telemetry.tracing.catalog import MOST_CONTENT, SCOPE, Value
from bridge.telemetry.tracing.content import Clean, cut
from bridge.telemetry.tracing.context import TraceContext
from bridge.telemetry.tracing.spans import EndedSpan

log = logging.getLogger(__name__)

QUEUE = 2048  # spans that wait for the collector
MOST_TEXT = 256  # bytes of an attribute without content
_KINDS = {
    "server": SpanKind.SERVER,
    "internal": SpanKind.INTERNAL,
    "client": SpanKind.CLIENT,
}
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class SpanQueue:
    """Takes spans on the event loop; a thread of its own sends them. `dropped` gets the number of
    spans that were not sent, also from that thread. The library reads the other OTEL_EXPORTER_OTLP_
    and OTEL_BSP_ variables. `clean` redacts secrets."""

    def __init__(
        self,
        endpoint: str,
        headers: Mapping[str, str],
        *,
        service: str | None,
        version: str,
        clean: Clean,
    ) -> None:
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # see _Watched
        self.clean = clean
        self.dropped: Callable[[int], None] = lambda count: None
        self._resource = _resource(service, version)
        self._scope = InstrumentationScope(SCOPE, version)
        self._exporter = _Watched(
            OTLPSpanExporter(endpoint, headers=dict(headers) or None, session=_Session()),
            self._sent,
        )
        self._processor = BatchSpanProcessor(self._exporter, max_queue_size=QUEUE)
        self._lock = threading.Lock()
        self._waiting = 0

    def add(self, span: EndedSpan) -> None:
        """Send the span soon. It is dropped if too many spans wait."""
        with self._lock:
            full = self._waiting >= QUEUE
            self._waiting += not full
        if full:
            self.dropped(1)
        else:
            self._processor.on_end(self._readable(span))

    def close(self, within: float) -> None:
        """Send the waiting spans, for this time in seconds. Blocks."""
        closing = threading.Thread(target=self._processor.shutdown, daemon=True)
        closing.start()
        closing.join(within)
        self._exporter.shutdown()

    def _sent(self, count: int, ok: bool) -> None:
        with self._lock:
            self._waiting -= count
        if not ok:
            self.dropped(count)

    def _readable(self, span: EndedSpan) -> ReadableSpan:
        context = span.context
        above = _context(context.trace_id, context.parent) if context.parent else None
        content = span.kind.content
        return ReadableSpan(
            cut(self.clean(span.name), MOST_TEXT),
            _context(context.trace_id, context.span_id),
            above,
            self._resource,
            {
                name: self._value(value, MOST_CONTENT if name in content else MOST_TEXT)
                for name, value in span.attributes.items()
            },
            links=[_link(one) for one in span.links],
            kind=_KINDS[span.kind.kind],
            status=Status(StatusCode.ERROR if span.failed else StatusCode.UNSET),
            start_time=span.begin,
            end_time=span.end,
            instrumentation_scope=self._scope,
        )

    def _value(self, value: Value, most: int) -> Value:
        return cut(self.clean(value), most) if isinstance(value, str) else value


class _Session(requests.Session):
    """A request that fails is an answer that the library repeats, like the failure. The library
    would keep the exception during its pauses, and an exception keeps the frames of all callers
    with their spans: as reference cycles, which the server seldom collects (gc_tuning.py)."""

    def request(self, *arguments: Any, **options: Any) -> requests.Response:
        try:
            return super().request(*arguments, **options)
        except requests.RequestException:
            failed = requests.Response()
            failed.status_code = HTTPStatus.SERVICE_UNAVAILABLE
            return failed


class _Watched(SpanExporter):
    """`exporter`, with a line in the log when the collector fails, and when it works again: the
    library writes several for each batch."""

    def __init__(self, exporter: SpanExporter, sent: Callable[[int, bool], None]) -> None:
        self._exporter = exporter
        self._sent = sent
        self._works = True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        except Exception:
            log.exception("spans could not be sent")
            result = SpanExportResult.FAILURE
        works = result is SpanExportResult.SUCCESS
        self._sent(len(spans), works)
        if works != self._works:
            self._works = works
            if works:
                log.info("the collector of traces takes spans again")
            else:
                log.warning("the collector of traces does not take spans, which are lost")
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def _resource(service: str | None, version: str) -> Resource:
    """`service`: None for the name in OTEL_RESOURCE_ATTRIBUTES, or the default."""
    found = Resource.create({"service.version": version})
    if service is None and not str(found.attributes["service.name"]).startswith("unknown_service"):
        return found
    return found.merge(Resource({"service.name": service or SCOPE}))


def _context(trace_id: str, span_id: str) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), False, _SAMPLED)


def _link(to: TraceContext) -> Link:
    return Link(_context(to.trace_id, to.span_id))
