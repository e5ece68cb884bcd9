"""Freezes the sessions that another server may continue, when this server has lost its right to
them. Runs within process/fork_server.py; imports only the standard library.

The server passes the control group of each such session, and a deadline (CLOCK_BOOTTIME), again and
again. A server that is stopped, hangs or was killed passes none: silence freezes the sessions.
"""

from __future__ import annotations

import contextlib
import os
import time

MOVABLE = "m"
"""The last letter of the ids and markers of such sessions; the other letters are hexadecimal."""
TICK = 0.1  # seconds: a poll does not count the time of a suspended machine
ADD, RENEW = b"+", b"d"  # the first letter of a packet; a deadline in seconds follows RENEW
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    return time.clock_gettime(_CLOCK)


class Guard:
    """`groups`: descriptors of files cgroup.freeze, which the guard closes."""

    def __init__(self) -> None:
        self.groups: list[int] = []
        self.deadline = 0.0
        self.frozen = False

    def add(self, group: int) -> None:
        self.groups.append(group)
        if self.frozen:
            self._write(b"1")

    def renew(self, deadline: float) -> None:
        """0: no deadline from now on."""
        self.deadline = deadline
        if self.frozen and not 0 < deadline <= clock():
            self.frozen = False
            self._write(b"0")

    @property
    def pause(self) -> float | None:
        """Seconds until the next check; None if there is nothing to do."""
        return TICK if self.groups and self.deadline and not self.frozen else None

    @property
    def due(self) -> bool:
        return self.pause is not None and clock() >= self.deadline

    def freeze(self) -> None:
        self.frozen = True
        self._write(b"1")

    def leave(self) -> None:
        """Another server guards the sessions."""
        while self.groups:
            os.close(self.groups.pop())

    def _write(self, value: bytes) -> None:
        for group in [*self.groups]:
            try:
                os.write(group, value)
            except OSError:  # the group was removed
                self.groups.remove(group)
                with contextlib.suppress(OSError):
                    os.close(group)
