"""One line for each tool that an agent uses: its name, its subject and its outcome."""

from __future__ import annotations

import json

from bridge.client.shapes import Json
from bridge.task.text import one_line, readable

_SUBJECTS = ("command", "cmd", "file_path", "path", "pattern", "url", "query", "description")


def tool_label(facts: Json) -> str:
    """`Bash pytest -q`: the name of a tool and its subject."""
    given = facts.get("input")
    if isinstance(given, dict):
        found = next((given[name] for name in _SUBJECTS if given.get(name)), None)
        given = found if isinstance(found, str) else json.dumps(given) if given else ""
    subject = given if isinstance(given, str) else ""
    return one_line(f"{facts.get('name') or 'Tool'} {subject}").strip()


def result_line(facts: Json, label: str) -> tuple[str, str]:
    """A line for a finished tool, and its style."""
    if facts.get("status") == "failed":
        output = facts.get("output")
        reason = one_line(output) if isinstance(output, str) else ""
        return f"✗ {label}" + (f" ({readable(reason, 80)})" if reason else ""), "red"
    counts = ""
    changes = [one for one in facts.get("changes") or () if isinstance(one, dict)]
    if changes:
        lines = [line for one in changes for line in str(one.get("diff") or "").splitlines()]
        added = sum(line.startswith("+") and not line.startswith("+++") for line in lines)
        removed = sum(line.startswith("-") and not line.startswith("---") for line in lines)
        counts = f" +{added} \N{MINUS SIGN}{removed}"
    return f"✓ {label}{counts}", "green"
