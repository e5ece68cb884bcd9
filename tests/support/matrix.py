"""The scenarios of every real CLI (tests/real/test_matrix.py) and their table in docs/agents.md,
which `python -m tests.support.documents` writes. A run of the tests prints the table of its
results."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from tests.support.cli_row import Cli
from tests.support.real_clis import CLIS

SCENARIOS = {
    "stream": "text arrives as a stream",
    "tool": "updates show a command and its output",
    "allow": "the client allows a permission that the agent asks for",
    "deny": "the client denies a permission",
    "cancel asked": "a cancel while a question is open",
    "cancel running": "a cancel while a command runs, and no process remains",
    "after a cancel": "a conversation resumes after a cancel, also of its first turn",
    "two turns": "two turns in one session and one process",
    "resume": "a conversation resumes in a new process of a new server",
    "model error": "an error of the model fails the task with its reason",
    "no binary": "the server names a missing CLI at its start",
}
CANNOT: dict[tuple[str, str], str] = {}
"""The scenarios that a CLI cannot pass by its nature, with the reason; by name and scenario."""
NOTES: dict[tuple[str, str], str] = {
    ("codex", "cancel running"): "the command has permission to leave the CLI's own sandbox",
    ("codex-acp", "cancel running"): "as for `codex`",
    ("grok", "allow"): "it runs some commands in the workspace without a question, such as `touch`",
    ("hermes", "allow"): "it asks only before commands that its own patterns call dangerous",
    (
        "openhands",
        "tool",
    ): "without tmux, because the sandbox refuses its socket, and with "
    "write access to `~/.openhands/cache` (`BRIDGE_SANDBOX_WRITE`)",
    ("aider", "tool"): "it does not call its model again after a command",
}
"""Remarks on a cell."""


@contextmanager
def cell(record_property: Callable[[str, object], None], cli: Cli, scenario: str) -> Iterator[None]:
    """Record the outcome of a scenario of a CLI with the pytest fixture `record_property`."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"scenario: {scenario}")
        record_property("cell", (cli.name, scenario, "FAILED"))
        raise
    record_property("cell", (cli.name, scenario, "yes"))


def table(outcomes: Mapping[tuple[str, str], str]) -> str:
    """The matrix as Markdown, with the outcome of each CLI (by name) in each scenario."""
    lines = [
        f"| CLI | {' | '.join(SCENARIOS)} |",
        f"|---|{'---|' * len(SCENARIOS)}",
    ]
    for cli in CLIS:
        found = [outcomes.get((cli.name, scenario), "?") for scenario in SCENARIOS]
        lines.append(f"| `{cli.name}` {cli.version} | {' | '.join(found)} |")
    meanings = [f"{name}: {meaning}" for name, meaning in SCENARIOS.items()]
    notes = [
        textwrap.fill(f"* `{name}`, {cell}: {why}.", 100, subsequent_indent="  ")
        for (name, cell), why in (CANNOT | NOTES).items()
    ]
    legend = textwrap.fill(f"{'; '.join(meanings)}.", 100)
    return "\n".join([*lines, "", legend, "", *notes]) + "\n"


def promised() -> dict[tuple[str, str], str]:
    """The outcomes that the tests must show."""
    return {
        (cli.name, scenario): "no" if (cli.name, scenario) in CANNOT else "yes"
        for cli in CLIS
        for scenario in SCENARIOS
    }
