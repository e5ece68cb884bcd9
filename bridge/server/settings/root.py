"""All sections of the settings, and the values that follow from several of them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from bridge.errors import ConfigurationError
from bridge.sandbox.credentials import named
from bridge.sandbox.own_files import OwnFile
from bridge.server.settings import library_files
from bridge.server.settings.bindings import GrpcSettings, McpSettings
from bridge.server.settings.broker import RedisSettings
from bridge.server.settings.constants import CONSTANTS, Constants
from bridge.server.settings.operate import OperateSettings
from bridge.server.settings.sections import (
    AgentSettings,
    AuthSettings,
    LimitsSettings,
    SandboxSettings,
    Section,
    ServerSettings,
)
from bridge.server.settings.storage import PushSettings, StoreSettings
from bridge.server.settings.traces import TraceSettings
from bridge.session.redaction import NO_SECRETS, Secrets, secrets_of
from bridge.task.nearest import nearest


class Settings(BaseModel):
    """The settings of a server, or those that hold for one of its agents."""

    model_config = ConfigDict(frozen=True)

    server: ServerSettings = ServerSettings()
    auth: AuthSettings = AuthSettings()
    limits: LimitsSettings = LimitsSettings()
    sandbox: SandboxSettings = SandboxSettings()
    store: StoreSettings = StoreSettings()
    push: PushSettings = PushSettings()
    mcp: McpSettings = McpSettings()
    grpc: GrpcSettings = GrpcSettings()
    redis: RedisSettings = RedisSettings()
    operate: OperateSettings = OperateSettings()
    traces: TraceSettings = TraceSettings()
    agent: AgentSettings = AgentSettings()
    constants: Constants = CONSTANTS

    def updated(self, given: Mapping[str, Any]) -> Settings:
        """A copy with the values of `given`; its keys are in NAMES. Raises ConfigurationError with
        all invalid values."""
        sections: dict[str, Any] = {name: dict(getattr(self, name)) for name in SECTIONS}
        for name, value in given.items():
            sections[NAMES[name]][name] = value
        try:
            return Settings.model_validate({**sections, "constants": self.constants})
        except ValidationError as invalid:
            raise ConfigurationError(_explain(invalid)) from None

    def for_agent(self, agent_id: str) -> Settings:
        """A copy with the values of [agents.ID]. In that table the prefixes AGENT_ and BRIDGE_ are
        optional, `workspace` is AGENT_REPO_PATH, and `roots` is AGENT_ALLOWED_REPO_ROOTS."""
        table = self.server.agents[agent_id]
        try:
            return self.updated({_agent_setting(name): value for name, value in table.items()})
        except ConfigurationError as error:
            raise ConfigurationError(f"[agents.{agent_id}] {error}") from None

    @property
    def each(self) -> list[Settings]:
        """These settings, and those of each agent."""
        return [self, *map(self.for_agent, self.server.agents)]

    @property
    def state_folder(self) -> Path | None:
        """The state folder of the server, or None. The default contains the port, or without one a
        digest of the path of the Unix socket, so that servers on one machine have different
        folders."""
        if self.store.state_dir:
            return Path(self.store.state_dir).expanduser().resolve()
        if self.server.port is None:
            path = os.path.realpath(self.server.unix_socket or "")
            return self.state_home / f"unix-{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}"
        return self.state_home / str(self.server.port) if self.server.port else None

    @property
    def store_folder(self) -> Path | None:
        """The state folder; None for a server that stores nothing."""
        return None if self.store.mode == "memory" else self.state_folder

    @property
    def shares(self) -> dict[str, list[str]]:
        """The real paths of the shares by name."""
        found: dict[str, list[str]] = {}
        for one in self.store.share:
            name, _, path = one.partition("=")
            workspaces = self.agent.workspaces
            paths = [path] if path else [workspaces.default, *workspaces.roots]
            found.setdefault(name, []).extend(map(os.path.realpath, paths))
        return found

    @property
    def has_push(self) -> bool:
        """Whether the server sends push notifications. Their secrets do not leave the machine
        unless they are encrypted."""
        return self.store.database is None or self.push.key is not None

    @property
    def state_home(self) -> Path:
        """The parent of the default state folders of this user."""
        state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        return Path(state) / "coding-agent-bridge"

    @property
    def audit_file(self) -> Path | None:
        """The path of the audit log; None: in the state folder, if there is one."""
        return Path(self.server.audit_file).expanduser() if self.server.audit_file else None

    @property
    def own_files(self) -> Iterator[OwnFile]:
        """The files from which the server reads settings or secrets, or to which it writes, and its
        Unix socket."""
        paths = {
            "CONFIG_FILE": self.server.config_file,
            "BRIDGE_TOKEN_FILE": self.auth.token_file,
            "BRIDGE_STORE_FILE": self.store.store_file,
            "BRIDGE_BUS_FILE": self.store.bus_file,
            "BRIDGE_PUSH_KEY_FILE": self.push.key_file,
            "BRIDGE_REDIS_PASSWORD_FILE": self.redis.password_file,
            "BRIDGE_GRPC_TLS_CERT": self.grpc.tls_cert,
            "BRIDGE_GRPC_TLS_KEY": self.grpc.tls_key,
            "BRIDGE_CARD_KEYS": self.agent.card_keys,
            "BRIDGE_AUDIT_FILE": self.server.audit_file,
            "BRIDGE_OIDC_JWKS": self.auth.oidc_jwks,
            "BRIDGE_UNIX_SOCKET": self.server.unix_socket,
        }
        for setting, path in paths.items():
            if path and not (setting == "BRIDGE_OIDC_JWKS" and "://" in path):
                yield OwnFile(setting, path)
        yield from library_files.of_variables(os.environ)
        yield from library_files.of_url("BRIDGE_STORE", self.store.database)
        yield from library_files.of_url("BRIDGE_BUS", self.store.redis)
        yield from library_files.of_url("BRIDGE_REDIS_URL", self.redis.url)
        folder = self.store_folder
        if folder:
            yield OwnFile("BRIDGE_STATE_DIR", self.store.state_dir or str(folder), folder=True)
        elif self.auth.config.required:  # the folder of the operator token
            yield OwnFile("XDG_STATE_HOME", str(self.state_home), folder=True)

    def files_of_tools(self, known: Mapping[str, str]) -> Iterator[str]:
        """Files with credentials that the environment names, except those that a CLI with the
        variables `known` uses."""
        return named(os.environ, known)

    @property
    def writable(self) -> dict[str, str]:
        """The paths that the agent may write to, each with the setting that names it."""
        workspaces = self.agent.workspaces
        named = {path: "BRIDGE_SANDBOX_WRITE" for path in self.sandbox.write}
        named |= {path: "AGENT_ALLOWED_REPO_ROOTS" for path in workspaces.roots}
        return {**named, workspaces.default: "AGENT_REPO_PATH"}

    @property
    def own_secrets(self) -> set[str]:
        """The secrets among the settings."""
        keys = (self.push.key or "").split(",")
        own = {self.auth.token or "", *self.store.passwords, *keys}
        return {*own, *self.redis.secrets, *self.traces.secrets}

    def secrets(self, *environments: Mapping[str, str]) -> Secrets:
        """The secrets to redact from agent output: those of the server's environment and of
        `environments`."""
        if self.agent.redact == "none":
            return NO_SECRETS
        found = self.own_secrets.union(*map(secrets_of, (os.environ, *environments)))
        return Secrets(found, self.agent.redact == "patterns")


SECTIONS: dict[str, type[Section]] = {
    name: type(field.default)
    for name, field in Settings.model_fields.items()
    if isinstance(field.default, Section)
}
NAMES = {
    field.alias or name: section
    for section, kind in SECTIONS.items()
    for name, field in kind.model_fields.items()
}
"""The name of each setting, with its section."""
TABLES = frozenset({"agents", "agent_skills", "profiles", "tokens", "unix_users", "rules"})
"""The settings that are tables: only CONFIG_FILE can contain them."""
VARIABLES = frozenset(NAMES) - TABLES


def _agent_setting(written: str) -> str:
    """The name of the setting that the key `written` of an [agents.ID] table means."""
    short = written.lower()
    wanted = {"workspace": "agent_repo_path", "roots": "agent_allowed_repo_roots"}
    names = (wanted.get(short, ""), short, f"agent_{short}", f"bridge_{short}")
    found = next((name for name in names if name in NAMES), None)
    if found is None:
        hint = nearest(short, [name.removeprefix("agent_") for name in NAMES])
        raise ConfigurationError(f"unknown setting {written}.{hint}")
    if not SECTIONS[NAMES[found]].per_agent:
        raise ConfigurationError(
            f"{written} is a setting of the whole server: move it out of this table."
        )
    return found


def _explain(invalid: ValidationError) -> str:
    """Each error as NAME.member: message. A location begins with the section and the setting."""
    return "; ".join(
        f"{'.'.join([str(error['loc'][1]).upper(), *map(str, error['loc'][2:])])}: {error['msg']}"
        for error in invalid.errors(include_url=False, include_input=False)
    )
