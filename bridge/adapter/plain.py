"""Prompts for CLIs that read a text with a leading `/` as a command.

Run against six CLIs over ACP, and the print modes of gemini and copilot. Most of them strip a
leading space or newline first, and join a separate block with the next one.
"""

from __future__ import annotations

UNSEEN = "\u200b"  # a zero-width space, which trim() of most languages does not strip


def plain(text: str, signs: str = "/") -> str:
    """`text` in a form that is not a command. Unchanged if it begins with none of the `signs`."""
    seen = next((one for one in text if one.isprintable() and one != " "), "")
    return f"{UNSEEN}{text}" if seen and seen in signs else text
