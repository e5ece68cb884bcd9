"""Unix sockets at a path: their mode, the paths that are refused, and their removal."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bridge.errors import ConfigurationError
from bridge.transports.listener.unix_socket import LONGEST, check_place, listen
from tests.support.unprivileged import NOBODY

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def path(tmp_path: Path) -> str:
    folder = tmp_path / "own"
    folder.mkdir(mode=0o700)
    return str(folder / "socket")


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def connects(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(path) == 0


def refusal(path: str, group: str | None = None) -> str:
    """The error of both functions, which leave the folder as it was."""
    before = sorted(Path(path).parent.glob("*"))
    texts = set()
    for function in (check_place, listen):
        with pytest.raises(ConfigurationError) as refused:
            function(path, group)
        texts.add(str(refused.value))
    (text,) = texts
    assert sorted(Path(path).parent.glob("*")) == before
    return text


# --- the file ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0, 0o077])
def test_only_the_user_of_the_server_may_connect(path: str, mask: int) -> None:
    """No call changes the mode after bind(2), so the file has had no other one."""
    with umask(mask):
        made = listen(path)
        assert os.umask(mask) == mask
    found = os.lstat(path)
    assert stat.S_ISSOCK(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o600
    assert connects(path)
    made.listening.close()
    made.close()
    assert not os.path.lexists(path)


def test_members_of_a_group_may_connect(path: str) -> None:
    gid = os.getegid()
    made = listen(path, str(gid))
    found = os.lstat(path)
    assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o660, gid)
    made.listening.close()
    made.close()


@needs_root
def test_the_group_is_the_configured_one(path: str) -> None:
    made = listen(path, "nogroup")
    assert os.lstat(path).st_gid == NOBODY
    made.listening.close()
    made.close()


def test_an_unknown_group_is_refused(path: str) -> None:
    for group in ("no-such-group", "4294967296"):
        assert f"BRIDGE_UNIX_GROUP: unknown group {group}." in refusal(path, group)


# --- the folder ----------------------------------------------------------------------------------


def test_the_folder_must_exist(path: str) -> None:
    assert "cannot use the folder" in refusal(f"{path}/below")
    assert "No such file or directory" in refusal(f"{os.path.dirname(path)}/none/socket")


@needs_root
def test_the_folder_must_belong_to_the_user_of_the_server(path: str) -> None:
    os.chown(os.path.dirname(path), NOBODY, -1)
    assert "belongs to another user" in refusal(path)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_no_other_user_may_write_to_the_folder(path: str, mode: int) -> None:
    os.chmod(os.path.dirname(path), mode)
    assert "is writable for other users" in refusal(path)


def test_a_path_has_at_most_107_bytes(path: str) -> None:
    folder = os.path.dirname(path)
    longest = f"{folder}/{'x' * (LONGEST - len(folder) - 1)}"
    text = refusal(f"{longest}x")
    assert "the path has 108 bytes, and a Unix socket allows 107" in text
    assert "the path has 108 bytes" in refusal(f"{longest[:-1]}ü")
    made = listen(longest)
    assert connects(longest)
    made.listening.close()
    made.close()


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_a_path_names_a_file(path: str, name: str) -> None:
    with pytest.raises(ConfigurationError, match="a path of a file is expected"):
        check_place(f"{os.path.dirname(path)}/{name}")


# --- other files at the path ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "folder", "link", "fifo"])
def test_another_file_is_an_error_and_stays(path: str, kind: str) -> None:
    match kind:
        case "file":
            Path(path).write_text("content")
        case "folder":
            Path(path).mkdir()
        case "link":  # to an abandoned socket
            with socket.socket(socket.AF_UNIX) as abandoned:
                abandoned.bind(f"{path}-other")
            Path(path).symlink_to(f"{path}-other")
        case "fifo":
            os.mkfifo(path)
    before = os.lstat(path)
    assert "another file has this path" in refusal(path)
    assert os.path.samestat(os.lstat(path), before)


def test_a_socket_of_another_type_is_an_error(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(path)
        assert "another process uses this socket" in refusal(path)


@needs_root
def test_a_socket_of_another_user_is_an_error(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as abandoned:
        abandoned.bind(path)
    os.chown(path, NOBODY, -1)
    assert "a socket of another user has this path" in refusal(path)


def test_an_abandoned_socket_is_replaced(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as abandoned:
        abandoned.bind(path)
        abandoned.listen()
    check_place(path)
    assert not connects(path)
    made = listen(path)
    assert connects(path)
    made.listening.close()
    made.close()


@pytest.mark.parametrize("backlog", [10, 0])
def test_a_socket_of_a_running_server_stays(path: str, backlog: int) -> None:
    """Also if as many clients wait for that server as may wait."""
    with socket.socket(socket.AF_UNIX) as running:
        running.bind(path)
        running.listen(backlog)
        with socket.socket(socket.AF_UNIX) as waiting:
            waiting.connect(path)
            for function in (check_place, listen):
                with pytest.raises(OSError, match="another server listens there"):
                    function(path)
        running.setblocking(False)
        running.accept()[0].close()


def test_servers_do_not_look_at_the_path_at_the_same_time(path: str) -> None:
    """Between bind(2) and listen(2), a new socket looks like an abandoned one."""
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    made: list[object] = []
    thread = threading.Thread(target=lambda: made.append(listen(path)))
    thread.start()
    thread.join(0.05)
    assert not made and not os.path.lexists(path)
    os.close(folder)
    thread.join(20)
    (one,) = made
    assert connects(path)
    one.listening.close()  # type: ignore[attr-defined]


# --- the end -------------------------------------------------------------------------------------


def test_the_socket_of_another_server_is_not_removed(path: str) -> None:
    """Also if the file system would give the same inode to the new file."""
    first = listen(path)
    first.listening.close()
    second = listen(path)  # the first one looks abandoned
    first.close()
    assert connects(path)
    second.listening.close()
    Path(path).unlink()
    Path(path).write_text("content")
    second.close()
    second.close()
    assert Path(path).read_text() == "content"
