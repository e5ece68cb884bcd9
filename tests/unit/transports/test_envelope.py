"""A request in an envelope: its service parameters and its id."""

from __future__ import annotations

from typing import Any

import pytest

from bridge import errors
from bridge.transports.envelope.request import (
    LONGEST_PARAMETER,
    MAX_ID,
    PARAMETERS,
    check_envelope,
    id_of,
    read_request,
)
from tests.support.cases import each

LIST = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks"}
NEW = {"A2A-Version": "1.0"}


def parameters(
    own: Any = None, inside: Any = None, defaults: dict[str, str] | None = None
) -> dict[str, str]:
    """The headers of a request with these members."""
    params = {"metadata": {PARAMETERS: inside}} if inside is not None else {}
    envelope = {**LIST, "params": params, **({} if own is None else {PARAMETERS: own})}
    return dict(read_request(envelope, NEW if defaults is None else defaults).parameters.headers)


@each(
    ("own", "inside", "found"),
    [
        (None, None, NEW),
        ({}, {}, NEW),
        (
            {"a2a-VERSION": "1.0.1", "traceParent": "t"},
            None,
            {"A2A-Version": "1.0.1", "traceparent": "t"},
        ),
        (None, {"Last-Event-ID": "17"}, {**NEW, "Last-Event-ID": "17"}),
        ({"last-event-id": "18"}, {"Last-Event-ID": "17"}, {**NEW, "Last-Event-ID": "18"}),
        ({"Accept": 7, "unknown": None}, None, NEW),
        ({"Idempotency-Key": "é" * (LONGEST_PARAMETER // 2)}, None, None),
    ],
)
def test_a_request_overrides_the_parameters_of_its_connection(
    own: Any, inside: Any, found: dict[str, str] | None
) -> None:
    if found is None:
        found = {**NEW, **own}
    assert parameters(own, inside) == found


@each(
    "wrong",
    [
        *(7, [], "x", {"A2A-Version": 1}, {"traceparent": None}),
        {"traceparent": "x" * (LONGEST_PARAMETER + 1)},
        {"traceparent": "é" * (LONGEST_PARAMETER // 2 + 1)},
        *({name: "x"} for name in ("authorization", "AUTHORIZATION", "x-api-key", "Cookie")),
    ],
)
def test_wrong_parameters_are_refused(wrong: Any) -> None:
    for own, inside in ((wrong, None), (None, wrong)):
        with pytest.raises(errors.InvalidParams) as refused:
            parameters(own, inside)
        assert refused.value.fields[0][0] == PARAMETERS


def test_a_request_without_a_version_is_of_the_oldest() -> None:
    with pytest.raises(errors.VersionNotSupported):
        parameters(defaults={})
    old = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get"}
    assert read_request(old, {}).codec.version == "0.3"
    assert read_request({**LIST, PARAMETERS: {"Last-Event-ID": "9"}}, NEW).seen == 9


@each(
    ("given", "found"),
    [
        *((1, 1), (0, 0), (1.5, 1.5), ("", ""), (None, None), ("x" * MAX_ID, "x" * MAX_ID)),
        *((True, None), ({}, None), ([], None), ("x" * (MAX_ID + 1), None)),
    ],
)
def test_an_id_is_a_short_text_a_number_or_null(given: Any, found: Any) -> None:
    envelope = {**LIST, "id": given}
    assert id_of(envelope) == found
    if given is None or found is not None:
        check_envelope(envelope)
    else:
        with pytest.raises(errors.InvalidRequest):
            check_envelope(envelope)
