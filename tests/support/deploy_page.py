"""The blocks of docs/deploy.md."""

from __future__ import annotations

import re

from tests import CHECKOUT

PAGE = (CHECKOUT / "docs/deploy.md").read_text("utf-8")
BLOCKS = [(kind, text) for kind, text in re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)]


def of(kind: str) -> list[str]:
    found = [text for name, text in BLOCKS if name == kind]
    assert found
    return found


def block_with(text: str) -> str:
    """The one block of a shell that contains `text`."""
    (found,) = (block for block in of("sh") if text in block)
    return found


def commands(block: str) -> list[str]:
    """The commands of a block, each with its further lines."""
    return re.findall(r"(?:.*\\\n)*.*\n", block)
