"""The transcripts of the client in the documents are those of today's commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.cli.client.arguments import BUILDERS
from tests.support import client_compliance
from tests.support.client_transcripts import DOCUMENTS, reading, with_transcripts
from tests.support.documents import with_compliance


@pytest.mark.soak
async def test_each_transcript_is_what_its_command_prints(tmp_path: Path) -> None:
    """Six seconds: forty commands, three of them at a terminal."""
    async with reading(tmp_path) as reader:
        for document in DOCUMENTS:
            page = document.read_text("utf-8")
            assert await with_transcripts(page, reader) == page


def test_each_command_has_a_transcript() -> None:
    page = "".join(document.read_text("utf-8") for document in DOCUMENTS)
    own = set(BUILDERS) - {"mcp"}  # docs/mcp.md has it
    assert [word for word in sorted(own) if f"\n$ cab {word}" not in page] == []


def test_the_compliance_of_the_client_is_the_one_of_its_tests() -> None:
    assert list(client_compliance.missing()) == []
    page = client_compliance.PAGE.read_text("utf-8")
    assert with_compliance(page) == page
    assert client_compliance.REPORT.read_text("utf-8") == client_compliance.report()


def test_each_row_passes_by_a_test_or_has_a_reason() -> None:
    rows = client_compliance.ROWS
    assert [sum(row.tier == tier for row in rows) for tier in (1, 2)] == [39, 15]
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        assert row.note if row.status != "pass" else row.tests and not row.note, row.name
    assert all(row.status == "pass" for row in rows if row.tier == 1)
