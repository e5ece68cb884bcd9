"""Hypothesis strategies for JSON and for the events of a task."""

from __future__ import annotations

from hypothesis import strategies as st

TEXT = st.text(max_size=12)


MAYBE_TEXT = st.none() | TEXT


INTEGERS = st.integers(-(2**63), 2**64 - 1)  # those of orjson


SCALARS = (
    st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False, allow_infinity=False) | TEXT
)


JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


OBJECT = st.dictionaries(TEXT, JSON, max_size=2)


METADATA = st.none() | OBJECT
