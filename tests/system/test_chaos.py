"""A little chaos with every run of the tests (`scripts/chaos` has more), and the checker itself:
what it would say if something were wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import chaos, ledger, load
from tests.support.ledger import Ledger, View
from tests.support.numbered_streams import BINDINGS
from tests.support.servers import on_postgres

Json = dict[str, Any]
ALWAYS = ("cli_dies", "fickle_clients", "kill_streaming")
SOAK = (
    *("cancel_deaf", "children", "awkward", "kill_asking", "kill_writing", "kill_both"),
    *("kill_canceling", "kill_starting"),
)


@pytest.mark.parametrize(
    "name", [*ALWAYS, *(pytest.param(name, marks=pytest.mark.soak) for name in SOAK)]
)
async def test_nothing_is_lost_and_nothing_is_left(name: str) -> None:
    """Some seconds each: three scenarios in each run, the others in the soak tier."""
    outcome = chaos.Outcome()
    (one,) = (one for one in chaos.SCENARIOS if one.play.__name__ == name)
    await chaos.play(one, seed=1, outcome=outcome)
    assert outcome.violations == []


@pytest.mark.soak
@pytest.mark.parametrize("name", [*ALWAYS, *SOAK, "hand_over", "kill_queue"])
async def test_nothing_is_lost_on_postgres(name: str, postgres_url: str) -> None:
    found = [one for one in chaos.SCENARIOS if one.play.__name__ == name]
    outcome = chaos.Outcome()
    for one in found:
        await chaos.play(one, seed=2, outcome=outcome, env=on_postgres(postgres_url))
    assert found and outcome.violations == []


EACH = [(one,) for one in BINDINGS] + [chaos.STDIO]
"""Worlds with one binding, and one whose servers do not listen."""
CASES = [
    *((bindings, name, 0) for bindings in EACH for name in ("fickle_clients", "kill_asking")),
    *((bindings, "kill_streaming", seed) for bindings in EACH for seed in range(3)),
    *(
        (tuple(BINDINGS), name, seed)
        for name in ("fickle_clients", "kill_streaming", "kill_asking")
        for seed in range(3)
    ),
]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("bindings", "name", "seed"),
    CASES,
    ids=[f"{'+'.join(bindings)}-{name}-{seed}" for bindings, name, seed in CASES],
)
async def test_nothing_is_lost_over_any_binding(
    bindings: tuple[str, ...], name: str, seed: int
) -> None:
    """Each connection of a client chooses a binding: one resumes what another began. All see the
    same items."""
    (one,) = (one for one in chaos.SCENARIOS if one.play.__name__ == name)
    outcome = chaos.Outcome()
    await chaos.play(one, seed=seed, outcome=outcome, bindings=bindings)
    assert outcome.violations == []


# --- the checker ---------------------------------------------------------------------------------


def text(number: int, said: str, append: bool = True) -> tuple[int, Json]:
    artifact = {"artifactId": "assistant-response", "parts": [{"text": said}]}
    return number, {"artifactUpdate": {"artifact": artifact, "append": append}}


def status(number: int, name: str) -> tuple[int, Json]:
    return number, {"statusUpdate": {"status": {"state": f"TASK_STATE_{name}"}}}


REFERENCE = [status(1, "WORKING"), text(2, "a"), text(3, "b"), status(4, "COMPLETED")]
TASK: Json = {
    "status": {"state": "TASK_STATE_COMPLETED"},
    "artifacts": [{"artifactId": "assistant-response", "parts": [{"text": "ab"}]}],
}


def test_a_client_that_saw_all_is_well() -> None:
    assert ledger.check_view(View("one", REFERENCE), REFERENCE) == []
    assert ledger.check_reference(REFERENCE, TASK) == []


@pytest.mark.parametrize(
    "updates",
    [
        [REFERENCE[0], *REFERENCE[2:]],
        [*REFERENCE[:2], *REFERENCE[1:]],
        [REFERENCE[0], REFERENCE[2], REFERENCE[1], REFERENCE[3]],
        [*REFERENCE[:2], text(3, "c"), REFERENCE[3]],
        [*REFERENCE, text(5, "published, and never written down")],
    ],
    ids=["gap", "twice", "order", "other", "unknown"],
)
def test_a_client_that_saw_something_else(updates: list[tuple[int, Json]]) -> None:
    assert ledger.check_view(View("one", updates), REFERENCE)


def test_a_client_that_was_reset() -> None:
    view = View("one", REFERENCE[2:], [(2, {"task": TASK}), (2, {"task": TASK})])
    assert "reset" in ledger.check_view(view, REFERENCE)[0]


@pytest.mark.parametrize(
    "updates",
    [
        REFERENCE[:3],
        [*REFERENCE, status(5, "CANCELED")],
        [*REFERENCE, text(5, "after the end")],
        [*REFERENCE[:3], status(4, "FAILED")],
    ],
    ids=["none", "two", "not last", "another"],
)
def test_a_task_without_its_one_end(updates: list[tuple[int, Json]]) -> None:
    assert ledger.check_reference(updates, TASK)


SAID = [("text", "0", "x"), ("raw", "hm"), ("text", "1", "y")]


@pytest.mark.parametrize(
    ("found", "state", "killed", "well"),
    [
        (SAID, "completed", False, True),
        (SAID[:2], "completed", False, False),
        (SAID[:2], "failed", False, False),
        (SAID[:2], "failed", True, True),
        (SAID[:1], "failed", True, False),
        (SAID[:1], "canceled", False, True),
        ([SAID[0], SAID[2]], "canceled", False, False),
        ([SAID[0], *SAID], "completed", False, False),
    ],
)
def test_what_was_said(found: list[ledger.Said], state: str, killed: bool, well: bool) -> None:
    assert (ledger.check_said(found, Ledger(said=list(SAID)), state, killed) == []) is well


def test_a_prompt_and_an_answer_that_were_sent_twice() -> None:
    once = Ledger(prompts=["t"], answers=[("q", "yes")])
    assert ledger.check_told(once, "t", {"q": "yes"}) == []
    twice = Ledger(prompts=["t", "t"], answers=[("q", "yes"), ("q", "no")], unexpected=["?"])
    assert len(ledger.check_told(twice, "t", {"q": "yes"})) == 4


def test_the_ledger_of_a_cli_that_was_killed_while_it_wrote(tmp_path: Path) -> None:
    file = tmp_path / "ledger"
    file.write_text('{"kind":"text","seq":0,"sha":"x"}\n{"kind":"te')
    assert ledger.read_ledger(file).said == [("text", "0", "x")]


def test_the_table_names_each_fault() -> None:
    outcome = chaos.Outcome(
        {"F9 killed": chaos.Row(300, 600), "F1 dies": chaos.Row(1, 1, ["a: b"])}
    )
    table = chaos.table(outcome)
    assert table.index("| F1 | dies | 1 | 1 | 1 |") < table.index("| F9 | killed | 300 | 600 | 0 |")
    assert "1.0%" in table


async def test_many_agents_at_once_lose_nothing() -> None:
    outcome = await load.run(tasks=30, rate=20, seconds=3)
    assert outcome.lost == 0
    assert outcome.peak - outcome.idle < 60, outcome  # MiB
