"""The table of docs/observability.md, from the catalog."""

from __future__ import annotations

from bridge.telemetry.metrics.catalog import CATALOG

READ_BY_TWO_AGENTS = 126  # series with values that a server with two agents reads


def table() -> str:
    """A row for each metric."""
    rows = ["| metric | type | labels | source | meaning |", "|---|---|---|---|---|"]
    for one in CATALOG:
        labels = ", ".join(f"`{label}`" for label in one.labels) or ""
        source = "read" if one.read else "observed"
        rows.append(f"| `{one.shown}` | {one.kind} | {labels} | {source} | {one.help} |")
    return "\n".join(rows) + "\n"
