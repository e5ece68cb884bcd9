"""JSON-RPC as a peer: requests, responses, and errors of the other side."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from bridge.adapter.jsonrpc import Peer, Request, Response, RpcError
from tests.support.cases import each


class Wire:
    """A peer and the messages that it has sent. Received messages become pairs (kind, value)."""

    def __init__(self, *, tagged: bool = True) -> None:
        self._sent = bytearray()
        self.peer: Peer[tuple[str, Any]] = Peer(self._sent.extend, tagged=tagged)

    def sent(self) -> list[Any]:
        lines = bytes(self._sent)
        self._sent.clear()
        assert lines.endswith(b"\n") or not lines
        return [json.loads(line) for line in lines.splitlines()]

    def hear(self, **message: Any) -> list[tuple[str, Any]] | None:
        return self.peer.receive(message)

    def ask(self, method: str, name: str) -> int:
        return self.peer.request(method, {}, lambda reply: [(name, reply)])


def keep(wire: Wire, kept: list[Request]) -> Callable[[Request], list[tuple[str, Any]]]:
    """A handler that leaves its requests open."""

    def handler(request: Request) -> list[tuple[str, Any]]:
        kept.append(request)
        return [("asked", request.id)]

    return handler


# --- asking --------------------------------------------------------------------------------------


def test_a_request_is_one_line_with_an_id_of_its_own() -> None:
    wire = Wire()
    assert wire.peer.request("a/b", {"x": "1\n2"}, lambda _: []) == 1
    wire.peer.request("c", {}, lambda _: [])
    assert wire.sent() == [
        {"jsonrpc": "2.0", "id": 1, "method": "a/b", "params": {"x": "1\n2"}},
        {"jsonrpc": "2.0", "id": 2, "method": "c", "params": {}},
    ]


def test_a_notification_has_no_id_and_the_tag_may_be_left_out() -> None:
    wire = Wire(tagged=False)
    wire.peer.notify("x", {"y": 1})
    wire.ask("z", "z")
    assert wire.sent() == [
        {"method": "x", "params": {"y": 1}},
        {"id": 1, "method": "z", "params": {}},
    ]


@each("tag", [{}, {"jsonrpc": "2.0"}, {"jsonrpc": 1}])
def test_an_answer_goes_to_the_request_that_it_is_for(tag: dict[str, Any]) -> None:
    wire = Wire()
    wire.ask("a", "first")
    wire.ask("b", "second")
    assert wire.hear(**tag, id=2, result={"n": 2}) == [("second", Response({"n": 2}))]
    assert wire.hear(**tag, id=1, result=None) == [("first", Response(None))]


def test_an_answer_is_heard_once() -> None:
    wire = Wire()
    wire.ask("a", "first")
    assert wire.hear(id=1, result=1)
    assert wire.hear(id=1, result=1) == []


@each("wrong", [2, "1", 0, -1, "x", ""])
def test_an_answer_to_nothing_is_ignored(wrong: Any) -> None:
    wire = Wire()
    wire.ask("a", "first")
    assert wire.hear(id=wrong, result=1) == []
    assert wire.hear(id=1, result=1)


@each("wrong", [True, 1.0, None, [1], {"a": 1}])
def test_a_value_that_is_not_an_id_answers_nothing(wrong: Any) -> None:
    wire = Wire()
    wire.ask("a", "first")
    assert wire.hear(id=wrong, result=1) is None
    assert wire.hear(id=1, result=1)


@each(
    ("error", "read"),
    [
        ({"code": -32000, "message": "no", "data": [1]}, RpcError(-32000, "no", [1])),
        ({"code": "E1", "message": None}, RpcError(0, "no reason given")),
        ({}, RpcError(0, "no reason given")),
        ("just words", RpcError(0, "just words")),
    ],
)
def test_an_error_of_any_shape_is_read(error: Any, read: RpcError) -> None:
    wire = Wire()
    wire.ask("a", "first")
    assert wire.hear(id=1, error=error) == [("first", Response(None, read))]


@each("result", [None, 5, "x", [1], {"a": 1}])
def test_the_members_of_a_result_are_those_of_an_object(result: Any) -> None:
    assert Response(result).members == (result if isinstance(result, dict) else {})


# --- being asked ---------------------------------------------------------------------------------


@each("number", [0, 1, 7, "a-uuid", "1", ""])
def test_a_request_is_answered_under_its_own_id(number: Any) -> None:
    wire = Wire()
    kept: list[Request] = []
    wire.peer.requests["m"] = keep(wire, kept)
    assert wire.hear(id=number, method="m", params={"a": 1}) == [("asked", number)]
    assert wire.sent() == []
    assert kept[0].params == {"a": 1}
    wire.peer.answer(kept[0], {"ok": True})
    assert wire.sent() == [{"jsonrpc": "2.0", "id": number, "result": {"ok": True}}]


def test_the_same_id_may_be_in_flight_both_ways() -> None:
    wire = Wire()
    kept: list[Request] = []
    wire.peer.requests["m"] = keep(wire, kept)
    assert wire.ask("ours", "ours") == 1
    wire.hear(id=1, method="m")
    assert wire.hear(id=1, result="for ours") == [("ours", Response("for ours"))]
    wire.sent()
    wire.peer.answer(kept[0], None)
    assert wire.sent() == [{"jsonrpc": "2.0", "id": 1, "result": None}]


def test_a_request_is_answered_once() -> None:
    wire = Wire()
    kept: list[Request] = []
    wire.peer.requests["m"] = keep(wire, kept)
    wire.hear(id=1, method="m")
    wire.peer.refuse(kept[0], -32800, "no longer")
    wire.peer.answer(kept[0], {})
    wire.peer.refuse(kept[0], 1, "again")
    assert wire.sent() == [
        {"jsonrpc": "2.0", "id": 1, "error": {"code": -32800, "message": "no longer"}}
    ]


def test_an_id_may_be_used_again_when_it_is_free() -> None:
    wire = Wire()
    kept: list[Request] = []
    wire.peer.requests["m"] = keep(wire, kept)
    for answer in ("one", "two"):
        wire.hear(id=0, method="m")
        wire.peer.answer(kept[-1], answer)
    assert [line["result"] for line in wire.sent()] == ["one", "two"]


def test_an_unknown_request_is_refused_and_an_unknown_notification_ignored() -> None:
    wire = Wire()
    assert wire.hear(id="x", method="fs/read_text_file", params={"path": "/etc/passwd"}) == []
    (line,) = wire.sent()
    assert line["id"] == "x"
    assert line["error"]["code"] == -32601
    assert wire.hear(method="whatever", params={}) == []
    assert wire.hear(id=None, method="whatever") == []
    assert wire.sent() == []


def test_a_request_in_an_unknown_shape_is_refused() -> None:
    wire = Wire()

    def read(request: Request) -> Iterator[tuple[str, Any]]:
        yield "name", request.params["name"]

    wire.peer.requests["m"] = read
    assert wire.hear(id=3, method="m", params={}) is None
    (line,) = wire.sent()
    assert (line["id"], line["error"]["code"]) == (3, -32602)


@each("params", [None, 5, "x", [1]])
def test_params_that_are_not_an_object_are_empty(params: Any) -> None:
    wire = Wire()
    wire.peer.notifications["m"] = lambda members: [("members", members)]
    assert wire.hear(method="m", params=params) == [("members", {})]


def test_a_notification_of_unknown_shape_is_reported() -> None:
    wire = Wire()
    wire.peer.notifications["m"] = lambda members: [("x", members["x"])]
    assert wire.hear(method="m", params={}) is None
    assert wire.sent() == []


@each("message", [{}, {"id": 1}, {"method": 5}, {"id": [1], "result": 1}])
def test_an_object_that_is_not_a_message_is_none(message: dict[str, Any]) -> None:
    wire = Wire()
    wire.ask("a", "first")
    wire.sent()
    assert wire.peer.receive(message) is None
    assert wire.sent() == []
