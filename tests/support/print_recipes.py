"""The settings of `generic` for the print modes of other CLIs, read from docs/agents.md."""

from __future__ import annotations

import re
from pathlib import Path

from tests import CHECKOUT

CODE = re.compile("`([^`]+)`")
INSIDE = {"CODEX_HOME": ".codex"}
"""Where the variable names a folder in the one that the tests configure as a home."""


def rows() -> dict[str, list[list[str]]]:
    """The cells of the table by AGENT_BINARY, each as its pieces of code."""
    section = (CHECKOUT / "docs/agents.md").read_text("utf-8").split("\n## Print modes\n")[1]
    table = section.split("\n## ")[0].split("|---|\n")[1].split("\n\n")[0]
    cells = [
        [CODE.findall(cell) for cell in line.strip("|").split(" | ")] for line in table.split("\n")
    ]
    return {binary: row for (binary,), *row in cells}


def recipe(binary: str, folder: Path, *, allows: bool = True) -> dict[str, str]:
    """The settings, with `folder` as the folder of the CLI. `allows`: every action."""
    (args, *more), force, names, folders = rows()[binary]
    return {
        "AGENT_ADAPTER": "generic",
        "AGENT_ARGS": " ".join([args, *(force if allows else ())]),
        "AGENT_ENV": names[0],
        "BRIDGE_SANDBOX_WRITE": f"{folder}/",
        **dict(one.split("=") for one in more),
        **{name: str(folder / INSIDE.get(name, "")) for name in folders},
    }
