"""The skill for agents that use the client: SKILL.md of this package."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from bridge.client.failure import usage

SKILL = Path(__file__).parent / "skill" / "SKILL.md"
INSTALLED = Path(".agents/skills/coding-agent-bridge/SKILL.md")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def show_skill(*, install: bool, force: bool) -> int:
    """Print the skill, or copy it into the skills of the current directory. Raises ClientError. The
    directory may be the work of an agent: no link there is followed."""
    text = SKILL.read_bytes()
    if not install:
        print(text.decode(), end="")
        return 0
    try:
        with _opened(INSTALLED.parent) as folder:
            if not (force or _is_ours(folder, text)):
                problem = f"{INSTALLED} is not the copy of this program: --force overwrites it"
                raise usage(problem)
            draft = f".{INSTALLED.name}.{secrets.token_hex(8)}"
            with open(os.open(draft, _NEW_FILE, 0o644, dir_fd=folder), "wb") as file:
                file.write(text)
            os.replace(draft, INSTALLED.name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        raise usage(f"cannot write {INSTALLED}: {error}") from None
    print(f"Installed: {INSTALLED}")
    return 0


def _is_ours(folder: int, text: bytes) -> bool:
    """Whether the file is missing or has this text. False for a link."""
    try:
        with open(os.open(INSTALLED.name, _OLD_FILE, dir_fd=folder), "rb") as file:
            return file.read(len(text) + 1) == text
    except FileNotFoundError:
        return True
    except OSError:
        return False


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A descriptor of the folder below the current directory, made if it is missing. Raises OSError
    for a link on the way."""
    fd = os.open(".", _FOLDER)
    try:
        for name in path.parts:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=fd)
            inner = os.open(name, _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)
