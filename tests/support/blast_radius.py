"""What a CLI that is wholly in somebody else's hands can do under each profile.

    python -m tests.support.documents

writes the tables into docs/security.md and docs/evidence/security.md.
tests/component/sandbox/test_confine.py lets tests/support/hostile_cli.py try every attempt behind a
real server, and fails where the outcome is not the one here.
"""

from __future__ import annotations

import os
import pty
import shutil
import socket
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bridge.process import cgroup
from bridge.sandbox import confine
from tests import CHECKOUT
from tests.support.agent import PROGRAM as SCRIPTED
from tests.support.free_port import free_port
from tests.support.hostile_cli import ATTEMPTS, PROGRAM

PROFILES = ("none", "landlock", "bwrap")
SHAPES = ("root", "user")  # of the server; an ordinary user has no control groups
WORDS = {
    "yes": "**yes**",
    "root": "**as root**",
    "ended": "until its task ends",
    "own": "only for itself",
    "no": "no",
}
"""The outcomes in the table, the worst one first."""
EXPECTED: dict[str, tuple[str, ...]] = {
    name: tuple(cells.split())
    for name, cells in {
        # What a profile is for: nothing of it works inside.
        **dict.fromkeys(ATTEMPTS, "yes no no"),
        # The same, and only root could do it without. ("root": in a server of root alone.)
        **dict.fromkeys(
            (
                *("give-a-file-away", "make-a-device", "open-by-handle", "become-another-user"),
                *("write-system-files", "write-kernel-settings", "type-into-another-terminal"),
                *("open-a-raw-socket", "open-a-packet-socket", "listen-on-a-privileged-port"),
                *("change-the-root", "load-a-module", "rename-the-host", "raise-its-limits"),
                *("read-the-folder-of-the-bridge", "read-the-descriptors-of-the-bridge"),
            ),
            "root no no",
        ),
        # Its own business.
        **dict.fromkeys(
            (
                *("write-git-hooks", "write-git-config", "run-from-memory"),
                *("connect-to-the-model", "listen-on-any-free-port", "adopt-orphans"),
                "read-its-attachments",
            ),
            "yes yes yes",
        ),
        # Whose process it is decides, and not what it knows: it has the operator's token here.
        **dict.fromkeys(
            (
                *("use-the-bridge-without-a-token", "approve-a-permission"),
                "use-the-bridge-with-the-token-of-its-operator",
                "use-the-socket-of-the-bridge-without-a-token",
                "use-the-socket-of-the-bridge-with-the-token-of-its-operator",
                *("delegate-to-an-agent-without-a-boundary", "rewrite-its-own-output"),
                *("cut-its-own-output", "listen-beside-the-bridge-on-localhost"),
                "listen-beside-the-bridge-on-all-addresses",
                "listen-on-the-grpc-port-of-the-bridge",
            ),
            "no no no",
        ),
        # A folder of its own is where others are.
        "mkdir-in-tmp": "yes no own",
        "write-shared-memory": "yes yes own",
        "mount-over-the-workspace": "own no no",
        **dict.fromkeys(
            (
                *("make-shared-memory-of-system-v", "make-a-semaphore-of-system-v"),
                *("make-a-queue-of-system-v", "make-a-message-queue"),
            ),
            "yes no own",
        ),
        # The bridge ends what is left of a task.
        "live-on-in-another-session": "ended ended ended",
        "live-on-without-its-marker": "ended ended ended",
        # What is left. Landlock knows nothing of a file's mode, owner and times, and of UDP.
        "chmod-outside": "yes yes no",
        "chown-outside": "yes yes no",
        "change-times-outside": "yes yes no",
        "send-udp": "yes yes yes",
        # No rule of the kernel is about these.
        "watch-a-hidden-folder": "yes yes no",
        "lock-a-file-outside": "yes yes yes",
        # Unless BRIDGE_SANDBOX_PORTS and the limits of a session are set.
        **dict.fromkeys(
            (
                *("connect-to-the-bridge", "connect-to-a-database", "connect-over-ipv6"),
                *("connect-to-the-metadata-service", "listen-on-a-port", "open-many-files"),
                "write-a-big-file",
            ),
            "yes yes yes",
        ),
        "read-another-workspace": "yes yes yes",
        "read-the-command-line-of-the-bridge": "yes yes no",
        "read-shadow": "root root root",
        "fork-many": "yes yes yes",
    }.items()
}
# What else the machine has to do with it: such as capabilities that a container takes from root.
# Outside of a sandbox, nothing is expected of these.
DEPENDS = (
    *("trace-the-bridge", "trace-a-neighbour", "copy-the-memory-of-the-bridge", "load-a-module"),
    *("read-the-memory-of-the-bridge", "take-a-descriptor-of-the-bridge", "raise-its-limits"),
    *("use-io-uring", "use-the-keyring", "use-performance-counters", "rename-the-host"),
    *("handle-its-own-page-faults", "mount-over-the-workspace", "write-kernel-settings"),
    *("connect-by-multipath-tcp", "open-a-socket-to-the-hypervisor", "type-into-another-terminal"),
    *("leave-its-group-by-a-child", "connect-while-sending"),
    *("kill-the-group-of-the-bridge", "leave-its-group", "open-a-packet-socket", "open-by-handle"),
    *("make-a-device", "connect-over-ipv6", "read-the-environment-of-the-bridge", "dump-core"),
    *("write-another-terminal", "change-the-code-of-the-bridge"),  # may belong to root
    *("change-attributes-outside", "lease-a-file-outside", "use-up-asynchronous-input"),
    *("make-a-user-namespace", "make-a-user-namespace-by-a-child", "make-a-message-queue"),
    *("make-shared-memory-of-system-v", "make-a-semaphore-of-system-v", "make-a-queue-of-system-v"),
)


def settings(profile: str, at: Mapping[str, Any]) -> dict[str, Any]:
    """Of the server: the defaults, but for the profile and for where things are."""
    return {
        "HOME": at["home"],
        "AGENT_REPO_PATH": at["workspace"],
        "BRIDGE_AUTH": "auto",
        "BRIDGE_SANDBOX": profile,
        "BRIDGE_STATE_DIR": at["state"],
        "BRIDGE_UNIX_SOCKET": at["bridge socket"],
        "BRIDGE_GRPC_PORT": "0",
        "CONFIG_FILE": at["settings"],
    }


@contextmanager
def targets() -> Iterator[dict[str, Any]]:
    """The targets of the hostile CLI; all belong to the test. Not in /tmp, which one of the
    profiles replaces."""
    base = CHECKOUT / ".pytest_cache"
    base.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=base))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        for name in (
            *("workspace/.git/hooks", "home/.ssh", "home/.config/gh", "home/.kube"),
            *("home/.text-only/hooks", "home/.text-only/plugins/one", "outside", "state", "run"),
        ):
            (folder / name).mkdir(parents=True, mode=0o700)
        (folder / "settings.toml").write_text(
            f"""
            [agents.hostile]
            adapter = "tests.support.text_only:TextOnly"
            binary = {sys.executable!r}
            args = ["-I", "-S", {PROGRAM!r}]
            [agents.open]
            adapter = "jsonl"
            binary = {sys.executable!r}
            args = ["-I", "-S", {SCRIPTED!r}]
            sandbox = "none"
            """
        )
        for name in (
            *("workspace/.git/config", "home/.bashrc", "home/.ssh/id_ed25519", "state/secret"),
            *("outside/file", "outside/movable", "outside/deletable"),
            *("home/.config/gh/hosts.yml", "home/.kube/config", "home/.text-only/settings.json"),
            *("home/.text-only/hooks/start.sh", "home/.text-only/plugins/one/index.js"),
        ):
            (folder / name).write_text("of somebody else\n")
        names = ("workspace", "home", "outside", "state")
        at: dict[str, Any] = {name: str(folder / name) for name in names}
        for name in ("database", "model"):
            one = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            at[name] = one.getsockname()[1]
        at["free"] = free_port()
        at["abstract"] = at["token"] = f"hostile-{uuid.uuid4().hex}"
        at["socket"] = at["outside"] + "/s"
        at["bridge socket"] = str(folder / "run/s")
        at["datagrams"] = at["outside"] + "/d"
        datagrams = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        datagrams.bind(at["datagrams"])
        at |= {"settings": str(folder / "settings.toml"), "code": confine.__file__}
        for address in ("\0" + at["abstract"], at["socket"]):
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(address)
            server.listen()
        ours, its = pty.openpty()
        stack.callback(os.close, ours)
        stack.callback(os.close, its)
        group = str(cgroup.home() or "")
        yield {**at, "terminal": os.ttyname(its), "tmp": tempfile.gettempdir(), "cgroup": group}


def works(name: str, profile: str, shape: str) -> bool | None:
    """Whether the attempt is expected to work; None if that depends on the machine."""
    if profile == "none" and name in DEPENDS:
        return None
    word = EXPECTED[name][PROFILES.index(profile)]
    return word != "no" and (word != "root" or shape == "root")


def table(succeeds: bool) -> str:
    """The attempts by their outcomes in the profiles, the worst outcome first. `succeeds`: those
    that succeed in a sandbox; otherwise those that fail there."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for name, cells in EXPECTED.items():
        if ({*cells[1:]} != {"no"}) == succeeds:
            rows.setdefault(cells, []).append(name.replace("-", " "))
    lines = [f"| {' | '.join(PROFILES)} | attempts |", f"|{'---|' * len(PROFILES)}---|"]
    for cells in sorted(rows, key=_severity):
        words = [WORDS[one] for one in cells]
        lines.append(f"| {' | '.join(words)} | {'; '.join(rows[cells])} |")
    return "\n".join(lines) + "\n"


def _severity(cells: tuple[str, ...]) -> list[int]:
    """Smaller for a worse outcome: first in a sandbox, then without."""
    outside, *inside = (list(WORDS).index(one) for one in cells)
    return [*inside, outside]
