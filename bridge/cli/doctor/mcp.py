"""MCP servers in the configuration of a CLI: a bridge among them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from bridge.cli.doctor.report import Check, note
from bridge.server.agents.configured import ConfiguredAgent

# Files of MCP servers below the home folder or the workspace, by the beginning of adapter names.
MCP_FILES = (
    ("claude", (".claude.json", ".mcp.json")),
    ("codex", (".codex/config.toml",)),
    ("copilot", (".copilot/mcp-config.json", ".mcp.json")),
    ("cursor", (".cursor/mcp.json",)),
    ("gemini", (".gemini/settings.json",)),
    ("opencode", (".config/opencode/opencode.json", "opencode.json")),
)
MCP_ENTRY = re.compile(r"coding-agent-bridge|mcpServers.{0,400}127\.0\.0\.1:\d+/mcp", re.DOTALL)


def own_entries(agent: ConfiguredAgent) -> Iterator[Check]:
    """Files of the CLI that name a bridge as an MCP server. The bridge refuses its own agents."""
    names = next((files for name, files in MCP_FILES if agent.adapter.name.startswith(name)), ())
    home, workspace = os.path.expanduser("~"), agent.settings.agent.workspaces.default
    for path in (os.path.join(top, name) for top in (home, workspace) for name in names):
        with suppress(OSError):
            if MCP_ENTRY.search(Path(path).read_text("utf-8", "replace")):
                text = f"{path} names a bridge: it is for your own sessions of this CLI"
                yield note("mcp", f"{text}; a task of a bridge cannot use it", file=path)
