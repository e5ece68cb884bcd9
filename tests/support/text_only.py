"""The jsonl adapter for a program that takes texts alone, so that attached files become paths, and
that has a folder of settings, as real CLIs have."""

from __future__ import annotations

from typing import Any, ClassVar

from bridge.adapter import Home
from bridge.server import registry

Jsonl: Any = registry.load("jsonl")


class TextOnly(Jsonl):  # type: ignore[misc]
    input_modes: ClassVar[tuple[str, ...]] = ("text/*",)
    homes: ClassVar[tuple[Home, ...]] = (Home("TEXT_ONLY_HOME", "~/.text-only", ("sessions/",)),)
