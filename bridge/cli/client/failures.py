"""The report of a failed command: a line for people, or one JSON object."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bridge.cli.client.folding import message, width_of
from bridge.client.failure import ClientError


def report(error: ClientError, as_json: bool) -> int:
    """Print the error. Returns the exit status."""
    if as_json:
        import json

        facts = {
            "code": error.code,
            "message": str(error),
            "hint": error.hint,
            "a2aCode": error.a2a_code,
        }
        print(json.dumps({"error": facts}), flush=True)
        return error.status
    # A server's text cannot control the terminal.
    text = "".join(one if one.isprintable() or one == "\n" else "\ufffd" for one in str(error))
    shown = message(f"coding-agent-bridge: {error.code}: {text}", width_of(sys.stderr))
    print(shown, file=sys.stderr)
    if error.hint:
        print(f"Hint: {error.hint}", file=sys.stderr)
    return error.status


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether a command line asks for JSON, before it is parsed."""
    pairs = zip(arguments, [*arguments[1:], ""], strict=True)
    joined = ("-ojson", "-o=json", "--output=json")
    return any(
        one in joined or (one in ("-o", "--output") and value == "json") for one, value in pairs
    )
