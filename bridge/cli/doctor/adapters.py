"""`coding-agent-bridge adapters`: all adapters with their abilities and limitations."""

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
questions: asks the client before it acts    deltas: streams its text
resume: continues a conversation in a new process    interrupt: cancels a turn by a command
models: supports the choice of a model    steer: a message joins the running turn
images: the model sees them; otherwise the prompt names them as files
agent: depends on the program (AGENT_BINARY) or on the recording
unproved: according to its documentation; the project did not run it"""


def adapters(for_programs: bool) -> int:
    """Print all adapters. `for_programs`: as one JSON object; later versions may add members."""
    rows = [_row(name) for name in registry.names()]
    print(json.dumps({"adapters": rows}, indent=2) if for_programs else _table(rows))
    return 0


def _row(name: str) -> dict[str, Any]:
    try:
        adapter = registry.load(name).variant_for(AgentConfig(""))  # the default settings
    except (
        ConfigurationError,
        ImportError,
        AttributeError,
    ) as error:  # an adapter of another package
        return {"name": name, "error": str(error)}
    return {
        "name": name,
        "title": adapter.title,
        "program": adapter.binary or None,
        "abilities": {column: ability(adapter, column) for column in COLUMNS},
        "modes": list(adapter.modes),
        "lacks": dict(adapter.limitations),
    }


def ability(adapter: type[Adapter], name: str) -> str:
    """yes, no, agent (it depends on the program or on the recording), or unproved (according to the
    documentation of the CLI)."""
    if name == "steer":
        return "yes" if adapter.steers else "no"
    kinds = {kind.partition("/")[0] for kind in adapter.input_modes}
    if name in adapter.limitations or (name == "images" and not {"*", "image"} & kinds):
        return "no"
    if not adapter.binary:
        return "agent"
    return "yes" if adapter.verified else "unproved"


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
    """The reasons of each "no", and the adapters that could not be loaded."""
    reasons = [
        f"  {row['name']}: no {name}: {why}"
        for row in rows
        for name, why in row.get("lacks", {}).items()
    ]
    broken = [f"  {row['name']}: {row['error']}" for row in rows if "error" in row]
    for title, lines in (("limitations", reasons), ("cannot be loaded", broken)):
        if lines:
            yield from ("", title, *lines)
