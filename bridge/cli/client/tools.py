"""The tools of an agent on a screen: a line for each, and the first lines of its output."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from bridge.cli.client.card import Line, change_style
from bridge.cli.client.task_table import money
from bridge.task.events import ToolCall, ToolResult
from bridge.task.inputs import COMMANDS, PATHS, URLS, first_of
from bridge.task.subject import numbered
from bridge.task.text import one_line, visible

MOST_LINES = 5  # of an output
_LONGEST = 2_000  # characters of a line of an output
_OTHERS = (frozenset({"pattern", "query"}), frozenset({"description", "prompt"}))


def label_of(call: ToolCall, directory: str | None) -> str:
    """`Bash pytest -q`: the name of a tool and its subject, relative to the directory."""
    given = call.input
    if isinstance(given, dict):
        names = (COMMANDS, PATHS, URLS, *_OTHERS)
        found = next(filter(None, (first_of(one, given) for one in names)), None)
        given = found or (json.dumps(given, ensure_ascii=False) if given else "")
    subject = given if isinstance(given, str) else ""
    return one_line(f"{call.name or 'Tool'} {relative(subject, directory)}").strip()


def relative(text: str, directory: str | None) -> str:
    """`text` without the directory before the names of its files."""
    if not directory:
        return text
    return re.sub(rf"(?<![^\s'\"=:]){re.escape(directory.rstrip('/'))}/(?=[^\s/])", "", text)


def head_of(result: ToolResult, label: str, seconds: float | None) -> Line:
    """The line of a tool that has ended, and its style. Its mark is not one of a decision, because
    the agent chooses the name."""
    parts = [f"● {label}", *(["failed"] if result.is_error else [])]
    if result.changes:
        lines = [line for one in result.changes for line in one.diff.splitlines()]
        added = sum(line.startswith("+") and not line.startswith("+++ ") for line in lines)
        removed = sum(line.startswith("-") and not line.startswith("--- ") for line in lines)
        parts[0] += f" +{added} \N{MINUS SIGN}{removed}"
    if seconds is not None and seconds >= 0.1:
        parts.append(f"{seconds:.1f} s" if seconds < 60 else duration(seconds))
    return " · ".join(parts), "red" if result.is_error else "green"


def output_of(result: ToolResult) -> str:
    """The part of a result that a person reads: the changes of files, or else the output."""
    diffs = [numbered(change.diff) for change in result.changes if change.diff]
    if diffs and not result.is_error:
        return visible("\n".join(diffs))
    return visible(_text(result.output)).strip("\n")


def _text(output: Any) -> str:
    """The text of an output: CLIs send a text, a list of parts, or any other object."""
    match output:
        case None:
            return ""
        case str():
            return output
        case list() if all(isinstance(one, dict) and "text" in one for one in output):
            return "\n".join(str(one["text"]) for one in output)
        case {"text": str(text)} | {"output": str(text)} | {"stdout": str(text)}:
            return text
    return json.dumps(output, indent=2, ensure_ascii=False)


def first_lines(output: str, is_change: bool) -> Iterator[Line]:
    """The first lines of an output, and the number of the others."""
    lines = output.split("\n") if output else []
    most = MOST_LINES if len(lines) > MOST_LINES else len(lines)
    for number, line in enumerate(lines[:most]):
        mark = "⎿ " if number == 0 else "  "
        yield f"{mark}{line[:_LONGEST]}", (change_style(line) if is_change else "") or "dim"
    if len(lines) > most:
        yield f"  … {len(lines) - most} more lines: o", "dim"


def duration(seconds: float) -> str:
    """`0:05`, `1:02:03`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def figures(seconds: float | None, tokens: Any, cost: Any) -> Sequence[str]:
    """The time, the tokens and the cost of a task, as far as they are known."""
    parts = [] if seconds is None else [duration(seconds)]
    if isinstance(tokens, int):
        parts.append(f"{tokens:,} tokens")
    if isinstance(cost, int | float):
        parts.append(money(cost))
    return parts
