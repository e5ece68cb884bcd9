"""Agent cards: from a reference to a card, and from a card to the binding of a request."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from bridge.a2a import NEWEST, OLDEST
from bridge.client.bindings import Binding, JsonRpcBinding, RestBinding
from bridge.client.credentials import is_loopback, socket_of
from bridge.client.failure import CARD_INVALID, CARD_NOT_FOUND, ClientError
from bridge.client.shapes import EXTENSION, Json

WELL_KNOWN = "/.well-known/agent-card.json"
LOCALHOST = "http://localhost"
"""The base of URLs on a Unix socket."""
_TEXTS = ("name", "description", "version")
_LISTS = ("defaultInputModes", "defaultOutputModes", "skills")


@dataclass(frozen=True, slots=True)
class Interface:
    url: str
    binding: str
    version: str
    tenant: str | None = None


class AgentCard:
    """A card of any version. `url`: the address that it was read from; None for a file. Raises
    ClientError for a card without an interface."""

    def __init__(self, content: Any, url: str | None = None) -> None:
        if not isinstance(content, dict):
            raise ClientError(CARD_INVALID, "the agent card is not a JSON object")
        self.content: Json = content
        self.url = url
        self.interfaces = tuple(dict.fromkeys(_interfaces(content)))
        if not self.interfaces:
            raise ClientError(CARD_INVALID, "the agent card declares no interface")

    def has(self, capability: str) -> bool:
        """Whether the agent has the capability `streaming`, `pushNotifications` or
        `extendedAgentCard`."""
        capabilities = self.content.get("capabilities")
        if capability == "extendedAgentCard" and self.content.get(
            "supportsAuthenticatedExtendedCard"
        ):
            return True
        return isinstance(capabilities, dict) and capabilities.get(capability) is True

    @property
    def is_bridge(self) -> bool:
        """Whether the agent has the extension of this bridge."""
        capabilities = self.content.get("capabilities")
        found = capabilities.get("extensions") if isinstance(capabilities, dict) else None
        return any(isinstance(one, dict) and one.get("uri") == EXTENSION for one in found or ())

    @property
    def api_key(self) -> tuple[str, str]:
        """The place of an API key, and its name there."""
        schemes = self.content.get("securitySchemes")
        for one in schemes.values() if isinstance(schemes, dict) else ():
            found = one.get("apiKeySecurityScheme", one) if isinstance(one, dict) else {}
            place = found.get("location") or found.get("in")
            if place and found.get("name"):
                return str(place), str(found["name"])
        return "header", "X-API-Key"

    def select(self, transports: Sequence[str], version: str | None) -> Binding:
        """The binding of the first interface that the client speaks. `transports`: the preferred
        bindings, the best one first; the others follow in the order of the card. `version`: the
        chosen one; None: 1.0 only. Raises ClientError."""
        wanted = version or NEWEST
        usable = [one for one in self.interfaces if _speaks(one, wanted)]
        order = {name: rank for rank, name in reversed(list(enumerate(transports)))}
        usable.sort(key=lambda one: order.get(one.binding, len(order)))
        if not usable:
            raise self._no_interface(wanted)
        best = usable[0]
        if best.binding == RestBinding.name:
            return RestBinding(best.url, best.tenant)
        return JsonRpcBinding(best.url, best.tenant, wanted)

    def _no_interface(self, wanted: str) -> ClientError:
        offered = ", ".join(sorted({f"{one.binding} {one.version}" for one in self.interfaces}))
        text = f"no interface of the card has A2A {wanted} over JSONRPC or HTTP+JSON: {offered}"
        if wanted == NEWEST and any(_speaks(one, OLDEST) for one in self.interfaces):
            text = f"the agent has A2A {OLDEST} only"
            return ClientError("VersionNotSupportedError", text, hint=f"--a2a-version {OLDEST}")
        return ClientError("VersionNotSupportedError", text)


def _speaks(interface: Interface, version: str) -> bool:
    if version == OLDEST:
        return interface.version.startswith(OLDEST) and interface.binding == JsonRpcBinding.name
    bindings = (JsonRpcBinding.name, RestBinding.name)
    return interface.version.partition(".")[0] == "1" and interface.binding in bindings


def _interfaces(content: Mapping[str, Any]) -> Iterator[Interface]:
    """The interfaces of a card of 1.0, and those of a card of 0.3."""
    for one in _objects(content.get("supportedInterfaces")):
        if isinstance(one.get("url"), str):
            binding = str(one.get("protocolBinding", ""))
            version = str(one.get("protocolVersion") or NEWEST)
            yield Interface(one["url"], binding, version, one.get("tenant") or None)
    old = content.get("protocolVersion")  # such as 0.3.0
    if isinstance(content.get("url"), str) and isinstance(old, str):
        yield Interface(content["url"], content.get("preferredTransport") or "JSONRPC", old[:3])
        for one in _objects(content.get("additionalInterfaces")):
            if isinstance(one.get("url"), str):
                yield Interface(one["url"], str(one.get("transport", "")), old[:3])


def _objects(value: Any) -> Iterator[Json]:
    yield from (one for one in value if isinstance(one, dict)) if isinstance(value, list) else ()


def problems(content: Mapping[str, Any]) -> list[str]:
    """The differences between a card and the schema of A2A 1.0."""
    found = [f"{name}: must be a text" for name in _TEXTS if not isinstance(content.get(name), str)]
    found += [
        f"{name}: must be a list" for name in _LISTS if not isinstance(content.get(name), list)
    ]
    if not isinstance(content.get("capabilities"), dict):
        found.append("capabilities: must be an object")
    found += _missing(content, "supportedInterfaces", ("url", "protocolBinding", "protocolVersion"))
    if not content.get("supportedInterfaces"):
        found.append("supportedInterfaces: must have at least one interface")
    return found + _missing(content, "skills", ("id", "name", "description", "tags"))


def _missing(content: Mapping[str, Any], name: str, members: Sequence[str]) -> list[str]:
    return [
        f"{name}[{index}].{member}: is missing"
        for index, one in enumerate(content.get(name) or ())
        for member in members
        if not (isinstance(one, dict) and one.get(member) is not None)
    ]


def address_of(reference: str) -> str | None:
    """The URL of a card; None if the reference is a file. On a Unix socket (unix:PATH), the host is
    localhost."""
    if socket_of(reference):
        url = LOCALHOST
    elif reference.startswith(("http://", "https://")):
        url = reference
    elif reference.startswith("file:") or "://" in reference or Path(reference).is_file():
        return None
    elif reference.startswith((".", "/", "~")):
        return None
    else:
        url = f"//{reference}"
        url = f"{'http' if is_loopback(url) else 'https'}:{url}"
    return url if urlsplit(url).path.strip("/") else url.rstrip("/") + WELL_KNOWN


def read_file(reference: str) -> AgentCard:
    """The card in a file. Raises ClientError."""
    path = unquote(urlsplit(reference).path) if reference.startswith("file:") else reference
    try:
        text = Path(path).expanduser().read_bytes()
    except OSError as error:
        problem = f"cannot read the agent card {reference}: {error.strerror}"
        raise ClientError(CARD_NOT_FOUND, problem) from None
    try:
        return AgentCard(json.loads(text))
    except ValueError as error:
        raise ClientError(CARD_INVALID, f"{reference} is not JSON: {error}") from None
