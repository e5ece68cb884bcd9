"""Attached files, and an agent that wants the server to write somewhere else: it replaces folders
and files on their way by links, before the next task of its conversation and while it begins."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import stat
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import ContentTypeNotSupported, LaunchError
from bridge.task.message import Message, RawPart, Role, UrlPart, media_type
from bridge.workspace.attachments import Attachments
from bridge.workspace.paths import Workspaces
from tests.support.client import artifact_text, context_id, said, state
from tests.support.confined import CONFINED, landlock
from tests.support.sandboxed import needs_root, serving_shell

SENT = b"what a client sent"
ROUNDS = 300
# Tries to put links in the place of its attachment, and says what worked.
HOSTILE = """#!/usr/bin/python3 -IS
import json, os, re, sys
def say(**members):
    print(json.dumps(members), flush=True)
def replace(path, by):
    os.rename(path, path + ".away")
    os.symlink(by, path)
def attempts(attached, outside):
    task = os.path.dirname(attached)
    context = os.path.dirname(task)
    yield "write", lambda: os.close(os.open(attached, os.O_WRONLY))
    yield "chmod", lambda: os.chmod(attached, 0o666)
    yield "unlink", lambda: os.unlink(attached)
    yield "make", lambda: os.mkdir(task + "/new")
    yield "link", lambda: os.link(outside + "/victim", task + "/hard")
    yield "file", lambda: replace(attached, outside + "/victim")
    yield "task", lambda: replace(task, outside)
    yield "context", lambda: replace(context, outside)
    yield "base", lambda: replace(os.path.dirname(context), outside)
def works(act):
    try:
        act()
    except OSError:
        return False
    return True
for line in sys.stdin:
    parts = json.loads(line)["parts"]
    path = parts[1]["url"].removeprefix("file://")
    outside, _, skipped = parts[0]["text"].partition(" ")
    with open(path) as file:
        found = {"read": file.read()}
    for name, act in attempts(path, outside):
        if name != skipped:
            found[name] = works(act)
    say(type="text", text=json.dumps(found))
    say(type="done")
"""


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder where nothing is to be changed."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "victim").write_text("untouched")
    return folder


def untouched(outside: Path) -> bool:
    return os.listdir(outside) == ["victim"] and (outside / "victim").read_text() == "untouched"


def message(name: str = "file.bin") -> Message:
    part = RawPart(b64encode(SENT).decode(), "application/zip", name)
    return Message("m", Role.USER, (part,))


@pytest.fixture
def attachments(tmp_path: Path) -> Iterator[Attachments]:
    workspaces, folder = Workspaces(str(tmp_path), ()), tmp_path / "files/agent"
    made = Attachments(workspaces, ("text/*",), takes_urls=False, folder=folder)
    yield made
    made.close()


async def save(attachments: Attachments, task: str) -> Path:
    """The path of the file that was attached to `task`."""
    (part,) = (await attachments.save("c", task, message())).parts
    assert isinstance(part, UrlPart)
    return Path(part.url.removeprefix("file://"))


# --- an agent that may write there, as without a sandbox ------------------------------------------


def swap(path: Path, by: Path) -> None:
    path.rename(path.with_name(f"{path.name}.away"))
    path.symlink_to(by)


@pytest.mark.parametrize(
    ("swapped", "written"),
    [
        (lambda file: file.parent.parent, False),
        (lambda file: file.parent.parent.parent, True),
    ],
    ids=["context", "base"],
)
async def test_a_folder_that_became_a_link_is_not_followed(
    attachments: Attachments,
    outside: Path,
    swapped: Callable[[Path], Path],
    written: bool,
) -> None:
    """`written`: into the folder that it was, by its descriptor, as its path is not looked up."""
    first = await save(attachments, "one")
    swap(swapped(first), outside)
    if written:
        await save(attachments, "two")
    else:
        with pytest.raises(LaunchError, match="cannot be kept"):
            await save(attachments, "two")
        assert attachments.folder("c") is None
    attachments.forget("c", "one")
    attachments.forget("c", "victim")
    assert untouched(outside)


async def test_a_task_that_is_there_as_a_link_gets_no_files(
    attachments: Attachments, outside: Path
) -> None:
    context = (await save(attachments, "one")).parent.parent
    (context / "two").symlink_to(outside)
    with pytest.raises(LaunchError, match="cannot be kept"):
        await save(attachments, "two")
    attachments.forget("c", "two")
    assert untouched(outside)


async def test_the_files_of_another_task_are_not_overwritten(
    attachments: Attachments, outside: Path
) -> None:
    """As after a restart, by which a task begins again: links and hard links of the same names."""
    for make in (os.symlink, os.link):
        path = await save(attachments, "one")
        path.unlink()
        make(outside / "victim", path)
        assert await save(attachments, "one") == path
        assert path.read_bytes() == SENT and not path.is_symlink()
        assert untouched(outside)


async def test_who_swaps_folders_while_files_are_written_gets_nothing_written_outside(
    attachments: Attachments, outside: Path
) -> None:
    context = (await save(attachments, "first")).parent.parent
    ended = threading.Event()
    swaps = 0

    def race() -> None:
        nonlocal swaps
        while not ended.is_set():
            with contextlib.suppress(OSError):  # forget() removes an empty folder
                for name in os.listdir(context):
                    os.rename(context / name, context.parent / f"{name}.{swaps}")
                    os.symlink(outside, context / name)
                    swaps += 1

    racer = threading.Thread(target=race)
    racer.start()
    try:
        for number in range(ROUNDS):
            with contextlib.suppress(LaunchError):
                await save(attachments, f"task-{number}")
            attachments.forget("c", f"task-{number}")
    finally:
        ended.set()
        racer.join()
    assert swaps
    assert untouched(outside)


# --- through the server -------------------------------------------------------------------------


def raw(text: str) -> list[dict[str, Any]]:
    part = {"raw": b64encode(SENT).decode(), "mediaType": "application/zip", "filename": "f.zip"}
    return [{"text": text}, part]


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "temporary"])
@pytest.mark.parametrize(
    ("profile", "user"),
    [
        pytest.param("none", None),
        *(pytest.param(*one.values, None, marks=one.marks) for one in CONFINED),
        pytest.param("none", "nobody", marks=needs_root),
        pytest.param("landlock", "nobody", marks=[needs_root, landlock]),
    ],
)
async def test_an_agent_that_replaces_its_attachments_by_links(
    reachable: Path, profile: str, user: str | None, durable: bool
) -> None:
    """Three tasks of one conversation; the second and the third come after its attempts. Takes two
    seconds: it starts a server, and an agent each time."""
    workspace, outside, program = (reachable / one for one in ("workspace", "outside", "cli.py"))
    workspace.mkdir()
    outside.mkdir()
    (outside / "victim").write_text("untouched")
    program.write_text(HOSTILE)
    program.chmod(0o755)
    env = {
        "BRIDGE_SANDBOX": profile,
        "AGENT_ADAPTER": "tests.support.text_only:TextOnly",
        "AGENT_BINARY": str(program),
        "AGENT_ARGS": "",
        "TMPDIR": "/var/tmp",
    }
    if user:
        found = pwd.getpwnam(user)
        os.chown(workspace, found.pw_uid, found.pw_gid)
        env["BRIDGE_SANDBOX_USER"] = user
    if durable:
        env["BRIDGE_STATE_DIR"] = str(reachable / "state")
    # Under bwrap that one would only be missing in a /var/tmp of its own.
    skipped = "base" if profile == "bwrap" and not durable else ""
    walled = profile != "none" or user
    async with serving_shell(workspace, **env) as (client, server):
        context: dict[str, Any] = {}
        for number in range(3):
            task = await client.send(raw(f"{outside} {skipped}"), **context)
            context = {"contextId": context_id(task)}
            assert untouched(outside)
            if not walled and number:
                assert state(task) == "failed"
                continue
            assert state(task) == "completed", said(task) + server.log
            told = json.loads(artifact_text(task))
            assert told.pop("read") == SENT.decode()
            if profile == "landlock" and not user:
                told.pop("chmod")  # of its own user's files, which Landlock does not know
            assert not (walled and any(told.values())), told
    assert untouched(outside)


@needs_root
async def test_files_of_another_user_are_taken_back(tmp_path: Path, outside: Path) -> None:
    """Folders of earlier versions belonged to the user of the CLI, which can have put links
    there."""
    user = pwd.getpwnam("nobody")
    base = tmp_path / "files/agent"
    workspaces = Workspaces(str(tmp_path), ())
    made = Attachments(workspaces, (), takes_urls=False, folder=base, group=user.pw_gid)
    first = await save(made, "one")
    made.close()
    context = first.parent.parent
    for path in (first, first.parent, context):
        os.chown(path, user.pw_uid, user.pw_gid)
    (context / "link").symlink_to(outside)
    made = Attachments(workspaces, (), takes_urls=False, folder=base, group=user.pw_gid)
    second = await save(made, "two")
    modes = {path: path.stat() for path in (second, second.parent, context, base)}
    assert {one.st_uid for one in modes.values()} == {0}
    assert [stat.S_IMODE(one.st_mode) for one in modes.values()] == [0o640, 0o750, 0o750, 0o710]
    made.forget("c", "link")
    made.close()
    assert (await asyncio.to_thread(outside.stat)).st_uid == os.geteuid()
    assert untouched(outside)


# --- images --------------------------------------------------------------------------------------

IMAGES = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff\xe0",
    "image/gif": b"GIF89a",
    "image/webp": b"RIFF\x0a\0\0\0WEBPVP8 ",
}


def image(content: bytes, kind: str) -> Message:
    return Message("m", Role.USER, (RawPart(b64encode(content).decode(), kind, "x.png"),))


@pytest.mark.parametrize("kind", IMAGES)
@pytest.mark.parametrize("called", [*IMAGES, "text/plain", "image/svg+xml"])
def test_the_bytes_of_an_image_decide_its_type(
    attachments: Attachments, kind: str, called: str
) -> None:
    (part,) = attachments.check(image(IMAGES[kind] + b"rest", called)).parts
    assert media_type(part) == kind


@pytest.mark.parametrize("content", [b"", b"<svg/>", b"%PDF-1.7", b"text " * 100])
def test_what_is_no_image_is_refused_as_one(attachments: Attachments, content: bytes) -> None:
    with pytest.raises(ContentTypeNotSupported, match="Part 0 is called image/png"):
        attachments.check(image(content, "image/png"))


@pytest.mark.parametrize("kind", ["image/svg+xml", "image/x-own", "application/octet-stream"])
def test_other_types_stay(attachments: Attachments, kind: str) -> None:
    content = b"<svg/>" if kind.startswith("image") else IMAGES["image/png"]
    (part,) = attachments.check(image(content, kind)).parts
    assert media_type(part) == kind
