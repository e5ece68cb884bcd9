"""The skill for agents that use the client: SKILL.md of this package."""

from __future__ import annotations

from pathlib import Path

from bridge.client.failure import usage

SKILL = Path(__file__).parent / "skill" / "SKILL.md"
INSTALLED = Path(".agents/skills/coding-agent-bridge/SKILL.md")


def show_skill(*, install: bool, force: bool) -> int:
    """Print the skill, or copy it into the skills of the current directory. Raises ClientError."""
    text = SKILL.read_text("utf-8")
    if not install:
        print(text, end="")
        return 0
    try:
        changed = INSTALLED.exists() and INSTALLED.read_text("utf-8") != text
        if (changed or INSTALLED.is_symlink()) and not force:
            raise usage(f"{INSTALLED} is not the copy of this program: --force overwrites it")
        INSTALLED.parent.mkdir(parents=True, exist_ok=True)
        INSTALLED.write_text(text, "utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise usage(f"cannot write {INSTALLED}: {error}") from None
    print(f"Installed: {INSTALLED}")
    return 0
