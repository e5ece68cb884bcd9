"""The lock files of npm."""

from __future__ import annotations

import json
from typing import Any


def trim(text: str) -> str:
    """The lock without the optional packages that npm did not find in its registry: `npm ci` would
    refuse the lock because they are missing."""
    lock: dict[str, Any] = json.loads(text)
    packages = lock["packages"]
    for place, package in packages.items():
        optional = package.get("optionalDependencies", {})
        for name in [name for name in optional if not _has(packages, place, name)]:
            del optional[name]
        if optional == {}:
            package.pop("optionalDependencies", None)
    return json.dumps(lock, indent=2) + "\n"


def _has(packages: dict[str, Any], place: str, name: str) -> bool:
    """Whether the package at `place` would find the other one: beside it or further up."""
    while True:
        if f"{place}/node_modules/{name}".lstrip("/") in packages:
            return True
        if not place:
            return False
        place = place.rpartition("/node_modules/")[0]
