"""The day of the last use of a token."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from bridge.server.operate.last_use import NAME, LastUse


async def test_the_day_survives_a_restart_and_unknown_names_do_not_count(tmp_path: Path) -> None:
    days = ["2026-01-02"]
    first = LastUse(tmp_path, lambda: {"anna"}, lambda: days[0])
    assert first.of("anna") is None
    first.used("anna")
    first.used("bert")
    await asyncio.get_running_loop().shutdown_default_executor()
    again = LastUse(tmp_path, lambda: {"anna"}, lambda: days[0])
    assert (again.of("anna"), again.of("bert")) == ("2026-01-02", None)
    assert (tmp_path / NAME).stat().st_mode & 0o077 == 0


async def test_a_damaged_file_is_no_error(tmp_path: Path) -> None:
    """What a crash has left beside it goes."""
    for name in (NAME, f"{NAME}.2bde8e1069c23ab7"):
        (tmp_path / name).write_text("[1]")
    assert LastUse(tmp_path, lambda: {"anna"}).of("anna") is None
    assert os.listdir(tmp_path) == [NAME]
