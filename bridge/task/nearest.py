"""The hint at the name that a person probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], least: float = 0.6) -> str:
    """A hint at the known name that is most similar to `name`, as a sentence; "" if the
    similarity of all names is below `least` (0 to 1)."""
    close = difflib.get_close_matches(name, list(known), 1, least)
    return f" Did you mean {close[0]}?" if close else ""
