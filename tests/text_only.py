"""The jsonl adapter for a program that takes texts alone, so that attached files become paths."""

from __future__ import annotations

from typing import Any, ClassVar

from bridge import registry

Jsonl: Any = registry.load("jsonl")


class TextOnly(Jsonl):  # type: ignore[misc]
    input_modes: ClassVar[tuple[str, ...]] = ("text/*",)
