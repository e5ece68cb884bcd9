"""Constants of the server that tests change: short times, small limits. A test names one as if it
was a setting, `BRIDGE_STOP_GRACE_MS`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge.server.settings.constants import Constants

FIELDS = {f"bridge_{name}": name for name in Constants.model_fields}


def taken(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The constants among the settings by their fields, and the other settings."""
    found = {FIELDS[n.lower()]: value for n, value in given.items() if n.lower() in FIELDS}
    return found, {n: value for n, value in given.items() if n.lower() not in FIELDS}
