"""Adapter classes of other authors: each error names the file, the line and the remedy."""

from __future__ import annotations

import inspect
import os
import re
import traceback
from collections.abc import Callable
from typing import Any

from bridge.adapter import Adapter
from bridge.auth.config import NAME
from bridge.errors import ConfigurationError


def imported(name: str, load: Callable[[], Any]) -> Any:
    """The result of `load`, which imports the code of the adapter `name`. Raises
    ConfigurationError for an exception of that code, and ModuleNotFoundError."""
    try:
        return load()
    except (ModuleNotFoundError, ConfigurationError):
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{frames[-1].filename}:{frames[-1].lineno}"
        if isinstance(error, SyntaxError):
            place = f"{error.filename}:{error.lineno}"
        text = f"cannot import the adapter {name!r}: {type(error).__name__}: {error} ({place})"
        raise ConfigurationError(text) from error


def checked(found: object, name: str) -> type[Adapter]:
    """The class `found`, which `name` names. Raises ConfigurationError for another object, and for
    a class that cannot serve an agent."""
    if not (isinstance(found, type) and issubclass(found, Adapter)):
        raise ConfigurationError(f"{name!r} is not a subclass of bridge.adapter.Adapter.")
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        lacks = " and ".join(f"{one}()" for one in missing)
        raise ConfigurationError(f"{_place(found)} has no {lacks}, which every adapter needs.")
    for member in ("name", "title"):
        if not isinstance(getattr(found, member, None), str):
            text = f"{_place(found)} has no {member}: add `{member} = …` to the class."
            raise ConfigurationError(text)
    if not re.fullmatch(NAME, found.name.replace(":", "-")):
        text = f"{_place(found)}: name = {found.name!r}: use letters, digits, `.`, `_` and `-`."
        raise ConfigurationError(text)
    return found


def _place(found: type[Adapter]) -> str:
    """The class for people, with its file and line."""
    try:
        file, line = inspect.getsourcefile(found) or "", inspect.getsourcelines(found)[1]
    except (OSError, TypeError):
        return f"the class {found.__name__}"
    return f"the class {found.__name__} ({os.path.basename(file)}:{line})"
