"""The gRPC port of a server, and its address on the cards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bridge.auth.authentication import Identity
from bridge.auth.config import LOOPBACK
from bridge.errors import ConfigurationError
from bridge.server.app.sites import ServedAgent
from bridge.server.extras import grpc_server
from bridge.server.operate.port_users import reason
from bridge.server.operate.ports import Ports
from bridge.server.settings.root import Settings
from bridge.transports.grpc.request import GrpcAgent

if TYPE_CHECKING:
    from bridge.transports.grpc.server import GrpcServer


@dataclass(frozen=True, slots=True)
class GrpcPlace:
    """The gRPC port for cards. `host` and `port`: of its listener. `public`: HOST:PORT that
    replaces them. `default`: the id of the agent that needs no tenant."""

    host: str
    port: int
    public: str | None
    default: str

    def url(self, address: str) -> str | None:
        """The URL on the card for clients that reach the server at the HTTP URL `address`; None if
        they cannot reach the gRPC port."""
        if self.public:
            return self.public
        named = urlsplit(address).hostname or ""
        listener = ip_address(self.host)
        if listener.is_loopback and named not in LOOPBACK:
            return None
        own = listener.is_loopback or (named in LOOPBACK and not listener.is_unspecified)
        host = self.host if own else named
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


def _bound(settings: Settings, ports: Ports) -> GrpcServer | None:
    port = settings.grpc.port
    if port is None:
        return None
    try:
        return ports.bind(port, lambda number: grpc_server(settings, number))
    except OSError as error:
        text = f"cannot listen on {error.filename}: {reason(error, port)}"
        raise ConfigurationError(
            f"{text}. Set another BRIDGE_GRPC_PORT or BRIDGE_GRPC_HOST."
        ) from None


class GrpcPort:
    """The port of BRIDGE_GRPC_PORT, which is bound and does not serve yet, or no port. `default`:
    the id of the agent that needs no tenant. Requires a running event loop. Raises
    ConfigurationError."""

    def __init__(self, settings: Settings, default: str, ports: Ports) -> None:
        self._server = _bound(settings, ports)
        self._public_url = settings.server.public_url
        self._base = ""
        self._agents: dict[str, GrpcAgent] = {}
        public = settings.grpc.public_address
        server = self._server
        self.place = GrpcPlace(server.host, server.port, public, default) if server else None

    @property
    def address(self) -> str | None:
        """HOST:PORT of the listener."""
        return self._server.address if self._server else None

    @property
    def lines(self) -> Sequence[str]:
        """The line of the banner, if there is a port."""
        return [f"  grpc       {self.address}"] if self._server else []

    async def serve(
        self,
        root: ServedAgent,
        agents: Sequence[ServedAgent],
        base: str,
        identity: Identity,
        ready: Callable[[], bool],
    ) -> None:
        """Serve the agents. `base`: the URL of the HTTP port. The health service reports whether
        the server is `ready`."""
        if self._server is None:
            return
        self._base = base
        self.change(root, agents, self._public_url)
        await self._server.start(self._agents, identity, ready)

    def change(
        self, root: ServedAgent, agents: Sequence[ServedAgent], public_url: str | None
    ) -> None:
        """Serve these agents from the next call on."""
        base = (public_url or self._base).rstrip("/")
        places = [("", base, root), *((one.id, f"{base}/agents/{one.id}", one) for one in agents)]
        self._agents.clear()
        for tenant, address, one in places:
            self._agents[tenant] = GrpcAgent(one.operations, address)

    @property
    def cut(self) -> int:
        """The number of clients that were cut because they did not read."""
        return self._server.cut if self._server else 0

    def drain(self) -> None:
        """Answer new calls with Unavailable from now on; open calls continue."""
        if self._server:
            self._server.drain()

    async def stop(self, grace: float) -> None:
        """End the open calls after at most `grace` seconds, and close the port."""
        if self._server:
            await self._server.stop(grace)
