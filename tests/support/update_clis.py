"""Raises the versions in tests/clis/package.json to the newest, and the lock file with them:
`python -m tests.support.update_clis [PACKAGE…]`."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests import CHECKOUT

FOLDER = CHECKOUT / "tests" / "clis"
PINNED = FOLDER / "package.json"


def newest_of_npm(package: str) -> str:
    said = subprocess.run(
        ["npm", "view", package, "version"], check=True, capture_output=True, text=True
    )
    return said.stdout.strip()


def newest_of_pip(package: str) -> str:
    command = [sys.executable, "-m", "pip", "index", "versions", package, "--json"]
    said = subprocess.run(command, check=True, capture_output=True, text=True)
    return str(json.loads(said.stdout)["latest"])


KINDS = {
    "dependencies": newest_of_npm,
    "optionalDependencies": newest_of_npm,
    "pythonDependencies": newest_of_pip,
}


def main(wanted: list[str]) -> None:
    pinned: dict[str, Any] = json.loads(PINNED.read_text("utf-8"))
    known = {package for kind in KINDS for package in pinned[kind]}
    for package in wanted:
        if package not in known:
            sys.exit(f"{package} is not in {PINNED.name}; there are: {', '.join(sorted(known))}")
    for kind, newest in KINDS.items():
        for package, version in pinned[kind].items():
            if not wanted or package in wanted:
                pinned[kind][package] = newest(package)
                print(f"{package}: {version} → {pinned[kind][package]}")
    PINNED.write_text(json.dumps(pinned, indent=2) + "\n", "utf-8")
    lock = ["npm", "install", "--package-lock-only", "--ignore-scripts", "--no-audit", "--no-fund"]
    subprocess.run([*lock, "--omit-lockfile-registry-resolved"], cwd=FOLDER, check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
