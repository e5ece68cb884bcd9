"""The check of the folders of BRIDGE_SHARE. It leaves nothing there. Whether another server has the
same files at the same path is to be compared by the operator: the doctor runs on one machine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence

from bridge.adapter import Adapter
from bridge.cli.doctor.report import Check, failed, note, ok
from bridge.process.cgroup import HOW, home
from bridge.server.settings.root import Settings

NAME = "share"


def shares(settings: Settings, adapters: Sequence[type[Adapter]]) -> Iterator[Check]:
    """`adapters`: of the served agents. Nothing without shares."""
    found = settings.shares
    if not found:
        return
    if settings.store.database is None:
        yield note(NAME, "BRIDGE_SHARE has no effect without a database in BRIDGE_STORE")
        return
    for name, paths in found.items():
        for path in paths:
            problem = probe(path)
            if problem:
                yield failed(
                    NAME, f"{name}: {path}: {problem}", "mount it, or correct BRIDGE_SHARE"
                )
            else:
                yield ok(NAME, f"{name}: files can be written in {path}", path=path)
    pinned = sorted({one.title for one in adapters if not one.resumes_elsewhere})
    if pinned:
        text = "no test shows that other servers can continue their conversations"
        yield note(NAME, f"{', '.join(pinned)}: {text}, so their contexts stay on this one")
    if home() is None:
        yield note(NAME, f"BRIDGE_SHARE has no effect without control groups: {HOW}")


def probe(path: str) -> str | None:
    """Write a file in the folder, and read it by its path. Returns the problem."""
    mark = os.urandom(16)
    try:
        with tempfile.NamedTemporaryFile(prefix=".coding-agent-bridge-", dir=path) as file:
            file.write(mark)
            file.flush()
            os.fsync(file.fileno())
            with open(file.name, "rb") as again:
                same = again.read() == mark
    except OSError as error:
        return error.strerror or str(error)
    return None if same else "a file has another content than was written"
