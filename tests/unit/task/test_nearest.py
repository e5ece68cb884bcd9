"""Hints at similar names."""

from __future__ import annotations

from bridge.task.nearest import nearest


def test_a_similar_name_is_a_hint() -> None:
    assert nearest("SendMesage", ["GetTask", "SendMessage"]) == " Did you mean SendMessage?"
    assert nearest("message/stram", ["message/stream"]) == " Did you mean message/stream?"


def test_no_name_is_similar() -> None:
    assert nearest("nothing", ["GetTask"]) == nearest("x", []) == ""
