"""The two protocol versions: the encoding of each object (golden files, reviewed against the
specification), and the decoding of requests of clients."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from bridge import errors
from bridge.a2a.card import Card, Skill
from bridge.a2a.card_shapes import encode_card
from bridge.a2a.codec import ERRORS, Codec, Operation, Page, timestamp
from bridge.a2a.codecs import CODECS
from bridge.a2a.requests import ListParams
from bridge.a2a.v0_3 import V0_3
from bridge.a2a.v1_0 import V1_0
from bridge.task.artifact import ArtifactUpdate
from bridge.task.events import (
    Answer,
    Answered,
    ArtifactChunk,
    Canceled,
    Done,
    Event,
    Failed,
    Option,
    Question,
    Rejected,
    Reply,
    Retracted,
    Started,
    Status,
    Text,
    ToolCall,
    Usage,
)
from bridge.task.message import DataPart, Message, Part, RawPart, Role, TextPart, UrlPart
from bridge.task.state import StatusUpdate, Task
from bridge.task.transitions import TaskState
from tests import CHECKOUT
from tests.support.cases import each

GOLDEN = CHECKOUT / "tests" / "golden"
WRITE = "WRITE_GOLDENS"  # set it to 1 to update the golden files
NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
NEW, OLD = V1_0(), V0_3()
Json = dict[str, Any]

PARTS: tuple[Part, ...] = (
    TextPart("hello"),
    TextPart("# hi", "text/markdown", "readme.md", {"k": 1}),
    RawPart("aGk=", "image/png", "a.png"),
    RawPart("aGk="),
    UrlPart("https://example.org/a.png", "image/png", "a.png"),
    DataPart({"a": [1, None]}),
    DataPart([1, "two"], metadata={"k": 1}),
    DataPart(None),
)
EVERYTHING = Message(
    "m-1",
    Role.USER,
    PARTS,
    "task-1",
    "context-1",
    ("task-0",),
    ("https://example.org/extension",),
    {"k": {"nested": True}},
)
CARD = Card(
    "Claude Code",
    "Does coding work.",
    "1.2.3",
    "http://127.0.0.1:8080/a2a/jsonrpc",
    (
        Skill("code", "Coding", "Writes code.", ("code", "git"), ("Fix the tests",)),
        Skill("ask", "Answers", "Answers questions.", ("question",)),
    ),
    ("text/plain", "image/png"),
    ("text/plain", "application/json"),
    "http://127.0.0.1:8080/a2a/rest",
)
SECURED = Card(
    "Claude Code",
    "Does coding work.",
    "1.2.3",
    "https://agent.example.org/a2a/jsonrpc",
    (),
    ("text/plain",),
    ("text/plain",),
    "https://agent.example.org/a2a/rest",
    "https://example.org/docs",
    bearer=True,
    extended=True,
    details={"model": "opus"},
)


def task(*events: Event) -> Task:
    made = Task("task-1", "context-1", NOW)
    made.history.append(Message("m-1", Role.USER, (TextPart("go"),), "task-1", "context-1"))
    for event in events:
        made.apply(event, NOW)
    return made


QUESTION = Question(
    "q-1",
    "permission",
    "May I run make?",
    (Option("allow", "Allow", "allow_once"), Option("deny", "Deny", "reject_once")),
    {"name": "Bash", "input": {"command": "make"}},
)
ANSWERED = Answered(
    Answer(
        "q-1",
        "yes",
        (QUESTION.options[0],),
        Message("m-2", Role.USER, (TextPart("yes"),), "task-1"),
    )
)
WORK = (Started("session-1", "opus", "2.1", "default"), Text("I "), Text("did."))
TASKS: dict[str, Callable[[], Task]] = {
    "submitted": task,
    "working": lambda: task(*WORK, ToolCall("c-1", "Bash", {"command": "make"})),
    "input-required": lambda: task(*WORK, QUESTION),
    "auth-required": lambda: task(Question("q-2", "auth", "Log in, please.", free_text=True)),
    "completed": lambda: task(
        *WORK, QUESTION, ANSWERED, Usage(1, 2, 3, 0.5), Done("Thanks.", "I did.", {"turns": 2})
    ),
    "failed": lambda: task(*WORK, Failed("It broke.", "exit", {"exitCode": 1})),
    "canceled": lambda: task(Canceled()),
    "rejected": lambda: task(Rejected("Not that.")),
    "with-an-artifact": lambda: task(
        ArtifactChunk("a-1", PARTS, "All parts", "of every kind", metadata={"k": 1}), Done()
    ),
}


def an_update(kind: str) -> StatusUpdate | ArtifactUpdate:
    match kind:
        case "status":
            return StatusUpdate(TaskState.WORKING, NOW, Status("Using tool: Bash"), 1)
        case "status-without-a-message":
            return StatusUpdate(TaskState.WORKING, NOW)
        case "last-status":
            return StatusUpdate(TaskState.COMPLETED, NOW, usage=Usage(1))
        case "first-chunk":
            return ArtifactUpdate("a-1", (TextPart("a"),), "A", "an a", metadata={"k": 1})
        case "last-chunk":
            return ArtifactUpdate("a-1", (TextPart(""),), append=True, last_chunk=True)
    raise AssertionError(kind)


def a_status(codec: Codec) -> Json:
    """A status update with every member. Its message and its metadata are arbitrary."""
    update = StatusUpdate(TaskState.WORKING, NOW)
    text = (TextPart("Using tool: Bash"), DataPart({"type": "tool_call"}))
    message = Message("task-1-1", Role.AGENT, text, "task-1", "context-1")
    encoded = codec.encode_status(task(), update, message, {"k": 1})
    return codec.item("status-update", encoded, final=False)


UPDATES = ("status-without-a-message", "last-status", "first-chunk", "last-chunk")

ALL_ERRORS: dict[str, Exception] = {
    **{kind.__name__: kind("What is wrong.") for kind in ERRORS},
    "InvalidParamsWithFields": errors.InvalidParams(
        "Invalid params: id: missing", [("id", "missing"), ("message.parts.0", "no content")]
    ),
    "TaskNotFoundWithDetails": errors.TaskNotFound.of_task("task-9"),
    "Unexpected": RuntimeError("/etc/secret is the reason"),
}


def answers(codec: Codec) -> dict[str, Any]:
    """Everything that is compared with a golden file, by the file's name."""
    replied = task(Reply((TextPart("hello"),)))
    return {
        **{f"task-{name}": codec.encode_task(make()) for name, make in TASKS.items()},
        **{
            f"update-{kind}": codec.encode_update(task(), an_update(kind), kind.startswith("last"))
            for kind in UPDATES
        },
        "update-status": a_status(codec),
        "message": codec.encode_message(EVERYTHING),
        "sent-task": codec.encode_sent(task(), 0),
        "sent-message": codec.encode_sent(replied),
        "page": codec.encode_page([task(*WORK), task()], ListParams(), Page("next", 7)),
        "page-empty": codec.encode_page([], ListParams(page_size=3), Page("", 0)),
        "card": codec.encode_card(CARD),
        "card-secured": codec.encode_card(SECURED),
        "errors": {name: codec.encode_error(error) for name, error in ALL_ERRORS.items()},
    }


def compare(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    if os.environ.get(WRITE):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), (
        f"to update it: {WRITE}=1 python -m pytest tests/unit/a2a/test_codec.py; then review it"
    )


@each("name", answers(NEW))
@each("codec", CODECS, ids=lambda codec: str(codec.version))
def test_the_answers_equal_the_golden_files(codec: Codec, name: str) -> None:
    compare(GOLDEN / codec.version / f"{name}.json", answers(codec)[name])


@each(("name", "card"), [("plain", CARD), ("secured", SECURED)])
def test_the_hybrid_card_equals_its_golden_file(name: str, card: Card) -> None:
    compare(GOLDEN / "1.0" / f"card-hybrid-{name}.json", encode_card(card, "both"))


def test_a_card_may_be_of_one_version_only() -> None:
    for codec in CODECS:
        assert encode_card(CARD, codec.version) == codec.encode_card(CARD)


def test_the_hybrid_card_is_the_1_0_card_with_members_for_0_3_clients() -> None:
    hybrid, new, old = (
        encode_card(SECURED, "both"),
        NEW.encode_card(SECURED),
        OLD.encode_card(SECURED),
    )
    assert includes(hybrid, {**new, "supportedInterfaces": ANY})
    assert includes(hybrid, old)
    versions = [one["protocolVersion"] for one in hybrid["supportedInterfaces"]]
    assert versions == sorted(versions, reverse=True)
    assert set(versions) == {"1.0", "0.3"}


ANY = object()


def includes(whole: Any, part: Any) -> bool:
    """Whether `whole` has every member of `part`, and more perhaps."""
    if isinstance(part, dict):
        return all(name in whole and includes(whole[name], one) for name, one in part.items())
    return part is ANY or bool(whole == part)


def test_every_golden_file_is_compared() -> None:
    hybrids = {"card-hybrid-plain", "card-hybrid-secured"}
    for codec in CODECS:
        found = {path.stem for path in (GOLDEN / codec.version).iterdir()}
        assert found - hybrids == set(answers(codec))


# --- rules of the specification that hold for all that is answered -------------------------------


def members(value: Any) -> list[tuple[str, Any]]:
    """All members of all objects in a JSON value."""
    if isinstance(value, dict):
        return [*value.items(), *(pair for one in value.values() for pair in members(one))]
    if isinstance(value, list):
        return [pair for one in value for pair in members(one)]
    return []


FREE = ("data", "metadata")  # members whose content is the agent's or the client's affair


def fixed(value: Any) -> Any:
    """The value without the members that may contain any JSON."""
    if isinstance(value, dict):
        return {name: fixed(one) for name, one in value.items() if name not in FREE}
    return [fixed(one) for one in value] if isinstance(value, list) else value


def test_the_new_version_has_no_discriminators_and_the_old_one_has() -> None:
    for name, value in answers(NEW).items():
        assert "kind" not in dict(members(fixed(value))), name
    for name in ("sent-task", "sent-message", "update-status", "update-first-chunk"):
        assert "kind" in answers(OLD)[name]


def test_no_member_is_in_snake_case_and_none_is_null() -> None:
    for codec in CODECS:
        for name, value in answers(codec).items():
            for member, content in members(fixed(value)):
                assert "_" not in member, name
                assert content is not None, name


def test_every_message_and_artifact_has_a_part() -> None:
    for codec in CODECS:
        for name, value in answers(codec).items():
            for member, content in members(fixed(value)):
                assert member != "parts" or len(content) > 0, name


def test_messages_of_the_agent_name_their_task_and_context() -> None:
    for codec in CODECS:
        value = codec.encode_task(TASKS["completed"]())
        for message in [*value["history"], value["status"]["message"]]:
            assert (message["taskId"], message["contextId"]) == ("task-1", "context-1")


@each("state", TaskState)
def test_every_state_has_its_name_in_both_versions(state: TaskState) -> None:
    names = {
        TaskState.SUBMITTED: ("TASK_STATE_SUBMITTED", "submitted"),
        TaskState.WORKING: ("TASK_STATE_WORKING", "working"),
        TaskState.INPUT_REQUIRED: ("TASK_STATE_INPUT_REQUIRED", "input-required"),
        TaskState.AUTH_REQUIRED: ("TASK_STATE_AUTH_REQUIRED", "auth-required"),
        TaskState.COMPLETED: ("TASK_STATE_COMPLETED", "completed"),
        TaskState.CANCELED: ("TASK_STATE_CANCELED", "canceled"),
        TaskState.FAILED: ("TASK_STATE_FAILED", "failed"),
        TaskState.REJECTED: ("TASK_STATE_REJECTED", "rejected"),
    }
    assert (NEW.states[state], OLD.states[state]) == names[state]


def test_the_methods_of_the_versions_do_not_overlap() -> None:
    assert not NEW.methods.keys() & OLD.methods.keys()
    for codec in CODECS:
        assert set(codec.methods.values()) == set(Operation)


def test_the_newest_version_is_offered_first() -> None:
    assert [codec.version for codec in CODECS] == ["1.0", "0.3"]


RETRY = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1s"}


@each(
    ("kind", "code", "reason"),
    [
        (errors.TaskNotFound, -32001, "TASK_NOT_FOUND"),
        (errors.TaskNotCancelable, -32002, "TASK_NOT_CANCELABLE"),
        (errors.UnsupportedOperation, -32004, "UNSUPPORTED_OPERATION"),
        (errors.ContentTypeNotSupported, -32005, "CONTENT_TYPE_NOT_SUPPORTED"),
        (errors.VersionNotSupported, -32009, "VERSION_NOT_SUPPORTED"),
        (errors.ParseError, -32700, "PARSE_ERROR"),
        (errors.InvalidRequest, -32600, "INVALID_REQUEST"),
        (errors.MethodNotFound, -32601, "METHOD_NOT_FOUND"),
        (errors.InvalidParams, -32602, "INVALID_PARAMS"),
        (errors.Unavailable, -32603, "UNAVAILABLE"),
        (errors.DataLoss, -32603, "DATA_LOSS"),
    ],
)
def test_every_error_has_the_code_of_the_specification(
    kind: type[errors.RequestError], code: int, reason: str
) -> None:
    for codec in CODECS:
        encoded = codec.encode_error(kind("text"))
        assert (encoded["code"], encoded["message"]) == (code, "text")
        info, *hints = encoded["data"]
        assert hints == ([RETRY] if kind is errors.Unavailable else [])
        assert info == {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": reason,
            "domain": "a2a-protocol.org",
            "metadata": {},
        }


def test_facts_about_an_error_are_strings_in_its_info() -> None:
    for codec in CODECS:
        (info,) = codec.encode_error(errors.TaskNotFound.of_task("t"))["data"]
        assert info["metadata"] == {"taskId": "t"}


def leaves(kind: type[errors.RequestError]) -> set[type[errors.RequestError]]:
    below = kind.__subclasses__()
    return {leaf for one in below for leaf in leaves(one)} if below else {kind}


def test_every_error_of_a_client_has_a_code() -> None:
    assert leaves(errors.RequestError) <= set(ERRORS)


def test_an_unexpected_error_says_nothing_about_itself() -> None:
    for codec in CODECS:
        encoded = codec.encode_error(ValueError("/etc/secret"))
        assert encoded["code"] == -32603
        assert "secret" not in json.dumps(encoded)


@each(
    ("time", "text"),
    [
        (NOW, "2026-01-02T03:04:05.678Z"),
        (NOW.replace(microsecond=0), "2026-01-02T03:04:05.000Z"),
        (NOW.astimezone(timezone(timedelta(hours=-9))), "2026-01-02T03:04:05.678Z"),
    ],
)
def test_timestamps_are_utc_with_milliseconds(time: datetime, text: str) -> None:
    assert timestamp(time) == text


def history_ids(length: int | None, codec: Codec) -> list[str] | None:
    one = task()
    one.history += [Message(f"m-{n}", Role.USER, (TextPart("x"),)) for n in (2, 3)]
    history = codec.encode_task(one, length).get("history")
    return history and [message["messageId"] for message in history]


@each("codec", CODECS)
def test_history_is_the_most_recent_in_order_and_left_out_for_zero(codec: Codec) -> None:
    assert history_ids(None, codec) == ["m-1", "m-2", "m-3"]
    assert history_ids(2, codec) == ["m-2", "m-3"]
    assert history_ids(99, codec) == ["m-1", "m-2", "m-3"]
    assert history_ids(0, codec) is None


def test_the_last_update_of_a_stream_is_marked_in_the_old_version_only() -> None:
    update = an_update("status")
    assert OLD.encode_update(task(), update, True)["final"] is True
    assert OLD.encode_update(task(), update, False)["final"] is False
    assert "final" not in dict(members(NEW.encode_update(task(), update, True)))


def test_an_empty_artifact_has_a_part_all_the_same() -> None:
    one = task(Text("a"), Retracted(1))
    for codec in CODECS:
        (artifact,) = codec.encode_task(one)["artifacts"]
        assert [part["text"] for part in artifact["parts"]] == [""]


# --- what clients send ---------------------------------------------------------------------------


def send(codec: Codec, part: Any = None, **members: Any) -> Json:
    """The params of a send with the required members of the version, and `members`."""
    if part is None:
        part = {"text": "hi"} if codec is NEW else {"kind": "text", "text": "hi"}
    role = "ROLE_USER" if codec is NEW else "user"
    return {"message": {"messageId": "m", "role": role, "parts": [part], **members}}


def decode(codec: Codec, part: Any = None, **members: Any) -> Message:
    return codec.decode_send(send(codec, part, **members)).message


def decode_part(codec: Codec, part: Any) -> Part:
    (decoded,) = decode(codec, part).parts
    return decoded


def wrong_fields(codec: Codec, params: Mapping[str, Any]) -> list[str]:
    """The fields that an InvalidParams complains of."""
    with pytest.raises(errors.InvalidParams) as caught:
        codec.decode_send(params)
    assert all(text for _, text in caught.value.fields)
    return [path for path, _ in caught.value.fields]


@each("codec", CODECS)
def test_the_least_that_can_be_sent_is_understood(codec: Codec) -> None:
    sent = codec.decode_send(send(codec))
    assert sent.message == Message("m", Role.USER, (TextPart("hi"),))
    assert sent.blocking
    assert (sent.history_length, sent.accepted_output_modes, sent.metadata) == (None, (), None)


@each("codec", CODECS)
def test_a_message_survives_the_way_out_and_in_again(codec: Codec) -> None:
    kept = tuple(part for part in PARTS if codec is NEW or _old_can_say(part))
    message = Message(
        "m", Role.AGENT, kept, "t", "c", ("t0",), ("https://x",), {"k": [None, {"a": 1}]}
    )
    assert codec.decode_send({"message": codec.encode_message(message)}).message == message


def _old_can_say(part: Part) -> bool:
    match part:
        case DataPart(data):
            return isinstance(data, dict)
        case TextPart():
            return part.media_type is None
    return True


@each("codec", CODECS)
@each("missing", ["messageId", "role", "parts"])
def test_a_message_without_a_required_member_is_refused(codec: Codec, missing: str) -> None:
    params = send(codec)
    del params["message"][missing]
    assert wrong_fields(codec, params) == [f"message.{missing}"]


@each("codec", CODECS)
@each(
    ("member", "value"),
    [
        ("messageId", ""),
        ("messageId", 5),
        ("role", "ROLE_UNSPECIFIED"),
        ("role", "system"),
        ("role", 0),
        ("role", 3),
        ("parts", []),
        ("parts", "hi"),
        ("metadata", "x"),
        ("metadata", []),
        ("taskId", 5),
        ("contextId", {}),
        ("referenceTaskIds", "t"),
        ("extensions", [5]),
    ],
)
def test_a_member_of_the_wrong_kind_is_named(codec: Codec, member: str, value: Any) -> None:
    (field,) = wrong_fields(codec, send(codec, **{member: value}))
    assert field.startswith(f"message.{member}")


@each("codec", CODECS)
@each("params", [{}, {"message": None}, {"message": "hi"}, {"message": []}])
def test_params_without_a_message_are_refused(codec: Codec, params: Json) -> None:
    assert wrong_fields(codec, params) == ["message"]


@each("codec", CODECS)
def test_all_wrong_fields_are_violations_in_the_answer(codec: Codec) -> None:
    params = {"message": {"role": "nobody", "parts": [{"kind": "text"}]}}
    with pytest.raises(errors.InvalidParams) as caught:
        codec.decode_send(params)
    _, bad_request = codec.encode_error(caught.value)["data"]
    assert bad_request["@type"] == "type.googleapis.com/google.rpc.BadRequest"
    fields = [violation["field"] for violation in bad_request["fieldViolations"]]
    assert fields == ["message.messageId", "message.role", "message.parts.0"]
    assert all(violation["description"] for violation in bad_request["fieldViolations"])


@each("codec", CODECS)
def test_unknown_members_are_ignored(codec: Codec) -> None:
    part = {"text": "hi", "kind": "text", "someday": 1}
    params = send(codec, part, someday=[1])
    assert codec.decode_send({**params, "tenant": "x", "someday": {}}).message.text == "hi"


@each("codec", CODECS)
def test_snake_case_is_understood(codec: Codec) -> None:
    part = {"text": "hi"} if codec is NEW else {"kind": "text", "text": "hi"}
    role = "ROLE_USER" if codec is NEW else "user"
    message = {
        "message_id": "m",
        "role": role,
        "parts": [part],
        "task_id": "t",
        "context_id": "c",
        "reference_task_ids": ["t0"],
    }
    sent = codec.decode_send({"message": message, "configuration": {"history_length": 3}})
    assert sent.message == Message("m", Role.USER, (TextPart("hi"),), "t", "c", ("t0",))
    assert sent.history_length == 3


@each("codec", CODECS)
def test_an_empty_id_means_none(codec: Codec) -> None:
    message = decode(codec, taskId="", contextId="")
    assert (message.task_id, message.context_id) == (None, None)


@each("codec", CODECS)
def test_members_that_are_null_are_absent(codec: Codec) -> None:
    message = decode(codec, taskId=None, contextId=None, metadata=None)
    assert message == Message("m", Role.USER, (TextPart("hi"),))
    assert codec.decode_send({**send(codec), "configuration": None, "metadata": None}).blocking


@each("codec", CODECS)
def test_the_configuration_is_understood(codec: Codec) -> None:
    configuration = {"acceptedOutputModes": ["text/plain"], "historyLength": 0, "more": 1}
    params = {**send(codec), "configuration": configuration, "metadata": {"k": 1}}
    sent = codec.decode_send(params)
    assert sent.accepted_output_modes == ("text/plain",)
    assert sent.history_length == 0
    assert sent.metadata == {"k": 1}


@each("codec", CODECS)
@each("length", [-1, "many", 1.5, []])
def test_a_history_length_that_makes_no_sense_is_refused(codec: Codec, length: Any) -> None:
    params = {**send(codec), "configuration": {"historyLength": length}}
    assert wrong_fields(codec, params) == ["configuration.historyLength"]
    with pytest.raises(errors.InvalidParams):
        codec.decode_task({"id": "t", "historyLength": length})


@each(
    ("codec", "configuration", "blocking"),
    [
        (NEW, {}, True),
        (NEW, {"returnImmediately": False}, True),
        (NEW, {"returnImmediately": True}, False),
        (NEW, {"return_immediately": True}, False),
        (NEW, {"blocking": False}, True),  # a member of the old version
        (OLD, {}, True),
        (OLD, {"blocking": None}, True),
        (OLD, {"blocking": True}, True),
        (OLD, {"blocking": False}, False),
        (OLD, {"returnImmediately": True}, True),
    ],
)
def test_a_send_waits_for_the_task_by_default(
    codec: Codec, configuration: Json, blocking: bool
) -> None:
    sent = codec.decode_send({**send(codec), "configuration": configuration})
    assert sent.blocking is blocking


@each("role", ["ROLE_USER", 1, "user"])
def test_a_role_of_the_new_version_may_be_a_name_or_a_number(role: Any) -> None:
    assert decode(NEW, role=role).role is Role.USER


@each("role", ["ROLE_AGENT", 2, "agent"])
def test_a_message_may_be_one_of_the_agents(role: Any) -> None:
    assert decode(NEW, role=role).role is Role.AGENT


# parts


@each(
    ("part", "decoded"),
    [
        ({"text": ""}, TextPart("")),
        ({"text": "x", "mediaType": "text/markdown"}, TextPart("x", "text/markdown")),
        ({"text": "x", "media_type": "text/markdown"}, TextPart("x", "text/markdown")),
        ({"text": "x", "raw": None, "url": None}, TextPart("x")),
        ({"text": "x", "kind": "text"}, TextPart("x")),
        ({"raw": "aGk=", "filename": "f"}, RawPart("aGk=", None, "f")),
        ({"raw": ""}, RawPart("")),
        ({"url": "https://x"}, UrlPart("https://x")),
        ({"data": None}, DataPart(None)),
        ({"data": [1]}, DataPart([1])),
        ({"data": "s"}, DataPart("s")),
        ({"data": False}, DataPart(False)),
        ({"text": "x", "metadata": {"k": None}}, TextPart("x", metadata={"k": None})),
    ],
)
def test_parts_of_the_new_version(part: Json, decoded: Part) -> None:
    assert decode_part(NEW, part) == decoded


@each(
    "part",
    [
        {},
        {"text": None},
        {"text": "x", "raw": "aGk="},
        {"text": "x", "data": None},
        {"url": "x", "raw": ""},
        {"kind": "text"},
        {"mediaType": "text/plain"},
        "hi",
        None,
        {"text": 5},
        {"text": ["x"]},
        {"raw": "$$$"},
        {"raw": "a"},
        {"raw": "é"},
        {"text": "x", "metadata": "m"},
    ],
)
def test_parts_of_the_new_version_that_are_refused(part: Any) -> None:
    params = send(NEW)
    params["message"]["parts"] = [part]
    (field,) = wrong_fields(NEW, params)
    assert field.startswith("message.parts.0")


@each(
    ("sent", "stored"),
    [
        ("aGk=", "aGk="),
        ("aGk", "aGk="),
        ("-_8=", "+/8="),
        ("-_8", "+/8="),
        ("+/8=", "+/8="),
        ("", ""),
    ],
)
def test_base64_may_be_of_either_alphabet_and_unpadded(sent: str, stored: str) -> None:
    assert decode_part(NEW, {"raw": sent}) == RawPart(stored)
    part = {"kind": "file", "file": {"bytes": sent}}
    assert decode_part(OLD, part) == RawPart(stored)


@each(
    ("part", "decoded"),
    [
        ({"kind": "text", "text": "x", "metadata": {"k": 1}}, TextPart("x", metadata={"k": 1})),
        ({"type": "text", "text": "x"}, TextPart("x")),  # before 0.3
        ({"kind": "text", "content": "x"}, TextPart("x")),
        ({"type": "text", "content": "x"}, TextPart("x")),
        ({"text": "x"}, TextPart("x")),  # the kind left to be guessed
        ({"kind": "data", "data": {"a": None}}, DataPart({"a": None})),
        (
            {"kind": "file", "file": {"bytes": "aGk=", "mimeType": "image/png", "name": "n"}},
            RawPart("aGk=", "image/png", "n"),
        ),
        (
            {"kind": "file", "file": {"uri": "https://x", "name": "n"}},
            UrlPart("https://x", None, "n"),
        ),
        ({"kind": "file", "file": {"bytes": ""}}, RawPart("")),
    ],
)
def test_parts_of_the_old_version(part: Json, decoded: Part) -> None:
    assert decode_part(OLD, part) == decoded


@each(
    "part",
    [
        {},
        {"text": "x", "data": {}},
        {"kind": "image", "text": "x"},
        {"kind": "text"},
        {"kind": "text", "text": None},
        {"kind": "text", "data": {}},
        {"kind": "data", "data": [1]},
        {"kind": "data"},
        {"kind": "file"},
        {"kind": "file", "file": {}},
        {"kind": "file", "file": {"name": "n"}},
        {"kind": "file", "file": {"bytes": "aGk=", "uri": "https://x"}},
        {"kind": "file", "file": {"bytes": "$"}},
        "hi",
    ],
)
def test_parts_of_the_old_version_that_are_refused(part: Any) -> None:
    params = send(OLD)
    params["message"]["parts"] = [part]
    (field,) = wrong_fields(OLD, params)
    assert field.startswith("message.parts.0")


def test_a_message_of_before_the_old_version_is_understood() -> None:
    content = [{"type": "text", "text": "hi"}]
    message = {"messageId": "m", "role": "user", "content": content}
    assert OLD.decode_send({"message": message}).message.text == "hi"


@each("codec", CODECS)
@each(
    "params",
    [
        {"id": "t", "historyLength": 2, "metadata": {"k": 1}, "tenant": "x"},
        {"taskId": "t", "history_length": 2, "metadata": {"k": 1}},
        {"task_id": "t", "historyLength": 2, "metadata": {"k": 1}},
    ],
)
def test_a_task_is_asked_for_by_its_id(codec: Codec, params: Json) -> None:
    asked = codec.decode_task(params)
    assert (asked.task_id, asked.history_length, asked.metadata) == ("t", 2, {"k": 1})


@each("codec", CODECS)
@each("params", [{}, {"id": ""}, {"id": None}, {"id": 5}, {"name": "t"}])
def test_a_task_without_an_id_is_not_found_out(codec: Codec, params: Json) -> None:
    with pytest.raises(errors.InvalidParams) as caught:
        codec.decode_task(params)
    assert [path for path, _ in caught.value.fields] == ["id"]


def test_all_tasks_are_listed_unless_a_filter_is_given() -> None:
    everything = ListParams(None, None, None, 50, "", None, False)
    assert NEW.decode_list({}) == everything
    assert NEW.decode_list({"contextId": "", "status": "", "pageToken": ""}) == everything
    assert NEW.decode_list({"status": "TASK_STATE_UNSPECIFIED", "tenant": "x"}) == everything


def test_every_filter_of_a_list_is_understood() -> None:
    params = {
        "contextId": "c",
        "status": "TASK_STATE_INPUT_REQUIRED",
        "statusTimestampAfter": "2026-01-02T04:04:05.678901+01:00",
        "pageSize": 100,
        "pageToken": "p",
        "historyLength": 0,
        "includeArtifacts": True,
    }
    wanted = ListParams("c", TaskState.INPUT_REQUIRED, NOW, 100, "p", 0, True)
    assert NEW.decode_list(params) == wanted


# The numbers of specification/a2a.proto.
@each(
    ("number", "state"),
    [
        (1, TaskState.SUBMITTED),
        (2, TaskState.WORKING),
        (3, TaskState.COMPLETED),
        (4, TaskState.FAILED),
        (5, TaskState.CANCELED),
        (6, TaskState.INPUT_REQUIRED),
        (7, TaskState.REJECTED),
        (8, TaskState.AUTH_REQUIRED),
    ],
)
def test_a_state_may_be_named_by_its_number(number: int, state: TaskState) -> None:
    assert NEW.decode_list({"status": number}).state is state


@each(
    ("name", "value"),
    [
        ("pageSize", 0),
        ("pageSize", 101),
        ("pageSize", -1),
        ("pageSize", "ten"),
        ("historyLength", -1),
        ("status", "working"),
        ("status", "TASK_STATE_NONSENSE"),
        ("status", 99),
        ("statusTimestampAfter", "yesterday"),
        ("includeArtifacts", "perhaps"),
    ],
)
def test_a_filter_that_makes_no_sense_is_named(name: str, value: Any) -> None:
    with pytest.raises(errors.InvalidParams) as caught:
        NEW.decode_list({name: value})
    assert caught.value.fields[0][0].startswith(name)


def test_a_page_has_artifacts_only_where_they_are_asked_for() -> None:
    one = task(Text("a"))
    for wanted in (False, True):
        page = NEW.encode_page([one], ListParams(include_artifacts=wanted), Page("", 1))
        assert ("artifacts" in page["tasks"][0]) is wanted


def test_parts_that_stand_alone_are_those_of_the_new_version() -> None:
    assert NEW.decode_parts([{"text": "a"}, {"data": 1}]) == (TextPart("a"), DataPart(1))
    nonsense: Any
    for nonsense in ([], None, "a", [{}]):
        with pytest.raises(errors.InvalidParams):
            NEW.decode_parts(nonsense)


@dataclass(frozen=True)
class Hole:
    """A member that ProtoJSON may give as null, which is the same as leaving it out."""

    place: str
    name: str


@each(
    "hole",
    [
        Hole("message", "referenceTaskIds"),
        Hole("message", "extensions"),
        Hole("configuration", "acceptedOutputModes"),
        Hole("configuration", "returnImmediately"),
    ],
)
def test_null_is_a_default_in_the_new_version(hole: Hole) -> None:
    params = {**send(NEW), "configuration": {}}
    params[hole.place][hole.name] = None
    assert NEW.decode_send(params).message.text == "hi"


@each("codec", CODECS)
def test_requests_that_are_nested_too_deeply_are_refused(codec: Codec) -> None:
    deep: Any = {}
    for _ in range(300):
        deep = {"a": deep}
    with pytest.raises(errors.InvalidParams):
        codec.decode_send({**send(codec), "metadata": deep})
    with pytest.raises(errors.InvalidParams):
        codec.decode_task({"id": "t", "metadata": deep})
