"""`attach` and `chat` at a terminal: several clients in one conversation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from bridge.auth.credentials import new_token
from bridge.errors.program import command
from tests.support.bridge_process import bridge, scripted
from tests.support.cab import COMMAND, Cab
from tests.support.liveness import Liveness
from tests.support.terminal import Terminal

GATE = 0.35  # seconds until a key at a card counts
MARK = "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"


@pytest.fixture
async def cab(workspace: Path) -> AsyncIterator[Cab]:
    folder = workspace.parent / "state"
    async with bridge(workspace, **scripted(workspace), BRIDGE_AUTH="auto"):
        yield Cab(workspace, workspace.parent / "home", BRIDGE_STATE_DIR=str(folder))


Begin = Callable[..., Terminal]


@pytest.fixture
def begin(cab: Cab) -> Iterator[Begin]:
    """Starts a command at a terminal of its own."""
    begun: list[Terminal] = []

    def start(*words: str, columns: int = 80, rows: int = 24, **env: str) -> Terminal:
        made = Terminal((*COMMAND, *words), cab.cwd, {**cab.env, **env}, columns, rows)
        begun.append(made)
        return made

    yield start
    for one in begun:
        one.close()


def pasted(script: str) -> str:
    """A message of several lines, and Enter."""
    return f"\x1b[200~{script}\x1b[201~\r"


async def states(cab: Cab) -> list[str]:
    """Of all tasks, the newest first."""
    return [
        one["status"]["state"]
        for one in (await cab.run("task", "list", "-o", "json")).json["tasks"]
    ]


async def test_a_person_joins_a_conversation_answers_and_goes_on(cab: Cab, begin: Begin) -> None:
    first = await cab.run("send", "text early")
    context = first.field("Context")
    asks = await cab.run("send", "--context-id", context, "permit q1 May I?\ntext after")
    terminal = begin("attach", asks.field("Task"))
    await terminal.shows("y 1 Go on")
    assert f"local {MARK} text early\n\n  early\n\n✓ done" in terminal.text
    await asyncio.sleep(GATE)
    await terminal.press("y")
    await terminal.shows("after")
    await terminal.shows("Ready")
    await terminal.press("turn\r")
    await terminal.shows("  3")
    await cab.run("send", "--context-id", context, "text of another client")
    await terminal.shows(f"local {MARK} text of another client")
    await terminal.shows("  of another client")
    await terminal.press("\x04")
    assert await terminal.ended() == 0
    assert "✓ allowed by you" in terminal.text
    assert terminal.text.count(f"{MARK} turn") == 1
    resume = f"Resume: {command('attach', context)}"  # it is wider than the terminal
    assert "".join(terminal.text.split()).endswith("".join(resume.split()))


async def test_lines_queue_and_ctrl_c_cancels_the_running_task_only(
    cab: Cab, begin: Begin, live: Liveness
) -> None:
    terminal = begin("chat", f"status on\nwait {live.path} busy\ntext never")
    await live.pid("busy")
    await terminal.shows("Running")
    await terminal.press(pasted(f"status on\nwait {live.path} second\ntext then"))
    await terminal.shows("it is queued")
    await terminal.press("\x03")
    await terminal.shows("canceling the task; press Ctrl-C again to leave")
    await terminal.shows("✗ canceled")
    await live.release("second")
    await terminal.shows("  then")
    await terminal.shows("Ready")
    await terminal.press("\x03")  # no task runs
    assert await terminal.ended() == 0
    assert await states(cab) == ["TASK_STATE_COMPLETED", "TASK_STATE_CANCELED"]


async def test_a_line_has_several_rows_a_history_and_commands(cab: Cab, begin: Begin) -> None:
    (cab.cwd / "notes").mkdir()
    (cab.cwd / "notes" / "a.md").touch()
    terminal = begin("chat", "text one")
    await terminal.shows("Ready")
    await terminal.press("text two\\\r")
    await terminal.shows(f"{MARK} text two\n  \N{LEFT ONE EIGHTH BLOCK}\nReady")
    await terminal.press("text @no\t")
    await terminal.shows("  text @notes/")
    await terminal.press("\t\r")
    await terminal.shows("  two@notes/a.md")
    await terminal.press("/he\t\r")
    await terminal.shows("/cancel   cancel the running task")
    await terminal.press("/quit\r")
    assert await terminal.ended() == 0
    second = begin("chat", "text three")
    await second.shows("Ready")
    await second.press("\x1b[A\x1b[A\x1b[A")
    await second.shows(f"{MARK} text two\n  text @notes/a.md")
    await second.press("\x04")
    assert await second.ended() == 0
    (file,) = (cab.home / ".local/state/coding-agent-bridge/history").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


async def test_the_author_of_an_answer_is_shown_to_all(cab: Cab, begin: Begin) -> None:
    task = (await cab.run("send", "permit q1 May I?\npermit q2 And this?")).field("Task")
    reader = begin("attach", task, "--read-only", columns=40, rows=15)
    await reader.shows('Options: yes "Go on", no "Do not"')
    first, second = begin("attach", task), begin("attach", task)
    for one in (first, second):
        await one.shows("y 1 Go on")
    await reader.press("y")
    await asyncio.sleep(GATE)
    await first.press("n")
    for one in (first, second):
        await one.shows("│ And this?")
    await asyncio.sleep(GATE)
    await second.press("t")
    await second.shows("Answer: ")
    await second.press("later\r")
    for one in (first, second, reader):
        await one.shows("✓ done")
        await one.press("\x04")
        assert await one.ended() == 0
    assert "✗ denied by you" in first.text
    assert 'answered ["q2", "later", null]' in first.text
    assert "✗ denied by local" in reader.text


async def test_a_line_that_was_begun_before_a_question_can_answer_it(
    cab: Cab, begin: Begin, live: Liveness
) -> None:
    terminal = begin("chat", f"status on\nwait {live.path} busy\nask q1 Which one?\ntext done")
    await live.pid("busy")
    await terminal.press("the red")
    await terminal.shows(f"{MARK} the red")
    await live.release("busy")
    await terminal.shows("Answer: the red")
    await terminal.press(" one\r")  # Enter before a person can have read the question
    await terminal.shows("Answer: the red one")
    await asyncio.sleep(GATE)
    await terminal.press("\r")
    await terminal.shows("✓ done")
    assert '["q1", "the red one", null]' in terminal.text
    assert await states(cab) == ["TASK_STATE_COMPLETED"]
    await terminal.press("\x04")
    assert await terminal.ended() == 0


async def test_a_person_who_leaves_ends_nothing(cab: Cab, begin: Begin, live: Liveness) -> None:
    script = f"status on\nwait {live.path} busy\npermit q1 May I?"
    task = (await cab.run("send", "--async", script)).field("Task")
    reader = begin("attach", task, "--read-only")
    await reader.shows("Running")
    await reader.press("\x03")  # cancels nothing
    assert await reader.ended() == 0
    await live.release("busy")
    terminal = begin("attach", task, "--from", "0")
    await terminal.shows("y 1 Go on")
    await asyncio.sleep(GATE)
    await terminal.press("q")
    assert await terminal.ended() == 0
    assert terminal.text.count(f"local {MARK} status on") == 1
    assert await states(cab) == ["TASK_STATE_INPUT_REQUIRED"]


async def test_without_a_terminal_attach_subscribes_and_chat_names_send(cab: Cab) -> None:
    first = await cab.run("send", "text one")
    second = await cab.run("send", "--context-id", first.field("Context"), "text two")
    for name in ("Task", "Context"):
        done = await cab.run("attach", second.field(name), "-o", "json")
        assert done.json["id"] == second.field("Task")
    unknown = await cab.run("attach", "unknown")
    assert (unknown.status, unknown.error) == (1, "TaskNotFoundError")
    assert "neither a task nor a context" in unknown.err
    refused = await cab.run("chat", "hello")
    assert (refused.status, refused.error) == (2, "CAB_ERR_NOT_A_TERMINAL")
    assert "coding-agent-bridge send TEXT" in refused.err


async def test_a_token_without_a_scope_sees_the_conversation_and_reads_why_it_cannot_act(
    workspace: Path, begin: Begin, cab: Cab, tmp_path: Path
) -> None:
    token, _, table = new_token("anna").partition("\n\n")
    config = tmp_path / "config.toml"
    config.write_text(table + 'scopes = ["run", "read"]\n')
    settings = {**scripted(workspace), "BRIDGE_AUTH": "auto", "CONFIG_FILE": str(config)}
    settings["BRIDGE_STATE_DIR"] = str(tmp_path / "second")
    async with bridge(workspace, **settings) as server:
        terminal = begin("chat", "permit q1 May I?", "-a", server.url, A2ACLI_BEARER=token)
        await terminal.shows("y 1 Go on")
        await asyncio.sleep(GATE)
        await terminal.press("y")
        await terminal.shows("not sent: ")
        assert "'approve'" in terminal.text
        await terminal.shows("y 1 Go on")
        await terminal.press("\x04")
        assert await terminal.ended() == 0
