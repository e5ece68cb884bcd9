"""The errors about unknown names, with a hint at the name that a person probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from bridge.task.text import one_line

LONGEST_NAME = 100  # characters of an unknown name that are shown and compared


def nearest(name: str, known: Iterable[str], least: float = 0.6) -> str:
    """A hint at the known name that is most similar to `name`, as a sentence; "" if the
    similarity of all names is below `least` (0 to 1)."""
    close = difflib.get_close_matches(name, list(known), 1, least)
    return f" Did you mean {close[0]}?" if close else ""


def unknown_method(method: str, known: Collection[str]) -> str:
    """The error for an unknown method: `Unknown method 'GetTsk'. Did you mean GetTask?`"""
    shown = method[:LONGEST_NAME]
    return f"Unknown method {shown!r}.{nearest(shown, known)}"


def no_such(what: str, name: str, known: Collection[str]) -> str:
    """The error for an unknown name: `No agent foo. Agents: bar, fool. Did you mean fool?`"""
    shown, names = one_line(name[:LONGEST_NAME]), ", ".join(known) or "none"
    return f"No {what} {shown}. {what.capitalize()}s: {names}.{nearest(shown, known)}"
