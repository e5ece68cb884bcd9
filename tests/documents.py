"""The parts of the documents that are generated from the code; `python -m tests.documents`
writes them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

from bridge.server.settings import NAMES, Settings
from tests import blast_radius, client_matrix, matrix

CHECKOUT = Path(__file__).parent.parent
README = CHECKOUT / "README.md"
AGENTS = CHECKOUT / "docs/agents.md"
SETTINGS = CHECKOUT / "docs/settings.md"
CLIENTS = CHECKOUT / "docs/clients.md"
SECURITY = CHECKOUT / "docs/security.md"
ENV_EXAMPLE = CHECKOUT / ".env.example"
FIELDS = {name: field for name, field in Settings.model_fields.items() if name in NAMES}
HEAD = """\
# Settings of coding-agent-bridge. Copy to .env where you start the server (not into the workspace
# of the agent: from there it is not read). Every line shows the default.
"""


def settings_table() -> str:
    """The table of docs/settings.md: a row for each setting."""
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    for name, field in FIELDS.items():
        default = f"`{shown(field.default)}`" if shown(field.default) else ""
        rows.append(f"| `{name.upper()}` | {default} | {field.description} |")
    return "\n".join(rows) + "\n"


def env_example() -> str:
    """The whole of .env.example."""
    blocks = [HEAD]
    for name, field in FIELDS.items():
        lines = textwrap.wrap(
            field.description or "", 96, initial_indent="# ", subsequent_indent="# "
        )
        blocks.append("\n".join([*lines, f"#{name.upper()}={shown(field.default)}", ""]))
    return "\n".join(blocks)


def shown(default: object) -> str:
    """A default as it is written in an environment variable."""
    if default is None or default == ():
        return ""
    if isinstance(default, tuple):
        return ", ".join(default)
    return str(default).lower() if isinstance(default, bool) else str(default)


def with_settings(settings: str) -> str:
    """`settings` with today's table of settings."""
    return _with(settings, {"settings": settings_table()})


def with_matrix(agents: str) -> str:
    """`agents` with today's matrix of CLIs."""
    return _with(agents, {"matrix": matrix.table(matrix.promised())})


def with_blast_radius(security: str) -> str:
    """`security` with today's table of what a hostile CLI can do."""
    return _with(security, {"blast radius": blast_radius.table()})


def with_clients(clients: str) -> str:
    """`clients` with today's matrix of clients."""
    return _with(clients, {"matrix": client_matrix.table()})


def _with(page: str, tables: Mapping[str, str]) -> str:
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = f"{before}{begin}{table}{end}{after}"
    return page


if __name__ == "__main__":
    SETTINGS.write_text(with_settings(SETTINGS.read_text("utf-8")), "utf-8")
    AGENTS.write_text(with_matrix(AGENTS.read_text("utf-8")), "utf-8")
    ENV_EXAMPLE.write_text(env_example(), "utf-8")
    CLIENTS.write_text(with_clients(CLIENTS.read_text("utf-8")), "utf-8")
    SECURITY.write_text(with_blast_radius(SECURITY.read_text("utf-8")), "utf-8")
