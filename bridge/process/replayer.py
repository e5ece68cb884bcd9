"""Stands in for a recorded CLI: prints its output, and waits at the places of its input.

    python replayer.py RECORDING SPEED

A program of its own, with only the standard library, so that it starts in milliseconds.
The recording is JSON lines `{"t": seconds, "dir": "in"|"out"|"err"|"note", "data": …}`. At an
"in" line the player waits for a line of the same kind from its own stdin. An answer that differs
from the recorded decision ends the turn, because the recording has no continuation for it.
After its last line the recording begins again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

# Kinds of input that the CLI waited for. Others, such as a handshake, were only answered.
AWAITED = ("user", "control_response", "prompt", "answer")


class OtherAnswer(Exception):
    """The client decided otherwise than in the recording."""


def main(path: str, speed: float) -> None:
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file if line.strip()]
    given = read_stdin()
    while True:
        try:
            play(lines, speed, given)
        except OtherAnswer as other:
            say(json.dumps({"type": "bridge/replay", "text": str(other)}, separators=(",", ":")))


def play(lines: list[dict[str, Any]], speed: float, given: Iterator[dict[str, Any]]) -> None:
    before = 0.0
    names: dict[str, str] = {}  # ids of the recorded input that the CLI repeats → those given
    for line in lines:
        pause, before = line["t"] - before, line["t"]
        kind, data = line["dir"], line["data"]
        if awaited(line):
            names |= wait_for(data, given)
        elif kind in ("out", "err"):
            if speed > 0 and pause > 0:
                time.sleep(pause / speed)
            text = data if isinstance(data, str) else json.dumps(data)
            for recorded, name in names.items():
                text = text.replace(recorded, name)
            say(text, sys.stdout if kind == "out" else sys.stderr)
        elif kind == "note" and isinstance(data, dict) and data.get("rc"):
            sys.exit(data["rc"] if data["rc"] > 0 else 128 - data["rc"])
    # A recording that was not told anything would play for ever.
    if not any(map(awaited, lines)) and next(given, None) is None:
        sys.exit(0)


def awaited(line: dict[str, Any]) -> bool:
    """Whether the CLI waited for this line of its input."""
    data = line["data"]
    return line["dir"] == "in" and isinstance(data, dict) and data.get("type") in AWAITED


def wait_for(recorded: dict[str, Any], given: Iterator[dict[str, Any]]) -> dict[str, str]:
    """Wait for a line such as `recorded`. Returns its id in place of the recorded one."""
    for line in given:
        if line.get("type") == recorded["type"]:
            wanted, chosen = decision(recorded), decision(line)
            if wanted and chosen and wanted != chosen:
                raise OtherAnswer(
                    f"The recording goes on only with the answer {wanted!r}; yours was "
                    f"{chosen!r}, so the replay ends here."
                )
            if recorded.get("uuid") and line.get("uuid"):
                return {recorded["uuid"]: line["uuid"]}
            return {}
    sys.exit(0)  # end of stdin


def decision(line: dict[str, Any]) -> str | None:
    """The answer to a permission: Claude Code's `behavior`, or the option's id."""
    response = line.get("response") or {}
    found = (response.get("response") or {}).get("behavior") or line.get("optionId")
    return str(found) if found else None


def read_stdin() -> Iterator[dict[str, Any]]:
    for text in sys.stdin:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            yield line


def say(text: str, stream: Any = None) -> None:
    print(text, file=stream or sys.stdout, flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1], float(sys.argv[2]))
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(0)
