"""The transcripts of docs/client.md are those of today's commands."""

from __future__ import annotations

from pathlib import Path

from bridge.cli.client.arguments import BUILDERS
from tests.support.client_transcripts import DOCUMENT, reading, with_transcripts


async def test_each_transcript_is_what_its_command_prints(tmp_path: Path) -> None:
    """Six seconds: forty commands, three of them at a terminal."""
    page = DOCUMENT.read_text("utf-8")
    async with reading(tmp_path) as reader:
        assert await with_transcripts(page, reader) == page


def test_each_command_has_a_transcript() -> None:
    page = DOCUMENT.read_text("utf-8")
    assert [word for word in BUILDERS if f"\n$ cab {word}" not in page] == []
