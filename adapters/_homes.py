"""The parts of its settings folder that each CLI must write (bridge.adapter.Home), found by running
it. docs/security.md describes the handling of its login."""

from __future__ import annotations

import re

import orjson

from bridge.adapter import Home, Index
from bridge.adapter.fields import as_dict


def _enter_project(cwd: str, content: bytes) -> bytes:
    """Gemini's projects.json: a short name for each directory, which names its files."""
    try:
        known = as_dict(as_dict(orjson.loads(content)).get("projects"))
    except orjson.JSONDecodeError:
        known = {}
    if cwd not in known:
        name = re.sub("[^a-z0-9]+", "-", cwd.rpartition("/")[2].lower()).strip("-") or "project"
        taken, number = set(map(str, known.values())), 0
        while (short := f"{name}-{number}" if number else name) in taken:
            number += 1
        known = {**known, cwd: short}
    return orjson.dumps({"projects": known})


CLAUDE = Home(
    "CLAUDE_CONFIG_DIR",
    "${CLAUDE_CONFIG_DIR:-~/.claude}",
    (
        *("projects/", "sessions/", "session-env/", "shell-snapshots/", "file-history/", "plans/"),
        *("todos/", "tasks/", "teams/", "jobs/", "uploads/", "paste-cache/", "image-cache/"),
        *("backups/", "cache/", "debug/", "statsig/", "telemetry/", "usage-data/"),
    ),
    links=((".claude.json", "${CLAUDE_CONFIG_DIR:-~}/.claude.json"),),
    logins=(".credentials.json",),
    sessions=("projects/*/{id}.jsonl", "projects/*/{id}/**/*"),
)

CODEX = Home(
    "CODEX_HOME",
    "${CODEX_HOME:-~/.codex}",
    (
        *("sessions/", "archived_sessions/", "sqlite/", "shell_snapshots/", "thread-writer-locks/"),
        *("log/", "logs/", "tmp/", "memories/"),
        *("installation_id", "models_cache.json"),
    ),
    variables=(("CODEX_SQLITE_HOME", "sqlite"),),
    logins=("auth.json",),
    sessions=("sessions/*/*/*/rollout-*-{id}.jsonl",),
)

GEMINI = Home(
    "GEMINI_CLI_HOME",
    "${GEMINI_CLI_HOME:-~}/.gemini",
    ("tmp/", "history/", "registry/"),
    inner=".gemini",
    # In an untrusted workspace it looks for a key only in the outer folder (0.61.0).
    links=(("../.env", "${GEMINI_CLI_HOME:-~}/.gemini/.env"),),
    index=Index("projects.json", "registry/", _enter_project),
    sessions=("tmp/*/chats/*-{short}.json*",),
)

QWEN = Home(
    "QWEN_HOME",
    "${QWEN_HOME:-~/.qwen}",
    (
        *("projects/", "tmp/", "debug/", "todos/", "file-history/", "sessions/", "usage/"),
        # The store says which of the installed extensions are active, and has no path of one. It
        # begins only if there is a folder of extensions, into which agents must not write.
        *("extension-store/", "extensions/.keep"),
        "installation_id",
    ),
    # If the marker is missing, it writes a rule into the file.
    seeds=(("output-language.md", "<!-- qwen-code:llm-output-language: English -->\n"),),
    sessions=("projects/*/chats/{id}.jsonl",),
)

COPILOT = Home(
    "COPILOT_HOME",
    "${COPILOT_HOME:-~/.copilot}",
    ("session-state/", "logs/", "settings.json.lock"),
    seeds=(("config.json", '{"firstLaunchAt": "2026-01-01T00:00:00.000Z"}'),),
    sessions=("session-state/{id}/**/*",),
)
COPILOT_CACHE = Home("COPILOT_CACHE_HOME", "${COPILOT_CACHE_HOME:-~/.cache/copilot}", ("pkg/",))


def _xdg(
    kind: str, default: str, state: tuple[str, ...], *variables: tuple[str, str], database: str = ""
) -> Home:
    """A folder of the XDG Base Directory Specification."""
    name = f"XDG_{kind}_HOME"
    return Home(name, f"${{{name}:-{default}}}", state, variables=variables, database=database)


def of_xdg(name: str) -> tuple[str, str]:
    """The folders with the settings and the data of a CLI that follows that specification."""
    return f"${{XDG_CONFIG_HOME:-~/.config}}/{name}", f"${{XDG_DATA_HOME:-~/.local/share}}/{name}"


def _opencode(
    name: str, *, config: tuple[str, ...], data: tuple[str, ...], state: tuple[str, ...]
) -> tuple[Home, ...]:
    """Those of opencode and its fork. It does not start on a read-only file system if one of the
    files in `config` is missing."""
    folders = ("log", "storage", "snapshot", "tool-output", "repos", "worktree", "db")
    data = (*(f"{name}/{folder}/" for folder in folders), *data)
    database = f"{name}/db/{name}.db"
    return (
        _xdg("CONFIG", "~/.config", config),
        _xdg("DATA", "~/.local/share", data, (f"{name.upper()}_DB", database), database=database),
        _xdg("STATE", "~/.local/state", (f"{name}/", *state)),
        _xdg("CACHE", "~/.cache", (f"{name}/",)),
    )


OPENCODE = _opencode("opencode", config=("opencode/.gitignore",), data=(), state=())
KILO = _opencode(
    "kilo",
    config=("kilo/.gitignore", "kilo/.bash-permission-migrated"),
    data=("kilo/telemetry-id",),
    state=("kilo-sandbox-policy/",),
)

# Its certificates are not listed: an agent that writes them could choose trusted servers.
DROID = Home(
    "FACTORY_HOME_OVERRIDE",
    "${FACTORY_HOME_OVERRIDE:-~}/.factory",
    ("sessions/", "logs/", "telemetry/", "temp/", "cache/session-discovery-index.json"),
    inner=".factory",
    # It creates them through temporary files beside them, and does not start if it cannot.
    seeds=(
        (
            "host.json",
            '{"schemaVersion": 1, "hostId": "00000000-0000-4000-8000-000000000000", '
            '"createdAt": 1767225600000}',
        ),
        ("background-processes.json", '{"processes": []}'),
        ("background-tasks.json", '{"tasks": []}'),
        ("task-invocations.json", '{"invocations": []}'),
    ),
    sessions=("sessions/*/{id}.jsonl", "sessions/*/{id}.settings.json"),
)

CLINE = Home(
    "CLINE_DIR",
    "${CLINE_DIR:-~/.cline}",
    (
        *("data/sessions/", "data/tasks/", "data/teams/", "data/logs/", "data/db/"),
        *("data/locks/", "data/cache/"),
    ),
    sessions=("data/sessions/{id}/**/*",),
)

KIMI = Home(
    "KIMI_CODE_HOME",
    "${KIMI_CODE_HOME:-~/.kimi-code}",
    ("sessions/",),
    kept=("session_index.jsonl",),
)
VIBE = Home(
    "VIBE_HOME",
    "${VIBE_HOME:-~/.vibe}",
    ("logs/", "plans/", "vibehistory"),
    seeds=(("trusted_folders.toml", "trusted = []\nuntrusted = []\n"),),
    # A conversation pins the plugins with which it began (3.0.2).
    sessions=(
        "logs/session/unified/{id}/**/*",
        "logs/session/plugins/data/{id}/**/*",
        *(f"logs/session/plugins/{one}/**/*" for one in ("blobs", "manifests", "packages")),
    ),
)

GROK = Home("GROK_HOME", "${GROK_HOME:-~/.grok}", ("sessions/",), kept=())
HERMES = Home("HERMES_HOME", "${HERMES_HOME:-~/.hermes}", ("sessions/",), kept=("state.db",))
OPENHANDS = Home(
    "OPENHANDS_PERSISTENCE_DIR",
    "${OPENHANDS_PERSISTENCE_DIR:-~/.openhands}",
    ("conversations/",),
    kept=(),
)
DEEPAGENTS = Home("DEEPAGENTS_HOME", "${DEEPAGENTS_HOME:-~/.deepagents}", (".state/",), kept=())

# From documentation.
GOOSE = (
    _xdg("DATA", "~/.local/share", ("goose/sessions/",)),
    _xdg("STATE", "~/.local/state", ("goose/",)),
)
