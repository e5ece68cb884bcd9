"""The mode in which the next process of a conversation begins.

A CLI changes its mode by itself: its model begins a plan, or the client approves one. A process
that resumes the conversation begins in the reported mode, but never in a wider one than the client
chose, or, without its choice, than the operator's default. Only an approval of the client or the
operator in the same task widens the mode: a single one leads from a plan to the mode that asks, and
a lasting one to any mode that clients may choose.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from bridge.adapter.contract import Adapter, SessionStart
from bridge.task.events import OptionKind

PLAN = "plan"
"""The name of the mode in which CLIs change nothing."""


def reported(
    adapter: type[Adapter],
    start: SessionStart,
    mode: str,
    *,
    default: str | None,
    approvals: Collection[OptionKind] = (),
) -> SessionStart:
    """`start` for the next process, after the CLI has reported `mode`. `default`: the first mode of
    the present process, if it began without a choice. `approvals`: kinds of the options that
    answered questions of the task."""
    chosen = start.options.mode
    if chosen is None and mode == default:
        return replace(start, mode=None)
    order = adapter.widths or adapter.modes or (PLAN,)
    known = {name: number for number, name in enumerate(order)}
    before = chosen or start.mode
    asking = order.index(PLAN) + 1 if PLAN in order else 0
    widest = known.get(before, 0) if before else asking
    if "allow_always" in approvals:
        widest = max(widest, len(order) - 1)
    elif "allow_once" in approvals:
        widest = max(widest, asking)
    number = min(known.get(mode, len(order)), widest)
    found = order[number] if number < len(order) else None
    if chosen and (found is None or number > known.get(chosen, 0)):
        return replace(start, mode=None, options=replace(start.options, mode=found))
    return replace(start, mode=None if found == chosen else found)
