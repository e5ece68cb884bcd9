"""`generic`: line-oriented CLIs by configuration alone, through the real server and the runner.
The CLI is tests/support/line_cli.py, which knows nothing of the bridge."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import ConfigurationError
from bridge.server.agents.configured import configure_agents
from bridge.server.settings.load import Loaded
from bridge.server.settings.root import Settings
from tests import CHECKOUT
from tests.support.cases import each
from tests.support.client import (
    Client,
    Json,
    artifact_text,
    context_id,
    facts,
    said,
    state,
    states,
    streamed_text,
    task_id,
)
from tests.support.liveness import listening
from tests.support.print_recipes import recipe
from tests.support.served import serving

PROGRAM = str(CHECKOUT / "tests/support/line_cli.py")
PROGRAM_OF_SYSTEM = "/bin/cat"
ASKS = {"agent_approval_pattern": r"\[y/n\]\s*$"}
REPL = {"agent_end_pattern": "^> $"}


@asynccontextmanager
async def client(workspace: Path, *args: str, **settings: Any) -> AsyncIterator[Client]:
    argv = ("-I", "-S", PROGRAM, *args)
    async with serving(workspace, agent_adapter="generic", agent_args=argv, **settings) as server:
        yield server.client("1.0")


# --- a process per turn --------------------------------------------------------------------------


async def test_the_prompt_is_on_stdin_and_the_exit_is_the_end(tmp_path: Path) -> None:
    async with client(tmp_path) as one:
        items = await one.collect("say hello; say there")
        assert states(items)[-1] == "completed"
        assert streamed_text(items) == "hello\nthere\n"
        again = await one.send("say again", contextId=context_id(items[0]))
        assert artifact_text(again) == "again\n"


async def test_the_prompt_is_where_the_arguments_say(tmp_path: Path) -> None:
    async with client(tmp_path, "{prompt}") as one:
        assert artifact_text(await one.send("args")) == '["args"]\n'


@pytest.mark.parametrize("pty", [False, True])
async def test_a_prompt_that_is_too_long_for_an_argument_has_a_remedy(
    tmp_path: Path, pty: bool
) -> None:
    async with client(tmp_path, "{prompt}", agent_pty=pty) as one:
        task = await one.send("x" * 128 * 1024)
        assert state(task) == "failed"
        assert "Argument list too long" in said(task)
        assert "Leave {prompt} out of AGENT_ARGS" in said(task)
        assert artifact_text(await one.send("args", contextId=context_id(task))) == '["args"]\n'


@pytest.mark.parametrize("text", ["--repl", "-x", "--help; args", "$(say a)", "`x`; 'y'", "a\nb"])
async def test_a_prompt_is_never_a_flag(tmp_path: Path, text: str) -> None:
    shown = "import sys; print(sys.argv[1:])"
    settings: Json = {
        "agent_adapter": "generic",
        "agent_args": ("-I", "-S", "-c", shown, "{prompt}"),
    }
    async with serving(tmp_path, **settings) as server:
        said = artifact_text(await server.client("1.0").send(text))
    expected = f" {text}" if text.startswith("-") else text
    assert said == f"{[expected]}\n"


async def test_an_exit_status_that_is_not_zero_is_a_failure(tmp_path: Path) -> None:
    async with client(tmp_path) as one:
        task = await one.send("say before; err what went wrong; exit 3")
        assert state(task) == "failed"
        assert "exit status 3" in said(task) and "what went wrong" in said(task)
        assert artifact_text(task) == "before\n"


async def test_a_program_that_cannot_be_started_is_a_failure(tmp_path: Path) -> None:
    program = tmp_path / "cli"
    program.write_text("#!/nowhere/interpreter\n")
    program.chmod(0o755)
    settings: Json = {"agent_adapter": "generic", "agent_binary": str(program), "agent_args": ()}
    async with serving(tmp_path, **settings) as server:
        one = server.client("1.0")
        for _ in range(2):
            task = await one.send("hello")
            assert state(task) == "failed"
            assert "No such file" in said(task)


@pytest.mark.parametrize("pty", [False, True])
async def test_much_output_is_complete_and_in_order(tmp_path: Path, pty: bool) -> None:
    async with client(tmp_path, agent_pty=pty) as one:
        task = await one.send("flood 20000")
        assert artifact_text(task) == "".join(f"{n} {'x' * 50}\n" for n in range(20000))


async def test_objects_are_read_and_other_lines_are_text(tmp_path: Path) -> None:
    settings = {"agent_text_field": "delta.text"}
    async with client(tmp_path, **settings) as one:
        items = await one.collect('json a; json b; say no object; say {"x": 1}')
        assert states(items)[-1] == "completed"
        assert streamed_text(items) == "abno object\n"
        lines = [facts(item).get("line") for item in items if facts(item).get("line")]
        assert lines == [{"x": 1}]


async def test_the_recipe_for_opencode_finds_its_text(tmp_path: Path) -> None:
    """In a recording of `opencode run` 1.18.33, which the program prints."""
    recording = CHECKOUT / "tests/transcripts/generic/opencode-run.jsonl"
    rows = map(json.loads, recording.read_text("utf-8").splitlines())
    lines = [json.dumps(row["data"]) for row in rows if row["dir"] == "out"]
    (tmp_path / "lines").write_text("\n".join(lines))
    found = recipe("opencode", tmp_path)
    settings: Json = {
        "agent_adapter": "generic",
        "agent_binary": PROGRAM_OF_SYSTEM,
        "agent_args": ("lines",),
        "agent_text_field": found["AGENT_TEXT_FIELD"],
    }
    async with serving(tmp_path, **settings) as server:
        items = await server.client("1.0").collect("x")
    assert states(items)[-1] == "completed"
    words = ("I will call question now. ", "All done after 1 tool result(s). ")
    assert streamed_text(items) == "".join(words) + "The answer is forty-two."
    shown = [facts(item)["line"]["type"] for item in items if facts(item).get("line")]
    assert shown == ["step_start", "tool_use", "step_finish", "step_start", "step_finish"]


# --- questions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("pty", [False, True])
@pytest.mark.parametrize("command", ["ask", "askline"])
@pytest.mark.parametrize(("answer", "written"), [("allow", "y"), ("no", "n"), ("other", None)])
async def test_a_question_is_the_clients(
    tmp_path: Path, pty: bool, command: str, answer: str, written: str | None
) -> None:
    async with client(tmp_path, "--line", agent_pty=pty, **ASKS) as one:
        asked = await one.send(f"say first; {command} Remove all? [y/n]")
        assert state(asked) == "input-required"
        assert "Remove all?" in said(asked)
        task = await one.send(answer, taskId=task_id(asked))
        if written is None:  # neither yes nor no: the CLI gets the words
            written = "other"
        assert state(task) == "completed", said(task)
        assert artifact_text(task).endswith(f"got '{written}'\n")


async def test_with_force_no_question_is_asked(tmp_path: Path) -> None:
    async with client(tmp_path, "--line", agent_force=True, **ASKS) as one:
        task = await one.send("ask Remove all? [y/n]; ask And that? [y/n]")
        assert state(task) == "completed"
        assert artifact_text(task).count("got 'y'") == 2


async def test_past_output_is_not_a_question(tmp_path: Path) -> None:
    async with client(tmp_path, "--line", **ASKS) as one:
        items = await one.collect("say Remove all? [y/n]; flood 500; say Sure? [y/n]; say end")
        assert states(items)[-1] == "completed"
        assert "input-required" not in states(items)


async def test_a_question_that_was_none_is_withdrawn(tmp_path: Path) -> None:
    async with listening() as sockets, client(tmp_path, "--line", **ASKS) as one:
        asked = await one.send(f"part {sockets.path} here | Loading [y/n]; say ...done; say bye")
        assert state(asked) == "input-required"
        async with one.subscribe(task_id(asked)) as updates:
            await anext(updates)
            await sockets.release("here")
            items = [item async for item in updates]
        assert states(items)[-1] == "completed"
        assert artifact_text(await one.get(task_id(asked))).endswith("...done\nbye\n")


# --- one process for all turns -------------------------------------------------------------------


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("pty", [False, True])
async def test_a_process_can_serve_all_turns(tmp_path: Path, pty: bool, slow: bool) -> None:
    args = ("--repl", *(["--slow"] if slow else []))
    async with client(tmp_path, *args, agent_pty=pty, **REPL) as one:
        first = await one.send("say one; say > two; tty")
        assert state(first) == "completed", said(first)
        assert artifact_text(first) == f"one\n> two\n{[pty] * 3}\n"
        second = await one.send("say three", contextId=context_id(first))
        assert artifact_text(second) == "three\n"


async def test_a_prompt_of_several_lines_is_one_line(tmp_path: Path) -> None:
    async with client(tmp_path, "--repl", agent_pty=True, **REPL) as one:
        task = await one.send("say a;\nsay b;\x03\x04 say c" + "c" * 10000)
        assert artifact_text(task) == "a\nb\nc" + "c" * 10000 + "\n"


async def test_a_process_that_ends_while_it_is_asked_is_a_failure(tmp_path: Path) -> None:
    async with client(tmp_path, "--repl", **REPL) as one:
        first = await one.send("say going; exit 0")
        assert state(first) == "failed"
        second = await one.send("say back", contextId=context_id(first))
        assert artifact_text(second) == "back\n"


# --- cancel --------------------------------------------------------------------------------------


@pytest.mark.parametrize("pty", [False, True])
@pytest.mark.parametrize("repl", [False, True])
async def test_a_cancel_leaves_nothing_behind(tmp_path: Path, pty: bool, repl: bool) -> None:
    settings: Json = {"agent_pty": pty, **(REPL if repl else {})}
    async with (
        listening() as sockets,
        client(tmp_path, *(["--repl"] if repl else []), **settings) as one,
    ):
        command = f"say a; spawn {sockets.path} child; wait {sockets.path} cli"
        running = await one.send_now(command)
        await sockets.pid("child"), await sockets.pid("cli")
        assert state(await one.cancel(task_id(running))) == "canceled"
        await sockets.gone("child", "cli")


# --- what is configured wrongly ------------------------------------------------------------------


@each(
    ("settings", "about"),
    [
        ({"agent_approval_pattern": "("}, "AGENT_APPROVAL_PATTERN"),
        ({"agent_end_pattern": "["}, "AGENT_END_PATTERN"),
        ({"agent_approval_response": ("y",)}, "AGENT_APPROVAL_RESPONSE"),
        ({"agent_end_pattern": "x", "agent_args": ("{prompt}",)}, "AGENT_END_PATTERN"),
        ({"agent_model": "big"}, "AGENT_MODEL"),
    ],
)
def test_impossible_settings_are_refused_at_the_start(settings: Json, about: str) -> None:
    program = {"agent_adapter": "generic", "agent_binary": PROGRAM_OF_SYSTEM}
    chosen = Settings().updated(program | settings)
    with pytest.raises(ConfigurationError, match=about):
        configure_agents(Loaded(chosen, {}, []))
