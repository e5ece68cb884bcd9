"""Any line-oriented CLI, by configuration alone: bridge/adapter/line_mode.py with the operator's
settings. AGENT_BINARY and AGENT_ARGS name the command.

With AGENT_TEXT_FIELD, each line is a JSON object, that member is the agent's text, and other lines
become a status. AGENT_APPROVAL_PATTERN matches questions, AGENT_END_PATTERN the request for the
next prompt.
"""

from __future__ import annotations

import re
from typing import ClassVar

from bridge.adapter import Ability, Adapter, AgentConfig
from bridge.adapter.line_mode import PROMPT, LineAdapter, TerminalAdapter, compiled, in_arguments


class Generic(LineAdapter):
    shorter = (
        f"the prompt is one of them, and the system takes up to 128 KiB for it. Leave {PROMPT} out "
        "of AGENT_ARGS, so that the CLI reads the prompt from stdin, or send a shorter text"
    )
    name = "generic"
    title = "The agent"
    limitations: ClassVar[dict[Ability, str]] = {
        **LineAdapter.limitations,
        "models": "AGENT_ARGS choose the model",
    }

    @classmethod
    def unsupported_reason(cls, config: AgentConfig) -> str | None:
        lines = config.lines
        for name, pattern in (("APPROVAL", lines.question), ("END", lines.end)):
            try:
                compiled(pattern)
            except re.error as error:
                return f"AGENT_{name}_PATTERN is not a regular expression: {error}."
        if len(lines.answers) != 2:
            return "AGENT_APPROVAL_RESPONSE needs two answers, to allow and to deny, as in `y,n`."
        if lines.end and in_arguments(config):
            return (
                f"AGENT_END_PATTERN is for a CLI that reads one prompt after the other on stdin; "
                f"with {PROMPT} in AGENT_ARGS each turn is a process."
            )
        return None

    @classmethod
    def variant_for(cls, config: AgentConfig) -> type[Adapter]:
        return GenericTerminal if config.lines.terminal else cls


class GenericTerminal(Generic, TerminalAdapter):
    """With AGENT_PTY."""


ADAPTER = Generic
