"""The run of `coding-agent-bridge stdio`: a server whose only client is the parent process."""

from __future__ import annotations

import argparse
import asyncio
import os
import stat
from dataclasses import replace

from bridge.errors import ConfigurationError
from bridge.server.lifecycle.serve import serve
from bridge.server.operate.parent_process import ParentProcess
from bridge.server.settings.broker import redis_principals
from bridge.server.settings.constants import Constants
from bridge.server.settings.load import Loaded, load

NOT_SERVED = (
    "[tokens.{}] redis = true has no effect: the only client of this server is its parent process"
)


def run(options: argparse.Namespace, constants: Constants | None = None) -> int:
    """Serve the parent process until it closes stdin. Returns the exit status."""
    received, sent = take_descriptors()
    loaded = _loaded(options, constants)
    client = ParentProcess(
        loaded.settings,
        (received, sent),
        agent=options.agent,
        principal=options.principal,
        version=options.a2a_version,
    )
    log_pipe = silence(sent)
    try:
        return asyncio.run(serve(loaded, client=client))
    except ConfigurationError:  # main() prints it, before the first frame
        os.dup2(log_pipe, 2)
        raise


def take_descriptors() -> tuple[int, int]:
    """Copies of stdin and stdout. In their places are null and stderr, so that no other code reads
    requests or writes between answers."""
    received, sent = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return received, sent


def _loaded(options: argparse.Namespace, constants: Constants | None) -> Loaded:
    """The settings, without those of listeners. Tasks are in memory, unless there is a folder."""
    flags = {
        "host": "127.0.0.1",
        "port": "0",
        "bridge_auth": "none",
        "agent_adapter": options.adapter,
        "agent_repo_path": options.root,
        "config_file": options.config,
    }
    loaded = load(flags, options.env_file, constants)
    changes: dict[str, object] = {"bridge_unix_socket": None, "bridge_grpc_port": None}
    store = loaded.settings.store
    if store.state_dir is None and store.mode == "durable":
        changes["bridge_store"] = "memory"
    # It must not claim the prefix, which a server with the same CONFIG_FILE may need.
    tokens = loaded.settings.auth.tokens
    changes["tokens"] = {name: replace(one, redis=False) for name, one in tokens.items()}
    warnings = [*loaded.warnings, *map(NOT_SERVED.format, redis_principals(tokens))]
    return replace(loaded, settings=loaded.settings.updated(changes), warnings=warnings)


def silence(sent: int) -> int:
    """Drop the log if stderr is the pipe of stdout: the lines of a log would lie between frames, or
    in a long one. Returns a copy of stderr as it was."""
    before = os.dup(2)
    one, other = os.fstat(sent), os.fstat(2)
    same = (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
    if same and not stat.S_ISCHR(one.st_mode):
        null = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (1, 2):
            os.dup2(null, descriptor)
        os.close(null)
    return before
