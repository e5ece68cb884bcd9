"""The count of legacy sessions of one principal."""

from __future__ import annotations

from bridge.transports.mcp.sessions import IDLE, SessionCount


def test_each_principal_has_a_limit_of_its_own() -> None:
    now = 0.0
    count = SessionCount(3, lambda: now)
    for number in range(3):
        assert not count.is_full("anna")
        count.use("anna", str(number))
        count.use("anna", str(number))
    assert count.is_full("anna")
    assert not count.is_full("ben")
    count.end("anna", "0")
    count.end("ben", "unknown")
    assert not count.is_full("anna")
    count.use("anna", "another")
    now = IDLE
    count.use("anna", "1")
    assert not count.is_full("anna")  # the others have ended
