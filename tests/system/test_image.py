"""The image of deploy/Containerfile in a new Debian: built and run by the commands of
docs/deploy.md, with the real Claude Code and a scripted model."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator

import pytest

from tests.support.debian import (
    CERTIFICATES,
    Machine,
    archive,
    checkout,
    install,
    large_folder,
    machine,
)
from tests.support.deploy_page import block_with, commands
from tests.support.neighbours import Neighbours, neighbours
from tests.support.real_claude_code import bash, script, tool_results, user_texts
from tests.support.sandboxed import needs_root

pytestmark = [pytest.mark.soak, needs_root, pytest.mark.timeout(3600)]
BASE = "docker.io/library/debian:12-slim"
BARE = "localhost/bare:1"  # the image without a CLI
# The machine has no controllers of control groups, and no systemd.
CONTAINERS = """\
[containers]
cgroups = "disabled"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
CHROOT = "export BUILDAH_ISOLATION=chroot BUILDAH_LAYERS=true\n"
STEPS = commands(block_with("podman run"))
INSTALL, BUILD, FOLDER, SETTINGS, START, HEALTH, TOKEN, ADD, RELOAD = STEPS
COMPOSE = block_with("podman-compose -f")
AGENT = {"AGENT_FORCE": "true"}  # nothing is asked


@pytest.fixture(scope="module")
def host() -> Iterator[Machine]:
    """A machine with the images, which takes minutes. TMPDIR names the folder."""
    with large_folder("image-") as folder:
        root = folder / "root"
        install(root)
        checkout(root / "root/checkout")
        shutil.copy(archive(), root / "root/base.tar")
        with machine(root) as made:
            made.run("apt-get -qq update && apt-get -qq install -y curl", online=True)
            made.follow(INSTALL)
            made.write("/etc/containers/containers.conf", CONTAINERS)
            names = ("PIP_CERT", "NODE_EXTRA_CA_CERTS")
            changes = " ".join(f"--change ENV={name}={CERTIFICATES}" for name in names)
            made.run(f"podman import --quiet {changes} /root/base.tar {BASE}")
            made.follow(BUILD, before=CHROOT)
            bare = re.sub(r"--build-arg \S+", "", BUILD).replace("coding-agent-bridge:0.1.0", BARE)
            made.follow(bare, before=CHROOT)
            yield made


def started(host: Machine, beside: Neighbours) -> None:
    """A new container, as soon as it is healthy. Its network is that of the machine."""
    env = {**AGENT, **beside.model, **beside.collector}
    flags = " ".join(f"--env {name}={value}" for name, value in env.items())
    host.run(START.replace("podman run", f"podman run --user 12345:0 --network host {flags}"))
    host.until(HEALTH, "podman logs bridge 2>&1")


def cab(host: Machine, *words: str) -> str:
    quoted = " ".join(f"'{word}'" for word in words)
    return host.run(f"podman exec bridge cab {quoted}")


def sent(host: Machine, text: str, *flags: str) -> tuple[str, str, str]:
    """The ids of the task and of its context, and the output of a client in the container."""
    shown = cab(host, "send", "--cwd", "/workspace", *flags, text)
    assert "State: completed" in shown, shown
    (task,), (context,) = re.findall(r"Task: (\S+)", shown), re.findall(r"Context: (\S+)", shown)
    return task, context, shown


def test_the_next_container_resumes_the_conversation_of_a_cli(host: Machine) -> None:
    """The root is read-only, and the user is another one than that of the image. Images take
    minutes."""
    assert not host.succeeds(HEALTH)  # there is no container
    host.run(FOLDER + SETTINGS)
    with neighbours(host) as beside:
        started(host, beside)
        secret = _is_confined(host)
        task, context, _ = sent(host, script("Remember plum", _orphans(), "noted"))
        _has_no_zombie(host)
        _gives_tokens(host)
        _stops_in_a_turn(host, context)
        host.run("podman rm bridge")
        started(host, beside)
        assert "made a token for clients" not in host.run("podman logs bridge 2>&1")
        assert host.run(TOKEN).strip() == secret
        listed = json.loads(cab(host, "task", "list", "-o", "json"))
        states = {one["id"]: one["status"]["state"] for one in listed["tasks"]}
        assert states.pop(task) == "TASK_STATE_COMPLETED"
        assert list(states.values()) == ["TASK_STATE_FAILED"]
        _, same, shown = sent(host, script("Which fruit?", "plum"), "--context-id", context)
        assert same == context and "plum" in shown
        log = [json.loads(one) for one in host.run("podman logs bridge 2>&1").splitlines()]
        (begun,) = [one for one in log if one["event"] == "session.started"]
        assert begun["start"] == "resumed"
        host.run("podman rm --force --time 60 bridge")
    last = beside.conversations[-1]
    asked = [text.partition(" @@")[0] for text in user_texts(last) if " @@" in text]
    assert asked == ["Remember plum", "Wait", "Which fruit?"]
    assert any("hidden" in one for one in tool_results(last))
    assert beside.spans.count("invoke_agent claude-code") == 3


def _is_confined(host: Machine) -> str:
    """The container is. Returns the token that it made."""
    log = host.run("podman logs bridge 2>&1")
    assert "made a token for clients" in log
    lines = [json.loads(line) for line in log.splitlines()]
    assert "server.ready" in [line["event"] for line in lines]  # all of it is JSON
    secret = host.run(TOKEN).strip()
    assert re.fullmatch(r"[\w-]{43}", secret) and secret not in log
    assert host.run("podman exec bridge stat -c '%u %a' /state/bridge/token") == "12345 600\n"
    assert host.run("podman exec bridge stat -c %u /proc/1") == "12345\n"
    assert '"status": "ready"' in host.run("curl -s 127.0.0.1:41242/ready")
    assert not host.succeeds("podman exec bridge touch /x")
    assert "CapBnd:\t0000000000000000" in host.run("podman exec bridge cat /proc/1/status")
    return secret


def _orphans() -> dict[str, object]:
    """A command that leaves processes behind, and cannot read the token."""
    orphans = "for i in 1 2 3; do (sleep 0.1 &) done; sleep 1"
    return bash(f"{orphans}; cat /state/bridge/token || echo hidden")


def _has_no_zombie(host: Machine) -> None:
    stats = host.run("podman exec bridge sh -c 'cat /proc/[0-9]*/stat'")
    assert not re.findall(r"^\d+ \(.*\) Z", stats, re.MULTILINE)


def _gives_tokens(host: Machine) -> None:
    """A token of a client is valid after a reload; the metrics have the first turn."""
    (token,) = re.findall(r"^[\w-]{43}$", host.run(ADD), re.MULTILINE)
    code = "curl -s -o /dev/null -w '%{http_code}' -H 'A2A-Version: 1.0' 127.0.0.1:41242/tasks"
    bearer = f"-H 'Authorization: Bearer {token}'"
    assert host.run(f"{code} {bearer}") == "401"
    assert "tokens.ide" in host.run(RELOAD)
    assert host.run(f"{code} {bearer}") == "200"
    operator = f'-H "Authorization: Bearer $({TOKEN.strip()})"'
    page = f"curl -s {operator} 127.0.0.1:41242/metrics"
    assert 'bridge_tasks_total{agent="claude-code"' in host.run(page)


def _stops_in_a_turn(host: Machine, context: str) -> None:
    """SIGTERM, while a command runs."""
    wait = script("Wait", bash("echo one > begun; sleep 100"), "waited")
    host.run(
        f"podman exec --detach bridge cab send --cwd /workspace --context-id {context} '{wait}'"
    )
    host.until("podman exec bridge test -s /workspace/begun", "podman exec bridge cab task list")
    before = time.monotonic()
    host.run("podman stop bridge")
    assert time.monotonic() - before < 50  # it is not killed after 60 s
    assert host.run("podman inspect --format '{{.State.ExitCode}}' bridge") == "0\n"
    assert not host.succeeds(HEALTH)


def test_the_image_has_no_secret_and_no_cli(host: Machine) -> None:
    config = json.loads(host.run(f"podman inspect {BARE}"))[0]
    assert config["User"] == "1000:0"
    assert config["Healthcheck"]["Test"] == ["CMD", "coding-agent-bridge", "health"]
    env = config["Config"]["Env"]
    assert "LOG_FORMAT=json" in env
    assert not any("TOKEN=" in one or "KEY=" in one for one in env)
    inside = f"podman run --rm --no-healthcheck --entrypoint sh {BARE} -c"
    names = "claude codex node npm git rg ssh bwrap git-lfs"
    found = host.run(f"{inside} 'for one in {names}; do command -v $one; done; true'")
    assert found.split() == [f"/usr/bin/{one}" for one in names.split()[4:]]
    assert host.run(f"{inside} 'ls -A /state'") == ""
    places = "/home/agent/x /state/x /workspace/x"  # without a word about volumes
    host.run(f"{inside} 'touch {places}'".replace("--rm", "--rm --read-only --user 12345:0"))
    extras = "aiohttp, grpc, joserfc, mcp, opentelemetry.sdk, prometheus_client, psycopg, redis"
    host.run(f"{inside} '/opt/coding-agent-bridge/bin/python -c \"import {extras}\"'")


def test_the_file_of_compose(host: Machine) -> None:
    """It is checked by docker-compose, and podman-compose runs it."""
    install = "apt-get -qq install -y --no-install-recommends docker-compose"
    host.run(install, online=True)
    host.follow(COMPOSE)
    try:
        assert host.run("docker-compose -f deploy/compose.yaml config --quiet") == ""
        text = (host.root / "root/checkout/deploy/compose.yaml").read_text()
        host.write("/root/checkout/deploy/wrong.yaml", text.replace("cap_drop:", "cap_dorp:"))
        assert not host.succeeds("docker-compose -f deploy/wrong.yaml config --quiet")
        health = "podman exec deploy_bridge_1 coding-agent-bridge health --ready"
        host.until(health, "podman logs deploy_bridge_1")
        call = "curl -s -o /dev/null -w '%{http_code}' 127.0.0.1:41242/tasks -H 'A2A-Version: 1.0'"
        assert host.run(call) == "401"
        assert host.run(f'{call} -H "Authorization: Bearer $(cat deploy/token)"') == "200"
        assert not host.succeeds("podman exec deploy_bridge_1 touch /x")
    finally:
        host.run("podman-compose -f deploy/compose.yaml down")
