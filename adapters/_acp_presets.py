"""The agents that speak ACP and are known by name: what is particular about each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Preset:
    """What is particular about one agent. Everything else it says itself, in `initialize`.

    `arguments` make the CLI speak ACP, `variables` are set for it unless the operator sets them,
    `model_flag` chooses its model where ACP cannot. `install`, `login`: see Upkeep; `environment`,
    `modes`, `by_the_minute`, `writes`, `any_port`: see Adapter.
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
    proved: bool = True
    writes: tuple[str, ...] = ()
    any_port: bool = False
    logins: tuple[tuple[str, str], ...] = ()
    login_first: bool = False
    """authenticate comes before session/new, not only after -32000."""
    list_first: bool = False
    """A conversation that it does not know is resumed as an empty one."""
    late_history: bool = False
    """session/load goes on with the history after its answer."""
    by_the_minute: bool = False
    errors_are_words: bool = False
    """Errors of the model end the turn as if it had gone well, with `Error: …` as its last words
    and no tokens counted."""
    silent_failures: bool = False
    """Errors of the model end the turn as if it had gone well, without a word."""
    lasting: tuple[str, ...] = ()
    """Ids of options that write rules for other sessions, too: they are not offered."""


_OPENAI = ("OPENAI_*",)
_NODE_CHILD = {"NO_COLOR": "1"}

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
        by_the_minute=True,
        late_history=True,
        silent_failures=True,  # a broken stream ends as end_turn
        writes=("~/.gemini/", "/dev/pts"),
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
        writes=(
            *("~/.config/opencode/", "~/.local/share/opencode/"),
            *("~/.local/state/opencode/", "~/.cache/opencode/"),
        ),
        any_port=True,
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
        writes=("~/.copilot/", "~/.cache/copilot/"),
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
        writes=("~/.qwen/", "/dev/pts"),
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
        writes=(
            *("~/.config/kilo/", "~/.local/share/kilo/", "~/.local/state/kilo/"),
            *("~/.local/state/kilo-sandbox-policy/", "~/.cache/kilo/"),
        ),
        any_port=True,
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
        writes=("${CLAUDE_CONFIG_DIR:-~/.claude}/", "~/.claude.json"),
        install="npm install -g @agentclientprotocol/claude-agent-acp",
        login="run `claude` once and log in, or set ANTHROPIC_API_KEY",
    ),
    Preset(
        "cline",
        "Cline",
        "cline",
        ("--acp",),
        # Without CLINE_API_KEY it wants a login, whatever provider is configured.
        ("CLINE_*", "ANTHROPIC_*", *_OPENAI),
        proved=False,
        install="npm install -g cline",
        login="cline auth, and set CLINE_API_KEY",
    ),
    # Not run by us from here on, but for the handshakes of droid 0.225.1 and auggie 0.36.0, and for
    # turns of codex-acp 0.16.0: the arguments are those of the agents' own documentation.
    Preset(
        "goose",
        "Goose",
        "goose",
        ("acp",),
        ("GOOSE_*", "ANTHROPIC_*", *_OPENAI),
        proved=False,
        install="see https://block.github.io/goose",
        login="goose configure",
    ),
    Preset(
        "kimi",
        "Kimi CLI",
        "kimi",
        ("acp",),
        ("KIMI_*", "MOONSHOT_*"),
        proved=False,
        install="uv tool install kimi-cli",
        login="run `kimi` once and type /setup",
    ),
    Preset(
        "vibe",
        "Mistral Vibe",
        "vibe-acp",
        (),
        ("MISTRAL_*", "VIBE_*"),
        proved=False,
        install="uv tool install mistral-vibe",
        login="vibe --setup, or set MISTRAL_API_KEY",
    ),
    Preset(
        "droid",
        "Factory Droid",
        "droid",
        ("exec", "--output-format", "acp"),
        ("FACTORY_*",),
        proved=False,
        install="npm install -g @factory/cli",
        login="run `droid` once and log in, or set FACTORY_API_KEY",
    ),
    Preset(
        "auggie",
        "Auggie",
        "auggie",
        ("--acp",),
        ("AUGMENT_*",),
        proved=False,
        install="npm install -g @augmentcode/auggie",
        login="auggie login",
    ),
    Preset(
        "kiro",
        "Kiro CLI",
        "kiro-cli",
        ("acp",),
        ("KIRO_*", "AWS_*"),
        proved=False,
        install="see https://kiro.dev/cli",
        login="kiro-cli login",
    ),
    Preset(
        "codex-acp",
        "Codex",
        "codex-acp",
        (),
        ("CODEX_*", *_OPENAI),
        proved=False,
        install="npm install -g @agentclientprotocol/codex-acp",
        login="codex login, or set OPENAI_API_KEY",
    ),
)
