"""Agents of the public ACP registry: what a manifest may make the bridge run."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from bridge.adapter import AgentConfig, SessionStart
from bridge.errors import ConfigurationError
from bridge.server import registry
from bridge.server.acp_registry import COPY, AgentManifest, copied
from scripts.acp_registry import copy_of

Json = dict[str, Any]


def manifest(**distribution: Json) -> Json:
    return {"id": "one", "name": "One", "version": "1.2.3", "distribution": distribution}


def test_every_agent_of_the_copy_is_an_adapter() -> None:
    assert len(copied().agents) >= 11
    for agent in copied().agents:
        adapter = registry.load(f"acp:{agent.id}")
        assert (adapter.name, adapter.verified) == (f"acp:{agent.id}", False)
        config = AgentConfig(adapter.binary)
        launch = adapter(config, SessionStart("/workspace", "")).launch()
        assert launch.argv == (agent.program, *agent.launch.args)
        assert launch.env.items() >= agent.launch.env.items()


def test_the_copy_is_what_the_script_writes() -> None:
    content = COPY.read_text("utf-8")
    assert copy_of(content.encode(), copied().date) == content


@pytest.mark.parametrize(
    ("distribution", "program", "install"),
    [
        ({"npx": {"package": "@a/b-cli@1.0.0"}}, "b-cli", "npm install -g @a/b-cli@1.0.0"),
        ({"npx": {"package": "plain"}}, "plain", "npm install -g plain"),
        ({"uvx": {"package": "tool[acp]==2.0"}}, "tool", "uv tool install 'tool[acp]==2.0'"),
        ({"uvx": {"package": "tool@2.0"}}, "tool", "uv tool install 'tool@2.0'"),
        (
            {"binary": {"linux-x86_64": {"cmd": "./bin/x", "archive": "https://h/x.zip"}}},
            "x",
            "unpack https://h/x.zip",
        ),
    ],
)
def test_a_kind_of_launch_names_its_program(distribution: Json, program: str, install: str) -> None:
    agent = AgentManifest.model_validate(manifest(**distribution))
    assert (agent.program, agent.install) == (program, install)


@pytest.mark.parametrize(
    "distribution",
    [
        {"npx": {"package": "a; rm -rf ~"}},
        {"npx": {"package": "--yes"}},
        {"npx": {"package": "../x"}},
        {"npx": {"package": "https://host/x.tgz"}},
        {"npx": {"package": "git+ssh://host/x"}},
        {"npx": {"package": "a@$(id)"}},
        {"uvx": {"package": "a --index-url=http://host"}},
        {"uvx": {"package": "-r"}},
        {"npx": {"package": "a", "args": ["a\nb"]}},
        {"npx": {"package": "a", "args": ["x"] * 21}},
        {"npx": {"package": "a", "args": ["x" * 201]}},
        {"npx": {"package": "a", "env": {"LD_PRELOAD": "/x"}}},
        {"npx": {"package": "a", "env": {"NODE_OPTIONS": "--require=/x"}}},
        {"npx": {"package": "a", "env": {"PATH": "/x"}}},
        {"npx": {"package": "a", "env": {"a b": "x"}}},
        {"binary": {"linux-x86_64": {"cmd": "./../x", "archive": "https://h/x"}}},
        {"binary": {"linux-x86_64": {"cmd": "/bin/sh", "archive": "https://h/x"}}},
        {"binary": {"linux-x86_64": {"cmd": "./x -c", "archive": "https://h/x"}}},
        {"binary": {"linux-x86_64": {"cmd": "..", "archive": "https://h/x"}}},
        {"binary": {"linux-x86_64": {"cmd": "./x", "archive": "file:///x"}}},
    ],
    ids=json.dumps,
)
def test_a_manifest_that_could_run_something_else_is_refused(distribution: Json) -> None:
    with pytest.raises(ValidationError):
        AgentManifest.model_validate(manifest(**distribution))
    with pytest.raises(ValidationError):
        copy_of(json.dumps({"agents": [manifest(**distribution)]}).encode(), "2026-01-01")


def test_an_unknown_id_gets_a_suggestion() -> None:
    with pytest.raises(ConfigurationError, match=r"acp:gemni.*\bkimi\b.* Did you mean gemini\?"):
        registry.load("acp:gemni")


def test_an_agent_without_a_program_for_linux_is_named() -> None:
    only = {"windows-x86_64": {"cmd": "./x.exe", "archive": "https://h/x"}}
    agent = AgentManifest.model_validate(manifest(binary=only))
    with pytest.raises(ConfigurationError, match="acp:one: the registry has no program for Linux"):
        _ = agent.program
