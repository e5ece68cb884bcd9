"""The sizes of the code stay below their bars. A bar is raised in a commit of its own, with its
reason, and never in the commit that breaks it."""

from __future__ import annotations

from scripts.figures import BARS, figures
from tests import CHECKOUT


def test_no_size_of_the_code_is_above_its_bar() -> None:
    """Reads all files, which takes seconds."""
    found = {one.name: one for one in figures()}
    assert set(found) == set(BARS)
    above = [one for one in found.values() if one.value > BARS[one.name].most]
    assert not above, above


def test_the_table_of_the_design_has_the_same_bars() -> None:
    page = (CHECKOUT / "docs/design.md").read_text("utf-8")
    for name, bar in BARS.items():
        assert f"| {name} | {bar.most:,} | {bar.goal:,} |" in page, name
