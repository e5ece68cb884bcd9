"""The settings of a server that is the first process of a container. The container ends with it,
and so do all CLIs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bridge.errors import ConfigurationError
from bridge.server.settings.root import Settings
from bridge.server.token_file import NAME, open_token
from bridge.store.sqlite.database import private_directory


def is_container() -> bool:
    """Whether this process is the first one of its PID namespace."""
    return os.getpid() == 1


def check_container(settings: Settings) -> None:
    """Raise ConfigurationError for a setting that cannot work in a container."""
    if is_container() and settings.server.on_stop == "keep":
        raise ConfigurationError(
            "BRIDGE_ON_STOP=keep has no effect as the first process of a container (PID 1): all "
            "CLIs end with it. Unset it. After a restart, the next message resumes a conversation."
        )


def make_token(given: Mapping[str, Any], warnings: list[str]) -> None:
    """Make the operator token in BRIDGE_STATE_DIR, if it is the file of BRIDGE_TOKEN_FILE, is
    missing, and this is a container: other containers and machines reach it, so that it needs a
    token at its first start. `warnings` get the path. Raises ConfigurationError."""
    folder, path = given.get("bridge_state_dir"), given.get("bridge_token_file")
    if not (is_container() and folder and path):
        return
    state = Path(folder).expanduser().resolve()
    file = Path(path).expanduser()
    if file.name != NAME or file.parent.resolve() != state or file.exists():
        return
    try:
        private_directory(state)
    except OSError as error:
        raise ConfigurationError(f"cannot use {state}: {error.strerror}") from error
    open_token(state, state)
    warnings.append(f"made a token for clients; it is in the file {state / NAME}")
