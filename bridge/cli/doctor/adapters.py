"""`coding-agent-bridge adapters`: all that can be served, and what each can and cannot do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

from bridge.adapter import Ability, Adapter, AgentConfig
from bridge.errors import ConfigurationError
from bridge.server import registry

ABILITIES: tuple[Ability, ...] = get_args(Ability)
COLUMNS = (*ABILITIES, "steer", "images")
LEGEND = """\
questions: it asks before it acts    deltas: its words come as they are made
resume: a conversation goes on in a new process    interrupt: a turn is cancelled in its own way
models: it can be told which to use    steer: a message joins the running turn
images: the model sees them; else they are files that the prompt names
agent: as the agent does, which the operator names (AGENT_BINARY), or which was recorded
unproved: as its documentation says; it was not run by us"""


def adapters(for_programs: bool) -> int:
    """Print them. `for_programs`: one JSON object; its members may become more."""
    rows = [_row(name) for name in registry.names()]
    print(json.dumps({"adapters": rows}, indent=2) if for_programs else _table(rows))
    return 0


def _row(name: str) -> dict[str, Any]:
    try:
        adapter = registry.load(name).suited(AgentConfig(""))  # where nothing is set
    except (ConfigurationError, ImportError, AttributeError) as error:  # another package's
        return {"name": name, "error": str(error)}
    return {
        "name": name,
        "title": adapter.title,
        "program": adapter.binary or None,
        "abilities": {column: ability(adapter, column) for column in COLUMNS},
        "modes": list(adapter.modes),
        "lacks": dict(adapter.lacks),
    }


def ability(adapter: type[Adapter], name: str) -> str:
    """yes, no, agent (as the program does that the operator names, or that was recorded), or
    unproved: as its documentation says."""
    if name == "steer":
        return "yes" if adapter.steers else "no"
    kinds = {kind.partition("/")[0] for kind in adapter.input_modes}
    if name in adapter.lacks or (name == "images" and not {"*", "image"} & kinds):
        return "no"
    if not adapter.binary:
        return "agent"
    return "yes" if adapter.proved else "unproved"


def _table(rows: list[dict[str, Any]]) -> str:
    whole = [row for row in rows if "error" not in row]
    head = ("adapter", "program", *COLUMNS, "modes")
    lines = [head, *(_cells(row) for row in whole)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(head))]
    table = [
        "  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([*table, "", LEGEND, *_remarks(rows)])


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    abilities = (row["abilities"][column] for column in COLUMNS)
    modes = ", ".join(row["modes"]) or "-"
    return (row["name"], row["program"] or "-", *abilities, modes)


def _remarks(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Why the noes, and what could not be loaded."""
    reasons = [
        f"  {row['name']}: no {name}: {why}"
        for row in rows
        for name, why in row.get("lacks", {}).items()
    ]
    broken = [f"  {row['name']}: {row['error']}" for row in rows if "error" in row]
    for title, lines in (("what they lack", reasons), ("cannot be loaded", broken)):
        if lines:
            yield from ("", title, *lines)
