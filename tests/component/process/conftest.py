"""Fixtures of the tests of processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bridge.process.process_tree import reap_orphans
from tests.support import children as started
from tests.support.spools import WITHIN, Children


@pytest.fixture
async def children(tmp_path: Path) -> AsyncIterator[Children]:
    """Afterwards no child is left."""
    reap_orphans()  # of servers that other tests ended by force
    made = Children(tmp_path)
    yield made
    await made.stop()
    left = started.children()
    for process in left:
        process.kill()
        process.wait(WITHIN)
    assert left == []
