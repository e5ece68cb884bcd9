"""Renews bridge/server/acp_registry.json, the copy of the public ACP registry: `python -m
scripts.acp_registry`, or with `FILE DATE` from a file of the registry that is of that date."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from urllib.request import urlopen

from bridge.server.acp_registry import COPY, Registry

ADDRESS = "https://cdn.agentclientprotocol.com/registry/v1/latest/registry.json"
MOST = 4 << 20  # bytes
WITHIN = 30.0  # seconds


def download() -> bytes:
    with urlopen(ADDRESS, timeout=WITHIN) as answer:
        found: bytes = answer.read(MOST + 1)
    if len(found) > MOST:
        sys.exit(f"{ADDRESS} has more than {MOST} bytes")
    return found


def copy_of(content: bytes, date: str) -> str:
    """The copy: the members that the bridge uses, after a check. Raises ValidationError."""
    found = Registry.model_validate({"date": date, "agents": json.loads(content)["agents"]})
    agents = sorted(found.agents, key=lambda agent: agent.id)
    copy = found.model_copy(update={"agents": tuple(agents)})
    return json.dumps(copy.model_dump(mode="json", exclude_defaults=True), indent=1) + "\n"


def main(words: list[str]) -> None:
    if words:
        path, date = words
        content = Path(path).read_bytes()
    else:
        content, date = download(), datetime.now(UTC).date().isoformat()
    COPY.write_text(copy_of(content, date), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
