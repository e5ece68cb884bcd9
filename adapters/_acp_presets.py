"""The agents that speak ACP and are known by name: what is particular about each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from bridge.adapter import AgentConfig, Home, SessionStart

from . import _homes as homes
from . import _project_files as files


@dataclass(frozen=True, slots=True)
class Preset:
    """What is particular about one agent. Everything else it says itself, in `initialize`.

    `arguments` make the CLI speak ACP, `variables` are set for it unless the operator sets them,
    `model_flag` chooses its model where ACP cannot. `install`, `login`: see CliInfo; `environment`,
    `modes`, `resumes_next_minute`, `warms`, `writable_paths`, `homes`, `uses_any_port`,
    `project_files`, `always_loaded`: see Adapter.
    `logins`: ways to `authenticate`, each with the variable that must be set for it ("": none).
    """

    name: str
    title: str
    binary: str
    arguments: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    modes: tuple[str, ...] = ()
    model_flag: str = ""
    images: bool = False
    """It takes images in its protocol; else they are files that the prompt names."""
    install: str = ""
    login: str = ""
    verified: bool = True
    writable_paths: tuple[str, ...] = ()
    homes: tuple[Home, ...] = ()
    reads: tuple[str, ...] = ()
    uses_any_port: bool = False
    project_files: tuple[str, ...] = ()
    always_loaded: tuple[str, ...] = ()
    shut: Mapping[str, str] = field(default_factory=dict)
    """Variables that keep it from project_files, whatever the operator has set."""
    shut_options: Mapping[str, Any] = field(default_factory=dict)
    """`_meta` of a session that does."""
    configured_by: str = ""
    """The variable with a configuration of its own, which names the instructions of the workspace:
    with `shut` it does not read them by itself."""
    logins: tuple[tuple[str, str], ...] = ()
    login_first: bool = False
    """authenticate comes before session/new, not only after -32000."""
    list_first: bool = False
    """A conversation that it does not know is resumed as an empty one."""
    late_history: bool = False
    """session/load goes on with the history after its answer."""
    resumes_next_minute: bool = False
    warms: Literal["greeted", "started"] = "started"
    errors_are_words: bool = False
    """Errors of the model end the turn as if it had gone well, with `Error: …` as its last words
    and no tokens counted."""
    silent_failures: bool = False
    """Errors of the model end the turn as if it had gone well, without a word."""
    reads_along: bool = False
    """`@path` in the last of a prompt's texts, a file's among them, attaches that file to it, be it
    outside of the workspace, and without asking. A block that comes last has no `@`."""
    ignores_links: bool = False
    """It leaves out the links of a prompt: files are named in a text."""
    lasting: tuple[str, ...] = ()
    """Ids of options that write rules for other sessions, too: they are not offered."""
    asks: str = ""
    """The mode in which it asks before it changes anything, where its own default is another one:
    a session begins in it, unless the client chooses a mode."""

    def closing(self, config: AgentConfig, start: SessionStart) -> dict[str, str]:
        """Variables for the CLI that keep it from what the repository brings along."""
        if config.project_config:
            return {}
        closing = dict(self.shut)
        if self.configured_by and self.configured_by not in config.env:
            texts = [f"{start.cwd}/{name}" for name in ("AGENTS.md", "CLAUDE.md")]
            closing[self.configured_by] = orjson.dumps({"instructions": texts}).decode()
        return closing


_OPENAI = ("OPENAI_*",)
_NODE_CHILD = {"NO_COLOR": "1"}

# CLAUDE.md belongs to the settings of the project, but also to any further directory.
CLAUDE_OPTIONS = {
    "settingSources": ["user"],
    "strictMcpConfig": True,
    "additionalDirectories": ["."],
}

PRESETS = (
    Preset(
        "gemini",
        "Gemini CLI",
        "gemini",
        ("--acp",),
        ("GEMINI_*", "GOOGLE_*"),
        # Without it, SIGTERM reaches a parent that ignores it.
        {"GEMINI_CLI_NO_RELAUNCH": "true", **_NODE_CHILD},
        ("default", "autoEdit", "plan"),  # not yolo
        "--model",
        images=True,
        logins=(("GEMINI_API_KEY", "gemini-api-key"),),
        # Its files are named by the minute: it does not find, and deletes, one of this minute.
        resumes_next_minute=True,
        late_history=True,
        silent_failures=True,  # a broken stream ends as end_turn
        project_files=files.GEMINI,
        shut={"GEMINI_CLI_TRUST_WORKSPACE": "false"},  # it does not read GEMINI.md either
        writable_paths=("/dev/pts",),
        homes=(homes.GEMINI,),
        install="npm install -g @google/gemini-cli",
        login="run `gemini` once and log in, or set GEMINI_API_KEY",
    ),
    Preset(
        "opencode",
        "opencode",
        "opencode",
        ("acp",),
        ("OPENCODE_*", "ANTHROPIC_*", *_OPENAI),
        {"OPENCODE_DISABLE_AUTOUPDATE": "1"},
        ("build", "plan"),
        images=True,
        warms="greeted",
        project_files=files.OPENCODE,
        # A second reader of the same files, for plugins alone, does not ask for the variable.
        always_loaded=files.OPENCODE_PLUGINS,
        shut={"OPENCODE_DISABLE_PROJECT_CONFIG": "1"},
        configured_by="OPENCODE_CONFIG_CONTENT",
        homes=homes.OPENCODE,
        reads=("${XDG_DATA_HOME:-~/.local/share}/opencode",),
        uses_any_port=True,
        install="npm install -g opencode-ai",
        login="opencode auth login",
    ),
    Preset(
        "copilot",
        "GitHub Copilot CLI",
        "copilot",
        ("--acp",),
        ("COPILOT_*", "GH_TOKEN", "GITHUB_TOKEN"),
        # Its modes are URIs, and one of them allows everything: none is offered.
        model_flag="--model",
        images=True,
        errors_are_words=True,
        warms="greeted",
        project_files=files.COPILOT,
        always_loaded=files.COPILOT,
        homes=(homes.COPILOT, homes.COPILOT_CACHE),
        reads=("${XDG_CONFIG_HOME:-~/.config}/gh",),  # it takes the login of gh
        install="npm install -g @github/copilot",
        login="run `copilot` once and type /login, or set GH_TOKEN",
    ),
    Preset(
        "qwen",
        "Qwen Code",
        "qwen",
        ("--acp",),
        (*_OPENAI, "QWEN_*", "DASHSCOPE_*"),
        {"QWEN_CODE_NO_RELAUNCH": "true", **_NODE_CHILD},
        ("plan", "default", "auto-edit"),  # not yolo
        "--model",
        logins=(("OPENAI_API_KEY", "openai"),),
        list_first=True,  # an unknown id is loaded "successfully"
        lasting=("proceed_always_project", "proceed_always_user"),
        asks="default",  # from 0.24 on, it begins in `auto`: a model decides what is safe
        # Its trust in folders is a file of the user's; `--bare` takes the user's own rules away.
        project_files=files.QWEN,
        always_loaded=files.QWEN,
        writable_paths=("/dev/pts",),
        homes=(homes.QWEN,),
        install="npm install -g @qwen-code/qwen-code",
        login="run `qwen` once and log in, or set OPENAI_API_KEY and OPENAI_BASE_URL",
    ),
    Preset(
        "kilo",
        "Kilo Code",
        "kilo",
        ("acp",),
        ("KILO_*", "OPENCODE_*", "ANTHROPIC_*", *_OPENAI),
        images=True,  # a file outside of the workspace costs a permission
        warms="greeted",
        project_files=files.KILO,
        always_loaded=files.KILO_SERVERS,
        shut={"KILO_DISABLE_PROJECT_CONFIG": "1"},
        configured_by="KILO_CONFIG_CONTENT",
        homes=homes.KILO,
        reads=("${XDG_DATA_HOME:-~/.local/share}/kilo",),
        uses_any_port=True,
        install="npm install -g @kilocode/cli",
        login="kilo auth login",
    ),
    Preset(
        "claude-agent-acp",
        "Claude Agent",
        "claude-agent-acp",
        (),
        ("ANTHROPIC_*", "CLAUDE_*", "IS_SANDBOX"),
        # As for Claude Code itself: a task has one end.
        {"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1"},
        ("default", "acceptEdits", "plan"),
        images=True,
        reads_along=True,
        project_files=files.CLAUDE,
        shut={"CLAUDE_CODE_ADDITIONAL_DIRECTORIES_CLAUDE_MD": "1"},
        shut_options={"claudeCode": {"options": CLAUDE_OPTIONS}},
        homes=(homes.CLAUDE,),
        install="npm install -g @agentclientprotocol/claude-agent-acp",
        login="run `claude` once and log in, or set ANTHROPIC_API_KEY",
    ),
    Preset(
        "codex-acp",
        "Codex",
        "codex-acp",
        (),
        ("CODEX_*", *_OPENAI),
        images=True,
        lasting=("approved-always", "approved-execpolicy-amendment"),
        project_files=files.CODEX,
        always_loaded=files.CODEX,
        homes=(homes.CODEX,),
        install="npm install -g @zed-industries/codex-acp",
        login="codex login, or set OPENAI_API_KEY",
    ),
    Preset(
        "droid",
        "Factory Droid",
        "droid",
        ("exec", "--output-format", "acp"),
        ("FACTORY_*",),
        {"FACTORY_DROID_AUTO_UPDATE_ENABLED": "false"},
        images=True,
        project_files=files.DROID,
        always_loaded=files.DROID,
        homes=(homes.DROID,),
        install="npm install -g droid",
        login="run `droid` once and log in, or set FACTORY_API_KEY",
    ),
    Preset(
        "cline",
        "Cline",
        "cline",
        ("--acp",),
        # Without CLINE_API_KEY it wants a login, whatever provider is configured.
        ("CLINE_*", "ANTHROPIC_*", *_OPENAI),
        # Otherwise commands are run by a daemon, which the CLI leaves behind.
        {"CLINE_SESSION_BACKEND_MODE": "local", "CLINE_NO_AUTO_UPDATE": "1"},
        ignores_links=True,
        project_files=(*files.CLINE, *files.BUN),
        always_loaded=files.CLINE,
        # It is a program of Bun, which runs what bunfig.toml names. A `bun` of the agent's has this
        # variable, too.
        shut={"BUN_OPTIONS": "--config=/dev/null --env-file=/dev/null"},
        homes=(homes.CLINE,),
        install="npm install -g cline",
        login="cline auth, and set CLINE_API_KEY",
    ),
    # Not run by us from here on, but for the handshakes of auggie 0.36.0: the
    # arguments are those of the agents' own documentation.
    Preset(
        "goose",
        "Goose",
        "goose",
        ("acp",),
        ("GOOSE_*", "ANTHROPIC_*", *_OPENAI),
        project_files=files.GOOSE,
        always_loaded=files.GOOSE,
        verified=False,
        homes=homes.GOOSE,
        reads=("${XDG_DATA_HOME:-~/.local/share}/goose", "${XDG_CONFIG_HOME:-~/.config}/goose"),
        install="see https://block.github.io/goose",
        login="goose configure",
    ),
    Preset(
        "kimi",
        "Kimi Code",
        "kimi",
        ("acp",),
        ("KIMI_*", "MOONSHOT_*"),
        verified=False,
        homes=(homes.KIMI,),
        install="npm install -g @moonshot-ai/kimi-code",  # kimi-cli is its predecessor
        login="run `kimi` once and type /login",
    ),
    Preset(
        "vibe",
        "Mistral Vibe",
        "vibe-acp",
        (),
        ("MISTRAL_*", "VIBE_*"),
        modes=("ask", "accept-edits"),  # not auto-approve
        lasting=(
            *("allow_always_permanent", "allow_permanent_exact"),
            "allow_permanent_directory_recursive",
        ),
        asks="ask",  # it begins in `accept-edits`
        project_files=files.VIBE,
        always_loaded=files.VIBE,
        verified=False,
        homes=(homes.VIBE,),
        install="uv tool install mistral-vibe",
        login="vibe --setup, or set MISTRAL_API_KEY",
    ),
    Preset(
        "auggie",
        "Auggie",
        "auggie",
        ("--acp",),
        ("AUGMENT_*",),
        project_files=files.AUGGIE,
        always_loaded=files.AUGGIE,
        verified=False,
        writable_paths=("~/.augment/sessions/", "~/.augment/logs/"),
        reads=("~/.augment",),
        install="npm install -g @augmentcode/auggie",
        login="auggie login",
    ),
    Preset(
        "kiro",
        "Kiro CLI",
        "kiro-cli",
        ("acp",),
        ("KIRO_*", "AWS_*"),
        project_files=files.KIRO,
        always_loaded=files.KIRO,
        verified=False,
        writable_paths=("~/.kiro/sessions/", "~/.local/share/kiro-cli/"),
        reads=("~/.kiro", "${XDG_DATA_HOME:-~/.local/share}/kiro-cli"),
        install="see https://kiro.dev/cli",
        login="kiro-cli login",
    ),
)
