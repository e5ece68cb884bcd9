"""The variables of systemd: read once, removed, and only for this process."""

from __future__ import annotations

import os

import pytest

from bridge.errors import ConfigurationError
from bridge.server.settings.supervision import Supervision, supervision

OWN = str(os.getpid())
OTHER = str(os.getppid())


def test_variables_are_read_and_removed() -> None:
    variables = {
        "NOTIFY_SOCKET": "/run/systemd/notify",
        "WATCHDOG_USEC": "30000000",
        "WATCHDOG_PID": OWN,
        "LISTEN_PID": OWN,
        "LISTEN_FDS": "3",
        "LISTEN_FDNAMES": "http:unix",
        "HOME": "/home/x",
    }
    found = supervision(variables)
    assert found == Supervision("/run/systemd/notify", 30.0, ("http", "unix", "unknown"))
    assert variables == {"HOME": "/home/x"}


def test_variables_for_another_process_have_no_effect() -> None:
    variables = {
        "WATCHDOG_USEC": "30000000",
        "WATCHDOG_PID": OTHER,
        "LISTEN_PID": OTHER,
        "LISTEN_FDS": "1",
        "LISTEN_FDNAMES": "http",
    }
    assert supervision(variables) == Supervision()
    assert variables == {}


def test_a_watchdog_without_a_pid_is_for_this_process() -> None:
    assert supervision({"WATCHDOG_USEC": "500000"}).watchdog == 0.5
    assert supervision({"WATCHDOG_USEC": "0"}).watchdog is None


@pytest.mark.parametrize("value", ["", "x", "-1", "1.5", "٣"])
def test_a_number_that_is_none_is_an_error(value: str) -> None:
    with pytest.raises(ConfigurationError, match="LISTEN_FDS"):
        supervision({"LISTEN_PID": OWN, "LISTEN_FDS": value})
