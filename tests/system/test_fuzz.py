"""Every fuzz target (tests/support/fuzzing.py) for a short while: what is good, what is good but
for a few bytes, and what is nothing at all. `scripts/fuzz` goes on where this ends."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.fuzzing import TARGETS, seeds

SOME = settings(
    max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


@pytest.mark.parametrize("name", list(TARGETS))
def test_nothing_breaks_it(name: str) -> None:
    good = seeds(name)
    for seed in good:
        TARGETS[name](seed)

    @SOME
    @given(
        st.binary(max_size=400) | st.builds(spoilt, st.sampled_from(good), st.integers(0, 2**32))
    )
    @example(b"")
    def fuzz(data: bytes) -> None:
        TARGETS[name](data)

    fuzz()


def spoilt(seed: bytes, chance: int) -> bytes:
    """`seed` with a few pieces of it changed, doubled, moved or lost."""
    dice = random.Random(chance)
    data = bytearray(seed)
    for _ in range(dice.randrange(1, 6)):
        at, size = dice.randrange(len(data) + 1), dice.choice((0, 1, 1, 2, 8, 60))
        piece = bytes(data[at : at + size])
        data[at : at + size] = dice.choice(
            (b"", piece * 2, piece[::-1], dice.randbytes(size), b"null", b'"', b"\n", b"[" * size)
        )
    return bytes(data)
