"""The commands between servers, and their answers."""

from __future__ import annotations

import pytest

from bridge import errors
from bridge.a2a.requests import PushParams, SendParams
from bridge.auth.principal import Principal
from bridge.errors import InvalidParams, RequestError, TooManyRequests, Unavailable
from bridge.runtime.nodes.commands import (
    Accepted,
    done,
    read_answer,
    refused,
    send_command,
)
from bridge.store.changes import ContextKey
from bridge.store.serialization import load
from bridge.task.message import DataPart, Message, RawPart, Role, TextPart, UrlPart

KEY = ContextKey("agent", "alice", "c")
MESSAGE = Message(
    "m-1",
    Role.USER,
    (
        TextPart("x\0y", metadata={"a": 1}),
        DataPart({"questionId": "q", "n": [1.5, None]}),
        RawPart("eA==", media_type="text/plain", filename="f"),
        UrlPart("https://example.org/x"),
    ),
    task_id="t",
    context_id="c",
    metadata={"bridge": {"model": "m"}},
)
PARAMS = SendParams(
    MESSAGE,
    True,
    metadata={"bridge": {"cwd": "/x"}},
    attends=True,
    retries=True,
    push=PushParams("", url="https://example.org"),
)
PRINCIPAL = Principal("alice", frozenset({"run", "read"}), ("/work",))
COMMAND = send_command(KEY, "node", PARAMS, PRINCIPAL)


def test_a_message_and_its_principal_arrive_unchanged() -> None:
    read = load(SendParams, COMMAND.body)
    assert read.message == MESSAGE
    assert (read.metadata, read.retries, read.purpose) == (PARAMS.metadata, True, "any")
    assert load(Principal, COMMAND.principal) == PRINCIPAL
    assert (COMMAND.context, COMMAND.sender, COMMAND.kind) == (KEY, "node", "send")
    assert send_command(KEY, "node", PARAMS, PRINCIPAL).id != COMMAND.id


def test_secrets_of_push_configs_and_the_presence_of_the_client_stay_here() -> None:
    read = load(SendParams, COMMAND.body)
    assert (read.push, read.attends) == (None, False)


def test_an_accepted_message_has_its_answer() -> None:
    accepted = Accepted("t", 17, again=True)
    answer = done(COMMAND, accepted)
    assert (answer.id, answer.sender) == (COMMAND.id, "node")
    assert read_answer(answer.answer) == accepted


@pytest.mark.parametrize(
    "error",
    [
        InvalidParams("wrong", [("message.parts", "empty")]),
        TooManyRequests("later", 17),
        errors.TaskNotFound.of_task("t"),
        errors.ContentTypeNotSupported("no"),
        Unavailable("away"),
    ],
)
def test_an_error_arrives_with_its_facts(error: RequestError) -> None:
    with pytest.raises(type(error)) as raised:
        read_answer(refused(COMMAND, error).answer)
    found = raised.value
    assert type(found) is type(error) and str(found) == str(error)
    for name in ("details", "seconds"):
        assert getattr(found, name, None) == getattr(error, name, None)
    if isinstance(error, InvalidParams):
        assert isinstance(found, InvalidParams)
        assert [tuple(one) for one in found.fields] == list(error.fields)


def test_an_error_that_this_version_does_not_know_is_unavailable() -> None:
    for name in ("ConfigurationError", "no_such_name"):
        with pytest.raises(Unavailable):
            read_answer(b'{"error":"%s","message":"x","details":{}}' % name.encode())
