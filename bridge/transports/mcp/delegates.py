"""The agents that a client can delegate to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegateAgent:
    """An agent as the tool `list_agents` shows it. `roots`: the directories of its contexts;
    `asks`: it asks before it acts; `is_busy`: whether it has unfinished tasks."""

    id: str
    title: str
    skills: Sequence[str]
    models: Sequence[str]
    modes: Sequence[str]
    roots: Sequence[str]
    asks: bool
    is_busy: Callable[[], bool]
