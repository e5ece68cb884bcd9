"""Every setting of the server, typed; the only place that reads the environment and files.

Precedence: command line, environment, `.env`, CONFIG_FILE (TOML), default.
"""

from __future__ import annotations

import difflib
import io
import os
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from ipaddress import IPv6Address
from pathlib import Path
from typing import Annotated, Any, Literal

from dotenv import dotenv_values
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from bridge.a2a.card import Skill
from bridge.auth.config import LOOPBACK, NAME, AuthConfig, trusted_url
from bridge.auth.principal import Scope, Token
from bridge.errors import ConfigurationError
from bridge.runtime.extension import Profile
from bridge.sandbox.own_files import OwnFile, reachable, read_secret, refuse_reachable
from bridge.sandbox.trusted_programs import default_workspace
from bridge.session.redaction import NO_SECRETS, Secrets, secrets_of
from bridge.task.approval_policy import Rule
from bridge.workspace.paths import Workspaces, obstacle

# What every program may need of the server's environment; adapters add their own names.
# Nothing else reaches a child: neither the bridge's settings nor its secrets.
CHILD_ENVIRONMENT = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TERM", "TZ"),
    *("TMPDIR", "XDG_*", "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
)


def _words(value: Any) -> Any:
    return shlex.split(value) if isinstance(value, str) else value


def _paths(value: Any) -> Any:
    return [path for path in value.split(os.pathsep) if path] if isinstance(value, str) else value


def _names(value: Any) -> Any:
    return [n for n in value.replace(",", " ").split() if n] if isinstance(value, str) else value


def _host(value: str) -> str:
    """A host name or an address as it is compared: in lower case, without brackets."""
    name = value.lower().removesuffix(".")
    if re.fullmatch(r"[a-z0-9._-]+", name):
        return name
    try:
        return str(IPv6Address(name[1:-1] if name.startswith("[") and name[-1] == "]" else name))
    except ValueError:
        text = "a host name or address is expected, without http://, port or wildcard"
        raise ValueError(text) from None


def _origin(value: str) -> str:
    """An origin as browsers write it: in lower case, and without the port that goes without
    saying."""
    name = value.lower()
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?", name):
        raise ValueError("an origin such as https://example.org:8443 is expected, without a path")
    scheme = name.partition("://")[0]
    return name.removesuffix({"http": ":80", "https": ":443"}.get(scheme, " "))


def _jwks(value: str) -> str:
    return trusted_url(value) if "://" in value else value


AgentId = Annotated[str, Field(pattern=NAME)]
Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
Paths = Annotated[tuple[str, ...], BeforeValidator(_paths)]
Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
Hosts = Annotated[tuple[Annotated[str, AfterValidator(_host)], ...], BeforeValidator(_names)]
Origins = Annotated[tuple[Annotated[str, AfterValidator(_origin)], ...], BeforeValidator(_names)]
TrustedUrl = Annotated[str, AfterValidator(trusted_url)]
Scopes = Annotated[tuple[Scope, ...], BeforeValidator(_names)]
Milliseconds = Annotated[int, Field(ge=0, le=2**31)]
Timeout = Annotated[int, Field(ge=1, le=2**31)]
Limit = Annotated[int, Field(ge=0, le=2**62)]


class Settings(BaseModel):
    """Field names are the variables' names in lower case."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(41242, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    public_url: str | None = Field(
        None, description="How clients reach the server, where that is not http://HOST:PORT."
    )
    agent_adapter: str | None = Field(
        None,
        description="The agent: claude-code, jsonl, replay, or pkg.mod:Class. "
        "Unset: the first known CLI on PATH, else replay.",
    )
    agent_model: str | None = Field(
        None, pattern=r"^[^-\s]\S*$", description="Model that the CLI is told to use."
    )
    agent_models: Names = Field(
        (), description="Models that a client may choose for its context, separated by commas."
    )
    agent_timeout_ms: Milliseconds = Field(
        3_600_000, description="Longest working time of a turn; 0 for none."
    )
    agent_idle_exit_ms: Milliseconds = Field(
        0, description="End a turn whose CLI has printed nothing for so long; 0 for never."
    )
    bridge_start_timeout_ms: Milliseconds = Field(
        60_000,
        description="Longest handshake of a CLI, from its prompt to the time when it takes that; "
        "0 for none.",
    )
    agent_force: bool = Field(
        False, description="Let the CLI act without asking for permission. Dangerous."
    )
    agent_project_config: Literal["deny", "ask", "allow"] = Field(
        "deny",
        description="What a repository brings along that a CLI runs by itself (hooks, MCP "
        "servers, plugins, settings, .env): deny it, ask the client, or allow it. Where a CLI "
        "cannot be kept from it, deny refuses the task.",
    )
    agent_repo_path: str | None = Field(
        None,
        description="Workspace of the agent. Unset: the directory the server starts in, or its "
        "folder `workspace` where that is a checkout of the bridge.",
    )
    agent_allowed_repo_roots: Paths = Field(
        (),
        description="Directories (separated by `:`) below which a client may choose its cwd. "
        "Unset: the workspace alone.",
    )
    claude_code_path: str | None = Field(None, description="Path of the Claude Code CLI.")
    agent_binary: str | None = Field(None, description="Path of the CLI, for any adapter.")
    agent_args: Words = Field((), description="Arguments for the CLI, as a shell would read them.")
    agent_output: Literal["text", "ndjson"] = Field(
        "text", description="What a `generic` CLI prints: text, or one JSON object per line."
    )
    agent_text_field: str = Field(
        "text",
        min_length=1,
        description="Of such an object, the member with the agent's words: `text`, `delta.text`.",
    )
    agent_approval_pattern: str | None = Field(
        None,
        description="Regular expression for the questions of a `generic` CLI: it is looked for in "
        "the last line of the output when the CLI pauses there.",
    )
    agent_approval_response: Names = Field(
        ("y", "n"), description="What to write to allow and to deny, separated by a comma."
    )
    agent_end_pattern: str | None = Field(
        None,
        description="Regular expression for where a turn of a `generic` CLI ends: its prompt, or a "
        "line. Unset: each turn is a process, and ends with it.",
    )
    agent_pty: bool = Field(False, description="Run a `generic` CLI on a terminal.")
    agent_env: Names = Field(
        (), description="Further variables that the CLI may see, by name; also from `.env`."
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="DEBUG, INFO, WARNING or ERROR."
    )
    config_file: str | None = Field(None, description="TOML file with settings by these names.")
    bridge_token: str | None = Field(
        None, min_length=16, description="Bearer token that clients must send, 16 characters up."
    )
    bridge_token_file: str | None = Field(
        None,
        description="File with that token, in place of BRIDGE_TOKEN; other users must not be able "
        "to write it.",
    )
    bridge_auth: Literal["auto", "token", "none"] = Field(
        "auto",
        description="Who may call. auto: bearers of the operator's token (the file `token` in the "
        "state folder) and of the configured tokens; token: the same, and the server does not "
        "start unless one is configured; none: everybody who can connect, on loopback alone, but "
        "for agents and what else the server has started.",
    )
    bridge_oidc_issuer: TrustedUrl | None = Field(
        None,
        description="OpenID provider whose tokens (JWT) are taken as well, extra `oidc`.",
    )
    bridge_oidc_audience: Names = Field(
        (), description="Of those tokens, the ones for one of these audiences."
    )
    bridge_oidc_jwks: Annotated[str, AfterValidator(_jwks)] | None = Field(
        None, description="Where its keys are, a URL or a file. Unset: where the provider says."
    )
    bridge_oidc_claim: str = Field(
        "sub", min_length=1, description="What a bearer is known by: whose tasks are whose."
    )
    bridge_oidc_workspaces_claim: str | None = Field(
        None,
        description="Claim of such a token with the directories (absolute paths) below which its "
        "bearer may work; a token without it is refused. Unset: all that the agent may.",
    )
    bridge_oidc_scopes: Scopes = Field(
        ("run", "read", "cancel", "approve"),
        description="What a token can allow; it does if its `scope` or `scp` says so: `run` or "
        "`bridge:run`.",
    )
    bridge_sandbox: Literal["auto", "none", "landlock", "bwrap", "external"] = Field(
        "auto",
        description="What a CLI can reach at all. landlock, bwrap: it writes only in its workspace "
        "and what is its own; external: what BRIDGE_SANDBOX_WRAPPER lets it; none: whatever the "
        "server's user can; auto: landlock where the kernel has it, else none.",
    )
    bridge_sandbox_write: Paths = Field(
        (), description="Further paths that it may write, separated by `:`."
    )
    bridge_sandbox_read: Paths = Field(
        (),
        description="Of the paths that are hidden from it, such as `~/.ssh`, those that it may "
        "read, separated by `:`.",
    )
    bridge_sandbox_user: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$",
        description="User, by name or number, as whom CLIs run; for a server that is root.",
    )
    bridge_sandbox_ports: Names = Field(
        (), description="Remote TCP ports that it may connect to, such as 443. Unset: all."
    )
    bridge_sandbox_unix_sockets: Literal["deny", "allow"] = Field(
        "deny",
        description="UNIX sockets inside: deny: none of a service outside, such as D-Bus, Docker, "
        "tmux or an SSH agent, can be reached; before Linux 7.1 none can be made at all. allow: "
        "all of them, and with them what those services do outside the sandbox.",
    )
    bridge_sandbox_wrapper: Words = Field(
        (), description="Command to put before the CLI's, for BRIDGE_SANDBOX=external."
    )
    bridge_question_timeout_ms: Milliseconds = Field(
        3_600_000,
        description="How long a question waits for its answer; then a permission is denied, and a "
        "turn that needs another answer ends. 0: for ever.",
    )
    bridge_redact: Literal["known", "patterns", "none"] = Field(
        "known",
        description="What is taken out of all that an agent says. known: values of variables that "
        "are called a key, token, secret or password; patterns: what looks like one, too; none.",
    )
    bridge_audit_file: str | None = Field(
        None,
        description="Where it is written down who asked, who answered and what was run. "
        "Unset: audit.jsonl in BRIDGE_STATE_DIR.",
    )
    bridge_allowed_hosts: Hosts = Field(
        (),
        description="Host names that clients may use for the server beside localhost, its address "
        "and PUBLIC_URL's, separated by commas. Others may be web pages in disguise.",
    )
    bridge_allowed_origins: Origins = Field(
        (),
        description="Origins of web pages that may use the server (`https://app.example.org`), "
        "separated by commas. Unset: none.",
    )
    bridge_max_connections: int = Field(4000, ge=1, description="Connections open at once.")
    bridge_max_connections_per_peer: int = Field(
        64, ge=1, description="The same for each client address, but for 127.0.0.1 and ::1."
    )
    bridge_max_connections_per_second: int = Field(
        50,
        ge=0,
        description="New connections of each client address; of 127.0.0.1 and ::1 ten times "
        "as many. Who makes more is cut off. 0 for no limit.",
    )
    bridge_header_timeout_ms: Timeout = Field(
        10_000, description="Time for the headers of a request, and for each pause in its body."
    )
    bridge_body_timeout_ms: Timeout = Field(
        60_000, description="Time for a request body, and one second more for each 64 KiB of it."
    )
    bridge_stall_timeout_ms: Timeout = Field(
        30_000, description="Time after which a client is cut off that does not read its answer."
    )
    bridge_max_sessions: int = Field(
        8, ge=1, description="CLIs that work or are kept warm at once; further tasks wait."
    )
    bridge_max_waiting_sessions: int = Field(
        0,
        ge=0,
        description="CLIs that wait for an answer at once, beside those of BRIDGE_MAX_SESSIONS. "
        "Where there are more, the question that has waited longest gets the answer that "
        "BRIDGE_QUESTION_TIMEOUT_MS gives. 0: four times BRIDGE_MAX_SESSIONS.",
    )
    bridge_session_idle_ms: Milliseconds = Field(
        600_000, description="How long an idle CLI is kept warm for the next message."
    )
    bridge_warm_sessions: int = Field(
        0,
        ge=0,
        description="CLIs of each agent that are started before there is a task for them, so that "
        "a new context need not wait for that; each takes the memory of an idle CLI. They have "
        "places of BRIDGE_MAX_SESSIONS that nobody needs.",
    )
    bridge_session_memory_bytes: Limit = Field(
        0, description="Memory of a CLI with all that it starts (control groups); 0 for no limit."
    )
    bridge_session_cpu_percent: Limit = Field(
        0, description="Its share of the processors, 100 for one (control groups); 0 for no limit."
    )
    bridge_session_processes: Limit = Field(
        0,
        description="Its processes and threads (control groups, or BRIDGE_SANDBOX_USER); 0 for no "
        "limit.",
    )
    bridge_session_file_bytes: Limit = Field(
        0, description="Largest file that it writes, of its own output, too; 0 for no limit."
    )
    bridge_session_open_files: Limit = Field(
        0, description="Files that each of its processes has open; 0 for no limit but the system's."
    )
    bridge_max_tasks: int = Field(1000, ge=1, description="Finished tasks that are remembered.")
    bridge_max_tasks_per_context: int = Field(
        100, ge=1, description="Tasks of one context that may wait behind the one that runs."
    )
    bridge_when_busy: Literal["queue", "reject", "steer"] = Field(
        "queue",
        description="A message to a context that works: queue it, reject it, or steer the running "
        "turn with it, where the CLI can take it (else it is queued).",
    )
    bridge_on_disconnect: Literal["continue", "cancel"] = Field(
        "continue",
        description="A task whose stream or blocking request was cut, and that nobody else "
        "follows: continue it, or cancel it. A client chooses for its task in "
        "metadata.bridge.onDisconnect.",
    )
    bridge_disconnect_grace_ms: int = Field(
        10_000,
        ge=100,
        description="How long a client may be gone before BRIDGE_ON_DISCONNECT=cancel cancels its "
        "task.",
    )
    bridge_max_body_bytes: int = Field(
        32 * 1024 * 1024, ge=1024, description="Largest request body."
    )
    bridge_max_parts: int = Field(64, ge=1, description="Parts of a message.")
    bridge_max_text_bytes: int = Field(
        1024 * 1024, ge=1, description="Largest text or data part of a message."
    )
    bridge_max_raw_bytes: int = Field(
        5 * 1024 * 1024, ge=1, description="Largest file that a message carries, decoded."
    )
    bridge_max_file_bytes: int = Field(
        25 * 1024 * 1024, ge=1, description="Largest file of the workspace that a message names."
    )
    bridge_max_line_bytes: int = Field(
        16 * 1024 * 1024, ge=1024, description="Longest line of a CLI; what is longer is cut."
    )
    bridge_stop_grace_ms: Milliseconds = Field(
        5000, description="Time between SIGTERM and SIGKILL."
    )
    bridge_drain_ms: Milliseconds = Field(
        5000, description="Time that running tasks get to end when the server is told to stop."
    )
    agent_name: str | None = Field(None, description="Name of the agent on its card.")
    agent_description: str | None = Field(None, description="Description of the agent on its card.")
    bridge_default_agent: str | None = Field(
        None,
        description="Of the agents in CONFIG_FILE, the one at the root. Unset: the first.",
    )
    bridge_card: Literal["both", "1.0", "0.3"] = Field(
        "both",
        description="Shape of the agent card. 1.0 excludes clients that read only 0.3 (Gemini CLI, "
        "CrewAI, BeeAI, Strands, LangGraph, AI SDK, AG-UI); 0.3 excludes AG2, which needs 1.0.",
    )
    bridge_card_keys: str | None = Field(
        None,
        description="JWK Set with the keys that sign the card (BRIDGE_CARD=1.0, extra `signing`).",
    )
    bridge_require_extension: bool = Field(
        False,
        description="Refuse clients that do not ask for the extension urn:coding-agent-bridge:v1.",
    )
    bridge_fast_path_ms: Milliseconds = Field(
        0,
        description="Answer a send that waits with a Message instead of a task, if it completes "
        "within this time; 0 for never.",
    )
    bridge_stream_on_question: Literal["close", "open"] = Field(
        "close", description="What the stream of a send does at a question: close or open."
    )
    bridge_thoughts: bool = Field(False, description="Show the model's thoughts to clients.")
    bridge_push_allow_private: bool = Field(
        False,
        description="Let push notifications go to private addresses, and over http://: for "
        "local use.",
    )
    bridge_state_dir: str | None = Field(
        None,
        description="Folder for what must survive a restart. "
        "Unset: $XDG_STATE_HOME/coding-agent-bridge/PORT, or none where PORT is 0.",
    )
    bridge_store: Literal["durable", "memory"] = Field(
        "durable",
        description="Where tasks are kept: durable, in the folder above, or memory.",
    )
    bridge_keep_days: int = Field(
        30, ge=0, description="Days that finished tasks are remembered; 0 for no limit."
    )
    bridge_max_store_bytes: int = Field(
        2 * 1024**3,
        ge=0,
        description="Size of the store beyond which the oldest tasks go; in memory "
        "256 MiB at most.",
    )
    bridge_on_restart: Literal["reattach", "fail"] = Field(
        "reattach",
        description="Turns that were running when the last server ended: reattach to their CLIs, "
        "or fail them.",
    )
    bridge_on_stop: Literal["end", "keep"] = Field(
        "end",
        description="CLIs that still work when the server is told to stop, after BRIDGE_DRAIN_MS: "
        "end them, or keep them for the next server (BRIDGE_ON_RESTART).",
    )
    bridge_replay_file: str | None = Field(
        None, description="Recording for AGENT_ADAPTER=replay. Unset: the one that comes along."
    )
    bridge_replay_speed: float = Field(
        1.0, ge=0, description="Speed of the replay: 1 as recorded, 10 faster, 0 without pauses."
    )

    # Only in CONFIG_FILE: they have no form as an environment variable.
    agent_skills: tuple[Skill, ...] = Field((), exclude=True)
    agents: dict[AgentId, dict[str, Any]] = Field({}, exclude=True)
    profiles: dict[AgentId, Profile] = Field({}, exclude=True)
    tokens: dict[AgentId, Token] = Field({}, exclude=True)
    rules: tuple[Rule, ...] = Field((), exclude=True)

    def for_agent(self, agent_id: str) -> Settings:
        """These settings with those of `[agents.ID]` in their place. There, names that begin with
        AGENT_ or BRIDGE_ may do without it, and `workspace` is AGENT_REPO_PATH."""
        own = {
            _agent_setting(agent_id, name): value for name, value in self.agents[agent_id].items()
        }
        try:
            tables = {name: getattr(self, name) for name in TABLES - {"agents"}}
            return _validated({**self.model_dump(), **tables, **own})
        except ConfigurationError as error:
            raise ConfigurationError(f"[agents.{agent_id}] {error}") from None

    @property
    def each(self) -> list[Settings]:
        """These settings, and those of every agent."""
        return [self, *map(self.for_agent, self.agents)]

    # --- what follows from them ----------------------------------------------------------------

    @property
    def auth(self) -> AuthConfig:
        return AuthConfig(
            required=self.bridge_auth != "none",
            operator_token=self.bridge_token,
            tokens=self.tokens,
            issuer=self.bridge_oidc_issuer is not None,
        )

    @property
    def workspaces(self) -> Workspaces:
        default = self.agent_repo_path or default_workspace()
        return Workspaces(default, self.agent_allowed_repo_roots)

    @property
    def state_folder(self) -> Path | None:
        """The server's own folder; None where there is none. Servers that run side by side differ
        in their port, so each has its own by default."""
        if self.bridge_state_dir:
            return Path(self.bridge_state_dir).expanduser().resolve()
        return self.state_home / str(self.port) if self.port else None

    @property
    def state_home(self) -> Path:
        """Where the folders of all servers of this user are by default."""
        state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        return Path(state) / "coding-agent-bridge"

    @property
    def audit_file(self) -> Path | None:
        """None: in the folder above, if there is one."""
        return Path(self.bridge_audit_file).expanduser() if self.bridge_audit_file else None

    @property
    def own_files(self) -> Iterator[OwnFile]:
        """What the server reads settings or secrets from, or writes to."""
        names = ("config_file", "bridge_token_file", "bridge_card_keys", "bridge_audit_file")
        for name in names:
            if path := getattr(self, name):
                yield OwnFile(name.upper(), path)
        if self.bridge_oidc_jwks and "://" not in self.bridge_oidc_jwks:
            yield OwnFile("BRIDGE_OIDC_JWKS", self.bridge_oidc_jwks)
        folder = self.state_folder if self.bridge_store == "durable" else None
        if folder:
            yield OwnFile("BRIDGE_STATE_DIR", self.bridge_state_dir or str(folder), folder=True)
        elif self.bridge_auth != "none":  # where the operator's token is
            yield OwnFile("XDG_STATE_HOME", str(self.state_home), folder=True)

    @property
    def writable(self) -> dict[str, str]:
        """The paths that the agent may write by these settings, with what names each."""
        workspaces = self.workspaces
        named = {path: "BRIDGE_SANDBOX_WRITE" for path in self.bridge_sandbox_write}
        named |= {path: "AGENT_ALLOWED_REPO_ROOTS" for path in workspaces.roots}
        return {**named, workspaces.default: "AGENT_REPO_PATH"}

    def secrets(self, *environments: Mapping[str, str]) -> Secrets:
        """What must not be in what an agent says: secrets of the server's environment and of
        `environments`."""
        if self.bridge_redact == "none":
            return NO_SECRETS
        found = {self.bridge_token or ""}.union(*map(secrets_of, (os.environ, *environments)))
        return Secrets(found, self.bridge_redact == "patterns")

    def binary(self, specific: str) -> str | None:
        """The CLI's path as the operator gave it: AGENT_BINARY, or the adapter's own setting."""
        return self.agent_binary or getattr(self, specific.lower(), None)

    def child_environment(
        self, declared: Iterable[str], extra: Mapping[str, str]
    ) -> dict[str, str]:
        """The part of the environment that a CLI may see: names or prefixes ending in `*`. Of
        `extra` (the `.env`), only what AGENT_ENV names."""
        patterns = (*CHILD_ENVIRONMENT, *declared, *self.agent_env)
        inherited = {
            name: value
            for name, value in os.environ.items()
            if any(fnmatchcase(name, pattern) for pattern in patterns)
        }
        named = {name: extra[name] for name in self.agent_env if name in extra}
        return {**named, **inherited}


TABLES = frozenset({"agents", "agent_skills", "profiles", "tokens", "rules"})
"""The settings that are tables of CONFIG_FILE."""
SERVER_ONLY = frozenset(
    {
        *("agents", "profiles", "tokens", "host", "port", "public_url", "log_level"),
        *("config_file", "bridge_token", "bridge_auth", "bridge_audit_file"),
        "bridge_token_file",
        *(
            "bridge_max_sessions",
            "bridge_max_waiting_sessions",
            "bridge_max_body_bytes",
            "bridge_drain_ms",
            "bridge_state_dir",
        ),
        *("bridge_push_allow_private", "bridge_default_agent", "bridge_store"),
        *("bridge_on_restart", "bridge_on_stop", "bridge_max_store_bytes"),
        *("bridge_allowed_hosts", "bridge_allowed_origins", "bridge_max_connections"),
        *("bridge_max_connections_per_peer", "bridge_header_timeout_ms", "bridge_body_timeout_ms"),
        *("bridge_stall_timeout_ms", "bridge_oidc_issuer", "bridge_oidc_audience"),
        "bridge_max_connections_per_second",
        *("bridge_oidc_jwks", "bridge_oidc_claim", "bridge_oidc_scopes"),
        "bridge_oidc_workspaces_claim",
    }
)
"""The settings that no agent can have of its own."""
OTHERS = ("BRIDGE_URL", "BRIDGE_UI")
"""Variables that begin as settings do, of other programs or releases of ours; so do BRIDGE_MCP….
Those of the client begin with A2ACLI_."""
NAMES = frozenset(Settings.model_fields) - TABLES
"""The settings that a variable can hold."""


class Loaded:
    """The settings, the values of the `.env` that was read, and what the operator should know."""

    def __init__(
        self,
        settings: Settings,
        dotenv: Mapping[str, str],
        warnings: list[str],
        env_file: str | None = None,
    ) -> None:
        self.settings = settings
        self.dotenv = dotenv
        self.warnings = warnings
        self._env_file = env_file

    @property
    def own_files(self) -> list[OwnFile]:
        """Of these settings and of every agent's; the file of variables that was read is one."""
        read = [OwnFile("--env-file", self._env_file)] if self._env_file else []
        return [*read, *(file for one in self.settings.each for file in one.own_files)]

    @property
    def secrets(self) -> Secrets:
        """What must be neither in the server's log nor in the audit log."""
        known = secrets_of({**self.dotenv, **os.environ})
        return Secrets({*known, self.settings.bridge_token or ""}, patterns=True)


def load(flags: Mapping[str, Any], env_file: str | None = None) -> Loaded:
    """Put flags, environment, `.env` and CONFIG_FILE together. Raises ConfigurationError."""
    chosen = {name: value for name, value in flags.items() if value is not None}
    given = {**_known(os.environ), **chosen}
    warnings: list[str] = []
    dotenv = _read_env_file(env_file) if env_file else _implicit_env_file(given, warnings)
    given = {**_known(dotenv), **given}
    given = {**_config_file(given.get("config_file")), **given}
    settings = _validated({**given, **_token_from_file(given, warnings)})
    loaded = Loaded(settings, dotenv, warnings, env_file or (".env" if dotenv else None))
    if settings.agent_repo_path is None and default_workspace() != os.getcwd():
        os.makedirs(default_workspace(), mode=0o700, exist_ok=True)
    for one in settings.each:
        _check(one)
        refuse_reachable(loaded.own_files, one.writable)
    warnings += _misspelt(settings, {**dotenv, **os.environ})
    return loaded


def _token_from_file(given: Mapping[str, Any], warnings: list[str]) -> dict[str, str]:
    path = given.get("bridge_token_file")
    if not path:
        return {}
    if given.get("bridge_token"):
        raise ConfigurationError("BRIDGE_TOKEN and BRIDGE_TOKEN_FILE are both set: unset one.")
    return {"bridge_token": read_secret("BRIDGE_TOKEN_FILE", str(path), warnings)}


def _misspelt(settings: Settings, variables: Iterable[str]) -> Iterator[str]:
    """What is to be said of variables that look like settings and are none. Other programs have
    variables that begin with AGENT_, too: of those, only what is close to a setting."""
    known = [name.upper() for name in NAMES]
    for name in sorted(variables):
        ignored = name in OTHERS + settings.agent_env or name.startswith("BRIDGE_MCP")
        if not ignored and name.startswith(("BRIDGE_", "AGENT_")) and name not in known:
            hint = nearest(name, known, 0.8)
            if hint or name.startswith("BRIDGE_"):
                yield f"{name} is no setting and was ignored.{hint}"


def _known(variables: Mapping[str, str]) -> dict[str, str]:
    """Those of `variables` that are settings and not empty, by the settings' names."""
    lower = {name.lower(): value for name, value in variables.items() if value}
    return {name: value for name, value in lower.items() if name in NAMES}


def _validated(given: Mapping[str, Any]) -> Settings:
    try:
        return Settings(**given)
    except ValidationError as invalid:
        raise ConfigurationError(_explain(invalid)) from None


def _agent_setting(agent_id: str, name: str) -> str:
    """The setting that `name` means inside [agents.ID]."""
    written, name = name, name.lower()
    wanted = {"workspace": "agent_repo_path", "roots": "agent_allowed_repo_roots"}
    names = (wanted.get(name, ""), name, f"agent_{name}", f"bridge_{name}")
    found = next((known for known in names if known in Settings.model_fields), None)
    if found is None or found in SERVER_ONLY:
        short = [known.removeprefix("agent_") for known in Settings.model_fields]
        problem = f"[agents.{agent_id}] sets {written}, which no agent has of its own."
        raise ConfigurationError(problem + nearest(name, short))
    return found


def _check(settings: Settings) -> None:
    tokens = bool(settings.bridge_token or settings.tokens or settings.bridge_oidc_issuer)
    if bool(settings.bridge_oidc_issuer) != bool(settings.bridge_oidc_audience):
        raise ConfigurationError(
            "BRIDGE_OIDC_ISSUER and BRIDGE_OIDC_AUDIENCE need each other: a token for another "
            "service must not be taken here."
        )
    if settings.bridge_auth == "token" and not tokens:
        raise ConfigurationError(
            "BRIDGE_AUTH=token needs a token: set BRIDGE_TOKEN, BRIDGE_TOKEN_FILE (--token-file), "
            "[tokens.NAME] in CONFIG_FILE (`coding-agent-bridge token NAME` makes one), or "
            "BRIDGE_OIDC_ISSUER."
        )
    if settings.host not in LOOPBACK and (settings.bridge_auth == "none" or not tokens):
        raise ConfigurationError(
            f"HOST={settings.host} can be reached from other machines, and whoever reaches the "
            "server runs agents on this one: set BRIDGE_TOKEN or BRIDGE_TOKEN_FILE (--token-file), "
            "or HOST=127.0.0.1."
        )
    workspaces = settings.workspaces
    for path in (workspaces.default, *workspaces.roots):
        if not os.path.isdir(path):
            raise ConfigurationError(f"{path} is not a directory (AGENT_REPO_PATH or its roots).")
        problem = obstacle(path)
        if problem:
            text = f"{path} cannot be worked in: {problem} (AGENT_REPO_PATH or its roots)."
            raise ConfigurationError(text)


def _implicit_env_file(given: Mapping[str, Any], warnings: list[str]) -> dict[str, str]:
    """`.env` of the directory the server was started in, unless it lies in a workspace as they are
    known without that file: a repository must not configure the server that runs agents in it."""
    if not os.path.isfile(".env"):
        return {}
    settings = _validated({**_config_file(given.get("config_file")), **given})
    if _inside_a_workspace(".env", settings):
        warnings.append(_refusal(".env"))
        return {}
    return _read_env_file(".env")


def _inside_a_workspace(path: str, settings: Settings) -> bool:
    """Whether agents could write the file, under its name or where that leads."""
    return any(reachable(path, one.writable) for one in settings.each)


def _refusal(path: str) -> str:
    return (
        f"{path} was not read: it lies inside the workspace, and a repository must not configure "
        "the server that runs agents in it. Keep it elsewhere (--env-file), or set "
        "AGENT_REPO_PATH to another directory."
    )


def _read_env_file(path: str) -> dict[str, str]:
    try:
        text = Path(path).read_text("utf-8")
        values = dotenv_values(stream=io.StringIO(text), interpolate=False)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read {path}: {error}") from None
    return {name: value for name, value in values.items() if value is not None}


def _config_file(path: Any) -> dict[str, Any]:
    if not path:
        return {}
    try:
        values = tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"cannot read CONFIG_FILE {path}: {error}") from None
    known = {name.lower(): value for name, value in values.items()}
    for name in known:
        if name not in Settings.model_fields:
            raise ConfigurationError(f"{path} sets {name}, which is no setting.{nearest(name)}")
    return known


def nearest(name: str, known: Iterable[str] = Settings.model_fields, least: float = 0.6) -> str:
    """A hint at the known name that is most like this one, from a likeness of `least` on."""
    close = difflib.get_close_matches(name, list(known), 1, least)
    return f" Did you mean {close[0]}?" if close else ""


def _explain(invalid: ValidationError) -> str:
    problems = [
        f"{'.'.join([str(problem['loc'][0]).upper(), *map(str, problem['loc'][1:])])}: "
        f"{problem['msg']}"
        for problem in invalid.errors(include_url=False, include_input=False)
    ]
    return "; ".join(problems)
