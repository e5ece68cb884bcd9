"""The command of the profile "bwrap": namespaces, by bubblewrap.

Nothing but the standard library: the programs that use this module run without anything else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bridge.sandbox.landlock import covers, is_inside

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_CONFINE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "confine.py")

# Folders with sockets of services and files of other users: empty inside.
_PRIVATE = ("/tmp", "/var/tmp", "/run")  # noqa: S108
_TERMINALS = "/dev/pts"  # bwrap makes its own; those of the host would not belong to its /dev/ptmx
_SEEN = ("/run/systemd/resolve", "/run/NetworkManager", "/run/resolvconf")  # for /etc/resolv.conf


def command(rules: Mapping[str, Any]) -> list[str]:
    """The command in front of the program under the checked rules of sandbox/confine.py.

    bwrap is the child of the process that started confine.py, and ends with it. A signal to the
    process group is meant for the program: confine.py ignores such signals before it becomes bwrap.
    So the command starts confine.py a second time, inside, to restore the default actions, and to
    refuse the namespaces that bwrap needs itself. The package is bound so that this confine.py
    finds the modules beside it.
    """
    words = ["bwrap", "--unshare-user-try", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    words += ["--die-with-parent", "--cap-drop", "ALL"]
    words += ["--unshare-net"] if rules["connect"] == [] else []
    for path in ["/"] if rules["read"] is None else rules["read"]:
        words += ["--ro-bind-try", path, path]
    # For root, bwrap leaves the kernel's settings writable: it takes them for read-only.
    words += ["--dev", "/dev", "--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"]
    hidden = rules["hide"]
    opened = _with_holes(hidden)
    closed = [path for path in hidden if os.path.isdir(path)]
    for folder in opened:
        words += ["--tmpfs", folder, *_beside(folder, hidden)]
    for path in (*filter(os.path.isdir, _PRIVATE), *closed):
        words += ["--tmpfs", path]
    for path in filter(os.path.isfile, hidden):
        words += ["--ro-bind", "/dev/null", path]
    for path in (*_SEEN, sys.base_prefix, sys.prefix, os.path.dirname(sys.executable), _PACKAGE):
        words += ["--ro-bind-try", path, path]
    for path in rules["show"]:
        words += ["--ro-bind-try", path, path]
    for path in rules["write"]:
        words += [] if is_inside(path, _TERMINALS) else ["--bind-try", path, path]
    for path in (*opened, *closed):
        words += ["--remount-ro", path]
    return [*words, "--", sys.executable, "-I", "-S", _CONFINE, '{"profile":"inside"}', "--"]


def _with_holes(hidden: Sequence[str]) -> list[str]:
    """The folders in which hidden paths may appear later: each becomes an empty one with its
    present entries. In sorted order, a folder comes before those below it."""
    missing = (path for path in hidden if not os.path.lexists(path))
    found = {_nearest(os.path.dirname(path)) for path in missing} - {"/"}
    places = (*_PRIVATE, *hidden)
    return sorted(one for one in found if not any(covers(place, one) for place in places))


def _nearest(folder: str) -> str:
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder


def _beside(folder: str, hidden: Sequence[str]) -> Iterator[str]:
    """Options for the entries of a folder that are not hidden."""
    for path in sorted(os.path.join(folder, name) for name in _names(folder)):
        if os.path.islink(path):
            yield from ("--symlink", os.readlink(path), path)
        elif not any(covers(one, path) for one in hidden):
            yield from ("--ro-bind-try", path, path)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
