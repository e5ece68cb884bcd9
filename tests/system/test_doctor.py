"""`doctor` and `adapters` as their users run them. The CLIs are small programs of their own; those
with the mark `real` are the real ones."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import psutil
import pytest

from bridge.adapter import Ability, Adapter, AgentConfig, Prompt, SessionStart
from bridge.cli.doctor import machine as doctor_machine
from bridge.cli.doctor.adapters import COLUMNS, ability
from bridge.errors import ConfigurationError
from bridge.sandbox.landlock import abi as landlock_abi
from bridge.server import registry
from bridge.server.agents.configured import configure_agents
from bridge.server.settings.load import load
from bridge.session.session import Session
from bridge.session.turn import TurnLimits
from bridge.task.events import AgentEvent, Failed, Started
from bridge.task.message import Message, Role, TextPart
from tests import CHECKOUT, NODE
from tests.support import acp_agent
from tests.support.bridge_process import bridge
from tests.support.echo import Echo
from tests.support.forked_command import run_forked
from tests.support.free_port import free_port
from tests.support.liveness import listening
from tests.support.model_server import ModelServer
from tests.support.real_clis import CLAUDE_CODE, each
from tests.support.real_clis import OVER_ACP as CLIS

WITHIN = 60.0  # seconds for a whole run
GREETS = f"exec {sys.executable} -I -S {acp_agent.PROGRAM} {shlex.quote('{}')}"
needs_landlock = pytest.mark.skipif(landlock_abi() < 3, reason="this kernel has no Landlock")
Json = dict[str, Any]
# Seconds, less than a user has.
SHORT = {"version": 1, "help": 1, "login": 1, "handshake": 2, "prompt": 2}


@dataclass(slots=True)
class Machine:
    """A home, a workspace and a folder of programs, which is all of PATH but for the system's."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.bin}:{NODE}:/usr/bin:/bin",
            "HOME": str(self.folder / "home"),
            "PYTHONPATH": str(CHECKOUT),
            "PYTHONWARNINGS": "error",
            "PORT": "0",
            "AGENT_REPO_PATH": str(self.workspace),
            "BRIDGE_SANDBOX": "none",  # programs of tests tell their pids beside the workspace
            **self.env,
        }

    def program(self, name: str, script: str) -> Path:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def gemini(self, name: str = "gemini", **parts: str) -> Path:
        """A CLI that speaks ACP; `parts` are shell commands for what it does otherwise."""
        agent = f"exec {sys.executable} -I -S {acp_agent.PROGRAM}"
        own = {
            "version": "echo 1.2.3",
            "help": "echo 'usage: gemini [--acp] [--model NAME]'",
            "talk": f"{agent} {shlex.quote('{}')}",
            **parts,
        }
        return self.program(
            name,
            f'case "$1" in\n--version) {own["version"]};;\n*--help) {own["help"]};;\n'
            f"*) {own['talk']};;\nesac",
        )

    def claude(self, account: Json, status: int = 0) -> Path:
        """A CLI with the control protocol, as far as a greeting goes."""
        flags = " ".join(registry.load("claude-code").cli_info.flags)
        said = {"account": account, "claude_code_version": "9.9.9", "models": []}
        answer = {"subtype": "success", "request_id": "greeting", "response": said}
        line = json.dumps({"type": "control_response", "response": answer})
        return self.program(
            "claude",
            f'case "$1" in\n--version) echo "9.9.9 (Claude Code)";;\n--help) echo "{flags}";;\n'
            f"auth) exit {status};;\n*) read request; echo '{line}'; exec cat >/dev/null;;\nesac",
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        self.env |= env
        with self.start(*arguments) as process:
            try:
                out, err = process.communicate(timeout=WITHIN)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def command(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; see `run` for the real start of one."""
        self.env |= env
        return run_forked(arguments, cwd=self.folder, env=self.environment())

    def doctor(self, *arguments: str, **env: str) -> tuple[int, str]:
        done = self.command("doctor", *arguments, **env)
        assert done.stderr == ""
        return done.returncode, done.stdout

    def examined(self, *arguments: str, **env: str) -> tuple[int, Json]:
        """The exit status and the output of `doctor --json`."""
        code, out = self.doctor("--json", *arguments, **env)
        return code, json.loads(out)

    def hurried(self, agent: str, live: bool = False, **env: str) -> tuple[int, Json]:
        """The same for one agent, with the time limits of SHORT."""
        self.env |= env
        done = run_forked(
            cwd=self.folder,
            env=self.environment(),
            hurried={"agent": agent, "live": live, "within": SHORT},
        )
        assert done.stderr == ""
        return done.returncode, json.loads(done.stdout)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    for name in ("bin", "home", "workspace"):
        (tmp_path / name).mkdir()
    return Machine(tmp_path)


def the(report: Json, name: str, agent: str | None = None) -> Json:
    """The check with that name, of the server or of an agent."""
    (where,) = (
        [report["server"]] if agent is None else [a for a in report["agents"] if a["id"] == agent]
    )
    (found,) = [check for check in where["checks"] if check["name"] == name]
    assert (found["next"] is not None) is (found["status"] == "failed")
    return dict(found)


def statuses(report: Json, agent: str) -> Json:
    (one,) = [one for one in report["agents"] if one["id"] == agent]
    return {check["name"]: check["status"] for check in one["checks"]}


def mark(text: str, name: str, section: str = "") -> str:
    """The line of a check in what people are shown."""
    part = text[text.index(f"\n{section}") :] if section else text
    return next(line for line in part.splitlines() if line[6:].startswith(f"{name} "))


# --- a CLI that works ----------------------------------------------------------------------------


def test_a_cli_that_works_is_told_with_its_version_and_its_session(machine: Machine) -> None:
    path = machine.gemini()
    code, report = machine.examined(AGENT_ADAPTER="gemini")
    assert (code, report["status"], report["ok"]) == (0, 0, True)
    assert the(report, "program", "gemini")["facts"] == {"version": "1.2.3"}
    assert the(report, "flags", "gemini")["facts"] == {"missing": []}
    handshake = the(report, "handshake", "gemini")
    assert handshake["status"] == "ok"
    assert handshake["facts"]["version"] == "1.2.3"  # which the agent says in the handshake
    assert the(report, "login", "gemini")["status"] == "note"
    start = the(report, "start", "gemini")["facts"]
    assert handshake["facts"]["seconds"] <= start["seconds"]
    assert start["bytes"] > 2**20  # its process was there
    (one,) = [one for one in report["agents"] if one["id"] == "gemini"]
    assert (one["served"], one["found"], one["program"]) == (True, True, str(path))


def test_a_bridge_among_the_mcp_servers_of_a_cli_is_named(machine: Machine) -> None:
    machine.gemini()
    code, report = machine.examined(AGENT_ADAPTER="gemini")
    assert "mcp" not in statuses(report, "gemini")
    path = machine.folder / "home/.gemini/settings.json"
    path.parent.mkdir(exist_ok=True)
    server = {"command": "/opt/bin/coding-agent-bridge", "args": ["mcp"]}
    path.write_text(json.dumps({"mcpServers": {"bridge": server}}))
    code, report = machine.examined(AGENT_ADAPTER="gemini")
    assert code == 0
    said = the(report, "mcp", "gemini")["text"]
    assert said.startswith(str(path))
    assert "remove" not in said  # the documents say how to add it


def test_people_are_told_the_same_in_lines(machine: Machine) -> None:
    machine.gemini()
    code, text = machine.doctor(AGENT_ADAPTER="gemini")
    assert code == 0
    assert mark(text, "program", "gemini").startswith("  ok  program    ")
    assert mark(text, "handshake", "gemini").startswith("  ok  handshake  answered in ")
    assert "BRIDGE_WARM_SESSIONS=1" in mark(text, "start", "gemini")
    assert text.splitlines()[-1] == "All necessary checks pass: gemini."


def test_a_cli_that_is_not_installed_is_listed_only_on_request(machine: Machine) -> None:
    machine.gemini()
    _, report = machine.examined(AGENT_ADAPTER="gemini")
    others = [one for one in report["agents"] if one["id"] != "gemini"]
    left = [one["id"] for one in others if one["found"] or not one["like"]]
    code, text = machine.doctor(AGENT_ADAPTER="gemini")
    assert code == 0
    assert f"\n{len(left)} further adapters are known: " in text
    assert "doctor --all" in text
    names = set(re.findall(r"[\w-]+", text.partition("gemini: ")[2]))
    assert not names & set(left)
    code, text = machine.doctor("--all", AGENT_ADAPTER="gemini")
    assert code == 0
    assert all(f"\n  --  {name} " in text for name in left)
    assert "npm install -g @anthropic-ai/claude-code" in text
    assert "further adapters are known" not in text


def test_the_shape_of_the_object_for_programs(machine: Machine) -> None:
    machine.gemini()
    _, report = machine.examined(AGENT_ADAPTER="gemini")
    assert set(report) == {"version", "status", "ok", "server", "agents"}
    assert set(report["server"]) == {"checks"}
    names = [check["name"] for check in report["server"]["checks"]]
    facilities = ["pidfd", "cgroups", "sandbox", "landlock", "bwrap", "user namespaces"]
    assert names == ["python", "kernel", *facilities, "workspace", "state", "port"]
    for one in report["agents"]:
        assert set(one) == {
            *("id", "adapter", "title", "served", "found", "program", "install", "like", "checks")
        }
    every = [*report["server"]["checks"], *(c for one in report["agents"] for c in one["checks"])]
    for check in every:
        assert set(check) == {"name", "status", "needed", "text", "next", "facts"}
        assert check["status"] in ("ok", "failed", "note")
        assert (check["next"] is not None) is (check["status"] == "failed")


def test_every_failure_is_followed_by_its_next_step(machine: Machine) -> None:
    machine.gemini(help="echo nothing", talk="exit 3")
    code, text = machine.doctor(AGENT_ADAPTER="gemini", BRIDGE_STATE_DIR="/dev/null/x")
    lines = text.splitlines()
    failures = [number for number, line in enumerate(lines) if line.startswith("  !!")]
    assert (code, len(failures)) == (1, 3)
    assert all(lines[number + 1].startswith("      → ") for number in failures)
    assert lines[-1] == "Not ready: state, gemini: flags, gemini: handshake."


@needs_landlock
def test_a_cli_is_looked_at_in_what_it_would_be_served_in(machine: Machine) -> None:
    """One that works only without is told so here, not by its first task."""
    outside = machine.folder / "outside"
    machine.gemini(talk=f"touch {outside} || exit 3; {GREETS}")
    code, report = machine.examined("--agent", "gemini", BRIDGE_SANDBOX="auto")
    assert (code, outside.exists()) == (1, False)
    check = the(report, "sandbox", "gemini")
    assert (check["status"], check["facts"]["profile"]) == ("ok", "landlock")
    assert "UDP" in check["facts"]["open"] and "left open: " in check["text"]
    code, report = machine.examined("--agent", "gemini", BRIDGE_SANDBOX="none")
    assert (code, outside.exists()) == (0, True)
    assert the(report, "sandbox", "gemini")["status"] == "note"


@needs_landlock
def test_a_program_that_cannot_be_run_inside_is_told_so(machine: Machine) -> None:
    machine.gemini().write_text("#!/no/such/interpreter\n")
    code, report = machine.examined("--agent", "gemini", BRIDGE_SANDBOX="auto")
    check = the(report, "program", "gemini")
    assert (code, check["status"]) == (1, "failed")
    assert "No such file" in check["text"]


def test_a_boundary_that_cannot_be_had_is_told_with_what_to_do(machine: Machine) -> None:
    machine.gemini()
    code, report = machine.examined(
        "--agent", "gemini", BRIDGE_SANDBOX="none", BRIDGE_SANDBOX_PORTS="443"
    )
    assert code == 2
    assert "BRIDGE_SANDBOX_PORTS" in the(report, "settings", "gemini")["text"]


def test_a_cli_has_the_streams_that_it_has_in_a_task(machine: Machine) -> None:
    """A program that accepts no file, or no pipe, as its stdout is noticed here."""
    told = machine.folder / "streams"
    look = f'said=$(readlink /proc/$$/fd/0 /proc/$$/fd/1); echo "$said" > {told}'
    machine.gemini(talk=f"{look}; exec {sys.executable} -I -S {acp_agent.PROGRAM} '{{}}'")
    code, report = machine.examined("--agent", "gemini")
    assert code == 0, report
    assert [Path(line).name for line in told.read_text().split()] == ["in", "pipe"]


async def test_nothing_is_left_of_a_handshake(machine: Machine) -> None:
    """Not even what the CLI has started in a session of its own."""
    pids = machine.folder / "pids"
    begin = f"echo $$ >> {pids}; setsid sh -c 'echo $$ >> {pids}; exec sleep 90' & "
    machine.gemini(
        talk=f"{begin} exec {sys.executable} -I -S {acp_agent.PROGRAM} {shlex.quote('{}')}"
    )
    code, report = await asyncio.to_thread(machine.examined, "--agent", "gemini")
    assert code == 0, report
    numbers = list(map(int, pids.read_text().split()))
    assert len(numbers) == 2
    assert not any(map(psutil.pid_exists, numbers))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_doctor_that_is_stopped_takes_its_cli_along(
    machine: Machine, number: signal.Signals
) -> None:
    async with listening() as live:
        agent = f"{sys.executable} -I -S {acp_agent.PROGRAM}"
        code = f"import sys; sys.path.insert(0, {str(CHECKOUT)!r}); import time; "
        code += "from tests.support import acp_agent; "
        code += f"acp_agent.connect({live.path!r}, 'cli'); time.sleep(90)"
        machine.gemini(talk=f"exec {sys.executable} -c {shlex.quote(code)} {agent}")
        with machine.start("-m", "bridge", "doctor", "--agent", "gemini") as process:
            await live.pid("cli")
            process.send_signal(number)
            _, err = await asyncio.to_thread(process.communicate, timeout=WITHIN)
        assert (process.returncode, err) == (128 + number, "")
        await live.gone("cli")


# --- a CLI that does not -------------------------------------------------------------------------


def test_a_cli_that_is_not_there_is_a_failure_only_if_it_is_wanted(machine: Machine) -> None:
    machine.gemini()
    code, report = machine.examined(AGENT_ADAPTER="claude-code")
    assert code == 1
    check = the(report, "program", "claude-code")
    assert "claude was not found" in check["text"]
    assert "npm install -g @anthropic-ai/claude-code" in check["next"]
    assert "AGENT_BINARY" in check["next"]
    qwen = next(one for one in report["agents"] if one["id"] == "qwen")
    assert (qwen["found"], qwen["served"], qwen["program"]) == (False, False, None)
    code, report = machine.examined(AGENT_ADAPTER="gemini")
    assert code == 0
    code, report = machine.examined("--agent", "claude-code")
    assert (code, [one["id"] for one in report["agents"]]) == (1, ["claude-code"])


def test_a_cli_that_does_not_work_is_not_a_failure_if_another_one_is_served(
    machine: Machine,
) -> None:
    machine.gemini()
    machine.gemini("qwen", talk="exit 3")
    code, text = machine.doctor(AGENT_ADAPTER="gemini")
    assert code == 0
    assert mark(text, "handshake", "qwen").startswith("  !!")
    assert text.splitlines()[-1].endswith("Not served, and not ready: qwen.")


def test_a_cli_that_is_too_old_is_told_by_the_flags_that_it_lacks(machine: Machine) -> None:
    machine.gemini(help="echo '--acp-mode is not it, nor is x--acp; but --model is'")
    code, report = machine.examined("--agent", "gemini")
    check = the(report, "flags", "gemini")
    assert (code, check["status"], check["facts"]) == (1, "failed", {"missing": ["--acp"]})
    assert "npm install -g @google/gemini-cli" in check["next"]


def test_flags_are_looked_for_on_stderr_too(machine: Machine) -> None:
    machine.gemini(help="echo '[--acp|--model=NAME]' >&2; exit 1")
    _, report = machine.examined("--agent", "gemini")
    assert the(report, "flags", "gemini")["status"] == "ok"


def test_a_command_is_there_if_its_help_is(machine: Machine) -> None:
    machine.gemini("opencode", help="true")
    _, report = machine.examined("--agent", "opencode")
    assert the(report, "flags", "opencode")["status"] == "ok"
    machine.program("opencode", '[ "$1" = --version ] && exec echo 0.1; exit 1')
    code, report = machine.examined("--agent", "opencode")
    assert (code, the(report, "flags", "opencode")["status"]) == (1, "failed")


@pytest.mark.parametrize(
    ("part", "failing", "step"),
    [
        pytest.param("version", "program", "gemini --version", marks=pytest.mark.soak),
        pytest.param("help", "flags", "gemini --help", marks=pytest.mark.soak),
        ("talk", "handshake", "gemini --acp)"),
    ],
)
def test_a_cli_that_hangs_is_given_up(machine: Machine, part: str, failing: str, step: str) -> None:
    pid = machine.folder / "pid"
    hang = f"trap '' TERM; echo $$ > {pid}; sleep 90; exit 0"
    machine.gemini(**{part: hang})
    code, report = machine.hurried("gemini")
    check = the(report, failing, "gemini")
    assert (code, check["status"]) == (1, "failed")
    assert check["next"].endswith(step)
    assert not psutil.pid_exists(int(pid.read_text()))


def test_a_cli_that_prints_without_end_is_given_up(machine: Machine) -> None:
    machine.gemini(help="exec yes --acp")
    code, report = machine.hurried("gemini")
    assert (code, the(report, "flags", "gemini")["status"]) == (1, "failed")


def test_a_cli_that_dies_in_the_handshake_is_told_with_its_last_words(machine: Machine) -> None:
    machine.gemini(talk="echo 'no license' >&2; exit 3")
    code, report = machine.examined("--agent", "gemini")
    check = the(report, "handshake", "gemini")
    assert (code, check["status"], check["facts"]) == (1, "failed", {"reason": "exit"})
    assert "exit status 3" in check["text"]
    assert "no license" in check["text"]


def test_a_program_that_cannot_be_run_is_told_so(machine: Machine) -> None:
    path = machine.gemini()
    path.write_text("#!/no/such/interpreter\n")
    code, report = machine.examined("--agent", "gemini")
    check = the(report, "program", "gemini")
    assert (code, check["status"]) == (1, "failed")
    assert "cannot start" in check["text"]


def test_what_waits_for_a_person_is_told_with_what_it_says(machine: Machine) -> None:
    machine.gemini(talk="echo 'Do you trust this folder? [y/N]'; exec sleep 90")
    _, report = machine.hurried("gemini")
    assert "Do you trust this folder?" in the(report, "handshake", "gemini")["text"]


# --- logging in ----------------------------------------------------------------------------------


def test_an_agent_that_wants_a_login_is_told_with_how_to(machine: Machine) -> None:
    options = json.dumps({"login": str(machine.folder / "logged-in")})
    agent = f"exec {sys.executable} -I -S {acp_agent.PROGRAM} {shlex.quote(options)}"
    machine.gemini(talk=agent)
    code, report = machine.examined("--agent", "gemini")
    check = the(report, "handshake", "gemini")
    assert (code, check["status"], check["facts"]) == (1, "failed", {"reason": "auth"})
    assert check["next"] == registry.load("gemini").cli_info.login


def test_a_cli_that_can_tell_is_asked_whether_it_is_logged_in(machine: Machine) -> None:
    account = {"tokenSource": "none", "apiKeySource": "ANTHROPIC_API_KEY"}
    machine.claude({**account, "apiProvider": "firstParty"})
    code, report = machine.examined("--agent", "claude-code")
    assert (code, the(report, "login", "claude-code")["status"]) == (0, "ok")
    machine.claude({"tokenSource": "none", "apiProvider": "firstParty"}, status=1)
    code, report = machine.examined("--agent", "claude-code")
    check = the(report, "login", "claude-code")
    assert (code, check["status"], check["facts"]) == (1, "failed", {"loggedIn": False})
    assert check["next"] == "claude auth login, or set ANTHROPIC_API_KEY"
    assert the(report, "handshake", "claude-code")["status"] == "note"  # it says the same


def test_no_value_of_a_variable_is_shown(machine: Machine) -> None:
    key = "sk-very-secret-indeed"
    machine.gemini(
        version="echo 1.2.3 $GEMINI_API_KEY",
        talk='echo "the key $GEMINI_API_KEY, by $HTTPS_PROXY" >&2; exit 1',
    )
    env = {"GEMINI_API_KEY": key, "HTTPS_PROXY": "http://me:hidden@proxy:1", "BRIDGE_TOKEN": key}
    _, text = machine.doctor("--agent", "gemini", **env)
    _, report = machine.examined("--agent", "gemini")
    for shown in (text, json.dumps(report)):
        assert key not in shown
        assert "hidden" not in shown
        assert "the key <GEMINI_API_KEY>, by <HTTPS_PROXY>" in shown
    assert the(report, "variables", "gemini")["facts"]["names"] == ["GEMINI_API_KEY"]


# --- a prompt ------------------------------------------------------------------------------------


def test_a_prompt_is_sent_only_if_it_is_asked_for(machine: Machine) -> None:
    machine.gemini()
    _, report = machine.examined("--agent", "gemini")
    assert "prompt" not in statuses(report, "gemini")
    code, report = machine.examined("--agent", "gemini", "--live")
    facts = the(report, "prompt", "gemini")["facts"]
    assert (code, facts["state"]) == (0, "completed")
    assert 0 <= facts["firstEventSeconds"] <= facts["seconds"] < WITHIN


def test_an_agent_without_a_handshake_says_so_and_takes_a_prompt(machine: Machine) -> None:
    path = machine.program("own", """read prompt; echo '{"type":"done"}'; exec cat >/dev/null""")
    env = {"AGENT_ADAPTER": "jsonl", "AGENT_BINARY": str(path)}
    code, report = machine.examined("--agent", "jsonl", **env)
    check = the(report, "handshake", "jsonl")
    assert (code, check["status"]) == (0, "note")
    assert "run with --live" in check["text"]
    code, report = machine.examined("--agent", "jsonl", "--live", **env)
    assert (code, the(report, "prompt", "jsonl")["status"]) == (0, "ok")


@pytest.mark.parametrize(
    "script",
    ["exec cat >/dev/null", pytest.param("exec sleep 90", marks=pytest.mark.soak), "exit 0"],
)
def test_a_prompt_that_is_never_answered_is_given_up(machine: Machine, script: str) -> None:
    path = machine.program("own", script)
    code, report = machine.hurried("jsonl", True, AGENT_BINARY=str(path))
    assert (code, the(report, "prompt", "jsonl")["status"]) == (1, "failed")


# --- which of them are looked at -----------------------------------------------------------------


def test_a_program_that_may_belong_to_another_user_is_run_only_if_it_is_asked_for(
    machine: Machine,
) -> None:
    ran = machine.folder / "ran"
    machine.gemini()
    machine.gemini("agent", version=f"touch {ran}; echo 1")
    _, report = machine.examined(AGENT_ADAPTER="gemini")
    check = the(report, "program", "cursor")
    assert (check["status"], ran.exists()) == ("note", False)
    assert "doctor --agent cursor" in check["text"]
    _, report = machine.examined("--agent", "cursor")
    assert (the(report, "program", "cursor")["status"], ran.exists()) == ("ok", True)


def test_a_program_with_several_adapters_is_looked_at_once(machine: Machine) -> None:
    """By the one that can ask, unless another one is served. The other one is of a distribution."""
    site = machine.folder / "site"
    dist = site / "silent-1.dist-info"
    dist.mkdir(parents=True)
    (dist / "METADATA").write_text("Metadata-Version: 2.1\nName: silent\nVersion: 1\n")
    (dist / "entry_points.txt").write_text(f"[{registry.GROUP}]\na-silent = silent:Silent\n")
    (site / "silent.py").write_text(
        "from bridge.adapter.print_mode import PrintModeAdapter\n"
        "class Silent(PrintModeAdapter):\n"
        "    name, title, binary = 'a-silent', 'Silent', 'gemini'\n"
        "    limitations = {'questions': 'it cannot ask'}\n"
        "    def arguments(self, prompt): return ()\n"
    )
    path, doctor = f"{site}:{CHECKOUT}", ("-m", "bridge", "doctor", "--json")
    machine.gemini()
    report = json.loads(machine.run(*doctor, PYTHONPATH=path, AGENT_ADAPTER="replay").stdout)
    assert the(report, "handshake", "gemini")["status"] == "ok"
    like = {one["id"]: one["like"] for one in report["agents"]}
    assert (like["gemini"], like["a-silent"]) == (None, "gemini")
    assert statuses(report, "a-silent") == {"program": "note"}
    report = json.loads(machine.run(*doctor, AGENT_ADAPTER="a-silent").stdout)
    like = {one["id"]: one["like"] for one in report["agents"]}
    assert (like["a-silent"], like["gemini"]) == (None, "a-silent")


def test_a_withdrawn_adapter_is_answered_with_its_replacement(machine: Machine) -> None:
    done = machine.command("doctor", "--agent", "codex-exec")
    assert "codex-exec was withdrawn. Use codex, " in done.stderr


def test_the_settings_of_one_cli_are_not_anothers(machine: Machine) -> None:
    machine.claude({"apiProvider": "bedrock"})
    machine.gemini(talk='echo "$@" >&2; exit 1')
    env = {"AGENT_ADAPTER": "claude-code", "AGENT_ARGS": "--own", "AGENT_MODEL": "opus"}
    code, report = machine.examined(**env)
    assert code == 0
    assert "words: --acp" in the(report, "handshake", "gemini")["text"]
    _, report = machine.examined("--agent", "gemini")
    assert "words: --acp" in the(report, "handshake", "gemini")["text"]


def test_agents_of_the_file_are_looked_at_with_their_own_settings(machine: Machine) -> None:
    machine.gemini("mine")
    (machine.folder / "config.toml").write_text(
        f"""
        [agents.one]
        adapter = "gemini"
        binary = "{machine.bin}/mine"
        [agents.two]
        adapter = "claude-code"
        """
    )
    code, report = machine.examined(CONFIG_FILE=str(machine.folder / "config.toml"))
    assert code == 1
    served = {one["id"]: one["adapter"] for one in report["agents"] if one["served"]}
    assert served == {"one": "gemini", "two": "claude-code"}
    assert the(report, "handshake", "one")["status"] == "ok"
    code, report = machine.examined("--agent", "one")
    assert (code, [one["id"] for one in report["agents"]]) == (0, ["one"])


@pytest.mark.parametrize(("wrong", "meant"), [("gemni", "gemini"), ("reviwer", "reviewer")])
def test_an_unknown_agent_is_told_with_the_nearest(
    machine: Machine, wrong: str, meant: str
) -> None:
    (machine.folder / "config.toml").write_text("[agents.reviewer]\nadapter = 'gemini'\n")
    env = {"CONFIG_FILE": str(machine.folder / "config.toml")}
    done = machine.command("doctor", "--agent", wrong, **env)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"Did you mean {meant}?" in done.stderr


def test_without_any_cli_a_recording_would_be_played(machine: Machine) -> None:
    code, text = machine.doctor()
    assert code == 0
    assert "no known CLI is on PATH" in text
    assert "replay: The recording, served" in text


# --- settings, folders, port ---------------------------------------------------------------------


def test_wrong_settings_are_told_as_the_server_tells_them(machine: Machine) -> None:
    done = machine.command("doctor", PORT="x")
    assert done.returncode == 2
    assert "PORT" in done.stderr


def test_settings_that_an_agent_refuses_have_their_own_status(machine: Machine) -> None:
    code, report = machine.examined(AGENT_ADAPTER="replay", AGENT_MODEL="opus")
    check = the(report, "settings", "replay")
    assert (code, check["status"]) == (2, "failed")
    assert "AGENT_MODEL" in check["next"]


def test_a_port_that_is_taken_is_told_with_another(machine: Machine) -> None:
    machine.gemini()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        code, report = machine.examined("--port", str(number))
    check = the(report, "port")
    assert (code, check["status"]) == (1, "failed")
    assert f"used by pid {os.getpid()} (" in check["text"]
    assert "--port" in check["next"]


def test_a_unix_socket_that_cannot_be_had_is_told_with_the_reason(machine: Machine) -> None:
    machine.gemini()
    folder = machine.folder / "run"
    folder.mkdir(mode=0o700)
    machine.env |= {"BRIDGE_UNIX_SOCKET": str(folder / "s")}
    code, report = machine.examined("--port", "none")
    assert (code, the(report, "socket")["status"], list(folder.iterdir())) == (0, "ok", [])
    (folder / "s").touch()
    code, report = machine.examined("--port", "none")
    check = the(report, "socket")
    assert (code, check["status"]) == (1, "failed")
    assert "another file has this path" in check["text"]
    assert "BRIDGE_UNIX_SOCKET" in check["next"]


@pytest.mark.parametrize(
    ("given", "auth", "code"), [(True, "none", 1), (False, "none", 0), (False, "auto", 1)]
)
def test_a_state_folder_that_cannot_be_had(
    machine: Machine, given: bool, auth: str, code: int
) -> None:
    """It is needed if the operator has named it, or for its token; else the server goes on."""
    machine.gemini()
    blocked = machine.folder / "file"
    blocked.write_text("")
    name = "BRIDGE_STATE_DIR" if given else "XDG_STATE_HOME"
    port = str(free_port())
    env = {name: str(blocked / "x"), "BRIDGE_AUTH": auth}
    got, report = machine.examined("--port", port, **env)
    check = the(report, "state")
    assert (got, check["status"], check["needed"]) == (code, "failed", code == 1)
    assert "is not a directory" in check["text"]
    assert "BRIDGE_STATE_DIR" in check["next"]


def test_a_state_folder_that_others_can_look_into_is_told_with_the_command(
    machine: Machine,
) -> None:
    machine.gemini()
    folder = machine.folder / "state"
    folder.mkdir(mode=0o755)
    code, report = machine.examined(BRIDGE_STATE_DIR=str(folder))
    assert (code, the(report, "state")["next"]) == (1, f"chmod 700 {folder}")
    folder.chmod(0o700)
    code, report = machine.examined()
    assert (code, the(report, "state")["status"]) == (0, "ok")
    assert list(folder.iterdir()) == []


def test_looking_makes_nothing(machine: Machine) -> None:
    machine.gemini()
    folder = machine.folder / "state"
    code, _ = machine.examined(BRIDGE_STATE_DIR=str(folder))
    assert (code, folder.exists()) == (0, False)
    assert list(machine.workspace.iterdir()) == []


async def test_a_state_folder_that_a_server_uses_is_told_so(machine: Machine) -> None:
    machine.gemini()
    folder = machine.folder / "state"
    async with bridge(
        machine.workspace, AGENT_ADAPTER="replay", BRIDGE_STATE_DIR=str(folder)
    ) as server:
        env = {"BRIDGE_STATE_DIR": str(folder)}
        code, report = await asyncio.to_thread(machine.examined, **env)
        check = the(report, "state")
        assert (code, check["status"], check["facts"]["locked"]) == (1, "failed", True)
        assert await server.stop() == 0
    code, report = await asyncio.to_thread(machine.examined)
    assert (code, the(report, "state")["status"]) == (0, "ok")


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_workspace_in_git_is_told_so(machine: Machine, kind: str) -> None:
    git = machine.workspace.parent / ".git"
    git.mkdir() if kind == "folder" else git.write_text("gitdir: elsewhere")
    _, report = machine.examined("--agent", "gemini")
    facts = the(report, "workspace")["facts"]
    assert facts == {"path": str(machine.workspace), "git": True}
    assert doctor_machine.repository("/proc") is None


@pytest.mark.parametrize("kind", ["worktree", "submodule", "subfolder", "clone"])
def test_a_workspace_whose_commits_go_elsewhere_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    main, place = tmp_path / "main", tmp_path / kind
    git = "git -c user.name=a -c user.email=a@b -c protocol.file.allow=always"
    begin = f"git init -q {main} && cd {main} && {git} commit -q --allow-empty -m first"
    place = main / kind if kind in ("submodule", "subfolder") else place
    make = {
        "worktree": f"git worktree add -q {place}",
        "submodule": f"{git} submodule --quiet add ./ {kind}",
        "subfolder": f"mkdir {place}",
        "clone": f"git clone -q . {place}",
    }
    subprocess.run(f"{begin} && {make[kind]}", shell=True, check=True)
    folder = main / ".git/modules/submodule" if kind == "submodule" else main / ".git"
    for profile, allowed, failed in (
        ("landlock", "", kind != "clone"),
        ("bwrap", "", kind != "clone"),
        ("none", "", False),
        ("landlock", str(folder), False),
    ):
        monkeypatch.setenv("BRIDGE_SANDBOX", profile)
        monkeypatch.setenv("BRIDGE_SANDBOX_WRITE", allowed)
        monkeypatch.setenv("AGENT_REPO_PATH", str(place))
        (check,) = doctor_machine.workspace(load({}).settings)
        assert check.failed is failed, (profile, allowed)
        if failed:
            assert f"BRIDGE_SANDBOX_WRITE={folder}" in check.next
            assert not check.needed


@pytest.mark.parametrize("text", ["gitdir: /etc", "gitdir: ../x", "x" * 10_000, "gitdir: \0"])
def test_a_file_that_leads_to_no_repository_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / ".git").write_text(text)
    monkeypatch.setenv("BRIDGE_SANDBOX", "landlock")
    monkeypatch.setenv("AGENT_REPO_PATH", str(tmp_path))
    (check,) = doctor_machine.workspace(load({}).settings)
    assert (check.status, check.next) == ("ok", "")


def test_a_workspace_that_cannot_be_written_is_told_so(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_REPO_PATH", "/proc")  # where even root cannot
    (check,) = doctor_machine.workspace(load({}).settings)
    assert (check.status, check.needed) == ("failed", True)
    assert "AGENT_REPO_PATH" in check.next


def test_an_adapter_that_cannot_be_loaded_is_told_and_stops_nothing(machine: Machine) -> None:
    machine.gemini()
    dist = machine.folder / "site" / "broken-1.dist-info"
    dist.mkdir(parents=True)
    (dist / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (dist / "entry_points.txt").write_text(f"[{registry.GROUP}]\nbroken = no_such_module:X\n")
    path = f"{CHECKOUT}:{dist.parent}"
    env = {"AGENT_ADAPTER": "gemini", "PYTHONPATH": path}
    done = machine.run("-m", "bridge", "doctor", "--json", **env)
    check = the(json.loads(done.stdout), "adapter", "broken")
    assert (done.returncode, check["status"]) == (0, "failed")
    assert "no_such_module" in check["text"]
    done = machine.run("-m", "bridge", "doctor", **env)
    assert "  !!  adapter  " in done.stdout
    done = machine.run("-m", "bridge", "adapters")
    assert (done.returncode, "  broken: No module named" in done.stdout) == (0, True)


# --- `adapters`, and what they lack --------------------------------------------------------------


def test_adapters_are_listed_with_what_they_can(machine: Machine) -> None:
    done = machine.run("-m", "bridge", "adapters")
    assert (done.returncode, done.stderr) == (0, "")
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line.strip()}
    assert rows["adapter"][:8] == [
        *("adapter", "program", "questions", "deltas", "resume", "interrupt", "models", "steer")
    ]
    assert set(registry.names()) <= set(rows)
    assert rows["claude-code"][1:9] == ["claude", *["yes"] * 7]
    assert rows["replay"][1:9] == ["-", "agent", "agent", *["no"] * 4, "agent"]
    assert "agent: depends on the program" in done.stdout
    assert "  replay: no models: a recording has fixed answers" in done.stdout


def test_adapters_are_listed_for_programs(machine: Machine) -> None:
    done = machine.command("adapters", "--json")
    rows = {row["name"]: row for row in json.loads(done.stdout)["adapters"]}
    assert list(rows) == registry.names()
    for row in rows.values():
        assert set(row) == {"name", "title", "program", "abilities", "modes", "lacks"}
        assert set(row["abilities"]) == {*get_args(Ability), "steer", "images"}
        assert set(row["abilities"].values()) <= {"yes", "no", "agent", "unproved"}
    assert rows["gemini"]["modes"] == ["default", "autoEdit", "plan"]
    assert rows["acp"]["abilities"]["resume"] == "agent"


@pytest.mark.parametrize("name", registry.names())
def test_what_an_adapter_lacks_is_known_and_has_a_reason(name: str) -> None:
    adapter = registry.load(name)
    assert set(adapter.limitations) <= set(get_args(Ability))
    for missing, why in adapter.limitations.items():
        assert why == why.strip().rstrip(".") != ""
        assert ability(adapter, missing) == "no"
    assert [ability(adapter, column) for column in COLUMNS].count("no") >= len(adapter.limitations)


@pytest.mark.parametrize("name", registry.names())
def test_only_an_adapter_with_a_word_for_it_can_interrupt(name: str) -> None:
    """Those that write nothing when they are told to have to say so in `limitations`."""
    own = registry.load(name).interrupt is not Adapter.interrupt
    assert own or "interrupt" in registry.load(name).limitations


@pytest.mark.parametrize("setting", ["AGENT_MODEL", "AGENT_MODELS"])
def test_a_model_for_an_agent_that_has_no_choice_is_refused_at_the_start(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_ADAPTER", "replay")
    (agent,) = configure_agents(load({}))
    assert agent.adapter.name == "replay"
    monkeypatch.setenv(setting, "opus")
    with pytest.raises(ConfigurationError, match=f"replay does not support.*Unset {setting}"):
        configure_agents(load({}))


class Single(Echo):
    """An adapter of somebody's, with one model."""

    binary = "true"
    limitations = {"models": "it has one"}  # noqa: RUF012 - as people write it


@pytest.mark.parametrize("setting", ["AGENT_MODEL", "AGENT_MODELS"])
def test_the_same_holds_for_adapters_of_others(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_ADAPTER", f"{__name__}:Single")
    (agent,) = configure_agents(load({}))
    assert agent.adapter is Single
    monkeypatch.setenv(setting, "opus")
    with pytest.raises(ConfigurationError, match=r"it has one.*Unset"):
        configure_agents(load({}))


# --- the greeting of Claude Code -----------------------------------------------------------------

GREETING = (
    b'{"type":"control_request","request_id":"greeting","request":{"subtype":"initialize"}}\n'
)
SAID = {
    "models": [
        {"value": "default", "resolvedModel": "claude-opus-5-5"},
        {"value": "haiku", "resolvedModel": "claude-haiku-5-5"},
    ],
    "account": {"tokenSource": "none", "apiKeySource": "ANTHROPIC_API_KEY"},
    "claude_code_version": "2.1.330",
    "current_permission_mode": "plan",
}


def claude(model: str | None = None) -> Adapter:
    config = AgentConfig("/bin/claude", model=model)
    return registry.load("claude-code")(config, SessionStart("/workspace", "s"))


def answered(to: Adapter, request_id: str = "greeting", **members: Any) -> list[AgentEvent]:
    response = {"subtype": "success", "request_id": request_id, "response": SAID, **members}
    return list(to.receive_line(json.dumps({"type": "control_response", "response": response})
                                .encode()))  # fmt: skip


def test_a_greeting_is_told_what_the_session_will_be() -> None:
    for model, resolved in ((None, "claude-opus-5-5"), ("haiku", "claude-haiku-5-5"), ("x", "x")):
        adapter = claude(model)
        assert adapter.greet()
        assert adapter.data_to_send() == GREETING
        assert answered(adapter) == [Started(None, resolved, "2.1.330", "plan")]
        assert answered(adapter) == []


@pytest.mark.parametrize(
    ("account", "logged_in"),
    [
        ({"tokenSource": "none", "apiProvider": "firstParty"}, False),
        ({"tokenSource": "none", "apiKeySource": "none", "apiProvider": "firstParty"}, False),
        ({"tokenSource": "none", "apiKeySource": "K", "apiProvider": "firstParty"}, True),
        ({"tokenSource": "CLAUDE_CODE_OAUTH_TOKEN", "apiProvider": "firstParty"}, True),
        ({"apiProvider": "bedrock"}, True),
        ({}, True),
        (None, True),
    ],
)
def test_a_greeting_tells_whether_claude_code_is_logged_in(account: Any, logged_in: bool) -> None:
    adapter = claude()
    adapter.greet()
    (said,) = answered(adapter, response={**SAID, "account": account})
    if logged_in:
        assert isinstance(said, Started)
    else:
        assert isinstance(said, Failed)
        assert said.reason == "auth"


def test_a_greeting_that_is_refused_is_a_failure() -> None:
    adapter = claude()
    adapter.greet()
    (said,) = answered(adapter, subtype="error", error="Unsupported control request")
    assert isinstance(said, Failed)
    assert "Unsupported control request" in said.text


def test_a_greeting_changes_nothing_of_what_follows() -> None:
    prompt = Prompt("task", "context", Message("m", Role.USER, (TextPart("hi"),)))
    written = []
    for greeted in (False, True):
        adapter = claude()
        if greeted:
            adapter.greet()
            adapter.data_to_send()
            answered(adapter, request_id="another's")
        adapter.prompt(prompt)
        assert answered(adapter) == []  # too late: there is a turn
        adapter.interrupt()
        written.append(adapter.data_to_send())
    assert written[0] == written[1]
    assert b"greeting" not in written[0]


class Greeting(Echo):
    def greet(self) -> bool:
        self._bug("greet")
        self.send(b"text hello\ndone\n")
        return True


@pytest.mark.parametrize(("kind", "said"), [(Echo, False), (Greeting, True)])
async def test_a_session_writes_what_its_greeting_owes(kind: type[Echo], said: bool) -> None:
    events: list[object] = []
    config = AgentConfig("/bin/cat")
    session = Session(kind(config, SessionStart("/", "s")), {}, TurnLimits(), "greeting-test")
    await session.open()
    try:
        if said:
            await asyncio.wait_for(session.run(session.greet, events.extend), WITHIN)
            assert len(events) == 2
        else:
            assert not session.greet()
    finally:
        await session.stop()


async def test_an_exception_in_a_greeting_is_the_failure_of_its_turn() -> None:
    adapter = Greeting(AgentConfig("/bin/cat"), SessionStart("/", "s"))
    adapter.bug = "greet"
    events: list[object] = []
    session = Session(adapter, {}, TurnLimits(), "greeting-test")
    await session.open()
    try:
        await asyncio.wait_for(session.run(session.greet, events.extend), WITHIN)
    finally:
        await session.stop()
    (failed,) = events
    assert isinstance(failed, Failed)
    assert failed.reason == "adapter-error"


# --- the real CLIs -------------------------------------------------------------------------------

real = pytest.mark.real
CLAUDE = CHECKOUT / "tests/clis/node_modules/.bin/claude"
QUIET = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}


@real
async def test_the_real_claude_code_with_a_key_is_ready_and_answers(machine: Machine) -> None:
    async with ModelServer() as model:
        env = {"AGENT_BINARY": str(CLAUDE), "ANTHROPIC_BASE_URL": model.url, **QUIET}
        env |= {"ANTHROPIC_API_KEY": "dummy-key", "AGENT_MODEL": "haiku"}
        machine.env |= {"AGENT_ADAPTER": "claude-code", **env}
        code, report = await asyncio.to_thread(machine.examined, "--agent", "claude-code")
        assert code == 0, report
        assert model.requests == []
        facts = the(report, "handshake", "claude-code")["facts"]
        assert (facts["version"], facts["mode"]) == (CLAUDE_CODE.version, "default")
        assert facts["model"].startswith("claude-haiku")
        code, report = await asyncio.to_thread(machine.examined, "--agent", "claude-code", "--live")
        assert code == 0, report
        facts = the(report, "prompt", "claude-code")["facts"]
        assert facts["state"] == "completed"
        assert facts["usage"]["input tokens"] == 100
        assert "Reply with OK." in json.dumps(model.requests[-1]["messages"])
        assert "dummy-key" not in json.dumps(report)


@real
def test_the_real_claude_code_without_a_key_says_how_to_log_in(machine: Machine) -> None:
    env = {"AGENT_BINARY": str(CLAUDE), **QUIET}
    code, report = machine.examined("--agent", "claude-code", **env)
    assert code == 1
    assert statuses(report, "claude-code")["flags"] == "ok"
    assert the(report, "login", "claude-code")["next"].startswith("claude auth login")
    handshake = the(report, "handshake", "claude-code")
    assert handshake["facts"] == {"reason": "auth"}


@real
@each(CLIS, "gemini")
async def test_the_real_clis_are_ready_and_answer(machine: Machine, cli: Any) -> None:
    """Each CLI is started four times: the quickest one in each run, the others in the soak tier."""
    async with cli.model() as model:
        cli.configure(model.url, machine.folder / "home")
        env = {"AGENT_ADAPTER": cli.name, "AGENT_BINARY": cli.path(), **cli.environment(model.url)}
        machine.env |= env
        code, report = await asyncio.to_thread(machine.examined, "--agent", cli.name, "--live")
    assert code == 0, report
    assert the(report, "handshake", cli.name)["facts"]["version"] == cli.version
    assert the(report, "prompt", cli.name)["facts"]["state"] == "completed"
    left = [one for one in psutil.process_iter() if belongs(one, machine)]
    assert left == []


def belongs(process: psutil.Process, machine: Machine) -> bool:
    try:
        return process.environ().get("HOME") == str(machine.folder / "home")
    except psutil.Error:
        return False


@real
@pytest.mark.soak
def test_the_real_gemini_without_a_key_says_how_to_log_in(machine: Machine) -> None:
    """In the soak tier, because each run has a login that is missing in
    tests/unit/adapters/test_acp.py."""
    cli = next(one for one in CLIS if one.name == "gemini")
    code, report = machine.examined("--agent", "gemini", AGENT_BINARY=cli.path())
    check = the(report, "handshake", "gemini")
    assert (code, check["facts"]) == (1, {"reason": "auth"})
    assert check["next"] == "run `gemini` once and log in, or set GEMINI_API_KEY"
