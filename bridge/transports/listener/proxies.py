"""Reverse proxies that the operator trusts: the client that they name counts as the peer."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address, ip_network

from aiohttp import web

_SCHEMES = ("http", "https")


class Proxies:
    """`trusted`: addresses or networks (CIDR) of proxies. Raises ValueError for others."""

    def __init__(self, trusted: Iterable[str] = ()) -> None:
        self._trusted = [ip_network(one) for one in trusted]

    def seen(self, request: web.Request) -> web.Request:
        """The request with the last address of X-Forwarded-For as its peer and X-Forwarded-Proto as
        its scheme, if a trusted proxy has sent it; otherwise the same request. A value that is not
        an address or a scheme does not count."""
        if not self._trusted or not self._trusts(request.remote):
            return request
        changed: dict[str, str] = {}
        client = self._last(request, "X-Forwarded-For")
        if client and _is_address(client):
            changed["remote"] = client
        scheme = self._last(request, "X-Forwarded-Proto").lower()
        if scheme in _SCHEMES:
            changed["scheme"] = scheme
        if not changed:
            return request
        changed.setdefault("remote", request.remote or "")
        return request.clone(**changed)  # type: ignore[arg-type]

    def _trusts(self, peer: str | None) -> bool:
        if not peer or not _is_address(peer):
            return False
        address = ip_address(peer.partition("%")[0])
        return any(address in one for one in self._trusted)

    @staticmethod
    def _last(request: web.Request, name: str) -> str:
        """The last value, which the nearest proxy has added."""
        given = request.headers.getall(name, [])
        return given[-1].rpartition(",")[2].strip() if given else ""


def _is_address(text: str) -> bool:
    try:
        ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True
