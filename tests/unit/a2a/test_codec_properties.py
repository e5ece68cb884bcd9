"""What a codec writes can be read again, and what a client writes is understood, whatever is in it.

Each property holds the codecs against tests/support/wire.py, which has the shapes of both versions
written down a second time. What is compared goes through JSON first, so that it is what a peer has.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from functools import cache
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge import errors
from bridge.a2a.card import Card, Skill
from bridge.a2a.codec import Operation, Page, timestamp
from bridge.a2a.requests import ListParams, PushParams, SendParams, TaskParams
from bridge.a2a.v1_0 import V1_0
from bridge.task.artifact import Artifact, ArtifactUpdate
from bridge.task.events import (
    Canceled,
    Done,
    Event,
    Failed,
    Question,
    Reply,
    Started,
    Status,
    Steered,
    ToolCall,
    ToolResult,
    Usage,
)
from bridge.task.message import DataPart, Message, Part, RawPart, Role, TextPart, UrlPart
from bridge.task.render import status_message
from bridge.task.state import StatusUpdate, Task
from bridge.task.transitions import TaskState
from tests.support import wire as shapes
from tests.support.cases import each
from tests.support.strategies import JSON, MAYBE_TEXT, METADATA, TEXT
from tests.support.wire import WIRES, UpdateSeen, Wire

settings.register_profile(
    "codecs",
    max_examples=60,
    deadline=None,
    derandomize=True,  # a failure in CI is the same failure here
    database=None,
    suppress_health_check=[HealthCheck.too_slow],  # of a machine that is busy
)
settings.load_profile("codecs")

NEW, OLD = WIRES
few = settings(max_examples=30)  # for values composed of others that this file also tests
told = shapes.plain_json
each_version = each("wire", WIRES, ids=lambda wire: str(wire.version))

# --- any JSON, and the small things that models are made of --------------------------------------

NAME = st.text(min_size=1, max_size=12)  # of what must have one
MAYBE_NAME = st.none() | NAME  # an empty one means none
LENGTH = st.none() | st.integers(0, 2**31)
BASE64 = st.binary(max_size=12).map(lambda content: base64.b64encode(content).decode())


def _millisecond(time: datetime) -> datetime:
    return time.replace(microsecond=time.microsecond // 1000 * 1000)


def _zone(minutes: int) -> timezone:
    return timezone(timedelta(minutes=minutes))


ZONES = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(_zone)
# A day away from the ends of the calendar, so that every time can be told in every zone.
TIMES = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29), timezones=ZONES)
MOMENTS = TIMES.map(_millisecond)

# --- models --------------------------------------------------------------------------------------

_ABOUT = (MAYBE_TEXT, MAYBE_TEXT, METADATA)
PARTS: st.SearchStrategy[Part] = st.one_of(
    st.builds(TextPart, TEXT, *_ABOUT),
    st.builds(RawPart, BASE64, *_ABOUT),
    st.builds(UrlPart, TEXT, *_ABOUT),
    st.builds(DataPart, JSON, *_ABOUT),
)
SEVERAL_PARTS = st.lists(PARTS, min_size=1, max_size=2).map(tuple)
NAMES = st.lists(TEXT, max_size=2).map(tuple)
MESSAGES = st.builds(
    Message,
    NAME,
    st.sampled_from(Role),
    SEVERAL_PARTS,
    MAYBE_NAME,
    MAYBE_NAME,
    NAMES,
    NAMES,
    METADATA,
)
STATES = st.sampled_from(TaskState)
SPOKEN: st.SearchStrategy[Event] = st.one_of(  # events that have a message
    st.builds(Status, TEXT, METADATA),
    st.builds(ToolCall, TEXT, TEXT, JSON, MAYBE_NAME),
    st.builds(ToolResult, TEXT, JSON, st.booleans(), MAYBE_NAME),
    st.builds(Question, NAME, st.just("text"), TEXT, subject=METADATA),
    st.builds(Done, TEXT, details=METADATA),
    st.builds(Failed, TEXT, NAME, METADATA),
    st.builds(Canceled, TEXT),
)
SILENT: st.SearchStrategy[Event | None] = st.one_of(
    st.none(),
    st.builds(Started, MAYBE_NAME, MAYBE_NAME),
    st.builds(Steered, MESSAGES),
)
NUMBERS = st.integers(1, 99)
USAGES = st.none() | st.builds(Usage, st.none() | st.integers(0, 2**40), extra=METADATA)
REPLIES = st.builds(
    StatusUpdate, STATES, MOMENTS, st.builds(Reply, SEVERAL_PARTS), NUMBERS, usage=USAGES
)
STATUSES = st.one_of(
    REPLIES,
    st.builds(StatusUpdate, STATES, MOMENTS, SPOKEN, NUMBERS, TEXT, USAGES),
    st.builds(StatusUpdate, STATES, MOMENTS, SILENT, usage=USAGES),
)
CHUNKS = st.builds(
    ArtifactUpdate,
    NAME,
    st.lists(PARTS, max_size=2).map(tuple),
    MAYBE_TEXT,
    MAYBE_TEXT,
    st.booleans(),
    st.booleans(),
    METADATA,
)
UPDATES = STATUSES | CHUNKS


@st.composite
def artifacts(draw: st.DrawFn) -> Artifact:
    """Some parts, and perhaps a text that is still growing."""
    artifact = Artifact(draw(NAME), draw(MAYBE_TEXT), draw(MAYBE_TEXT), draw(METADATA))
    artifact.extend(draw(st.lists(PARTS, max_size=2)))
    for piece in draw(st.lists(TEXT, max_size=2)):
        artifact.add_text(piece, new_block=False)
    return artifact


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    task = Task(draw(NAME), draw(NAME), draw(MOMENTS), state=draw(STATES))
    task.status_time = draw(MOMENTS)
    task.status = draw(st.none() | STATUSES)
    spoken = STATUSES.filter(lambda update: update.number is not None)
    task.history = draw(st.lists(MESSAGES | spoken, max_size=3))
    task.reported = draw(st.lists(STATUSES, max_size=2))
    kept = draw(st.lists(artifacts(), max_size=2))
    task.artifacts = {artifact.id: artifact for artifact in kept}
    return task


TASKS = tasks()


@st.composite
def pushes(draw: st.DrawFn, task_ids: st.SearchStrategy[str] = NAME) -> PushParams:
    """A scheme has credentials, and credentials have a scheme."""
    config = PushParams(draw(task_ids), draw(MAYBE_NAME), draw(NAME), draw(MAYBE_NAME))
    if draw(st.booleans()):
        return config
    return replace(config, scheme=draw(TEXT), credentials=draw(MAYBE_TEXT))


PUSHES = pushes()
SKILLS = st.builds(Skill, TEXT, TEXT, TEXT, NAMES, NAMES)
FLAG = st.booleans()
CARDS = st.builds(
    Card,
    TEXT,
    TEXT,
    TEXT,
    TEXT,
    st.lists(SKILLS, max_size=2).map(tuple),
    NAMES,
    NAMES,
    TEXT,
    icon_url=st.none() | st.just("https://example.org/i.png"),
    provider=st.none() | st.tuples(TEXT, TEXT),
    bearer=FLAG,
    push=FLAG,
    extended=FLAG,
    details=METADATA,
)

# --- requests: what a client says, and the model of it -------------------------------------------


@dataclass(frozen=True)
class Request:
    """`form` is the params with ABSENT for members that are left out; `needed` are the paths of
    those that may not be."""

    operation: Operation
    form: shapes.Json
    model: Any
    needed: tuple[str, ...]

    @property
    def params(self) -> shapes.Json:
        form: shapes.Json = shapes.left_out(self.form)
        return form


def sends(wire: Wire) -> st.SearchStrategy[SendParams]:
    """Sends that this version can express."""
    task_ids = st.just("") if wire is OLD else st.just("") | NAME
    return st.builds(
        SendParams,
        MESSAGES.map(lambda message: _said(wire, message)),
        FLAG,
        LENGTH,
        NAMES,
        METADATA,
        st.none() | pushes(task_ids),
        reopens=st.just(wire is OLD),
    )


def _said(wire: Wire, message: Message) -> Message:
    return replace(message, parts=tuple(map(wire.sayable, message.parts)))


def _send(wire: Wire, params: SendParams) -> Request:
    needed = ["message", "message.messageId", "message.role", "message.parts"]
    if params.push:
        push = "push" if wire is OLD else "taskPush"
        needed.append(f"configuration.{push}NotificationConfig.url")
    return Request(Operation.SEND, wire.write_send(params), params, tuple(needed))


TASK_PARAMS = st.builds(TaskParams, task_id=NAME, history_length=LENGTH, metadata=METADATA)


def _get(wire: Wire, params: TaskParams) -> Request:
    return Request(Operation.GET, wire.write_task_params(params), params, ("id",))


LISTS = st.builds(
    ListParams,
    MAYBE_NAME,
    st.none() | STATES,
    st.none() | TIMES.map(lambda time: time.astimezone(UTC)),
    st.integers(1, 100),
    TEXT,
    LENGTH,
    FLAG,
)


def _list(wire: Wire, params: ListParams, zone: timezone) -> Request:
    after = params.changed_since
    form = wire.write_list_params(params, after.astimezone(zone).isoformat() if after else None)
    return Request(Operation.LIST, form, params, ())


def _create(wire: Wire, config: PushParams) -> Request:
    inner, scheme = ("", "scheme") if wire is NEW else ("pushNotificationConfig.", "schemes")
    needed = ["taskId", f"{inner}url"]
    if config.scheme is not None:
        needed.append(f"{inner}authentication.{scheme}")
    return Request(Operation.PUSH_CREATE, wire.write_push(config), config, tuple(needed))


NAMING = (Operation.PUSH_GET, Operation.PUSH_LIST, Operation.PUSH_DELETE)


def _name(wire: Wire, operation: Operation, task_id: str, config_id: str) -> Request:
    """0.3 gets any config of the task if none is named."""
    named = None if operation is Operation.PUSH_LIST else config_id
    task, config = ("taskId", "id") if wire is NEW else ("id", "pushNotificationConfigId")
    any_will_do = operation is Operation.PUSH_GET and wire is OLD
    needed = (task, config) if named and not any_will_do else (task,)
    form = wire.write_push_name(task_id, named)
    return Request(operation, form, PushParams(task_id, named), needed)


@cache
def requests(wire: Wire) -> st.SearchStrategy[Request]:
    of_this = st.just(wire)
    send = st.builds(_send, of_this, sends(wire))
    return st.one_of(
        *(send, send),  # it has more in it than the others
        st.builds(_get, of_this, TASK_PARAMS),
        st.builds(_list, of_this, LISTS, ZONES),
        st.builds(_create, of_this, PUSHES),
        st.builds(_name, of_this, st.sampled_from(NAMING), NAME, NAME),
    )


def decode(wire: Wire, operation: Operation, params: Any) -> Any:
    """The params after a round trip through JSON, as the codec decodes them."""
    received = orjson.loads(orjson.dumps(params))
    match operation:
        case Operation.SEND:
            return wire.codec.decode_send(received)
        case Operation.GET:
            return wire.codec.decode_task(received)
        case Operation.LIST:
            return shapes.in_utc(wire.codec.decode_list(received))
    return wire.codec.decode_push(operation, received)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else dict(value)


def same(one: Any, other: Any) -> None:
    """Equal, and of the same JSON: to Python, True is 1."""
    assert one == other
    assert orjson.dumps(one, default=_plain) == orjson.dumps(other, default=_plain)


@each_version
@given(data=st.data())
def test_a_request_is_decoded_to_what_it_was_written_from(wire: Wire, data: st.DataObject) -> None:
    """Also in snake_case, and with null for every member that may be left out, but for content
    that may be null itself."""
    request = data.draw(requests(wire))
    null = shapes.as_null(request.form, wire.any_json)
    for params in (request.params, shapes.in_snake_case(request.params), null):
        same(decode(wire, request.operation, params), request.model)


@each_version
@given(data=st.data(), more=JSON)
def test_a_further_member_changes_nothing(wire: Wire, data: st.DataObject, more: Any) -> None:
    """In every object of the request, whether it is unknown to all or of the other version."""
    request = data.draw(requests(wire))
    name = data.draw(NAME.map(lambda text: f"x-{text}") | st.sampled_from(wire.foreign))
    params = shapes.with_more(request.params, {name: more})
    same(decode(wire, request.operation, params), request.model)


@each_version
@given(data=st.data())
def test_a_task_is_asked_for_by_either_name(wire: Wire, data: st.DataObject) -> None:
    """Of both versions' clients, some send `taskId`."""
    params = data.draw(TASK_PARAMS)
    form = shapes.left_out(wire.write_task_params(params))
    name = data.draw(st.sampled_from(["id", "taskId", "task_id"]))
    same(decode(wire, Operation.GET, {name: form.pop("id"), **form}), params)


@given(parts=SEVERAL_PARTS)
def test_parts_that_stand_alone_are_decoded(parts: tuple[Part, ...]) -> None:
    """The `jsonl` protocol has parts of 1.0, without a message around them."""
    written = [shapes.left_out(NEW.write_part(part)) for part in parts]
    same(V1_0().decode_parts(written), parts)


# --- requests that are wrong ---------------------------------------------------------------------

# Values of other types than a member has, by its type. None is left out: it is the same as nothing.
OTHERS: dict[type, tuple[Any, ...]] = {
    str: (5, 1.5, True, [], {}, ["x"]),
    int: ("5", 1.5, True, [], {}),
    bool: ("true", 0, 1, 1.5, [], {}),
    list: ("x", 5, True, {}, {"x": "y"}),
    dict: ("x", 5, True, [], ["x"]),
}


def others(wire: Wire, path: shapes.Path, value: Any) -> tuple[Any, ...]:
    """Values that this member may not have; none where it may have any."""
    match path:
        case (*_, "data") if wire is NEW:
            return ()  # any JSON
        case ("status",):
            return (1.5, True, [], {})  # a state may be named by its number
    return OTHERS[type(value)]


def refused(wire: Wire, operation: Operation, params: Any) -> list[str]:
    """The fields that the error names for the client."""
    with pytest.raises(errors.InvalidParams) as caught:
        decode(wire, operation, params)
    fields = [path for path, _ in caught.value.fields]
    answer = shapes.read_error(told(wire.codec.encode_error(caught.value)))
    assert [path for path, _ in answer.fields] == fields
    return fields


@each_version
@given(data=st.data(), turn=st.integers(0, 5))
def test_a_member_of_another_type_is_refused_by_its_name(
    wire: Wire, data: st.DataObject, turn: int
) -> None:
    """Every member of the request in turn, however deep, has a value of a type that it may not
    have."""
    request = data.draw(requests(wire))
    for path, value in shapes.members(request.params):
        if wrong := others(wire, path, value):
            params = shapes.changed(request.params, path, wrong[turn % len(wrong)])
            for field in refused(wire, request.operation, params):
                assert f"{field}.".startswith(f"{shapes.dotted(path)}.")


@each_version
@given(data=st.data())
def test_a_member_that_is_needed_is_missed_by_its_name(wire: Wire, data: st.DataObject) -> None:
    request = data.draw(requests(wire))
    for name in request.needed:
        without = shapes.changed(request.params, tuple(name.split(".")), shapes.ABSENT)
        assert refused(wire, request.operation, without) == [name]


@each_version
@given(data=st.data(), anything=JSON)
def test_nothing_but_a_refusal_comes_of_nonsense(
    wire: Wire, data: st.DataObject, anything: Any
) -> None:
    """Any JSON in any place: it is understood somehow, or refused in a way that can be answered."""
    request = data.draw(requests(wire))
    places = [path for path, _ in shapes.members(request.params)]
    place = data.draw(st.sampled_from(places))
    params = shapes.changed(request.params, place, anything)
    try:
        decode(wire, request.operation, params)
    except errors.InvalidParams:
        assert refused(wire, request.operation, params)


# --- a known defect, which the properties above leave out ----------------------------------------


@each("name", ["kind", "type"])
def test_a_kind_that_is_null_is_guessed(name: str) -> None:
    part = {name: None, "text": "x"}
    message = {"messageId": "m", "role": "user", "parts": [part]}
    assert decode(OLD, Operation.SEND, {"message": message}).message.parts == (TextPart("x"),)


# --- single members ------------------------------------------------------------------------------


@each_version
@given(content=st.binary(max_size=20), url_safe=FLAG, padded=FLAG)
def test_base64_of_any_spelling_is_the_same_content(
    wire: Wire, content: bytes, url_safe: bool, padded: bool
) -> None:
    """ProtoJSON accepts both alphabets, with and without padding; the standard form is stored."""
    encode = base64.urlsafe_b64encode if url_safe else base64.b64encode
    sent = encode(content).decode()
    params = _with_bytes(wire, sent if padded else sent.rstrip("="))
    (decoded,) = decode(wire, Operation.SEND, params).message.parts
    assert decoded == RawPart(base64.b64encode(content).decode())
    assert decoded.content() == content


@each_version
@given(text=st.text("Aa9+/-_= \n$é", max_size=6))
def test_a_value_that_is_not_base64_is_refused_by_its_name(wire: Wire, text: str) -> None:
    """Accepted data can be decoded to bytes later."""
    params = _with_bytes(wire, text)
    try:
        (decoded,) = decode(wire, Operation.SEND, params).message.parts
    except errors.InvalidParams:
        field = "raw" if wire is NEW else "file.bytes"
        assert refused(wire, Operation.SEND, params) == [f"message.parts.0.{field}"]
    else:
        assert isinstance(decoded.content(), bytes)
        assert not set(text) & set(" \n$é")


def _with_bytes(wire: Wire, text: str) -> Any:
    message = Message("m", Role.USER, (RawPart(text),))
    return shapes.left_out({"message": wire.write_message(message)})


@given(time=TIMES)
def test_a_timestamp_is_in_utc_with_milliseconds(time: datetime) -> None:
    """Microseconds are cut, never rounded: nothing is later than it was."""
    assert shapes.moment(timestamp(time)) == _millisecond(time)


@each_version
@given(time=TIMES, digits=st.integers(0, 9))
def test_a_time_may_have_any_number_of_digits(wire: Wire, time: datetime, digits: int) -> None:
    """Protobuf libraries write 0, 3, 6 or 9 digits; other libraries write any number of digits."""
    fraction = f"{time.microsecond:06}000"[:digits]
    whole = time.replace(microsecond=0).isoformat()
    second, zone = whole[:-6], whole[-6:].replace("+00:00", "Z")
    sent = f"{second}{'.' * bool(digits)}{fraction}{zone}"
    known = time.replace(microsecond=int(fraction.ljust(9, "0")[:6]))
    assert decode(wire, Operation.LIST, {"statusTimestampAfter": sent}).changed_since == known


# --- answers: what is made up once is told in both versions --------------------------------------


@given(message=MESSAGES)
def test_a_message_can_be_read_again(message: Message) -> None:
    """By a client, and by the codec that wrote it."""
    for wire in WIRES:
        answer, seen = told(wire.codec.encode_message(message)), wire.seen_message(message)
        same(wire.read_message(answer), seen)
        same(wire.seen_message(wire.codec.decode_send({"message": answer}).message), seen)


@given(task=TASKS, length=st.none() | st.integers(0, 4), with_artifacts=FLAG)
def test_a_task_can_be_read_again(task: Task, length: int | None, with_artifacts: bool) -> None:
    for wire in WIRES:
        answer = told(wire.codec.encode_task(task, length, with_artifacts))
        same(wire.read_task(answer), wire.seen_task(task, length, with_artifacts))


@few
@given(task=TASKS, length=st.none() | st.integers(0, 4), reply=st.none() | REPLIES)
def test_the_result_of_a_send_can_be_read_again(
    task: Task, length: int | None, reply: StatusUpdate | None
) -> None:
    """A task, or the message that the agent replied with."""
    task.reply = reply
    message = status_message(task, reply)
    for wire in WIRES:
        answer = told(wire.codec.encode_sent(task, length))
        seen = wire.seen_message(message) if message else wire.seen_task(task, length)
        same(wire.read_sent(answer), seen)
        assert message is None or told(wire.codec.encode_reply(message)) == answer


@given(task_id=NAME, context_id=NAME, update=UPDATES, final=FLAG)
def test_an_update_can_be_read_again(
    task_id: str, context_id: str, update: StatusUpdate | ArtifactUpdate, final: bool
) -> None:
    task = Task(task_id, context_id, datetime(2026, 1, 2, tzinfo=UTC))
    for wire in WIRES:
        answer = told(wire.codec.encode_update(task, update, final))
        same(wire.read_update(answer), seen_update(wire, task, update, final))


def seen_update(
    wire: Wire, task: Task, update: StatusUpdate | ArtifactUpdate, final: bool
) -> UpdateSeen:
    """Only 0.3 marks the last update, and only a status update."""
    if isinstance(update, ArtifactUpdate):
        return UpdateSeen(task.id, task.context_id, wire.seen_chunk(update))
    last = final if wire is OLD else None
    return UpdateSeen(task.id, task.context_id, wire.seen_status(task, update), last)


@few
@given(task=TASKS, update=UPDATES)
def test_a_notification_can_be_read_again(
    task: Task, update: StatusUpdate | ArtifactUpdate
) -> None:
    """1.0 encodes the update; 0.3 encodes the whole task, and None for an appended piece."""
    answer = told(NEW.codec.encode_notification(task, update))
    same(NEW.read_notification(answer), seen_update(NEW, task, update, False))
    appended = isinstance(update, ArtifactUpdate) and update.append
    answer = told(OLD.codec.encode_notification(task, update))
    same(OLD.read_notification(answer), None if appended else OLD.seen_task(task))


@few
@given(
    listed=st.lists(TASKS, max_size=2),
    params=LISTS.map(lambda params: replace(params, history_length=1)),
    page=st.builds(Page, TEXT, st.integers(0, 2**31)),
)
def test_a_page_can_be_read_again(listed: list[Task], params: ListParams, page: Page) -> None:
    for wire in WIRES:
        answer = told(wire.codec.encode_page(listed, params, page))
        seen = [wire.seen_task(task, 1, params.include_artifacts) for task in listed]
        same(wire.read_page(answer), (seen, page, params.page_size))


@given(configs=st.lists(PUSHES, max_size=3))
def test_push_configs_can_be_read_again_without_their_secrets(configs: list[PushParams]) -> None:
    """A client may send each object that it has received."""
    for wire in WIRES:
        seen = [wire.seen_push(config) for config in configs]
        same(wire.read_pushes(told(wire.codec.encode_pushes(configs))), seen)
        for config, one in zip(configs, seen, strict=True):
            answer = told(wire.codec.encode_push(config))
            same(wire.read_push(answer), one)
            same(decode(wire, Operation.PUSH_CREATE, answer), one)


@given(card=CARDS)
def test_a_card_can_be_read_again(card: Card) -> None:
    for wire in WIRES:
        same(wire.read_card(told(wire.codec.encode_card(card))), wire.seen_card(card))


ANSWERED = sorted(errors.RequestError.__subclasses__(), key=lambda kind: kind.__name__)
FIELDS = st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple)


@given(
    kind=st.sampled_from(ANSWERED),
    text=TEXT,
    details=st.dictionaries(TEXT, TEXT, max_size=2),
    fields=FIELDS,
)
def test_an_error_can_be_read_again(
    kind: Callable[[str], errors.RequestError],
    text: str,
    details: dict[str, str],
    fields: tuple[tuple[str, str], ...],
) -> None:
    error = kind(text)
    error.details = details
    if isinstance(error, errors.InvalidParams):
        error.fields = fields
    named = error.fields if isinstance(error, errors.InvalidParams) else ()
    code, reason = shapes.ERRORS[type(error).__name__]
    for wire in WIRES:
        seen = shapes.read_error(told(wire.codec.encode_error(error)))
        same(seen, shapes.ErrorSeen(code, reason, text, details, named))


@given(
    kind=st.sampled_from([RuntimeError, KeyError, errors.LaunchError, errors.ConfigurationError]),
    secret=st.text(min_size=1),
)
def test_an_error_that_is_ours_says_nothing_about_itself(
    kind: Callable[[str], Exception], secret: str
) -> None:
    """The client reads the same error for each cause."""
    for wire in WIRES:
        seen = shapes.read_error(told(wire.codec.encode_error(kind(secret))))
        assert (seen.code, seen.reason) == (-32603, "INTERNAL_ERROR")
        assert seen == shapes.read_error(wire.codec.encode_error(Exception()))
        assert not seen.details


def test_every_error_of_a_request_has_its_code_in_the_specification() -> None:
    assert {kind.__name__ for kind in ANSWERED} == set(shapes.ERRORS)
