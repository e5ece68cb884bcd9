"""What web pages of other sites can do to the server by way of a real browser: nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from aiohttp import ClientError, ClientSession, ClientTimeout, WSServerHandshakeError, web

from bridge.process.process_tree import reap_orphans
from tests.support import programs
from tests.support.client import Json, state
from tests.support.served import Server, serving

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = programs.first_of(*CHROMIUMS)
pytestmark = [pytest.mark.real, programs.needed(*CHROMIUMS)]
WITHIN = 60.0
# Every way that a page has to send something, or to see what came back. Each says "read: …" if the
# page got to see anything of the server, and else what became of it. {target} is the server.
PAGE = """<!doctype html><meta charset="utf-8"><title>x</title><body><script>
const target = TARGET, task = TASK;
const message = JSON.stringify({jsonrpc: "2.0", id: 1, method: "SendMessage", params: {
  message: {messageId: "m", role: "ROLE_USER", parts: [{text: "text pwned"}]}}});
const sent = JSON.stringify({message: JSON.parse(message).params.message});
const v1 = {"A2A-Version": "1.0"}, json = {"Content-Type": "application/json", ...v1};
const rpc = target + "/a2a/jsonrpc?A2A-Version=1.0", rest = "?A2A-Version=1.0";
const wait = (set) => new Promise((resolve) => {
  set(resolve); setTimeout(resolve, 2500, "late");
});
const get = async (url, options) => {
  const response = await fetch(url, options);
  if (response.type === "opaque" || response.type === "error") return response.type;
  return "read: " + response.status + " " + (await response.text()).slice(0, 300);
};
const element = (tag, members) => wait((done) => {
  const one = Object.assign(document.createElement(tag), members);
  one.onload = () => done("load"); one.onerror = () => done("error");
  document.body.append(one);
});
const form = (action, enctype, name, value) => wait((done) => {
  const frame = document.createElement("iframe");
  frame.name = "f" + Math.random();
  document.body.append(frame);
  const one = document.createElement("form");
  Object.assign(one, {method: "POST", action, enctype, target: frame.name});
  const input = document.createElement("input");
  Object.assign(input, {name, value, type: "hidden"});
  one.append(input); document.body.append(one);
  frame.onload = () => {
    let seen = "nothing";
    try { seen = "read: " + frame.contentDocument.body.innerText; } catch (error) {}
    done(seen);
  };
  one.submit();
});
const framed = (url) => wait((done) => {
  const frame = Object.assign(document.createElement("iframe"), {src: url});
  frame.onload = () => {
    let seen = "nothing";
    try { seen = "read: " + frame.contentDocument.body.innerText; } catch (error) {}
    done(seen);
  };
  document.body.append(frame);
});
const events = (url) => wait((done) => {
  const source = new EventSource(url);
  source.onopen = () => done("read: open"); source.onmessage = (e) => done("read: " + e.data);
  source.onerror = () => { source.close(); done("error"); };
});
const socket = (url) => wait((done) => {
  const one = new WebSocket(url.replace("http", "ws"));
  one.onopen = () => one.send('{"jsonrpc":"2.0","id":1,"method":"ListTasks","params":{}}');
  one.onmessage = (event) => done("read: " + event.data);
  one.onerror = () => done("error");
});
const xhr = (method, url, body, headers) => wait((done) => {
  const one = new XMLHttpRequest();
  one.open(method, url);
  for (const [name, value] of Object.entries(headers || {})) one.setRequestHeader(name, value);
  one.onload = () => done("read: " + one.status + " " + one.responseText.slice(0, 300));
  one.onerror = () => done("error");
  one.send(body);
});
const half = message.slice(0, -1) + ',"x":"';
const attempts = {
  "json": () => get(rpc, {method: "POST", headers: json, body: message}),
  "json rest": () => get(target + "/message:send", {method: "POST", headers: json, body: sent}),
  "stream": () => get(target + "/message:stream", {method: "POST", headers: json, body: sent}),
  "plain": () => get(rpc, {method: "POST", body: message}),
  "plain no-cors": () => get(rpc, {method: "POST", mode: "no-cors", body: message}),
  "plain no-cors rest": () =>
    get(target + "/message:send" + rest, {method: "POST", mode: "no-cors", body: sent}),
  "json no-cors": () => get(rpc, {method: "POST", mode: "no-cors", headers: json, body: message}),
  "json blob no-cors": () => get(rpc, {method: "POST", mode: "no-cors",
    body: new Blob([message], {type: "application/json"})}),
  "untyped no-cors": () => get(rpc, {method: "POST", mode: "no-cors",
    body: new TextEncoder().encode(message)}),
  "keepalive": () => get(rpc, {method: "POST", mode: "no-cors", keepalive: true, body: message}),
  "cancel": () => get(target + "/tasks/" + task + ":cancel" + rest, {method: "POST"}),
  "cancel no-cors": () =>
    get(target + "/tasks/" + task + ":cancel" + rest, {method: "POST", mode: "no-cors"}),
  "delete": () => get(target + "/tasks/" + task + "/pushNotificationConfigs/x" + rest,
    {method: "DELETE"}),
  "credentials": () => get(target + "/tasks" + rest, {credentials: "include"}),
  "list": () => get(target + "/tasks" + rest),
  "list no-cors": () => get(target + "/tasks" + rest, {mode: "no-cors"}),
  "health": () => get(target + "/health"),
  "card": () => get(target + "/.well-known/agent-card.json"),
  "monitor": () => get(target + "/monitor/tasks"),
  "no referrer": () => get(target + "/tasks" + rest, {referrerPolicy: "no-referrer"}),
  "xhr": () => xhr("POST", rpc, message, json),
  "xhr plain": () => xhr("POST", rpc, message, {"Content-Type": "text/plain"}),
  "xhr list": () => xhr("GET", target + "/tasks" + rest),
  "beacon": async () => { navigator.sendBeacon(rpc, message); return "sent"; },
  "beacon json": async () => {
    navigator.sendBeacon(rpc, new Blob([message], {type: "application/json"})); return "sent"; },
  "form plain": () => form(rpc, "text/plain", half, '"}'),
  "form": () => form(rpc, "application/x-www-form-urlencoded", message, ""),
  "form multipart": () => form(rpc, "multipart/form-data", message, ""),
  "form cancel": () =>
    form(target + "/tasks/" + task + ":cancel" + rest, "text/plain", "a", "b"),
  "frame": () => framed(target + "/tasks" + rest),
  "frame of a task": () => framed(target + "/tasks/" + task + rest),
  "sandboxed frame": () => wait((done) => {
    window.onmessage = (event) => done(event.data);
    element("iframe", {sandbox: "allow-scripts", srcdoc: "<script>fetch('" + target + "/tasks" +
      rest + "').then((r) => r.text()).then((t) => parent.postMessage('read: ' + t, '*'), " +
      "() => parent.postMessage('error', '*'))</" + "script>"});
  }),
  "image": () => element("img", {src: target + "/tasks" + rest}),
  "script": () => element("script", {src: target + "/tasks" + rest}),
  "style": () => element("link", {rel: "stylesheet", href: target + "/tasks" + rest}),
  "module": () => import(target + "/tasks" + rest).then(() => "read: module"),
  "object": () => element("object", {data: target + "/tasks" + rest}),
  "prefetch": () => element("link", {rel: "prefetch", href: target + "/tasks" + rest}),
  "events": () => events(target + "/tasks/" + task + ":subscribe" + rest),
  "monitor events": () => events(target + "/monitor/events"),
  "socket": () => socket(target + "/a2a/jsonrpc"),
  "worker": () => wait((done) => {
    const code = "fetch('" + rpc + "', {method: 'POST', mode: 'no-cors', body: " +
      JSON.stringify(message) + "}).then((r) => postMessage(r.type === 'opaque' ? 'opaque' : " +
      "'read: ' + r.status), () => postMessage('error'))";
    const worker = new Worker(URL.createObjectURL(new Blob([code])));
    worker.onmessage = (event) => done(event.data); worker.onerror = () => done("error");
  }),
};
const later = {
  "socket of tasks": () => socket(target + "/a2a/ws" + rest),
  "socket of a sandboxed frame": () => wait((done) => {
    window.addEventListener("message", (event) => done(event.data));
    element("iframe", {sandbox: "allow-scripts", srcdoc: "<script>const s = new WebSocket('" +
      target.replace("http", "ws") + "/a2a/ws" + rest + "'); s.onerror = () => " +
      "parent.postMessage('error', '*'); s.onopen = () => parent.postMessage('read: open', '*')</" +
      "script>"});
  }),
};
(async () => {
  const results = {};
  const run = (all) => Promise.all(Object.entries(all).map(async ([name, attempt]) => {
    try { results[name] = await attempt() || "nothing"; } catch (error) { results[name] = "error"; }
  }));
  await run(attempts);
  await run(later);
  await fetch("/report", {method: "POST", body: JSON.stringify(results)});
})();
</script>"""


@dataclass
class Front:
    """Where the server can be reached by a browser: what is not its own page or report goes to the
    server as it came. A name that led to the page leads to the server then, which is what DNS
    rebinding comes to. `passed`: what went there, and what became of it."""

    server: Server | None
    port: int = 0
    page: str = ""
    report: asyncio.Future[Json] = field(default_factory=asyncio.Future)
    passed: list[tuple[str, str, int]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/page":
            return web.Response(text=self.page, content_type="text/html")
        if request.path == "/report":
            self.report.set_result(json.loads(await request.text()))
            return web.Response()
        if request.path == "/favicon.ico":
            return web.Response(status=404)
        assert self.server
        if request.headers.get("Upgrade") == "websocket":
            return await self._connect(request, self.server)
        hop = {"connection", "content-length", "transfer-encoding", "accept-encoding"}
        headers = [(k, v) for k, v in request.headers.items() if k.lower() not in hop]
        url = self.server.url + request.raw_path
        skip = ("User-Agent", "Accept", "Content-Type", "Accept-Encoding")
        try:
            async with self.server.http.request(
                request.method,
                url,
                headers=headers,
                data=await request.read() or None,
                skip_auto_headers=skip,
                timeout=ClientTimeout(5),
            ) as answer:
                body = await answer.read()
        except (ClientError, TimeoutError):  # a stream that does not end
            self.passed.append((request.method, request.raw_path, 200))
            return web.Response(status=502)
        self.passed.append((request.method, request.raw_path, answer.status))
        kept = {k: v for k, v in answer.headers.items() if k.lower() not in hop}
        return web.Response(status=answer.status, body=body, headers=kept)

    async def _connect(self, request: web.Request, server: Server) -> web.StreamResponse:
        """Forward the handshake of a WebSocket; then its first frame and the answer to it."""
        sent = ("Host", "Origin", "Sec-Fetch-Site")
        headers = {name: request.headers[name] for name in sent if name in request.headers}
        url = server.url + request.raw_path
        try:
            async with server.http.ws_connect(url, headers=headers) as behind:
                self.passed.append(("GET", request.raw_path, 101))
                before = web.WebSocketResponse()
                await before.prepare(request)
                await behind.send_str(await before.receive_str())
                await before.send_str(await behind.receive_str())
                return before
        except WSServerHandshakeError as refused:
            self.passed.append(("GET", request.raw_path, refused.status))
            return web.Response(status=refused.status)


@asynccontextmanager
async def front(server: Server | None = None) -> AsyncIterator[Front]:
    found = Front(server)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", found.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found.port = runner.addresses[0][1]
    try:
        yield found
    finally:
        await runner.cleanup()


async def visit(url: str, folder: Path, front: Front) -> Json:
    """The report of the page at `url`, opened in a browser of its own."""
    assert CHROMIUM
    rules = "MAP *.example 127.0.0.1"
    process = await asyncio.create_subprocess_exec(
        CHROMIUM,
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        *("--disable-dev-shm-usage", f"--user-data-dir={folder}"),
        f"--host-resolver-rules={rules}",
        url,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(WITHIN):
            return await front.report
    finally:
        browser = psutil.Process(process.pid)
        helpers = browser.children(recursive=True)
        for one in (browser, *helpers):
            with suppress(psutil.NoSuchProcess):
                one.kill()
        async with asyncio.timeout(WITHIN):
            await process.wait()
            while any(one.is_running() for one in helpers):
                reap_orphans()  # they may be ours now
                await asyncio.sleep(0)


def page(target: str, task: str) -> str:
    return PAGE.replace("TARGET", json.dumps(target), 1).replace("TASK", json.dumps(task), 1)


async def condition(server: Server, http: ClientSession) -> Json:
    """What there is, by the server's own word and in its task store."""
    health = await (await http.get(f"{server.url}/health")).json()
    tasks = await server.client().call("ListTasks", {})
    return {"agents": health["agents"], "tasks": tasks["tasks"]}


# Where the page comes from, and where it sends what it sends. {0} and {1} are ports.
WAYS = {
    "another site": ("http://evil.example:{0}", "http://127.0.0.1:{0}"),
    "another name of this machine": ("http://localhost:{0}", "http://127.0.0.1:{0}"),
    "another port": ("http://127.0.0.1:{1}", "http://127.0.0.1:{0}"),
    "a name that leads elsewhere now": ("http://evil.example:{0}", "http://evil.example:{0}"),
    "all addresses": ("http://evil.example:{0}", "http://0.0.0.0:{0}"),
}


ALWAYS = ("another site", "a name that leads elsewhere now")
"""A browser takes seconds to start: the other ways are in the soak tier."""


@pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=[pytest.mark.soak] * (way not in ALWAYS)) for way in WAYS],
)
async def test_a_page_of_another_site_can_do_nothing_and_see_nothing(
    tmp_path: Path, workspace: Path, way: str
) -> None:
    served = serving(workspace, bridge_websocket=True)
    async with served as server, front(server) as first, front(server) as second:
        waiting = await server.client().send("ask q-1 Really?")
        before = await condition(server, server.http)
        origin, target = (one.format(first.port, second.port) for one in WAYS[way])
        first.page = second.page = page(target, waiting["id"])
        home = second if origin.endswith(str(second.port)) else first
        report = await visit(f"{origin}/page", tmp_path / "browser", home)
        assert await condition(server, server.http) == before
        assert state(await server.client().get(waiting["id"])) == "input-required"
    assert len(report) > 35
    seen = {name: said for name, said in report.items() if said.startswith("read:")}
    if origin == target:  # the page may read, but there is nothing but the refusal to be read
        more = {name: said for name, said in seen.items() if "421" not in said}
        assert more == {}
    else:
        assert seen == {}, seen
    passed = first.passed
    print(f"{way}: {len(report)} attempts, {len(passed)} requests came through")
    assert len(passed) >= 20, "the browser itself held them back: nothing was tried"
    assert {status for _, _, status in passed} <= {403, 421}, passed
    assert any(path.startswith("/a2a/ws") for _, path, _ in passed)


async def test_a_page_that_the_operator_allows_can_use_the_server(
    tmp_path: Path, workspace: Path
) -> None:
    """The same page: so its attempts are good ones, and it is the server that stops them."""
    async with front() as probe:
        origin = f"http://app.example:{probe.port}"
        settings: Json = {"bridge_allowed_origins": [origin], "bridge_websocket": True}
        async with serving(workspace, **settings) as server:
            probe.server = server
            waiting = await server.client().send("ask q-1 Really?")
            probe.page = page(f"http://127.0.0.1:{probe.port}", waiting["id"])
            report = await visit(f"{origin}/page", tmp_path / "browser", probe)
            tasks = (await server.client().call("ListTasks", {}))["tasks"]
    for name in ("json", "json rest", "list", "health", "card", "xhr"):
        assert report[name].startswith("read: 200"), (name, report[name])
    assert '"tasks":[{' in report["socket of tasks"]
    assert report["socket of a sandboxed frame"] == "error"  # its origin is null
    for name in ("plain", "xhr plain"):
        assert report[name].startswith("read: 415"), (name, report[name])
    for name in ("frame", "image", "script", "style", "module"):
        assert not report[name].startswith("read:"), (name, report[name])
    assert len(tasks) >= 3
