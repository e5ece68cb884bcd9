"""Repositories with files that run a program. With the default settings, no real CLI runs such a
program. With `allow` the CLIs run them, which proves that the test would notice.

A start of a CLI takes seconds. Each run has some CLIs; the soak tier has the others."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bridge.adapter import Adapter, AgentConfig, Prompt, SessionStart
from bridge.server import registry
from bridge.task.message import Message, Role, TextPart
from bridge.workspace.project_config import found, guards
from tests.support.cli_row import Cli, Step
from tests.support.client import Json, context_id, said, state, task_id
from tests.support.poisoned import LEFT_ALONE, VECTORS, Marks, Vector, plant, write
from tests.support.real_claude_code import script, tool
from tests.support.real_clis import CLIS, Real, each, serving

BY_NAME = {vector.name: vector for vector in VECTORS}
# One of a repository's instructions, which are read to the model and not run.
INSTRUCTIONS = "The word of this house is heliotrope."


def adapter_of(cli: Cli) -> type[Adapter]:
    return registry.load(cli.name)


def runs_in(cli: Cli, *, alone: bool) -> list[Vector]:
    return [one for one in VECTORS if cli.name in one.runs_in and one.alone is alone]


# --- how it is provoked --------------------------------------------------------------------------


@asynccontextmanager
async def marks_in(folder: Path) -> AsyncIterator[Marks]:
    """Marks, with a server that leaves one for whatever it is asked."""
    marks = folder / "marks"
    marks.mkdir()

    async def asked(request: web.Request) -> web.Response:
        (marks / request.path.split("/")[1]).touch()
        return web.Response(status=404)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", asked)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        yield Marks(marks, f"http://{host}:{port}")
    finally:
        await runner.cleanup()


def steps(cli: Cli, chosen: Iterable[Vector], workspace: Path) -> list[Step]:
    """What the model does so that all that is `chosen` has an occasion."""
    if cli.name == "aider":  # which lints and tests what it has edited
        return ["new.py\n```\n<<<<<<< SEARCH\n=======\nx = 1\n>>>>>>> REPLACE\n```\n"]
    uses: list[Step] = []
    names = [one.name for one in chosen] if "Claude" in adapter_of(cli).title else []
    for name in names:
        if name.startswith(("claude-skill", "claude-command")):
            uses.append(tool("Skill", skill=name))
        if name.startswith("claude-agent"):
            inner = script("do it", tool("Bash", command="true", description="x"), "done")
            uses.append(tool("Agent", description="x", prompt=inner, subagent_type=name))
    return [*uses, cli.run("true")]


async def turn(real: Real, text: str) -> Json:
    """A turn in which all is allowed that is asked for."""
    client = real.client()
    task = await client.send(text)
    while state(task) == "input-required":
        yes = client.answer_parts(task, "yes")
        task = await client.send(yes, taskId=task_id(task), contextId=context_id(task))
    return task


async def provoke(
    cli: Cli, folder: Path, chosen: Iterable[Vector], **env: str
) -> tuple[set[str], Json, str]:
    """Work in a repository with all of them. The marks that were left, the task, and all that the
    model was sent."""
    chosen = list(chosen)
    workspace = folder / "workspace"
    workspace.mkdir()
    async with marks_in(folder) as marks:
        plant(workspace, chosen, marks)
        (workspace / "AGENTS.md").write_text(INSTRUCTIONS)
        (workspace / "CLAUDE.md").write_text(INSTRUCTIONS)
        # A sandbox would keep canaries from leaving their marks.
        async with serving(cli, folder, BRIDGE_SANDBOX="none", **env) as server:
            async with asyncio.timeout(150):
                task = await turn(server, script("go", *steps(cli, chosen, workspace), "Done."))
            sent = json.dumps(server.model.requests)
        return marks.left, task, sent


def can_be_shut_out(cli: Cli, folder: Path) -> list[Vector]:
    """The vectors that the CLI has a switch for: under `deny`, a task is refused for the others."""
    kept = []
    for vector in VECTORS:
        workspace = folder / vector.name
        (workspace / ".git").mkdir(parents=True)
        write(workspace, [vector], Marks(folder))
        if not found(str(workspace), adapter_of(cli).always_loaded):
            kept.append(vector)
    return kept


# --- real CLIs -----------------------------------------------------------------------------------


@pytest.mark.real
@pytest.mark.timeout(180)
@each(CLIS, "claude-code", "codex")
async def test_nothing_of_a_repository_runs(cli: Cli, tmp_path: Path) -> None:
    chosen = can_be_shut_out(cli, tmp_path / "each")
    marks, task, sent = await provoke(cli, tmp_path, chosen)
    assert marks == set()
    assert state(task) == "completed", said(task)
    untold = ("codex", "gemini", "aider")
    if cli.name not in untold:  # which read no instructions in a folder that they do not trust
        assert INSTRUCTIONS in sent


@pytest.mark.real
@each([one for one in CLIS if adapter_of(one).always_loaded], "copilot")
async def test_a_repository_with_what_cannot_be_shut_out_is_refused(
    cli: Cli, tmp_path: Path
) -> None:
    kept = can_be_shut_out(cli, tmp_path / "each")
    chosen = [one for one in VECTORS if one not in kept]
    assert chosen
    marks, task, sent = await provoke(cli, tmp_path, chosen)
    assert (marks, state(task), sent) == (set(), "failed", "[]")
    assert task["metadata"]["bridge"]["reason"] == "project-config"
    for file in adapter_of(cli).always_loaded:
        if (tmp_path / "workspace" / file).is_file():
            assert file in said(task)


@pytest.mark.real
@pytest.mark.timeout(180)
@each([one for one in CLIS if runs_in(one, alone=False)], "claude-code")
async def test_it_does_where_it_is_allowed(cli: Cli, tmp_path: Path) -> None:
    chosen = runs_in(cli, alone=False)
    marks, task, _ = await provoke(cli, tmp_path, chosen, AGENT_PROJECT_CONFIG="allow")
    assert marks == {one.name for one in chosen}, said(task)


PAIRS = [(cli, one) for cli in CLIS for one in runs_in(cli, alone=True)]


@pytest.mark.real
@pytest.mark.soak
@pytest.mark.timeout(180)
@pytest.mark.parametrize(("cli", "vector"), PAIRS, ids=lambda one: one.name)
async def test_it_takes_the_model_away_where_it_is_allowed(
    cli: Cli, vector: Vector, tmp_path: Path
) -> None:
    marks, _, _ = await provoke(cli, tmp_path, [vector], AGENT_PROJECT_CONFIG="allow")
    assert marks == {vector.name}


@pytest.mark.real
@pytest.mark.timeout(180)
async def test_codex_does_not_trust_what_it_once_trusted(tmp_path: Path) -> None:
    """The root of the repository is above the workspace, and the operator's file trusts it."""
    (cli,) = [one for one in CLIS if one.name == "codex"]
    workspace = tmp_path / "workspace"

    def configure(url: str, home: Path) -> None:
        cli.configure(url, home)
        with (home / ".codex/config.toml").open("a") as file:
            file.write(f'\n[projects."{workspace}"]\ntrust_level = "trusted"\n')

    trusting = replace(cli, configure=configure)
    inner = workspace / "inner"
    chosen = [BY_NAME["codex-mcp"], Vector("nothing", {"inner/x": ""})]
    marks, task, _ = await provoke(trusting, tmp_path, chosen, AGENT_REPO_PATH=str(inner))
    assert (marks, state(task)) == (set(), "completed")


@pytest.mark.real
@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_what_is_of_the_operators_git_is_left_alone(tmp_path: Path) -> None:
    """Nobody clones it, and hooks and filters are relied on. Should a CLI stop to run them, the
    better; then this is to go."""
    (cli,) = [one for one in CLIS if one.name == "aider"]
    marks, task, _ = await provoke(cli, tmp_path, LEFT_ALONE)
    assert marks == {one.name for one in LEFT_ALONE}, said(task)


# --- what is declared ----------------------------------------------------------------------------


@pytest.mark.parametrize("cli", CLIS, ids=lambda cli: cli.name)
def test_what_a_cli_runs_is_declared(cli: Cli, tmp_path: Path) -> None:
    missing = []
    for vector in (*runs_in(cli, alone=False), *runs_in(cli, alone=True)):
        workspace = tmp_path / vector.name
        (workspace / ".git").mkdir(parents=True)
        write(workspace, [vector], Marks(tmp_path))
        if not vector.git and not found(str(workspace), adapter_of(cli).project_files):
            missing.append(vector.name)
    assert missing == []


@pytest.mark.parametrize("name", registry.names())
def test_what_cannot_be_shut_out_is_declared(name: str) -> None:
    adapter = registry.load(name)
    assert set(adapter.always_loaded) <= set(adapter.project_files)


# --- what keeps a CLI from it --------------------------------------------------------------------

UNTRUSTED = (
    'projects={"/work/it\'s \\"x\\""={trust_level="untrusted"},"/work"={trust_level="untrusted"},'
    '"/"={trust_level="untrusted"}}'
)
TEXTS = '{"instructions":["/work/it\'s \\"x\\"/AGENTS.md","/work/it\'s \\"x\\"/CLAUDE.md"]}'
READS = {"CLAUDE_CODE_ADDITIONAL_DIRECTORIES_CLAUDE_MD": "1"}
OF_OPENCODE = {"OPENCODE_DISABLE_PROJECT_CONFIG": "1", "OPENCODE_CONFIG_CONTENT": TEXTS}
OF_KILO = {"KILO_DISABLE_PROJECT_CONFIG": "1", "KILO_CONFIG_CONTENT": TEXTS}
# The arguments and variables that a CLI is started with, but for those of `allow`.
SWITCHES: dict[str, tuple[list[str], dict[str, str]]] = {
    "claude-code": (["--setting-sources=user", "--strict-mcp-config", "--add-dir=."], READS),
    "codex": (["-c", UNTRUSTED], {}),
    "claude-agent-acp": ([], READS),
    "gemini": ([], {"GEMINI_CLI_TRUST_WORKSPACE": "false"}),
    "opencode": ([], OF_OPENCODE),
    "kilo": ([], OF_KILO),
    "cline": ([], {"BUN_OPTIONS": "--config=/dev/null --env-file=/dev/null"}),
    "aider": ([], {"PYTHON_DOTENV_DISABLED": "1"}),
}


def launched(name: str, **config: Any) -> tuple[list[str], dict[str, str]]:
    """What the CLI is started with, be it by the runner."""
    start = SessionStart('/work/it\'s "x"', "s-1")
    adapter = registry.load(name)(AgentConfig("/opt/agent", runner=("runner",), **config), start)
    launch = adapter.launch()
    if launch.argv != ("runner",):
        return list(launch.argv), dict(launch.env)
    adapter.prompt(Prompt("t", "c", Message("m", Role.USER, (TextPart("x"),))))
    order = json.loads(adapter.data_to_send().splitlines()[0])["run"]
    return order["argv"], {**launch.env, **order["env"]}


@pytest.mark.parametrize("cli", CLIS, ids=lambda cli: cli.name)
def test_a_cli_is_kept_from_it_by_its_own_switches(cli: Cli) -> None:
    argv, env = launched(cli.name)
    open_argv, open_env = launched(cli.name, project_config=True)
    more = [argument for argument in argv if argument not in open_argv]
    assert [one for one in argv if one in open_argv] == open_argv
    assert (more, dict(env.items() - open_env.items())) == SWITCHES.get(cli.name, ([], {}))
    assert open_env.items() <= env.items()


def test_the_operator_does_not_open_it_by_a_variable() -> None:
    own = {"GEMINI_CLI_TRUST_WORKSPACE": "true", "OPENCODE_DISABLE_PROJECT_CONFIG": "0"}
    assert launched("gemini", env=own)[1]["GEMINI_CLI_TRUST_WORKSPACE"] == "false"
    assert launched("opencode", env=own)[1]["OPENCODE_DISABLE_PROJECT_CONFIG"] == "1"


def test_the_configuration_in_the_operators_variable_stays() -> None:
    assert "KILO_CONFIG_CONTENT" not in launched("kilo", env={"KILO_CONFIG_CONTENT": "{}"})[1]


# --- finding it ----------------------------------------------------------------------------------


def test_files_are_found_up_to_the_root_of_the_repository(tmp_path: Path) -> None:
    inner = tmp_path / "repository/a/b"
    inner.mkdir(parents=True)
    (tmp_path / "repository/.git").mkdir()
    for folder in (tmp_path, tmp_path / "repository", tmp_path / "repository/a", inner):
        (folder / ".mcp.json").touch()
    assert found(str(inner), [".mcp.json"]) == ["../../.mcp.json", "../.mcp.json", ".mcp.json"]


def test_outside_of_a_repository_nothing_is_looked_for_above(tmp_path: Path) -> None:
    if any((folder / ".git").exists() for folder in (tmp_path, *tmp_path.parents)):
        pytest.skip("temporary folders are in a repository here")
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / ".mcp.json").touch()
    assert found(str(inner), [".mcp.json"]) == []


def test_patterns_find_files_and_folders_and_links(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".x/hooks/deep").mkdir(parents=True)
    for name in (".x/hooks/b.json", ".x/hooks/a.json", ".x/hooks/c.txt", ".x/hooks/deep/d.md"):
        (tmp_path / name).touch()
    (tmp_path / ".env").symlink_to("nowhere")
    patterns = (".x/hooks/*.json", ".x/**/*.md", ".env", "absent", "absent/*")
    wanted = [".env", ".x/hooks/a.json", ".x/hooks/b.json", ".x/hooks/deep/d.md"]
    assert found(str(tmp_path), patterns) == wanted
    assert found(str(tmp_path), ()) == []


# --- git -----------------------------------------------------------------------------------------


def of_git(cwd: Path, **env: str) -> subprocess.CompletedProcess[bytes]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(cwd), **env}
    return subprocess.run(
        ("git", "status"), cwd=cwd, env=environment, check=False, capture_output=True, timeout=20
    )


def test_git_does_not_run_what_watches_files(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    marks = Marks(tmp_path / "marks")
    marks.folder.mkdir()
    plant(workspace, [BY_NAME["git-fsmonitor"]], marks)
    assert of_git(workspace, **guards({})).returncode == 0
    assert marks.left == set()
    of_git(workspace)
    assert marks.left == {"git-fsmonitor"}


def test_git_does_not_take_a_folder_of_the_repository_for_one(tmp_path: Path) -> None:
    """A bare one can be cloned with its configuration, as an ordinary folder."""
    subprocess.run(("git", "init", "-q", "--bare", str(tmp_path)), check=True, timeout=20)
    assert of_git(tmp_path, **guards({})).returncode == 128
    assert b"safe.bareRepository" in of_git(tmp_path, **guards({})).stderr


def test_what_the_operator_tells_git_stays() -> None:
    own = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "a.b", "GIT_CONFIG_VALUE_0": "c"}
    both = {**own, **guards(own)}
    assert both.items() >= {"GIT_CONFIG_KEY_0": "a.b", "GIT_CONFIG_COUNT": "3"}.items()
    assert [both[f"GIT_CONFIG_KEY_{n}"] for n in (1, 2)] == [
        "core.fsmonitor",
        "safe.bareRepository",
    ]
