"""The program as its users run it: arguments, the banner, signals, exit statuses, recordings."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from bridge import __version__
from tests import CHECKOUT
from tests.support import misbehaving
from tests.support.agent import PROGRAM
from tests.support.bridge_process import bridge
from tests.support.children import children, launchers
from tests.support.client import Client, artifact_text, said, state
from tests.support.command_line import agent, refusal, run
from tests.support.liveness import Liveness

WITHIN = 60.0
KEPT = {"BRIDGE_BACKGROUND_PROCESSES": "keep"}


# --- what ends at once -------------------------------------------------------------------------


def test_help_says_what_there_is(tmp_path: Path) -> None:
    done = run("--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("--adapter", "--port", "--token", "--env-file", "examples:", "record"):
        assert word in done.stdout
    for command in ("doctor", "adapters"):
        assert f"coding-agent-bridge {command} " in done.stdout


@pytest.mark.parametrize("command", ["doctor", "adapters"])
def test_a_command_has_help_of_its_own(tmp_path: Path, command: str) -> None:
    done = run(command, "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--json" in done.stdout
    assert ("--live" in done.stdout) is (command == "doctor")


def test_version_is_the_packages(tmp_path: Path) -> None:
    done = run("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{__version__}\n")


def test_an_unknown_argument_is_refused(tmp_path: Path) -> None:
    assert run("--nonsense", cwd=tmp_path).returncode == 2
    assert run("nonsense", cwd=tmp_path).returncode == 2


def test_an_unknown_adapter_is_told_which_are_known(tmp_path: Path) -> None:
    text = refusal(run("--adapter", "claud-code", cwd=tmp_path))
    assert "'claud-code'" in text and "Did you mean claude-code?" in text
    for name in ("claude-code", "jsonl", "replay"):
        assert name in text


def test_a_withdrawn_adapter_is_answered_with_its_replacement(tmp_path: Path) -> None:
    text = refusal(run("--adapter", "codex-exec", cwd=tmp_path))
    assert "The adapter codex-exec was withdrawn. Use codex, " in text
    assert "AGENT_ADAPTER=generic AGENT_BINARY=codex AGENT_ARGS='exec " in text


@pytest.mark.parametrize(
    "name",
    [
        *("nowhere.mod:Class", "json:loads", "json:nothing", "json:"),
        ":x",
    ],
)
def test_an_adapter_class_that_is_none_is_told_so(tmp_path: Path, name: str) -> None:
    assert name.partition(":")[0] in refusal(run("--adapter", name, cwd=tmp_path))


def test_a_missing_program_is_told_with_the_setting_that_names_it(tmp_path: Path) -> None:
    text = refusal(run("--adapter", "claude-code", cwd=tmp_path))
    assert "claude was not found" in text and "AGENT_BINARY" in text
    text = refusal(run("--adapter", "jsonl", cwd=tmp_path))
    assert "AGENT_BINARY" in text
    (tmp_path / "plain").write_text("")
    path = str(tmp_path / "plain")
    assert "not executable" in refusal(run("--adapter", "jsonl", cwd=tmp_path, AGENT_BINARY=path))


def test_a_taken_port_is_told_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        env = {"AGENT_BINARY": agent(tmp_path), "AGENT_ADAPTER": "jsonl"}
        text = refusal(run("--port", port, cwd=tmp_path, **env), status=1)
    assert f"127.0.0.1:{port}" in text and "--port" in text
    assert f"used by pid {os.getpid()} (" in text


@pytest.mark.parametrize("host", ["0.0.0.0", "example.org"])
def test_without_a_token_only_this_machine_may_be_served(tmp_path: Path, host: str) -> None:
    env = {"AGENT_BINARY": agent(tmp_path), "AGENT_ADAPTER": "jsonl"}
    text = refusal(run("--host", host, cwd=tmp_path, **env))
    assert "BRIDGE_TOKEN" in text and host in text


def test_a_workspace_that_is_none_is_refused(tmp_path: Path) -> None:
    env = {"AGENT_BINARY": agent(tmp_path), "AGENT_ADAPTER": "jsonl"}
    text = refusal(run("--root", "/nowhere", cwd=tmp_path, **env))
    assert "/nowhere is not a directory" in text


# --- which agent is served ---------------------------------------------------------------------


async def test_the_banner_says_what_is_served_where_and_how_to_try_it(
    workspace: Path, tmp_path: Path
) -> None:
    binary = agent(tmp_path)
    token = "a-token-of-16-characters"
    settings: Any = {"AGENT_ADAPTER": "jsonl", "AGENT_BINARY": binary, "BRIDGE_TOKEN": token}
    async with bridge(workspace, **settings) as server:
        pass
    log = server.log
    assert re.search(rf"agent +jsonl: {re.escape(binary)}", log)
    assert re.search(rf"workspace +{re.escape(str(workspace))}\n", log)
    assert f"{server.url}/a2a/jsonrpc" in log
    assert f"{server.url}/.well-known/agent-card.json" in log
    assert f"run -a {server.url} 'Describe this project.'" in log and token not in log
    assert f"{workspace} is not in a git repository" in log
    assert __version__ in log.splitlines()[0]
    assert not server.url.endswith(":0")


async def test_the_banner_has_the_card_of_every_agent(
    workspace: Path, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    config = tmp_path / "bridge.toml"
    config.write_text("[agents.one]\n[agents.two]\n[agents.three]\n")
    settings: Any = {"AGENT_ADAPTER": "jsonl", "AGENT_BINARY": agent(tmp_path)}
    async with bridge(workspace, CONFIG_FILE=str(config), **settings) as server:
        listed = re.search(r"^  card +(.*\n(?: {13}http.*\n)*)", server.log, re.M)
        assert listed
        cards = listed[1].split()
        names = []
        for url in cards:
            async with http.get(url) as response:
                names.append((await response.json())["supportedInterfaces"][0]["url"])
    places = ("", "/agents/two", "/agents/three")
    assert names == [f"{server.url}{place}/a2a/jsonrpc" for place in places]


async def test_the_first_known_cli_on_path_is_served_if_none_is_named(
    workspace: Path, tmp_path: Path
) -> None:
    agent(tmp_path / "bin", "claude")
    async with bridge(workspace, PATH=f"{tmp_path}/bin:/usr/bin:/bin") as server:
        assert re.search(rf"agent +claude-code: {tmp_path}/bin/claude 1\.2\.3", server.log)
        assert "first known CLI on PATH" in server.log


HEARS = """#!/usr/bin/env python3
import json, sys
for line in sys.stdin:
    ignored = [one for one in open("/proc/self/status") if one.startswith("SigIgn")]
    print(json.dumps({"type": "done", "text": ignored[0].split()[1]}), flush=True)
"""


async def test_what_the_server_ignores_its_clis_hear(workspace: Path, tmp_path: Path) -> None:
    program = tmp_path / "agent.py"
    program.write_text(HEARS)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        settings: Any = {
            "AGENT_ADAPTER": "jsonl",
            "AGENT_BINARY": sys.executable,
            "AGENT_ARGS": str(program),
        }
        async with bridge(workspace, **settings) as server, client_of(server.url) as client:
            server.process.send_signal(signal.SIGHUP)
            ignored = int(said(await client.send("go")), 16)
    finally:
        signal.signal(signal.SIGHUP, before)
    python = {signal.SIGPIPE, signal.SIGXFSZ}  # which it ignores by itself
    assert {one for one in signal.valid_signals() if ignored & 1 << one - 1} <= python


async def test_what_a_cli_says_of_itself_does_nothing_to_the_terminal(
    workspace: Path, tmp_path: Path
) -> None:
    program = tmp_path / "claude"
    program.write_text(r"""#!/bin/sh
printf '1.2\033]52;c;ZXZpbA==\a\033[2J.3\n'
printf '\033[31mred\n' >&2
""")
    program.chmod(0o755)
    settings: Any = {"AGENT_ADAPTER": "claude-code", "AGENT_BINARY": str(program)}
    async with bridge(workspace, **settings) as server:
        assert f"{program} 1.2.3\n" in server.log
        assert not set(server.log) & set("\x1b\x07")
    done = run("doctor", cwd=tmp_path, AGENT_REPO_PATH=str(workspace), PORT="0", **settings)
    assert "1.2" in done.stdout
    assert not set(done.stdout + done.stderr) & set("\x1b\x07")


async def test_without_any_cli_a_recording_is_played(workspace: Path, tmp_path: Path) -> None:
    recording = tmp_path / "talk.jsonl"
    write_recording(recording)
    settings: Any = {"PATH": "/usr/bin:/bin", "BRIDGE_REPLAY_FILE": str(recording)}
    async with bridge(workspace, **settings) as server, client_of(server.url) as client:
        assert re.search(r"agent +replay", server.log)
        assert "no coding-agent CLI was found" in server.log and "AGENT_ADAPTER" in server.log
        assert artifact_text(await client.send("anything")) == "recorded"


def write_recording(path: Path) -> None:
    note = {"note": "spawn", "argv": ["agent"], "adapter": "jsonl"}
    lines = [
        {"t": 0.0, "dir": "note", "data": note},
        {"t": 0.1, "dir": "in", "data": {"type": "prompt", "text": "x"}},
        {"t": 0.2, "dir": "out", "data": {"type": "text", "text": "recorded"}},
        {"t": 0.3, "dir": "out", "data": {"type": "done"}},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


class client_of:
    """A client with a session of its own."""

    def __init__(self, url: str, version: str = "1.0") -> None:
        timeout = aiohttp.ClientTimeout(total=30)
        self._session = aiohttp.ClientSession(timeout=timeout, read_bufsize=2**25)
        self._client = Client(self._session, url, version)

    async def __aenter__(self) -> Client:
        return self._client

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()


async def test_an_adapter_of_another_module_is_served(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "theirs.py").write_text(
        "from bridge.adapter import Adapter, Done, Launch, Text\n"
        "class Cat(Adapter):\n"
        "    name, title, binary = 'cat', 'Cat', 'cat'\n"
        "    def launch(self): return Launch((self.config.binary,))\n"
        "    def prompt(self, prompt): self.send(prompt.text.encode() + b'\\n')\n"
        "    def receive_line(self, line): return [Text(line.decode()), Done()]\n"
    )
    path = f"{CHECKOUT}:{tmp_path}/modules"
    settings: Any = {"AGENT_ADAPTER": "theirs:Cat", "PYTHONPATH": path}
    async with bridge(workspace, **settings) as server, client_of(server.url) as client:
        assert artifact_text(await client.send("meow")) == "meow"


async def test_a_cli_that_does_not_tell_its_version_is_served_all_the_same(
    workspace: Path, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "claude"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    async with bridge(workspace, AGENT_BINARY=str(program), AGENT_ADAPTER="claude-code") as s:
        assert re.search(rf"agent +claude-code: {re.escape(str(program))}\n", s.log)


# --- signals -----------------------------------------------------------------------------------


def settings_of(folder: Path, **more: str) -> Any:
    return {"AGENT_ADAPTER": "jsonl", "AGENT_BINARY": agent(folder), **more}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_tasks_end_and_leaves_no_process(
    workspace: Path, tmp_path: Path, live: Liveness, number: signal.Signals
) -> None:
    async with bridge(workspace, **settings_of(tmp_path)) as server, client_of(server.url) as c:
        sending = asyncio.create_task(
            c.send(f"spawn {live.path} helper\nwait {live.path} agent\ntext the end")
        )
        await live.pid("agent")
        await live.pid("helper")
        server.process.send_signal(number)
        await server.logged("stopping")
        await live.release("agent")
        task = await sending
        assert (state(task), artifact_text(task)) == ("completed", "the end")
        assert await server.ended() == 0
        await live.gone("agent", "helper")


async def test_after_the_drain_tasks_are_ended(
    workspace: Path, tmp_path: Path, live: Liveness
) -> None:
    settings: Any = settings_of(tmp_path, BRIDGE_DRAIN_MS="100", BRIDGE_STOP_GRACE_MS="300")
    async with bridge(workspace, **settings) as server, client_of(server.url) as client:
        script = f"deaf\nspawn {live.path} helper\nwait {live.path} agent"
        sending = asyncio.create_task(client.send(script))
        await live.pid("agent")
        await live.pid("helper")
        server.process.send_signal(signal.SIGTERM)
        task = await sending
        assert state(task) == "failed" and "shut down" in said(task)
        assert await server.ended() == 0
        await live.gone("agent", "helper")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_everything_at_once(
    workspace: Path, tmp_path: Path, live: Liveness, number: signal.Signals
) -> None:
    settings: Any = settings_of(tmp_path, BRIDGE_DRAIN_MS="600000")
    async with bridge(workspace, **settings) as server, client_of(server.url) as client:
        script = f"deaf\nspawn {live.path} helper\nwait {live.path} agent"
        sending = asyncio.create_task(client.send(script))
        await live.pid("agent")
        await live.pid("helper")
        server.process.send_signal(number)
        await server.logged("stopping")
        server.process.send_signal(number)
        assert await server.ended() in (128 + number, -number)
        await live.gone("agent", "helper")
        await asyncio.gather(sending, return_exceptions=True)


@pytest.mark.parametrize("signals", [1, 2])
async def test_the_end_of_the_server_finds_even_those_that_hide_where_they_come_from(
    workspace: Path, tmp_path: Path, live: Liveness, signals: int
) -> None:
    script = tmp_path / "cli"
    hider = f"{sys.executable} -I -S {misbehaving.PROGRAM} hides {live.path}"
    script.write_text(f"#!/bin/sh\n{hider}\nexec {sys.executable} -I -S {PROGRAM}\n")
    script.chmod(0o755)
    env: Any = {"AGENT_ADAPTER": "jsonl", "AGENT_BINARY": str(script), **KEPT}
    async with bridge(workspace, **env) as server, client_of(server.url) as client:
        await client.send("text a", contextId="c")
        await live.pid("cleared-environment")
        if signals == 2:
            await client.send("ask q-1 x", contextId="c")
            server.process.send_signal(signal.SIGTERM)
            await server.logged("stopping")
        await server.stop()
        await live.gone("cleared-environment")


async def test_the_server_leaves_no_zombie_of_an_orphan_that_ended_by_itself(
    workspace: Path, tmp_path: Path, live: Liveness
) -> None:
    program = agent(tmp_path, "orphan", misbehaving.PROGRAM)
    script = tmp_path / "cli"
    script.write_text(
        f"#!/bin/sh\n{program} leaves_an_orphan_that_ends {live.path}\n"
        f'exec {sys.executable} -I -S {PROGRAM} "$@"\n'
    )
    script.chmod(0o755)
    settings: Any = {"AGENT_ADAPTER": "jsonl", "AGENT_BINARY": str(script), **KEPT}
    async with bridge(workspace, **settings) as server, client_of(server.url) as client:
        task = await client.send("pid")
        pid = await live.pid("orphan")
        own = psutil.Process(server.process.pid)
        assert psutil.Process(pid).ppid() in (own.pid, *(one.pid for one in launchers(own.pid)))
        await live.release("orphan")
        await live.gone("orphan")
        async with asyncio.timeout(WITHIN):
            while psutil.pid_exists(pid):  # the request makes the loop of the server turn
                await client.get(task["id"])
        assert [str(child.pid) for child in children(own.pid)] == [artifact_text(task)]


# --- recordings --------------------------------------------------------------------------------


async def test_what_was_recorded_through_the_bridge_can_be_replayed(
    workspace: Path, tmp_path: Path
) -> None:
    tape = tmp_path / "talk.jsonl"
    recorder = tmp_path / "recorder"
    program = f"{sys.executable} -m bridge record {tape} -- {sys.executable} -I -S {PROGRAM}"
    recorder.write_text(f"#!/bin/sh\nPYTHONPATH={CHECKOUT} exec {program}\n")
    recorder.chmod(0o755)
    prompt = "text Hello \nstatus working\nask q-1 Which?\ntext  bye\ndone well"
    settings: Any = {"AGENT_ADAPTER": "jsonl", "AGENT_BINARY": str(recorder)}
    async with bridge(workspace, **settings) as server, client_of(server.url) as client:
        asked = await client.send(prompt, contextId="c")
        first = await client.send("this one", taskId=asked["id"])
        second = await client.send("text once more", contextId="c")
    assert (state(first), state(second)) == ("completed", "completed")
    directions = [json.loads(line)["dir"] for line in tape.read_text().splitlines()]
    assert directions[0] == "note" and {"in", "out"} <= set(directions)

    replay: Any = {
        "AGENT_ADAPTER": "replay",
        "BRIDGE_REPLAY_FILE": str(tape),
        "BRIDGE_REPLAY_SPEED": "0",
    }
    async with bridge(workspace, **replay) as server, client_of(server.url) as client:
        asked = await client.send("whatever", contextId="c")
        assert (state(asked), said(asked)) == ("input-required", "Which?")
        again = await client.send("this one", taskId=asked["id"])
        assert artifact_text(again) == artifact_text(first)
        assert said(again) == said(first) and said(again).endswith("bye\n\nwell")
        again = await client.send("whatever", contextId="c")
        assert artifact_text(again) == "once more"
        asked = await client.send("and from the beginning", contextId="c")
        assert said(asked) == "Which?"


async def test_a_recording_goes_on_in_its_conversation(workspace: Path) -> None:
    """The recorded CLI could resume its conversation, and says its id. The player cannot."""
    replay: Any = {"AGENT_ADAPTER": "replay", "BRIDGE_REPLAY_SPEED": "0"}
    async with bridge(workspace, **replay) as server, client_of(server.url) as client:
        task = await client.send("first", contextId="c")
        while state(task) == "input-required":
            task = await client.send("yes", taskId=task["id"], contextId="c")
        assert state(task) == "completed" and task["metadata"]["bridge"]["sessionId"]
        assert state(await client.send("second", contextId="c")) in ("completed", "input-required")


def record(tape: Path, *argv: str, stdin: bytes | None = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "bridge", "record", str(tape), "--", *argv],
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONWARNINGS": "error"},
        input=stdin,
        capture_output=True,
        timeout=WITHIN,
        check=False,
    )


def lines_of(tape: Path, direction: str) -> list[object]:
    lines = [json.loads(line) for line in tape.read_text().splitlines()]
    return [line["data"] for line in lines if line["dir"] == direction]


def test_a_recorder_is_the_cli_to_both_sides(tmp_path: Path) -> None:
    tape = tmp_path / "tape"
    program = 'read a; echo "got $a"; echo \'{"b": [1]}\'; echo oops >&2; printf end; exit 7'
    done = record(tape, "/bin/sh", "-c", program, "--flag", stdin=b'{"a": 1}\n')
    assert done.returncode == 7
    assert done.stdout == b'got {"a": 1}\n{"b": [1]}\nend' and done.stderr == b"oops\n"
    assert lines_of(tape, "in") == [{"a": 1}]
    assert lines_of(tape, "out") == ['got {"a": 1}', {"b": [1]}, "end"]
    assert lines_of(tape, "err") == ["oops"]
    spawn, end = lines_of(tape, "note")
    assert isinstance(spawn, dict) and spawn["argv"][-1] == "--flag"
    assert isinstance(end, dict) and end["rc"] == 7


def test_a_recorder_of_a_cli_that_dies_by_a_signal_exits_as_a_shell_would(tmp_path: Path) -> None:
    assert record(tmp_path / "tape", "/bin/sh", "-c", "kill -KILL $$").returncode == 137


def test_a_recorder_without_its_cli_says_so(tmp_path: Path) -> None:
    done = record(tmp_path / "tape", "/nowhere/cli")
    assert done.returncode == 2 and b"cannot start /nowhere/cli" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_recorder_ends_with_its_cli_while_stdin_stays_open(tmp_path: Path) -> None:
    tape = tmp_path / "tape"
    process = subprocess.Popen(
        [sys.executable, "-m", "bridge", "record", str(tape), "--", "/bin/sh", "-c", "exit 4"],
        cwd=CHECKOUT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stderr
        assert process.wait(WITHIN) == 4
        assert process.stderr.read() == b""


def test_a_recorder_passes_signals_on(tmp_path: Path) -> None:
    tape = tmp_path / "tape"
    program = "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    process = subprocess.Popen(
        [sys.executable, "-m", "bridge", "record", str(tape), "--", "/bin/sh", "-c", program],
        cwd=CHECKOUT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(WITHIN) == 5
        assert process.stdout.read() == b"bye\n"
    assert lines_of(tape, "out") == ["ready", "bye"]


def test_python_m_imports_nothing_from_the_start_directory(tmp_path: Path) -> None:
    """It may be a repository."""
    for name in ("dotenv", "orjson", "aiohttp", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a module of the repository')\n")
    done = run("health", cwd=tmp_path)
    assert "a module of the repository" not in done.stderr
    assert "no answer" in done.stderr


@pytest.mark.parametrize("words", [("health",), ("backup", "copy"), ("doctor",)])
def test_each_command_that_reads_settings_names_an_env_file_that_is_not_read(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    start = tmp_path / "repository"
    (start / ".git").mkdir(parents=True)
    (start / ".env").write_text("AGENT_BINARY=./evil\n")
    (tmp_path / "work").mkdir()
    done = run(*words, cwd=start, AGENT_REPO_PATH=str(tmp_path / "work"))
    told = done.stdout + done.stderr
    assert told.count(f"{start}/.env was not read") == 1 and "--env-file .env" in told
