"""A file system that forgets what was not synced when its power is cut. It is FUSE, in memory, and
as unkind as POSIX lets a disk be: until an fsync, what was written is on the disk or is not, page
by page; a name is there once its directory was synced, not its file.

`python -m tests.support.lossy_fs FOLDER` mounts it, says `mounted`, and then does what its stdin
says. At `cut SEED AFTER WHEN` the power fails once AFTER more changes were made; it says `off`
when that has happened, and every call fails from then on. WHEN is `any`, or `sync` to wait for a
sync: just before it, most is to be lost. `on FOLDER` brings back what survived, copies it into the
empty FOLDER, too, and says `on`. The end of stdin unmounts it.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

PAGE = 4096
SECTOR = 512  # what a disk writes whole
PATIENCE = 1000  # changes until a sync that is waited for
CANNOT = 77  # exit status where there is no FUSE, or no permission to use it


class Luck:
    """The state of a disk after unsynced changes."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"luck {seed}")  # others use the number for other things
        self._keeps = self._random.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        self._tears = self._random.choice((0.0, 0.2))

    def version(self, newest: int) -> int:
        """One number from 0, the synced state, to `newest`: the state on the disk."""
        if self._keeps == 1:
            return newest
        return self._random.randint(1, newest) if newest and self.kept() else 0

    def kept(self) -> bool:
        return self._random.random() < self._keeps

    def torn(self) -> int | None:
        """How many bytes of a page are newer than the others; None if it is whole."""
        if self._random.random() < self._tears:
            return self._random.randrange(SECTOR, PAGE, SECTOR)
        return None


class File:
    """`data` is the content that programs see. After the last sync, the disk may have each earlier
    state of a page, and each size."""

    def __init__(self, mode: int, synced: bytes = b"", kind: int = stat.S_IFREG) -> None:
        self.mode = mode
        self.kind = kind
        self.data = bytearray(synced)
        self._synced = bytearray(synced)
        self._pages: dict[int, list[bytes]] = {}  # what each was, oldest first
        self._sizes: list[int] = []

    def write(self, data: bytes, offset: int) -> None:
        end = offset + len(data)
        if end > len(self.data):
            self._resize(end)
        self.data[offset:end] = data
        self._changed(offset, end)

    def truncate(self, size: int) -> None:
        end = len(self.data)
        self._resize(size)
        self._changed(size, end)

    def sync(self) -> None:
        _fit(self._synced, len(self.data))
        for number in self._pages:
            start = number * PAGE
            self._synced[start : start + PAGE] = self.data[start : start + PAGE]
        self._pages.clear()
        self._sizes.clear()

    def survivor(self, luck: Luck, known: dict[int, Node]) -> File:
        if not self._pages and not self._sizes:
            return self
        content = bytearray(self._synced)
        size = [len(content), *self._sizes][luck.version(len(self._sizes))]
        for number, unsynced in self._pages.items():
            start = number * PAGE
            versions = [_page(self._synced, number), *unsynced]
            newest = luck.version(len(versions) - 1)
            page, torn = versions[newest], luck.torn()
            if torn is not None:
                page = page[:torn] + versions[max(0, newest - 1)][torn:]
            _fit(content, max(len(content), start + PAGE))
            content[start : start + PAGE] = page
        _fit(content, size)
        return File(self.mode, bytes(content))

    def _resize(self, size: int) -> None:
        _fit(self.data, size)
        self._sizes.append(size)

    def _changed(self, start: int, end: int) -> None:
        for number in range(start // PAGE, -(-end // PAGE)):
            self._pages.setdefault(number, []).append(_page(self.data, number))


class Directory:
    """A change is a set of names that are added or, with None, removed at once: a rename is atomic.
    Each change may reach the disk without earlier ones."""

    def __init__(self, mode: int, synced: Mapping[str, Node] | None = None) -> None:
        self.mode = mode
        self.names = dict(synced or {})
        self._synced = dict(self.names)
        self._changes: list[dict[str, Node | None]] = []

    def change(self, change: dict[str, Node | None]) -> None:
        self._changes.append(change)
        _apply(change, self.names)

    def sync(self) -> None:
        self._synced = dict(self.names)
        self._changes.clear()

    def survivor(self, luck: Luck, known: dict[int, Node]) -> Directory:
        names = dict(self._synced)
        for change in self._changes:
            if luck.kept():
                _apply(change, names)
        for node in names.values():
            if id(node) not in known:  # a file may have several names
                known[id(node)] = node.survivor(luck, known)
        return Directory(self.mode, {name: known[id(node)] for name, node in names.items()})


Node = File | Directory


def _fit(data: bytearray, size: int) -> None:
    del data[size:]
    data.extend(bytes(size - len(data)))


def _page(data: bytearray, number: int) -> bytes:
    return bytes(data[number * PAGE : (number + 1) * PAGE]).ljust(PAGE, b"\0")


def _apply(change: dict[str, Node | None], names: dict[str, Node]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class Listener(Protocol):
    def __call__(self, word: str) -> None: ...


class LossyDisk:
    """The operations of the file system, named and called as FUSE does, and its power."""

    use_ns = True  # FUSE wants to be told how it is told times

    def __init__(self, say: Listener) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._root = Directory(0o700)
        self._open: dict[int, Node] = {}
        self._handles = 0
        self._seed = 0
        self._left: int | None = None  # changes until the power is cut
        self._patience = 0  # changes after that which a sync is waited for
        self._off = False

    # --- the power -----------------------------------------------------------------------------

    def cut(self, seed: int, after: int, before_sync: bool = False) -> None:
        """Once `after` more changes were made, nothing works any more. `before_sync`: not before
        the sync that follows them."""
        with self._lock:
            self._seed, self._left = seed, after
            self._patience = PATIENCE if before_sync else 0

    def on(self) -> Directory:
        """Continue with the surviving state of the disk. No process has open files any more."""
        with self._lock:
            self._root = self._root.survivor(Luck(self._seed), {})
            self._left, self._off = None, False
            return self._root

    def _changing(self, sync: bool = False) -> None:
        """One more change, or one too many. Syncs count, too: the cut may come just before one."""
        self._powered()
        if self._left is None:
            return
        if self._left <= (0 if sync else -self._patience):
            self._off = True
            self._say("off")
            self._powered()
        self._left -= 1

    def _powered(self) -> None:
        if self._off:
            raise OSError(errno.EIO, "the power is off")

    # --- what FUSE asks for --------------------------------------------------------------------

    def init(self, path: str) -> None:
        self._say("mounted")

    def getattr(self, path: str | None, handle: int | None = None) -> dict[str, Any]:
        with self._lock:
            self._powered()
            node = self._node(path, handle)
            kind, size = stat.S_IFDIR, 0
            if isinstance(node, File):
                kind, size = node.kind, len(node.data)
            owner = {"st_uid": os.getuid(), "st_gid": os.getgid()}
            return {"st_mode": kind | node.mode, "st_nlink": 1, "st_size": size, **owner}

    def readdir(self, path: str, handle: int) -> list[str]:
        with self._lock:
            self._powered()
            return [".", "..", *self._directory(path).names]

    def open(self, path: str, flags: int) -> int:
        with self._lock:
            self._powered()
            return self._opened(self._node(path))

    def create(self, path: str, mode: int, flags: int) -> int:
        with self._lock:
            self._changing()
            file = File(stat.S_IMODE(mode))
            self._parent(path).change({_name(path): file})
            return self._opened(file)

    def mknod(self, path: str, mode: int, device: int) -> int:
        """A FIFO has a name here and its bytes in the kernel."""
        with self._lock:
            self._changing()
            file = File(stat.S_IMODE(mode), kind=stat.S_IFMT(mode))
            self._parent(path).change({_name(path): file})
            return 0

    def mkdir(self, path: str, mode: int) -> int:
        with self._lock:
            self._changing()
            self._parent(path).change({_name(path): Directory(stat.S_IMODE(mode))})
            return 0

    def read(self, path: str | None, size: int, offset: int, handle: int) -> bytes:
        with self._lock:
            self._powered()
            return bytes(self._file(path, handle).data[offset : offset + size])

    def write(self, path: str | None, data: bytes, offset: int, handle: int) -> int:
        with self._lock:
            self._changing()
            self._file(path, handle).write(data, offset)
            return len(data)

    def truncate(self, path: str | None, length: int, handle: int | None = None) -> int:
        with self._lock:
            self._changing()
            self._file(path, handle).truncate(length)
            return 0

    def fallocate(self, path: str, mode: int, offset: int, size: int, handle: int) -> int:
        with self._lock:
            self._changing()
            file = self._file(path, handle)
            if mode:
                raise OSError(errno.EOPNOTSUPP, path)
            if offset + size > len(file.data):
                file.truncate(offset + size)
            return 0

    def fsync(self, path: str | None, datasync: int, handle: int) -> int:
        """An fdatasync keeps the size, too, as far as it takes that to read the data."""
        with self._lock:
            self._changing(sync=True)
            self._file(path, handle).sync()
            return 0

    def fsyncdir(self, path: str, datasync: int, handle: int) -> int:
        with self._lock:
            self._changing(sync=True)
            self._directory(path).sync()
            return 0

    def release(self, path: str | None, handle: int) -> int:
        with self._lock:
            self._open.pop(handle, None)
            return 0

    def unlink(self, path: str) -> int:
        with self._lock:
            self._changing()
            self._parent(path).change({_name(path): None})
            return 0

    def rmdir(self, path: str) -> int:
        with self._lock:
            if self._directory(path).names:
                raise OSError(errno.ENOTEMPTY, path)
        return self.unlink(path)

    def rename(self, old: str, new: str) -> int:
        with self._lock:
            self._changing()
            parent = self._parent(old)
            if parent is not self._parent(new):
                raise OSError(errno.EXDEV, new)  # nobody needs it
            parent.change({_name(old): None, _name(new): self._node(old)})
            return 0

    def link(self, target: str, source: str) -> int:
        with self._lock:
            self._changing()
            self._parent(target).change({_name(target): self._node(source)})
            return 0

    def chmod(self, path: str, mode: int) -> int:
        with self._lock:
            self._powered()
            self._node(path).mode = stat.S_IMODE(mode)
            return 0

    def utimens(self, path: str, times: object = None) -> int:
        return 0

    # --- finding things ------------------------------------------------------------------------

    def _opened(self, node: Node) -> int:
        self._handles += 1
        self._open[self._handles] = node
        return self._handles

    def _node(self, path: str | None, handle: int | None = None) -> Node:
        if handle and handle in self._open:
            return self._open[handle]
        node: Node = self._root
        for name in PurePosixPath(path or "/").parts[1:]:
            if not isinstance(node, Directory):
                raise OSError(errno.ENOTDIR, path)
            if name not in node.names:
                raise OSError(errno.ENOENT, path)
            node = node.names[name]
        return node

    def _file(self, path: str | None, handle: int | None) -> File:
        node = self._node(path, handle)
        if not isinstance(node, File):
            raise OSError(errno.EISDIR, path)
        return node

    def _directory(self, path: str) -> Directory:
        node = self._node(path)
        if not isinstance(node, Directory):
            raise OSError(errno.ENOTDIR, path)
        return node

    def _parent(self, path: str) -> Directory:
        return self._directory(str(PurePosixPath(path).parent))


def _name(path: str) -> str:
    return PurePosixPath(path).name


def _copy(directory: Directory, folder: Path) -> None:
    for name, node in directory.names.items():
        if isinstance(node, Directory):
            (folder / name).mkdir(node.mode)
            _copy(node, folder / name)
        else:
            (folder / name).write_bytes(node.data.rstrip(b"\0"))
            os.truncate(folder / name, len(node.data))
            (folder / name).chmod(node.mode)


# --- the process ---------------------------------------------------------------------------------


def unmount(folder: Path) -> None:
    """Unmount it if it is mounted, even if a process still uses it."""
    if f" {folder} " not in Path("/proc/self/mountinfo").read_text():
        return
    for command in (["fusermount3", "-u", "-z"], ["fusermount", "-u", "-z"], ["umount", "-l"]):
        if shutil.which(command[0]):
            command.append(str(folder))
            if not subprocess.run(command, check=False, capture_output=True, timeout=10).returncode:
                return


def _say(word: str) -> None:
    os.write(1, f"{word}\n".encode())


def _obey(disk: LossyDisk, folder: Path) -> None:
    try:
        for line in sys.stdin:
            match line.split():
                case ["cut", seed, after, when]:
                    disk.cut(int(seed), int(after), when == "sync")
                case ["on", copy]:
                    _copy(disk.on(), Path(copy))
                    _say("on")
    finally:
        unmount(folder)
        os._exit(0)


def _give_up(reason: object) -> None:
    _say(str(reason))
    sys.exit(CANNOT)


def main(folder: Path) -> None:
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
        import mfusepy
    except (OSError, ImportError) as error:
        _give_up(error)
    disk = LossyDisk(_say)
    threading.Thread(target=_obey, args=(disk, folder), daemon=True).start()
    uncached = dict.fromkeys(("attr_timeout", "entry_timeout", "negative_timeout"), 0)
    options = {"foreground": True, "nothreads": True, "hard_remove": True, "direct_io": True}
    try:
        mfusepy.FUSE(disk, str(folder), **options, **uncached)
    except RuntimeError as error:
        _give_up(f"cannot mount: {error}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
