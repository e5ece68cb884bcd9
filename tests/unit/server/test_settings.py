"""Settings from every source, their order, and the sources that are refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge.errors import ConfigurationError
from bridge.server.settings import former
from bridge.server.settings.env_file import may_set
from bridge.server.settings.load import Loaded, load
from bridge.server.settings.places import Places
from bridge.server.settings.root import NAMES, Settings
from bridge.workspace.project_config import guards
from tests.support.bridge_process import bridge
from tests.support.client import Client, artifact_text
from tests.support.command_line import agent, refusal, run
from tests.support.sandboxed import needs_root

# What each setting looks like in the environment, and what it means then.
VALUES: dict[str, tuple[str, Any]] = {
    "host": ("::1", "::1"),
    "port": ("0", 0),
    "bridge_unix_socket": ("/run/x/socket", "/run/x/socket"),
    "public_url": ("https://example.org", "https://example.org"),
    "agent_adapter": ("jsonl", "jsonl"),
    "agent_model": ("opus", "opus"),
    "agent_models": ("opus, sonnet", ("opus", "sonnet")),
    "agent_timeout_ms": ("5", 5),
    "agent_idle_exit_ms": ("0", 0),
    "agent_force": ("true", True),
    "agent_text_field": ("delta.text", "delta.text"),
    "agent_approval_pattern": ("sure\\?", "sure\\?"),
    "agent_approval_response": ("yes, no", ("yes", "no")),
    "agent_end_pattern": ("^> $", "^> $"),
    "agent_pty": ("true", True),
    "agent_project_config": ("ask", "ask"),
    "agent_repo_path": ("/usr", "/usr"),
    "agent_allowed_repo_roots": ("/usr:/usr/lib", ("/usr", "/usr/lib")),
    "agent_binary": ("~/agent", "~/agent"),
    "agent_args": ("-a 'b c' \"d\"", ("-a", "b c", "d")),
    "agent_env": ("A, B C", ("A", "B", "C")),
    "log_level": ("DEBUG", "DEBUG"),
    "log_format": ("json", "json"),
    "log_requests": ("true", True),
    "bridge_token": ("x" * 16, "x" * 16),
    "bridge_auth": ("none", "none"),
    "bridge_oidc_jwks": ("keys.json", "keys.json"),
    "bridge_oidc_claim": ("email", "email"),
    "bridge_oidc_workspaces_claim": ("dirs", "dirs"),
    "bridge_oidc_scopes": ("run, admin", ("run", "admin")),
    "bridge_metrics": ("on", "on"),
    "agent_trace": ("true", True),
    "otel_exporter_otlp_endpoint": ("http://c:4318", "http://c:4318"),
    "otel_exporter_otlp_traces_endpoint": ("https://c/v1/traces", "https://c/v1/traces"),
    "otel_exporter_otlp_headers": ("a=b,c=d", "a=b,c=d"),
    "otel_exporter_otlp_traces_headers": ("a=b", "a=b"),
    "otel_sdk_disabled": ("true", True),
    "otel_traces_exporter": ("none", "none"),
    "otel_service_name": ("bridge-1", "bridge-1"),
    "otel_traces_sampler": ("parentbased_traceidratio", "parentbased_traceidratio"),
    "otel_traces_sampler_arg": ("0.25", 0.25),
    "otel_instrumentation_genai_capture_message_content": ("true", True),
    "bridge_min_free_bytes": ("0", 0),
    "bridge_sandbox": ("landlock", "landlock"),
    "bridge_sandbox_write": ("/usr:/opt", ("/usr", "/opt")),
    "bridge_sandbox_read": ("~/.ssh", ("~/.ssh",)),
    "bridge_sandbox_user": ("nobody", "nobody"),
    "bridge_sandbox_ports": ("443, 80", ("443", "80")),
    "bridge_sandbox_unix_sockets": ("allow", "allow"),
    "bridge_sandbox_system_v": ("allow", "allow"),
    "bridge_sandbox_wrapper": ("nice -n 5", ("nice", "-n", "5")),
    "bridge_allowed_hosts": ("Build.example, [::2]", ("build.example", "::2")),
    "bridge_trusted_proxies": ("10.0.0.7, ::1", ("10.0.0.7/32", "::1/128")),
    "bridge_allowed_origins": (
        "https://App.example:443 http://x:8",
        ("https://app.example", "http://x:8"),
    ),
    "bridge_max_connections": ("5", 5),
    "bridge_max_connections_per_peer": ("6", 6),
    "bridge_max_connections_per_second": ("6", 6),
    "bridge_stall_timeout_ms": ("9", 9),
    "bridge_max_sessions": ("1", 1),
    "bridge_start_timeout_ms": ("5", 5),
    "bridge_max_waiting_sessions": ("5", 5),
    "bridge_warm_sessions": ("2", 2),
    "bridge_session_idle_ms": ("0", 0),
    "bridge_background_processes": ("keep", "keep"),
    "bridge_session_memory_bytes": ("1", 1),
    "bridge_session_cpu_percent": ("150", 150),
    "bridge_session_processes": ("2", 2),
    "bridge_session_file_bytes": ("3", 3),
    "bridge_max_tasks": ("1", 1),
    "bridge_keep_tasks_per_context": ("0", 0),
    "bridge_when_busy": ("reject", "reject"),
    "bridge_on_disconnect": ("cancel", "cancel"),
    "bridge_max_body_bytes": ("1024", 1024),
    "bridge_max_task_bytes": ("0", 0),
    "bridge_drain_ms": ("0", 0),
    "agent_name": ("A name", "A name"),
    "agent_description": ("What it does", "What it does"),
    "agent_icon_url": ("https://example.org/i.png", "https://example.org/i.png"),
    "agent_provider": ("Example https://example.org", "Example https://example.org"),
    "bridge_node": ("worker:1", "worker:1"),
    "bridge_share": ("a=/srv/work, b", ("a=/srv/work", "b")),
    "bridge_lease_ms": ("3000", 3000),
    "bridge_card": ("0.3", "0.3"),
    "bridge_card_keys": ("keys.json", "keys.json"),
    "bridge_thoughts": ("off", "off"),
    "bridge_push_allow_private": ("yes", True),
    "bridge_state_dir": ("/var/x", "/var/x"),
    "bridge_store": ("memory", "memory"),
    "bridge_bus": ("notify", "notify"),
    "bridge_push_key": ("a key", "a key"),
    "bridge_mcp": ("true", "true"),
    "bridge_mcp_approve": ("model", "model"),
    "bridge_mcp_forms": ("quick", "quick"),
    "bridge_grpc_port": ("50051", 50051),
    "bridge_websocket": ("true", True),
    "bridge_grpc_host": ("::1", "::1"),
    "bridge_grpc_public_address": ("grpc.example.org:443", "grpc.example.org:443"),
    "bridge_redis_url": ("redis://h:1/0", "redis://h:1/0"),
    "bridge_redis_password": ("word", "word"),
    "bridge_redis_prefix": ("p", "p"),
    "bridge_redis_reply_ttl_ms": ("2000", 2000),
    "bridge_keep_days": ("3", 3),
    "bridge_max_store_bytes": ("4", 4),
    "bridge_on_stop": ("keep", "keep"),
    "bridge_question_timeout_ms": ("5", 5),
    "bridge_audit_file": ("/var/audit.jsonl", "/var/audit.jsonl"),
    "bridge_redact": ("patterns", "patterns"),
    "bridge_replay_file": ("/x.jsonl", "/x.jsonl"),
}
# Tested below, or for CONFIG_FILE alone:
ELSEWHERE = {
    *("bridge_token_file", "bridge_store_file", "bridge_push_key_file"),  # which are read at once
    *("bridge_bus_file", "bridge_redis_password_file", "bridge_push_relay"),
    *("config_file", "agents", "agent_skills", "profiles", "tokens", "rules"),
    *("bridge_oidc_issuer", "bridge_oidc_audience"),  # which need each other
    *("bridge_grpc_tls_cert", "bridge_grpc_tls_key"),  # in tests/system/test_grpc.py
    *("bridge_unix_group", "unix_users"),  # which need a Unix socket
}


@pytest.fixture(autouse=True)
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that the server is started in, with nothing set; the workspace is another."""
    for name in list(os.environ):
        if name.lower() in NAMES.keys() | former.NAMES:
            monkeypatch.delenv(name)
    for folder in ("start", "workspace"):
        (tmp_path / folder).mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / "start")
    monkeypatch.setenv("AGENT_REPO_PATH", str(tmp_path / "workspace"))
    return tmp_path / "start"


Source = Callable[[str, str], Loaded]


def by_name(settings: Settings) -> dict[str, Any]:
    """Every value by the name of its setting, from all sections."""
    sections = settings.model_dump(by_alias=True, exclude={"constants"}).values()
    return {name: value for section in sections for name, value in section.items()}


@pytest.fixture(params=["environment", ".env", "--env-file", "CONFIG_FILE"])
def source(request: pytest.FixtureRequest, start: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """Loads the settings with one of them given there."""

    def environment(name: str, value: str) -> Loaded:
        monkeypatch.setenv(name, value)
        return load({})

    def dotenv(name: str, value: str) -> Loaded:
        (start / ".env").write_text(f"# a comment\nexport {name}={json.dumps(value)}\n")
        return load({})

    def env_file(name: str, value: str) -> Loaded:
        (start / "my.env").write_text(f"{name}={json.dumps(value)}\n")
        return load({}, str(start / "my.env"))

    def config_file(name: str, value: str) -> Loaded:
        (start / "settings.toml").write_text(f"{name.lower()} = {json.dumps(value)}\n")
        return load({"config_file": str(start / "settings.toml")})

    sources = {
        "environment": environment,
        ".env": dotenv,
        "--env-file": env_file,
        "CONFIG_FILE": config_file,
    }
    return sources[request.param]


def test_every_setting_is_among_those_that_are_tried() -> None:
    assert set(NAMES) == set(VALUES) | ELSEWHERE


@pytest.mark.parametrize("name", VALUES)
def test_every_setting_is_read_from_every_source(
    source: Source, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, value = VALUES[name]
    if source.__name__ == "dotenv" and not may_set(name):
        return  # see test_an_implicit_env_file_chooses_no_program_boundary_credential_or_path
    if name == "agent_repo_path":
        monkeypatch.delenv("AGENT_REPO_PATH")
    if name == "host":
        monkeypatch.setenv("BRIDGE_TOKEN", "x" * 16)
    assert by_name(source(name.upper(), text).settings)[name] == value


@pytest.mark.parametrize(("old", "word"), [("true", "always"), ("false", "request")])
def test_thoughts_have_the_words_of_earlier_versions(source: Source, old: str, word: str) -> None:
    assert source("BRIDGE_THOUGHTS", old).settings.agent.thoughts == word


def test_empty_values_are_not_set(monkeypatch: pytest.MonkeyPatch, start: Path) -> None:
    monkeypatch.setenv("PORT", "")
    (start / ".env").write_text("HOST=\nLOG_LEVEL\nAGENT_MODEL=\n")
    settings = load({}).settings
    server = settings.server
    assert (server.port, server.host, server.log_level) == (41242, "127.0.0.1", "INFO")
    assert settings.agent.model is None


def test_flags_come_before_the_environment_before_the_env_file_before_the_config_file(
    start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = start / "settings.toml"
    config.write_text("PORT = 4\nhost = '::1'\nlog_level = 'ERROR'\nagent_model = 'toml'\n")
    monkeypatch.setenv("CONFIG_FILE", str(config))
    (start / ".env").write_text("PORT=3\nHOST=localhost\nLOG_LEVEL=WARNING\n")
    monkeypatch.setenv("PORT", "2")
    monkeypatch.setenv("HOST", "127.0.0.1")
    settings = load({"port": "1", "host": None}).settings
    assert (settings.server.port, settings.server.host) == (1, "127.0.0.1")
    assert (settings.server.log_level, settings.agent.model) == ("WARNING", "toml")
    assert load({}).settings.server.port == 2
    monkeypatch.delenv("PORT")
    assert load({}).settings.server.port == 3
    (start / ".env").unlink()
    assert load({"config_file": str(config)}).settings.server.port == 4


def test_another_env_file_takes_the_place_of_the_implicit_one(start: Path) -> None:
    (start / ".env").write_text("PORT=1\nLOG_LEVEL=ERROR\n")
    (start / "my.env").write_text("PORT=2\n")
    settings = load({}, str(start / "my.env")).settings
    assert (settings.server.port, settings.server.log_level) == (2, "INFO")


def test_values_of_an_env_file_are_taken_as_they_are(
    start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "revealed")
    (start / ".env").write_text("AGENT_NAME='${SECRET} $SECRET'\nAGENT_DESCRIPTION=\"a # b\"\n")
    settings = load({}).settings
    assert (settings.agent.name, settings.agent.description) == ("${SECRET} $SECRET", "a # b")
    assert "PORT" not in os.environ


# --- a database ---------------------------------------------------------------------------------

SECRET_URL = "postgresql://me:pa%40ss-word@db.example:5433/bridge?sslmode=verify-full"


@pytest.mark.parametrize("url", [SECRET_URL, SECRET_URL.replace("postgresql", "postgres")])
def test_the_store_may_be_a_database(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("BRIDGE_STORE", url)
    loaded = load({})
    settings = loaded.settings
    assert settings.store.database == url
    assert settings.store_folder == settings.state_folder is not None
    assert settings.store.shown == url.replace("me:pa%40ss-word@", "").partition("?")[0]
    assert "pa%40ss" not in repr(settings) and settings.store.passwords == {"pa@ss-word"}
    assert "pa@ss-word" not in loaded.secrets.clean("the password is pa@ss-word")
    assert not settings.has_push
    monkeypatch.setenv("BRIDGE_PUSH_KEY", "first-secret-key,second-secret-key")
    loaded = load({})
    assert loaded.settings.has_push
    assert "second-secret" not in loaded.secrets.clean("of second-secret-key")


@pytest.mark.parametrize(
    ("url", "password"),
    [
        ("postgresql:///bridge?host=/run/postgresql", None),
        ("postgresql://h/b?password=a%20b", "a b"),
        ("postgresql://[::1/b", "postgresql://[::1/b"),  # it cannot be read: all of it is secret
        ("durable", None),
    ],
)
def test_the_password_of_a_url_is_found(
    monkeypatch: pytest.MonkeyPatch, url: str, password: str | None
) -> None:
    monkeypatch.setenv("BRIDGE_STORE", url)
    assert load({}).settings.store.passwords == ({password} if password else set())


def test_hints_may_be_carried_by_redis(start: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = start / "bus"
    file.write_text("rediss://:pass%40of-redis@cache.example\n")
    file.chmod(0o600)
    monkeypatch.setenv("BRIDGE_BUS_FILE", str(file))
    with pytest.raises(ConfigurationError, match=r"BRIDGE_BUS .* set BRIDGE_STORE"):
        load({})
    monkeypatch.setenv("BRIDGE_STORE", SECRET_URL)
    loaded = load({})
    assert loaded.settings.store.redis == "rediss://:pass%40of-redis@cache.example"
    assert "BRIDGE_BUS_FILE" in {one.setting for one in loaded.settings.own_files}
    assert "pass%40of" not in repr(loaded.settings)
    assert "pass@of-redis" not in loaded.secrets.clean("the password is pass@of-redis")
    monkeypatch.setenv("BRIDGE_BUS_FILE", "")
    monkeypatch.setenv("BRIDGE_BUS", "amqp://:pa55word@h")
    with pytest.raises(ConfigurationError, match=r"BRIDGE_BUS: .*rediss://") as refused:
        load({})
    assert "pa55word" not in str(refused.value)


def test_files_have_the_url_and_the_keys(start: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("BRIDGE_STORE", SECRET_URL), ("BRIDGE_PUSH_KEY", "a-secret-key")):
        file = start / name
        file.write_text(f"{value}\n")
        file.chmod(0o600)
        monkeypatch.setenv(f"{name}_FILE", str(file))
    settings = load({}).settings
    assert (settings.store.database, settings.push.key) == (SECRET_URL, "a-secret-key")
    assert {"BRIDGE_STORE_FILE", "BRIDGE_PUSH_KEY_FILE"} <= {
        file.setting for file in settings.own_files
    }
    monkeypatch.setenv("BRIDGE_STORE", "memory")
    with pytest.raises(ConfigurationError, match="BRIDGE_STORE and BRIDGE_STORE_FILE are both"):
        load({})


@pytest.mark.parametrize("value", ["mysql://me:pa55word@h/b", "postgres", "disk"])
def test_another_place_is_refused_without_its_password(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("BRIDGE_STORE", value)
    with pytest.raises(ConfigurationError, match=r"BRIDGE_STORE: .*postgresql://") as refused:
        load({})
    assert "pa55word" not in str(refused.value)


def test_a_database_requires_a_state_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIDGE_STORE", SECRET_URL)
    monkeypatch.setenv("PORT", "0")
    with pytest.raises(ConfigurationError, match="set BRIDGE_STATE_DIR"):
        load({})


# --- files that are not read -------------------------------------------------------------------


def inside(start: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Add the start directory to the directories of agents."""
    root = str(start.parent)
    match how:
        case "it is the workspace":
            monkeypatch.setenv("AGENT_REPO_PATH", str(start))
        case "no workspace is set":
            monkeypatch.delenv("AGENT_REPO_PATH")
        case "it is below the workspace":
            monkeypatch.setenv("AGENT_REPO_PATH", root)
        case "it is an allowed root":
            monkeypatch.setenv("AGENT_ALLOWED_REPO_ROOTS", f"/usr:{start}")
        case "the workspace is a link to it":
            (start.parent / "link").symlink_to(start)
            monkeypatch.setenv("AGENT_REPO_PATH", f"{root}/link")
        case "the file is a link into the workspace":
            inner = start.parent / "workspace" / ".env"
            (start / ".env").rename(inner)
            (start / ".env").symlink_to(inner)
        case _:
            config = start.parent / "settings.toml"
            line = {
                "CONFIG_FILE allows it": f"agent_allowed_repo_roots = ['{start}']",
                "CONFIG_FILE gives it to an agent": f"[agents.a]\nroots = ['{start}']",
            }[how]
            config.write_text(f"{line}\n")
            monkeypatch.setenv("CONFIG_FILE", str(config))


WAYS = [
    "it is the workspace",
    "no workspace is set",
    "it is below the workspace",
    "it is an allowed root",
    "the workspace is a link to it",
    pytest.param("the file is a link into the workspace"),
    pytest.param("CONFIG_FILE allows it"),
    pytest.param("CONFIG_FILE gives it to an agent"),
]


@pytest.mark.parametrize("how", WAYS)
def test_an_env_file_that_agents_can_write_is_not_read_and_causes_a_warning(
    start: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    (start / ".env").write_text("PORT=1\nBRIDGE_TOKEN=chosen-by-the-repository\n")
    inside(start, monkeypatch, how)
    loaded = load({})
    assert loaded.settings.server.port == 41242 and loaded.settings.auth.token is None
    assert loaded.dotenv == {}
    assert len(loaded.warnings) == 1
    assert "inside the workspace" in loaded.warnings[0] and "--env-file" in loaded.warnings[0]


OF_LIBRARIES: dict[str, tuple[dict[str, str], dict[str, bool]]] = {
    "a database": (
        {
            "BRIDGE_STORE": "postgresql://h/d?sslkey=/k&sslcert=/c&passfile=/p&sslrootcert=/r",
            "BRIDGE_STATE_DIR": "/state",
            "PGSSLKEY": "/env-key",
            "PGPASSFILE": "/env-pass",
        },
        {"/k": False, "/c": False, "/p": False, "/r": True, "/env-key": False, "/env-pass": False},
    ),
    "redis": (
        {"BRIDGE_REDIS_URL": "rediss://h/0?ssl_keyfile=/k&ssl_ca_certs=/r"},
        {"/k": False, "/r": True},
    ),
    "a collector": (
        {"OTEL_EXPORTER_OTLP_CLIENT_KEY": "/k", "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE": "/r"},
        {"/k": False, "/r": True},
    ),
    "trusted certificates": ({"SSL_CERT_FILE": "/r"}, {"/r": True}),
}


@pytest.mark.parametrize("name", OF_LIBRARIES)
def test_files_that_libraries_read_are_own_files(
    name: str, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, wanted = OF_LIBRARIES[name]
    for variable in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in given.items():
        monkeypatch.setenv(variable, value)
    found = {file.path: file.public for file in load({}).own_files}
    assert {path: found.get(path) for path in wanted} == wanted
    variable = next(reversed(given))
    inside = str(start.parent / "workspace/x")
    monkeypatch.setenv(variable, given[variable].replace("=/k", f"={inside}").replace("/r", inside))
    if "://" not in given[variable]:
        monkeypatch.setenv(variable, inside)
    with pytest.raises(ConfigurationError, match="can be changed by agents"):
        load({})


CHOSEN_BY_NOBODY = {
    "a program": "AGENT_BINARY=/tmp/evil",
    "code": "AGENT_ADAPTER=evil:Adapter",
    "no sandbox": "BRIDGE_SANDBOX=none",
    "a hole in the sandbox": "BRIDGE_SANDBOX_READ=~",
    "no authentication": "BRIDGE_AUTH=none",
    "a token": "BRIDGE_TOKEN=chosen-by-the-repository",
    "a path": "CONFIG_FILE=evil.toml",
    "another state": "BRIDGE_STATE_DIR=/tmp/evil",
    "a database": "BRIDGE_STORE=postgresql://evil/",
    "no questions": "AGENT_FORCE=true",
    "variables of a CLI": "AGENT_ENV=NODE_OPTIONS",
    "an argument": "AGENT_ARGS=--evil",
    "a collector": "OTEL_EXPORTER_OTLP_ENDPOINT=http://evil",
}


@pytest.mark.parametrize("line", CHOSEN_BY_NOBODY.values(), ids=list(CHOSEN_BY_NOBODY))
def test_an_implicit_env_file_chooses_no_program_boundary_credential_or_path(
    start: Path, line: str
) -> None:
    (start / ".env").write_text(f"{line}\nPORT=1\n")
    loaded = load({})
    name, _, value = line.partition("=")
    assert by_name(loaded.settings)[name.lower()] == by_name(Settings())[name.lower()]
    assert loaded.settings.server.port == 1 and name not in loaded.dotenv
    (warning,) = loaded.warnings
    assert name in warning and value not in warning
    assert f"{start}/.env" in warning and "--env-file .env" in warning


def test_an_env_file_that_is_named_chooses_all(start: Path) -> None:
    (start / ".git").mkdir()
    (start / ".env").write_text("BRIDGE_SANDBOX=none\nAGENT_FORCE=true\n")
    loaded = load({}, ".env")
    assert loaded.settings.sandbox.profile == "none" and loaded.warnings == []


def spoiled(start: Path, how: str) -> None:
    file = start / ".env"
    match how:
        case "others may write it":
            file.chmod(0o646)
        case "a group may write it":
            file.chmod(0o664)
        case "another user owns it":
            os.chown(file, 65534, 65534)
        case "a pipe":
            file.unlink()
            os.mkfifo(file)
        case "a link into a repository":
            (start.parent / "repository/.git").mkdir(parents=True)
            file.rename(start.parent / "repository/.env")
            file.symlink_to("../repository/.env")
        case "the workspace of another server":
            Places(Settings().state_home).record([start.parent / "state"], [str(start)])
        case "a bare repository":
            for name in ("HEAD", "objects", "refs"):
                (start / name).mkdir()
        case "a linked worktree above":
            (start.parent / ".git").write_text("gitdir: /elsewhere\n")
        case _:
            (start / how).mkdir()


@pytest.mark.parametrize(
    "how",
    [
        *("others may write it", "a group may write it", "a pipe", "a link into a repository"),
        pytest.param("another user owns it", marks=needs_root),
        *("the workspace of another server", "a bare repository", "a linked worktree above"),
        *(".git", ".hg"),
    ],
)
def test_an_env_file_that_others_could_have_written_is_not_read(
    start: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(start.parent / "state-home"))
    (start / ".env").write_text("PORT=1\n")
    assert load({}).settings.server.port == 1
    spoiled(start, how)
    loaded = load({})
    assert loaded.settings.server.port == 41242
    (warning,) = loaded.warnings
    assert f"{start}/.env" in warning and "--env-file .env" in warning


def test_workspaces_that_cannot_be_known_are_taken_for_the_directory(
    start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = start.parent / "state-home"
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    (start / ".env").write_text("PORT=1\n")
    places = Places(Settings().state_home)
    places.record([start.parent / "state"], [str(start)])
    for path in (*places.folder.iterdir(), places.folder, places.folder.parent):
        path.chmod(0)  # as an agent of this user can do
    assert load({}).settings.server.port == 41242
    assert places.folder.stat().st_mode & 0o700 == 0o700


def test_a_directory_of_a_name_that_only_begins_like_the_workspace_is_outside(
    start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (start.parent / "sta").mkdir()
    monkeypatch.setenv("AGENT_REPO_PATH", str(start.parent / "sta"))
    (start / ".env").write_text("PORT=1\n")
    loaded = load({})
    assert (loaded.settings.server.port, loaded.warnings) == (1, [])


def test_an_env_file_inside_the_workspace_is_refused_even_if_it_is_asked_for(
    start: Path, tmp_path: Path
) -> None:
    path = tmp_path / "workspace" / "my.env"
    path.write_text("PORT=1\n")
    with pytest.raises(ConfigurationError, match="can be changed by agents"):
        load({}, str(path))
    moved = start / "my.env"
    moved.write_text(f"AGENT_ALLOWED_REPO_ROOTS={start}\n")  # it makes itself part of it
    with pytest.raises(ConfigurationError, match="can be changed by agents"):
        load({}, str(moved))


def test_the_program_tells_and_exits_with_2(tmp_path: Path) -> None:
    path = tmp_path / "workspace" / "my.env"
    path.write_text("PORT=0\n")
    root = str(tmp_path / "workspace")
    arguments = ("--adapter", "jsonl", "--root", root, "--env-file", str(path))
    assert "can be changed by agents" in refusal(run(*arguments, cwd=tmp_path))


async def test_the_server_starts_without_an_env_file_of_its_workspace_and_says_so(
    tmp_path: Path,
) -> None:
    workspace = tmp_path / "workspace"
    (workspace / ".env").write_text("BRIDGE_TOKEN=chosen-by-the-repository\n")
    env: Any = {"AGENT_ADAPTER": "jsonl", "AGENT_BINARY": agent(tmp_path)}
    async with bridge(workspace, cwd=workspace, **env) as server:
        assert ".env was not read" in server.log
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{server.url}/a2a/jsonrpc", json={}) as response,
        ):
            assert response.status == 200


@pytest.mark.parametrize(
    "name",
    [
        "nowhere.env",
        ".",
    ],
)
def test_an_unreadable_env_file_causes_a_warning(start: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot read"):
        load({}, str(start / name))


def test_an_env_file_that_is_not_text_causes_a_warning(start: Path) -> None:
    (start / "my.env").write_bytes(b"PORT=\xff\xfe\n")
    with pytest.raises(ConfigurationError, match="cannot read"):
        load({}, str(start / "my.env"))


# --- what is wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("PORT", "http"),
        ("PORT", "65536"),
        ("PORT", "-1"),
        ("AGENT_TIMEOUT_MS", "1h"),
        ("AGENT_TIMEOUT_MS", "-1"),
        ("AGENT_FORCE", "perhaps"),
        ("AGENT_MODEL", "--dangerously-skip-permissions"),
        ("AGENT_MODEL", "a b"),
        ("AGENT_ARGS", "'never closed"),
        ("LOG_LEVEL", "LOUD"),
        ("LOG_FORMAT", "xml"),
        ("BRIDGE_TOKEN", "short"),
        ("BRIDGE_MAX_SESSIONS", "-1"),
        ("BRIDGE_CARD", "2.0"),
        ("OTEL_TRACES_SAMPLER_ARG", "2"),
        ("OTEL_TRACES_SAMPLER_ARG", "much"),
    ],
)
def test_the_error_for_an_invalid_value_names_its_setting(
    source: Source, name: str, text: str
) -> None:
    if source.__name__ == "dotenv" and not may_set(name):
        return
    with pytest.raises(ConfigurationError) as raised:
        source(name, text)
    assert f"{name}: " in str(raised.value)
    if name == "BRIDGE_TOKEN":
        assert text not in str(raised.value).lower().replace("shorter", "")


def test_one_error_names_all_invalid_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "x")
    monkeypatch.setenv("BRIDGE_CARD", "x")
    with pytest.raises(ConfigurationError, match=r"PORT: .*; BRIDGE_CARD: "):
        load({})


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("prot = 1", "unknown setting prot. Did you mean port?"),
        ("agent_adaptor = 'x'", "Did you mean agent_adapter?"),
        ("BRIDGE_TOKN = 'x'", "Did you mean bridge_token?"),
        ("zzz = 1", "unknown setting zzz."),
        ("[agents.a]\nadaptr = 'x'", "Did you mean adapter?"),
        ("port = ", "cannot read CONFIG_FILE"),
    ],
)
def test_the_error_for_a_typo_in_the_config_file_suggests_a_name(
    start: Path, line: str, text: str
) -> None:
    (start / "settings.toml").write_text(line)
    with pytest.raises(ConfigurationError) as raised:
        load({"config_file": str(start / "settings.toml")})
    assert text in str(raised.value)


def test_the_config_file_has_types_of_its_own(start: Path) -> None:
    (start / "settings.toml").write_text(
        "port = 5\nagent_args = ['-a', 'b c']\nagent_allowed_repo_roots = ['/srv']\n"
        "agent_force = true\nagent_env = ['A', 'B']\notel_traces_sampler_arg = 1\n"
    )
    settings = load({"config_file": str(start / "settings.toml")}).settings
    assert (settings.server.port, settings.agent.args) == (5, ("-a", "b c"))
    assert settings.agent.allowed_repo_roots == ("/srv",)
    assert (settings.agent.force, settings.agent.env) == (True, ("A", "B"))


def test_a_missing_config_file_is_an_error(start: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read CONFIG_FILE .*nowhere\.toml"):
        load({"config_file": str(start / "nowhere.toml")})


@pytest.mark.parametrize("name", ["AGENTS", "AGENT_SKILLS"])
def test_a_table_of_the_config_file_is_not_looked_for_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "something else's")
    load({})


# --- what the CLI is given ---------------------------------------------------------------------


async def test_the_cli_gets_only_the_allowed_variables(tmp_path: Path, start: Path) -> None:
    (start / ".env").write_text(
        "FROM_DOTENV=dotenv\nFROM_BOTH=dotenv\nMY_DOTENV=dotenv\n"
        "NOT_LET_THROUGH=x\nBRIDGE_THOUGHTS=true\nANTHROPIC_API_KEY=key\n"
    )
    env: Any = {
        "AGENT_ADAPTER": "jsonl",
        "AGENT_BINARY": agent(tmp_path),
        "BRIDGE_TOKEN": "a-token-of-16-characters",
        "AGENT_TIMEOUT_MS": "60000",
        "AGENT_ENV": "FROM_DOTENV,FROM_BOTH,MY_*,BRIDGE_TOKEN,A2ACLI_*",
        "MY_OWN": "environment",
        "A2ACLI_BEARER": "another-token-of-a-client",
        "SECRET": "x",
        "FROM_BOTH": "environment",
        "LC_TIME": "C",
        "LD_PRELOAD_X": "x",
        "PYTHONWARNINGS": "error",
    }
    headers = {"Authorization": "Bearer a-token-of-16-characters"}
    async with (
        bridge(tmp_path / "workspace", cwd=start, **env) as server,
        aiohttp.ClientSession(headers=headers) as http,
    ):
        task = await Client(http, server.url).send("env")
    seen = json.loads(artifact_text(task))
    assert (seen["FROM_DOTENV"], seen["FROM_BOTH"]) == ("dotenv", "environment")
    assert (seen["LC_TIME"], seen["HOME"]) == ("C", str(tmp_path / "home"))
    assert (seen["MY_OWN"], seen["MY_DOTENV"]) == ("environment", "dotenv")
    wanted = {"PATH", "HOME", "LC_TIME", "FROM_DOTENV", "FROM_BOTH", "CODING_AGENT_BRIDGE_PROCESS"}
    wanted |= {"MY_OWN", "MY_DOTENV"}
    of_the_shell_and_python = {"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"}
    assert set(seen) - of_the_shell_and_python == wanted | set(guards({}))


def test_servers_without_tcp_have_state_folders_by_their_sockets() -> None:
    def folder(path: str) -> str:
        settings = Settings().updated({"port": "none", "bridge_unix_socket": path})
        assert settings.state_folder
        return settings.state_folder.name

    assert folder("/run/x/s") == folder("/run/x/../x/s")
    assert folder("/run/x/s") != folder("/run/x/t")
    assert folder("/run/x/s").startswith("unix-")
