"""The doctor's check of BRIDGE_SHARE."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bridge.adapter import Adapter
from bridge.cli.doctor.shares import shares
from bridge.server import registry
from bridge.server.settings.root import Settings

URL = "postgresql://db.example/bridge"


def checked(folder: Path, adapter: type[Adapter], store: str = URL) -> list[tuple[str, str]]:
    given: dict[str, Any] = {"bridge_store": store, "bridge_share": f"s={folder}"}
    found = shares(Settings().updated(given), [adapter])
    return [(one.status, one.text) for one in found if "control groups" not in one.text]


def test_a_folder_that_can_be_written_is_a_share_and_stays_empty(tmp_path: Path) -> None:
    class Movable(registry.load("jsonl")):  # type: ignore[misc]
        resumes_elsewhere = True

    assert checked(tmp_path, Movable) == [("ok", f"s: files can be written in {tmp_path}")]
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_and_an_agent_that_cannot_move_are_reported(tmp_path: Path) -> None:
    (status, text), (second, pinned) = checked(tmp_path / "x", registry.load("jsonl"))
    assert (status, second) == ("failed", "note")
    assert "No such file" in text and "stay on this one" in pinned


def test_a_share_without_a_database_has_no_effect(tmp_path: Path) -> None:
    ((status, text),) = checked(tmp_path, registry.load("jsonl"), "durable")
    assert status == "note" and "no effect" in text


def test_without_shares_nothing_is_checked() -> None:
    assert list(shares(Settings(), [])) == []
