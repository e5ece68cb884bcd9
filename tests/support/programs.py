"""Skips for a program that is not installed.

Each has a reason that begins with MISSING. scripts/install installs these programs, so that CI
(`CI=true`) counts such a skip as a failure: see tests/conftest.py."""

from __future__ import annotations

import shutil

import pytest

MISSING = "missing program: "


def first_of(*programs: str) -> str | None:
    """The path of the first one that is installed."""
    return next(filter(None, map(shutil.which, programs)), None)


def missing(program: str) -> str:
    return f"{MISSING}{program}; scripts/install installs it"


def needed(*programs: str) -> pytest.MarkDecorator:
    """Skips a test unless one of the programs is installed."""
    return pytest.mark.skipif(first_of(*programs) is None, reason=missing(programs[0]))


def require(name: str, path: str | None = None) -> None:
    """Skip the running test unless this program is installed."""
    if shutil.which(name, path=path) is None:
        pytest.skip(missing(name))
