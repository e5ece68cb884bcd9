"""The mode of the next process of a conversation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.adapter import Adapter, SessionOptions, SessionStart
from bridge.adapter.modes import reported
from bridge.server import registry
from bridge.task.events import OptionKind
from tests.support.cases import each

START = SessionStart("/workspace", "id")
ClaudeCode = registry.load("claude-code")
ONCE: tuple[OptionKind, ...] = ("allow_once",)
ALWAYS: tuple[OptionKind, ...] = ("allow_always",)


def start(chosen: str | None = None, mode: str | None = None) -> SessionStart:
    return replace(START, options=SessionOptions(mode=chosen), mode=mode)


def after(
    before: SessionStart,
    mode: str,
    approvals: tuple[OptionKind, ...] = (),
    *,
    adapter: type[Adapter] = ClaudeCode,
    default: str | None = None,
) -> str | None:
    """The mode that the next process begins in."""
    found = reported(adapter, before, mode, default=default, approvals=approvals)
    return found.mode or found.options.mode


@each(
    ("chosen", "mode", "approvals", "kept"),
    [
        ("plan", "plan", (), "plan"),
        ("plan", "default", (), "plan"),
        ("plan", "default", ("reject_once",), "plan"),
        ("plan", "default", ONCE, "default"),
        ("plan", "acceptEdits", ONCE, "default"),
        ("plan", "acceptEdits", ALWAYS, "acceptEdits"),
        ("plan", "bypassPermissions", ALWAYS, "acceptEdits"),
        ("default", "plan", (), "plan"),
        ("default", "acceptEdits", (), "default"),
        ("default", "acceptEdits", ONCE, "default"),
        ("default", "acceptEdits", ALWAYS, "acceptEdits"),
        ("default", "auto", (), "default"),
        ("acceptEdits", "plan", (), "plan"),
        ("acceptEdits", "bypassPermissions", (), "acceptEdits"),
    ],
)
def test_a_report_counts_up_to_what_the_client_chose(
    chosen: str, mode: str, approvals: tuple[OptionKind, ...], kept: str
) -> None:
    assert after(start(chosen), mode, approvals) == kept


@each(
    ("default", "mode", "approvals", "kept"),
    [
        ("default", "default", (), None),
        ("default", "plan", (), "plan"),
        ("default", "acceptEdits", (), "default"),
        ("default", "acceptEdits", ALWAYS, "acceptEdits"),
        ("acceptEdits", "acceptEdits", (), None),
        ("bypassPermissions", "bypassPermissions", (), None),
        ("bypassPermissions", "plan", (), "plan"),
        (None, "acceptEdits", (), "default"),  # of a process that another server began
    ],
)
def test_without_a_choice_it_counts_up_to_the_default(
    default: str | None, mode: str, approvals: tuple[OptionKind, ...], kept: str | None
) -> None:
    assert after(start(), mode, approvals, default=default) == kept


def test_a_plan_of_the_agent_ends_in_what_the_client_had_chosen() -> None:
    assert after(start("acceptEdits", "plan"), "acceptEdits", ONCE) == "acceptEdits"
    assert after(start(None, "plan"), "default", ()) == "plan"
    assert after(start(None, "plan"), "default", ONCE) == "default"
    assert after(start(None, "plan"), "acceptEdits", (), default="acceptEdits") is None


def test_an_approved_plan_is_the_choice_from_then_on() -> None:
    found = reported(ClaudeCode, start("plan"), "default", default=None, approvals=ONCE)
    assert (found.options.mode, found.mode) == ("default", None)
    assert after(found, "default") == "default"


@pytest.mark.parametrize("name", ["acp", "kilo"])
def test_an_agent_without_a_list_of_modes_keeps_only_its_plan(name: str) -> None:
    adapter = registry.load(name)
    assert adapter.modes == ()
    assert after(start(), "plan", adapter=adapter, default="code") == "plan"
    assert after(start(), "yolo", adapter=adapter, default="code") is None
    assert after(start(None, "plan"), "yolo", adapter=adapter) == "plan"
    assert after(start(None, "plan"), "code", ONCE, adapter=adapter) is None


def test_the_order_of_an_adapter_has_all_of_its_modes() -> None:
    for name in registry.names():
        adapter = registry.load(name)
        assert not adapter.widths or set(adapter.widths) >= set(adapter.modes), name
        assert "plan" not in adapter.modes[1:] or adapter.widths or name == "codex", name
