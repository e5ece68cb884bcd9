"""Reloads of a server in this process: each setting is applied at the next request, agents come and
go as a whole, and the pages for operators follow."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey

from bridge.a2a.signing import ALGORITHM, new_key
from bridge.auth.principal import Scope, Token, digest
from bridge.errors import ConfigurationError, Unavailable
from bridge.store.protocol import Store, TaskQuery
from tests.support.agent import PROGRAM
from tests.support.client import Client, RpcError, artifact_text, state
from tests.support.liveness import Liveness
from tests.support.prometheus import Page
from tests.support.reloadable import Reloadable, reloadable

SECRET = "a-token-of-anna-123456"
ANNA = {"Authorization": f"Bearer {SECRET}"}
HEADER = "X-Forwarded-For"
LISTING = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
SCOPES: tuple[Scope, ...] = ("run", "read", "cancel", "approve", "admin", "metrics")
log = logging.getLogger("bridge.of_the_test")


def token(**more: Any) -> dict[str, Token]:
    return {"anna": Token(hash=f"sha256:{digest(SECRET).hex()}", scopes=SCOPES, **more)}


class Probes:
    """Each method shows the effect of a setting on the next request or line of the log."""

    def __init__(self, server: Reloadable, read: Callable[[], str], keys: dict[str, ECKey]) -> None:
        self.server = server
        self.read = read
        self.keys = keys
        self.count = 0

    async def status(self, path: str = "/monitor/tasks", **headers: str) -> int:
        sent = {**ANNA, **{k.replace("_", "-"): v for k, v in headers.items()}}
        async with self.server.http.get(self.server.url + path, headers=sent) as answer:
            return answer.status

    async def host(self) -> int:
        return await self.status(Host="bridge.example")

    async def origin(self) -> int:
        return await self.status(Origin="https://app.example")

    async def card(self) -> Any:
        url = f"{self.server.url}/.well-known/agent-card.json"
        async with self.server.http.get(url) as answer:
            body = await answer.json()
            return body, answer.headers["ETag"]

    async def card_address(self) -> str:
        return (
            str((await self.card())[0]["url"])
            .partition("/a2a")[0]
            .replace(self.server.url, "its own")
        )

    async def question(self) -> str:
        """The state after a question in the same conversation."""
        self.count += 1
        client = self.server.client(**ANNA)
        asked: dict[str, Any] = {"messageId": f"q-{self.count}", "contextId": "of-questions"}
        task = await client.send("permit q Run ls?", **asked)
        if state(task) == "input-required":
            answer: dict[str, Any] = {"taskId": task["id"], "messageId": f"a-{self.count}"}
            await client.send(client.answer_parts(task, "Deny"), **answer)
        return state(task)

    async def starts(self) -> bool:
        """Whether two tasks in a row are accepted."""
        client = self.server.client(**ANNA)
        try:
            for _ in range(2):
                self.count += 1
                await client.send("done", messageId=f"q-{self.count}", contextId="c")
        except RpcError:
            return False
        return True

    async def peer(self) -> str:
        self.read()
        wrong = {"Authorization": "Bearer wrong", HEADER: "203.0.113.9, 198.51.100.7"}
        async with self.server.http.get(f"{self.server.url}/tasks", headers=wrong) as answer:
            assert answer.status == 401
        return "198.51.100.7" if "198.51.100.7" in self.read() else "127.0.0.1"

    async def feeds(self) -> int:
        """How many of three connections that stay busy are served."""
        host, _, port = self.server.url.removeprefix("http://").partition(":")
        head = f"GET /monitor/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {SECRET}"
        served, writers = 0, []
        for _ in range(3):
            reader, writer = await asyncio.open_connection(host, int(port))
            writers.append(writer)
            writer.write(f"{head}\r\n\r\n".encode())
            served += b"200" in await reader.readline()
        for writer in writers:
            writer.close()
        return served

    async def debug_line(self) -> bool:
        self.read()
        log.debug("a line of little interest")
        return "little interest" in self.read()

    async def json_line(self) -> bool:
        self.read()
        log.error("a line")
        return self.read().startswith("{")

    async def request_line(self) -> bool:
        self.read()
        assert (await self.server.client(**ANNA).post(LISTING)).status == 200
        return "request.answered" in self.read()

    async def redaction(self) -> bool:
        """Whether a new CLI's text with the form of a secret is redacted."""
        self.count += 1
        secret = "ghp_" + "a1B2" * 9
        client = self.server.client(**ANNA)
        task = await client.send(f"text {secret}", messageId=f"q-{self.count}")
        return secret not in artifact_text(task)

    async def issued(self) -> tuple[int, int]:
        """The answers for a token of each of two providers."""
        return (
            await self.of_provider("https://one.example"),
            await self.of_provider("https://two.example"),
        )

    async def audience(self) -> int:
        return await self.of_provider("https://one.example", aud="other")

    async def of_provider(self, issuer: str, aud: str = "bridge") -> int:
        claims = {"iss": issuer, "aud": aud, "sub": "ada", "exp": int(time.time()) + 300}
        claims["scope"] = "run read"
        made = jwt.encode({"alg": "ES256", "kid": "k"}, claims, self.keys["now"])
        async with asyncio.timeout(10):
            while True:  # the keys of a new provider are read in the background
                answer = await self.server.client(Authorization=f"Bearer {made}").post(LISTING)
                if answer.status != 503:
                    return answer.status


TABLE: tuple[tuple[dict[str, Any], str, Any, Any], ...] = (
    # changes, probe, before, after
    ({"bridge_allowed_hosts": ("bridge.example",)}, "host", 421, 200),
    ({"bridge_allowed_origins": ("https://app.example",)}, "origin", 403, 200),
    ({"public_url": "https://b.example"}, "card_address", "its own", "https://b.example"),
    ({"rules": ({"decision": "deny"},)}, "question", "input-required", "completed"),
    ({"tokens": token(starts_per_minute=1)}, "starts", True, False),
    ({"bridge_trusted_proxies": ("127.0.0.1",)}, "peer", "127.0.0.1", "198.51.100.7"),
    ({"bridge_max_connections": 2}, "feeds", 3, 2),
    ({"log_level": "DEBUG"}, "debug_line", False, True),
    ({"log_format": "json"}, "json_line", False, True),
    ({"log_requests": True}, "request_line", False, True),
    ({"bridge_redact": "patterns"}, "redaction", False, True),
    ({"bridge_oidc_issuer": "https://two.example"}, "issued", (200, 401), (401, 200)),
    ({"bridge_oidc_audience": ("other",)}, "audience", 401, 200),
)


async def test_each_setting_is_applied_at_the_next_request_and_so_is_its_removal(
    workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A start of a server, and a dozen CLIs; above a second."""
    keys = {"now": ECKey.generate_key("P-256")}
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [{**keys["now"].as_dict(private=False), "kid": "k"}]}))
    oidc: dict[str, Any] = {
        "bridge_oidc_issuer": "https://one.example",
        "bridge_oidc_audience": ("bridge",),
        "bridge_oidc_jwks": str(file),
    }
    wrong: list[str] = []
    async with reloadable(workspace, tokens=token(), **oidc) as server:
        probes = Probes(server, lambda: capsys.readouterr().err, keys)
        for changes, name, before, after in TABLE:
            probe, original = getattr(probes, name), server.settings
            found = [await probe()]
            changed = await server.reload(**changes)
            found.append(await probe())
            server.settings = original
            back = await server.reload()
            found.append(await probe())
            setting = next(iter(changes))
            if found != [before, after, before]:
                wrong.append(f"{setting}: {found}, expected {[before, after, before]}")
            named = {"tokens": "tokens.anna", "rules": "rules"}.get(setting, setting.upper())
            assert named in changed.changed and named in back.changed, (setting, changed, back)
            assert not changed.needs_restart
        changed = await server.reload(bridge_max_sessions=3, log_level="ERROR")
        assert changed.needs_restart == ("BRIDGE_MAX_SESSIONS",)
        assert changed.changed == ("LOG_LEVEL",)
        assert server.parts.pool.limit == 8
    assert not wrong, "\n".join(wrong)


async def test_signed_cards_follow_the_content_of_their_keys(
    workspace: Path, tmp_path: Path
) -> None:
    file = tmp_path / "card-keys.json"
    file.write_text(json.dumps({"keys": [new_key(ALGORITHM, "first")]}))
    file.chmod(0o600)
    keys: dict[str, Any] = {"bridge_card_keys": str(file), "bridge_card": "1.0"}
    async with reloadable(workspace, tokens=token(), **keys) as server:
        probes = Probes(server, str, {})
        (before, tag), (again, same) = await probes.card(), await probes.card()
        assert (before, tag) == (again, same) and before["signatures"]
        file.write_text(json.dumps({"keys": [new_key(ALGORITHM, "second")]}))
        await server.reload()
        after, other = await probes.card()
        assert other != tag and after["signatures"] != before["signatures"]
        file.write_text("no keys")
        with pytest.raises(ConfigurationError):
            await server.reload()
        assert await probes.card() == (after, other)


# --- agents --------------------------------------------------------------------------------------


def program(workspace: Path, name: str) -> dict[str, Any]:
    folder = workspace.parent / name
    folder.mkdir(exist_ok=True)
    args = ("-I", "-S", PROGRAM)
    return {"adapter": "jsonl", "binary": sys.executable, "args": args, "workspace": str(folder)}


def at(server: Reloadable, agent: str) -> Client:
    return Client(server.http, f"{server.url}/agents/{agent}", headers=ANNA)


async def page_of(server: Reloadable) -> Page:
    async with server.http.get(f"{server.url}/metrics", headers=ANNA) as answer:
        assert answer.status == 200
        return Page(await answer.text())


async def health(server: Reloadable) -> str:
    async with server.http.get(f"{server.url}/health", headers=ANNA) as answer:
        return await answer.text()


async def test_a_task_has_one_line_with_its_request_after_any_number_of_reloads(
    workspace: Path, live: Liveness, capsys: pytest.CaptureFixture[str]
) -> None:
    async with reloadable(workspace, tokens=token(), log_format="json") as server:
        client = server.client(**ANNA, X_Request_Id="of-the-task")
        task = await client.send_now(f"wait {live.path} agent\ntext done")
        await live.pid("agent")
        for _ in range(3):
            await server.reload()
        async with client.subscribe(task["id"]) as items:
            await anext(items)
            await live.release("agent")
            assert state([item async for item in items][-1]) == "completed"
        await client.send("text more", messageId="m-2", contextId=task["contextId"])
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    told = [line for line in lines if line["event"].startswith("task.")]
    assert [line["event"] for line in told] == ["task.started", "task.ended"] * 2
    assert {line["request_id"] for line in told} == {"of-the-task"}
    started = [line for line in told if line["event"] == "task.started"]
    assert [line["start"] for line in started] == ["cold", "warm"]
    assert {line["cwd"] for line in started} == {str(workspace)}


async def test_metrics_and_health_follow_the_agents(workspace: Path) -> None:
    """A task of a new agent counts, also before the next look at the page."""
    agents = {"a": program(workspace, "a")}
    script = workspace.parent / "no-interpreter"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    broken = {**program(workspace, "b"), "binary": str(script)}
    async with reloadable(workspace, tokens=token(), agents=agents) as server:
        before = await page_of(server)
        assert "b" not in before.text.split('agent="')
        await server.reload(agents={**agents, "b": program(workspace, "b")})
        await at(server, "b").send("text hello")
        page = await page_of(server)
        ended = {"agent": "b", "state": "completed", "reason": ""}
        assert page.value("bridge_tasks_total", **ended) == 1
        assert page.value("bridge_tasks_open", agent="b", state="working") == 0
        assert page.value("bridge_session_starts_total", agent="b", start="cold") == 1
        await server.reload(agents={**agents, "b": broken})
        assert state(await at(server, "b").send("text hello", messageId="m-2")) == "failed"
        assert "agents cannot begin tasks: b" in await health(server)
        await server.reload(agents=agents)
        async with asyncio.timeout(20):
            await asyncio.gather(*server.parts.fleet.ending.values())
        assert "agents cannot begin tasks" not in await health(server)
        gone = await page_of(server)
        assert 'agent="b"' not in str(gone.samples["bridge_tasks_open"])
        await server.reload(agents={**agents, "b": broken})
        await at(server, "b").send("text hello", messageId="m-3")
        back = await page_of(server)
        assert back.value("bridge_tasks_total", **ended) == 1
        failed = {"agent": "b", "state": "failed", "reason": "launch"}
        assert back.value("bridge_tasks_total", **failed) == 2
        assert "agents cannot begin tasks: b" in await health(server)
        assert len(back.samples["bridge_tasks_total"]) == len(page.samples["bridge_tasks_total"])
        url = f"{server.url}/admin/backup"
        given = {"folder": str(workspace.parent / "backup")}
        async with server.http.post(url, json=given, headers=ANNA) as answer:
            assert answer.status == 200
        assert before.value("bridge_backup_timestamp_seconds") == 0
        newest = (await page_of(server)).value("bridge_backup_timestamp_seconds")
        assert abs(newest - time.time()) < 60


class Faulty:
    """A store that cannot read the conversations of one agent."""

    def __init__(self, store: Store, agent: str) -> None:
        self._store = store
        self._agent = agent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def contexts(self, agent: str, *more: Any) -> Any:
        if agent == self._agent:
            raise Unavailable("the disk is gone")
        return await self._store.contexts(agent, *more)


async def test_a_plan_that_fails_at_its_last_step_leaves_nothing(workspace: Path) -> None:
    """The new agent b would end the task that an earlier b has left; then c cannot be read."""
    agents = {"a": program(workspace, "a"), "b": program(workspace, "b")}
    more = {**agents, "c": program(workspace, "c")}
    one: dict[str, Any] = {"tokens": token(), "bridge_sandbox": "auto"}
    async with reloadable(workspace, keep=True, agents=agents, **one) as server:
        task = await at(server, "b").send("permit q Run ls?")
        assert state(task) == "input-required"
    async with reloadable(workspace, agents={"a": agents["a"]}, **one) as server:
        fleet = server.parts.fleet
        store, shared = fleet.shared.state.store, fleet.shared
        faulty: Any = Faulty(store, "c")
        fleet.shared = replace(shared, state=replace(shared.state, store=faulty))
        bert = {"bert": Token(hash=f"sha256:{digest('of-bert-123456789').hex()}")}
        with pytest.raises(ConfigurationError, match="the disk is gone"):
            await server.reload(agents=more, log_level="DEBUG", tokens={**token(), **bert})
        of_bert = server.client(Authorization="Bearer of-bert-123456789")
        assert (await of_bert.post(LISTING)).status == 401
        await store.flush()
        (head,) = (await store.list(TaskQuery(agents=("b",)))).heads
        assert head.state.value == "input-required"
        assert [one.id for one in fleet.agents] == ["a"]
        assert list(fleet.managers) == list(fleet.sandboxes) == ["a"]
        assert (await at(server, "b").post({})).status == 404
        assert server.site.reloader.loaded.settings.server.log_level == "INFO"
        fleet.shared = shared
        assert (await server.reload(agents=more)).added == ("agents.b", "agents.c")
        assert state(await at(server, "b").get(task["id"])) == "failed"


async def test_an_agent_that_ends_still_cannot_come_back_yet(
    workspace: Path, live: Liveness
) -> None:
    agents = {"a": program(workspace, "a"), "b": program(workspace, "b")}
    one: dict[str, Any] = {"tokens": token(), "bridge_drain_ms": 20_000}
    async with reloadable(workspace, agents=agents, **one) as server:
        task = await at(server, "b").send_now(f"wait {live.path} agent\ntext done")
        await live.pid("agent")
        await server.reload(agents={"a": agents["a"]})
        with pytest.raises(ConfigurationError, match="ends still"):
            await server.reload(agents=agents)
        await live.release("agent")
        async with asyncio.timeout(20):
            await asyncio.gather(*server.parts.fleet.ending.values())
        await server.reload(agents=agents)
        assert artifact_text(await at(server, "b").get(task["id"])) == "done"
        url = f"{server.url}/monitor/events"
        async with server.http.get(url, headers={**ANNA, "Last-Event-ID": "0"}) as feed:
            await at(server, "b").send("text again", messageId="m-2")
            states = set()
            async for line in feed.content:
                if line.startswith(b"data: ") and json.loads(line[6:])["id"] != task["id"]:
                    states.add(json.loads(line[6:])["state"])
                    if "completed" in states:
                        break


async def test_a_new_file_of_the_server_needs_a_restart(workspace: Path, tmp_path: Path) -> None:
    """The sandboxes of running agents do not hide it."""
    file = tmp_path / "card-keys.json"
    file.write_text(json.dumps({"keys": [new_key(ALGORITHM, "first")]}))
    file.chmod(0o600)
    async with reloadable(workspace, tokens=token(), bridge_card="1.0") as server:
        changes = await server.reload(bridge_card_keys=str(file))
        assert changes.needs_restart == ("BRIDGE_CARD_KEYS",)
        assert "signatures" not in (await Probes(server, str, {}).card())[0]
