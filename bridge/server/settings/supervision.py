"""The variables by which systemd describes its side of a service: sd_notify(3), sd_listen_fds(3)
and sd_watchdog_enabled(3)."""

from __future__ import annotations

import os
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass

from bridge.errors import ConfigurationError

_NAMES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
_LISTEN_PID = "LISTEN_PID"


@dataclass(frozen=True, slots=True)
class Supervision:
    """`notify`: the address of the socket for notifications, or None without systemd. `watchdog`:
    the time in seconds within which systemd expects a sign of life, or None. `names`: the names of
    the inherited sockets, the first of which is descriptor 3."""

    notify: str | None = None
    watchdog: float | None = None
    names: Sequence[str] = ()


def supervision(variables: MutableMapping[str, str] = os.environ) -> Supervision:
    """Read the variables of systemd and remove them, so that no child inherits them. Variables for
    another process have no effect. Raises ConfigurationError for a number that is not one."""
    given = {name: variables.pop(name, "") for name in (*_NAMES, _LISTEN_PID)}
    pid = str(os.getpid())
    names: tuple[str, ...] = ()
    if given[_LISTEN_PID] == pid:
        count = _number("LISTEN_FDS", given["LISTEN_FDS"])
        known = given["LISTEN_FDNAMES"].split(":") if given["LISTEN_FDNAMES"] else []
        names = (*known[:count], *["unknown"] * (count - len(known)))
    watchdog = None
    if given["WATCHDOG_USEC"] and given["WATCHDOG_PID"] in ("", pid):
        watchdog = _number("WATCHDOG_USEC", given["WATCHDOG_USEC"]) / 1_000_000
    return Supervision(given["NOTIFY_SOCKET"] or None, watchdog or None, names)


def _number(name: str, value: str) -> int:
    if value.isascii() and value.isdigit() and len(value) <= 18:
        return int(value)
    raise ConfigurationError(f"{name}={value!r} is not a number: systemd sets this variable.")
