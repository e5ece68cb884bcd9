"""The switches that keep Claude Code from work after the end of a task, or between two tasks."""

from __future__ import annotations

WAKING = ("Monitor", "ScheduleWakeup")
"""Tools that begin a turn later."""

QUIET = {
    # Background work would continue after the end of the task, without a client.
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    "CLAUDE_CODE_DISABLE_CRON": "1",
    # It would ask the model for the user's next prompt after each turn.
    "CLAUDE_CODE_ENABLE_PROMPT_SUGGESTION": "false",
    # It would compact a conversation of more tokens before the model's cache of it expires.
    "CLAUDE_CODE_IDLE_COMPACT_MIN_TOKENS": "1000000000",
}
"""Variables that are set for the CLI unless the operator sets them."""
