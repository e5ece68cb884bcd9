"""docs/deploy.md word by word in a new Debian: a service of the system, behind nginx, with backup,
upgrade and rollback. A stand-in runs the unit, because no systemd runs there."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support import agent, service_manager
from tests.support.debian import Machine, checkout, debootstrap, large_folder, machine
from tests.support.deploy_page import block_with, of
from tests.support.kept_state import FIRST, schema_of
from tests.support.sandboxed import needs_root

pytestmark = [pytest.mark.soak, needs_root, pytest.mark.timeout(3600)]
SETTINGS, PROXY = of("toml")
STATE = "/var/lib/coding-agent-bridge/team/state"
UNIT = "coding-agent-bridge@team.service"
TEAM = block_with("team() {")
AGENT = 'agent_adapter = "jsonl"\nagent_binary = "/usr/bin/python3"\nagent_args = "-I -S /opt/a.py"'


@pytest.fixture(scope="module")
def fresh() -> Iterator[Machine]:
    """A machine with the checkout, and programs of systemd that do not need one that runs. It
    takes minutes. TMPDIR names the folder."""
    with large_folder("machine-") as folder:
        root = folder / "root"
        debootstrap(root)
        checkout(root)
        with machine(root) as made:
            made.run("apt-get -qq update && apt-get -qq install -y systemd curl", online=True)
            made.write("/opt/a.py", Path(agent.PROGRAM).read_text())
            made.write("/usr/local/bin/systemctl", Path(service_manager.__file__).read_text())
            made.run("chmod 755 /usr/local/bin/systemctl")
            made.write("/etc/hosts", "127.0.0.1 localhost bridge.example.org\n")
            yield made


def test_the_page_leads_to_a_service_behind_a_proxy(fresh: Machine) -> None:
    """Installations take minutes."""
    _install(fresh)
    _start(fresh)
    _give_tokens(fresh)
    _put_behind_nginx(fresh)
    _back_up_and_restore(fresh)
    _upgrade_and_roll_back(fresh)


def team(host: Machine, command: str) -> str:
    return host.run(f"{TEAM}\nteam {command}")


def _install(host: Machine) -> None:
    shown = host.follow(block_with("pip install '.[client,metrics]'\n/opt/coding-agent-bridge/"))
    assert "/etc/systemd/system/coding-agent-bridge@.service\n" in shown
    assert 'agent_adapter = "claude-code"' in SETTINGS
    host.write("/root/checkout/team.toml", SETTINGS.replace('agent_adapter = "claude-code"', AGENT))
    host.follow(block_with("useradd"))
    host.write(f"/etc/systemd/system/{UNIT}.d/override.conf", of("ini")[0])
    shown = team(host, "coding-agent-bridge doctor")
    assert "!!" not in shown
    assert "ok  landlock" in shown


def _start(host: Machine) -> None:
    shown = host.follow(block_with("systemctl start coding-agent-bridge@team\nteam"), before=TEAM)
    assert shown.endswith("\nready\n")
    assert host.run(f"systemd-analyze verify {UNIT}") == ""
    shown = host.run(f"systemd-analyze security --offline=true --threshold=40 {UNIT}")
    assert re.search(r"Overall exposure level.*: [1-3]\.\d OK", shown)
    log = [json.loads(line) for line in host.run(f"cat /run/units/{UNIT}.log").splitlines()]
    assert [one["event"] for one in log] == ["server.starting", "server.ready"]
    shown = team(host, "cab send --cwd /srv/team 'text hello\ncwd'")
    assert "hello" in shown and "State: completed" in shown
    assert "/srv/team" in shown


def _give_tokens(host: Machine) -> None:
    shown = host.follow(block_with("token prometheus"), before=TEAM)
    assert "added: tokens.ide, tokens.prometheus" in shown
    assert re.search(r"^prometheus +metrics ", shown, re.MULTILINE)
    tokens = re.findall(r"^[\w-]{43}$", shown, re.MULTILINE)
    page = f"curl -s -H 'Authorization: Bearer {tokens[1]}' 127.0.0.1:41242/metrics"
    assert 'bridge_tasks_total{agent="jsonl"' in host.run(page)
    assert host.run(f"{page} -o /dev/null -w '%{{http_code}}'".replace(tokens[1], "x")) == "401"


def _put_behind_nginx(host: Machine) -> None:
    """The certificate is a self-signed one."""
    settings = host.root / "etc/coding-agent-bridge/team.toml"
    settings.write_text(PROXY + settings.read_text())
    shown = host.follow(block_with("openssl req"), before=TEAM)
    assert "test is successful" in shown
    assert '"url":"https://bridge.example.org/a2a/jsonrpc"' in shown
    trusted = "curl -s --cacert /etc/ssl/certs/bridge.pem"
    message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "text by the proxy"}]}
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage"}
    host.write("/root/call.json", json.dumps({**call, "params": {"message": message}}))
    post = (
        f"{trusted} -d @/root/call.json -H 'Content-Type: application/json' -H 'A2A-Version: 1.0'"
    )
    url = "https://bridge.example.org/a2a/jsonrpc"
    bearer = '-H "Authorization: Bearer $(cat /etc/coding-agent-bridge/team.token)"'
    shown = host.run(f"{post} {bearer} {url}")
    assert "by the proxy" in shown and "TASK_STATE_COMPLETED" in shown
    code = "-o /dev/null -w '%{http_code}'"
    assert host.run(f"{post} {code} {url}") == "401"
    assert host.run(f"{trusted} {code} {bearer} https://bridge.example.org/metrics") == "404"
    assert not host.succeeds("curl -s https://bridge.example.org/health")  # not trusted


def _back_up_and_restore(host: Machine) -> None:
    backup, drill = block_with("coding-agent-bridge backup"), block_with("41299")
    assert "not in it:" in host.follow(backup, before=TEAM)
    restore, start = drill.splitlines()
    assert "restored 2 tasks" in host.run(f"{TEAM}\n{restore}")
    host.run(f"{TEAM}\n({start}) < /dev/null > /root/drill.log 2>&1 &")
    host.until("curl -sf 127.0.0.1:41299/ready", "cat /root/drill.log")
    other = "env BRIDGE_STATE_DIR=/var/backups/team/drill"
    shown = [json.loads(team(host, f"{one} cab task list -o json"))["tasks"] for one in ("", other)]
    assert len(shown[0]) == 2
    assert shown[0] == shown[1]
    pid = json.loads((host.root / "var/backups/team/drill/server.json").read_text())["pid"]
    host.run(f"kill {pid}")
    host.until("! curl -s 127.0.0.1:41299/ready", "cat /root/drill.log")


def _upgrade_and_roll_back(host: Machine) -> None:
    """The tasks are those of an early version, so that the upgrade migrates them."""
    systemctl = "systemctl {} coding-agent-bridge@team"
    host.run(systemctl.format("stop"))
    tasks = host.root / STATE.lstrip("/") / "tasks.db"
    for path in tasks.parent.glob("tasks.db*"):
        path.unlink()
    with closing(sqlite3.connect(tasks)) as database:
        database.executescript(FIRST.read_text())
        ((number,),) = database.execute("SELECT count(*) FROM task").fetchall()
    host.run(f"chown cab-team: {STATE}/tasks.db && chmod 600 {STATE}/tasks.db")
    version = host.root / "root/checkout/bridge/__init__.py"
    version.write_text(re.sub(r'__version__ = ".*"', '__version__ = "0.9.9"', version.read_text()))
    shown = host.follow(block_with("doctor --migrate"), before=TEAM)
    assert "schema 2" in shown
    assert schema_of(tasks.with_name("tasks.db.schema-2")) == 2
    assert "0.9.9" in host.run("curl -s 127.0.0.1:41242/health")
    team(host, "cab send --cwd /srv/team 'text later'")
    shown = host.follow(block_with("coding-agent-bridge rollback"), before=TEAM)
    assert re.search(r"\b1 (later )?task", shown)
    assert "0.9.9" not in host.run("curl -s 127.0.0.1:41242/health")
    listed = json.loads(team(host, "cab task list -o json"))["tasks"]
    assert len(listed) <= number
