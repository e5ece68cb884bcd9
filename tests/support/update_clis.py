"""Raises the CLIs of the tests to their newest versions, and shows what changed:
`python -m tests.support.update_clis [PACKAGE…]`. A package that cannot be installed keeps its
version, and a CLI that fails in the matrix does not stop the others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import CHECKOUT
from tests.support.npm_lock import trim
from tests.support.real_clis import CLIS, FOLDERS

NPM = ("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
PIP = (str(CHECKOUT / ".venv/bin/pip"), "--disable-pip-version-check")
PYTEST = (sys.executable, "-m", "pytest", "-q", "-n", "0")


@dataclass(frozen=True, slots=True)
class Source:
    """A kind of dependencies: how to look up the newest version of a package, and how to try an
    installation after its version has changed in package.json."""

    newest: Callable[[str], str]
    install: Callable[[Path, str, str], None]


@dataclass(frozen=True, slots=True)
class Package:
    """A pinned package, in a kind of dependencies of `folder`/package.json."""

    name: str
    version: str
    kind: str
    folder: Path

    @property
    def files(self) -> tuple[Path, ...]:
        return self.folder / "package.json", self.folder / "package-lock.json"


def output_of(*command: str, folder: Path = CHECKOUT) -> str:
    return subprocess.run(
        command, cwd=folder, check=True, capture_output=True, text=True, timeout=1800
    ).stdout.strip()


def newest_of_pip(package: str) -> str:
    said = output_of(*PIP, "index", "versions", package.partition("[")[0], "--json")
    return str(json.loads(said)["latest"])


def install_npm(folder: Path, package: str, version: str) -> None:
    output_of(*NPM, "--omit-lockfile-registry-resolved", folder=folder)
    lock = folder / "package-lock.json"
    lock.write_text(trim(lock.read_text("utf-8")), "utf-8")


def install_pip(folder: Path, package: str, version: str) -> None:
    output_of(*PIP, "install", "--dry-run", "--ignore-installed", f"{package}=={version}")


OF_NPM = Source(lambda package: output_of("npm", "view", package, "version"), install_npm)
SOURCES = {
    "dependencies": OF_NPM,
    "optionalDependencies": OF_NPM,
    "pythonDependencies": Source(newest_of_pip, install_pip),
}


def packages(folders: Iterable[Path] = FOLDERS) -> Iterator[Package]:
    for folder in folders:
        pinned: dict[str, Any] = json.loads((folder / "package.json").read_text("utf-8"))
        for kind in SOURCES:
            for name, version in pinned.get(kind, {}).items():
                yield Package(name, version, kind, folder)


def raised(package: Package, source: Source) -> tuple[str, bool]:
    """What became of the package, and whether its version changed."""
    before = [file.read_text("utf-8") for file in package.files]
    try:
        newest = source.newest(package.name)
        if newest == package.version:
            return f"{package.name}: {package.version} is the newest", False
        pinned = json.loads(before[0])
        pinned[package.kind][package.name] = newest
        package.files[0].write_text(json.dumps(pinned, indent=2) + "\n", "utf-8")
        source.install(package.folder, package.name, newest)
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        for file, text in zip(package.files, before, strict=True):
            file.write_text(text, "utf-8")
        said = str(getattr(error, "stderr", None) or error).strip().splitlines()
        why = [line for line in said if "A complete log" not in line][-1:]
        return f"{package.name}: stays at {package.version}: {''.join(why)}", False
    return f"{package.name}: {package.version} → {newest}", True


def chosen(wanted: Sequence[str], known: Sequence[Package]) -> list[Package]:
    names = [package.name for package in known]
    for name in wanted:
        if name not in names:
            sys.exit(f"{name} is no package of the CLIs; there are: {', '.join(sorted(names))}")
    return [package for package in known if not wanted or package.name in wanted]


def passed(*command: str) -> bool:
    """Whether a command ends well, or pytest has no test to run."""
    return subprocess.run(command, cwd=CHECKOUT, check=False).returncode in (0, 5)


def main(wanted: Sequence[str]) -> None:
    changed = []
    for package in chosen(wanted, list(packages())):
        line, different = raised(package, SOURCES[package.kind])
        print(line, flush=True)
        changed += [package.name] * different
    if not changed:
        return
    names = [cli.name for cli in CLIS if cli.package in changed]
    steps = [
        ("scripts/install", "--clis"),
        *(
            (*PYTEST, "tests/real/test_matrix.py", "-k", f"[{name}]", *tier)
            for name in names
            for tier in ((), ("--soak",))
        ),
        (sys.executable, "-m", "tests.support.record_clis", *names),
        (sys.executable, "-m", "tests.support.documents"),
        (*PYTEST, "tests/unit/adapters/test_recordings.py", "tests/system/test_documents.py"),
    ]
    failed = [step for step in steps if not passed(*step)]
    for step in failed:
        print("failed:", *step)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main(sys.argv[1:])
