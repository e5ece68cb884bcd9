"""The format of the server's log."""

from __future__ import annotations

import logging
from collections.abc import Callable

_RECORD_MEMBERS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class KeyValueFormatter(logging.Formatter):
    """One line per record: time, level, logger, message, then key=value pairs with escaped values.
    `clean` redacts secrets from the line."""

    def __init__(self, clean: Callable[[str], str]) -> None:
        super().__init__()
        self._clean = clean

    def format(self, record: logging.LogRecord) -> str:
        extra = {k: v for k, v in vars(record).items() if k not in _RECORD_MEMBERS}
        if record.exc_info:
            extra["exception"] = self.formatException(record.exc_info)
        pairs = "".join(f" {name}={str(value)!r}" for name, value in extra.items())
        head = f"{self.formatTime(record)} {record.levelname.lower()} {record.name}"
        return self._clean(f"{head} {record.getMessage()!r}{pairs}")
