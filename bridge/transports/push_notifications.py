"""Push notifications in the versions of the protocol: the operations on their configs, the config
of a send, and the body of a notification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from bridge.a2a.codec import Codec, Operation
from bridge.a2a.requests import PushParams, SendParams
from bridge.auth.principal import Principal
from bridge.errors import TaskNotFound
from bridge.push.notifier import Push
from bridge.runtime.router import Router
from bridge.runtime.sending.send import Sent
from bridge.store.changes import PushConfig
from bridge.store.event_log import Entry
from bridge.task.state import Task, Update
from bridge.transports.negotiation import codec_of

Json = Mapping[str, Any]


class PushOperations:
    """The operations on the push configs of tasks. `push` notifies the receivers."""

    def __init__(self, tasks: Router, push: Push) -> None:
        self._tasks = tasks
        self._push = push

    async def create(self, codec: Codec, params: Json, principal: Principal) -> Any:
        asked = codec.decode_push(Operation.PUSH_CREATE, params)
        handle = await self._tasks.get(asked.task_id, principal, "run")
        config = await self._push.create(
            _config(codec, asked), handle, default_id=codec.default_push_id
        )
        return codec.encode_push(_shown(config))

    async def get(self, codec: Codec, params: Json, principal: Principal) -> Any:
        asked = codec.decode_push(Operation.PUSH_GET, params)
        await self._tasks.get(asked.task_id, principal)
        configs = await self._push.list(asked.task_id)
        wanted = _config_id(codec, asked, configs)
        found = [config for config in configs if wanted in (None, config.id)]
        if not found:
            raise TaskNotFound("Unknown push notification config.")
        return codec.encode_push(_shown(found[0]))

    async def list(self, codec: Codec, params: Json, principal: Principal) -> Any:
        asked = codec.decode_push(Operation.PUSH_LIST, params)
        await self._tasks.get(asked.task_id, principal)
        configs = await self._push.list(asked.task_id)
        return codec.encode_pushes([_shown(config) for config in configs])

    async def delete(self, codec: Codec, params: Json, principal: Principal) -> Any:
        asked = codec.decode_push(Operation.PUSH_DELETE, params)
        handle = await self._tasks.get(asked.task_id, principal, "run")
        configs = await self._push.list(asked.task_id)
        wanted = _config_id(codec, asked, configs)
        config_id = wanted or asked.config_id or ""
        await self._push.delete(asked.task_id, config_id)
        await self._push.tell(handle, config_id)

    async def check_sent(self, codec: Codec, asked: SendParams, principal: Principal) -> PushConfig:
        """The push config of a send that has one. The check comes before the send has any
        effect."""
        assert asked.push
        config, task_id = _config(codec, asked.push), asked.message.task_id
        if task_id is not None:
            await self._tasks.get(task_id, principal, "run")
        await self._push.check(config, task_id)
        return config

    async def add_sent(self, codec: Codec, config: PushConfig, sent: Sent) -> None:
        """Store the push config of a send. A message that joins a task adds a config that the task
        does not have: the client wants it, or an earlier attempt was cut before it was stored."""
        names = {"default_id": codec.default_push_id, "again": sent.again}
        await self._push.create(config, sent.handle, sent.after, **names)


def _config(codec: Codec, asked: PushParams) -> PushConfig:
    return PushConfig(
        asked.task_id,
        asked.config_id or "",
        asked.url,
        token=asked.token,
        scheme=asked.scheme,
        credentials=asked.credentials,
        version=codec.version,
        extended=codec.extended,
    )


def _config_id(codec: Codec, asked: PushParams, configs: Sequence[PushConfig]) -> str | None:
    """The id of the requested config; None for any. For a codec with `default_push_id`, no id and
    the id `default` mean the first config that was set without an id (see Push.create), else the
    oldest config."""
    known = {config.id for config in configs}
    if not codec.default_push_id or asked.config_id not in (None, "default") or "default" in known:
        return asked.config_id
    return asked.task_id if asked.task_id in known else None


def _shown(config: PushConfig) -> PushParams:
    return PushParams(config.task_id, config.id, config.url, scheme=config.scheme)


def encode_notification(
    config: PushConfig, task: Task, entry: Entry[Update]
) -> tuple[str, bytes] | None:
    """The media type and the body of a notification in the version of its config; None for no
    notification."""
    codec = codec_of(config.version, config.extended)
    item = (  # with a direct reply, the client has a Message instead of a task
        codec.encode_sent(task) if task.reply else codec.encode_notification(task, entry.update)
    )
    return None if item is None else (codec.media_type, orjson.dumps(item))
