"""The code of docs/protocol.md with which receivers verify the signatures of notifications."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from tests import CHECKOUT

PAGE = (CHECKOUT / "docs/protocol.md").read_text("utf-8")


def snippet(language: str) -> str:
    begin = f"<!-- verify-{language} -->\n```{language}\n"
    return PAGE.partition(begin)[2].partition("```\n")[0]


def verify(headers: Mapping[str, str], body: bytes, secret: str, later: float = 0.0) -> bool:
    """Whether a receiver accepts this notification. `later`: the seconds since its arrival."""
    names: dict[str, Any] = {}
    exec(snippet("python"), names)
    now = time.time() + later
    names["time"] = SimpleNamespace(time=lambda: now)
    return bool(names["verify"](headers, body, secret))
