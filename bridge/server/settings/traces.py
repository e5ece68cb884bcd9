"""The settings for traces: standard variables of OpenTelemetry. The string below a field is its
help text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal
from urllib.parse import unquote

from pydantic import Field

from bridge.server.settings.sections import Section


class TraceSettings(Section, alias_generator=lambda field: f"otel_{field}"):
    """Traces: spans for a collector of OpenTelemetry, by OTLP over HTTP."""

    exporter_otlp_endpoint: str | None = Field(default=None, pattern="^https?://")
    """URL of a collector, without /v1/traces. Requires the extra `otel`. Unset: no traces, unless
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set. The other OTEL_EXPORTER_OTLP_ variables and those
    of OTEL_BSP_ are read from the environment."""
    exporter_otlp_traces_endpoint: str | None = Field(default=None, pattern="^https?://")
    """Whole URL for traces, instead of OTEL_EXPORTER_OTLP_ENDPOINT."""
    exporter_otlp_headers: str | None = Field(default=None, repr=False)
    """Headers for the collector: NAME=VALUE, separated by commas, encoded as in a URL."""
    exporter_otlp_traces_headers: str | None = Field(default=None, repr=False)
    """Headers for traces, instead of OTEL_EXPORTER_OTLP_HEADERS."""
    sdk_disabled: bool = False
    """No traces, also if the other variables ask for them."""
    traces_exporter: str = "otlp"
    """otlp: traces as described here; none: no traces."""
    service_name: str | None = None
    """Name of the server in traces. Unset: service.name of OTEL_RESOURCE_ATTRIBUTES, otherwise
    coding-agent-bridge."""
    traces_sampler: Literal[
        "always_on",
        "always_off",
        "traceidratio",
        "parentbased_always_on",
        "parentbased_always_off",
        "parentbased_traceidratio",
    ] = "parentbased_always_on"
    """The traces that are recorded. With parentbased_, the client of a request decides, if it sends
    a traceparent; otherwise all, none, or by the trace id the part OTEL_TRACES_SAMPLER_ARG."""
    traces_sampler_arg: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Part of the traces that traceidratio records, from 0 to 1."""
    instrumentation_genai_capture_message_content: bool = False
    """Also record prompts, answers, and the arguments and results of tools, without secrets and at
    most 16 KiB of each."""

    @property
    def endpoint(self) -> str | None:
        """The URL for traces; None for no traces."""
        if self.sdk_disabled or self.traces_exporter.strip() != "otlp":
            return None
        base = self.exporter_otlp_endpoint
        general = f"{base.rstrip('/')}/v1/traces" if base else None
        return self.exporter_otlp_traces_endpoint or general

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers for the collector. A pair without `=` is ignored."""
        written = self.exporter_otlp_traces_headers or self.exporter_otlp_headers or ""
        pairs = (pair.partition("=") for pair in written.split(",") if "=" in pair)
        return {unquote(name).strip().lower(): unquote(value).strip() for name, _, value in pairs}

    @property
    def secrets(self) -> set[str]:
        """The values of the headers, and the parts after `Bearer` and the like."""
        both = (self.exporter_otlp_headers, self.exporter_otlp_traces_headers)
        found = {one for one in both if one}
        for written in list(found):
            for pair in written.split(","):
                value = unquote(pair.partition("=")[2]).strip()
                found |= {value, value.rpartition(" ")[2]}
        return found
