"""The settings for operators. The string below a field is its help text."""

from __future__ import annotations

from typing import Literal

from bridge.server.settings.sections import Section
from bridge.server.settings.values import Limit


class OperateSettings(Section, alias_generator=lambda field: f"bridge_{field}"):
    """Operation: metrics and readiness."""

    metrics: Literal["auto", "on", "off"] = "auto"
    """Metrics for Prometheus at /metrics, with the extra `metrics`. auto: they count from the first
    request of the page on; on: from the start on; off: no page."""
    min_free_bytes: Limit = 512 * 1024 * 1024
    """Least free disk space in bytes for the state folder; below it, /ready answers 503. 0 = no
    check."""
