"""Parts of messages: their limits, and their files. (tests/support/agent.py takes every media type;
a subclass takes fewer.)"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import pytest

from bridge.adapter import Prompt, as_text
from bridge.errors import ContentTypeNotSupported, InvalidParams, LaunchError
from bridge.task.message import DataPart, Message, Part, RawPart, Role, TextPart, UrlPart
from bridge.workspace.attachments import Attachments, PartLimits
from bridge.workspace.paths import Workspaces
from tests.support.client import RpcError, context_id, state, task_id
from tests.support.liveness import listening
from tests.support.served import serving

SMALL = PartLimits(text=10, raw=20, file=30)
Make = Callable[..., Attachments]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    (tmp_path / "workspace").mkdir()
    workspaces = Workspaces(str(tmp_path / "workspace"), ())

    def make(modes: tuple[str, ...] = ("text/*",)) -> Attachments:
        folder = tmp_path / "files"
        return Attachments(workspaces, modes, takes_urls=False, folder=folder, limits=SMALL)

    return make


def message(*parts: Part) -> Message:
    return Message("m", Role.USER, parts)


def raw(content: bytes, kind: str = "application/zip", name: str | None = None) -> RawPart:
    return RawPart(b64encode(content).decode(), kind, name)


@pytest.mark.parametrize(
    ("fits", "too_large"),
    [
        (TextPart("x" * 10), TextPart("x" * 11)),
        (TextPart("é" * 5), TextPart("é" * 6)),
        (DataPart("x" * 8), DataPart("x" * 9)),
        (raw(b"x" * 20), raw(b"x" * 21)),
    ],
)
def test_a_part_that_is_too_large_is_refused_by_its_number(
    make: Make, fits: Part, too_large: Part
) -> None:
    attachments = make(("text/*", "application/json"))
    assert attachments.check(message(fits)) == message(fits)
    with pytest.raises(InvalidParams, match=r"Part 1 has .* bytes; the limit is ") as raised:
        attachments.check(message(fits, too_large))
    assert raised.value.fields[0][0] == "message.parts.1"


def test_a_file_of_the_workspace_may_be_larger(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "workspace" / "a b.txt"
    path.write_bytes(b"x" * 30)
    part = UrlPart(path.as_uri().replace("file://", "file://localhost"))
    assert make().check(message(part)).parts == (UrlPart(path.as_uri()),)
    path.write_bytes(b"x" * 31)
    with pytest.raises(InvalidParams, match="the limit is 30 bytes"):
        make().check(message(part))


@pytest.mark.parametrize("part", [TextPart("x", "image/png"), DataPart({}, "application/xml")])
def test_text_and_data_of_a_foreign_kind_are_refused(make: Make, part: Part) -> None:
    with pytest.raises(ContentTypeNotSupported, match="read"):
        make().check(message(part))


async def test_parts_that_the_cli_takes_are_unchanged(make: Make, tmp_path: Path) -> None:
    sent = message(TextPart("look"), raw(b"x", "text/csv"))
    assert make().fits(sent)
    assert await make().save("c", "t", sent) is sent
    assert (make().folder("c"), (tmp_path / "files").exists()) == (None, False)


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("report.zip", "application/zip", "report.zip"),
        (None, "application/zip", "file.zip"),
        (None, "application/x-nobody-knows", "file"),
        ("../../etc/passwd", "application/zip", "passwd"),
        ("..", "application/zip", "file"),
        (".bashrc", "application/zip", "bashrc"),
        ("-rf", "application/zip", "rf"),
        ("a\nb c\u202egpj.exe", "application/zip", "a_b_c_gpj.exe"),
        ("x" * 300 + ".zip", "application/zip", "x" * 96 + ".zip"),
    ],
)
async def test_any_other_file_is_put_into_the_folder_of_its_task(
    make: Make, tmp_path: Path, name: str | None, kind: str, expected: str
) -> None:
    attachments = make()
    sent = message(TextPart("look"), raw(b"\x00\xff", kind, name))
    assert not attachments.fits(sent)
    text, saved = (await attachments.save("..", "task", sent)).parts
    assert (text, isinstance(saved, UrlPart)) == (TextPart("look"), True)
    path = Path(as_text(saved).removeprefix("Attached file: "))
    assert path.name == f"1-{expected}"
    assert path.read_bytes() == b"\x00\xff"  # noqa: ASYNC240 - a few bytes
    assert path.parent.name == "task"
    assert path.is_relative_to(tmp_path / "files")
    assert attachments.folder("..") == str(path.parent.parent)


async def test_files_go_with_their_task_and_the_folder_with_the_last(
    make: Make, tmp_path: Path
) -> None:
    attachments = make()
    for task in ("one", "two"):
        await attachments.save("c", task, message(raw(b"x")))
    folder = Path(attachments.folder("c") or "")
    attachments.forget("c", "one")
    attachments.forget("c", "unknown")
    attachments.forget("other", "one")
    assert os.listdir(folder) == ["two"]
    attachments.forget("c", "two")
    assert attachments.folder("c") is None
    assert os.listdir(tmp_path / "files") == []


def test_an_agent_without_files_refuses_them(tmp_path: Path) -> None:
    """Files of a type that it reads as parts are no exception."""
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "a.zip").write_text("x")
    workspaces, modes = Workspaces(str(tmp_path), ()), ("text/*",)
    attachments = Attachments(workspaces, modes, takes_urls=False, takes_files=False)
    for name, kind in (("a.txt", "text/plain"), ("a.zip", "application/zip")):
        file = UrlPart((tmp_path / name).as_uri(), kind)
        for part in (raw(b"x", kind), file):
            if kind == "text/plain":
                assert attachments.check(message(part))
            else:
                with pytest.raises(ContentTypeNotSupported, match="cannot read application/zip"):
                    attachments.check(message(TextPart("text"), part))


async def test_a_temporary_folder_is_private_and_removed_at_the_end(tmp_path: Path) -> None:
    attachments = Attachments(Workspaces(str(tmp_path), ()), ("text/*",), takes_urls=False)
    await attachments.save("c", "t", message(raw(b"x")))
    folder = Path(attachments.folder("c") or "").parent
    assert folder.stat().st_mode & 0o777 == 0o700
    attachments.close()
    assert not folder.exists()


async def test_a_file_that_cannot_be_stored_is_an_error(make: Make, tmp_path: Path) -> None:
    (tmp_path / "files").write_text("in the way")
    with pytest.raises(LaunchError, match="an attached file cannot be kept: "):
        await make().save("c", "t", message(raw(b"x")))


def test_a_prompt_as_text_has_all_of_its_parts() -> None:
    parts = (
        TextPart("Look at"),
        DataPart({"a": "é"}),
        UrlPart("file:///a%20b.png"),
        UrlPart("http://example/x"),
        raw(b"1,2", "text/csv", "t.csv"),
    )
    assert Prompt("t", "c", message(*parts)).text.split("\n\n") == [
        "Look at",
        '{"a":"é"}',
        "Attached file: /a b.png",
        "Attached: http://example/x",
        '<file name="t.csv">\n1,2\n</file>',
    ]


# --- over HTTP ---------------------------------------------------------------------------------


async def test_the_limits_are_settings(tmp_path: Path) -> None:
    async with serving(tmp_path, bridge_max_text_bytes=50, bridge_max_raw_bytes=4) as server:
        client = server.client()
        for part in ({"text": "x" * 51}, {"raw": b64encode(b"x" * 8).decode()}):
            with pytest.raises(RpcError) as raised:
                await client.send([part])
            assert raised.value.code == -32602
        assert state(await client.send("text ok\ndone")) == "completed"


async def test_a_question_is_not_answered_with_a_file(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client = server.client()
        task = await client.send("ask q What?\ntext done")
        with pytest.raises(RpcError) as raised:
            await client.send([{"raw": "eA=="}], taskId=task_id(task))
        assert raised.value.code == -32005
        assert state(await client.get(task_id(task))) == "input-required"
        await client.cancel(task_id(task))


async def test_an_answer_cannot_choose_another_directory(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    async with serving(tmp_path) as server:
        client = server.client()
        task = await client.send("ask q What?\ntext done")
        with pytest.raises(RpcError) as raised:
            await client.send("this", taskId=task_id(task), metadata={"bridge": {"cwd": "sub"}})
        assert raised.value.code == -32602
        assert state(await client.get(task_id(task))) == "input-required"
        await client.cancel(task_id(task))


async def test_where_the_cli_cannot_be_steered_the_message_waits_its_turn(tmp_path: Path) -> None:
    async with serving(tmp_path, bridge_when_busy="steer") as server, listening() as live:
        client = server.client()
        first = await client.send_now(f"wait {live.path} a\ntext done")
        await live.pid("a")
        second = await client.send_now("text after", contextId=context_id(first))
        assert task_id(second) != task_id(first)
        assert state(second) == "submitted"
        await live.release("a")
