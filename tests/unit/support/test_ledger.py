"""The comparison of the updates that clients saw over several bindings."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.ledger import View, check_view

Json = dict[str, Any]


def update(time: str) -> Json:
    return {"statusUpdate": {"status": {"state": "TASK_STATE_WORKING", "timestamp": time}}}


@pytest.mark.parametrize(
    ("seen", "same"), [("12:00:00Z", True), ("12:00:00.000Z", True), ("12:00:00.001Z", False)]
)
def test_a_time_with_zero_milliseconds_is_the_same_over_grpc(seen: str, same: bool) -> None:
    view = View("client")
    view.updates.append((1, update(f"2026-11-27T{seen}")))
    wrong = check_view(view, [(1, update("2026-11-27T12:00:00.000Z"))])
    assert bool(wrong) is not same
