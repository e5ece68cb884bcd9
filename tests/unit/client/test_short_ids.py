"""The beginnings of ids."""

from __future__ import annotations

from typing import Any, cast

import pytest

from bridge.client.agent import RemoteAgent
from bridge.client.failure import ClientError
from bridge.client.short_ids import shortened, whole_id

FIRST, SECOND = "abcd1111-0000-4000-8000-000000000001", "abcd2222-0000-4000-8000-000000000002"
CONTEXT = "abce0000-0000-4000-8000-000000000003"


class Listing:
    """An agent that has two pages of tasks. `asked`: the tokens of the pages that were read."""

    def __init__(self, problem: ClientError | None = None) -> None:
        self.asked: list[object] = []
        self._problem = problem

    async def call(self, operation: object, params: dict[str, Any]) -> dict[str, Any]:
        if self._problem:
            raise self._problem
        self.asked.append(params.get("pageToken"))
        if params.get("pageToken"):
            return {"tasks": [{"id": SECOND, "contextId": CONTEXT}]}
        return {"tasks": [{"id": FIRST, "contextId": CONTEXT}], "nextPageToken": "2"}


async def whole(begun: str, listing: Listing, *members: str) -> str:
    return await whole_id(cast(RemoteAgent, listing), begun, members=members or ("id",))


async def test_a_unique_beginning_is_a_whole_id() -> None:
    assert await whole("abcd1", Listing()) == FIRST
    assert await whole("abcd2222-00", Listing()) == SECOND
    assert await whole("abce", Listing(), "id", "contextId") == CONTEXT
    assert await whole("abce", Listing()) == "abce"


async def test_a_beginning_of_several_ids_is_refused_with_their_list() -> None:
    with pytest.raises(ClientError, match=f"several ids begin with abcd: {FIRST}, {SECOND}"):
        await whole("abcd", Listing())


@pytest.mark.parametrize("name", [FIRST, "abc", "task-1", "ABCD1", "a b", ""])
async def test_any_other_name_is_no_question_to_the_server(name: str) -> None:
    listing = Listing()
    assert await whole(name, listing) == name
    assert listing.asked == []


async def test_a_server_without_lists_decides_by_itself() -> None:
    refusing = Listing(ClientError("UnsupportedOperationError", "no"))
    assert await whole("abcd1", refusing) == "abcd1"


def test_short_ids_are_unique() -> None:
    assert shortened([FIRST, SECOND]) == {FIRST: "abcd1111", SECOND: "abcd2222"}
    twin = FIRST[:-1] + "9"
    assert len(set(shortened([FIRST, twin]).values())) == 2
