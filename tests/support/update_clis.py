"""Raises the CLIs of the tests to their newest versions, and shows what changed:
`python -m tests.support.update_clis [PACKAGE…]`. A package that cannot be had keeps its version, and
a CLI that fails in the matrix does not stop the others."""

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
KINDS = ("dependencies", "optionalDependencies")


@dataclass(frozen=True, slots=True)
class Package:
    """A pinned package. `install` makes its version the given one in `file`; `files` are those that
    it changes."""

    name: str
    version: str
    files: tuple[Path, ...]
    newest: Callable[[str], str]
    install: Callable[[Path, str, str], None]


def output_of(*command: str, folder: Path = CHECKOUT) -> str:
    return subprocess.run(
        command, cwd=folder, check=True, capture_output=True, text=True, timeout=1800
    ).stdout.strip()


def newest_of_npm(package: str) -> str:
    return output_of("npm", "view", package, "version")


def newest_of_pip(package: str) -> str:
    said = output_of(*PIP, "index", "versions", package, "--json")
    return str(json.loads(said)["latest"])


def install_npm(file: Path, package: str, version: str) -> None:
    pinned = json.loads(file.read_text("utf-8"))
    for kind in KINDS:
        if package in pinned.get(kind, {}):
            pinned[kind][package] = version
    file.write_text(json.dumps(pinned, indent=2) + "\n", "utf-8")
    output_of(*NPM, "--omit-lockfile-registry-resolved", folder=file.parent)
    lock = file.with_name("package-lock.json")
    lock.write_text(trim(lock.read_text("utf-8")), "utf-8")


def install_pip(file: Path, package: str, version: str) -> None:
    output_of(*PIP, "install", "--dry-run", "--ignore-installed", f"{package}=={version}")
    file.write_text(f"{package}=={version}\n", "utf-8")


def packages(folders: Iterable[Path] = FOLDERS) -> Iterator[Package]:
    for folder in folders:
        file = folder / "package.json"
        pinned: dict[str, Any] = json.loads(file.read_text("utf-8"))
        files = (file, folder / "package-lock.json")
        for kind in KINDS:
            for name, version in pinned.get(kind, {}).items():
                yield Package(name, version, files, newest_of_npm, install_npm)
        for path in sorted(folder.glob("requirements-*.txt")):
            if path.name != "requirements-node.txt":
                name, _, version = path.read_text("utf-8").strip().partition("==")
                yield Package(name, version, (path,), newest_of_pip, install_pip)


def raised(package: Package) -> tuple[str, bool]:
    """What became of the package, and whether its version changed."""
    before = [file.read_text("utf-8") for file in package.files]
    try:
        newest = package.newest(package.name)
        if newest == package.version:
            return f"{package.name}: {package.version} is the newest", False
        package.install(package.files[0], package.name, newest)
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        for file, text in zip(package.files, before, strict=True):
            file.write_text(text, "utf-8")
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        return f"{package.name}: stays at {package.version}: {said[-1] if said else error}", False
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
        line, different = raised(package)
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
