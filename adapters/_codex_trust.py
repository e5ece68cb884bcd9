"""The switches that keep Codex from running files of a repository, and from turns of its own."""

from __future__ import annotations

import orjson

from bridge.adapter import AgentConfig, SessionStart
from bridge.adapter.fields import as_dict
from bridge.task.text import json_object

# A goal makes Codex begin turns after the end of the task, also when its thread is resumed.
NO_GOALS = ("--config=features.goals=false",)


def without_goals(config: str | None) -> str:
    """The same for codex-acp: its CODEX_CONFIG, a JSON object, from that of the operator."""
    given = json_object((config or "{}").encode())
    if given is None:  # the CLI names the mistake
        return config or ""
    features = {**as_dict(given.get("features")), "goals": False}
    return orjson.dumps({**given, "features": features}).decode()


def closed(config: AgentConfig, start: SessionStart) -> list[str]:
    """Arguments that mark the workspace and all folders above it as untrusted: each may have a
    configuration. The operator's file can override them."""
    if config.project_config:
        return []
    names = start.cwd.rstrip("/").split("/")
    folders = ["/".join(names[:count]) or "/" for count in range(len(names), 0, -1)]
    # A string of JSON is a string of TOML.
    table = ",".join(
        f'{orjson.dumps(folder).decode()}={{trust_level="untrusted"}}' for folder in folders
    )
    return ["-c", f"projects={{{table}}}"]
