"""The texts of errors for requests that are not authenticated: the cause, and the next step."""

from __future__ import annotations

import shlex
from ipaddress import ip_address
from pathlib import Path

_SEND = "Send a token: `Authorization: Bearer TOKEN`."
_CAUSES = {
    "missing": f"This request has no credentials. {_SEND}",
    "unknown": "The server does not know this token.",
    "expired": "This token has expired.",
    "revoked": "This token was withdrawn.",
    "signature": "No key of the provider fits the signature of this token.",
    "audience": "This token is for another audience.",
    "other_uid": f"The operator has not admitted this user of the Unix socket. {_SEND}",
    "forwarded": f"A proxy has sent this request, so its user is not known. {_SEND}",
    "agent_process": f"This process may belong to an agent of the server. {_SEND}",
}
_ASK = " The operator of the server makes tokens: `coding-agent-bridge token NAME`."


def advice(cause: str, token_file: Path | None) -> str:
    """`token_file`: that of the operator, for a client that may be told its path."""
    if token_file is None:
        return _CAUSES[cause] + _ASK
    path = shlex.quote(str(token_file))
    step = f'The operator\'s token is in a file: curl -H "Authorization: Bearer $(cat {path})"'
    return f"{_CAUSES[cause]} {step}"


def is_loopback(address: str | None) -> bool:
    try:
        return ip_address((address or "").partition("%")[0]).is_loopback
    except ValueError:
        return False
