"""`coding-agent-bridge card verify`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from bridge.a2a.canonical_card import SignatureError
from bridge.a2a.signing import MAX_BYTES, judge, parse_json
from bridge.errors import ConfigurationError
from bridge.server.extras import load_card_keys, read_file

FETCH_WITHIN = 10.0  # seconds
WELL_KNOWN = "/.well-known/agent-card.json"


def verify_command(argv: Sequence[str]) -> int:
    """Print a verdict for each signature. Exit status: 0 if one counts, 1 if none does, 2 if the
    card or the keys are not available."""
    parser = argparse.ArgumentParser(
        prog="coding-agent-bridge card verify",
        description="Verify each signature of an agent card. Exit status: 0 if one is good, 1 if "
        "none is, 2 if the card or the keys are not available.",
    )
    parser.add_argument("card", metavar="URL_OR_FILE", help="a card, or the address of its server")
    parser.add_argument(
        "--keys", metavar="FILE", type=Path, required=True, help="JWK Set of the trusted keys"
    )
    options = parser.parse_args(argv)
    try:
        verdicts = judge(read_card(options.card), load_card_keys(options.keys, signing=False))
    except (ConfigurationError, SignatureError) as error:
        print(f"coding-agent-bridge: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigurationError) else 1
    for verdict in verdicts:
        print(f"{verdict.kid} {verdict.alg}: {verdict.says}")
    return 0 if any(verdict.counts for verdict in verdicts) else 1


def read_card(place: str) -> dict[str, Any]:
    """The card at a URL or in a file. Raises ConfigurationError."""
    if place.startswith(("http://", "https://")):
        data = asyncio.run(fetch(place))
    else:
        data, _ = read_file(Path(place), MAX_BYTES)
    try:
        card = parse_json(data)
    except SignatureError as error:
        raise ConfigurationError(f"{place} has no card: {error}") from None
    if not isinstance(card, dict):
        raise ConfigurationError(f"{place} has no card: it is not a JSON object.")
    return card


async def fetch(address: str, within: float = FETCH_WITHIN) -> bytes:
    """The document at a URL, or the card of the server for a URL without a path. `within`: seconds
    for the whole answer. Raises ConfigurationError."""
    data = bytearray()
    try:
        if urlsplit(address).path in ("", "/") and not urlsplit(address).query:
            address = address.rstrip("/") + WELL_KNOWN
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=within)) as session,
            session.get(address, max_redirects=3) as response,
        ):
            if response.status != 200:
                raise ConfigurationError(f"{address} answers {response.status}.")
            async for chunk in response.content.iter_chunked(65536):
                data += chunk
                if len(data) > MAX_BYTES:
                    raise ConfigurationError(f"{address} is larger than {MAX_BYTES} bytes.")
    except TimeoutError:
        raise ConfigurationError(f"{address} did not answer within {within:g} s.") from None
    except (aiohttp.ClientError, ValueError) as error:
        raise ConfigurationError(f"Cannot fetch {address}: {error}") from None
    return bytes(data)
