"""No prompt becomes anything but a prompt: no flag, no command, no key, and nothing else of how a
CLI is started depends on it. tests/support/recorded_argv.py stands in for every CLI; the real ones
are in test_real_hostile_prompts.py."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from bridge.adapter import Adapter, AgentConfig, Lines, Prompt, SessionOptions, SessionStart
from bridge.adapter.line_mode import plain
from bridge.errors import InvalidParams
from bridge.process.procfs import MARKER
from bridge.runtime.extension import read_options
from bridge.sandbox.landlock import abi as landlock_abi
from bridge.server import registry
from bridge.task.message import Message, Role, TextPart
from bridge.workspace.project_config import guards
from tests import CHECKOUT
from tests.support.bridge_process import bridge
from tests.support.cli_row import Cli
from tests.support.client import (
    Client,
    Json,
    RpcError,
    artifact_text,
    said,
    state,
    strings,
    task_id,
)
from tests.support.real_clis import CLIS, each
from tests.support.recorded_argv import install, started
from tests.support.served import serving

load = lru_cache(registry.load)
NAMES = registry.names()  # which makes bridge.adapters a package
BENIGN = "Add a flag"
RUNNER = ("/opt/python", "/runner.py")
SESSION = "11111111-2222-4333-8444-555555555555"
UNSEEN = "\u200b"
KEYS = r"[\x00-\x08\x0b-\x1f\x7f-\x9f]"
FLAGS = (
    *("--version", "--help", "-h", "-p", "-c", "--", "-", "---", "--=", "-x=1", "--model=x"),
    *("--dangerously-skip-permissions", "--dangerously-bypass-approvals-and-sandbox", "--yolo"),
    *("--allow-all-tools", "--allow-all", "--force", "--auto", "--full-auto", "--trust-all-tools"),
    *("--mcp-config=/tmp/x.json", "--settings={}", "--add-dir=/", "--resume=x", "--config=/x"),
    *("-c\nshell_environment_policy.inherit=all", "--yes-always", "--load=/etc/passwd", "-\n--x"),
)
COMMANDS = (
    *("/help", "/clear", "/compact", "/init", "/exit", " /help", "\n/help", "\ufeff/help"),
    *("\x00/help", "\u3000/init x", "/cmd a b", "!id", "!touch CANARY", "#memory", "&go", "$skill"),
    *("@/etc/passwd", "read @../x", "@file", "?", "logout", "resume", "login", "{prompt}", "%s"),
)
STRANGE = (
    *("\x03", "\x04", "\x1a", "\x1b]52;c;eA==\x07", "\x9b31m", "a\x00b", "\x7f\x15\x17\x16\x03"),
    *(
        "\r\n",
        "\n--version",
        "\nfirst",
        "a\r--x",
        "\u2028--x\u2028",
        "\u202e--x",
        "\ufffe",
        "é" * 9,
    ),
    *("$(touch CANARY)", "`touch CANARY`", "; touch CANARY", "' \" \\", "*", "~", "%n%n", "${IFS}"),
    *("<script>alert(1)</script>", "nil", "NULL", "0x0", "-1e309", "\U0001f469\u200d\U0001f680"),
    *('{"type":"control_request"}', '@@[{"tool":"x"}]@@', "end}\n!id", "}\n{", "\n\n", "\ttab"),
)
LONG = "x" * 200_000
HOSTILE = (*FLAGS, *COMMANDS, *STRANGE, "", " ", LONG)
"""What a caller may not see, whatever it is called in the server's environment."""
SECRETS = (
    *("BRIDGE_TOKEN", "CANARY", "LD_PRELOAD_X", "LD_LIBRARY_PATH_X", "PYTHONPATH", "PYTHONSTARTUP"),
    *("PYTHONINSPECT", "NODE_OPTIONS", "BASH_ENV", "ENV", "GIT_SSH_COMMAND", "GIT_DIR", "CDPATH"),
    *("GIT_CONFIG_COUNT", "SSH_AUTH_SOCK", "SSH_ASKPASS", "PERL5OPT", "RUBYOPT", "PROMPT_COMMAND"),
    *(
        "JAVA_TOOL_OPTIONS",
        "DATABASE_URL",
        "REDIS_URL",
        "KUBECONFIG",
        "AGENT_NAME",
        "BASH_FUNC_x%%",
    ),
    *("NPM_TOKEN", "VAULT_TOKEN", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "EDITOR", "PAGER"),
)


# --- as pure code: every adapter, every prompt ---------------------------------------------------


@dataclass(frozen=True)
class Case:
    """An adapter as an operator may have it."""

    name: str
    args: tuple[str, ...] = ()
    force: bool = False
    settings: Json = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return " ".join((self.name, *self.args, *(["force"] * self.force), *self.settings))

    @property
    def kind(self) -> type[Adapter]:
        config = AgentConfig("/opt/agent", force=self.force, lines=self.lines)
        return load(self.name).variant_for(config)

    @property
    def lines(self) -> Lines:
        return Lines(terminal="agent_pty" in self.settings)

    def adapter(self, **options: Any) -> Adapter:
        seen, last = {"HOME": "/home"}, self.lines
        config = AgentConfig("/opt/agent", self.args, "m", self.force, seen, False, RUNNER, last)
        start = SessionStart("/workspace", SESSION, False, SessionOptions(**options), "/files")
        extra = {"dialect": load("claude-code")} if self.name == "replay" else {}
        return self.kind(config, start, **extra)

    def start(self, text: str, **options: Any) -> tuple[list[str], Json]:
        """The command line and the variables of the CLI that is given the prompt."""
        adapter = self.adapter(**options)
        launch = adapter.launch()
        adapter.prompt(Prompt("t", "c", Message("m", Role.USER, (TextPart(text),))))
        data = adapter.data_to_send()
        if launch.argv != RUNNER:
            assert adapter.launch() == launch
            return list(launch.argv), dict(launch.env)
        order = json.loads(data)["run"]
        return order["argv"], {**launch.env, **order["env"]}


GENERIC = (("{prompt}",), ("--message={prompt}",), ("run", "--", "{prompt}"))
CASES = (
    *(Case(name, force=force) for name in NAMES for force in (False, True)),
    *(Case("generic", args) for args in GENERIC),
)


def guarded(case: Case, argv: list[str], benign: list[str], at: int) -> bool:
    """Whether the element can be nothing but a value."""
    if case.args == ("{prompt}",):  # an operator's choice, whose beginning is guarded
        return not argv[at].startswith("-")
    flag = re.match(r"--[\w-]+=", benign[at])
    return "--" in argv[:at] or (flag is not None and argv[at].startswith(flag[0]))


def check(case: Case, texts: Iterable[str]) -> None:
    """Nothing of a start depends on the prompt, but for one argument that is guarded."""
    benign, environment = case.start(BENIGN)
    for text in texts:
        argv, env = case.start(text)
        assert (len(argv), env) == (len(benign), environment), text
        different = [at for at, one in enumerate(argv) if one != benign[at]]
        assert len(different) <= 1, text
        assert all(guarded(case, argv, benign, at) for at in different), (text, argv)
        assert all(text in argv[at] for at in different), text


@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_of_a_start_depends_on_the_prompt(case: Case) -> None:
    check(case, HOSTILE)


@pytest.mark.real
@pytest.mark.timeout(120)
@each(CLIS, "claude-code", "codex")
def test_nothing_of_a_start_depends_on_flags_that_a_cli_has(cli: Cli, tmp_path: Path) -> None:
    cases = [case for case in CASES if case.kind.binary == load(cli.name).binary]
    helps = {("--help",), *(case.kind.cli_info.help for case in cases)}
    env = {**os.environ, "HOME": str(tmp_path)}
    said = [
        subprocess.run([cli.path(), *args], env=env, capture_output=True, text=True, check=True)
        for args in helps
    ]
    text = "\n".join(one.stdout + one.stderr for one in said)
    flags = set(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", text))
    assert flags or cli.name == "claude-agent-acp"  # which has none
    for case in cases:
        check(case, [*flags, *(f"{flag}=x" for flag in flags), *(f"{flag} x" for flag in flags)])


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("name", ["model", "mode"])
def test_what_a_client_chooses_is_one_of_what_it_may_choose(case: Case, name: str) -> None:
    adapter = case.kind
    for value in (*HOSTILE, "opus\n", "opus --yolo", "Opus", "bypassPermissions", "yolo", "bypass"):
        if value in adapter.modes:
            continue
        with pytest.raises(InvalidParams, match=f"metadata.bridge.{name}"):
            read_options({"bridge": {name: value}}, adapter=adapter, models=("opus",))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_mode_that_a_client_may_choose_switches_permissions_off(case: Case) -> None:
    free = re.compile("yolo|bypass|dangerous|full|never|allow-all|auto$|--force|unsafe", re.I)
    for mode in case.kind.modes:
        argv, _ = case.start(BENIGN, mode=mode)
        own = [one for one in argv if mode in one]
        assert not free.search(mode) and not any(map(free.search, own)), (mode, argv)


# --- as processes: every adapter, and what it started --------------------------------------------

TOLD = (BENIGN, "--version", "/help", "!id @/etc/passwd", "\nfirst\x03\x04\x1b]52;c;eA==\x07")
PROGRAMS = (  # `replay` plays a recording, and starts no CLI
    *(Case(name) for name in NAMES if name != "replay"),
    Case("cursor", force=True),
    *(Case("generic", args) for args in GENERIC),
    Case("generic", settings={"agent_pty": True}),
    Case("generic", settings={"agent_pty": True, "agent_end_pattern": "multi> $"}),
    Case("generic", settings={"agent_pty": True, "agent_approval_pattern": "sure"}),
)
PLAIN = ("aider", "claude-code", "codex", "jsonl")
"""For these, nothing is a command where they are told their prompts."""
EACH_RUN = ("aider", "claude-code", "codex", "gemini", "generic", "jsonl")
"""One adapter of each kind. The soak tier has the others, which share their code."""
VISIBLE = {"PATH": os.environ["PATH"], "HOME": "", "LANG": "C.UTF-8"}


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The server's, in which there is what no CLI may see. Returns what it may."""
    for name in list(os.environ):
        monkeypatch.delenv(name)
    visible = {**VISIBLE, "HOME": str(tmp_path / "home")}
    for name, value in {**dict.fromkeys(SECRETS, "canary"), **visible}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "home").mkdir()
    return visible | guards({})


@pytest.fixture
def open_file() -> Iterator[int]:
    """A descriptor that children would inherit."""
    with socket.socket() as one:
        one.set_inheritable(True)
        yield one.fileno()


class Started:
    """A server whose CLI is the recorder."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.client = client
        self._folder = folder

    async def by(self, text: str, **members: Any) -> Json:
        """How the CLI was started for this prompt, and what it was told."""
        before = {one["pid"] for one in self.all}
        task = await self.client.send(text, **members)
        (record,) = (one for one in self.all if one["pid"] not in before)
        assert state(task) in ("completed", "failed")
        return record

    @property
    def all(self) -> list[Json]:
        return started(self._folder)


@asynccontextmanager
async def recorded(case: Case, folder: Path, **settings: Any) -> AsyncIterator[Started]:
    workspace = folder / "workspace"
    workspace.mkdir()
    program = install(workspace / "records")
    every: Json = {
        "agent_adapter": case.name,
        "agent_binary": str(program),
        "agent_args": case.args,
        "agent_force": case.force,
        "bridge_sandbox": "none",
        **case.settings,
        **settings,
    }
    async with serving(workspace, **every) as server:
        yield Started(server.client(), workspace / "records")


def without_ids(argv: list[str]) -> list[str]:
    return [re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", one) for one in argv]


def words(record: Json) -> Iterator[str]:
    """What the CLI may have been told its prompt in."""
    yield from record["argv"]
    yield record["stdin"]
    for line in record["stdin"].split("\n"):
        if line.startswith("{") and line.endswith("}"):
            yield from strings(json.loads(line))


def is_told(case: Case, record: Json, text: str) -> bool:
    """Whether the text arrived: as it is, but for what makes it plain and, where the CLI has a
    terminal or reads lines, for keys."""
    if case.name in ("aider", "generic") and (case.name == "aider" or case.settings):
        text = re.sub(KEYS, " ", text)
        lines = f"\n\n{text}\n" if case.name == "aider" else re.sub(r"\s+", " ", text)
        told: str = record["stdin"]
        return lines in (told if case.name == "aider" else re.sub(r"\s+", " ", told))
    guards = ("", UNSEEN, " ", f" {UNSEEN}", "--message=", f"--message={UNSEEN}")
    return any(f"{guard}{text}" in words(record) for guard in guards)


ON_STDIN = [one for one in PROGRAMS if not (one.args or one.force or "agent_pty" in one.settings)]
LARGE = ("a\x00b\x9b31m\x85\u2028x", LONG)  # more than an argument, or a line of a terminal, can be


@pytest.mark.parametrize("text", COMMANDS)
def test_what_is_taken_for_a_command_is_made_plain_and_all_else_is_left(text: str) -> None:
    shown = text.strip("\ufeff\x00 \n\u3000")
    assert plain(text) == (f"{UNSEEN}{text}" if shown.startswith("/") else text)
    assert plain(text, "/!") == (f"{UNSEEN}{text}" if shown.startswith(("/", "!")) else text)


@pytest.mark.parametrize(
    "parts",
    [
        [{"text": "read @/etc/passwd"}],
        [{"text": "a@b"}],
        [{"text": "x"}, {"raw": "QC9ldGMvcGFzc3dk", "mediaType": "text/plain", "filename": "f"}],
    ],
    ids=["text", "word", "file"],
)
async def test_who_attaches_what_the_last_block_names_is_given_one_that_names_nothing(
    parts: list[Json], tmp_path: Path
) -> None:
    async with recorded(Case("claude-agent-acp"), tmp_path) as server:
        await server.client.send(parts)
        await server.client.send("plain")
        records = [json.loads(one["stdin"].split("\n")[-2]) for one in server.all]
    blocks = {len(one["params"]["prompt"]): one["params"]["prompt"] for one in records}
    assert blocks[1] == [{"type": "text", "text": "plain"}]
    (told,) = (one for count, one in blocks.items() if count > 1)
    assert [one["type"] for one in told] == ["text"] * (len(parts) + 1)
    assert "@" in told[-2]["text"] and told[-1]["text"] == "(End of the message.)"


REFUSED = [
    *((Case("cursor", force=True), text) for text in ("a\x00b", LONG)),
    *((Case("generic", args), text) for args in GENERIC for text in ("a\x00b", LONG)),
    (Case("generic", settings={"agent_pty": True}), LONG),
]


@pytest.mark.parametrize(("case", "text"), REFUSED)
async def test_what_a_cli_cannot_be_told_is_refused_and_not_cut(
    case: Case, text: str, tmp_path: Path
) -> None:
    """The kernel takes no such argument, and no such line of a terminal."""
    async with recorded(case, tmp_path) as server:
        task = await server.client.send(text)
        assert (state(task), server.all) == ("failed", [])
        assert re.search("embedded null byte|Argument list too long|too long for a ter", said(task))


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=[pytest.mark.soak] * (case.name not in EACH_RUN))
        for case in PROGRAMS
    ],
)
async def test_a_cli_is_started_the_same_way_and_sees_the_same_whatever_it_is_told(
    case: Case, tmp_path: Path, environment: dict[str, str], open_file: int
) -> None:
    async with recorded(case, tmp_path) as server:
        told = (*TOLD, *(LARGE if case in ON_STDIN else ()))
        await asyncio.gather(
            *(server.client.send(text, messageId=str(number)) for number, text in enumerate(told))
        )
        records = {text: one for text in told for one in server.all if is_told(case, one, text)}
        assert (len(server.all), set(records)) == (len(told), set(told))
    first = records[BENIGN]
    own = case.start(BENIGN)[1]
    terminal = case.name == "aider" or "agent_pty" in case.settings
    assert first["environ"].keys() == {*environment, *own, MARKER}
    assert environment.items() <= first["environ"].items()
    marked = any(UNSEEN in one for one in words(records["/help"]))
    assert marked is (case.name not in PLAIN)
    for text, record in records.items():
        assert record["environ"].keys() == first["environ"].keys()
        assert "canary" not in record["environ"].values()
        assert (record["fds"], record["umask"]) == ([0, 1, 2], 0o077)
        assert (record["ignored"], record["blocked"]) == ([], [])
        assert record["cwd"] == str(tmp_path / "workspace")
        assert record["session"] != os.getsid(0)
        assert record["terminal"] is terminal
        same = [text not in one for one in record["argv"]]
        assert len(record["argv"]) == len(first["argv"]) and same.count(False) <= 1
        argv = without_ids(record["argv"])
        for at, benign in enumerate(without_ids(first["argv"])):
            assert not same[at] or argv[at] == benign


@pytest.mark.skipif(not landlock_abi(), reason="this kernel has no Landlock")
async def test_in_a_sandbox_it_gains_no_privileges_and_leaves_no_core(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    program = str(install(workspace / "records", tmp_path / "agent"))
    env: Json = {"AGENT_BINARY": program, "BRIDGE_SANDBOX": "landlock"}
    for name in ("jsonl", "generic", "aider"):
        async with bridge(workspace, AGENT_ADAPTER=name, **env) as server, ClientSession() as http:
            await Client(http, server.url).send(BENIGN)
    records = [one for one in started(workspace / "records") if one["argv"] != ["--version"]]
    assert len(records) == 3
    for record in records:
        assert (record["core"], record["no_new_privs"]) == ([0, 0], True)
        assert (record["fds"], record["ignored"], record["blocked"]) == ([0, 1, 2], [], [])
        assert (record["umask"], record["environ"].get("BRIDGE_SANDBOX")) == (0o077, None)


# --- what else a caller can say ------------------------------------------------------------------

WISHES = ("model", "mode", "cwd", "agent", "skill", "profile")
IGNORED = ("args", "env", "session", "sessionId", "resume", "force", "binary", "permissionMode")
VALUES = (
    "--dangerously-skip-permissions",
    "-c",
    "--",
    "x\n--yolo",
    "../..",
    "/etc",
    "$(id)",
    "a\0b",
)
SPOKEN = [Case(name) for name in ("claude-code", "codex", "acp", "aider")]
SPOKEN += [Case("cursor", force=True)]


@pytest.mark.parametrize("case", SPOKEN, ids=str)
async def test_a_wish_that_is_not_on_a_list_starts_nothing(case: Case, tmp_path: Path) -> None:
    async with recorded(case, tmp_path, agent_models=("opus",)) as server:
        for wish in WISHES:
            for value in VALUES:
                with pytest.raises(RpcError) as refusal:
                    await server.client.send(BENIGN, metadata={"bridge": {wish: value}})
                assert refusal.value.code == -32602, (wish, value)
        assert server.all == []


@pytest.mark.parametrize("case", SPOKEN, ids=str)
async def test_a_value_that_is_not_a_wish_changes_nothing(case: Case, tmp_path: Path) -> None:
    async with recorded(case, tmp_path) as server:
        benign = await server.by(BENIGN)
        metadata: Json = {"bridge": dict.fromkeys(IGNORED, VALUES[0]), **dict.fromkeys(IGNORED, 1)}
        metadata["bridge"]["env"] = {"LD_PRELOAD": "x"}
        odd = await server.by(BENIGN, metadata=metadata, contextId="--yolo", messageId="-c")
        assert without_ids(odd["argv"]) == without_ids(benign["argv"])
        assert odd["environ"].keys() == benign["environ"].keys()


# --- answers -------------------------------------------------------------------------------------

LINE_CLI = str(CHECKOUT / "tests/support/line_cli.py")
PRESSED = "\x03\x04\x1a\x1c\x1b]52:c:eA==\x07\x15\x16\x7f\x9b31m\x11\x13"


@pytest.mark.parametrize("pty", [False, True])
async def test_control_characters_of_an_answer_are_not_keys(tmp_path: Path, pty: bool) -> None:
    settings: Json = {"agent_pty": pty, "agent_approval_pattern": r"\[y/n\]\s*$"}
    program = ("-I", "-S", LINE_CLI, "--line")
    async with serving(tmp_path, agent_adapter="generic", agent_args=program, **settings) as server:
        client = server.client()
        asked = await client.send("ask Sure? [y/n]")
        task = await client.send(f"a{PRESSED}b", taskId=task_id(asked))
        assert state(task) == "completed", said(task)
        got = artifact_text(task).rpartition("got ")[2]
        assert re.fullmatch(r"'a +\]52:c:eA== +(\\x9b| )31m +b'\n", got)


@pytest.mark.parametrize("settings", [{}, {"agent_end_pattern": "^> $"}], ids=["once", "repl"])
async def test_control_characters_of_a_prompt_are_not_keys(tmp_path: Path, settings: Json) -> None:
    program = ("-I", "-S", LINE_CLI, *(["--repl"] if settings else []))
    terminal = {"agent_adapter": "generic", "agent_pty": True, **settings}
    async with serving(tmp_path, agent_args=program, **terminal) as server:
        task = await server.client().send(f"say a{PRESSED}b; say c")
        assert state(task) == "completed", said(task)
        assert re.fullmatch(r"a +\]52:c:eA== +31m +b\nc\n", artifact_text(task))
