"""The rules for push notification configs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from bridge.errors import InvalidParams
from bridge.push import egress
from bridge.push.signature import PREFIX, SCHEME, SHORTEST, key_of, signs
from bridge.store.changes import PushConfig

CONFIGS_PER_TASK = 10
MAX_CREDENTIALS = 8192  # characters: room for signed tokens
_ID = re.compile(r"[!-~]{1,128}")  # it is part of a header
_SCHEME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")  # a token (RFC 9110 §11.1)
_SECRET = re.compile(r"[!-~](?:[ -~]*[!-~])?")  # no HTTP implementation changes such a value


def check(config: PushConfig, known: Collection[str], allow_private: bool) -> None:
    """Raise InvalidParams for an invalid config, a forbidden URL, or one config too many. An empty
    id is valid. `known`: the ids of the configs of its task."""
    if config.id and not _ID.fullmatch(config.id):
        raise _invalid("id", "must be 1 to 128 printable ASCII characters without spaces")
    egress.check_url(config.url, allow_private)
    if config.scheme and not _SCHEME.fullmatch(config.scheme):
        raise _invalid("scheme", "must be the name of an HTTP authentication scheme")
    if config.credentials and not config.scheme:
        raise _invalid("scheme", "is missing")
    for name, secret in (("token", config.token), ("credentials", config.credentials)):
        if secret and not (_SECRET.fullmatch(secret) and len(secret) <= MAX_CREDENTIALS):
            limits = f"up to {MAX_CREDENTIALS} printable ASCII characters, no space at the ends"
            raise _invalid(name, f"must be {limits}")
    if signs(config):
        _check_secret("credentials", config.credentials or "", SHORTEST)
    else:
        _check_secret("token", config.token or "", 0)
    if config.id not in known and len(known) >= CONFIGS_PER_TASK:
        raise InvalidParams(f"A task has at most {CONFIGS_PER_TASK} push notification configs.")


def _check_secret(name: str, secret: str, least: int) -> None:
    """Raise InvalidParams for a secret that cannot sign."""
    try:
        enough = len(key_of(secret)) >= least
    except ValueError:
        raise _invalid(name, f"must have base64 behind {PREFIX}") from None
    if not enough:
        raise _invalid(name, f"must have at least {least} bytes for {SCHEME}")


def repeated(config: PushConfig, known: Iterable[PushConfig]) -> PushConfig | None:
    """The config of the task that a repetition without an id means: the one with its URL."""
    same = (one for one in known if one.url == config.url)
    return None if config.id else next(same, None)


def _invalid(name: str, problem: str) -> InvalidParams:
    return InvalidParams(f"The push notification config's {name} {problem}.", [(name, problem)])
