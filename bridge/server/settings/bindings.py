"""The settings of the bindings beside HTTP: MCP and gRPC."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bridge.server.settings.sections import Section, prefixed
from bridge.server.settings.values import Port, Switch


class McpSettings(Section, alias_generator=prefixed("bridge_mcp_")):
    """MCP: the tools for clients of the Model Context Protocol, at /mcp."""

    mode: Switch = Field(default="auto", alias="bridge_mcp")
    """Whether the server has the address /mcp. auto: its library is imported at the first request;
    true: at the start; false: no."""
    approve: Literal["person", "model"] = "person"
    """The party that may approve a step of an agent. person: with a form of the MCP client, or with
    an A2A client; model: also the model that delegated, if its token has the scope `approve`."""
    forms: Literal["full", "quick"] = "full"
    """Forms for permissions. full: the options of the agent, refusals first; quick: one field
    for y (allow once), a (allow always) or n (deny)."""


class GrpcSettings(Section, alias_generator=prefixed("bridge_grpc_")):
    """gRPC: the port of the gRPC binding of A2A 1.0."""

    port: Port | None = None
    """TCP port of the gRPC binding; 0 = any free port. Unset: none. Requires the extra `grpc`."""
    host: str = "127.0.0.1"
    """Address of that port. An address that other machines can reach requires a certificate and
    tokens."""
    public_address: str | None = Field(default=None, pattern=r"^[^\s/]+:[0-9]{1,5}$")
    """HOST:PORT on the agent card, if clients use a proxy. Unset: the host of the card with this
    port; a port on loopback is only on the cards of local clients."""
    tls_cert: str | None = None
    """Path of a PEM file with the certificate chain. It is read again after a change."""
    tls_key: str | None = None
    """Path of a PEM file with the key of that certificate."""
