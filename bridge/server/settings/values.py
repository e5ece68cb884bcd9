"""Types of settings: the written form of a value, its unit and its range."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from ipaddress import IPv6Address, ip_network
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from bridge.a2a.card_shapes import shapes
from bridge.auth.config import NAME, trusted_url
from bridge.auth.principal import Scope
from bridge.runtime.extension import ThoughtsFor


def _card_shape(value: str) -> str:
    if value not in shapes():
        raise ValueError(f"one of {', '.join(shapes())} is expected")
    return value


def _split(split: Callable[[str], list[str]]) -> BeforeValidator:
    """Splits a string; the values of a list in CONFIG_FILE stay unchanged."""
    return BeforeValidator(lambda value: split(value) if isinstance(value, str) else value)


def _host(value: str) -> str:
    """A host name or an address in the form that is compared: lower case, without brackets."""
    name = value.lower().removesuffix(".")
    if re.fullmatch(r"[a-z0-9._-]+", name):
        return name
    try:
        return str(IPv6Address(name[1:-1] if name.startswith("[") and name[-1] == "]" else name))
    except ValueError:
        text = "a host name or address is expected, without http://, port or wildcard"
        raise ValueError(text) from None


def _origin(value: str) -> str:
    """An origin in the form that browsers send: lower case, without the default port."""
    name = value.lower()
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?", name):
        raise ValueError("an origin such as https://example.org:8443 is expected, without a path")
    scheme = name.partition("://")[0]
    return name.removesuffix({"http": ":80", "https": ":443"}.get(scheme, " "))


def _network(value: str) -> str:
    try:
        return str(ip_network(value))
    except ValueError:
        raise ValueError("an address or a network such as 10.0.0.0/24 is expected") from None


def _switch(value: object) -> object:
    """A boolean of TOML as the word for it."""
    return str(value).lower() if isinstance(value, bool) else value


def _thoughts(value: object) -> object:
    """The words true and false are those of earlier versions."""
    return {"true": "always", "false": "request"}.get(str(_switch(value)), value)


def _jwks(value: str) -> str:
    return trusted_url(value) if "://" in value else value


def _store(value: str) -> str:
    if value in ("durable", "memory") or is_database(value):
        return value
    raise ValueError("durable, memory or a URL postgresql://… is expected")


def _port(value: object) -> object:
    return None if value == "none" else value


def _socket_path(value: str) -> str:
    return os.path.abspath(os.path.expanduser(value))


def is_database(store: str) -> bool:
    """Whether this value of BRIDGE_STORE is the URL of a database."""
    return store.startswith(("postgresql://", "postgres://"))


def _bus(value: str) -> str:
    if value == "notify" or value.startswith(("redis://", "rediss://", "unix://")):
        return value
    raise ValueError("notify or a URL redis://… or rediss://… is expected")


AgentId = Annotated[str, Field(pattern=NAME)]
Words = Annotated[tuple[str, ...], _split(shlex.split)]
"""Words of a command line; a string is split as a POSIX shell splits it."""
Paths = Annotated[
    tuple[str, ...], _split(lambda text: [path for path in text.split(os.pathsep) if path])
]
"""Paths; a string is split at `:`."""
_at_commas = _split(lambda text: text.replace(",", " ").split())
Names = Annotated[tuple[str, ...], _at_commas]
"""Names; a string is split at commas and white space."""
Hosts = Annotated[tuple[Annotated[str, AfterValidator(_host)], ...], _at_commas]
Origins = Annotated[tuple[Annotated[str, AfterValidator(_origin)], ...], _at_commas]
Networks = Annotated[tuple[Annotated[str, AfterValidator(_network)], ...], _at_commas]
Scopes = Annotated[tuple[Scope, ...], _at_commas]
CardShape = Annotated[str, AfterValidator(_card_shape)]
StorePlace = Annotated[str, AfterValidator(_store)]
BusPlace = Annotated[str, AfterValidator(_bus)]
NodeName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}:[A-Za-z0-9_.-]{1,64}$")]
Shares = Annotated[
    tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}(=/.*)?$")], ...],
    _split(lambda text: [one.strip() for one in text.split(",") if one.strip()]),
]
"""NAME or NAME=PATH; a string is split at commas."""
TrustedUrl = Annotated[str, AfterValidator(trusted_url)]
UrlOrFile = Annotated[str, AfterValidator(_jwks)]
Switch = Annotated[Literal["auto", "true", "false"], BeforeValidator(_switch)]
Thoughts = Annotated[ThoughtsFor, BeforeValidator(_thoughts)]
Port = Annotated[Annotated[int, Field(ge=0, le=65535)] | None, BeforeValidator(_port)]
"""A TCP port; None for the word none."""
SocketPath = Annotated[str, AfterValidator(_socket_path)]
"""An absolute path."""
Milliseconds = Annotated[int, Field(ge=0, le=2**31)]
"""A duration in ms, where 0 has a meaning of its own."""
Timeout = Annotated[int, Field(ge=1, le=2**31)]
"""A duration in ms, at least 1."""
LeaseTime = Annotated[int, Field(ge=2000, le=3_600_000)]
Limit = Annotated[int, Field(ge=0, le=2**62)]
"""A number, where 0 has a meaning of its own."""
Count = Annotated[int, Field(ge=1)]
"""A number, at least 1."""
