"""Reading the settings of a server.

Precedence: command line, environment, `.env`, CONFIG_FILE (TOML), default.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridge.auth.config import LOOPBACK
from bridge.errors import ConfigurationError
from bridge.errors.program import command
from bridge.files.own_modes import open_to_reader
from bridge.sandbox.own_files import OwnFile, read_secret, refuse_reachable
from bridge.sandbox.trusted_programs import default_workspace
from bridge.server.settings import former
from bridge.server.settings.broker import missing
from bridge.server.settings.constants import CONSTANTS, Constants
from bridge.server.settings.container import check_container, make_token
from bridge.server.settings.env_file import NAME as IMPLICIT
from bridge.server.settings.env_file import EnvFile, read_implicit
from bridge.server.settings.env_file import read as env_file_of
from bridge.server.settings.root import NAMES, VARIABLES, Settings
from bridge.session.redaction import Secrets, secrets_of
from bridge.task.nearest import nearest
from bridge.workspace.paths import obstacle

IGNORED = ("BRIDGE_URL", "BRIDGE_UI")
"""Variables with the prefix of settings that belong to other programs or earlier releases; so do
those that begin with BRIDGE_MCP. Variables of the client begin with A2ACLI_."""

IN_FILES = (
    *("bridge_token", "bridge_store", "bridge_bus", "bridge_push_key"),
    "bridge_redis_password",
)
"""Settings whose value can be in a file, which NAME_FILE names."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings, the values of the .env file, warnings for the operator, and the path of the
    .env file that was read."""

    settings: Settings
    dotenv: Mapping[str, str]
    warnings: list[str]
    env_file: str | None = None

    @property
    def own_files(self) -> list[OwnFile]:
        """The own files of these settings and of each agent's, and the .env file."""
        read = [OwnFile("--env-file", self.env_file)] if self.env_file else []
        return [*read, *(file for one in self.settings.each for file in one.own_files)]

    @property
    def stderr_is_journal(self) -> bool:
        """Whether journald reads stderr. JOURNAL_STREAM is the device and the inode of its stream,
        and is inherited by programs whose stderr is another file."""
        try:
            found = os.fstat(2)
        except OSError:  # closed
            return False
        return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"

    @property
    def secrets(self) -> Secrets:
        """The secrets to redact from the server's log and the audit log."""
        known = secrets_of({**self.dotenv, **os.environ})
        return Secrets(known | self.settings.own_secrets, patterns=True)


def load(
    flags: Mapping[str, Any],
    env_file: str | None = None,
    constants: Constants | None = None,
    *,
    anywhere: bool = False,
) -> Loaded:
    """The settings from all sources. `flags`: values by name; None is ignored. `env_file`: read
    instead of ./.env. `anywhere`: no agent starts in the current directory. Raises
    ConfigurationError."""
    chosen = {name: value for name, value in flags.items() if value is not None}
    warnings: list[str] = []
    given = {**_known(os.environ, warnings.append), **chosen}
    read = env_file_of(env_file) if env_file else _implicit_env_file(given)
    warnings += read.warnings
    given = {**_known(read.values, warnings.append), **given}
    given = {**_config_file(given.get("config_file"), warnings.append), **given}
    former.give_binary(given, warnings.append)
    make_token(given, warnings)
    settings = Settings(constants=constants or CONSTANTS).updated({**given, **_from_files(given)})
    check_container(settings)
    loaded = Loaded(settings, read.values, warnings, env_file=read.path)
    if settings.agent.repo_path is None and default_workspace() != os.getcwd():
        os.makedirs(default_workspace(), mode=0o700, exist_ok=True)
    check(loaded, anywhere=anywhere)
    warnings += _misspelt(settings, {**read.values, **os.environ})
    return loaded


def _from_files(given: Mapping[str, Any]) -> dict[str, str]:
    """The values of the settings that are in files of their own."""
    found = {}
    for name in IN_FILES:
        path, file = given.get(f"{name}_file"), f"{name}_file".upper()
        if not path:
            continue
        if given.get(name):
            raise ConfigurationError(f"{name.upper()} and {file} are both set: unset one.")
        found[name] = read_secret(file, str(path))
    return found


def _misspelt(settings: Settings, variables: Iterable[str]) -> Iterator[str]:
    """A warning for each variable that looks like a setting and is unknown. Other programs also
    use the prefix AGENT_; such a variable needs a similar name."""
    known = [name.upper() for name in VARIABLES]
    for name in sorted(variables):
        other = name in IGNORED + settings.agent.env or name.startswith("BRIDGE_MCP")
        ignored = other or name.lower() in former.NAMES
        if not ignored and name.startswith(("BRIDGE_", "AGENT_")) and name not in known:
            hint = nearest(name, known, 0.8)
            if hint or name.startswith("BRIDGE_"):
                yield f"Unknown setting {name} was ignored.{hint}"


def _known(variables: Mapping[str, str], say: former.Say) -> dict[str, str]:
    """The settings among `variables`, by name. An empty variable counts as unset."""
    lower = {name.lower(): value for name, value in variables.items() if value}
    names = VARIABLES | former.NAMES
    return former.translated({name: lower[name] for name in lower.keys() & names}, say)


def check(loaded: Loaded, *, anywhere: bool = False) -> None:
    """Raise ConfigurationError for settings of the server or of an agent that cannot be used.
    `anywhere`: as for `load`."""
    for one in loaded.settings.each:
        _check(one)
        if one.agent.repo_path or not anywhere:
            _check_start_directory(one)
            refuse_reachable(loaded.own_files, one.writable)
    for file in loaded.own_files:
        open_to_reader(file.path)


def _check(settings: Settings) -> None:
    """Raise ConfigurationError for values that exclude each other, and for workspaces that the
    agent cannot use."""
    auth, host = settings.auth, settings.server.host
    if bool(auth.oidc_issuer) != bool(auth.oidc_audience):
        raise ConfigurationError(
            "BRIDGE_OIDC_ISSUER and BRIDGE_OIDC_AUDIENCE require each other: without an audience, "
            "the server would accept tokens for other services."
        )
    if auth.mode == "token" and not auth.config.has_tokens:
        raise ConfigurationError(
            "BRIDGE_AUTH=token requires a token: set BRIDGE_TOKEN, BRIDGE_TOKEN_FILE "
            f"(--token-file), [tokens.NAME] in CONFIG_FILE (`{command('token')} NAME` makes "
            "one), or BRIDGE_OIDC_ISSUER."
        )
    if settings.store.database and settings.state_folder is None:
        raise ConfigurationError(
            "BRIDGE_STORE is a database and PORT=0 has no state folder, which keeps the identity "
            "of the server: set BRIDGE_STATE_DIR."
        )
    if settings.server.max_sessions == 0 and not settings.store.database:
        raise ConfigurationError(
            "BRIDGE_MAX_SESSIONS=0 gives all tasks to other servers, which needs a database that "
            "they share: set BRIDGE_STORE, or BRIDGE_MAX_SESSIONS to 1 or more."
        )
    _check_brokers(settings)
    _check_listeners(settings)
    if (
        settings.server.port is not None
        and host not in LOOPBACK
        and not (auth.config.required and auth.config.has_tokens)
    ):
        raise ConfigurationError(
            f"HOST={host} accepts connections from other machines, and a client can run agents on "
            "this machine: set BRIDGE_TOKEN or BRIDGE_TOKEN_FILE (--token-file), or HOST=127.0.0.1 "
            "(docs/deploy.md)."
        )
    _check_grpc(settings)
    workspaces = settings.agent.workspaces
    for path in (workspaces.default, *workspaces.roots):
        setting = "AGENT_REPO_PATH or AGENT_ALLOWED_REPO_ROOTS"
        if not os.path.isdir(path):
            raise ConfigurationError(f"{setting}: {path} is not a directory.")
        problem = obstacle(path)
        if problem:
            raise ConfigurationError(f"{setting}: {path} cannot be a workspace: {problem}.")


def _check_start_directory(settings: Settings) -> None:
    here = os.getcwd()
    if settings.agent.repo_path is None and here == os.path.realpath(os.path.expanduser("~")):
        raise ConfigurationError(
            f"{here} is your home directory, and agents do not work in all of it: cd to a project, "
            "or name its directory with --root DIR."
        )


def _check_brokers(settings: Settings) -> None:
    if settings.store.redis and settings.store.database is None:
        raise ConfigurationError(
            "BRIDGE_BUS carries hints between servers on one database: set BRIDGE_STORE to "
            "postgresql://…, or unset BRIDGE_BUS."
        )
    if problem := missing(settings.redis, settings.push, settings.auth.tokens):
        raise ConfigurationError(problem)


def _check_grpc(settings: Settings) -> None:
    """Raise ConfigurationError for a gRPC port that would send tokens over a network in clear text,
    or that needs no token there."""
    grpc, auth = settings.grpc, settings.auth.config
    if bool(grpc.tls_cert) != bool(grpc.tls_key):
        raise ConfigurationError("BRIDGE_GRPC_TLS_CERT and BRIDGE_GRPC_TLS_KEY require each other.")
    if grpc.port is None or grpc.host in LOOPBACK:
        return
    if not grpc.tls_cert:
        raise ConfigurationError(
            f"BRIDGE_GRPC_HOST={grpc.host} accepts connections from other machines: set "
            "BRIDGE_GRPC_TLS_CERT and BRIDGE_GRPC_TLS_KEY, or use 127.0.0.1 behind a proxy "
            "(docs/deploy.md)."
        )
    if not (auth.required and auth.has_tokens):
        raise ConfigurationError(
            f"BRIDGE_GRPC_HOST={grpc.host} accepts connections from other machines, and a client "
            "can run agents on this machine: set BRIDGE_TOKEN or BRIDGE_TOKEN_FILE (--token-file; "
            "docs/deploy.md)."
        )


def _check_listeners(settings: Settings) -> None:
    server = settings.server
    if server.unix_socket:
        return
    if server.port is None:
        raise ConfigurationError("PORT=none requires BRIDGE_UNIX_SOCKET: nothing else serves HTTP.")
    if server.unix_group or settings.auth.unix_users:
        setting = "BRIDGE_UNIX_GROUP" if server.unix_group else "[unix_users.NAME]"
        raise ConfigurationError(f"{setting} requires BRIDGE_UNIX_SOCKET.")


def _implicit_env_file(given: Mapping[str, Any]) -> EnvFile:
    """The file .env of the start directory, as far as it is used."""
    if not os.path.lexists(IMPLICIT):
        return EnvFile()
    found = {**_config_file(given.get("config_file"), lambda text: None), **given}
    former.give_binary(found, lambda text: None)
    return read_implicit(Settings().updated(found))


def _config_file(path: Any, say: former.Say) -> dict[str, Any]:
    if not path:
        return {}
    open_to_reader(path)
    try:
        values = tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"cannot read CONFIG_FILE {path}: {error}") from None
    known = {name.lower(): value for name, value in values.items()}
    for name in known:
        if name not in NAMES and name not in former.NAMES:
            raise ConfigurationError(f"{path}: unknown setting {name}.{nearest(name, NAMES)}")
    tables = known.get("agents")
    if isinstance(tables, dict):
        known["agents"] = {
            name: former.of_agent(table, say) if isinstance(table, dict) else table
            for name, table in tables.items()
        }
    return former.translated(known, say)
