"""The gRPC binding: metadata, identity, streams, limits, health and reflection.
test_equivalence.py compares its results with those of the other bindings."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from bridge.a2a.card import EXTENSION
from bridge.a2a.codec import STREAMING, Operation
from bridge.errors import ConfigurationError
from bridge.server.settings.load import load
from bridge.transports.grpc.health import HEALTH
from bridge.transports.grpc.messages import message_class
from bridge.transports.grpc.server import GrpcConfig, GrpcServer
from bridge.transports.grpc.service import SERVICE, Method, methods
from tests import CHECKOUT
from tests.support import principals
from tests.support.agents import Write
from tests.support.cases import each
from tests.support.client import Json, state, streamed_text, task_id
from tests.support.grpc_client import GrpcClient, GrpcError, connected, path, to_bytes
from tests.support.liveness import Liveness
from tests.support.prometheus import page_of
from tests.support.rest import message
from tests.support.served import Server, serving, serving_loaded

NAMELESS = {Operation.LIST, Operation.EXTENDED_CARD}  # operations that name no task
WITHIN = 60.0  # seconds
TOKEN = "x" * 16


@asynccontextmanager
async def served(workspace: Path, **settings: Any) -> AsyncIterator[tuple[Server, GrpcClient]]:
    """A server with a gRPC port, and a client of it."""
    async with (
        serving(workspace, bridge_grpc_port=0, **settings) as server,
        connected(server.grpc) as client,
        asyncio.timeout(WITHIN),
    ):
        yield server, client


def number(item: Json) -> int:
    (content,) = item.values()
    return int(content["metadata"]["bridge"]["eventId"])


async def refused(call: Any) -> GrpcError:
    with pytest.raises(GrpcError) as caught:
        await call
    return caught.value


# --- metadata ----------------------------------------------------------------------------------


async def test_the_version_is_checked(workspace: Path) -> None:
    async with served(workspace) as (_, client):
        for version in ("", "0.3", "2.0", "nonsense"):
            error = await refused(client.call("ListTasks", {}, a2a_version=version))
            assert error.code is grpc.StatusCode.FAILED_PRECONDITION
            assert error.details[0]["reason"] == "VERSION_NOT_SUPPORTED"
        assert await client.call("ListTasks", {}, a2a_version="1.0.1")


async def test_calls_need_a_token(workspace: Path) -> None:
    """Checked before the message is decoded."""
    async with served(workspace, bridge_token=TOKEN) as (_, client):
        unsigned = client.channel.unary_unary(path("GetTask"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unsigned(b"\xff", metadata=(("a2a-version", "1.0"),))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        error = await refused(client.call("ListTasks", {}, authorization="Bearer wrong"))
        assert error.code is grpc.StatusCode.UNAUTHENTICATED
        for metadata in ({"authorization": f"Bearer {TOKEN}"}, {"x_api_key": TOKEN}):
            await client.call("ListTasks", {}, **metadata)


async def test_an_activated_extension_is_confirmed(workspace: Path) -> None:
    async with served(workspace) as (_, client):
        call = client.channel.unary_unary(path("ListTasks"))
        metadata = (("a2a-version", "1.0"), ("a2a-extensions", EXTENSION))
        answer = call(b"", metadata=metadata)
        await answer
        assert dict(await answer.initial_metadata())["a2a-extensions"] == EXTENSION


async def test_a_tenant_names_the_agent(write: Write) -> None:
    config = write("BRIDGE_GRPC_PORT = 0\n[agents.one]\n[agents.two]\n")
    loaded = load({"config_file": str(config)})
    async with serving_loaded(loaded) as server, connected(server.grpc) as client:
        for tenant in ("one", "two"):
            params = {"tenant": tenant, "message": message("done")}
            sent = (await client.call("SendMessage", params))["task"]
            found = await client.call("GetTask", {"tenant": tenant, "id": sent["id"]})
            assert found["id"] == sent["id"]
        error = await refused(client.call("ListTasks", {"tenant": "three"}))
        assert error.code is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details[1]["fieldViolations"][0]["field"] == "tenant"
        error = await refused(client.call("ListTasks", {"tenant": "tow"}))
        assert error.text == "No agent tow. Agents: one, two. Did you mean two?"
        declared = []
        for prefix in ("", "/agents/one", "/agents/two"):
            url = f"{server.url}{prefix}/.well-known/agent-card.json"
            async with server.http.get(url) as response:
                interfaces = (await response.json())["supportedInterfaces"]
            (own,) = [one for one in interfaces if one["protocolBinding"] == "GRPC"]
            assert own["url"] == server.grpc
            declared.append(own.get("tenant"))
        assert declared == [None, None, "two"]


# --- streams -----------------------------------------------------------------------------------


async def test_only_a_client_with_the_extension_gets_numbers(workspace: Path) -> None:
    script = {"message": message("status busy\ntext hello\ndone well")}
    async with served(workspace) as (_, client):
        plain = [item async for item in client.items("SendStreamingMessage", script)]
        assert "eventId" not in str(plain)
        items = client.items("SendStreamingMessage", script, a2a_extensions=EXTENSION)
        numbered = [item async for item in items]
    assert streamed_text(plain) == streamed_text(numbered) == "hello"
    numbers = [number(item) for item in numbered]
    assert numbers[0] == 0
    assert numbers[1:] == list(range(numbers[1], numbers[1] + len(numbers) - 1))


async def test_a_stream_resumes_over_another_binding(workspace: Path, live: Liveness) -> None:
    """The numbers are those of `id:` of server-sent events."""
    script = message(f"text a\nwait {live.path} x\ntext b\ntext c\nask q What?")
    async with served(workspace) as (server, client):
        begun = client.items("SendStreamingMessage", {"message": script}, a2a_extensions=EXTENSION)
        async for item in begun:
            if "artifactUpdate" in item:
                break
        seen, task = number(item), task_id(item)
        await begun.aclose()
        await live.release("x")
        resumed = client.items(
            "SubscribeToTask", {"id": task}, last_event_id=str(seen), a2a_extensions=EXTENSION
        )
        over_grpc = [item]
        async for item in resumed:
            over_grpc.append(item)
            if state(item) == "input-required":
                break
        await resumed.aclose()
        other = server.client(A2A_Extensions=EXTENSION, Last_Event_ID=str(seen))
        over_sse = []
        async with other.subscribe(task) as items:
            async for item in items:
                over_sse.append(item)
                if state(item) == "input-required":
                    break
        await client.call("CancelTask", {"id": task})
    assert [number(one) for one in over_grpc] == list(range(seen, seen + len(over_grpc)))
    assert streamed_text(over_grpc) == "abc"
    assert len(over_sse) == len(over_grpc) - 1
    assert streamed_text([over_grpc[0], *over_sse]) == "abc"


async def test_two_bindings_follow_one_task_at_a_time(workspace: Path, live: Liveness) -> None:
    """Both get each update in their own form."""
    script = message(f"status busy\nwait {live.path} a\ntext a\nstatus more\ntext b\ndone")
    async with served(workspace) as (server, client):
        items = client.items("SendStreamingMessage", {"message": script})
        over_grpc = [await anext(items)]
        async with server.client().subscribe(task_id(over_grpc[0])) as others:
            over_sse = [await anext(others)]
            await live.release("a")
            over_grpc += [item async for item in items]
            over_sse += [item async for item in others]
    assert streamed_text(over_grpc) == streamed_text(over_sse) == "ab"
    assert state(over_grpc[-1]) == state(over_sse[-1]) == "completed"


async def test_a_repeated_message_resumes_after_a_number(workspace: Path) -> None:
    """protobuf sends the number in `metadata.bridge.after` as a double."""
    sent = {**message("text a\ndone"), "messageId": "0123456789abcdef"}
    async with served(workspace) as (_, client):
        first = client.items("SendStreamingMessage", {"message": sent}, a2a_extensions=EXTENSION)
        items = [item async for item in first]
        params = {"message": sent, "metadata": {"bridge": {"after": number(items[1])}}}
        rest = client.items("SendStreamingMessage", params, a2a_extensions=EXTENSION)
        assert [item async for item in rest] == items[2:]


async def test_a_call_that_is_cut_counts_as_a_disconnect(workspace: Path, live: Liveness) -> None:
    """A stream, and a blocking send whose deadline passes. Waits for the grace of the setting."""
    settings = {"bridge_on_disconnect": "cancel", "bridge_disconnect_grace_ms": 100}
    async with served(workspace, **settings) as (server, client):
        script = {"message": message(f"status begun\nwait {live.path} a")}
        items = client.items("SendStreamingMessage", script)
        streamed = task_id(await anext(items))
        await items.aclose()
        one = client.methods["SendMessage"]
        waiting = {"message": message(f"wait {live.path} b")}
        call = client.channel.unary_unary(path("SendMessage"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(to_bytes(one, waiting), metadata=(("a2a-version", "1.0"),), timeout=0.3)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        while True:  # a list does not count as a client that returns
            tasks = (await server.client().call("ListTasks", {}))["tasks"]
            if [state(task) for task in tasks] == ["canceled", "canceled"]:
                break
        assert streamed in [task["id"] for task in tasks]


async def test_a_reader_that_stops_ends_only_its_own_answer(
    workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream and a single message. It gets the items that were sent, and an error that it may
    retry."""
    stalled = asyncio.Event()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "does not read" in record.getMessage():
                stalled.set()

    logger = logging.getLogger("bridge.transports.grpc.service")
    logger.setLevel("INFO")
    handler = Handler()
    logger.addHandler(handler)
    script = message("repeat 400000 x\n" * 8 + "done")
    narrow = [("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1)]
    try:
        async with served(workspace, bridge_stall_timeout_ms=300) as (server, client):
            async with grpc.aio.insecure_channel(server.grpc or "", narrow) as channel:
                one = client.methods["SendStreamingMessage"]
                slow = channel.unary_stream(path(one.name))(
                    to_bytes(one, {"message": script}), metadata=(("a2a-version", "1.0"),)
                )
                await slow.read()
                await stalled.wait()
                task = await client.call("SendMessage", {"message": message("done")})
                assert state(task) == "completed"
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    while await slow.read() is not grpc.aio.EOF:
                        pass
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
                stalled.clear()
                sent = await client.call("SendMessage", {"message": message("repeat 2000000 x")})
                get = client.methods["GetTask"]
                lazy = channel.unary_stream(path(get.name))(  # its one message is not read
                    to_bytes(get, {"id": task_id(sent)}), metadata=(("a2a-version", "1.0"),)
                )
                await stalled.wait()
                lazy.cancel()
                page = await page_of(server.http, server.url)
                assert page.value("bridge_slow_readers_cut_total", binding="grpc") == 2
    finally:
        logger.removeHandler(handler)
        logger.setLevel("NOTSET")


# --- what does not work ------------------------------------------------------------------------


async def test_corrupted_messages_reveal_nothing(workspace: Path) -> None:
    """1,000 messages with changed bytes: each is answered, and no status has the text of an
    exception."""
    seed = random.Random(1)
    async with served(workspace) as (_, client):
        good = [
            (name, to_bytes(client.methods[name], params))
            for name, params in (
                ("GetTask", {"id": "none", "historyLength": 3}),
                ("ListTasks", {"pageSize": 5, "statusTimestampAfter": "2026-01-01T00:00:00Z"}),
                ("CancelTask", {"id": "none", "metadata": {"a": [1, {"b": None}]}}),
                ("GetTaskPushNotificationConfig", {"taskId": "none", "id": "c"}),
            )
        ]

        async def send(name: str, data: bytes) -> grpc.StatusCode:
            call = client.channel.unary_unary(path(name))
            try:
                await call(data, metadata=(("a2a-version", "1.0"),))
            except grpc.aio.AioRpcError as error:
                assert not re.search("Error|Exception|Traceback|<class", error.details())
                return error.code()
            return grpc.StatusCode.OK

        calls = []
        for _ in range(1000):
            name, data = seed.choice(good)
            changed = bytearray(data)
            for _ in range(seed.randint(1, 3)):
                changed[seed.randrange(len(changed))] = seed.randrange(256)
            calls.append(send(name, bytes(changed[: seed.randint(1, len(changed))])))
        codes = set()
        for start in range(0, 1000, 50):
            codes |= set(await asyncio.gather(*calls[start : start + 50]))
    assert grpc.StatusCode.INVALID_ARGUMENT in codes
    assert codes <= {
        *(grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND),
    }


async def test_a_message_above_the_limit_is_refused(workspace: Path) -> None:
    async with served(workspace, bridge_max_body_bytes=1024 * 64) as (_, client):
        error = await refused(client.call("SendMessage", {"message": message("x" * 70_000)}))
        assert error.code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_unknown_methods_are_unimplemented(workspace: Path) -> None:
    async with served(workspace) as (_, client):
        for name in (f"/{SERVICE}/Nothing", "/a2a.v1.A2AService/GetTask"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.channel.unary_unary(name)(b"")
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.channel.unary_unary(f"/{SERVICE}/GetTsk")(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert caught.value.details() == "Unknown method 'GetTsk'. Did you mean GetTask?"


async def test_a_quota_names_the_time_to_wait(workspace: Path) -> None:
    async with served(workspace, bridge_token=TOKEN) as (_, client):
        for _ in range(20):  # wrong tokens of this address
            await refused(client.call("ListTasks", {}, authorization="Bearer wrong"))
        error = await refused(client.call("ListTasks", {}, authorization="Bearer wrong"))
    assert error.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert any("RetryInfo" in one["@type"] for one in error.details)


ABSENT = "00000000-0000-4000-8000-000000000000"


async def test_a_foreign_task_looks_like_a_missing_task(workspace: Path) -> None:
    """tests/server/auth/test_ownership.py has all states and rights over the other bindings."""

    async def answer(client: GrpcClient, one: Method, task: str, who: str) -> tuple[Any, str]:
        sent = {**message("x"), "taskId": task}
        params = {"id": task, "taskId": task, "url": "https://example.org/hook", "message": sent}
        if one.operation in STREAMING:
            call: Any = anext(client.items(one.name, params, **signed(who)))
        else:
            call = client.call(one.name, params, **signed(who))
        error = await refused(call)
        return error.code, str((error.text, error.details)).replace(task, "TASK")

    def signed(who: str) -> dict[str, str]:
        return {name.lower(): value for name, value in principals.headers(who).items()}

    async with (
        principals.server(workspace, bridge_grpc_port=0) as server,
        connected(server.grpc) as client,
    ):
        params = {"message": message("text a\nask q What?")}
        task = (await client.call("SendMessage", params, **signed("owner")))["task"]["id"]
        named = [one for one in methods() if one.operation not in NAMELESS]
        for one in named:
            foreign = await answer(client, one, task, "other")
            assert foreign == await answer(client, one, ABSENT, "other")
            assert foreign[0] is grpc.StatusCode.NOT_FOUND, one.name
            code, _ = await answer(client, one, task, "anonymous")
            assert code is grpc.StatusCode.UNAUTHENTICATED
        assert not (await client.call("ListTasks", {}, **signed("other"))).get("tasks")
        error = await refused(client.call("SendMessage", params, **signed("reader")))
        assert error.code is grpc.StatusCode.PERMISSION_DENIED
        await client.call("CancelTask", {"id": task}, **signed("boss"))
    assert len(named) == 9


# --- the port ----------------------------------------------------------------------------------


async def test_health_needs_no_token(workspace: Path) -> None:
    check, answer = (message_class(f"{HEALTH}Check{kind}") for kind in ("Request", "Response"))
    async with served(workspace, bridge_token=TOKEN) as (_, client):
        call = client.channel.unary_unary(f"/{HEALTH}/Check")
        for service in ("", SERVICE):
            data = await call(check(service=service).SerializeToString())
            assert answer.FromString(data).status == 1
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(check(service="other").SerializeToString())
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"\xff")
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        watching = client.channel.unary_stream(f"/{HEALTH}/Watch")
        watch = watching(b"")
        assert answer.FromString(await watch.read()).status == 1
        unknown = watching(check(service="other").SerializeToString())
        assert answer.FromString(await unknown.read()).status == 3
        for call in (watch, unknown):
            call.cancel()


async def test_there_is_no_reflection(workspace: Path) -> None:
    async with served(workspace) as (_, client):
        info = client.channel.stream_stream(
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await info(iter([b""])).read()
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate for localhost, made by openssl, and its key."""
    made, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", f"/CN={name}", "-keyout", key, "-out", made),
            *("-addext", "subjectAltName=DNS:localhost"),
        ],
        check=True,
        capture_output=True,
    )
    return made, key


async def test_a_certificate_is_read_again_after_a_change(workspace: Path, tmp_path: Path) -> None:
    """A client that trusts only the new one cannot connect before it is there."""
    made, key = certificate(tmp_path, "first")
    settings = {"bridge_grpc_tls_cert": str(made), "bridge_grpc_tls_key": str(key)}
    async with served(workspace, **settings) as (server, _):
        for name in ("first", "second"):
            if name == "second":
                certificate(tmp_path, name)
            trusted = grpc.ssl_channel_credentials(made.read_bytes())
            address = f"localhost:{(server.grpc or '').rpartition(':')[2]}"
            async with connected(address, trusted) as client:
                await client.call("ListTasks", {})


async def test_a_second_server_cannot_use_the_port(workspace: Path) -> None:
    async with served(workspace) as (server, _):
        port = int((server.grpc or "").rpartition(":")[2])
        config = GrpcConfig(host="127.0.0.1", port=port, max_body=1024, stall=1.0)
        with pytest.raises(OSError) as refused:
            GrpcServer(config)
        assert refused.value.filename == f"127.0.0.1:{port}"


@each(
    ("settings", "words"),
    [
        ({"bridge_grpc_host": "0.0.0.0"}, "BRIDGE_GRPC_TLS_CERT"),
        ({"bridge_grpc_tls_cert": "/no"}, "require each other"),
        (
            {
                "bridge_grpc_host": "0.0.0.0",
                "bridge_grpc_tls_cert": "/no",
                "bridge_grpc_tls_key": "/no",
            },
            "BRIDGE_TOKEN",
        ),
    ],
)
def test_a_port_that_is_not_safe_is_refused(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        load({"bridge_grpc_port": 0, "port": 0, **settings})


async def test_a_certificate_must_be_readable(tmp_path: Path) -> None:
    made, key = certificate(tmp_path, "first")
    for paths in ((tmp_path / "missing", key), (key, made)):
        with pytest.raises(ConfigurationError, match="BRIDGE_GRPC_TLS_CERT"):
            GrpcServer(
                GrpcConfig(
                    host="127.0.0.1",
                    port=0,
                    certificate=paths[0],
                    key=paths[1],
                    max_body=1024,
                    stall=1.0,
                )
            )


async def test_calls_without_a_message_do_not_use_up_the_port(workspace: Path) -> None:
    """Their credentials are checked at once. Those with a token wait for a limited time, and leave
    room for other senders; so do calls of Health, which need none."""
    settings = {"bridge_token": TOKEN, "bridge_stall_timeout_ms": 100}
    async with served(workspace, **settings) as (server, client), asyncio.timeout(60):

        def silent(service: str, method: str, **metadata: str) -> Any:
            opened = client.channel.stream_stream(f"/{service}/{method}")
            return opened(metadata=[*metadata.items()])

        for _ in range(12):
            for call in [silent(SERVICE, "GetTask") for _ in range(90)]:
                assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
        late = silent(SERVICE, "GetTask", authorization=f"Bearer {TOKEN}")
        assert await late.code() is grpc.StatusCode.INVALID_ARGUMENT
        async with AsyncExitStack() as stack:
            waiting = []
            for _ in range(2):  # a connection has at most 100 calls
                other = [("grpc.use_local_subchannel_pool", 1)]
                opened = grpc.aio.insecure_channel(str(server.grpc), other)
                channel = await stack.enter_async_context(opened)
                check = channel.stream_stream(f"/{HEALTH}/Check")
                waiting += [check() for _ in range(60)]
            codes = [asyncio.create_task(call.code()) for call in waiting]
            done, _ = await asyncio.wait(codes, return_when=asyncio.FIRST_COMPLETED)
            assert done.pop().result() is grpc.StatusCode.RESOURCE_EXHAUSTED
            sent = await client.call(
                "SendMessage", {"message": message("text x")}, authorization=f"Bearer {TOKEN}"
            )
            assert task_id(sent)
            for call in waiting:
                call.cancel()
            await asyncio.wait(codes)


# --- descriptors -------------------------------------------------------------------------------


def test_the_descriptor_set_is_that_of_the_proto_files(tmp_path: Path) -> None:
    """Compiles them; a release of google.api may differ, so its files are not compared. Takes a
    second for the compiler."""
    made = tmp_path / "made.binpb"
    subprocess.run(
        [CHECKOUT / "scripts/proto", "--out", made], cwd=CHECKOUT, check=True, capture_output=True
    )
    committed = CHECKOUT / "bridge/transports/grpc/a2a.binpb"
    first, second = (
        {
            file.name: file.SerializeToString(deterministic=True)
            for file in FileDescriptorSet.FromString(path.read_bytes()).file
            if not file.name.startswith("google/api/")
        }
        for path in (made, committed)
    )
    assert first == second
