"""The log of a process on stderr."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from bridge.server.settings.load import Loaded
from bridge.telemetry.log_context import context
from bridge.telemetry.logging import JsonFormatter, TextFormatter

log = logging.getLogger(__name__)


def log_as(loaded: Loaded) -> None:
    """Log by these settings from now on: LOG_LEVEL, LOG_FORMAT, and the secrets to redact."""
    server = loaded.settings.server
    configure_logging(
        server.log_level,
        loaded.secrets.clean,
        form=server.log_format,
        journal=loaded.stderr_is_journal,
    )


def configure_logging(
    level: str,
    clean: Callable[[str], str] = str,
    *,
    form: str = "text",
    journal: bool = False,
) -> None:
    """Log to stderr, in the format `form`: text or json. `clean` redacts secrets from each line.
    `journal`: journald reads stderr."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = JsonFormatter if form == "json" else TextFormatter
    handler.setFormatter(formatter(clean, context, priorities=journal))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.captureWarnings(True)  # these, and errors without a handler, are lines of the log
    sys.unraisablehook = _log_unraisable
    logging.getLogger("aiohttp").setLevel(max(logging.getLevelName(level), logging.WARNING))


def _log_unraisable(error: sys.UnraisableHookArgs) -> None:
    text = error.err_msg or "an exception was ignored"
    if error.exc_value:
        log.error(text, exc_info=error.exc_value)
