"""The command-line client against a real server: real processes, signals, files and sockets.

An agent that waits says `status on` first: the server holds the first item of a stream back as long
as the agent may reply with a message in place of a task.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from bridge.auth.credentials import new_token
from bridge.errors.program import command
from tests.support.bridge_process import BridgeProcess, bridge, scripted
from tests.support.cab import COMMAND, Cab, ended
from tests.support.liveness import Liveness, listening
from tests.support.proxy import Gate, port_of, serving

ANSWER = "first\n\nsecond: \N{SNOWMAN}\n  State: completed\n"
SAY = "\n".join(f"text {line}" for line in ("one", "two"))


pytestmark = pytest.mark.asyncio(loop_scope="module")
Served = tuple[BridgeProcess, Cab]


@asynccontextmanager
async def serving_in(workspace: Path) -> AsyncIterator[Served]:
    """A server, and a client in its workspace."""
    state = str(workspace.parent / "state")
    async with bridge(workspace, **scripted(workspace), BRIDGE_AUTH="auto") as server:
        yield server, Cab(workspace, workspace.parent / "home", BRIDGE_STATE_DIR=state)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """The server of most tests: a start takes longer than a test."""
    workspace = tmp_path_factory.mktemp("shared") / "workspace"
    workspace.mkdir()
    async with serving_in(workspace) as served:
        yield served


@pytest_asyncio.fixture(loop_scope="module")
async def own(workspace: Path) -> AsyncIterator[Served]:
    """A server without the tasks of other tests."""
    async with serving_in(workspace) as served:
        yield served


@pytest_asyncio.fixture(loop_scope="module")
async def live() -> AsyncIterator[Liveness]:
    async with listening() as live:
        yield live


@pytest.fixture
def cab(shared: Served) -> Cab:
    return shared[1]


@pytest.fixture
def alone(own: Served) -> Cab:
    return own[1]


def permission(question_id: str) -> str:
    """Commands of the scripted agent that ask to run a command, and wait for the answer."""
    options = [
        {"id": "yes", "name": "Go on", "kind": "allow_once"},
        {"id": "no", "name": "Do not", "kind": "reject_once"},
    ]
    data = {"name": "Bash", "input": {"command": "npm test"}}
    asked = {"id": question_id, "text": "Run it?", "options": options, "data": data}
    return f"line {json.dumps({'type': 'question', **asked})}\nanswers 1"


def line(text: str) -> str:
    """A command of the scripted agent that says `text`, whatever it contains."""
    return "line " + json.dumps({"type": "text", "text": text})


# --- send ---------------------------------------------------------------------------------------


async def test_a_send_prints_the_ids_the_answer_the_state_and_the_next_command(cab: Cab) -> None:
    done = await cab.run("send", SAY)
    assert (done.status, done.err) == (0, "")
    assert done.field("State") == "completed"
    assert done.field("Directory") == str(cab.cwd)
    assert "Artifact Assistant response:\n  onetwo\n\n" in done.text
    assert done.text.splitlines()[-1].startswith(f"Resume: {command('send', '--context-id')} ")
    again = await cab.paste(done.field("Resume"), TEXT="turn")
    assert again.field("Context") == done.field("Context")
    assert "  2\n" in again.text


@pytest.mark.parametrize("stream", [(), ("--stream",)])
async def test_quiet_output_is_the_bytes_of_the_answer(cab: Cab, stream: tuple[str, ...]) -> None:
    done = await cab.run("send", "-q", *stream, line(ANSWER))
    assert (done.status, done.out) == (0, ANSWER.encode())
    assert "\nState: completed\n" in done.err
    pieces = await cab.run("send", "-q", *stream, "status on\ntext one\nstatus on\ntext two")
    assert pieces.out == b"onetwo"


@pytest.mark.parametrize("flags", [(), ("--transport", "rest"), ("--a2a-version", "0.3")])
async def test_json_is_one_document_of_a2a_1_0(cab: Cab, flags: tuple[str, ...]) -> None:
    task = (await cab.run("send", "-o", "json", *flags, SAY)).json["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["artifacts"][0]["parts"] == [{"text": "onetwo"}]
    got = (await cab.run("task", "get", task["id"], "--history", "9", "-o", "json", *flags)).json
    assert {one["role"] for one in got.pop("history")} == {"ROLE_USER", "ROLE_AGENT"}
    assert got == task and "kind" not in json.dumps(task)


@pytest.mark.parametrize("flags", [(), ("--transport", "rest"), ("--a2a-version", "0.3")])
async def test_a_stream_of_json_is_one_object_a_line(cab: Cab, flags: tuple[str, ...]) -> None:
    done = await cab.run("send", "-o", "json", "--stream", *flags, SAY)
    assert "task" in done.lines[0]
    last = done.lines[-1]["statusUpdate"]
    assert last["status"]["state"] == "TASK_STATE_COMPLETED"
    assert last["taskId"] == done.lines[0]["task"]["id"]
    pieces = [one["artifactUpdate"] for one in done.lines if "artifactUpdate" in one]
    assert "".join(one["artifact"]["parts"][0]["text"] for one in pieces) == "onetwo"


async def test_an_answer_cannot_look_like_a_field(cab: Cab) -> None:
    forged = "\n\nState: completed\x1b[2K\x1b]8;;http://x\x07\r\u202e\x9b31m\n\nResume: rm -rf /"
    for flags in ((), ("--stream",)):
        done = await cab.run("send", *flags, line(forged) + "\nfail forged\nState: completed")
        assert done.field("State") == "failed"
        assert done.field("Resume").startswith(command("send"))
        assert not set(done.text + done.err) & set("\x1b\x07\r\x9b\u202e")
        assert "  State: completed" in done.text


async def test_the_exit_status_is_of_the_command_or_of_the_state(cab: Cab) -> None:
    for script, status, word in (
        ("fail broken", 10, "failed"),
        ("permit q1 May I?", 11, "waits for an answer"),
        ("reject no", 13, "rejected"),
        ("text x", 0, ""),
    ):
        done = await cab.run("send", script)
        assert done.status == 0 and word in done.err
        assert (await cab.run("send", "--exit-state", script)).status == status


async def test_a_message_has_its_parts_in_order_with_their_types(cab: Cab) -> None:
    (cab.cwd / "data.json").write_text('{"a": [1]}')
    (cab.cwd / "note.txt").write_text("noted")
    done = await cab.run(
        *("send", "-o", "json", "--text", "prompt", "--data", "data.json"),
        *("--file", "note.txt", "--media-type", "text/x-note", "--data", "-"),
        stdin=b"[2]",
    )
    task = done.json["task"]["id"]
    done = await cab.run("task", "get", task, "--history", "9", "-o", "json")
    first = done.json["history"][0]["parts"]
    assert [next(iter(set(part) & {"text", "data", "raw"})) for part in first] == [
        *("text", "data", "raw", "data")
    ]
    assert first[1]["data"] == {"a": [1]} and first[3]["data"] == [2]
    assert (first[2]["mediaType"], first[2]["filename"]) == ("text/x-note", "note.txt")


async def test_each_kind_of_part_is_shown(cab: Cab) -> None:
    parts = [{"data": {"a": 1}}, {"raw": "aGVsbG8=", "filename": "f", "mediaType": "text/x"}]
    parts += [{"url": "https://example.com/f", "filename": "g"}, {"text": "words"}]
    script = "line " + json.dumps({"type": "artifact", "id": "i", "name": "mixed", "parts": parts})
    done = await cab.run("send", script)
    assert "Artifact mixed:\n  words\n\n" in done.text
    assert 'Data:\n  {\n    "a": 1\n  }\n\n' in done.text
    assert "File: f, text/x, 5 bytes\n" in done.text
    assert "File: g, unknown type, https://example.com/f\n" in done.text


async def test_the_ids_are_those_of_the_server_and_are_not_stored(
    alone: Cab, tmp_path: Path
) -> None:
    cab = alone
    before = sorted(os.listdir(cab.cwd))
    own_home = tmp_path / "own"
    own_home.mkdir()
    client = Cab(cab.cwd, own_home, **{**cab.env, "HOME": str(own_home)})
    first, second = [(await client.run("send", "turn")).field("Context") for _ in range(2)]
    listed = (await client.run("task", "list", "-o", "json")).json["tasks"]
    assert [one["contextId"] for one in listed] == [second, first]
    task = await client.run("task", "get", listed[0]["id"], "--history", "5", "-o", "json")
    assert first not in json.dumps(task.json)
    assert os.listdir(own_home) == [] and sorted(os.listdir(cab.cwd)) == before


async def test_an_error_that_ends_a_stream_is_its_last_line(cab: Cab, live: Liveness) -> None:
    words = ("send", "-o", "json", "--stream", "--timeout", "1s")
    done = await cab.run(*words, f"status on\nwait {live.path} busy")
    assert done.status == 5 and "task" in done.lines[0]
    assert done.lines[-1]["error"]["code"] == "A2ACLI_ERR_TIMEOUT"
    assert done.lines[0]["task"]["id"] in done.lines[-1]["error"]["hint"]


async def test_an_unverified_connection_is_named(cab: Cab) -> None:
    done = await cab.run("task", "list", "--insecure")
    assert "warning: TLS certificates are not verified" in done.err
    assert "warning: credentials are sent over a connection that is not verified" in done.err


async def test_a_repeated_message_id_resumes_the_task(cab: Cab) -> None:
    words = ("send", "-o", "json", "--message-id", "0123456789abcdef", "turn")
    first, second = [(await cab.run(*words)).json["task"]["id"] for _ in range(2)]
    assert first == second
    short = await cab.run("send", "--message-id", "short", "turn")
    assert (short.status, short.error) == (2, "A2ACLI_ERR_USAGE")


async def test_a_send_without_waiting_prints_the_ids(cab: Cab, live: Liveness) -> None:
    done = await cab.run("send", "--async", f"status on\nwait {live.path} busy\ntext done")
    assert done.status == 0 and done.field("State") in ("submitted", "working")
    assert done.field("Resume") == command("task", "get", done.field("Task"), "--wait")
    late = await cab.run("task", "get", done.field("Task"), "--wait", "--timeout", "300ms")
    assert (late.status, late.error) == (5, "A2ACLI_ERR_TIMEOUT")
    await live.release("busy")
    assert (await cab.paste(done.field("Resume"))).field("State") == "completed"


async def test_a_directory_outside_of_the_roots_is_a_usage_error(cab: Cab, tmp_path: Path) -> None:
    elsewhere = Cab(tmp_path, cab.home, **cab.env)
    done = await elsewhere.run("send", "--cwd", ".", "cwd")
    assert (done.status, done.error) == (2, "A2ACLI_ERR_USAGE")
    assert str(cab.cwd) in done.err
    inside = await elsewhere.run("send", "--cwd", str(cab.cwd), "cwd")
    assert f"  {cab.cwd}\n" in inside.text


async def test_a_rejected_id_starts_no_task_and_names_debug(alone: Cab) -> None:
    done = await alone.run("send", "--task-id", "unknown", "turn")
    assert (done.status, done.error) == (1, "TaskNotFoundError")
    assert "--debug" in done.err
    assert (await alone.run("task", "list", "-o", "json")).json["tasks"] == []


# --- questions ----------------------------------------------------------------------------------


async def test_the_resume_command_answers_the_question(cab: Cab) -> None:
    asked = await cab.run("send", "permit q1 May I?\ntext after")
    assert asked.field("State") == "input-required"
    assert "Question:\n  May I?\n" in asked.text
    assert asked.field("Options") == 'yes "Go on", no "Do not"'
    shown = await cab.paste(asked.field("Resume").removesuffix(" OPTION"))
    assert (shown.status, shown.error) == (2, "CAB_ERR_NOT_A_TERMINAL")
    wrong = await cab.paste(asked.field("Resume"), OPTION="maybe")
    assert (wrong.status, wrong.error) == (2, "A2ACLI_ERR_USAGE") and "yes, no" in wrong.err
    done = await cab.paste(asked.field("Resume"), OPTION="Go on")
    assert done.field("State") == "completed" and '"yes"' in done.text
    late = await cab.paste(asked.field("Resume"), OPTION="yes")
    assert (late.status, late.error) == (1, "CAB_ERR_QUESTION_CLOSED")


async def test_a_refusal_has_its_reason(cab: Cab) -> None:
    asked = await cab.run("send", "permit q1 May I?")
    done = await cab.run("answer", asked.field("Task"), "no", "--reason", "use pytest")
    assert '["q1", "use pytest", "no"]' in done.text


async def test_an_open_question_is_answered_in_own_words(cab: Cab) -> None:
    asked = await cab.run("send", "ask q1 Which one?")
    done = await cab.run("answer", asked.field("Task"), "--text", "the red one")
    assert '["q1", "the red one", null]' in done.text


async def test_an_answer_to_a_closed_question_names_the_author_of_the_first_one(cab: Cab) -> None:
    task = (await cab.run("send", "permit q1 a\npermit q2 b\nask q3 c")).field("Task")
    assert (await cab.run("answer", task, "--question", f"{task[:8]}-1", "no")).status == 0
    late = await cab.run("answer", task, "--question", f"{task[:8]}-1", "yes")
    assert (late.status, late.error) == (1, "CAB_ERR_QUESTION_CLOSED")
    assert f"answered by local: no; another question is open: {task[:8]}-2" in late.err
    for words in (("yes",), ("--text", "x")):
        await cab.run("answer", task, *words)
    late = await cab.run("answer", task, "--question", f"{task[:8]}-2", "yes")
    assert (late.status, late.error) == (1, "CAB_ERR_QUESTION_CLOSED")
    assert "the task is completed" in late.err and "answered by" not in late.err


@pytest.mark.parametrize("more", ["", "permit q2 Again?\n", "status on\nwait {live} busy\n"])
@pytest.mark.parametrize("flags", [(), ("--transport", "rest"), ("--a2a-version", "0.3")])
async def test_an_answer_that_loses_a_race_says_who_was_faster(
    shared: Served, live: Liveness, more: str, flags: tuple[str, ...]
) -> None:
    """The loser has read the open question before the winner answers."""
    server, cab = shared
    script = "permit q1 May I?\n" + more.format(live=live.path)
    asked = await cab.run("send", script)
    task = asked.field("Task")
    gate = Gate(
        port_of(server.url), (b"SendStreamingMessage", b"message:stream", b"message/stream")
    )
    async with serving(gate):
        question = f"{task[:8]}-1"
        words = ("answer", task, "--question", question, "yes", "-a", gate.url, *flags)
        token = server.token_file.read_text().strip()
        process = await cab.start(*words, env={"A2ACLI_BEARER": token})
        await asyncio.wait_for(gate.reached.wait(), 20)
        first = await cab.start("answer", task, "--question", question, "no")
        if more.startswith("status"):
            await live.pid("busy")
        else:
            assert (await ended(first)).status == 0
        gate.go.set()
        done = await ended(process)
        if more.startswith("status"):
            await live.release("busy")
            assert (await ended(first)).status == 0
    assert (done.status, done.error) == (1, "CAB_ERR_QUESTION_CLOSED"), done.err
    assert "answered by local: " in done.err
    listed = await cab.run("task", "list", "--context-id", asked.field("Context"))
    assert listed.ids == [task[:8]]


@pytest.mark.parametrize(("verb", "option"), [("deny", "no"), ("allow:tool=Bash", "yes")])
async def test_a_policy_answers_permissions(cab: Cab, verb: str, option: str) -> None:
    script = "\n".join([permission("q1"), permission("q2"), "text end"])
    done = await cab.run("send", "--on-question", verb, script)
    assert done.field("State") == "completed"
    assert done.text.count(f'"{option}"') == 2


@pytest.mark.parametrize("rule", ["tool=Read", "command=git status", "path=src/**"])
async def test_a_policy_leaves_what_no_rule_matches_to_a_person(cab: Cab, rule: str) -> None:
    done = await cab.run("send", "--on-question", f"allow:{rule}", permission("q1"))
    assert done.field("State") == "input-required"


@pytest.mark.parametrize("wrong", ["allow:*", "allow:tool=*", "yes", "allow:"])
async def test_a_policy_that_allows_everything_is_a_usage_error(cab: Cab, wrong: str) -> None:
    refused = await cab.run("send", "--on-question", wrong, "turn")
    assert (refused.status, refused.error) == (2, "A2ACLI_ERR_USAGE")


# --- tasks --------------------------------------------------------------------------------------


async def test_a_list_has_the_tasks_that_ask_first(alone: Cab, live: Liveness) -> None:
    cab = alone
    asks = (await cab.run("send", "permit q1 a")).field("Task")
    runs = (await cab.run("send", "--async", f"status on\nwait {live.path} busy")).field("Task")
    await live.pid("busy")
    ended_ = (await cab.run("send", "turn")).field("Task")
    done = await cab.run("task", "list")
    assert done.ids == [one[:8] for one in (asks, runs, ended_)]
    rows = [re.split(r"  +", line) for line in done.text.splitlines()]
    assert rows[0] == ["ID", "STATE", "AGE", "AGENT", "DIRECTORY", "PROMPT"]
    assert [row[1] for row in rows[1:]] == ["Needs you", "Running", "Done"]
    assert [row[-1] for row in rows[1:]] == ["permit q1 a", "status on", "turn"]
    assert {row[3] for row in rows[1:]} == {"jsonl"}
    filtered = await cab.run("task", "list", "--status", "completed", "-o", "json")
    assert [one["id"] for one in filtered.json["tasks"]] == [ended_]
    page = await cab.run("task", "list", "--limit", "2")
    second = await cab.paste(page.field("Next page"))
    assert sorted(page.ids + second.ids) == sorted(one[:8] for one in (asks, runs, ended_))
    lines = await cab.run("task", "list", "-o", "json", "--stream")
    assert {one["id"] for one in lines.lines} == {asks, runs, ended_}


async def test_the_beginning_of_an_id_names_it_in_each_command(cab: Cab) -> None:
    asked = await cab.run("send", "permit q1 May I?\ntext after")
    task, context = asked.field("Task"), asked.field("Context")
    got = await cab.run("task", "get", task[:8])
    assert got.field("Task") == task
    assert (await cab.run("wait", task[:6])).field("Task") == task
    assert (await cab.run("attach", context[:8], "-o", "json")).json["id"] == task
    assert (await cab.run("answer", task[:8], "yes", "-q")).text.endswith("after")
    again = await cab.run("send", "--context-id", context[:8], "turn")
    assert again.field("Context") == context
    unknown = await cab.run("task", "get", "0000")
    assert (unknown.status, unknown.error) == (1, "TaskNotFoundError")


async def test_a_cancel_is_idempotent_and_can_name_all_tasks(alone: Cab, live: Liveness) -> None:
    cab = alone
    ids = [
        (await cab.run("send", "--async", f"status on\nwait {live.path} busy{n}")).field("Task")
        for n in range(2)
    ]
    for _ in range(2):
        done = await cab.run("task", "cancel", ids[0], "-o", "json")
        assert done.json["status"]["state"] == "TASK_STATE_CANCELED"
    refused = await cab.run("task", "cancel", "--all")
    assert (refused.status, refused.error) == (2, "CAB_ERR_NOT_A_TERMINAL")
    done = await cab.run("task", "cancel", "--all", "--yes")
    assert done.text.count("State: canceled") == 1 and ids[1] in done.text


async def test_a_cancel_of_all_tasks_leaves_those_of_other_principals(
    workspace: Path, live: Liveness
) -> None:
    token, _, table = new_token("anna").partition("\n\n")
    config = workspace.parent / "config.toml"
    config.write_text(table)
    state, home = str(workspace.parent / "state"), workspace.parent / "home"
    settings = {**scripted(workspace), "BRIDGE_AUTH": "auto", "CONFIG_FILE": str(config)}
    async with bridge(workspace, **settings):
        local = Cab(workspace, home, BRIDGE_STATE_DIR=state)
        anna = Cab(workspace, home, BRIDGE_STATE_DIR=state, A2ACLI_BEARER=token)
        ids = [
            (await one.run("send", "--async", f"status on\nwait {live.path} b{n}")).field("Task")
            for n, one in enumerate((local, anna, anna))
        ]
        assert len((await local.run("task", "list")).ids) == 3
        for one, own in ((local, ids[:1]), (anna, ids[1:])):
            done = await one.run("task", "cancel", "--all", "--yes")
            assert sorted(done.fields("Task")) == sorted(own)
            assert set(done.fields("State")) == {"canceled"}


async def test_wait_ends_with_the_last_task_or_the_first_question(cab: Cab, live: Liveness) -> None:
    slow = f"status on\nwait {live.path} one\ntext x"
    words = (("send", "--async", slow), ("send", "turn"))
    ids = [(await cab.run(*one)).field("Task") for one in words]
    waiting = await cab.start("wait", *ids)
    assert waiting.stdout
    assert ids[1].encode() in await asyncio.wait_for(waiting.stdout.readline(), 20)
    await live.release("one")
    done = await ended(waiting)
    assert done.status == 0 and done.text.count("State: completed") == 2
    asks = (await cab.run("send", "permit q a")).field("Task")
    busy = (await cab.run("send", "--async", f"status on\nwait {live.path} two")).field("Task")
    stopped = await cab.run("wait", busy, asks, "--exit-state")
    assert (stopped.status, stopped.text.count("Task: ")) == (11, 1)


async def test_a_subscription_begins_where_it_is_told(cab: Cab) -> None:
    task = (await cab.run("send", "text one\nstatus s\ntext two")).field("Task")
    whole = await cab.run("task", "subscribe", task, "--from", "0", "-o", "json", "--stream")
    part = await cab.run("task", "subscribe", task, "--from", "3", "-o", "json", "--stream")
    assert whole.lines[-len(part.lines) :] == part.lines and len(part.lines) < len(whole.lines)
    document = await cab.run("task", "subscribe", task, "-o", "json")
    assert document.json["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_download_keeps_names_in_the_folder_and_overwrites_nothing(cab: Cab) -> None:
    artifact = {"type": "artifact", "id": "f", "name": "../../evil"}
    parts = [
        {"raw": "aGVsbG8=", "filename": "../../../.bashrc", "mediaType": "text/plain"},
        {"raw": "aGVsbG8=", "filename": "/etc/passwd"},
        {"data": {"a": 1}},
    ]
    script = "line " + json.dumps({**artifact, "parts": parts})
    task = (await cab.run("send", f"{script}\ntext answer")).field("Task")
    done = await cab.run("task", "download", task, "-d", "out")
    assert done.status == 0
    saved = sorted(path.name for path in (cab.cwd / "out").iterdir())
    assert saved == ["Assistant response.txt", "bashrc.txt", "evil.json", "passwd"]
    assert (cab.cwd / "out" / "passwd").read_text() == "hello"
    again = await cab.run("task", "download", task, "-d", "out")
    assert (again.status, again.error) == (2, "A2ACLI_ERR_USAGE")
    assert (await cab.run("task", "download", task, "-d", "out", "--force")).status == 0
    out = await cab.run("task", "download", task, "--artifact", "assistant-response", "-d", "-")
    assert out.out == b"answer"


@pytest.mark.parametrize("flags", [(), ("--transport", "rest"), ("--a2a-version", "0.3")])
async def test_push_configs_are_created_read_listed_and_deleted(
    cab: Cab, flags: tuple[str, ...]
) -> None:
    task = (await cab.run("send", "turn")).field("Task")
    push = ("task", "push-config")
    url = "https://receiver.example.com/hook"
    made = await cab.run(
        *(*push, "create", task, "--url", url, "--id", "mine", "--auth-scheme", "Bearer"),
        *("--auth-credentials-stdin", "--debug", *flags),
        stdin=b"s3cret-credential\n",
    )
    assert made.status == 0, made.err
    assert made.field("Config") == "mine" and "s3cret-credential" not in made.err
    assert (await cab.run(*push, "get", task, "mine", *flags)).field("URL") == url
    listed = await cab.run(*push, "list", task, "-o", "json", *flags)
    assert [one["id"] for one in listed.json["configs"]] == ["mine"]
    assert (await cab.run(*push, "delete", task, "mine", *flags)).status == 0
    gone = await cab.run(*push, "list", task, "-o", "json", *flags)
    assert not gone.json.get("configs")


# --- signals ------------------------------------------------------------------------------------


async def begun(cab: Cab, live: Liveness, *flags: str) -> tuple[asyncio.subprocess.Process, str]:
    """A `send` that has begun its task, which waits, and the id of the task."""
    process = await cab.start("send", *flags, f"status on\nwait {live.path} busy\ntext never")
    await live.pid("busy")
    assert process.stdout
    line = (await asyncio.wait_for(process.stdout.readline(), 20)).decode()
    assert line.startswith("Task: ")
    return process, line.removeprefix("Task: ").strip()


async def state_of(cab: Cab, task: str) -> str:
    return str((await cab.run("task", "get", task, "-o", "json")).json["status"]["state"])


async def test_an_interrupt_cancels_the_task_and_ends_by_the_signal(
    cab: Cab, live: Liveness
) -> None:
    process, task = await begun(cab, live)
    process.send_signal(signal.SIGINT)
    done = await ended(process)
    assert done.status == -signal.SIGINT
    assert "canceling the task" in done.err and done.field("State") == "canceled"
    assert await state_of(cab, task) == "TASK_STATE_CANCELED"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
async def test_a_detached_client_leaves_its_task_and_prints_how_to_resume(
    cab: Cab, live: Liveness, number: signal.Signals
) -> None:
    detach = ("--on-interrupt", "detach") if number == signal.SIGINT else ()
    process, task = await begun(cab, live, *detach)
    process.send_signal(number)
    done = await ended(process)
    assert done.status == -number
    resume = next(one for one in done.err.splitlines() if one.startswith("Resume: "))
    assert await state_of(cab, task) == "TASK_STATE_WORKING"
    await live.release("busy")
    assert "  never\n" in (await cab.paste(resume.removeprefix("Resume: "))).text


async def test_a_second_interrupt_leaves_at_once(cab: Cab, live: Liveness) -> None:
    process, _ = await begun(cab, live)
    assert process.stderr
    server = int(json.loads((Path(cab.env["BRIDGE_STATE_DIR"]) / "server.json").read_text())["pid"])
    os.kill(server, signal.SIGSTOP)  # so that the cancel has no answer
    try:
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(process.stderr.readline(), 20)
        process.send_signal(signal.SIGINT)
        done = await ended(process)
    finally:
        os.kill(server, signal.SIGCONT)
    assert done.status == -signal.SIGINT and "Resume: " in done.err


async def test_an_interrupted_reader_leaves_the_task(cab: Cab, live: Liveness) -> None:
    task = (await cab.run("send", "--async", f"status on\nwait {live.path} busy")).field("Task")
    process = await cab.start("task", "subscribe", task)
    assert process.stdout
    await asyncio.wait_for(process.stdout.readline(), 20)
    process.send_signal(signal.SIGINT)
    assert (await ended(process)).status == -signal.SIGINT
    assert await state_of(cab, task) == "TASK_STATE_WORKING"


async def test_a_reader_that_ends_early_is_no_error(cab: Cab) -> None:
    pipe_out, pipe_in = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, "send", "--stream"),
        *("flood 20000", "-o", "json"),
        cwd=cab.cwd,
        env=cab.env,
        stdout=pipe_in,
        stderr=asyncio.subprocess.PIPE,
    )
    os.close(pipe_in)
    assert os.read(pipe_out, 10)
    os.close(pipe_out)
    _, err = await asyncio.wait_for(process.communicate(), 30)
    assert b"Traceback" not in err
    assert process.returncode == 141


# --- input that is no message, and streams that are closed ---------------------------------------


@pytest.mark.parametrize(
    ("words", "given", "problem"),
    [
        (("-",), b"a\xff\xfeb", "stdin is not UTF-8 at byte 1"),
        (("-",), b"", "stdin is empty"),
        (("-",), b" \n", "stdin is empty"),
        (("a\udcff",), b"", "the text is not UTF-8 at byte 1"),
        (("--data", "-"), b'{"a": "\xff"}', "is not JSON"),
        (("--data", "-"), b'{"a": "\\ud800"}', "is not JSON"),
        (("--data", "-"), b"[" * 100_000, "is not JSON"),
        (("--data", "-"), b"", "is not JSON"),
        (("x", "--file", "/dev/zero"), b"", "more than 100 MiB"),
        (("x", "--data", "/dev/zero"), b"", "more than 100 MiB"),
        (("x", "--file", "/"), b"", "Is a directory"),
    ],
)
async def test_what_is_no_message_is_a_usage_error(
    cab: Cab, words: tuple[str, ...], given: bytes, problem: str
) -> None:
    done = await cab.run("send", *words, stdin=given)
    assert (done.status, done.error) == (2, "A2ACLI_ERR_USAGE")
    assert problem in done.err


@pytest.mark.parametrize("flags", [(), ("--quiet",), ("-o", "json"), ("--stream",)])
@pytest.mark.parametrize("closed", [">&-", "<&-", ">&- <&- 2>&-"])
async def test_a_closed_stream_is_no_error(cab: Cab, flags: tuple[str, ...], closed: str) -> None:
    """Over a second: it starts the client as a process, since a fork has streams."""
    command = shlex.join([*COMMAND, "send", "text x", *flags])
    process = await asyncio.create_subprocess_shell(
        f"exec {command} {closed}",
        cwd=cab.cwd,
        env=cab.env,
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    done = await ended(process)
    assert (done.status, "rror" in done.err) == (0, False), done.err


# --- finding the server, and its token ----------------------------------------------------------


async def test_a_server_describes_itself_while_it_runs(own: Served, workspace: Path) -> None:
    server, _ = own
    path = workspace.parent / "state" / "server.json"
    known: dict[str, Any] = json.loads(path.read_text())
    assert path.stat().st_mode & 0o777 == 0o600
    assert (known["version"], known["url"], known["token"]) == (1, server.url, "token")
    assert known["roots"] == [str(workspace)] and known["pid"] == server.process.pid
    await server.stop()
    assert not path.exists()


async def test_a_server_is_found_wherever_its_state_folder_is(own: Served, workspace: Path) -> None:
    """As in the drill of docs/backup.md: no variable of the client names the folder."""
    server, cab = own
    home = workspace.parent / "home/.local/state/coding-agent-bridge"
    for state in ("", str(workspace.parent / "another")):
        cab.env["BRIDGE_STATE_DIR"] = state
        done = await cab.run("task", "list", "--agent-card", server.url)
        assert (done.status, done.err) == (0, "")
    cab.env["BRIDGE_STATE_DIR"] = ""
    assert (await cab.run("task", "list")).status == 0
    await server.stop()
    assert list(home.glob("*/server.json")) == []


async def test_a_description_of_an_ended_server_is_ignored(own: Served) -> None:
    server, cab = own
    await server.stop(signal.SIGKILL)
    assert (Path(cab.env["BRIDGE_STATE_DIR"]) / "server.json").exists()
    done = await cab.run("task", "list")
    assert (done.status, done.error) == (3, "CAB_ERR_NO_SERVER")


@pytest.mark.parametrize("auth", ["auto", "none"])
async def test_a_server_without_a_state_folder_is_found(workspace: Path, auth: str) -> None:
    settings = {**scripted(workspace), "BRIDGE_STATE_DIR": "", "BRIDGE_AUTH": auth}
    cab = Cab(workspace, workspace.parent / "home")
    async with bridge(workspace, **settings):
        assert (await cab.run("send", "turn")).field("State") == "completed"
        async with bridge(workspace, **settings):
            several = await cab.run("task", "list")
            assert (several.status, several.error) == (2, "CAB_ERR_SEVERAL_SERVERS")
            assert several.err.count("--agent-card http://127.0.0.1:") == 3  # and the hint
    folder = workspace.parent / "home/.local/state/coding-agent-bridge"
    assert [path.name for path in folder.iterdir()] == ["places"]


async def test_the_deepest_root_chooses_the_server(workspace: Path) -> None:
    inner = workspace / "inner"
    inner.mkdir()
    home = workspace.parent / "home"
    settings = {**scripted(workspace), "BRIDGE_STATE_DIR": "", "HOME": str(home)}
    async with bridge(workspace, **settings), bridge(inner, **settings) as second:
        cab = Cab(inner, home)
        assert second.url in (await cab.run("card", "get")).text
