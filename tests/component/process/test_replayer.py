"""Playing recordings: the player as a program, and the server with it as its agent."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge.process import replayer
from tests.support.bridge_process import bridge
from tests.support.client import Client, artifact_text, said, state, states
from tests.support.command_line import refusal, run

WITHIN = 60.0
Line = tuple[str, Any]
PROMPT: Line = ("in", {"type": "prompt", "text": "recorded"})
TURN: list[Line] = [
    PROMPT,
    ("out", {"type": "text", "text": "one "}),
    ("err", "a word on stderr"),
    ("out", "not JSON"),
    ("out", {"type": "text", "text": "two"}),
    ("out", {"type": "done", "text": "well"}),
]
OPTIONS = [
    {"id": "yes", "name": "Go on", "kind": "allow_once"},
    {"id": "no", "name": "Do not", "kind": "reject_once"},
]
QUESTION: list[Line] = [
    PROMPT,
    ("out", {"type": "question", "id": "q-1", "text": "May I?", "options": OPTIONS}),
    ("in", {"type": "answer", "questionId": "q-1", "text": "Go on", "optionId": "yes"}),
    ("out", {"type": "text", "text": "I may"}),
    ("out", {"type": "done"}),
]


def write(path: Path, lines: list[Line], adapter: str = "jsonl", pause: float = 0.0) -> str:
    note = {"note": "spawn", "argv": ["agent"], "adapter": adapter}
    said = [("note", note), *lines]
    with path.open("w") as file:
        for number, (direction, data) in enumerate(said):
            line = {"t": number * pause, "dir": direction, "data": data}
            file.write(json.dumps(line) + "\n")
    return str(path)


@asynccontextmanager
async def replaying(workspace: Path, recording: str, **env: str) -> AsyncIterator[Client]:
    settings: Any = {
        "AGENT_ADAPTER": "replay",
        "BRIDGE_REPLAY_FILE": recording,
        "BRIDGE_REPLAY_SPEED": "0",
    }
    timeout = aiohttp.ClientTimeout(total=30)
    async with (
        bridge(workspace, **{**settings, **env}) as server,
        aiohttp.ClientSession(timeout=timeout) as http,
    ):
        yield Client(http, server.url)


async def test_a_recording_is_played_in_every_context_and_again(
    workspace: Path, tmp_path: Path
) -> None:
    async with replaying(workspace, write(tmp_path / "tape", TURN)) as client:
        for context in ("a", "a", "b", "a"):
            task = await client.send("something else", contextId=context)
            assert (state(task), artifact_text(task)) == ("completed", "one two")
            assert said(task) == "one two\n\nwell"
        items = await client.collect("as a stream")
        assert states(items) == ["submitted", "working", "completed"]


async def test_a_question_is_asked_again_and_answered_as_recorded(
    workspace: Path, tmp_path: Path
) -> None:
    async with replaying(workspace, write(tmp_path / "tape", QUESTION)) as client:
        for _ in range(2):
            task = await client.send("x", contextId="c")
            assert (state(task), said(task).splitlines()[0]) == ("input-required", "May I?")
            task = await client.send("go on", taskId=task["id"])
            assert (state(task), artifact_text(task)) == ("completed", "I may")


async def test_another_answer_than_the_recorded_one_ends_the_turn_and_says_why(
    workspace: Path, tmp_path: Path
) -> None:
    async with replaying(workspace, write(tmp_path / "tape", QUESTION)) as client:
        task = await client.send("x", contextId="c")
        task = await client.send("Do not", taskId=task["id"])
        assert state(task) == "completed" and artifact_text(task) == said(task)
        assert "'yes'" in said(task) and "'no'" in said(task) and "replay ends" in said(task)
        task = await client.send("once more", contextId="c")
        task = await client.send("yes", taskId=task["id"])
        assert artifact_text(task) == "I may"


async def test_claude_codes_permission_is_played_likewise(workspace: Path, tmp_path: Path) -> None:
    def answer(behavior: str) -> Line:
        response = {"request_id": "r", "subtype": "success", "response": {"behavior": behavior}}
        return ("in", {"type": "control_response", "response": response})

    request = {"subtype": "can_use_tool", "tool_name": "Bash", "input": {"command": "ls"}}
    result = {"type": "result", "subtype": "success", "is_error": False, "result": "listed"}
    lines: list[Line] = [
        ("in", {"type": "user", "message": {"role": "user", "content": "x"}}),
        ("out", {"type": "control_request", "request_id": "r", "request": request}),
        answer("allow"),
        ("out", result),
    ]
    tape = write(tmp_path / "tape", lines, adapter="claude-code")
    async with replaying(workspace, tape) as client:
        for words, end in (("allow", "listed"), ("deny", "'deny'")):
            task = await client.send("x", contextId="c")
            assert state(task) == "input-required" and "Bash: ls" in said(task)
            task = await client.send(words, taskId=task["id"])
            assert state(task) == "completed"
            assert end in said(task) + artifact_text(task, "result")


async def test_the_end_of_a_recorded_cli_is_played_too(workspace: Path, tmp_path: Path) -> None:
    lines = [PROMPT, ("err", "no credit left"), ("note", {"note": "exit", "rc": 5})]
    async with replaying(workspace, write(tmp_path / "tape", lines)) as client:
        for _ in range(2):
            task = await client.send("x", contextId="c")
            assert state(task) == "failed"
            assert "exit status 5" in said(task) and "no credit left" in said(task)


async def test_a_replay_can_be_canceled(workspace: Path, tmp_path: Path) -> None:
    tape = write(tmp_path / "tape", TURN, pause=100.0)
    async with replaying(workspace, tape, BRIDGE_REPLAY_SPEED="1") as client:
        task = await client.send_now("x", contextId="c")
        assert state(await client.cancel(task["id"])) == "canceled"
        after = await client.send_now("y", contextId="c")
        assert state(await client.cancel(after["id"])) == "canceled"


@pytest.mark.parametrize(
    "content",
    [
        *("", "{}", "[]", "nonsense", '{"data": 5}', "\xff"),
        pytest.param(
            '{"data": {"argv": []}}',
        ),
    ],
)
def test_a_file_that_is_not_a_recording_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tape"
    path.write_bytes(content.encode("latin-1"))
    env = {"AGENT_ADAPTER": "replay", "BRIDGE_REPLAY_FILE": str(path)}
    assert f"{path} is not a recording" in refusal(run(cwd=tmp_path, **env))


def test_a_recording_that_is_missing_or_of_no_known_cli_is_refused(tmp_path: Path) -> None:
    env = {"AGENT_ADAPTER": "replay", "BRIDGE_REPLAY_FILE": "nowhere.jsonl"}
    assert "nowhere.jsonl" in refusal(run(cwd=tmp_path, **env))
    path = write(tmp_path / "tape", TURN, adapter="unknown-cli")
    text = refusal(run(cwd=tmp_path, **{**env, "BRIDGE_REPLAY_FILE": path}))
    assert "unknown-cli" in text


# --- the player --------------------------------------------------------------------------------


def play(tape: str, speed: float, given: bytes) -> subprocess.CompletedProcess[bytes]:
    argv = [sys.executable, "-I", replayer.__file__, tape, str(speed)]
    return subprocess.run(argv, input=given, capture_output=True, timeout=WITHIN, check=False)


GIVEN = b'nonsense\n[]\n{"type":"other"}\n{"type":"prompt","text":"x"}\n'


def test_the_player_writes_the_recorded_output_to_its_stream(tmp_path: Path) -> None:
    done = play(write(tmp_path / "tape", TURN), 0, GIVEN)
    out = [line for line in done.stdout.decode().splitlines() if line.startswith("{")]
    assert [json.loads(line)["type"] for line in out] == ["text", "text", "done"]
    assert b"not JSON\n" in done.stdout and done.stderr == b"a word on stderr\n"
    assert done.returncode == 0  # at the end of stdin


def test_the_player_waits_for_its_prompt(tmp_path: Path) -> None:
    assert play(write(tmp_path / "tape", TURN), 0, b"").stdout == b""


@pytest.mark.parametrize(
    ("speed", "least", "most"), [(0, 0.0, 1.0), (1, 0.9, 9.0), (10, 0.09, 1.0)]
)
def test_the_player_keeps_the_time(tmp_path: Path, speed: float, least: float, most: float) -> None:
    tape = write(tmp_path / "tape", TURN, pause=0.2)  # 1.0 s after the prompt
    program = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen(sys.argv[1:], stdin=-1, stdout=-1, stderr=subprocess.DEVNULL)\n"
        'p.stdin.write(b\'{"type":"prompt"}\\n\'); p.stdin.flush(); start = time.monotonic()\n'
        "while b'done' not in p.stdout.readline(): pass\n"
        "print(time.monotonic() - start); p.kill()\n"
    )
    argv = [sys.executable, "-I", "-c", program, sys.executable, "-I", replayer.__file__]
    done = subprocess.run(
        [*argv, tape, str(speed)], capture_output=True, timeout=WITHIN, check=True
    )
    assert least <= float(done.stdout) < most


def test_a_recording_that_waits_for_nothing_is_not_played_for_ever(tmp_path: Path) -> None:
    lines: list[Line] = [("in", {"type": "control_request"}), ("out", {"type": "done"})]
    argv = [sys.executable, "-I", replayer.__file__, write(tmp_path / "tape", lines), "0"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdin
        process.stdin.write(b'{"type":"control_request"}\n')
        process.stdin.flush()
        try:
            assert len([process.stdout.readline() for _ in range(1)]) == 1
            process.stdin.close()
            assert len(process.stdout.read(10_000)) < 1000
        finally:
            process.kill()
