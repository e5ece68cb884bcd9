"""Credentials of origins: where each one may be sent, and the file that stores them."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bridge.client.failure import CREDENTIALS_MISSING, ClientError, usage

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_PORTS = {"http": 80, "https": 443}


UNIX = "unix:"
"""The beginning of a reference to a Unix socket; its path follows."""


def socket_of(reference: str) -> str | None:
    """The absolute path of the Unix socket of a reference unix:PATH; None for any other."""
    if not reference.startswith(UNIX):
        return None
    return os.path.abspath(os.path.expanduser(reference.removeprefix(UNIX)))


def origin_of(url: str) -> str:
    """`scheme://host:port`, or unix:PATH. Raises ClientError for a URL without a host."""
    if path := socket_of(url):
        return UNIX + path
    parts = urlsplit(url)
    try:
        port = parts.port or _PORTS[parts.scheme]
    except (ValueError, KeyError):
        raise usage(f"{url!r} is not an http or https address") from None
    if not parts.hostname:
        raise usage(f"{url!r} has no host")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port}"


def is_loopback(url: str) -> bool:
    return urlsplit(url).hostname in _LOOPBACK


@dataclass(frozen=True, slots=True)
class Credentials:
    """A bearer token or an API key of one origin. `source`: where it comes from, for people."""

    origin: str
    source: str
    bearer: str | None = None
    api_key: str | None = None

    def check(self, url: str) -> None:
        """Raises ClientError if the connection to `url` would not be private."""
        if urlsplit(url).scheme != "https" and not is_loopback(url):
            text = f"credentials are not sent over http to {origin_of(url)}; use https"
            raise ClientError(CREDENTIALS_MISSING, text)


class CredentialStore:
    """The tokens of `auth login`, by origin, in a file of mode 0600."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def tokens(self) -> dict[str, str]:
        """Raises ClientError if other users can access the file."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise _unusable(self.path, str(error.strerror)) from None
        with open(fd, encoding="utf-8") as file:
            found = os.fstat(fd)
            if found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise _unusable(self.path, "other users can access it")
            try:
                stored = json.load(file)["bearer"]
                return {str(origin): str(token) for origin, token in stored.items()}
            except (ValueError, LookupError, TypeError, AttributeError):
                raise _unusable(self.path, "its content is not valid") from None

    def save(self, tokens: Mapping[str, str]) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self.path.with_name(f"{self.path.name}.{secrets.token_hex(8)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(draft, flags, 0o600), "w", encoding="utf-8") as file:
            json.dump({"bearer": dict(tokens)}, file, indent=1)
            file.write("\n")
        draft.replace(self.path)


def _unusable(path: Path, reason: str) -> ClientError:
    text = f"the credentials in {path} are not used: {reason}"
    return ClientError(CREDENTIALS_MISSING, text, hint=f"chmod 600 {path}")
