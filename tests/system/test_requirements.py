"""The table of requirements is about tests that exist, and every one that must be met has some."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests import CHECKOUT
from tests.support import requirements
from tests.support.requirements import AREAS, REQUIREMENTS, Requirement

REWRITE = "run: python -m tests.support.requirements"
# Files about the protocol: none of them is without a requirement that it proves.
PROTOCOL = (
    *(
        "server/protocol/server",
        "server/protocol/streams",
        "server/protocol/rest",
        "server/protocol/equivalence",
        "server/protocol/list",
        "server/protocol/cards",
        "server/protocol/agents",
        "server/protocol/options",
    ),
    *("server/protocol/push_over_http", "unit/a2a/codec", "server/protocol/bad_input"),
)

each = pytest.mark.parametrize("requirement", REQUIREMENTS, ids=lambda one: str(one.id))


@cache
def found_in(path: str) -> frozenset[str]:
    """Names of the tests of a file."""
    tree = ast.parse((CHECKOUT / path).read_text("utf-8"))
    functions = (
        one for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return frozenset(one.name for one in functions if one.name.startswith("test_"))


@each
def test_every_test_that_is_named_exists(requirement: Requirement) -> None:
    for test in requirement.tests:
        path, name = test.split("::")
        assert re.fullmatch(r"tests(/\w+)+/test_\w+\.py", path)
        assert name in found_in(path), f"{path} has no {name}"
    assert len(set(requirement.tests)) == len(requirement.tests)


@each
def test_a_requirement_has_tests_or_a_reason(requirement: Requirement) -> None:
    assert bool(requirement.tests) is not bool(requirement.deferred)
    assert requirement.tests or requirement.level != "MUST"


@each
def test_a_requirement_says_where_it_is_from(requirement: Requirement) -> None:
    """As in "§3.1, §9.4; 0.3 §7.1": sections of each version that it is of, the newer one first."""
    found = requirement.section.split("; ")
    versions = ["0.3" if one.startswith("0.3 ") else "1.0" for one in found]
    wanted = ["1.0", "0.3"] if requirement.version == "both" else [requirement.version]
    assert versions == wanted
    for sections in found:
        for one in sections.removeprefix("0.3 ").split(", "):
            assert re.fullmatch(r"§\d+(\.\d+)*|A(\.\d+)+", one), one


@each
def test_a_requirement_is_a_row(requirement: Requirement) -> None:
    assert requirement.id.split("-")[0] in AREAS
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", requirement.id)
    for text in (requirement.text, requirement.deferred):
        assert not set("|\n") & set(text)
        assert not text or text.endswith(".")


def test_ids_are_unique() -> None:
    ids = [one.id for one in REQUIREMENTS]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", PROTOCOL)
def test_no_file_about_the_protocol_proves_nothing(name: str) -> None:
    folder, _, file = name.rpartition("/")
    path = f"tests/{folder}/test_{file}.py"
    assert (CHECKOUT / path).exists()
    assert any(test.startswith(f"{path}::") for one in REQUIREMENTS for test in one.tests)


def test_what_the_whole_server_is_asked_for_its_own_sake_is_a_requirement() -> None:
    """tests/server/protocol/test_conformance.py is there for this table alone."""
    path = "tests/server/protocol/test_conformance.py"
    named = {test for one in REQUIREMENTS for test in one.tests if test.startswith(path)}
    assert named == {f"{path}::{name}" for name in found_in(path)}


def test_the_document_is_the_table() -> None:
    assert requirements.DOCUMENT.read_text("utf-8") == requirements.document(), REWRITE
