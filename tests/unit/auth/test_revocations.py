"""A hold ends the task that has it, and nothing else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from bridge.auth.principal import Principal
from bridge.auth.revocations import CUT_AFTER, Revocations
from bridge.errors import Unauthenticated

ANNA, BERT = Principal("anna"), Principal("bert")


def of(*names: str) -> Revocations:
    """Only these principals are valid."""
    return Revocations(lambda principal: principal.id in names)


async def wait(revocations: Revocations, principal: Principal) -> None:
    with revocations.hold(principal):
        await asyncio.Event().wait()


async def test_an_invalid_credential_ends_its_wait_alone() -> None:
    valid = {"anna", "bert"}
    revocations = Revocations(lambda principal: principal.id in valid)
    anna, bert = (asyncio.create_task(wait(revocations, one)) for one in (ANNA, BERT))
    await asyncio.sleep(0)
    valid.discard("anna")
    assert revocations.check() == 1
    ended, _ = await asyncio.wait([anna], timeout=60)
    assert ended
    with pytest.raises(Unauthenticated):
        anna.result()
    assert anna.cancelling() == 0 and not bert.done()
    bert.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bert
    assert revocations.check() == 0


async def test_a_hold_of_an_invalid_credential_does_not_begin() -> None:
    with pytest.raises(Unauthenticated):
        await wait(of("bert"), ANNA)


async def test_a_cancel_by_others_stays_a_cancel() -> None:
    valid = {"anna"}
    revocations = Revocations(lambda principal: principal.id in valid)
    task = asyncio.create_task(wait(revocations, ANNA))
    await asyncio.sleep(0)
    valid.clear()
    revocations.check()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_consumer_gets_its_item_and_then_the_end_or_is_cut() -> None:
    """Takes CUT_AFTER seconds: a consumer that does not finish with its item is cut."""
    valid = {"anna"}
    revocations = Revocations(lambda principal: principal.id in valid)

    async def items() -> AsyncGenerator[int]:
        with revocations.hold(ANNA) as hold:
            hold.leave()
            yield 1
            hold.enter()

    async with aclosing(items()) as stream:
        assert await anext(stream) == 1
        valid.clear()
        revocations.check()
        with pytest.raises(Unauthenticated):
            await anext(stream)
    valid.add("anna")

    async def consume() -> None:
        async with aclosing(items()) as stream:
            await anext(stream)
            await asyncio.Event().wait()

    task = asyncio.create_task(consume())
    await asyncio.sleep(0)
    valid.clear()
    revocations.check()
    at = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(60):
            await task
    assert time.monotonic() - at > CUT_AFTER / 2


async def test_a_credential_ends_at_its_expiry() -> None:
    with pytest.raises(Unauthenticated):
        async with asyncio.timeout(60):
            await wait(Revocations(), Principal("anna", expires=time.time() + 0.05))
