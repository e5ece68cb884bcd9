"""The body of a request as JSON."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import streams
from aiohttp.base_protocol import BaseProtocol
from aiohttp.test_utils import make_mocked_request

from bridge import errors
from bridge.transports.json_body import read_json


async def test_a_connection_that_ended_before_the_read_is_an_incomplete_body() -> None:
    """A protocol that was never connected is one whose connection has ended."""
    ended = BaseProtocol(asyncio.get_running_loop())
    body = streams.StreamReader(ended, 2**16)
    headers = {"Content-Type": "application/json", "Content-Length": "10"}
    request = make_mocked_request("POST", "/", headers=headers, payload=body)
    with pytest.raises(errors.ParseError, match="incomplete"):
        await read_json(request)
