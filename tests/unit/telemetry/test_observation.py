"""The facts of a request."""

from __future__ import annotations

import pytest

from bridge.telemetry.observation import RequestInfo


def test_a_suitable_id_of_the_client_is_kept() -> None:
    assert RequestInfo.named("rest", "a.B-9_", "::1") == RequestInfo("rest", "a.B-9_", "::1")


@pytest.mark.parametrize("given", [None, "", "x" * 65, "a b", "a\nb", "é"])
def test_another_id_is_replaced(given: str | None) -> None:
    made = RequestInfo.named("rest", given, None).id
    assert len(made) == 16
    assert int(made, 16) >= 0
    assert made != RequestInfo.named("rest", given, None).id
