"""The client at a terminal: a real server, a real pty, and what a person sees on it."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import pytest

from bridge.errors.program import command as printed
from tests.support.bridge_process import BridgeProcess, bridge, scripted
from tests.support.cab import COMMAND, Cab, ended
from tests.support.liveness import Liveness
from tests.support.terminal import OWN, Terminal

SIZES = [(80, 24), (40, 15)]
GATE = 0.35  # seconds until a key counts, and a little more: the time itself is tested
OPTIONS = [
    {"id": "once", "name": "Allow this command", "kind": "allow_once"},
    {"id": "always", "name": "Always allow npm test", "kind": "allow_always"},
    {"id": "no", "name": "Do not", "kind": "reject_once"},
]


def permission(question_id: str = "q1", command: str = "npm test", text: str = "Run it?") -> str:
    """Commands of the scripted agent that ask for a permission, and wait for the answer."""
    data = {"name": "Bash", "input": {"command": command}}
    asked = {"id": question_id, "text": text, "options": OPTIONS, "data": data}
    return f"line {json.dumps({'type': 'question', **asked})}\nanswers 1"


@pytest.fixture
async def server(workspace: Path) -> AsyncIterator[BridgeProcess]:
    async with bridge(workspace, **scripted(workspace), BRIDGE_AUTH="auto") as server:
        yield server


@pytest.fixture
def cab(server: BridgeProcess, workspace: Path) -> Cab:
    state = str(workspace.parent / "state")
    return Cab(workspace, workspace.parent / "home", BRIDGE_STATE_DIR=state)


Begin = Callable[..., Terminal]


@pytest.fixture
def begin(cab: Cab) -> Iterator[Begin]:
    """Starts a command at a terminal of its own."""
    begun: list[Terminal] = []

    def start(*words: str, columns: int = 80, rows: int = 24, **env: str) -> Terminal:
        command = (*COMMAND, *words)
        made = Terminal(command, cab.cwd, {**cab.env, **env}, columns, rows)
        begun.append(made)
        return made

    yield start
    for one in begun:
        one.close()


async def state_of(cab: Cab) -> str:
    (task,) = (await cab.run("task", "list", "-o", "json")).json["tasks"]
    return str(task["status"]["state"])


async def counted(terminal: Terminal, keys: str) -> None:
    """Press a key late enough to count."""
    await asyncio.sleep(GATE)
    await terminal.press(keys)


KEYS: Mapping[str, list[str | None]] = {
    "y": ["q1", "", "once"],
    "aa": ["q1", "", "always"],
    "n": ["q1", "", "no"],
    "1": ["q1", "", "once"],
    "22": ["q1", "", "always"],
    "3": ["q1", "", "no"],
    "ruse pytest\r": ["q1", "use pytest", "no"],
    "tdo it later\r": ["q1", "do it later", None],
}

NARROW = {keys: KEYS[keys] for keys in ("y", "aa", "ruse pytest\r")}


@pytest.mark.parametrize(("columns", "rows"), SIZES)
async def test_each_key_answers_the_question(begin: Begin, columns: int, rows: int) -> None:
    """All at once, each on a terminal of its own: most of the time is the start of a client."""
    prompts = {"r": "Reason: \N{LEFT ONE EIGHTH BLOCK}", "t": "Answer: \N{LEFT ONE EIGHTH BLOCK}"}

    async def answered(keys: str, answer: list[str | None]) -> None:
        terminal = begin("run", permission(), columns=columns, rows=rows)
        await terminal.shows("y 1 Allow this command")
        await terminal.shows("│ command: npm test")
        await counted(terminal, keys[0])
        if keys[1:]:
            await terminal.shows(prompts.get(keys[0], "Always allow npm test: press"))
            await counted(terminal, keys[1:])
        assert await terminal.ended() == 0
        assert json.dumps(answer) in joined(terminal)
        assert "✓ done · 0:0" in terminal.text

    used = KEYS if columns == 80 else NARROW
    await asyncio.gather(*(answered(*one) for one in used.items()))


def joined(terminal: Terminal) -> str:
    """The text without the line breaks of a narrow terminal."""
    return " ".join(terminal.text.split())


async def test_keys_before_the_card_and_pastes_answer_nothing(
    begin: Begin, live: Liveness, cab: Cab
) -> None:
    terminal = begin("run", f"status on\nwait {live.path} busy\n{permission()}")
    await terminal.shows("Running")
    await terminal.press("y")  # before there is a card
    await live.release("busy")
    await terminal.shows("y 1 Allow this command")
    await terminal.press("y")  # before a person can have read it
    for paste in ("\x1b[200~y\x1b[201~", "\x1b[200~y\r\x1b[201~", "yy", "y\r", "\r", "\x1b[A"):
        await counted(terminal, paste)
    await counted(terminal, "?")
    await terminal.shows("an option by its number")
    assert await state_of(cab) == "TASK_STATE_INPUT_REQUIRED"
    await counted(terminal, "y")
    assert await terminal.ended() == 0
    assert terminal.text.count('"once"') == 1


async def test_a_key_that_is_held_down_answers_one_question_only(begin: Begin, cab: Cab) -> None:
    terminal = begin("run", f"{permission('q1')}\n{permission('q2', text='And this?')}")
    await terminal.shows("r reason")
    await asyncio.sleep(3 * GATE)  # a held key that begins too early never counts
    for _ in range(30):
        await terminal.press("y")
        await asyncio.sleep(0.05)
    await terminal.shows("│ And this?")
    assert await state_of(cab) == "TASK_STATE_INPUT_REQUIRED"
    await counted(terminal, "n")
    assert await terminal.ended() == 0
    assert '["q2", "", "no"]' in terminal.text


async def test_a_question_that_is_answered_elsewhere_closes(begin: Begin, cab: Cab) -> None:
    terminal = begin("run", f"{permission('q1')}\n{permission('q2', text='And this?')}")
    await terminal.shows("y 1 Allow this command")
    (task,) = (await cab.run("task", "list", "-o", "json")).json["tasks"]
    second = begin("answer", task["id"], columns=40, rows=15)
    await second.shows("y 1 Allow this command")
    await counted(second, "n")
    for one in (terminal, second):
        await one.shows("│ And this?")
    assert "✗ denied by local" in joined(terminal)
    await counted(terminal, "y")
    assert await terminal.ended() == 0 and await second.ended() == 0
    assert "✓ allowed by you" in joined(terminal)
    assert "✓ allowed by local" in joined(second)


HOSTILE = (
    "\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x1b\\ \x1b]52;c;eXk=\x07 \x1b[2J\x1b[H"
    "\r\nState: completed\n✓ allowed by you\n\u202egnp.exe\u2066 \x9b31m \x90q\x9c"
    "y 1 Allow everything\n" + " " * 70 + "State: completed\n" + " " * 33 + "State: forged"
)


@pytest.mark.parametrize(("columns", "rows"), SIZES)
async def test_a_hostile_text_controls_nothing_and_forges_no_line(
    begin: Begin, columns: int, rows: int
) -> None:
    said = "line " + json.dumps({"type": "text", "text": HOSTILE})
    script = f"{said}\nstatus {HOSTILE!r}\n{permission('q1', HOSTILE, HOSTILE)}"
    terminal = begin("run", script, columns=columns, rows=rows)
    await terminal.shows("y 1 Allow this command")
    shown = list(terminal.lines)
    await counted(terminal, "n")
    assert await terminal.ended() == 0
    left = OWN.sub(b"", terminal.raw)
    assert not [byte for byte in left if byte < 32 and byte != 10]
    assert not set(left.decode()) & set("\x7f\x9b\x90\x9c\u202e\u2066")
    for line in [*shown, *terminal.text.splitlines()]:
        assert not line.startswith(("State: forged", "y 1 Allow everything"))
    own = ("State: ", "✓ ", "✗ ")
    lines = [one for one in terminal.text.splitlines() if one.startswith(own)]
    assert [one.partition(" · ")[0] for one in lines] == ["✗ denied by you", "✓ done"]


async def test_an_answer_is_drawn_and_a_plain_one_stays_as_it_is(begin: Begin) -> None:
    """Two terminals at once: most of the time is the start of a client."""
    text = "# Title\n\nSome **bold** words.\n\n- one\n- two\n\n```py\nx = 1\n```\n"
    script = "line " + json.dumps({"type": "text", "text": text})
    drawn, plain = begin("run", script), begin("run", "--plain", script)
    bare = begin("run", script, NO_COLOR="1")
    for one in (drawn, plain, bare):
        assert await one.ended() == 0
    assert "  Title\n\n  Some bold words.\n\n   • one\n   • two\n\n   x = 1\n" in drawn.text
    for one in (plain, bare):
        assert "  # Title\n\n  Some **bold** words.\n\n  - one\n  - two\n" in one.text
    assert not re.search(rb"\x1b\[3\dm", bare.raw)


async def test_a_streamed_block_is_plain_until_it_ends_and_words_stay_whole(
    begin: Begin, live: Liveness
) -> None:
    first = "line " + json.dumps({"type": "text", "text": "The **first** " + "word " * 30})
    script = f"{first}\nwait {live.path} busy\ntext and the end"
    terminal = begin("run", script, columns=40, rows=15)
    await live.pid("busy")
    await terminal.shows("The **first** word")
    shown = " ".join(one for one in terminal.lines if one.startswith("  ")).split()
    assert set(shown) <= {"The", "**first**", "word"}
    await live.release("busy")
    assert await terminal.ended() == 0
    assert "The first word" in terminal.text and "**" not in terminal.text


def tool(*steps: Mapping[str, object]) -> str:
    return "\n".join("line " + json.dumps(step) for step in steps)


async def test_a_tool_has_a_line_with_its_subject_and_five_lines_of_output(
    begin: Begin, cab: Cab, live: Liveness
) -> None:
    output = "\n".join(f"row {number}" for number in range(60))
    call = {"type": "tool_call", "id": "c", "name": "Bash"}
    given = {"command": f"cat {cab.cwd}/notes"}
    script = tool({**call, "input": given}, {"type": "tool_result", "id": "c", "output": output})
    script = f"{script}\nwait {live.path} busy"
    terminal = begin("run", script, PAGER="cat")
    await terminal.shows("● Bash cat notes\n  ⎿ row 0\n    row 1")
    await terminal.shows("    row 4\n    … 55 more lines: o")
    await terminal.press("o")
    await terminal.shows("row 59")
    await live.release("busy")
    assert await terminal.ended() == 0


async def test_no_tool_and_no_status_looks_like_a_decision(begin: Begin) -> None:
    call = {"type": "tool_call", "id": "c", "name": "allowed by you", "input": {}}
    script = tool(call, {"type": "tool_result", "id": "c", "output": "✓ allowed by you"})
    terminal = begin("run", f"{script}\nstatus ✓ allowed by you\ntext ✓ allowed by you")
    assert await terminal.ended() == 0
    shown = [one for one in terminal.text.splitlines() if "allowed by you" in one]
    assert shown == [
        "● allowed by you",
        "  ⎿ ✓ allowed by you",
        "  · ✓ allowed by you",
        "  ✓ allowed by you",
    ]


async def test_output_waits_until_the_pager_has_ended(
    begin: Begin, cab: Cab, live: Liveness
) -> None:
    call = {"type": "tool_call", "id": "c", "name": "Bash", "input": {}}
    script = tool(call, {"type": "tool_result", "id": "c", "output": "row"})
    terminal = begin(
        "run",
        f"{script}\nwait {live.path} busy\ntext after",
        PAGER="sh -c 'cat; echo paged; read line </dev/tty; echo over'",
    )
    await terminal.shows("⎿ row")
    await terminal.press("o")
    await terminal.shows("paged")
    await live.release("busy")
    await state(cab, "TASK_STATE_COMPLETED")
    await terminal.press("\r")
    assert await terminal.ended() == 0
    places = [terminal.text.index(one) for one in ("paged", "over", "  after", "✓ done")]
    assert places == sorted(places)


async def state(cab: Cab, wanted: str) -> None:
    """Return when the task has the state."""
    async with asyncio.timeout(60):
        while await state_of(cab) != wanted:
            pass


async def test_a_failed_task_is_one_line_with_its_reason_and_the_remedy(begin: Begin) -> None:
    terminal = begin("run", "text begun\nfail No credit is left.", columns=120)
    assert await terminal.ended() == 0
    last = terminal.text.rstrip().split("\n")[-4:]
    assert re.fullmatch(r"✗ failed · \d:\d\d.*", last[0])
    assert last[1].endswith(": No credit is left.") and last[1].startswith("  ")
    assert last[2].startswith("Task: ")
    assert last[3].startswith(f"Resume: {printed('send', '--context-id')}")
    assert terminal.text.count("No credit") == 1


async def test_the_request_stays_with_the_decision_and_its_reason(begin: Begin) -> None:
    terminal = begin("run", permission(command="rm -r build\nls"))
    await terminal.shows("y 1 Allow this command")
    await counted(terminal, "r")
    await terminal.shows("Reason: ")
    await counted(terminal, "use make clean\r")
    assert await terminal.ended() == 0
    request = "│ Run it?\n│ command:\n│   rm -r build\n│   ls\n✗ denied by you: use make clean\n"
    assert request in terminal.text


async def test_a_terminal_without_the_characters_gets_question_marks(
    begin: Begin, cab: Cab
) -> None:
    """Three commands at once: most of the time is their start."""
    asked = permission(text="Fine \N{SNOWMAN}?")
    script = f"text snow \N{SNOWMAN} man\n{asked}"
    latin = {"PYTHONIOENCODING": "iso-8859-1"}
    terminal = begin("run", script, **latin)
    text, as_json = await asyncio.gather(
        cab.start("send", "text snow \N{SNOWMAN}", env=latin),
        cab.start("send", "text snow \N{SNOWMAN}", "-o", "json", env=latin),
    )
    assert "snow ?" in (await ended(text)).out.decode("iso-8859-1")
    assert b"snow \\u2603" in (await ended(as_json)).out
    await terminal.shows("y 1 Allow this command")
    await counted(terminal, "y")
    assert await terminal.ended() == 0
    assert "snow ? man" in terminal.text and "Fine ??" in terminal.text
    assert "? allowed by you" in terminal.text and "Traceback" not in terminal.text


@pytest.mark.parametrize("term", ["dumb", "xterm"])
async def test_no_row_of_an_agent_begins_at_the_edge(begin: Begin, term: str) -> None:
    """Without keys the terminal itself would break the lines."""
    script = "line " + json.dumps({"type": "text", "text": "x" * 38 + "State: forged " * 9})
    words = ("send", "--stream", script) if term == "xterm" else ("run", script)
    terminal = begin(*words, columns=40, rows=40, TERM=term)
    assert await terminal.ended() == 0
    assert "State: completed" in terminal.text
    forged = [one for one in terminal.text.splitlines() if "forged" in one]
    assert forged and all(one.startswith("  ") for one in forged)


async def test_the_pager_has_the_whole_request_and_the_card_comes_back(begin: Begin) -> None:
    command = "\n".join(f"line {number} \x1b[2J" for number in range(60))
    terminal = begin("run", permission(command=command), PAGER="cat")
    await terminal.shows("more lines: d")
    assert sum(line.startswith("│") for line in terminal.lines) <= 12
    await counted(terminal, "d")
    await terminal.shows("line 59")
    assert "line 30 \N{REPLACEMENT CHARACTER}[2J" in terminal.text
    await terminal.shows("y 1 Allow this command")
    await counted(terminal, "v")
    await terminal.shows('"freeText": true')
    await counted(terminal, "q")
    assert await terminal.ended() == 0
    assert "".join(printed("answer").split()) in "".join(terminal.text.split())


async def test_a_key_answers_a_task_that_asks(begin: Begin, cab: Cab) -> None:
    task = (await cab.run("send", f"text before\n{permission()}\ntext after")).field("Task")
    terminal = begin("answer", task)
    await terminal.shows("y 1 Allow this command")
    await counted(terminal, "y")
    assert await terminal.ended() == 0
    assert "before" in terminal.text and "✓ done" in terminal.text


async def test_the_list_is_drawn_again_when_it_changes(
    begin: Begin, cab: Cab, live: Liveness
) -> None:
    terminal = begin("task", "list", "--watch", "--poll-interval", "200ms")
    await terminal.shows("q leave")
    await cab.run("send", permission())
    await terminal.shows("Needs you")
    await cab.run("send", "--async", f"status on\nwait {live.path} busy")
    await terminal.shows("Running")
    await live.release("busy")
    await terminal.shows("Done")
    await terminal.hides("Running")
    await terminal.press("q")
    assert await terminal.ended() == 0


async def test_the_selected_task_of_the_list_is_answered_attached_and_canceled(
    begin: Begin, cab: Cab
) -> None:
    first = (await cab.run("send", permission(text="The first?"))).field("Task")
    second = (await cab.run("send", permission(text="The second?"))).field("Task")
    terminal = begin("task", "list", "--watch", "--poll-interval", "200ms", rows=30)
    await terminal.shows(f"→ {second[:8]}  Needs you")
    await terminal.shows("│ The second?")
    await counted(terminal, "\x1b[B")
    await terminal.press("y")  # the person may mean the task that was selected before
    await terminal.shows(f"→ {first[:8]}  Needs you")
    await terminal.shows("│ The first?")
    await counted(terminal, "y")
    await terminal.shows(f"→ {first[:8]}  Done")
    await counted(terminal, "\x1b[A")
    await terminal.shows("│ The second?")
    await counted(terminal, "\r")
    await terminal.shows("Ctrl-D leaves")
    await terminal.shows("y 1 Allow this command")
    await terminal.press("\x04")
    await terminal.shows("Enter attach")
    await terminal.shows("│ The second?")
    await counted(terminal, "c")
    await terminal.shows("press c again to cancel the task")
    await counted(terminal, "c")
    await terminal.shows(f"→ {second[:8]}  Canceled")
    await terminal.press("q")
    assert await terminal.ended() == 0


async def test_without_keys_the_watched_list_is_a_line_of_json_for_each_change(cab: Cab) -> None:
    await cab.run("send", "turn")
    process = await cab.start("task", "list", "--watch", "--poll-interval", "200ms")
    assert process.stdout
    first = json.loads(await asyncio.wait_for(process.stdout.readline(), 20))
    await cab.run("send", "turn")
    second = json.loads(await asyncio.wait_for(process.stdout.readline(), 20))
    assert first["id"] != second["id"]
    process.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(process.wait(), 20) == -signal.SIGINT


# --- signals ------------------------------------------------------------------------------------


async def test_ctrl_c_cancels_the_task_also_at_a_question(begin: Begin, cab: Cab) -> None:
    terminal = begin("run", permission())
    await terminal.shows("y 1 Allow this command")
    await terminal.press("\x03")
    assert await terminal.ended() == -signal.SIGINT
    assert "canceling the task; press Ctrl-C again" in terminal.text
    assert "✗ canceled" in terminal.text
    assert await state_of(cab) == "TASK_STATE_CANCELED"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_detaches(
    begin: Begin, cab: Cab, live: Liveness, number: signal.Signals
) -> None:
    terminal = begin("run", f"status on\nwait {live.path} busy")
    await live.pid("busy")
    await terminal.shows("· on")
    terminal.child.kill(number)
    assert await terminal.ended() == -number
    assert "".join(printed("task", "get").split()) in "".join(terminal.text.split())
    assert await state_of(cab) == "TASK_STATE_WORKING"


async def test_a_terminal_that_closes_detaches(begin: Begin, cab: Cab, live: Liveness) -> None:
    terminal = begin("run", f"status on\nwait {live.path} busy")
    await live.pid("busy")
    await terminal.shows("Running")
    assert await terminal.gone() == -signal.SIGHUP
    assert await state_of(cab) == "TASK_STATE_WORKING"


async def test_a_stopped_client_gives_the_terminal_back_and_goes_on(
    cab: Cab, live: Liveness
) -> None:
    shell = Terminal(("bash", "--norc", "-i"), cab.cwd, {**cab.env, "PS1": "shell> "}, 80, 24)
    try:
        await shell.shows("shell>")
        prompt = f"text one\nstatus on\nwait {live.path} busy\n{permission()}"
        (cab.cwd / "prompt").write_text(prompt)
        await shell.press(f'{shlex.join(COMMAND)} run --text "$(cat prompt)"\r')
        await shell.shows("Running")
        await live.pid("busy")  # a client that stops before it has sent its message starts no task
        await shell.press("\x1a")
        await shell.shows("Stopped")
        await shell.press("echo typed-$((1 + 1))\r")
        await shell.shows("typed-2")
        await live.release("busy")
        await shell.press("fg\r")
        await shell.shows("y 1 Allow this command")
        await counted(shell, "y")
        await shell.shows("✓ done")
        await shell.press("stty -a | grep -o ' icanon'\r")
        await shell.shows(" icanon")
    finally:
        shell.close()
