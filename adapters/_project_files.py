"""The files of a repository that a CLI runs: hooks, servers, plugins, and settings that name such
things or the address of the model. See Adapter.project_files. Instructions (CLAUDE.md, AGENTS.md,
…) are only read."""

from __future__ import annotations


def _in(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in names)


CLAUDE = (
    *(".mcp.json", ".claude/settings.json", ".claude/settings.local.json"),
    *(".claude/agents/**/*.md", ".claude/skills/*/SKILL.md", ".claude/commands/**/*.md"),
)
GEMINI = (".env", *_in(".gemini", ".env", "settings.json", "extensions/*"))
QWEN = (".env", *_in(".qwen", ".env", "settings.json", "extensions/*"))
COPILOT = (".github/hooks/*.json",)  # it runs other files only in trusted folders

_PLUGINS = ("plugin/*", "plugins/*")
_INSTALLED = (".npmrc", "package.json")
_TOOLS = ("tool/*", "tools/*", *_INSTALLED)
_OPENCODE = ("opencode.json", "opencode.jsonc")
_KILO = ("kilo.json", "kilo.jsonc")
OPENCODE_PLUGINS = (*_OPENCODE, *_in(".opencode", *_OPENCODE, *_PLUGINS))
OPENCODE = (*OPENCODE_PLUGINS, *_in(".opencode", *_TOOLS), ".npmrc")
KILO_SERVERS = (".kilo/mcp.json", ".kilocode/mcp.json")
KILO = (
    *(*_KILO, *_OPENCODE, *KILO_SERVERS, ".npmrc"),
    *_in(".kilo", *_KILO, *_PLUGINS, *_TOOLS),
    *_in(".kilocode", *_KILO, *_PLUGINS, *_TOOLS),
)

CODEX = _in(".codex", "config.toml", "hooks.json")
AIDER_SETTINGS = (".aider.conf.yml", ".aider.model.settings.yml", ".aider.model.metadata.json")
AIDER = (*AIDER_SETTINGS, ".env")

CLINE = (".clinerules/hooks/*", ".cline/**/*.json")
BUN = ("bunfig.toml", ".env", ".env.*")

# Named in their programs or documentation; no test lets these run.
KIMI = (".mcp.json", *_in(".kimi-code", "**/*.json", "**/*.toml"))
GROK = (*CLAUDE, *_in(".grok", "**/*.toml", "**/*.json", "hooks/*", "agents/*", "plugins/*"))
OPENHANDS = _in(".openhands", "hooks.json", "setup.sh", "pre-commit.sh", "mcp.json")
DEEPAGENTS = (".mcp.json", *_in(".deepagents", "**/*.json", "**/*.py"))

# From documentation.
CURSOR = _in(".cursor", "mcp.json", "hooks.json", "cli.json")
GOOSE = (".goose/**/*.yaml",)
VIBE = _in(".vibe", "config.toml", "tools/*")
DROID = (".mcp.json", *_in(".factory", "**/*.json", "hooks/*"))
AUGGIE = (".augment/**/*.json",)
KIRO = _in(".kiro", "**/*.json", "hooks/*")
QODER = (".mcp.json", *_in(".qoder", "**/*.json", "hooks/*"))
JUNIE = _in(".junie", "**/*.json")
PI = (*_in(".pi", "**/*.json", "**/*.ts", "**/*.js"),)
