"""A Debian 12 in a folder: debootstrap installs it from the mirror, which takes minutes, once in
each process of tests."""

from __future__ import annotations

import atexit
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import groupby
from pathlib import Path

from tests import CHECKOUT
from tests.support.deploy_page import commands
from tests.support.reverse_proxies import tool

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")  # those of this machine, for pip
LONGEST = 1800  # seconds for each command, on a busy machine
WITHIN = 60.0  # seconds for a state of the machine
_NAMESPACES = """\
ip link set lo up
mount --bind "$1" "$1"
cd "$1"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mkdir -p dev/shm
mount -t tmpfs tmpfs dev/shm
pivot_root . mnt
umount -l /mnt
echo up
exec sleep infinity"""
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "DEBIAN_FRONTEND": "noninteractive",
    "PIP_CERT": str(CERTIFICATES),
}
_DOWNLOADS = re.compile(r"apt-get |\S+/pip install |buildah ")


# As in the images of Debian: no package waits for the disk.
_CONFIGURATION = {"dpkg/dpkg.cfg.d/unsafe-io": "force-unsafe-io\n"}


@cache
def archive() -> Path:
    """A tar file of the smallest Debian 12, which exists until this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="debian-"))
    atexit.register(_remove, folder)
    root, packed = folder / "root", folder / "root.tar"
    program = Path(tool("debootstrap", "usr/sbin/debootstrap")).resolve()
    line = [
        *("unshare", "--mount", "--propagation", "private"),
        *("env", f"DEBOOTSTRAP_DIR={program.parents[1]}/share/debootstrap", str(program)),
        *("--variant=minbase", "--include=ca-certificates", "bookworm", str(root)),
        "http://deb.debian.org/debian",
    ]
    done = subprocess.run(line, capture_output=True, text=True, timeout=LONGEST, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    shutil.copy(CERTIFICATES, root / CERTIFICATES.relative_to("/"))
    for name, text in _CONFIGURATION.items():
        (root / "etc" / name).write_text(text)
    subprocess.run(["tar", "-C", str(root), "-cf", str(packed), "."], check=True, timeout=LONGEST)
    _remove(root)
    return packed


def install(root: Path) -> None:
    """Put the smallest Debian 12 into the new folder `root`."""
    root.mkdir()
    line = ["tar", "-C", str(root), "--numeric-owner", "-xpf", str(archive())]
    subprocess.run(line, check=True, timeout=LONGEST)


class Machine:
    """The Debian in the folder `root` with processes, mounts and loopback addresses of its own. No
    init runs in it."""

    def __init__(self, root: Path, holder: int) -> None:
        self.root = root
        self._holder = holder

    @property
    def network(self) -> list[str]:
        """The words in front of a command that runs in the network of this machine."""
        return ["nsenter", "--target", str(self._holder), "--net"]

    def write(self, path: str, text: str) -> None:
        """Replace a file, and make its folders."""
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def run(self, script: str, *, online: bool = False) -> str:
        """The output of a script of bash as root, in /root/checkout; AssertionError if it fails.
        `online`: with the network of this machine."""
        done = self._run(script, online)
        assert done.returncode == 0, f"{script}\n{done.stdout[-5000:]}"
        return done.stdout

    def succeeds(self, script: str) -> bool:
        return self._run(script, online=False).returncode == 0

    def until(self, script: str, describe: str) -> None:
        """Return when `script` succeeds. Otherwise AssertionError with the output of `describe`."""
        deadline = time.monotonic() + WITHIN
        while not self.succeeds(script):
            assert time.monotonic() < deadline, self.run(describe)
            time.sleep(0.1)

    def _run(self, script: str, online: bool) -> subprocess.CompletedProcess[str]:
        spaces = ("--mount", "--pid", *(() if online else ("--net",)))
        env = [f"{name}={value}" for name, value in _ENVIRONMENT.items()]
        return subprocess.run(
            [
                *("nsenter", "--target", str(self._holder), *spaces),
                *("/usr/bin/env", "-i", "--chdir=/root/checkout", *env, "bash", "-ec", script),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONGEST,
            check=False,
        )

    def follow(self, block: str, before: str = "") -> str:
        """The output of a block of documentation after the lines `before`. Commands that download
        are online."""
        parts = groupby(commands(block), lambda step: _DOWNLOADS.match(step) is not None)
        return "".join(self.run(before + "".join(part), online=online) for online, part in parts)


@contextmanager
def large_folder(prefix: str) -> Iterator[Path]:
    """A new folder below TMPDIR, with room for machines. Other file systems in it are kept."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    line = ["rm", "-rf", "--one-file-system", str(folder)]
    subprocess.run(line, check=True, timeout=LONGEST)


def checkout(folder: Path) -> None:
    """Copy the files of the project, without its tests, to the new folder `folder`."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, check=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        target = folder / name
        if not name.startswith("tests/") and (CHECKOUT / name).is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(CHECKOUT / name, target)


@contextmanager
def machine(root: Path) -> Iterator[Machine]:
    """All of its processes end with it."""
    spaces = ("--mount", "--pid", "--net", "--fork", "--kill-child", "--propagation", "private")
    line = ["unshare", *spaces, "sh", "-ec", _NAMESPACES, "sh", str(root)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout and parent.stdout.readline() == "up\n"
            children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text()
            yield Machine(root, int(children))
        finally:
            parent.kill()
