"""The run of `coding-agent-bridge stdio --url U | --local`: a running server answers the parent
process."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Any
from urllib.parse import quote

from bridge.cli.mcp.connections import Connections
from bridge.cli.mcp.finder import Address, BridgeFinder
from bridge.cli.stdio import silence, take_descriptors
from bridge.client.bindings import HttpRequest
from bridge.client.connection import HttpConnection
from bridge.client.credentials import Credentials, origin_of
from bridge.client.failure import AUTH_FAILED, CREDENTIALS_MISSING, ClientError, usage
from bridge.errors import Unauthenticated, Unavailable
from bridge.server.operate.parent_pipes import ParentPipes

LONGEST = 32 * 2**20  # bytes of a request, as by default of a server
STALL = 30.0  # seconds
ENDS_WITHIN = 5.0  # seconds for the answers after the end of stdin
_OF_SERVERS = ("principal", "host", "port", "adapter", "root", "token_file", "config", "env_file")


def run_proxy(options: argparse.Namespace) -> int:
    """Forward the requests of the parent process until it closes stdin. Returns the exit status.
    Raises ClientError if no server is found."""
    _check(options)
    finder = BridgeFinder(os.getcwd(), url=options.url, starts=False)
    asyncio.run(_found(finder))
    pipes = take_descriptors()
    silence(pipes[1])
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    return asyncio.run(_forward(options, finder, pipes))


def _check(options: argparse.Namespace) -> None:
    if options.url and options.local:
        raise usage("use --url or --local, not both")
    for name in _OF_SERVERS:
        if getattr(options, name) is not None:
            flag = "as" if name == "principal" else name.replace("_", "-")
            raise usage(f"--{flag} is for a server of its own, not with --url or --local")


async def _found(finder: BridgeFinder) -> Address:
    return await finder.find()


async def _forward(
    options: argparse.Namespace, finder: BridgeFinder, descriptors: tuple[int, int]
) -> int:
    pipes = ParentPipes(
        descriptors, options.a2a_version, longest=LONGEST, stall=STALL, wait=ENDS_WITHIN
    )
    async with Connections() as connections:
        server = _RunningServer(finder, connections, options.agent)
        pipes.forward(server.post)
        leaving = asyncio.create_task(pipes.left())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, leaving.cancel)
        with suppress(asyncio.CancelledError):
            await leaving
        return await pipes.end(0.1)


class _RunningServer:
    """The server that `finder` finds, at each request again: it may have another address after a
    restart. `agent`: the id of an agent; None: the default one."""

    def __init__(self, finder: BridgeFinder, connections: Connections, agent: str | None) -> None:
        self._finder = finder
        self._connections = connections
        self._path = f"/agents/{quote(agent, safe='')}" if agent else ""

    async def post(
        self, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncGenerator[tuple[str | None, Any]]:
        """The events of the answer, as ForwardedAnswers needs them."""
        try:
            address = await self._finder.find()
            url = f"{address.url}{self._path}/a2a/jsonrpc"
            sent = {"Content-Type": "application/json", **headers}
            events = self._connection(address).events(HttpRequest("POST", url, dict(body)), sent)
            async with aclosing(events) as answer:
                async for _, event in answer:
                    yield event
        except ClientError as error:
            refused = error.code in (AUTH_FAILED, CREDENTIALS_MISSING)
            raise (Unauthenticated if refused else Unavailable)(str(error)) from None

    def _connection(self, address: Address) -> HttpConnection:
        credentials = None
        if address.token:
            origin = origin_of(address.url)
            credentials = Credentials(origin, "the local server", bearer=address.token)
        return HttpConnection(
            self._connections.through(address.socket),
            {},
            secret_headers={},
            credentials=credentials,
            api_key=("header", ""),
        )
