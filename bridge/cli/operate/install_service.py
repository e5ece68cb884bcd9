"""The units of systemd, with the path of this program: `coding-agent-bridge install-service`."""

from __future__ import annotations

import os
import re
from pathlib import Path

from bridge.errors import ConfigurationError
from bridge.errors.program import absolute

TEMPLATE = "/opt/coding-agent-bridge/bin/coding-agent-bridge"
"""The path of the program in the files."""
SYSTEM = (
    *("coding-agent-bridge@.service", "coding-agent-bridge@.socket"),
    *("coding-agent-bridge-backup@.service", "coding-agent-bridge-backup@.timer"),
)
USER = "coding-agent-bridge.service"
KEEP, KEEP_PLACE = "keep.conf", "coding-agent-bridge@.service.d"
_PLAIN = re.compile(r"/[A-Za-z0-9/._+-]+")
_HIDDEN = ("/home/", "/root/", "/run/user/", "/tmp/", "/var/tmp/")  # noqa: S108 - by ProtectHome and PrivateTmp
_NEXT = """\
systemctl daemon-reload
then, for each group of people NAME, as docs/deploy.md describes: the user cab-NAME, the files
NAME.toml and NAME.token in /etc/coding-agent-bridge, and
systemctl enable --now coding-agent-bridge@NAME"""
_NEXT_USER = """\
write ~/.config/coding-agent-bridge/config.toml with the line: agent_repo_path = "/your/workspace"
systemctl --user daemon-reload
systemctl --user enable --now coding-agent-bridge"""


def install_service(*, user: bool, keep: bool, folder: str | None) -> int:
    """Write the units and print their paths and the next steps. `user`: a unit for the systemd of
    this user, instead of those of the system. `keep`: also the drop-in by which CLIs survive a
    restart. `folder`: instead of the folder that systemd reads. Raises ConfigurationError."""
    if user and keep:
        raise ConfigurationError("--keep is for the system's unit: use it without --user.")
    program = _program(user)
    place = Path(folder) if folder else _place(user)
    texts = {name: _template(name) for name in ((USER,) if user else SYSTEM)}
    if keep:
        texts[f"{KEEP_PLACE}/{KEEP}"] = _template(KEEP)
    for name, text in texts.items():
        path = place / name
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            path.write_text(text.replace(TEMPLATE, program), "utf-8")
            path.chmod(0o644)
        except OSError as error:
            step = "run this as root, or use --user" if not user and os.geteuid() else "use --to"
            raise ConfigurationError(f"cannot write {path}: {error.strerror}; {step}") from None
        print(path)
    print(_NEXT_USER if user else _NEXT)
    return 0


def _place(user: bool) -> Path:
    return Path("~/.config/systemd/user").expanduser() if user else Path("/etc/systemd/system")


def _program(user: bool) -> str:
    """The absolute path of this program, as a unit can contain it."""
    line = list(absolute())
    path = line[0]
    if len(line) > 1:
        text = "install the program first: python3 -m venv FOLDER; FOLDER/bin/pip install …"
        raise ConfigurationError(f"units need the path of an installed program; {text}")
    if not _PLAIN.fullmatch(path):
        text = "has characters with a meaning in units; install the program at another path"
        raise ConfigurationError(f"the path {path} {text}.")
    if not user and path.startswith(_HIDDEN):
        text = "is hidden from the service (ProtectHome=, PrivateTmp=); install it below /opt"
        raise ConfigurationError(f"the program {path} {text}.")
    return path


def _template(name: str) -> str:
    """The text of a file of deploy/systemd, which is inside this package in an installation and
    beside it in a checkout."""
    package = Path(__file__).parents[2]
    for folder in (package, package.parent):
        path = folder / "deploy/systemd" / name
        if path.is_file():
            return path.read_text("utf-8")
    raise ConfigurationError("The folder `deploy/systemd` is missing in this installation.")
