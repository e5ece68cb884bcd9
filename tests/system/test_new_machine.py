"""docs/deploy.md word by word in a new Debian: a service of the system with the real Claude Code
and a scripted model, behind nginx, with traces, backup, upgrade and rollback. A stand-in runs the
unit, because no systemd runs there."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support import service_manager
from tests.support.debian import Machine, checkout, install, large_folder, machine
from tests.support.deploy_page import PAGE, block_with, of
from tests.support.kept_state import FIRST, schema_of
from tests.support.neighbours import Neighbours, neighbours
from tests.support.real_claude_code import CLAUDE, bash, script, tool_results
from tests.support.sandboxed import needs_root

pytestmark = [pytest.mark.soak, needs_root, pytest.mark.timeout(3600)]
SETTINGS, PROXY = of("toml")
ENDPOINT = 'otel_exporter_otlp_endpoint = "http://127.0.0.1:4318"'
STATE = "/var/lib/coding-agent-bridge/team/state"
UNIT = "coding-agent-bridge@team.service"
CREDENTIAL = f"/run/credentials/{UNIT}/token"
TEAM = block_with("team() {")
HOME = "/var/lib/coding-agent-bridge/team/home"
TOKEN = "/etc/coding-agent-bridge/team.token"
BEARER = f'-H "Authorization: Bearer $(cat {TOKEN})"'
CODE = "-o /dev/null -w '%{http_code}'"


@pytest.fixture(scope="module")
def fresh() -> Iterator[Machine]:
    """A machine with the checkout, and programs of systemd that do not need one that runs. It
    takes minutes. TMPDIR names the folder."""
    with large_folder("machine-") as folder:
        root = folder / "root"
        install(root)
        checkout(root / "root/checkout")
        with machine(root) as made:
            made.run("apt-get -qq update && apt-get -qq install -y systemd curl", online=True)
            shutil.copy(CLAUDE.resolve(), root / "usr/local/bin/claude")
            made.write("/usr/local/bin/systemctl", Path(service_manager.__file__).read_text())
            made.run("chmod 755 /usr/local/bin/systemctl")
            made.write("/etc/hosts", "127.0.0.1 localhost bridge.example.org\n")
            yield made


def test_the_page_leads_to_a_service_behind_a_proxy(fresh: Machine) -> None:
    """Installations take minutes."""
    with neighbours(fresh) as beside:
        _install(fresh, beside)
        _start(fresh)
        _give_tokens(fresh)
        _replace_the_token(fresh)
        _put_behind_nginx(fresh)
        _send_traces(fresh, beside)
        _is_on_call(fresh)
        _back_up_and_restore(fresh)
        _upgrade_and_roll_back(fresh)
    results = [one for messages in beside.conversations for one in tool_results(messages)]
    denied = f"/srv/team\ncat: {CREDENTIAL}: Permission denied"
    assert any(denied in one for one in results), results
    assert {"SendStreamingMessage", "invoke_agent claude-code"} <= set(beside.spans)


def team(host: Machine, command: str) -> str:
    return host.run(f"{TEAM}\nteam {command}")


def _install(host: Machine, beside: Neighbours) -> None:
    """The model is in the settings of the CLI, which are where it signs in."""
    shown = host.follow(block_with("pip install '.[metrics,otel]'\n/opt/coding-agent-bridge/"))
    assert "/etc/systemd/system/coding-agent-bridge@.service\n" in shown
    host.write("/root/checkout/team.toml", SETTINGS)
    host.follow(block_with("useradd"))
    host.write(f"/etc/systemd/system/{UNIT}.d/override.conf", of("ini")[0])
    settings = {"env": beside.model, "permissions": {"allow": ["Bash"]}}
    host.write(f"{HOME}/.claude/settings.json", json.dumps(settings))
    host.run(f"chown -R cab-team: {HOME}")
    shown = team(host, "coding-agent-bridge doctor")
    assert "!!" not in shown
    assert "ok  landlock" in shown


def _start(host: Machine) -> None:
    """The agent cannot read the token, which its user can."""
    shown = host.follow(block_with("systemctl start coding-agent-bridge@team\nteam"), before=TEAM)
    assert shown.endswith("\nready\n")
    assert host.run(f"systemd-analyze verify {UNIT}") == ""
    shown = host.run(f"systemd-analyze security --offline=true --threshold=40 {UNIT}")
    assert re.search(r"Overall exposure level.*: [1-3]\.\d OK", shown)
    log = [json.loads(line) for line in host.run(f"cat /run/units/{UNIT}.log").splitlines()]
    assert [one["event"] for one in log] == ["server.starting", "server.ready"]
    assert re.fullmatch(r"[\w-]{43}\n", team(host, f"cat {CREDENTIAL}"))
    say(host, "hello", bash(f"pwd; cat {CREDENTIAL} 2>&1"))
    for page in ("health", "ready"):
        assert host.run(f"curl -s {CODE} 127.0.0.1:41242/{page}") == "200"


def say(host: Machine, answer: str, *before: dict[str, object]) -> None:
    """A task of the model ends with this answer, after the steps `before`."""
    shown = team(host, f"cab send --cwd /srv/team '{script('Say it', *before, answer)}'")
    assert answer in shown and "State: completed" in shown, shown


def _give_tokens(host: Machine) -> None:
    shown = host.follow(block_with("systemctl reload coding-agent-bridge@team"), before=TEAM)
    assert "added: tokens.ide, tokens.prometheus" in shown
    assert re.search(r"^prometheus +metrics ", shown, re.MULTILINE)
    ide, prometheus = re.findall(r"^[\w-]{43}$", shown, re.MULTILINE)
    tasks = "-H 'A2A-Version: 1.0' 127.0.0.1:41242/tasks"
    codes = [("metrics", ide, "403"), ("metrics", "x", "401"), ("metrics", prometheus, "200")]
    for page, token, code in codes:
        header = f"-H 'Authorization: Bearer {token}'"
        assert host.run(f"curl -s {CODE} {header} 127.0.0.1:41242/{page}") == code
    assert host.run(f"curl -s {CODE} -H 'Authorization: Bearer {ide}' {tasks}") == "200"
    page = host.run(f"curl -s -H 'Authorization: Bearer {prometheus}' 127.0.0.1:41242/metrics")
    assert 'bridge_tasks_total{agent="claude-code"' in page


def _replace_the_token(host: Machine) -> None:
    """A credential of a service is read at its start, as the page says."""
    with_new = f"curl -s {CODE} {BEARER} -H 'A2A-Version: 1.0' 127.0.0.1:41242/tasks"
    assert host.run(with_new) == "200"
    make = next(one for one in block_with("useradd").splitlines() if "secrets" in one)
    host.run(f"{make}\nsystemctl reload coding-agent-bridge@team")
    assert host.run(with_new) == "401"
    host.run("systemctl restart coding-agent-bridge@team")
    assert host.run(with_new) == "200"


def _put_behind_nginx(host: Machine) -> None:
    """The certificate is a self-signed one."""
    settings = host.root / "etc/coding-agent-bridge/team.toml"
    settings.write_text(PROXY + settings.read_text())
    shown = host.follow(block_with("openssl req"), before=TEAM)
    assert "test is successful" in shown
    assert '"url":"https://bridge.example.org/a2a/jsonrpc"' in shown
    trusted = "curl -s --cacert /etc/ssl/certs/bridge.pem"
    prompt = script("Say it", "by the proxy")
    message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": prompt}]}
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage"}
    host.write("/root/call.json", json.dumps({**call, "params": {"message": message}}))
    post = (
        f"{trusted} -d @/root/call.json -H 'Content-Type: application/json' -H 'A2A-Version: 1.0'"
    )
    url = "https://bridge.example.org/a2a/jsonrpc"
    shown = host.run(f"{post} {BEARER} {url}")
    assert "by the proxy" in shown and "TASK_STATE_COMPLETED" in shown
    assert host.run(f"{post} {CODE} {url}") == "401"
    for page in ("metrics", "nodes", "admin/reload", "monitor/tasks"):
        assert host.run(f"{trusted} {CODE} {BEARER} https://bridge.example.org/{page}") == "404"
    assert host.run(f"{trusted} {CODE} https://bridge.example.org/ready") == "200"
    assert not host.succeeds("curl -s https://bridge.example.org/health")  # not trusted


def _send_traces(host: Machine, beside: Neighbours) -> None:
    """The collector has another port than that of the page."""
    assert f"`{ENDPOINT}`" in PAGE
    settings = host.root / "etc/coding-agent-bridge/team.toml"
    own = ENDPOINT.replace("http://127.0.0.1:4318", beside.collector["OTEL_EXPORTER_OTLP_ENDPOINT"])
    settings.write_text(f"{own}\n{settings.read_text()}")
    host.run("systemctl restart coding-agent-bridge@team")
    say(host, "traced")


def _is_on_call(host: Machine) -> None:
    """The commands of the last section that need neither a systemd nor the id of a task."""
    text = PAGE.partition("\n## 8. ")[2]
    commands = set(re.findall(r"`((?:GET|du|grep|team cab) [^`]+)`", text))
    commands = {one for one in commands if not re.search(r"\bID\b", one)}
    assert len(commands) == 8
    for one in commands:
        if one.startswith("GET "):
            call = f"curl -s {CODE} {BEARER} '127.0.0.1:41242{one[4:]}'"
            assert host.run(call) == "200", one
        else:
            host.run(f"{TEAM}\n{one}")
    host.run("install -d -o cab-team /srv/other")  # the drop-in does not have it
    symptom = "Read-only file system"
    assert symptom in PAGE and symptom in team(host, "cab backup /srv/other/b || true")


def _back_up_and_restore(host: Machine) -> None:
    backup, drill = block_with("coding-agent-bridge backup"), block_with("41299")
    assert host.follow(backup, before=TEAM).count("not in it:") == 2
    assert host.run("systemd-analyze verify coding-agent-bridge-backup@team.timer") == ""
    assert len(host.run("ls /var/backups/team").split()) == 2
    restore, start = drill.splitlines()
    assert "restored 3 tasks" in host.run(f"{TEAM}\n{restore}")
    host.run(f"{TEAM}\n({start}) < /dev/null > /root/drill.log 2>&1 &")
    host.until("curl -sf 127.0.0.1:41299/ready", "cat /root/drill.log")
    other = "env BRIDGE_STATE_DIR=/var/backups/team/drill"
    shown = [json.loads(team(host, f"{one} cab task list -o json"))["tasks"] for one in ("", other)]
    assert len(shown[0]) == 3
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
    say(host, "later")
    shown = host.follow(block_with("coding-agent-bridge rollback"), before=TEAM)
    assert re.search(r"\b1 (later )?task", shown)
    assert "0.9.9" not in host.run("curl -s 127.0.0.1:41242/health")
    listed = json.loads(team(host, "cab task list -o json"))["tasks"]
    assert len(listed) <= number
