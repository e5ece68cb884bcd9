"""The sections of the settings. The string below a field is its help text: .env.example and
docs/settings.md are written from it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from bridge.a2a.card import Skill
from bridge.a2a.card_shapes import HYBRID
from bridge.auth.config import AuthConfig
from bridge.auth.principal import Grant, Token
from bridge.runtime.extension import Profile
from bridge.sandbox.trusted_programs import default_workspace
from bridge.server.settings.values import (
    AgentId,
    CardShape,
    Count,
    Hosts,
    Limit,
    Milliseconds,
    Names,
    Networks,
    Origins,
    Paths,
    Port,
    Scopes,
    SocketPath,
    Thoughts,
    Timeout,
    TrustedUrl,
    UrlOrFile,
    Words,
)
from bridge.task.rules.approval_policy import Rule
from bridge.workspace.paths import Workspaces

OWN_PREFIXES = ("BRIDGE_", "A2ACLI_")  # of variables with tokens of this server and its client
# Variables of the server that every CLI gets; `*` is a wildcard. An adapter adds names of its own.
# No other variable reaches a CLI, so the settings and secrets of the bridge do not.
CHILD_ENVIRONMENT = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TERM", "TZ"),
    *("TMPDIR", "XDG_*", "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
)


def prefixed(prefix: str) -> Callable[[str], str]:
    """The names of the fields of a section: see Section."""
    return lambda field: prefix + field


class Section(BaseModel):
    """Settings of one subject. The name of a setting is the alias of its field: the prefix of the
    section and the name of the field, unless the field has an alias of its own. CONFIG_FILE uses
    this name; a variable is this name in upper case. `per_agent`: a table [agents.ID] of
    CONFIG_FILE can override the settings of the section."""

    model_config = ConfigDict(frozen=True, validate_by_name=True, validate_by_alias=True)
    per_agent: ClassVar[bool] = False


class ServerSettings(Section, alias_generator=prefixed("bridge_")):
    """Server: the listener, the process and the agents."""

    host: str = Field(default="127.0.0.1", alias="host")
    """Address to listen on. With 127.0.0.1, ::1 or all addresses, the server listens on both
    addresses of localhost. No other program can use the port on any address. BRIDGE_HOST is the
    same, and has precedence."""
    port: Port = Field(default=41242, alias="port")
    """TCP port to listen on; 0 = any free port; none = no TCP, with BRIDGE_UNIX_SOCKET.
    BRIDGE_PORT is the same, and has precedence."""
    websocket: bool = False
    """Serve A2A over WebSocket at /a2a/ws."""
    unix_socket: SocketPath | None = None
    """Path of a Unix socket to listen on, in a folder of the user of the server. Unset: none."""
    unix_group: str | None = None
    """Group (name or number) whose members may connect to the Unix socket. Unset: only the user of
    the server."""
    public_url: str | None = Field(default=None, alias="public_url")
    """Base URL that clients use, if it is not http://HOST:PORT."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", alias="log_level"
    )
    """Lowest level of the log: DEBUG, INFO, WARNING or ERROR."""
    log_format: Literal["text", "json"] = Field(default="text", alias="log_format")
    """Format of the log: text, for people, or json, one object for each line."""
    log_requests: bool = Field(default=False, alias="log_requests")
    """Log each request that succeeds; requests that fail are always logged."""
    config_file: str | None = Field(default=None, alias="config_file")
    """Path of a TOML file with settings by these names."""
    allowed_hosts: Hosts = ()
    """Further values of the Host header that the server accepts, separated by commas. localhost,
    HOST and the host of PUBLIC_URL are always accepted. Other values are refused, because a web
    page could send them (DNS rebinding)."""
    allowed_origins: Origins = ()
    """Origins of web pages that may use the server, such as `https://app.example.org`, separated
    by commas. Unset: none."""
    trusted_proxies: Networks = ()
    """Addresses or networks of reverse proxies, such as `10.0.0.7` or `10.0.0.0/24`, separated by
    commas. Only from them, the last address in X-Forwarded-For counts as the client in the limits
    of wrong tokens, the log and the audit log, and X-Forwarded-Proto on the card. Unset: none."""
    max_connections: Count = 4000
    """Maximum number of open connections."""
    max_connections_per_peer: Count = 64
    """Maximum number of open connections per client address, and per user on the Unix socket; no
    limit for 127.0.0.1 and ::1."""
    max_connections_per_second: Limit = 50
    """Maximum number of new connections per second and client address, ten times as many for
    127.0.0.1, ::1 and each user on the Unix socket; 0 = unlimited. Connections above the limit are
    closed."""
    stall_timeout_ms: Timeout = 30_000
    """Time in ms after which a connection is closed if the client does not read the response."""
    max_body_bytes: Annotated[int, Field(ge=1024)] = 32 * 1024 * 1024
    """Maximum size of a request body in bytes."""
    max_sessions: Limit = 8
    """Maximum number of CLI processes that work or are idle; further tasks wait for a slot. 0 =
    other servers of the database (BRIDGE_STORE) run all tasks."""
    max_waiting_sessions: Limit = 0
    """Maximum number of CLI processes that wait for an answer, in addition to
    BRIDGE_MAX_SESSIONS; 0 = four times BRIDGE_MAX_SESSIONS. Above the limit, the oldest question
    is answered as if BRIDGE_QUESTION_TIMEOUT_MS had passed."""
    drain_ms: Milliseconds = 5000
    """Time in ms that running tasks have to finish after SIGTERM; 0 = they are stopped at once."""
    on_stop: Literal["end", "keep"] = "end"
    """Handling of CLIs that still work BRIDGE_DRAIN_MS after SIGTERM. end: they are stopped; keep:
    they run on, and the next server takes them over."""
    audit_file: str | None = None
    """Path of the audit log: each prompt, answer and command, and the client that sent it. Unset:
    audit.jsonl in BRIDGE_STATE_DIR."""
    agents: dict[AgentId, dict[str, Any]] = Field(default={}, alias="agents")
    profiles: dict[AgentId, Profile] = Field(default={}, alias="profiles")


class AuthSettings(Section, alias_generator=prefixed("bridge_")):
    """Authentication: the credentials of clients."""

    mode: Literal["auto", "token", "none"] = Field(default="auto", alias="bridge_auth")
    """How clients authenticate. auto: with the operator token (the file `token` in the state
    folder) or with a configured token, or as the user of the server on the Unix socket; token: with
    a token, and the server does not start without a configured one; none: without credentials, on
    loopback only. Processes that the server started never have access as the operator."""
    token: str | None = Field(default=None, min_length=16)
    """Bearer token that clients send, at least 16 characters."""
    token_file: str | None = None
    """Path of a file with that token, instead of BRIDGE_TOKEN. Other users must not be able to
    write to it."""
    oidc_issuer: TrustedUrl | None = None
    """URL of an OpenID provider. The server also accepts its access tokens (JWT). Requires the
    extra `oidc`."""
    oidc_audience: Names = ()
    """Accepted audiences of these tokens, separated by commas. Required with an issuer."""
    oidc_jwks: UrlOrFile | None = None
    """URL or file with the public keys of the provider. Unset: the URL that the provider
    publishes."""
    oidc_claim: str = Field(default="sub", min_length=1)
    """Claim that identifies the principal. Tasks belong to the principal that created them."""
    oidc_workspaces_claim: str | None = None
    """Claim with a list of absolute paths. The principal may work only below them; a token
    without the claim is refused. Unset: the principal may use all directories of the agent."""
    oidc_scopes: Scopes = ("run", "read", "cancel", "approve")
    """Scopes that these tokens can grant, separated by commas. A token grants `run` if its `scope`
    or `scp` contains `run` or `bridge:run`."""
    tokens: dict[AgentId, Token] = Field(default={}, alias="tokens")
    unix_users: dict[AgentId, Grant] = Field(default={}, alias="unix_users")

    @property
    def names(self) -> set[str]:
        """The principals of CONFIG_FILE."""
        return {*self.tokens, *self.unix_users}

    @property
    def config(self) -> AuthConfig:
        return AuthConfig(
            required=self.mode != "none",
            operator_token=self.token,
            tokens=self.tokens,
            issuer=self.oidc_issuer is not None,
            unix_users=self.unix_users,
            same_user=self.mode == "auto",
        )


class LimitsSettings(Section, alias_generator=prefixed("bridge_")):
    """Limits of one agent: its processes, tasks and messages."""

    per_agent = True

    start_timeout_ms: Milliseconds = 60_000
    """Maximum duration in ms of the handshake with a CLI; 0 = unlimited."""
    question_timeout_ms: Milliseconds = 3_600_000
    """Maximum time in ms that a question waits for an answer; 0 = unlimited. After that, a
    permission is denied, and a turn with any other question ends."""
    session_idle_ms: Milliseconds = 600_000
    """Time in ms that an idle CLI process is kept for the next message; 0 = it ends at once."""
    background_processes: Literal["end", "keep"] = "end"
    """Handling of processes that an agent has left in the background at the end of a task. end:
    they are killed; keep: they live as long as the CLI process (BRIDGE_SESSION_IDLE_MS)."""
    warm_sessions: Limit = 0
    """Number of CLI processes per agent that are started in its default workspace before a task
    needs them; 0 = none. Each takes the memory of an idle CLI. They use free slots of
    BRIDGE_MAX_SESSIONS and are evicted first."""
    session_memory_bytes: Limit = 0
    """Maximum memory in bytes of a CLI and its child processes (needs control groups);
    0 = unlimited."""
    session_cpu_percent: Limit = 0
    """Maximum CPU time of a CLI and its child processes in percent of one processor (needs control
    groups); 0 = unlimited."""
    session_processes: Limit = 0
    """Maximum number of processes and threads of a CLI (needs control groups or
    BRIDGE_SANDBOX_USER); 0 = unlimited."""
    session_file_bytes: Limit = 0
    """Maximum size in bytes of a file that a CLI writes, its own output included; 0 = unlimited."""
    max_tasks: Count = 1000
    """Maximum number of finished tasks per agent that the server keeps. The oldest are removed."""
    keep_tasks_per_context: Limit = 200
    """Maximum number of finished tasks of one context that the server keeps; 0 = unlimited. The
    oldest are removed, so that one context cannot displace the tasks of others."""
    keep_days: Limit = 30
    """Time in days that the server keeps a finished task; 0 = unlimited."""
    max_task_bytes: Limit = 64 * 1024 * 1024
    """Maximum size in bytes of one task in the store, and of its lines in the audit log; 0 =
    unlimited. A larger task fails; the next message continues the conversation."""


class SandboxSettings(Section, alias_generator=prefixed("bridge_sandbox_")):
    """Sandbox of one agent: the boundary of its CLI processes."""

    per_agent = True

    profile: Literal["auto", "none", "landlock", "bwrap", "external"] = Field(
        default="auto", alias="bridge_sandbox"
    )
    """Sandbox profile for CLI processes. landlock, bwrap: a CLI can write only to its workspace and
    to its own folders; external: the boundary is BRIDGE_SANDBOX_WRAPPER; none: a CLI can do all
    that the user of the server can do; auto: landlock if the kernel supports it, otherwise none."""
    write: Paths = ()
    """Further paths that a CLI may write to, separated by `:`."""
    read: Paths = ()
    """Hidden paths, such as `~/.ssh`, that a CLI may read nevertheless, separated by `:`."""
    user: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")
    """User (name or number) that CLI processes run as, if the server runs as root."""
    ports: Names = ()
    """Remote TCP ports that a CLI may connect to, such as 443, separated by commas. Unset: all."""
    unix_sockets: Literal["deny", "allow"] = "deny"
    """UNIX sockets inside the sandbox. deny: a CLI cannot connect to services outside, such as
    D-Bus, Docker, tmux or an SSH agent; before Linux 7.1 it cannot create UNIX sockets either.
    allow: it can use all of them, and these services act outside the sandbox."""
    system_v: Literal["deny", "allow"] = "deny"
    """System V memory, queues and semaphores, and POSIX message queues, under landlock. deny: a CLI
    cannot use them. allow: for PostgreSQL and fakeroot inside; a CLI then reaches those of all
    programs of its user, and can leave some behind. Under bwrap, a CLI has its own ones."""
    wrapper: Words = ()
    """Command that runs the CLI command, for BRIDGE_SANDBOX=external."""


class AgentSettings(Section, alias_generator=prefixed("agent_")):
    """One agent: its CLI, workspace, card and behaviour."""

    per_agent = True

    adapter: str | None = None
    """The agent: claude-code, codex, jsonl, replay, another name of `coding-agent-bridge
    adapters`, acp:ID, or pkg.mod:Class. Unset: the first known CLI on PATH, otherwise replay."""
    binary: str | None = None
    """Path of the CLI, for any adapter."""
    args: Words = ()
    """Further arguments of the CLI, quoted as for a shell."""
    env: Names = ()
    """Names of further environment variables for the CLI, separated by commas, with `*` as
    wildcard. Values come from the environment or from the file of --env-file or `.env`. Names that
    begin with BRIDGE_ or A2ACLI_ never reach the CLI."""
    repo_path: str | None = None
    """Workspace of the agent. Unset: the current directory of the server, or its folder `workspace`
    if that directory is a checkout of the bridge."""
    allowed_repo_roots: Paths = ()
    """Directories below which a client may choose its working directory, separated by `:`. Unset:
    only the workspace."""
    project_config: Literal["deny", "ask", "allow"] = "deny"
    """Files of a repository that a CLI would execute or obey (hooks, MCP servers, plugins,
    settings, .env). deny: the CLI ignores them; if it cannot, the task is refused; ask: the client
    decides; allow: the CLI uses them."""
    model: str | None = Field(default=None, pattern=r"^[^-\s]\S*$")
    """Model that the CLI uses. Unset: the default of the CLI."""
    models: Names = ()
    """Models that a client may choose for its context, separated by commas. Unset: none."""
    force: bool = False
    """Let the CLI act without permission requests. Dangerous."""
    timeout_ms: Milliseconds = 3_600_000
    """Maximum duration of a turn in ms, without the time at questions; 0 = unlimited."""
    idle_exit_ms: Milliseconds = 0
    """Time in ms without CLI output after which a turn ends; 0 = unlimited."""
    text_field: str | None = Field(default=None, min_length=1)
    """For a `generic` CLI that prints one JSON object per line: the member with the text of the
    agent, such as `text` or `delta.text`. Unset: it prints text."""
    approval_pattern: str | None = None
    """Regular expression that recognizes a question of a `generic` CLI. It is matched with the last
    line of the output when the CLI pauses. Unset: the CLI asks no questions."""
    approval_response: Names = ("y", "n")
    """Inputs that allow and deny, separated by a comma."""
    end_pattern: str | None = None
    """Regular expression for the last line of a turn of a `generic` CLI, such as its prompt. Unset:
    each turn is a new process and ends with it."""
    pty: bool = False
    """Run a `generic` CLI on a pseudo-terminal."""
    trace: bool = False
    """Give TRACEPARENT to the process of a CLI that understands it (Claude Code, Codex), if the
    server has traces: the turn that the process is started for."""
    name: str | None = None
    """Name of the agent on its card. Unset: the name of the CLI."""
    description: str | None = None
    """Description of the agent on its card. Unset: a description of the CLI."""
    icon_url: str | None = Field(default=None, pattern=r"^https?://")
    """URL of the icon of the agent on its card. Unset: no icon."""
    provider: str | None = Field(default=None, pattern=r"^\S.* https?://\S+$")
    """Organization that offers the agent and its URL, on its card: `Example https://example.org`.
    Unset: no provider."""
    card: CardShape = Field(default=HYBRID, alias="bridge_card")
    """Shape of the agent card. 1.0 excludes clients that read only 0.3 (Gemini CLI, CrewAI, BeeAI,
    Strands, LangGraph, AI SDK, AG-UI); 0.3 excludes AG2, which needs 1.0."""
    card_keys: str | None = Field(default=None, alias="bridge_card_keys")
    """Path of a JWK Set with the keys that sign the card. Requires BRIDGE_CARD=1.0 and the extra
    `signing`. Unset: the card is not signed."""
    when_busy: Literal["queue", "reject", "steer"] = Field(
        default="queue", alias="bridge_when_busy"
    )
    """Handling of a message to a context with a running turn: queue, reject, or steer (the
    running turn gets the message if the CLI supports this; otherwise it is queued)."""
    on_disconnect: Literal["continue", "cancel"] = Field(
        default="continue", alias="bridge_on_disconnect"
    )
    """Handling of a task after its stream or blocking request was cut, if no other client
    follows the task: continue or cancel. A client can override this in
    metadata.bridge.onDisconnect."""
    thoughts: Thoughts = Field(default="request", alias="bridge_thoughts")
    """Clients that get the thoughts of the model. off: none, and the server stores no thoughts;
    request: those that request them with metadata.bridge.thoughts; always: all except those that
    request none."""
    redact: Literal["known", "patterns", "none"] = Field(default="known", alias="bridge_redact")
    """Secrets to redact from agent output. known: values of variables with key, token, secret or
    password in their name; patterns: also text with the form of a secret; none: no redaction."""
    replay_file: str | None = Field(default=None, alias="bridge_replay_file")
    """Path of the recording for AGENT_ADAPTER=replay. Unset: the recording of the package."""
    skills: tuple[Skill, ...] = ()
    rules: tuple[Rule, ...] = Field(default=(), alias="rules")

    @property
    def workspaces(self) -> Workspaces:
        return Workspaces(self.repo_path or default_workspace(), self.allowed_repo_roots)

    def child_environment(
        self, declared: Iterable[str], extra: Mapping[str, str]
    ) -> dict[str, str]:
        """The variables for a CLI: of the environment those of CHILD_ENVIRONMENT, `declared` (names
        with `*` as wildcard) and AGENT_ENV; of `extra` (the .env file) only those of AGENT_ENV."""
        known = (*CHILD_ENVIRONMENT, *declared)
        sources = ((extra, self.env), (os.environ, (*known, *self.env)))
        return {
            name: value
            for source, patterns in sources
            for name, value in source.items()
            if not name.startswith(OWN_PREFIXES)
            and any(fnmatchcase(name, pattern) for pattern in patterns)
        }
