"""Words for CLIs that take what begins with `/` for a command of theirs.

Run against six CLIs over ACP, and the print modes of gemini and copilot. Most of them cut off a
space or a newline in front before they look, and put a block of its own together with the next one.
"""

from __future__ import annotations

UNSEEN = "\u200b"  # a zero-width space, which is no white space to any language's trim()


def plain(text: str, signs: str = "/") -> str:
    """`text`, which is no command if it was one. One that begins with none of the `signs` is as it
    was."""
    seen = next((one for one in text if one.isprintable() and one != " "), "")
    return f"{UNSEEN}{text}" if seen and seen in signs else text
