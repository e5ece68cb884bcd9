"""Counts of the sessions of one agent since the start of the server."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class SessionTally:
    """`starts`: the sessions that began for a task: `cold` (a new process and conversation), `warm`
    (a process that waited for a task) or `resumed` (a new process that continues a conversation).
    `exits`: the ended processes: `exited` by themselves, `terminated`, `killed`, or beyond a
    `limit` of their control group. `leftovers`: processes that lived on after all signals.
    `unasked`: actions of CLIs between two turns, by kind: see adapter/unasked.py."""

    starts: Counter[str] = field(default_factory=Counter)
    exits: Counter[str] = field(default_factory=Counter)
    leftovers: int = 0
    unasked: Counter[str] = field(default_factory=Counter)
