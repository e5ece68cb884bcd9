"""The ends of turns that exceeded a time limit."""

from __future__ import annotations

from bridge.task.events import TimedOut


def no_handshake(limit: float) -> TimedOut:
    return TimedOut(
        f"The agent was started, but did not take the prompt within {limit:g} s and was stopped "
        "(BRIDGE_START_TIMEOUT_MS sets the limit; `coding-agent-bridge doctor` examines the CLI).",
        "start",
    )


def too_slow(limit: float) -> TimedOut:
    return TimedOut(
        f"The turn took longer than {limit:g} s and was stopped (AGENT_TIMEOUT_MS sets the limit)."
    )


def too_silent(limit: float) -> TimedOut:
    return TimedOut(
        f"The agent printed nothing for {limit:g} s and was stopped (AGENT_IDLE_EXIT_MS sets the "
        "limit)."
    )
