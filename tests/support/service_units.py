"""The program as pip installs it, and its command that writes the units of systemd."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests import CHECKOUT


def installed(folder: Path) -> Path:
    """A program of this name in a folder that may be missing."""
    path = folder / "coding-agent-bridge"
    folder.mkdir(exist_ok=True)
    path.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(CHECKOUT)!r})\n"
        "from bridge.cli.main import main\nsys.exit(main())\n"
    )
    path.chmod(0o755)
    return path


def install_service(program: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program), "install-service", *options],
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
