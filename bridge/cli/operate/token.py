"""The commands `token NAME`, `token list` and `token revoke NAME`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from bridge.auth.credentials import new_token
from bridge.auth.principal import SCOPES
from bridge.cli.operate.local import ask, problem_of
from bridge.client.failure import ClientError
from bridge.errors import ConfigurationError
from bridge.task.text import one_line

_UNITS = {"m": "minutes", "h": "hours", "d": "days"}
_LONGEST = timedelta(days=3660)


def make(name: str, expires: str | None, scopes: str | None) -> int:
    """Print the table of a new token for CONFIG_FILE on stdout, and the token on stderr. Raises
    ConfigurationError."""
    token, _, table = new_token(name).partition("\n\n")
    if expires:
        table += f"expires = {_end(expires, datetime.now(UTC))}\n"
    if scopes:
        named = ", ".join(f'"{one}"' for one in _scopes(scopes))
        table += f"scopes = [{named}]\n"
    _warn_of_tasks(name)
    print(table, end="")
    print(token, file=sys.stderr)
    return 0


def _end(given: str, now: datetime) -> str:
    """The time in RFC 3339 after a duration such as 90d."""
    found = re.fullmatch("([0-9]{1,6})([mhd])", given)
    left = timedelta(**{_UNITS[found[2]]: int(found[1])}) if found else timedelta()
    if not timedelta() < left <= _LONGEST:
        raise ConfigurationError(f"--expires {given}: use a duration such as 90d, 12h or 30m.")
    return f"{(now + left).replace(microsecond=0, tzinfo=None).isoformat()}Z"


def _scopes(given: str) -> Sequence[str]:
    chosen = [one for one in re.split("[, ]+", given) if one]
    unknown = sorted(set(chosen) - SCOPES)
    if unknown or not chosen:
        known = ", ".join(sorted(SCOPES))
        raise ConfigurationError(f"--scopes {given}: the scopes are {known}.")
    return list(dict.fromkeys(chosen))


def _warn_of_tasks(name: str) -> None:
    """A principal owns the tasks of earlier principals with its name."""
    try:
        status, answer = ask("GET", f"/admin/tokens/{quote(name)}")
    except ClientError:
        return  # no server runs
    if status == 200 and answer.get("tasks") and not answer.get("configured"):
        text = f"{answer['tasks']} tasks of an earlier principal {name} will belong to this token"
        print(f"coding-agent-bridge: warning: {text}", file=sys.stderr)


def show_all(url: str | None) -> int:
    """Print the tokens that the server accepts. Returns the exit status."""
    answer = _answer("GET", "/admin/tokens", url)
    if answer is None:
        return 1
    rows = [("NAME", "SCOPES", "EXPIRES", "LAST USE")]
    for one in answer["tokens"]:
        end = f"{one['expires']} (expired)" if one["expired"] else one["expires"] or "never"
        name = one["name"] if one["table"] == "tokens" else f"{one['name']} (user)"
        rows.append((name, ",".join(one["scopes"]), end, one["lastUse"] or "-"))
    widths = [max(len(row[at]) for row in rows) for at in range(3)]
    for row in rows:
        cells = [row[at].ljust(widths[at]) for at in range(3)]
        print(one_line("  ".join([*cells, row[3]])).rstrip())
    return 0


def revoke(name: str, url: str | None, *, cancel: bool) -> int:
    """Reload the server. Its CONFIG_FILE must not have the token any more. `cancel`: also end the
    open tasks of the principal. Returns the exit status."""
    if _answer("POST", "/admin/reload", url) is None:
        return 1
    found = _answer("GET", f"/admin/tokens/{quote(name)}", url)
    if found is None:
        return 1
    if found["configured"]:
        text = f"{name} is still configured: remove its table from CONFIG_FILE, then repeat this"
        print(f"coding-agent-bridge: {text}", file=sys.stderr)
        return 1
    print(f"{name} has no access")
    if cancel:
        ended = _answer("POST", f"/admin/tokens/{quote(name)}/cancel", url)
        if ended is None:
            return 1
        print(f"canceled tasks: {ended['canceled']}")
    return 0


def _answer(method: str, path: str, url: str | None) -> Any:
    """The answer of the server; None after an error, which is printed."""
    try:
        status, answer = ask(method, path, url)
    except ClientError as error:
        print(f"coding-agent-bridge: {error}", file=sys.stderr)
        return None
    if status != 200:
        text = one_line(problem_of(status, answer))
        print(f"coding-agent-bridge: {text}", file=sys.stderr)
        return None
    return answer
