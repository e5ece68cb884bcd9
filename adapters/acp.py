"""Agents that speak the Agent Client Protocol, version 1: any (`acp`), and those known by name.

Measured facts that decide the code, of the agents in tests/real/test_matrix.py:

* `session/prompt` is answered at the end of the turn: the answer is the end, not an exit.
* Options of a permission have any id (`once`, `proceed_once`, `allow-once`): their kind decides.
  A cancel must answer an open permission, or the turn never ends.
* The first message about a tool may be a `tool_call`, a permission request or a result, and its
  input may be empty at first. The tool call's id connects the three.
* An offered method may be missing: qwen offers `session/resume` and does not know it.
* `session/load` sends the whole history before its answer; gemini sends more of it afterwards. So
  a request that changes nothing comes before the prompt.
* A prompt that begins with `/` is a command, which may write files without a permission (gemini's
  `/init`) or get an answer without the model: see plain(). `@path`, `!…` and `#…` are only text,
  except for AcpAgent.reads_along.
* An agent that may use the client's `fs` does so, and fails if a file is missing: the bridge does
  not offer it. The same holds for `terminal`.
* Cursor asks with methods of its own (`cursor/…`), and waits for the answer (from its
  documentation and published recordings: it was not run).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from bridge.adapter import Launch
from bridge.adapter.fields import Json

from . import _homes
from . import _project_files as files
from ._acp import Acp
from ._acp_untried import UNTRIED
from ._claude_switches import QUIET, WAKING
from ._codex_trust import without_goals

_OPENAI = ("OPENAI_*",)
_NODE_CHILD = {"NO_COLOR": "1"}

# CLAUDE.md belongs to the settings of the project, but also to any further directory.
CLAUDE_OPTIONS = {
    "settingSources": ["user"],
    "strictMcpConfig": True,
    "additionalDirectories": ["."],
}


class Gemini(Acp):
    name = "gemini"
    title = "Gemini CLI"
    binary = "gemini"
    arguments = ("--acp",)
    environment = ("GEMINI_*", "GOOGLE_*")
    # Without it, SIGTERM reaches a parent process that ignores it.
    variables: ClassVar[Mapping[str, str]] = {"GEMINI_CLI_NO_RELAUNCH": "true", **_NODE_CHILD}
    modes = ("default", "autoEdit", "plan")  # not yolo
    widths = ("plan", "default", "autoEdit")
    model_flag = "--model"
    images = True
    logins = (("GEMINI_API_KEY", "gemini-api-key"),)
    # session/load first makes an empty file with the minute and 8 characters of the id in its name,
    # in the same minute in place of the conversation's own file; and a later start of the CLI
    # deletes all files with these 8 characters, because that file is empty. It ignores the space
    # where it looks for the conversation, but the name has another character for it.
    load_prefix = " "
    forgets_interrupted = True
    silent_failures = True  # a broken stream ends as end_turn
    project_files = files.GEMINI
    instructions = ("GEMINI.md",)
    shut: ClassVar[Mapping[str, str]] = {"GEMINI_CLI_TRUST_WORKSPACE": "false"}
    writable_paths = ("/dev/pts",)
    homes = (_homes.GEMINI,)
    install = "npm install -g @google/gemini-cli"
    login = "run `gemini` once and log in, or set GEMINI_API_KEY"


class Opencode(Acp):
    name = "opencode"
    title = "opencode"
    binary = "opencode"
    arguments = ("acp",)
    environment = ("OPENCODE_*", "ANTHROPIC_*", *_OPENAI)
    variables: ClassVar[Mapping[str, str]] = {"OPENCODE_DISABLE_AUTOUPDATE": "1"}
    modes = ("build", "plan")
    widths = ("plan", "build")
    images = True
    project_files = files.OPENCODE
    # A second reader of the same files, for plugins only, ignores the variable.
    always_loaded = files.OPENCODE_PLUGINS
    shut: ClassVar[Mapping[str, str]] = {"OPENCODE_DISABLE_PROJECT_CONFIG": "1"}
    configured_by = "OPENCODE_CONFIG_CONTENT"
    homes = _homes.OPENCODE
    reads = _homes.of_xdg("opencode")
    uses_any_port = True
    install = "npm install -g opencode-ai"
    login = "opencode auth login"


class Copilot(Acp):
    name = "copilot"
    title = "GitHub Copilot CLI"
    binary = "copilot"
    arguments = ("--acp",)
    environment = ("COPILOT_*", "GH_TOKEN", "GITHUB_TOKEN")
    # Its modes are URIs, and one of them allows everything: clients get none.
    model_flag = "--model"
    images = True
    error_words = "Error: "
    counts_all_turns = True
    project_files = always_loaded = files.COPILOT
    homes = (_homes.COPILOT, _homes.COPILOT_CACHE)
    reads = ("${XDG_CONFIG_HOME:-~/.config}/gh",)  # it uses the login of gh
    install = "npm install -g @github/copilot"
    login = "run `copilot` once and type /login, or set GH_TOKEN"


class Qwen(Acp):
    name = "qwen"
    title = "Qwen Code"
    binary = "qwen"
    arguments = ("--acp",)
    environment = (*_OPENAI, "QWEN_*", "DASHSCOPE_*")
    variables: ClassVar[Mapping[str, str]] = {
        "QWEN_CODE_NO_RELAUNCH": "true",
        "QWEN_CODE_DISABLE_CRON": "1",
        # Otherwise it asks its model after each turn for memories, and for the next prompt of the
        # user. The user's settings come before these. It would write into a file of a version
        # that is older than its own.
        "QWEN_CODE_SYSTEM_DEFAULTS_PATH": f"{__file__.rpartition('/')[0]}/qwen.json",
        **_NODE_CHILD,
    }
    modes = ("plan", "default", "auto-edit")  # not yolo
    images = True
    model_flag = "--model"
    logins = (("OPENAI_API_KEY", "openai"),)
    list_first = True  # an unknown id is loaded "successfully"
    lasting = ("proceed_always_project", "proceed_always_user")
    asks = "default"  # from 0.24 on, it begins in `auto`: a model decides about permissions
    # A file of the user lists the trusted folders; `--bare` would drop the user's own rules.
    project_files = always_loaded = files.QWEN
    writable_paths = ("/dev/pts",)
    homes = (_homes.QWEN,)
    install = "npm install -g @qwen-code/qwen-code"
    login = "run `qwen` once and log in, or set OPENAI_API_KEY and OPENAI_BASE_URL"


class Kilo(Acp):
    name = "kilo"
    title = "Kilo Code"
    binary = "kilo"
    arguments = ("acp",)
    environment = ("KILO_*", "OPENCODE_*", "ANTHROPIC_*", *_OPENAI)
    images = True  # a file outside of the workspace needs a permission
    project_files = files.KILO
    always_loaded = files.KILO_SERVERS
    shut: ClassVar[Mapping[str, str]] = {"KILO_DISABLE_PROJECT_CONFIG": "1"}
    configured_by = "KILO_CONFIG_CONTENT"
    homes = _homes.KILO
    reads = _homes.of_xdg("kilo")
    uses_any_port = True
    install = "npm install -g @kilocode/cli"
    login = "kilo auth login"


class ClaudeAgent(Acp):
    name = "claude-agent-acp"
    cache_apart = True
    title = "Claude Agent"
    binary = "claude-agent-acp"
    environment = ("ANTHROPIC_*", "CLAUDE_*", "IS_SANDBOX")
    variables: ClassVar[Mapping[str, str]] = QUIET
    session_options: ClassVar[Json] = {"disallowedTools": [*WAKING]}
    asks = "default"  # it begins in `auto`: a model decides about permissions
    lasting = (
        *("allow-with-updates", "allow-skill-exact", "allow-skill-prefix"),
        *("exit-plan-auto", "exit-plan-bypass", "exit-plan-clear-auto", "exit-plan-clear-bypass"),
        "exit-plan-clear-accept-edits",  # it continues in another conversation
    )
    modes = ("default", "acceptEdits", "plan")
    widths = ("plan", "default", "acceptEdits")
    images = True
    reads_along = True
    project_files = files.CLAUDE
    shut: ClassVar[Mapping[str, str]] = {"CLAUDE_CODE_ADDITIONAL_DIRECTORIES_CLAUDE_MD": "1"}
    shut_options: ClassVar[Json] = CLAUDE_OPTIONS
    homes = (_homes.CLAUDE,)
    install = "npm install -g @agentclientprotocol/claude-agent-acp"
    login = "run `claude` once and log in, or set ANTHROPIC_API_KEY"


class CodexAcp(Acp):
    name = "codex-acp"
    title = "Codex"
    binary = "codex-acp"
    environment = ("CODEX_*", *_OPENAI)
    asks = "read-only"  # it begins in `agent`: a model decides about permissions
    images = True
    lasting = ("accept_execpolicy_amendment", "apply_network_policy_amendment", "allow_always")
    project_files = always_loaded = files.CODEX
    homes = (_homes.CODEX,)
    install = "npm install -g @agentclientprotocol/codex-acp"
    # Its login with a key from the environment would write the key into a file.
    login = "codex login, or name another provider in ~/.codex/config.toml"

    def launch(self) -> Launch:
        launch = super().launch()
        config = without_goals(self.config.env.get("CODEX_CONFIG"))
        return replace(launch, env={**launch.env, "CODEX_CONFIG": config})


class Droid(Acp):
    name = "droid"
    title = "Factory Droid"
    binary = "droid"
    arguments = ("exec", "--output-format", "acp")
    environment = ("FACTORY_*",)
    variables: ClassVar[Mapping[str, str]] = {"FACTORY_DROID_AUTO_UPDATE_ENABLED": "false"}
    images = True
    project_files = always_loaded = files.DROID
    homes = (_homes.DROID,)
    install = "npm install -g droid"
    login = "run `droid` once and log in, or set FACTORY_API_KEY"


class Cline(Acp):
    name = "cline"
    title = "Cline"
    binary = "cline"
    arguments = ("--acp",)
    # Without CLINE_API_KEY it requires a login, whatever provider is configured.
    environment = ("CLINE_*", "ANTHROPIC_*", *_OPENAI)
    # Otherwise a daemon runs the commands, and the CLI leaves it behind.
    variables: ClassVar[Mapping[str, str]] = {
        "CLINE_SESSION_BACKEND_MODE": "local",
        "CLINE_NO_AUTO_UPDATE": "1",
    }
    ignores_links = True
    project_files = (*files.CLINE, *files.BUN)
    always_loaded = files.CLINE
    # Bun runs the files that bunfig.toml names, and cline is a program of Bun. Each `bun` that the
    # agent starts inherits this variable.
    shut: ClassVar[Mapping[str, str]] = {"BUN_OPTIONS": "--config=/dev/null --env-file=/dev/null"}
    homes = (_homes.CLINE,)
    install = "npm install -g cline"
    login = "cline auth, and set CLINE_API_KEY"


class Kimi(Acp):
    name = "kimi"
    title = "Kimi Code"
    binary = "kimi"
    arguments = ("acp",)
    environment = ("KIMI_*", "MOONSHOT_*")
    variables: ClassVar[Mapping[str, str]] = {"KIMI_DISABLE_CRON": "1"}
    silent_failures = True  # a limit of the model ends as end_turn
    failing_words: ClassVar[Mapping[str, str]] = {"Compaction is blocked": "context-window"}
    # A goal makes it call the model after the end of the turn, without a message to its client.
    going_on = ("CreateGoal", "run_in_background")
    project_files = always_loaded = files.KIMI
    homes = (_homes.KIMI,)
    install = "npm install -g @moonshot-ai/kimi-code"  # kimi-cli is its predecessor
    login = "run `kimi` once and type /login"


class Vibe(Acp):
    name = "vibe"
    title = "Mistral Vibe"
    binary = "vibe-acp"
    environment = ("MISTRAL_*", "VIBE_*")
    modes = ("ask", "accept-edits")  # not auto-approve
    lasting = (
        *("allow_always_permanent", "allow_permanent_exact"),
        "allow_permanent_directory_recursive",
    )
    asks = "ask"  # it begins in `accept-edits`
    auth_is_final = True
    counts_all_turns = True
    going_on = ("cron",)
    project_files = always_loaded = files.VIBE
    homes = (_homes.VIBE,)
    install = "uv tool install mistral-vibe"
    login = "vibe --setup, or set MISTRAL_API_KEY"


class Grok(Acp):
    name = "grok"
    title = "Grok Build"
    binary = "grok"
    arguments = ("agent", "stdio")
    environment = ("GROK_*", "XAI_*")
    variables: ClassVar[Mapping[str, str]] = {
        "GROK_DISABLE_AUTOUPDATER": "1",
        "GROK_AUTO_WAKE": "0",
    }
    lasting = ("always-allow", "reject-always")
    going_on = ("scheduler_create", "monitor", "workflow", "is_background")
    project_files = always_loaded = files.GROK
    homes = (_homes.GROK,)
    install = "npm install -g @xai-official/grok"
    login = "run `grok` once and log in, or set XAI_API_KEY"


class Hermes(Acp):
    name = "hermes"
    title = "Hermes Agent"
    binary = "hermes-acp"
    environment = ("HERMES_*", "OPENROUTER_*", "NOUS_*", "ANTHROPIC_*", *_OPENAI)
    error_words = "HTTP "
    going_on = ("cronjob", "background")
    counts_all_turns = True
    homes = (_homes.HERMES,)
    install = "uv tool install 'hermes-agent[acp]'"
    login = "hermes setup"


class OpenHands(Acp):
    name = "openhands"
    title = "OpenHands"
    binary = "openhands"
    arguments = ("acp",)
    environment = ("LLM_*", "OPENHANDS_*", "LITELLM_*")
    modes = ("always-ask",)  # not always-approve or llm-approve
    asks = "always-ask"
    asks_about_all = True
    # The second one is of the kind `allow_once`, and ends in the mode `llm-approve`.
    lasting = ("always_proceed", "risk_based")
    project_files = always_loaded = files.OPENHANDS
    writable_paths = ("/dev/pts",)
    homes = (_homes.OPENHANDS,)
    install = "uv tool install openhands --python 3.12"
    login = "run `openhands` once and choose a model"


class DeepAgents(Acp):
    name = "deepagents"
    title = "Deep Agents Code"
    binary = "dcode"
    arguments = ("--acp",)
    environment = ("DEEPAGENTS_*", "ANTHROPIC_*", "GOOGLE_*", "LANGSMITH_*", *_OPENAI)
    variables: ClassVar[Mapping[str, str]] = {
        "DEEPAGENTS_CODE_AUTO_UPDATE": "0",
        "DEEPAGENTS_CODE_NO_UPDATE_CHECK": "1",
    }
    model_flag = "--model"
    project_files = always_loaded = files.DEEPAGENTS
    homes = (_homes.DEEPAGENTS,)
    install = "uv tool install 'deepagents-code[acp]'"
    login = "dcode auth set, or set the key of the model's provider"


ADAPTER = Acp
ADAPTERS = (
    *(Gemini, Opencode, Copilot, Qwen, Kilo, ClaudeAgent, CodexAcp, Droid, Cline),
    *(Kimi, Vibe, Grok, Hermes, OpenHands, DeepAgents),
    *UNTRIED,
)
