"""How Codex is kept from what it would run of a repository."""

from __future__ import annotations

import orjson

from bridge.adapter import AgentConfig, SessionStart


def closed(config: AgentConfig, start: SessionStart) -> list[str]:
    """Arguments that say of the workspace, and of all folders above it, that they are not trusted:
    each has a configuration of its own. The operator's file may say otherwise."""
    if config.project_config:
        return []
    names = start.cwd.rstrip("/").split("/")
    folders = ["/".join(names[:count]) or "/" for count in range(len(names), 0, -1)]
    table = ",".join(f'{_quoted(folder)}={{trust_level="untrusted"}}' for folder in folders)
    return ["-c", f"projects={{{table}}}"]


def _quoted(folder: str) -> str:
    return orjson.dumps(folder).decode()  # a string of JSON is one of TOML
