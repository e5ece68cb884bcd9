"""The facts that other parts of the server report for metrics."""

from __future__ import annotations

import time

from bridge.telemetry.metrics.metrics import Metrics


def test_a_reload_that_fails_keeps_the_time_of_the_last_load() -> None:
    metrics = Metrics()
    loaded = metrics.config_loaded
    assert 0 <= time.time() - loaded < 60
    metrics.reloaded(False)
    assert (metrics.config_loaded, dict(metrics.reloads)) == (loaded, {"failed": 1})
    metrics.reloaded(True)
    assert metrics.config_loaded >= loaded
    assert dict(metrics.reloads) == {"failed": 1, "ok": 1}


def test_an_older_backup_does_not_replace_a_newer_one() -> None:
    metrics = Metrics()
    assert metrics.backup == 0.0
    metrics.backed_up(20.0)
    metrics.backed_up(10.0)
    assert metrics.backup == 20.0
