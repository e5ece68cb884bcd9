"""Hints at similar names."""

from __future__ import annotations

from bridge.task.nearest import nearest, no_such, unknown_method


def test_a_similar_name_is_a_hint() -> None:
    assert nearest("SendMesage", ["GetTask", "SendMessage"]) == " Did you mean SendMessage?"
    assert nearest("message/stram", ["message/stream"]) == " Did you mean message/stream?"


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    text = no_such("agent", "frist", ["first", "second"])
    assert text == "No agent frist. Agents: first, second. Did you mean first?"
    assert no_such("profile", "a\nb", []) == "No profile a b. Profiles: none."
    assert len(no_such("agent", "x" * 10_000, ["first"])) < 200
    assert unknown_method("GetTsk", ["GetTask"]) == "Unknown method 'GetTsk'. Did you mean GetTask?"


def test_no_name_is_similar() -> None:
    assert nearest("nothing", ["GetTask"]) == nearest("x", []) == ""
