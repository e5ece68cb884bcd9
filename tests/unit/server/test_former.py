"""Withdrawn settings, second names, and the units in names."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import ConfigurationError
from bridge.server.settings.former import CLAUDE_PATH, NAMES, WITHDRAWN
from bridge.server.settings.load import Loaded, load
from bridge.server.settings.root import NAMES as PRESENT
from bridge.server.settings.root import SECTIONS, VARIABLES
from tests.support.bridge_process import bridge
from tests.support.command_line import agent

MOST = 120
UNITS = ("ms", "bytes", "days", "percent")
COUNTED = {
    *("port", "bridge_grpc_port"),
    *("bridge_max_connections", "bridge_max_connections_per_peer"),
    *("bridge_max_connections_per_second", "bridge_max_sessions", "bridge_max_waiting_sessions"),
    *("bridge_warm_sessions", "bridge_session_processes", "bridge_max_tasks"),
    *("bridge_keep_tasks_per_context", "otel_traces_sampler_arg"),
}
"""Numbers of what their names say, and the number of a standard."""

Given = Callable[[str, Any], Loaded]


@pytest.fixture(autouse=True)
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the start, with nothing set, beside the workspace."""
    for name in list(os.environ):
        if name.lower() in NAMES | PRESENT.keys():
            monkeypatch.delenv(name)
    for folder in ("start", "workspace"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "start")
    monkeypatch.setenv("AGENT_REPO_PATH", str(tmp_path / "workspace"))
    return tmp_path / "start"


@pytest.fixture(params=["environment", ".env", "--env-file", "CONFIG_FILE", "upper CONFIG_FILE"])
def given(request: pytest.FixtureRequest, start: Path, monkeypatch: pytest.MonkeyPatch) -> Given:
    """Loads the settings with one name given there."""

    def loaded(name: str, value: Any) -> Loaded:
        match request.param:
            case "environment":
                monkeypatch.setenv(name.upper(), str(value))
                return load({})
            case ".env" | "--env-file" as way:
                path = start / (".env" if way == ".env" else "my.env")
                path.write_text(f"{name.upper()}={value}\n")
                return load({}, None if way == ".env" else str(path))
            case way:
                written = name.upper() if way.startswith("upper") else name
                (start / "settings.toml").write_text(f"{written} = {json.dumps(value)}\n")
                return load({"config_file": str(start / "settings.toml")})

    return loaded


def test_there_are_few_settings_and_none_is_withdrawn() -> None:
    assert len(VARIABLES) <= MOST
    assert not NAMES & VARIABLES


def test_a_quantity_has_its_unit_in_its_name() -> None:
    numbers = {
        field.alias or name
        for kind in SECTIONS.values()
        for name, field in kind.model_fields.items()
        if "int" in str(field.annotation) or "float" in str(field.annotation)
        if field.alias in VARIABLES
    }
    assert "bridge_drain_ms" in numbers and "bridge_grpc_port" in numbers
    assert {one for one in numbers if not one.endswith(UNITS)} <= COUNTED


@pytest.mark.parametrize("name", sorted(WITHDRAWN))
def test_a_withdrawn_setting_is_named_in_one_line_and_the_server_goes_on(
    given: Given, name: str
) -> None:
    loaded = given(name, "5")
    (line,) = [one for one in loaded.warnings if name.upper() in one]
    assert line.startswith(f"{name.upper()} is not a setting any more: {WITHDRAWN[name]}")
    assert "\n" not in line
    assert loaded.settings.model_dump(exclude={"server", "agent"}) == load({}).settings.model_dump(
        exclude={"server", "agent"}
    )


def test_a_withdrawn_setting_of_an_agent_is_named(start: Path) -> None:
    path = start / "settings.toml"
    path.write_text("[agents.a]\nmax_parts = 3\nAGENT_OUTPUT = 'ndjson'\nmodel = 'm'\n")
    loaded = load({"config_file": str(path)})
    assert [one.split(" ")[0] for one in loaded.warnings] == ["BRIDGE_MAX_PARTS", "AGENT_OUTPUT"]
    assert loaded.settings.for_agent("a").agent.model == "m"


def test_a_name_that_never_was_one_is_still_an_error(start: Path) -> None:
    (start / "settings.toml").write_text("bridge_max_partz = 3\n")
    with pytest.raises(ConfigurationError, match="unknown setting bridge_max_partz"):
        load({"config_file": str(start / "settings.toml")})


def test_host_and_port_have_second_names_which_win(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = given("bridge_port", "5")
    assert (loaded.settings.server.port, loaded.warnings) == (5, [])
    monkeypatch.setenv("PORT", "6")
    monkeypatch.setenv("BRIDGE_PORT", "7")
    monkeypatch.setenv("HOST", "build-machine")
    monkeypatch.setenv("BRIDGE_HOST", "::1")
    server = load({}).settings.server
    assert (server.port, server.host) == (7, "::1")
    assert load({"port": "8"}).settings.server.port == 8


@pytest.mark.parametrize("adapter", [None, "claude-code", "codex"])
def test_the_path_of_claude_code_is_that_of_its_agent_for_one_release(
    monkeypatch: pytest.MonkeyPatch, adapter: str | None
) -> None:
    monkeypatch.setenv("CLAUDE_CODE_PATH", "/bin/claude")
    loaded = load({"agent_adapter": adapter})
    (line,) = loaded.warnings
    assert line.startswith("CLAUDE_CODE_PATH ") and "AGENT_BINARY" in line
    found = (loaded.settings.agent.adapter, loaded.settings.agent.binary)
    assert found == (("codex", None) if adapter == "codex" else ("claude-code", "/bin/claude"))
    monkeypatch.setenv("AGENT_BINARY", "/other")
    assert load({"agent_adapter": adapter}).settings.agent.binary == "/other"


def test_the_path_of_claude_code_is_for_the_tables_that_run_it(start: Path) -> None:
    (start / "settings.toml").write_text(
        "claude_code_path = '/bin/claude'\n[agents.a]\nadapter = 'claude-code'\n"
        "[agents.b]\nadapter = 'codex'\n[agents.c]\nadapter = 'claude-code'\nbinary = '/own'\n"
        "[agents.d]\nAGENT_ADAPTER = 'claude-code'\nAGENT_BINARY = '/own'\n"
    )
    settings = load({"config_file": str(start / "settings.toml")}).settings
    found = {one: settings.for_agent(one).agent.binary for one in "abcd"}
    assert found == {"a": "/bin/claude", "b": None, "c": "/own", "d": "/own"}


def test_the_implicit_env_file_chooses_no_program_by_a_former_name(start: Path) -> None:
    (start / ".env").write_text(f"{CLAUDE_PATH.upper()}=/tmp/evil\nBRIDGE_PORT=5\n")
    loaded = load({})
    assert (loaded.settings.agent.binary, loaded.settings.server.port) == (None, 5)
    (line,) = loaded.warnings
    assert "CLAUDE_CODE_PATH ignored" in line


async def test_a_server_says_so_in_its_log(tmp_path: Path) -> None:
    env: Any = {
        **{"AGENT_ADAPTER": "jsonl", "AGENT_BINARY": agent(tmp_path)},
        **{"BRIDGE_FAST_PATH_MS": "5", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
    }
    async with bridge(tmp_path / "workspace", **env) as server:
        for name in ("BRIDGE_FAST_PATH_MS", "OTEL_EXPORTER_OTLP_PROTOCOL"):
            assert server.log.count(name) == 1
