"""What an agent in a sandbox can change of its CLI's settings: nothing that the CLI executes or
trusts in its next run, by the bridge or by the operator. The real CLIs, on scripted models.

Each test starts a real CLI, which takes seconds: some CLIs in each run, the others in the soak
tier."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.adapter import Home
from bridge.sandbox.homes import private_homes
from bridge.sandbox.landlock import abi as landlock_abi
from bridge.server import registry
from tests.support.cli_row import KEY, Cli
from tests.support.client import artifact_text, context_id, said, state
from tests.support.real_claude_code import CLAUDE, answer, ask, script
from tests.support.real_clis import CLIS, Real, each, gone, serving

needs_landlock = pytest.mark.skipif(
    landlock_abi() < 3, reason="this kernel has no Landlock of ABI 3"
)
pytestmark = [needs_landlock, pytest.mark.timeout(180)]

PLANTED = "planted by the agent"
CLAUDE_FILES = (
    *(".claude.json", ".claude/settings.json", ".claude/settings.local.json", ".claude/CLAUDE.md"),
    *(".claude/agents/x.md", ".claude/commands/x.md", ".claude/skills/x/SKILL.md"),
    *(".claude/plugins/installed_plugins.json", ".claude/hooks/x.sh", ".claude/rules/x.md"),
    *(".claude/shell-snapshots/snapshot-bash-1.sh", ".claude/session-env/1/hook.sh"),
)
CODEX_FILES = (
    *(".codex/config.toml", ".codex/AGENTS.md", ".codex/rules/default.rules"),
    *(".codex/hooks.json", ".codex/prompts/x.md", ".codex/skills/x/SKILL.md"),
    *(".codex/plugins/cache/x", ".codex/auth.json", ".codex/shell_snapshots/x.sh"),
)
OPENCODE_FILES = (
    *(".config/{0}/{0}.json", ".config/{0}/plugin/x.js", ".config/{0}/AGENTS.md"),
    *(".config/{0}/agent/x.md", ".config/{0}/package.json", ".config/{0}/node_modules/x/i.js"),
    *(".local/share/{0}/auth.json", ".local/share/{0}/bin/rg", ".cache/{0}/bin/rg"),
    ".local/share/{0}/snapshot/x/config",
)
TRUSTED: dict[str, tuple[str, ...]] = {
    "claude-code": CLAUDE_FILES,
    "claude-agent-acp": CLAUDE_FILES,
    "codex": CODEX_FILES,
    "codex-acp": CODEX_FILES,
    "cline": (
        *(".cline/data/settings/providers.json", ".cline/data/settings/cline_mcp_settings.json"),
        *(".cline/data/settings/global-settings.json", ".cline/data/secrets.json"),
        *(".cline/hooks/x.sh", ".cline/plugins/x/index.js", ".cline/skills/x/SKILL.md"),
        *(".cline/rules/x.md", ".cline/workflows/x.md", ".cline/agents/x.yaml"),
    ),
    "droid": (
        *(".factory/settings.json", ".factory/mcp.json", ".factory/config.json"),
        *(".factory/hooks/hooks.json", ".factory/droids/x.md", ".factory/commands/x.md"),
        *(".factory/skills/x/SKILL.md", ".factory/AGENTS.md", ".factory/auth.v2.file"),
        *(".factory/bin/rg", ".factory/cache/certs/factory-cli-certs.pem"),
        *(".factory/certs/system-certs-cache.json", ".factory/plugins/x/plugin.json"),
    ),
    "opencode": tuple(path.format("opencode") for path in OPENCODE_FILES),
    "kilo": tuple(path.format("kilo") for path in OPENCODE_FILES),
    "copilot": (
        *(".copilot/config.json", ".copilot/settings.json", ".copilot/mcp-config.json"),
        *(".copilot/hooks/x.json", ".copilot/agents/x.agent.md", ".copilot/skills/x/SKILL.md"),
        *(
            ".copilot/installed-plugins/x/plugin.json",
            ".cache/copilot/pkg/linux-x64/9.9.9/index.js",
        ),
    ),
    "gemini": (
        *(".gemini/settings.json", ".gemini/.env", ".gemini/GEMINI.md", ".gemini/oauth_creds.json"),
        *(".gemini/extensions/x/gemini-extension.json", ".gemini/commands/x.toml"),
        *(".gemini/trustedFolders.json", ".gemini/policies/auto-saved.toml"),
    ),
    "qwen": (
        *(".qwen/settings.json", ".qwen/.env", ".qwen/QWEN.md", ".qwen/oauth_creds.json"),
        *(".qwen/extensions/x/qwen-extension.json", ".qwen/commands/x.toml"),
        *(".qwen/trustedFolders.json", ".qwen/skills/x/SKILL.md", ".qwen/output-language.md"),
    ),
    "kimi": (
        *(".kimi-code/config.toml", ".kimi-code/mcp.json", ".kimi-code/.env"),
        *(".kimi-code/skills/x/SKILL.md", ".kimi-code/plugins/x/plugin.json"),
    ),
    "grok": (
        *(".grok/config.toml", ".grok/auth.json", ".grok/hooks/x.json", ".grok/bin/grok"),
        *(".grok/skills/x/SKILL.md", ".grok/agents/x.md", ".grok/installed-plugins/x/plugin.json"),
    ),
    "vibe": (".vibe/config.toml", ".vibe/.env", ".vibe/trusted_folders.toml", ".vibe/tools/x.py"),
    "hermes": (
        *(".hermes/config.yaml", ".hermes/.env", ".hermes/SOUL.md", ".hermes/hooks/x/handler.py"),
        *(".hermes/plugins/x/__init__.py", ".hermes/skills/x/SKILL.md", ".hermes/cron/jobs.json"),
    ),
    "openhands": (
        *(".openhands/agent_settings.json", ".openhands/mcp.json", ".openhands/hooks.json"),
        *(".openhands/skills/x.md", ".openhands/profiles/x.json", ".openhands/agents/x.md"),
    ),
    "deepagents": (
        *(".deepagents/config.toml", ".deepagents/hooks.json", ".deepagents/.mcp.json"),
        *(".deepagents/agent/AGENTS.md", ".deepagents/skills/x/SKILL.md"),
    ),
    "aider": (".aider/oauth-keys.env", ".aider.conf.yml", ".env"),
}
ANYWHERE = (
    *(".bashrc", ".profile", ".bash_profile", ".zshrc", ".config/fish/config.fish"),
    *(".npmrc", ".gitconfig", ".config/git/config", ".config/pip/pip.conf", ".node_modules/x.js"),
    *(".local/bin/git", ".local/lib/python3.11/site-packages/usercustomize.py"),
    *(".config/autostart/x.desktop", ".config/systemd/user/x.service", ".ssh/authorized_keys"),
)


def plant(paths: list[str]) -> str:
    """A command that tries to write, and to replace, each file."""
    words = " ".join(paths)
    return (
        f'for f in {words}; do mkdir -p "${{f%/*}}"; echo {shlex.quote(PLANTED)} >> "$f"; '
        f'echo {shlex.quote(PLANTED)} > "$TMPDIR/x"; cp "$TMPDIR/x" "$f.x"; mv -f "$f.x" "$f"; '
        "done 2> /dev/null; true"
    )


def in_private(home: Home, paths: tuple[str, ...]) -> dict[str, str]:
    """Of the paths below the operator's folder, those in the agent's own: as a shell finds them."""
    (made,) = private_homes((home,), {"HOME": "~"}, Path("/"))
    below = made.source.removeprefix("~/").removesuffix("/") + "/"
    own = f"${home.variable}/{home.inner}".rstrip("/")
    parts = [path.removeprefix(below) for path in paths if path.startswith(below)]
    state = tuple(home.state)
    return {part: f"{own}/{part}" for part in parts if not part.startswith(state)}


async def run(real: Real, command: str) -> None:
    task = await ask(real.client(), script("run", real.run_outside(command), "the end"))
    while state(task) == "input-required":
        task = await answer(real.client(), task, "yes")
    assert state(task) == "completed", said(task)


def planted(folder: Path, paths: tuple[str, ...]) -> list[str]:
    def has(path: Path) -> bool:
        return path.is_file() and PLANTED in path.read_text(errors="replace")

    return [path for path in paths if has(folder / path)]


HOOK = {"hooks": {"SessionStart": [{"hooks": [{"type": "command", "command": "touch ~/owned"}]}]}}


@pytest.mark.real
async def test_a_hook_that_an_agent_plants_is_not_run_outside(tmp_path: Path) -> None:
    """The operator's own `claude` runs in the same HOME afterwards, outside of any sandbox."""
    (cli,) = (one for one in CLIS if one.name == "claude-code")
    async with serving(cli, tmp_path) as real:
        hook = shlex.quote(json.dumps(HOOK))
        await run(
            real,
            f"mkdir -p ~/.claude; echo {hook} > ~/.claude/settings.json; "
            f'echo {hook} > "$CLAUDE_CONFIG_DIR/settings.json"; true',
        )
        env = {
            "HOME": str(real.home),
            "PATH": os.environ["PATH"],
            "IS_SANDBOX": "1",
            **cli.environment(real.model.url),
        }
        words = (str(CLAUDE), "-p", script("x", "the answer"))
        outside = await asyncio.create_subprocess_exec(
            *words, env=env, cwd=real.workspace, stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(60):
            out, _ = await outside.communicate()
        assert b"the answer" in out
        assert not (real.home / "owned").exists()
        assert not (real.home / ".claude/settings.json").exists()


# --- what must go on ----------------------------------------------------------------------------

BEGAN_OUTSIDE = [cli for cli in CLIS if any(one.sessions for one in registry.load(cli.name).homes)]


@pytest.mark.real
@each(BEGAN_OUTSIDE, "codex")
async def test_a_conversation_of_the_operators_folder_goes_on(cli: Cli, tmp_path: Path) -> None:
    """As one does that began before agents had folders of their own."""
    env = {"BRIDGE_STATE_DIR": str(tmp_path / "state")}
    async with serving(cli, tmp_path, **env, BRIDGE_SANDBOX="none") as real:
        first = await real.client().send(script("to be remembered", "the old answer"))
        assert state(first) == "completed", said(first)
        own = set(real.processes())
        await real.server.stop()
        await gone(own)
    async with serving(cli, tmp_path, **env) as real:
        go_on = script("go on", "the new answer")
        task = await real.client().send(go_on, contextId=context_id(first))
        assert (state(task), artifact_text(task).strip()) == ("completed", "the new answer")
        assert "the old answer" in json.dumps(real.requests("go on")[-1])


STORED = "a-key-that-was-stored"
OAUTH = {
    "accessToken": STORED,
    "refreshToken": "refresh",
    "expiresAt": 32503680000000,
    "scopes": ["user:inference", "user:profile"],
    "subscriptionType": "max",
}
API_KEY = {"type": "api", "key": STORED}


def of_cline(configured: str) -> str:
    """Its ACP mode takes the key of a sign-in with Cline for any provider (3.0.65)."""
    config = json.loads(configured)
    config["providers"]["cline"] = {
        **config["providers"]["openai-compatible"],
        "settings": {"provider": "cline", "apiKey": STORED, "model": "scripted"},
    }
    return json.dumps(config)


# Where a CLI stores its sign-in, and what the file is then, made from what it is without.
LOGINS: dict[str, tuple[str, Callable[[str], str]]] = {
    **dict.fromkeys(
        ("claude-code", "claude-agent-acp"),
        (".claude/.credentials.json", lambda _: json.dumps({"claudeAiOauth": OAUTH})),
    ),
    **dict.fromkeys(
        ("codex", "codex-acp"),
        (".codex/auth.json", lambda _: json.dumps({"OPENAI_API_KEY": STORED})),
    ),
    "opencode": (".local/share/opencode/auth.json", lambda _: json.dumps({"fake": API_KEY})),
    "kilo": (".local/share/kilo/auth.json", lambda _: json.dumps({"fake": API_KEY})),
    "qwen": (".qwen/.env", lambda _: f"OPENAI_API_KEY={STORED}\n"),
    "gemini": (".gemini/.env", lambda _: f"GEMINI_API_KEY={STORED}\n"),
    "cline": (".cline/data/settings/providers.json", of_cline),
    "droid": (".factory/settings.json", lambda configured: configured.replace(KEY, STORED)),
}


def signed_in(cli: Cli) -> Cli:
    """The CLI with a stored key instead of one in its environment or settings."""
    path, login = LOGINS[cli.name]
    kept = ("ANTHROPIC_BASE_URL", "OPENAI_BASE_URL", "OPENAI_MODEL")

    def environment(url: str) -> dict[str, str]:
        every = cli.environment(url)
        return {name: one for name, one in every.items() if one != KEY or name in kept}

    def configure(url: str, home: Path) -> None:
        cli.configure(url, home)
        file = home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(login(file.read_text() if file.exists() else ""))
        for one in home.glob(".config/*/*.json"):
            one.write_text(one.read_text().replace(f', "apiKey": "{KEY}"', ""))
        for one in home.glob(".codex/config.toml"):
            auth = "requires_openai_auth = true"
            one.write_text(one.read_text().replace('env_key = "OPENAI_API_KEY"', auth))

    return replace(cli, environment=environment, configure=configure)


@pytest.mark.real
@each(CLIS, "claude-code", "codex")
async def test_nothing_that_a_cli_executes_or_trusts_can_be_written(
    cli: Cli, tmp_path: Path
) -> None:
    paths = (*TRUSTED[cli.name], *ANYWHERE)
    homes = registry.load(cli.name).homes
    own = [(home, part, path) for home in homes for part, path in in_private(home, paths).items()]
    env = {"BRIDGE_STATE_DIR": str(tmp_path / "state")}
    async with serving(cli, tmp_path, **env) as real:
        before = {path.name for path in real.home.iterdir()}
        home_files = [f"~/{path}" for path in paths]
        await run(real, f"echo {PLANTED} > witness.txt; {plant(home_files)}")
        await run(real, plant([path for _, _, path in own]))
        assert (real.workspace / "witness.txt").read_text() == f"{PLANTED}\n"
        assert planted(real.home, paths) == []
        for home, part, _ in own:
            private = tmp_path / "state/homes" / cli.name / home.variable / home.inner
            assert planted(private, (part,)) == []
        new = {path.name for path in real.home.iterdir()} - before
        assert new <= {".local"}  # aider's, for its conversations


@pytest.mark.real
@each([cli for cli in CLIS if cli.name in LOGINS], "claude-code", "codex")
async def test_the_operators_login_is_found(cli: Cli, tmp_path: Path) -> None:
    async with serving(signed_in(cli), tmp_path) as real:
        task = await real.client().send(script("x", "the answer"))
        assert (state(task), artifact_text(task).strip()) == ("completed", "the answer"), said(task)
        assert STORED in json.dumps(real.model.headers[-1])
