"""Push notifications as clients configure and receivers see them, over both bindings and versions.
How deliveries fail and are repeated is in test_push.py."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from bridge.push.configs import CONFIGS_PER_TASK
from tests.support.children import children
from tests.support.client import Client, Json, RpcError, artifact_text, state, states, task_id
from tests.support.receivers import Receiver, receiving
from tests.support.rest import Rest, message
from tests.support.served import Server, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")
VERSIONS = ("1.0", "0.3")
NOWHERE = "https://example.org/hook"  # for tasks of which nothing more is to be told
SECRETS: Json = {"1.0": {"scheme": "Bearer"}, "0.3": {"schemes": ["Bearer"]}}
CREDENTIALS = "s3cr3t-credentials"
TOKEN = "t0k3n-of-the-receiver"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    async with serving(tmp_path_factory.mktemp("workspace")) as server:
        yield server


@pytest.fixture(params=VERSIONS)
def client(server: Server, request: pytest.FixtureRequest) -> Client:
    return server.client(request.param)


class Configs:
    """The four operations on a task's configs, in the words of either version."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._old = client.version == "0.3"

    async def create(self, task: str, url: str, **members: Any) -> Any:
        config = {"url": url, **members}
        if self._old:
            params = {"taskId": task, "pushNotificationConfig": config}
            return await self._call("tasks/pushNotificationConfig/set", params)
        return await self._call("CreateTaskPushNotificationConfig", {"taskId": task, **config})

    async def get(self, task: str, config: str) -> Any:
        if self._old:
            return await self._call("tasks/pushNotificationConfig/get", self._named(task, config))
        return await self._call("GetTaskPushNotificationConfig", self._named(task, config))

    async def all(self, task: str) -> list[Json]:
        if self._old:
            listed = await self._call("tasks/pushNotificationConfig/list", {"id": task})
            assert isinstance(listed, list)
            return listed
        listed = await self._call("ListTaskPushNotificationConfigs", {"taskId": task})
        assert listed.keys() == {"configs", "nextPageToken"}
        configs: list[Json] = listed["configs"]
        return configs

    async def delete(self, task: str, config: str) -> Any:
        if self._old:
            method = "tasks/pushNotificationConfig/delete"
            return await self._call(method, self._named(task, config))
        return await self._call("DeleteTaskPushNotificationConfig", self._named(task, config))

    def shape(self, task: str, config: str, url: str, **members: Any) -> Json:
        """A config as the version shows it."""
        if self._old:
            inner = {"id": config, "url": url, **members}
            return {"taskId": task, "pushNotificationConfig": inner}
        return {"taskId": task, "id": config, "url": url, **members}

    def in_send(self, url: str, **members: Any) -> Json:
        """The configuration of a send that asks for notifications."""
        name = "pushNotificationConfig" if self._old else "taskPushNotificationConfig"
        return {name: {"url": url, **members}}

    def _named(self, task: str, config: str) -> Json:
        if self._old:
            return {"id": task, "pushNotificationConfigId": config}
        return {"taskId": task, "id": config}

    async def _call(self, method: str, params: Json) -> Any:
        return await self.client.call(method, params)


@pytest.fixture
def configs(client: Client) -> Configs:
    return Configs(client)


def config_id(config: Json) -> str:
    return str((config.get("pushNotificationConfig") or config)["id"])


def told(receiver: Receiver) -> list[Json]:
    """The items that the receiver got, in order."""
    return [json.loads(body) for body in receiver.bodies]


async def until_the_end(server: Server, receiver: Receiver) -> list[Json]:
    """All that the receiver is sent, up to the last update of its task."""
    count = 0
    while True:
        count = len(await receiver.got(count + 1))
        task, _, number = receiver.ids[-1].split(":")
        handle = await server.managers[0].find(task)
        assert handle
        log = handle.log
        if log.closed and int(number) == log.last:
            return told(receiver)


# --- configs -----------------------------------------------------------------------------------


async def test_a_config_is_made_got_listed_and_deleted(client: Client, configs: Configs) -> None:
    task = (await client.send("done"))["id"]
    assert await configs.all(task) == []
    made = await configs.create(task, NOWHERE, id="mine")
    assert made == configs.shape(task, "mine", NOWHERE)
    assert await configs.get(task, "mine") == made
    assert await configs.all(task) == [made]
    assert await configs.delete(task, "mine") is None
    assert await configs.all(task) == []


async def test_configs_without_an_id_get_different_ids(client: Client, configs: Configs) -> None:
    task = (await client.send("done"))["id"]
    made = [await configs.create(task, f"{NOWHERE}/{number}") for number in range(3)]
    assert len({config_id(one) for one in made}) == 3
    assert await configs.all(task) == made
    assert await configs.get(task, config_id(made[1])) == made[1]


async def test_a_config_with_a_known_id_takes_its_place(client: Client, configs: Configs) -> None:
    task = (await client.send("done"))["id"]
    await configs.create(task, NOWHERE, id="mine")
    changed = await configs.create(task, f"{NOWHERE}/2", id="mine")
    assert await configs.all(task) == [changed]


async def test_configs_of_two_tasks_have_nothing_to_do_with_each_other(
    client: Client, configs: Configs
) -> None:
    one, two = [(await client.send("done"))["id"] for _ in range(2)]
    await configs.create(one, f"{NOWHERE}/1", id="same")
    second = await configs.create(two, f"{NOWHERE}/2", id="same")
    await configs.delete(one, "same")
    assert await configs.all(two) == [second]


async def test_a_config_has_the_shape_of_each_version(server: Server) -> None:
    old, new = Configs(server.client("0.3")), Configs(server.client("1.0"))
    task = (await server.client().send("done"))["id"]
    await old.create(task, NOWHERE, id="o", authentication={"schemes": ["Bearer", "Basic"]})
    await new.create(task, NOWHERE, id="n", authentication={"scheme": "Basic"})
    for configs, bearer, basic in ((old, {"schemes": ["Bearer"]}, {"schemes": ["Basic"]}),):
        assert await configs.get(task, "o") == configs.shape(
            task, "o", NOWHERE, authentication=bearer
        )
        assert await configs.get(task, "n") == configs.shape(
            task, "n", NOWHERE, authentication=basic
        )
    assert await new.all(task) == [
        new.shape(task, "o", NOWHERE, authentication={"scheme": "Bearer"}),
        new.shape(task, "n", NOWHERE, authentication={"scheme": "Basic"}),
    ]


async def test_in_the_old_version_the_task_alone_may_name_a_config(server: Server) -> None:
    client = server.client("0.3")
    configs = Configs(client)
    task = (await client.send("done"))["id"]
    first = await configs.create(task, NOWHERE, id="first")
    await configs.create(task, NOWHERE, id="second")
    assert await client.call("tasks/pushNotificationConfig/get", {"id": task}) == first
    await configs.delete(task, "first")
    await configs.delete(task, "second")
    with pytest.raises(RpcError) as raised:
        await client.call("tasks/pushNotificationConfig/get", {"id": task})
    assert raised.value.code == -32001


DEFAULT: list[Json] = [  # how clients of 0.3 name the config that they have set without an id
    {},
    {"pushNotificationConfigId": None},
    {"pushNotificationConfigId": ""},
    {"pushNotificationConfigId": "default"},
]


async def test_in_the_old_version_a_config_without_an_id_is_the_default(server: Server) -> None:
    client = server.client("0.3")
    configs = Configs(client)
    task = (await client.send("done"))["id"]
    get, remove = (f"tasks/pushNotificationConfig/{name}" for name in ("get", "delete"))
    await configs.create(task, NOWHERE, id="first")
    for name in DEFAULT:
        assert (await client.call(get, {"id": task, **name}))["pushNotificationConfig"]["id"] == (
            "first"
        )
    default = await configs.create(task, NOWHERE + "/a")
    other = await configs.create(task, NOWHERE + "/b")
    assert other["pushNotificationConfig"]["id"] != default["pushNotificationConfig"]["id"]
    for name in (*DEFAULT, {"pushNotificationConfigId": task}):
        assert await client.call(get, {"id": task, **name}) == default
    assert len(await configs.all(task)) == 3
    await client.call(remove, {"id": task, "pushNotificationConfigId": "default"})
    assert (await client.call(get, {"id": task}))["pushNotificationConfig"]["id"] == "first"
    await configs.create(task, NOWHERE, id="default")
    await configs.create(task, NOWHERE)
    named = await client.call(get, {"id": task, "pushNotificationConfigId": "default"})
    assert named["pushNotificationConfig"]["id"] == "default"


async def test_a_config_of_a_send_in_the_old_version_is_the_default(server: Server) -> None:
    client = server.client("0.3")
    asked = await client.send("ask one Which?", {"pushNotificationConfig": {"url": NOWHERE}})
    get = "tasks/pushNotificationConfig/get"
    found = await client.call(get, {"id": asked["id"], "pushNotificationConfigId": "default"})
    assert found["pushNotificationConfig"] == {"id": asked["id"], "url": NOWHERE}


async def test_version_1_0_has_no_default_config(server: Server) -> None:
    client = server.client("1.0")
    configs = Configs(client)
    task = (await client.send("done"))["id"]
    for _ in range(2):
        await configs.create(task, NOWHERE)
    assert len(await configs.all(task)) == 2
    with pytest.raises(RpcError) as raised:
        await configs.get(task, "default")
    assert raised.value.code == -32001


@pytest.mark.parametrize(
    ("version", "method", "params"),
    [
        ("0.3", "tasks/pushNotificationConfig/delete", {"pushNotificationConfigId": "no"}),
        ("1.0", "DeleteTaskPushNotificationConfig", {"id": "no"}),
    ],
)
async def test_deleting_a_missing_config_succeeds_with_null(
    server: Server, version: str, method: str, params: Json
) -> None:
    client = server.client(version)
    named = {"id": (await client.send("done"))["id"]}
    if version == "1.0":
        named = {"taskId": named["id"]}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**named, **params}}
    for _ in range(2):
        answer = await (await client.post(body)).json()
        assert answer == {"jsonrpc": "2.0", "id": 1, "result": None}


async def test_over_rest_a_deletion_is_answered_with_an_empty_object(server: Server) -> None:
    rest = Rest(server.http, server.url)
    path = f"/tasks/{(await rest.send('done'))['id']}/pushNotificationConfigs"
    await rest.post(path, {"url": NOWHERE, "id": "mine"})
    for _ in range(2):
        deleted = await rest.ask("DELETE", f"{path}/mine")
        assert (deleted.status, deleted.body) == (200, {})


async def test_unknown_tasks_and_configs_are_not_found(client: Client, configs: Configs) -> None:
    task = (await client.send("done"))["id"]
    for attempt in (
        configs.create("none", NOWHERE),
        configs.get("none", "mine"),
        configs.all("none"),
        configs.delete("none", "mine"),
        configs.get(task, "none"),
    ):
        with pytest.raises(RpcError) as raised:
            await attempt
        assert raised.value.code == -32001


async def test_the_number_of_configs_of_a_task_is_limited(client: Client, configs: Configs) -> None:
    task = (await client.send("done"))["id"]
    for number in range(CONFIGS_PER_TASK):
        await configs.create(task, NOWHERE, id=str(number))
    with pytest.raises(RpcError) as raised:
        await configs.create(task, NOWHERE)
    assert raised.value.code == -32602
    assert len(await configs.all(task)) == CONFIGS_PER_TASK


# --- deliveries --------------------------------------------------------------------------------

SCRIPT = "status busy\ntext one\nthought hm\nline no json\ntext  two\nstatus still\ndone well"


async def test_the_receiver_gets_the_items_of_the_stream_in_order(
    server: Server,
) -> None:
    client, receiver = server.client("1.0"), Receiver()
    async with receiving(receiver):
        params = {
            "message": client.message(SCRIPT),
            "configuration": Configs(client).in_send(receiver.url),
        }
        async with client._items("SendStreamingMessage", params) as items:
            streamed = [item async for item in items]
        assert await until_the_end(server, receiver) == streamed[1:]


@pytest.mark.parametrize("binding", ["1.0", "0.3", "rest"])
async def test_a_send_that_waits_may_ask_for_notifications(server: Server, binding: str) -> None:
    receiver = Receiver()
    async with receiving(receiver):
        if binding == "rest":
            configuration = Configs(server.client()).in_send(receiver.url)
            task = await Rest(server.http, server.url).send(SCRIPT, configuration)
        else:
            client = server.client(binding)
            task = await client.send(SCRIPT, Configs(client).in_send(receiver.url))
        bodies = await until_the_end(server, receiver)
    assert {task_id(body) for body in bodies} == {task["id"]}
    assert states(bodies)[-1] == "completed"
    if binding == "0.3":  # which tells the task as it is by then, not as it was
        assert bodies[-1] == task
    else:
        assert states(bodies) == ["working", "completed"]


async def test_in_0_3_each_notification_is_the_whole_task(server: Server) -> None:
    client, receiver = server.client("0.3"), Receiver()
    async with receiving(receiver):
        sent = await client.send(SCRIPT, Configs(client).in_send(receiver.url))
        bodies = await until_the_end(server, receiver)
    assert {body["kind"] for body in bodies} == {"task"}
    assert bodies[-1] == sent == await client.get(sent["id"])
    lengths = [len(body.get("history", ())) for body in bodies]
    assert lengths == sorted(lengths)


async def test_each_receiver_gets_the_version_of_its_registration(server: Server) -> None:
    new, old = Receiver(), Receiver()
    client = server.client("1.0")
    async with receiving(new, old):
        task = await client.send("ask q What?\ntext done")
        await Configs(server.client("0.3")).create(task["id"], old.url, id="old")
        await Configs(client).create(task["id"], new.url, id="new")
        await client.send("this", taskId=task["id"])
        for_new, for_old = await until_the_end(server, new), await until_the_end(server, old)
    assert all({*body} <= {"statusUpdate", "artifactUpdate"} for body in for_new)
    assert {body.get("kind") for body in for_old} == {"task"}
    assert {headers["Content-Type"] for headers, _ in new.requests} == {"application/a2a+json"}
    assert {headers["Content-Type"] for headers, _ in old.requests} == {"application/json"}


async def test_the_receiver_gets_its_credentials_and_its_token(
    server: Server, client: Client, configs: Configs
) -> None:
    receiver = Receiver()
    secrets: Json = {
        "token": TOKEN,
        "authentication": {**SECRETS[client.version], "credentials": CREDENTIALS},
    }
    async with receiving(receiver):
        sent = await client.send("done", configs.in_send(receiver.url, id="mine", **secrets))
        await until_the_end(server, receiver)
    for number, (headers, _) in enumerate(receiver.requests, 1):
        assert headers["Authorization"] == f"Bearer {CREDENTIALS}"
        assert headers["X-A2A-Notification-Token"] == TOKEN
        assert headers["A2A-Notification-Id"] == f"{sent['id']}:mine:{number}"


async def test_secrets_are_shown_in_no_answer(client: Client, configs: Configs) -> None:
    task = (await client.send("done"))["id"]
    secrets: Json = {
        "token": TOKEN,
        "authentication": {**SECRETS[client.version], "credentials": CREDENTIALS},
    }
    answers = [
        await configs.create(task, NOWHERE, id="mine", **secrets),
        await configs.get(task, "mine"),
        await configs.all(task),
        await client.get(task),
    ]
    rest = Rest(client.session, client.url)
    path = f"/tasks/{task}/pushNotificationConfigs"
    answers += [(await rest.get(path)).body, (await rest.get(f"{path}/mine")).body]
    for wrong in ({"url": "ftp://x"}, {"id": "two words"}):
        with pytest.raises(RpcError) as raised:
            await configs.create(task, **{"url": NOWHERE, **secrets, **wrong})
        answers.append(raised.value.error)
    assert "Bearer" in json.dumps(answers[:3])
    assert CREDENTIALS not in json.dumps(answers)
    assert TOKEN not in json.dumps(answers)


async def test_every_config_of_a_task_gets_all_updates(
    server: Server, client: Client, configs: Configs
) -> None:
    receivers = [Receiver() for _ in range(3)]
    async with receiving(*receivers):
        task = await client.send("ask q What?\ntext done")
        for receiver in receivers:
            await configs.create(task["id"], receiver.url)
        await client.send("this", taskId=task["id"])
        first, *others = [await until_the_end(server, receiver) for receiver in receivers]
    if client.version == "1.0":
        assert others == [first, first]
    assert [bodies[-1] for bodies in others] == [first[-1]] * 2


async def test_who_is_deleted_hears_no_more(
    server: Server, client: Client, configs: Configs
) -> None:
    gone, stays = Receiver(), Receiver()
    async with receiving(gone, stays):
        task = await client.send("ask q What?\ntext done")
        await configs.create(task["id"], gone.url, id="gone")
        await configs.create(task["id"], stays.url, id="stays")
        await configs.delete(task["id"], "gone")
        await client.send("this", taskId=task["id"])
        await until_the_end(server, stays)
    assert gone.requests == []


async def test_questions_and_cancels_are_notified(server: Server) -> None:
    client, receiver = server.client(), Receiver()
    async with receiving(receiver):
        task = await client.send("ask q What?", Configs(client).in_send(receiver.url))
        await client.cancel(task["id"])
        assert states(await until_the_end(server, receiver)) == ["input-required", "canceled"]


async def test_a_receiver_that_does_not_answer_holds_up_no_other(server: Server) -> None:
    client, receiver, other = server.client(), Receiver(), Receiver()
    receiver.behaviours = [receiver.stall]
    async with receiving(receiver, other):
        task = await client.send("text hello", Configs(client).in_send(receiver.url))
        assert artifact_text(task) == "hello"
        await receiver.got(1)
        await client.send("done", Configs(client).in_send(other.url))
        await until_the_end(server, other)
        # What waits is given up with its config, so that the server has nothing left to do.
        (config,) = await Configs(client).all(task["id"])
        await Configs(client).delete(task["id"], config["id"])


async def test_a_task_that_has_ended_tells_nothing_any_more(
    server: Server, client: Client, configs: Configs
) -> None:
    late, witness = Receiver(), Receiver()
    async with receiving(late, witness):
        task = await client.send("done")
        await configs.create(task["id"], late.url)
        await client.send("done", configs.in_send(witness.url))
        await until_the_end(server, witness)
    assert late.requests == []


# --- what is refused ---------------------------------------------------------------------------

PRIVATE = (
    *("http://127.0.0.1:1/", "http://localhost/", "http://[::1]/", "http://10.0.0.1/"),
    *("http://169.254.169.254/latest", "http://0.0.0.0/", "http://[::ffff:127.0.0.1]/"),
    *("http://2130706433/", "http://127.1/"),
)


@pytest.mark.parametrize("version", VERSIONS)
async def test_private_addresses_are_refused_before_anything_begins(
    workspace: Path, version: str
) -> None:
    async with serving(workspace, bridge_push_allow_private=False) as server:
        client = server.client(version)
        before = children()
        for url in PRIVATE:
            with pytest.raises(RpcError) as raised:
                await client.send("done", Configs(client).in_send(url))
            assert raised.value.code == -32602, url
            body = {"message": message("done"), "configuration": Configs(client).in_send(url)}
            if version == "1.0":
                rest = await Rest(server.http, server.url).post("/message:stream", body)
                assert (rest.status, rest.reason) == (400, "INVALID_PARAMS")
        assert server.managers[0].figures() == {"tasks": 0, "contexts": 0}
        assert children() == before
        task = await client.send("done")
        with pytest.raises(RpcError) as raised:
            await Configs(client).create(task["id"], PRIVATE[0])
        assert raised.value.code == -32602


@pytest.mark.parametrize(
    "wrong",
    [
        *({"url": ""}, {"url": "no url"}, {"url": "file:///etc/passwd"}, {"url": 5}),
        *({"id": "two words"}, {"id": "x" * 129}, {"token": "line\nfeed"}, {"token": "x" * 9000}),
    ],
    ids=lambda wrong: str(wrong)[:30],
)
async def test_a_send_with_a_config_that_is_wrong_begins_nothing(
    workspace: Path, wrong: Json
) -> None:
    async with serving(workspace) as server:
        for version in VERSIONS:
            client = server.client(version)
            config = Configs(client).in_send(**{"url": NOWHERE, **wrong})
            with pytest.raises(RpcError) as raised:
                await client.send("done", config)
            assert raised.value.code == -32602
        assert server.managers[0].figures() == {"tasks": 0, "contexts": 0}


async def test_an_answer_can_register_notifications(server: Server) -> None:
    client, receiver = server.client(), Receiver()
    async with receiving(receiver):
        task = await client.send("ask q What?\ntext done")
        answered = {"taskId": task["id"]}
        await client.send("this", Configs(client).in_send(receiver.url), **answered)
        assert states(await until_the_end(server, receiver))[-1] == "completed"


async def test_a_message_that_joins_its_task_can_register_notifications(
    client: Client, configs: Configs, server: Server
) -> None:
    """A config without an id is stored once, however often the message is repeated."""
    receiver, prompt, message_id = Receiver(), "ask q What?\ntext done", str(uuid.uuid4())
    async with receiving(receiver):
        task = await client.send(prompt, messageId=message_id)
        for _ in range(2):
            wanted = configs.in_send(receiver.url)
            assert (await client.send(prompt, wanted, messageId=message_id))["id"] == task["id"]
        assert len(await configs.all(task["id"])) == 1
        await client.send("this", taskId=task["id"])
        assert "completed" in json.dumps((await until_the_end(server, receiver))[-1]).lower()
        assert len(receiver.ids) == len(set(receiver.ids))


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_direct_reply_is_notified_as_a_message(server: Server, version: str) -> None:
    client, receiver = server.client(version), Receiver()
    async with receiving(receiver):
        reply = await client.send("reply hi", Configs(client).in_send(receiver.url))
        await receiver.got(1)
    assert told(receiver) == [{"message": reply} if version == "1.0" else reply]


@pytest.mark.parametrize("streams", [False, True])
async def test_a_direct_reply_is_removed_after_its_delivery(server: Server, streams: bool) -> None:
    client, receiver = server.client(), Receiver()
    receiver.behaviours = [receiver.stall]

    async def listed() -> int:
        found: int = (await client.call("ListTasks", {"contextId": context}))["totalSize"]
        return found

    async with receiving(receiver):
        config, context = Configs(client).in_send(receiver.url), f"reply-{streams}"
        if streams:
            message = client.message("reply hi", contextId=context)
            params = {"message": message, "configuration": config}
            async with client._items("SendStreamingMessage", params) as items:
                assert [list(item) async for item in items] == [["message"]]
        else:
            await client.send("reply hi", config, contextId=context)
        await receiver.got(1)
        assert await listed() == 1
        receiver.over.set()
        async with asyncio.timeout(10):
            while await listed():  # noqa: ASYNC110 - no event shows it to clients
                await asyncio.sleep(0.01)
    assert len(receiver.requests) == 1


async def test_the_retention_keeps_a_task_until_its_delivery(workspace: Path) -> None:
    receiver = Receiver()
    receiver.behaviours = [receiver.stall]
    async with serving(workspace, bridge_max_tasks=1) as server, receiving(receiver):
        client = server.client()

        async def listed(*expected: Json) -> None:
            names = {task["id"] for task in expected}
            async with asyncio.timeout(10):
                while {  # noqa: ASYNC110
                    t["id"] for t in (await client.call("ListTasks", {}))["tasks"]
                } != names:
                    await asyncio.sleep(0.01)

        kept = await client.send("done", Configs(client).in_send(receiver.url))
        await receiver.got(1)
        _, last = [await client.send("done") for _ in range(2)]
        await listed(kept, last)
        receiver.over.set()
        await until_the_end(server, receiver)
        new = await client.send("done")
        await listed(new)


async def test_an_answer_with_one_config_too_many_is_not_taken(
    client: Client, configs: Configs
) -> None:
    receiver = Receiver()
    async with receiving(receiver):
        task = await client.send("ask q What?\ntext done")
        for number in range(CONFIGS_PER_TASK):
            await configs.create(task["id"], receiver.url, id=str(number))
        with pytest.raises(RpcError) as raised:
            await client.send("this", configs.in_send(receiver.url), taskId=task["id"])
        seen = state(await client.get(task["id"]))
        for number in range(CONFIGS_PER_TASK):
            await configs.delete(task["id"], str(number))
    assert (raised.value.code, seen) == (-32602, "input-required")
    await client.cancel(task["id"])
