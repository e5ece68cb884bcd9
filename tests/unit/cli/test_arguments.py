"""The command line of the client."""

from __future__ import annotations

import pytest

from bridge.cli.client.arguments import is_client, parse
from bridge.client.failure import ClientError


@pytest.mark.parametrize(
    ("line", "client"),
    [
        ("send x", True),
        ("card get", True),
        ("card verify x", False),
        ("task", True),
        ("doctor", False),
        ("--port 1", False),
        ("", False),
    ],
)
def test_the_first_words_choose_the_program(line: str, client: bool) -> None:
    assert is_client(line.split()) is client


def test_positional_words_may_stand_behind_flags() -> None:
    options = parse(["answer", "t", "--question", "q", "yes", "--reason", "r"])
    assert (options.task, options.option, options.question) == ("t", "yes", "q")
    assert parse(["task", "cancel", "a", "--yes", "b"]).tasks == ["a", "b"]


def test_parts_keep_their_order_and_types() -> None:
    line = "send --file a --media-type t/a --text b --data-part - --file c"
    assert parse(line.split()).parts == [
        ("file", "a", "t/a"),
        ("text", "b", None),
        ("data", "-", None),
        ("file", "c", None),
    ]


@pytest.mark.parametrize("alias", ["--async", "--no-wait", "--return-immediately"])
def test_a_flag_may_have_aliases(alias: str) -> None:
    assert vars(parse(["send", "x", alias]))["async"] is True
    assert vars(parse(["send", "x"]))["async"] is None


@pytest.mark.parametrize(
    "line",
    [
        "send --media-type t/a x",
        "send --file a --media-type t/a --media-type t/b",
        "send --unknown",
        "send a b",
        "send --budget 2",
        "send --budget 5m",
        "send --timeout soon",
        "send -o xml",
        "send --transport grpc",
        "task",
        "task get",
        "task push-config",
        "completion",
        "completion dos",
        "send --str",  # an abbreviation
    ],
)
def test_an_invalid_line_is_a_usage_error_with_a_hint(line: str) -> None:
    with pytest.raises(ClientError) as refused:
        parse(line.split())
    assert (refused.value.code, refused.value.status) == ("A2ACLI_ERR_USAGE", 2)


def test_help_names_defaults_and_the_exposure_of_credentials(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["send", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    for part in ("[the local server]", "[text]", "[2s]", "[verify]", "other programs can see it"):
        assert part in text, part
