"""The settings of a command and their sources: flag, environment, --config, global file, default.

No .env file of the working directory is read: a repository could send a stored token to its own
server.
"""

from __future__ import annotations

import io
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dotenv import dotenv_values

from bridge.client.failure import usage
from bridge.client.values import SETTINGS, Setting

PREFIX = "A2ACLI_"


@dataclass(frozen=True, slots=True)
class Resolved:
    """A value, and the place that it comes from."""

    value: Any
    source: str


def resolve(flags: Mapping[str, Any], file: str | None = None) -> dict[str, Resolved]:
    """The value of each setting. `flags`: the values of the command line by name; None is ignored.
    `file`: the file of --config. Raises ClientError."""
    layers: list[tuple[str, Mapping[str, str | None]]] = [("environment", os.environ)]
    if file:
        layers.append((file, _read(Path(file))))
    shared = global_file()
    if shared.is_file():
        layers.append((str(shared), _read(shared)))
    return {name: _resolved(name, one, flags, layers) for name, one in SETTINGS.items()}


def _resolved(
    name: str,
    setting: Setting,
    flags: Mapping[str, Any],
    layers: list[tuple[str, Mapping[str, str | None]]],
) -> Resolved:
    if flags.get(name) is not None:
        return Resolved(flags[name], "flag")
    variable = PREFIX + name.upper()
    for source, values in layers:
        text = values.get(variable)
        if text:
            where = f"{source} {variable}" if source == "environment" else source
            return Resolved(_converted(variable, text, setting), where)
    return Resolved(setting.default, "default")


def _converted(variable: str, text: str, setting: Setting) -> Any:
    try:
        if setting.many:
            return tuple(setting.convert(one) for one in text.split(",") if one.strip())
        return setting.convert(text)
    except Exception as error:
        raise usage(f"{variable}: {error}") from None


def _read(path: Path) -> Mapping[str, str | None]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise usage(f"cannot read {path}: {error}") from None
    return dotenv_values(stream=io.StringIO(text), interpolate=False)


def global_file() -> Path:
    return Path(os.path.expanduser("~/.config/a2a-cli/.env"))


def credentials_file() -> Path:
    """The file with the tokens of `auth login`."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(home) / "coding-agent-bridge" / "credentials.json"


def description_files(reference: str | None = None) -> list[Path]:
    """The files in which servers of this user describe themselves, or which lead there. Without the
    `reference` of a server, only that of the state folder that the user has chosen, if any."""
    folder = chosen_state_folder()
    chosen = [folder / "server.json"] if folder else []
    if chosen and reference is None:
        return chosen
    return [*chosen, *sorted(state_home().glob("*/server.json"))]


def chosen_state_folder() -> Path | None:
    """The state folder that the user has chosen."""
    folder = os.environ.get("BRIDGE_STATE_DIR")
    return Path(folder).expanduser() if folder else None


def state_home() -> Path:
    """The folder with the state folders of servers."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state) / "coding-agent-bridge"


def bridge_url() -> str | None:
    """The address of the bridge for the command `mcp`."""
    return os.environ.get("BRIDGE_URL") or None


def environment(**changed: str) -> dict[str, str]:
    """The environment of a program that this one starts."""
    return {**os.environ, **changed}


def pager() -> list[str]:
    """The words of the pager's command."""
    return shlex.split(os.environ.get("PAGER", "")) or ["less"]


def is_dumb_terminal() -> bool:
    """Whether the terminal cannot move its cursor."""
    return os.environ.get("TERM", "dumb") in ("", "dumb")
