"""The credentials of the configuration, and their principals: tokens, users of the Unix socket and
names at Redis."""

from __future__ import annotations

import os
import pwd
import re
import secrets
from dataclasses import replace

from bridge.auth.config import NAME, AuthConfig
from bridge.auth.principal import OPERATOR, RESERVED, Principal, Token, Tokens, digest
from bridge.errors import ConfigurationError
from bridge.errors.program import command

_TOKEN, _USER, _REDIS = "token:", "uid:", "redis:"
"""The kinds of Principal.proof, before the digest of a token, a user id and a name."""


def tokens_of(config: AuthConfig, operator: str | None = None) -> Tokens:
    """All configured tokens. `operator`: the token in the state folder."""
    own = [_with_proof(digest(one), OPERATOR) for one in (operator, config.operator_token) if one]
    return Tokens([*own, *(one for item in config.tokens.items() for one in _known(*item))])


def _known(name: str, token: Token) -> list[tuple[bytes, Principal]]:
    if not all(re.fullmatch("sha256:[0-9a-f]{64}", one) for one in token.hashes):
        text = f"must be sha256:<64 hex digits>. Run `{command('token')}` to create a token"
        raise ConfigurationError(f"[tokens.{name}] hash {text}.")
    _check_name(name)
    principal = replace(token.principal(name), expires=token.until)
    digests = [bytes.fromhex(one.removeprefix("sha256:")) for one in token.hashes]
    return [_with_proof(one, principal) for one in digests]


def _with_proof(known: bytes, principal: Principal) -> tuple[bytes, Principal]:
    return known, replace(principal, proof=f"{_TOKEN}{known.hex()}")


def users_of(config: AuthConfig) -> dict[int, Principal]:
    """The principals of users on the Unix socket, by uid. Raises ConfigurationError."""
    own = os.geteuid()
    found = {own: replace(OPERATOR, proof=f"{_USER}{own}")} if config.same_user else {}
    for name, grant in config.unix_users.items():
        uid, table = _uid_of(name), f"[unix_users.{name}]"
        _check_name(name, "unix_users")
        if name in config.tokens:
            raise ConfigurationError(f"{table} and [tokens.{name}] have the same name.")
        if uid == own:
            text = "names the user of the server, which is the operator. Remove this table"
            raise ConfigurationError(f"{table} {text}.")
        if uid in found:
            raise ConfigurationError(f"{table} and [unix_users.{found[uid].id}] are one user.")
        found[uid] = replace(grant.principal(name), proof=f"{_USER}{uid}")
    return found


def redis_users_of(config: AuthConfig) -> dict[str, Principal]:
    """The principals that may send requests through Redis, by name."""
    return {
        name: replace(token.principal(name), proof=f"{_REDIS}{name}", expires=token.until)
        for name, token in config.tokens.items()
        if token.redis
    }


def _uid_of(name: str) -> int:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        if name.isascii() and name.isdigit() and int(name) < 2**32 - 1:
            return int(name)
        raise ConfigurationError(f"[unix_users.{name}]: unknown user {name}.") from None


def _check_name(name: str, table: str = "tokens") -> None:
    """Raise ConfigurationError for a reserved name."""
    if name == OPERATOR.id:
        raise ConfigurationError(f"[{table}.{name}] is reserved for BRIDGE_TOKEN.")
    if name in RESERVED:
        text = "is reserved for the server itself in the audit log. Choose another name."
        raise ConfigurationError(f"[{table}.{name}] {text}")


def new_token(name: str) -> str:
    """A token for `name`, and its table of CONFIG_FILE. Raises ConfigurationError."""
    if not re.fullmatch(NAME, name):
        text = "1 to 128 letters, digits, `.`, `_` and `-`, beginning with a letter or digit"
        raise ConfigurationError(f"Invalid token name {name!r}. Use {text}.")
    _check_name(name)
    key = f'"{name}"' if "." in name else name  # a dot in a bare TOML key begins a subtable
    token = secrets.token_urlsafe(32)
    return f'{token}\n\n[tokens.{key}]\nhash = "sha256:{digest(token).hex()}"\n'
