"""The kind of a tool from its name: CLIs have names of their own for the same tools."""

from __future__ import annotations

import re
from collections.abc import Mapping

from bridge.telemetry.metrics.catalog import OTHER, TOOL_KINDS

_WORDS: Mapping[str, str] = {
    **{kind: kind for kind in TOOL_KINDS},
    **dict.fromkeys(("bash", "shell", "command", "exec", "run", "terminal"), "execute"),
    **dict.fromkeys(("write", "patch", "replace", "create", "multiedit", "notebookedit"), "edit"),
    **dict.fromkeys(("grep", "glob", "find", "ls", "list"), "search"),
    **dict.fromkeys(("webfetch", "websearch", "web", "browser", "http"), "fetch"),
    **dict.fromkeys(("view", "cat", "open"), "read"),
    **dict.fromkeys(("todowrite", "plan", "task", "todo"), "think"),
    **dict.fromkeys(("remove", "rm", "unlink"), "delete"),
    **dict.fromkeys(("rename", "mv"), "move"),
    **dict.fromkeys(("exitplanmode", "switchmode", "mode"), "switch_mode"),
}
_SEPARATOR = re.compile(r"[^a-z]+")
_LONGEST = 64  # characters of a name; a longer text is the title of one call


def kind_of(name: str) -> str:
    """One of TOOL_KINDS. An unknown name, and a tool of an MCP server, is `other`."""
    if len(name) > _LONGEST or name.startswith("mcp_"):
        return OTHER
    words = _SEPARATOR.split(name.lower())
    whole = _WORDS.get("".join(words))
    return whole or next((_WORDS[word] for word in words if word in _WORDS), OTHER)
