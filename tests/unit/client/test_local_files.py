"""The files of the client: servers, tokens, settings. None of them is trusted blindly."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.client import config
from bridge.client.credentials import Credentials, CredentialStore, origin_of
from bridge.client.failure import ClientError
from bridge.client.local_server import LocalServer, choose, running
from bridge.client.values import duration, parameter


@pytest.fixture
def description(tmp_path: Path) -> Iterator[Path]:
    """A description with a lock, as of a running server."""
    path = tmp_path / "server.json"
    facts = {"version": 1, "url": "http://127.0.0.1:1", "pid": 1, "started": 1.0}
    facts |= {"agents": ["a"], "roots": ["/w"], "token": "token"}
    path.write_text(json.dumps(facts))
    path.chmod(0o600)
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "token").chmod(0o600)
    with open(path) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield path


def changed(path: Path, **members: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **members}))


def test_a_running_server_is_found_with_its_token(description: Path) -> None:
    (server,) = running([description])
    assert (server.url, server.roots, server.token) == ("http://127.0.0.1:1", ("/w",), "secret")
    changed(description, token=None)
    (server,) = running([description])
    assert server.token is None


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0"])
def test_the_token_is_only_for_the_sockets_of_the_server(description: Path, host: str) -> None:
    """Whoever listens at its address: the description of a running server names its sockets."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listening:
        port = listening.getsockname()[1]
        shown = "[::1]" if ":" in host else "127.0.0.1"
        changed(description, url=f"http://{shown}:{port}")
        (server,) = running([description])
        with pytest.raises(ClientError, match="another program than the local server"):
            assert server.token
        changed(description, inodes=[1])
        (server,) = running([description])
        with pytest.raises(ClientError, match="no token is sent"):
            assert server.token
        changed(description, inodes=[1, os.fstat(listening.fileno()).st_ino])
        (server,) = running([description])
        assert server.token == "secret"


def test_a_description_that_others_could_have_written_is_ignored(description: Path) -> None:
    for mode in (0o640, 0o604, 0o622):
        description.chmod(mode)
        assert running([description]) == []
    description.chmod(0o600)
    link = description.with_name("link")
    link.symlink_to(description)
    fifo = description.with_name("fifo")
    os.mkfifo(fifo, 0o600)
    assert running([link, fifo, description.with_name("none")]) == []


def test_a_token_that_others_can_read_is_not_used(description: Path) -> None:
    (description.parent / "token").chmod(0o644)
    (server,) = running([description])
    assert server.token is None


@pytest.mark.parametrize("token", ["../token", "/etc/passwd", "a/b"])
def test_a_description_names_a_token_of_its_own_folder_only(description: Path, token: str) -> None:
    changed(description, token=token)
    assert running([description]) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2}', "x" * 10])
def test_a_description_in_another_format_is_ignored(description: Path, text: str) -> None:
    description.write_text(text)
    assert running([description]) == []


def test_a_description_without_a_lock_is_stale(tmp_path: Path, description: Path) -> None:
    stale = tmp_path / "stale.json"
    stale.write_text(description.read_text())
    stale.chmod(0o600)
    assert running([stale]) == []


@pytest.fixture
def pointer(tmp_path: Path, description: Path) -> Iterator[Path]:
    """A pointer to the description, with a lock."""
    path = tmp_path / "home" / "pid-1" / "server.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"version": 1, "pid": 1, "folder": str(description.parent)}))
    path.chmod(0o600)
    with open(path) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield path


def test_a_pointer_leads_to_the_description_of_its_own_process(
    tmp_path: Path, description: Path, pointer: Path
) -> None:
    (found,) = running([pointer, description])  # once
    assert (found.url, found.token, found.folder) == ("http://127.0.0.1:1", "secret", tmp_path)
    changed(description, pid=2)  # by somebody who took the folder of an ended server
    assert running([pointer]) == []
    changed(description, pid=1, folder=str(tmp_path))  # a pointer leads to no other one
    changed(pointer, folder=str(pointer.parent))
    assert running([pointer]) == []
    changed(pointer, folder="state")
    assert running([pointer]) == []


def test_a_pointer_that_others_could_have_written_or_without_a_lock_is_ignored(
    pointer: Path,
) -> None:
    stale = pointer.with_name("stale.json")
    stale.write_text(pointer.read_text())
    stale.chmod(0o600)
    pointer.chmod(0o622)
    assert running([pointer, stale]) == []


def server(url: str, *roots: str, until_idle: bool = False) -> LocalServer:
    return LocalServer(url, 1, (), roots, None, until_idle=until_idle)


def test_the_server_of_the_deepest_root_is_chosen() -> None:
    outer, inner, other = server("o", "/a"), server("i", "/a/b"), server("x", "/ab")
    assert choose([outer, inner, other], "/a/b/c") is inner
    assert choose([outer, inner, other], "/a/x") is outer
    assert choose([other], "/nowhere") is other
    for servers, code in (((), "CAB_ERR_NO_SERVER"), ((outer, other), "CAB_ERR_SEVERAL_SERVERS")):
        with pytest.raises(ClientError) as refused:
            choose(servers, "/nowhere")
        assert refused.value.code == code


def test_a_server_that_a_command_started_is_for_its_own_directory() -> None:
    person, started = server("p", "/a"), server("s", "/b", until_idle=True)
    assert choose([person, started], "/b/c") is started
    assert choose([person, started], "/nowhere") is person
    assert choose([started], "/nowhere") is started


def test_tokens_are_stored_by_origin_in_a_private_file(tmp_path: Path) -> None:
    store = CredentialStore(tmp_path / "new" / "credentials.json")
    assert store.tokens() == {}
    store.save({"https://h:443": "t"})
    assert store.tokens() == {"https://h:443": "t"}
    assert store.path.stat().st_mode & 0o777 == 0o600
    for mode in (0o640, 0o604):
        store.path.chmod(mode)
        with pytest.raises(ClientError) as refused:
            store.tokens()
        assert refused.value.status == 4 and "chmod 600" in str(refused.value.hint)


def test_an_origin_has_a_scheme_a_host_and_a_port() -> None:
    assert origin_of("https://Example.com/a") == origin_of("https://example.com:443")
    assert origin_of("http://[::1]:8/x") == "http://[::1]:8"
    assert origin_of("unix:/run/../run/s") == "unix:/run/s" == origin_of("unix:/run/s")
    for wrong in ("ftp://h", "h", "https://", "http://h:99999"):
        with pytest.raises(ClientError):
            origin_of(wrong)


def test_credentials_go_over_https_or_to_loopback() -> None:
    credentials = Credentials("http://h:80", "x", bearer="t")
    credentials.check("https://h/")
    credentials.check("http://127.0.0.1:1/")
    with pytest.raises(ClientError) as refused:
        credentials.check("http://example.com/")
    assert refused.value.status == 4


def test_a_flag_precedes_a_variable_a_file_and_the_global_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    shared = tmp_path / ".config/a2a-cli/.env"
    shared.parent.mkdir(parents=True)
    shared.write_text("A2ACLI_AGENT_CARD=global\nA2ACLI_TIMEOUT=5m\nA2ACLI_STREAM=true\n")
    file = tmp_path / "agent.env"
    file.write_text("A2ACLI_AGENT_CARD=file\n")

    def card(flags: dict[str, Any], given: str | None) -> tuple[Any, str]:
        found = config.resolve(flags, given)["agent_card"]
        return found.value, found.source

    assert card({}, None) == ("global", str(shared))
    assert config.resolve({})["timeout"].value == 300
    assert "stream" not in config.resolve({})
    assert card({}, str(file)) == ("file", str(file))
    monkeypatch.setenv("A2ACLI_AGENT_CARD", "variable")
    assert card({}, str(file)) == ("variable", "environment A2ACLI_AGENT_CARD")
    assert card({"agent_card": "flag"}, str(file)) == ("flag", "flag")
    monkeypatch.setenv("A2ACLI_TIMEOUT", "soon")
    with pytest.raises(ClientError) as refused:
        config.resolve({})
    assert refused.value.status == 2 and "A2ACLI_TIMEOUT" in str(refused.value)


def test_the_defaults_are_those_of_the_specification(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found = {name: one.value for name, one in config.resolve({}).items()}
    assert (found["output"], found["async"], found["wait"]) == ("text", False, False)
    assert (found["verbose"], found["insecure"], found["transport"]) == (False, False, ())
    assert (found["a2a_version"], found["poll_interval"], found["timeout"]) == (None, 2.0, None)


def test_no_file_of_the_working_directory_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("A2ACLI_AGENT_CARD=http://evil\n")
    assert config.resolve({})["agent_card"].value is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("5m", 300), ("500ms", 0.5), ("2", 2), ("1h", 3600)]
)
def test_a_duration_has_a_unit(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "x", "a b:c", "a:b\r\nc"])
def test_a_service_parameter_cannot_add_a_header(text: str) -> None:
    with pytest.raises(ClientError):
        parameter(text)
