"""The image of deploy/Containerfile in a new Debian: built and run by the commands of
docs/deploy.md."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.support.debian import (
    CERTIFICATES,
    LONGEST,
    Machine,
    checkout,
    debootstrap,
    large_folder,
    machine,
)
from tests.support.deploy_page import block_with
from tests.support.sandboxed import needs_root

pytestmark = [pytest.mark.soak, needs_root, pytest.mark.timeout(3600)]
BASE = "docker.io/library/debian:12-slim"
# The machine has no controllers of control groups, and no systemd.
CONTAINERS = """\
[containers]
cgroups = "disabled"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
BUILD, RUN = block_with("buildah bud"), block_with("podman run")
COMPOSE = block_with("podman-compose -f")
SHELL = "generic --env AGENT_BINARY=/bin/sh --env \"AGENT_ARGS=-c '{prompt}' sh\""
START, HEALTH, TOKEN = re.findall(r"(?:.*\\\n)*.*\n", RUN)
AS_ANOTHER = START.replace("podman run", "podman run --user 12345:0").replace("claude-code", SHELL)


@pytest.fixture(scope="module")
def host() -> Iterator[Machine]:
    """A machine with the image, which takes minutes. TMPDIR names the folder."""
    with large_folder("image-") as folder:
        root = folder / "root"
        debootstrap(root)
        checkout(root)
        pack = ["tar", "-C", str(root), "--exclude=./root", "-cf", str(root / "root/base.tar"), "."]
        subprocess.run(pack, check=True, timeout=LONGEST)
        with machine(root) as made:
            made.run("apt-get -qq update && apt-get -qq install -y curl", online=True)
            install, build = BUILD.splitlines()
            made.follow(f"{install}\n")
            made.write("/etc/containers/containers.conf", CONTAINERS)
            change = f"--change ENV=PIP_CERT={CERTIFICATES}"
            made.run(f"podman import --quiet {change} /root/base.tar {BASE}")
            made.follow(f"{build}\n", before="export BUILDAH_ISOLATION=chroot\n")
            yield made


def started(host: Machine) -> None:
    """A new container, as soon as it is healthy."""
    host.run(AS_ANOTHER)
    host.until(HEALTH, "podman logs bridge 2>&1")


def cab(host: Machine, *words: str) -> str:
    quoted = " ".join(f"'{word}'" for word in words)
    return host.run(f"podman exec bridge cab {quoted}")


def sent(host: Machine, text: str, *flags: str) -> tuple[str, str, str]:
    """The ids of the task and of its context, and the output of a client in the container."""
    shown = cab(host, "send", "--cwd", "/workspace", *flags, text)
    (task,), (context,) = re.findall(r"Task: (\S+)", shown), re.findall(r"Context: (\S+)", shown)
    return task, context, shown


def test_the_image_serves_as_any_user(host: Machine) -> None:
    """The root is read-only, and the user is another one than that of the image. A stop during a
    turn, the next container, and the same conversation."""
    assert not host.succeeds(HEALTH)  # there is no container
    started(host)
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
    task, context, shown = sent(host, "for i in 1 2 3; do (sleep 0.1 &) done; sleep 1; pwd")
    assert "/workspace" in shown and "State: completed" in shown
    states = "podman exec bridge sh -c 'cat /proc/[0-9]*/stat'"
    assert not re.findall(r"^\d+ \(.*\) Z", host.run(states), re.MULTILINE)
    begun = "echo one > begun; sleep 100"
    host.run(
        f"podman exec --detach bridge cab send --cwd /workspace --context-id {context} '{begun}'"
    )
    host.until("podman exec bridge test -s /workspace/begun", "podman exec bridge cab task list")
    before = time.monotonic()
    host.run("podman stop bridge")
    assert time.monotonic() - before < 50  # it is not killed after 60 s
    assert host.run("podman inspect --format '{{.State.ExitCode}}' bridge") == "0\n"
    assert not host.succeeds(HEALTH)
    host.run("podman rm bridge")
    started(host)
    assert "made a token for clients" not in host.run("podman logs bridge 2>&1")
    assert host.run(TOKEN).strip() == secret
    listed = json.loads(cab(host, "task", "list", "-o", "json"))
    states_of = {one["id"]: one["status"]["state"] for one in listed["tasks"]}
    assert states_of.pop(task) == "TASK_STATE_COMPLETED"
    assert list(states_of.values()) == ["TASK_STATE_FAILED"]
    _, same, shown = sent(host, "echo here again", "--context-id", context)
    assert same == context and "here again" in shown and "State: completed" in shown
    host.run("podman rm --force bridge")


def test_the_image_has_no_secret_and_no_cli(host: Machine) -> None:
    config = json.loads(host.run("podman inspect coding-agent-bridge:0.1.0"))[0]
    assert config["User"] == "1000:0"
    assert config["Healthcheck"]["Test"] == ["CMD", "coding-agent-bridge", "health"]
    env = config["Config"]["Env"]
    assert "LOG_FORMAT=json" in env
    assert not any("TOKEN=" in one or "KEY=" in one for one in env)
    inside = "podman run --rm --no-healthcheck --entrypoint sh coding-agent-bridge:0.1.0 -c"
    names = "claude codex node npm git rg ssh bwrap git-lfs"
    found = host.run(f"{inside} 'for one in {names}; do command -v $one; done; true'")
    assert found.split() == [f"/usr/bin/{one}" for one in names.split()[4:]]
    assert host.run(f"{inside} 'ls -A /state'") == ""
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
