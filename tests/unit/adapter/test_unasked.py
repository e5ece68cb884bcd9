"""The status of an activity that no task asked for."""

from __future__ import annotations

from bridge.adapter.unasked import UNASKED, unasked


def test_it_has_a_text_and_an_object() -> None:
    said = unasked("request", "Bash", {"command": "ls"})
    assert "Bash" in said.text
    facts = {"kind": "request", "name": "Bash", "input": {"command": "ls"}}
    assert said.data == {"type": UNASKED, **facts}


def test_without_an_input_it_has_none() -> None:
    assert unasked("turn", "x").data == {"type": UNASKED, "kind": "turn", "name": "x"}
