"""The processes that a server has started. psutil is the independent witness."""

from __future__ import annotations

import contextlib

import psutil

from bridge.process.fork_server import NAME
from bridge.process.spawn import LAUNCHER
from tests.support import forked_server
from tests.support.forked_command import PROGRAM


def children(pid: int | None = None) -> list[psutil.Process]:
    """All processes below this one (or that one), zombies included; not the process that starts
    them, which stays as long as the server, not the zombies that it reaps, and not the process that
    runs commands of the tests."""
    return [
        one
        for one in psutil.Process(pid).children(recursive=True)
        if not (_launches(one) or _runs_commands(one) or _is_reaped(one))
    ]


def launchers(pid: int | None = None) -> list[psutil.Process]:
    """The launcher, which starts them."""
    return [one for one in psutil.Process(pid).children() if _launches(one)]


def _launches(process: psutil.Process) -> bool:
    """By its name, too: one that has ended with the last child of a server that was killed is a
    zombie, and has no arguments."""
    with contextlib.suppress(psutil.Error):
        return process.name() == NAME.decode() or process.cmdline() == list(LAUNCHER)
    return False


def _is_reaped(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = process.parent()
        return bool(parent and _launches(parent)) and process.status() == psutil.STATUS_ZOMBIE
    return True


def _runs_commands(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.name() == forked_server.NAME or process.cmdline()[-1:] == [PROGRAM]
    return False
