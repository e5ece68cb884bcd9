"""How the process of a CLI ended, and the text for a turn that it did not finish."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LAST_WORDS = 2000  # characters of stderr in the failure of a CLI that ended
LAST_LINE = 6000  # characters of its last line, if that is longer: below the limit of a failure
_SIGXFSZ = 25


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How the process ended: `code` as subprocess gives it (negative: killed by that signal),
    and the last bytes of its stderr as text. `limit`: the limit of its control group that ended it:
    "memory", "processes"."""

    code: int
    stderr: str = ""
    limit: str | None = None

    @property
    def exceeded(self) -> str | None:
        """The exceeded limit, if it is known."""
        return "file size" if self.code == -_SIGXFSZ else self.limit

    def __str__(self) -> str:
        return f"signal {-self.code}" if self.code < 0 else f"exit status {self.code}"


def explain_exit(title: str, status: ExitStatus) -> tuple[str, str, dict[str, Any]]:
    """The text, reason and details of a Failed for a process that ended too early."""
    tail = _last_lines(status.stderr.strip())
    text = f"{title} ended before it had answered ({status})."
    text += f" Its last words: {tail}" if tail else " It said nothing on stderr."
    details: dict[str, Any] = {"exitCode": status.code, "stderr": tail}
    if status.exceeded:
        text = f"{title} exceeded a limit of the server ({status.exceeded}). {text}"
        return text, "limit", {**details, "limit": status.exceeded}
    return text, "exit", details


def _last_lines(words: str) -> str:
    """The end of a program's stderr: whole lines, up to LAST_WORDS characters. The last line, which
    most often has the reason, is complete up to LAST_LINE characters."""
    if len(words) <= LAST_WORDS:
        return words
    end = words[-LAST_WORDS:]
    last = words.rpartition("\n")[2]
    return last[-LAST_LINE:] if len(last) >= LAST_WORDS else end.partition("\n")[2]
