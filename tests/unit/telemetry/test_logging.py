"""The lines of the log in both formats."""

from __future__ import annotations

import json
import logging
import re
import sys
from enum import Enum
from typing import Any

import pytest

from bridge.session.redaction import MARK, Secrets
from bridge.telemetry.logging import LONGEST, JsonFormatter, TextFormatter
from tests.support.cases import each
from tests.support.secret_corpus import CORPUS

SECRET = 'hunter"22\n\u00e9'


class State(Enum):
    DONE = "done"


def record(text: str = "a text", *, at: int = logging.INFO, **extra: Any) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "bridge.x", "msg": text, "levelno": at, **extra})
    made.levelname = logging.getLevelName(at)
    made.created = 1_800_000_000.1234
    return made


def line(made: logging.LogRecord, clean: Any = str) -> dict[str, Any]:
    text = JsonFormatter(clean).format(made)
    assert "\n" not in text
    assert len(text.encode()) <= LONGEST
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_line_has_the_members_of_every_line_and_its_own() -> None:
    assert line(record(event="task.ended", task="t", seconds=1.5, reason=None, agent=None)) == {
        "time": "2027-01-15T08:00:00.123Z",
        "level": "info",
        "event": "task.ended",
        "message": "a text",
        "logger": "bridge.x",
        "task": "t",
        "seconds": 1.5,
        "reason": None,
    }


@pytest.mark.parametrize("event", [{}, {"event": "task.unknown"}, {"event": None}])
def test_another_event_is_log(event: dict[str, Any]) -> None:
    assert line(record(**event))["event"] == "log"


def test_values_are_types_of_json() -> None:
    given: dict[str, Any] = {
        **{"a": (1, {"b": {2}}), "c": b"\xff", "d": State.DONE, "e": ValueError("x")},
        **{"f": ValueError(), "g": float("nan"), "h": 2**70, "i": "\ud800", "j": True},
    }
    found = line(record(**given))
    assert {name: found[name] for name in given} == {
        **{"a": [1, {"b": [2]}], "c": "\\xff", "d": "done", "e": "x"},
        **{"f": "ValueError", "g": "nan", "h": str(2**70), "i": "\\ud800", "j": True},
    }


def test_a_deep_value_ends() -> None:
    value: list[Any] = []
    value.append(value)
    assert "…" in json.dumps(line(record(value=value)), ensure_ascii=False)


def test_members_of_every_line_cannot_be_replaced() -> None:
    found = line(record(time="never", level="loud", logger="me"))
    assert (found["level"], found["logger"]) == ("info", "bridge.x")


@pytest.mark.parametrize("formatter", [JsonFormatter, TextFormatter])
def test_secrets_are_redacted_wherever_they_are(formatter: type[JsonFormatter]) -> None:
    secrets = Secrets([SECRET], patterns=True)
    try:
        raise ValueError(f"-----BEGIN PRIVATE KEY-----\n{SECRET}")
    except ValueError:
        cause = sys.exc_info()
    made = record(f"a {SECRET}", b=[{SECRET: SECRET}], c=json.dumps(SECRET), exc_info=cause)
    text = formatter(secrets.clean).format(made)
    assert "hunter" not in text
    assert "PRIVATE" not in text
    assert text.count(MARK) == 5
    if formatter is JsonFormatter:
        json.loads(text)


@each("secret", CORPUS)
def test_no_line_has_a_text_with_the_form_of_a_secret(secret: str) -> None:
    clean = Secrets(patterns=True).clean
    parts = [one for one in re.split(r"[\n.]", secret) if one]
    try:
        raise RuntimeError(f"refused: {secret}")
    except RuntimeError:
        cause = sys.exc_info()
    made = record(f"a {secret} b", member=[{"in": secret}], other=secret.encode(), exc_info=cause)
    for text in (JsonFormatter(clean).format(made), TextFormatter(clean).format(made)):
        assert text.count(MARK) >= 4
        assert not [one for one in parts if one in text]


@pytest.mark.parametrize(
    "extra",
    [
        {"a": "é" * 100_000},
        {"a": "\n" * 10_000, "b": '"' * 10_000},
        {"a": ["x" * 100] * 10_000},
        {f"member{number}": number for number in range(5000)},
        {"a": {str(number): "x" for number in range(5000)}},
    ],
)
def test_a_long_line_is_cut(extra: dict[str, Any]) -> None:
    found = line(record("é" * 50_000, event="push.dead", **extra))
    assert found["cut"] is True
    assert (found["event"], found["logger"]) == ("push.dead", "bridge.x")
    text = TextFormatter(str).format(record("é" * 50_000, **extra))
    assert len(text.encode()) <= LONGEST
    assert "\n" not in text


def test_a_cut_keeps_no_part_of_a_secret() -> None:
    secret = "s3cr3t" * 20
    for start in range(2000, 2100, 7):
        found = line(record("x" * start + secret + "x" * 100_000), Secrets([secret]).clean)
        assert "s3cr3t" not in json.dumps(found)


def test_the_text_format_has_one_pair_for_each_member() -> None:
    text = TextFormatter(str).format(record("a\nb", event="task.ended", task="t", n=[1, "x"]))
    assert text == (
        "2027-01-15T08:00:00.123Z info bridge.x 'a\\nb' event='task.ended' task='t' n='[1,\"x\"]'"
    )


@pytest.mark.parametrize(
    ("level", "priority"),
    [("CRITICAL", 2), ("ERROR", 3), ("WARNING", 4), ("INFO", 6), ("DEBUG", 7)],
)
def test_a_line_for_journald_begins_with_its_priority(level: str, priority: int) -> None:
    made = record(at=logging.getLevelNamesMapping()[level])
    for formatter in (JsonFormatter(str, priorities=True), TextFormatter(str, priorities=True)):
        assert re.match(f"<{priority}>[{{2]", formatter.format(made))


def test_context_adds_members_that_the_record_does_not_have() -> None:
    formatter = JsonFormatter(str, lambda members: {"task": "other", "peer": members["task"]})
    found = json.loads(formatter.format(record(task="t")))
    assert (found["task"], found["peer"]) == ("t", "t")


def raised(text: str) -> Any:
    try:
        raise ValueError(text)
    except ValueError:
        return sys.exc_info()


def test_a_traceback_in_the_text_format_is_lines_and_none_looks_like_a_record() -> None:
    forged = "2027-01-15T08:00:00.123Z info bridge.x 'forged'"
    cause = raised(f"first\n{forged}\r{forged}\x1b[2J\u2028{forged}")
    made = record("a text", at=logging.ERROR, task="t", exc_info=cause)
    first, *below = TextFormatter(str, priorities=True).format(made).split("\n")
    assert first == "<3>2027-01-15T08:00:00.123Z error bridge.x 'a text' task='t'"
    assert below[0] == "<3>    Traceback (most recent call last):"
    assert all(one.startswith("<3>    ") for one in below)
    assert f"{__file__}" in below[1] and "ValueError: first" in below[-4]
    assert "\\u001b[2J" in below[-2] and "\r" not in "".join(below)


def test_a_long_traceback_keeps_its_ends() -> None:
    cause = raised("\u200b" * 50_000 + "the end")
    text = TextFormatter(str).format(record("x" * 50_000, exc_info=cause))
    assert len(text.encode()) <= LONGEST
    text = TextFormatter(str).format(
        record("x" * 50_000, exc_info=raised("y" * 50_000 + "the end"))
    )
    assert len(text.encode()) <= LONGEST
    assert "Traceback" in text and text.endswith("the end")
