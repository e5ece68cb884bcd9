"""What every real CLI is tried in (tests/test_matrix.py), and the table that says so in README.md:
`python -m tests.documents` writes it there, and a run of the tests prints what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tests.real_clis import CLIS, Cli

SCENARIOS = {
    "stream": "a text arrives as a stream",
    "tool": "a command is run, told of and its output told",
    "allow": "a permission is asked for and given",
    "deny": "a permission is asked for and denied",
    "cancel asked": "a cancel while a permission is open",
    "cancel running": "a cancel while a command runs, with no process left",
    "after a cancel": "a conversation is loaded and goes on after a cancel, also of its first turn",
    "two turns": "two turns in one session and one process",
    "resume": "a conversation goes on in a new process of a new server",
    "model error": "an error of the model fails the task and says why",
    "no binary": "a CLI that is missing is named at the start",
}
CANNOT: dict[tuple[str, str], str] = {}
"""What a CLI cannot do by its nature, with the reason; by name and scenario."""
NOTES: dict[tuple[str, str], str] = {
    ("gemini", "resume"): "the task waits for the next minute where the conversation began in this "
    "one, of which the CLI cannot find its own file",
    ("codex", "cancel running"): "the command is one that was allowed to leave the sandbox",
    ("codex-acp", "cancel running"): "as with `codex`",
    ("aider", "tool"): "its model is not asked again after a command",
}
"""What else there is to know of a cell."""


def cells(scenario: str) -> Iterable[Cli]:
    """The CLIs that are tried in it."""
    return [cli for cli in CLIS if (cli.name, scenario) not in CANNOT]


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
    notes = [f"* `{name}`, {cell}: {why}." for (name, cell), why in (CANNOT | NOTES).items()]
    return "\n".join([*lines, "", f"{'; '.join(meanings)}.", "", *notes]) + "\n"


def promised() -> dict[tuple[str, str], str]:
    """What the tests must show."""
    return {
        (cli.name, scenario): "no" if (cli.name, scenario) in CANNOT else "yes"
        for cli in CLIS
        for scenario in SCENARIOS
    }
