"""The agents of a server that is one of several; tests/system/test_lost_nodes.py has servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bridge.process.cgroup import home
from bridge.server.agents.node import COPIED, LOST, NodeAgents, digest, shares_of
from bridge.server.settings.root import Settings


def settings(**given: Any) -> Settings:
    return Settings().updated({f"bridge_{name}": value for name, value in given.items()})


def test_a_server_that_was_taken_for_lost_is_started_again_and_a_copied_one_is_not() -> None:
    assert (LOST, COPIED) == (75, 78)
    for copied, status in ((False, LOST), (True, COPIED)):
        node = NodeAgents()
        node.fenced(copied)
        assert node.ended.is_set() and node.status == status


def test_the_state_of_the_server_is_shown() -> None:
    node = NodeAgents()
    assert node.about() == {}
    node.name = "test:a"
    assert node.about() == {"node": {"name": "test:a", "state": "up"}}
    node.doubt(True)
    assert node.about()["node"]["state"] == "doubt"
    node.doubt(False)
    assert node.about()["node"]["state"] == "up"


@pytest.mark.skipif(home() is None, reason="no control groups of version 2")
def test_only_adapters_that_say_so_have_shares(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    one = settings(share=f"s={tmp_path / 'link'},t")
    assert shares_of(one, resumes_elsewhere=False) == {}
    found = shares_of(one, resumes_elsewhere=True)
    assert found["s"] == [str(tmp_path)]
    assert found["t"] == [one.agent.workspaces.default, *one.agent.workspaces.roots]


def test_the_digest_tells_other_settings() -> None:
    same = digest(settings(), ["b", "a"])
    assert same == digest(settings(node="x:y"), ["a", "b"])
    assert same != digest(settings(), ["a"])
    assert same != digest(settings(lease_ms=3000), ["a", "b"])
