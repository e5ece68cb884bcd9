"""The parts of the documents that are generated from the code; `python -m tests.support.documents`
writes them."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

from bridge.sandbox.credentials import SHOWN
from bridge.sandbox.homes import resolve
from bridge.server.settings.root import SECTIONS, VARIABLES
from tests import CHECKOUT
from tests.support import (
    blast_radius,
    client_compliance,
    client_matrix,
    matrix,
    mcp_clients,
    mcp_conformance,
    metrics_table,
    system_calls,
)
from tests.support.real_clis import CLAUDE_CODE

AGENTS = CHECKOUT / "docs/agents.md"
SETTINGS = CHECKOUT / "docs/settings.md"
CLIENTS = CHECKOUT / "docs/integrations.md"
MCP = CHECKOUT / "docs/mcp.md"
METRICS = CHECKOUT / "docs/observability.md"
SECURITY = CHECKOUT / "docs/security.md"
ATTEMPTS = CHECKOUT / "docs/evidence/security.md"
CALLS = CHECKOUT / "docs/evidence/system-calls.md"
DEPLOY = CHECKOUT / "docs/deploy.md"
ENV_EXAMPLE = CHECKOUT / ".env.example"
HEAD = """\
# Settings of coding-agent-bridge. Copy this file, and name the copy: coding-agent-bridge --env-file
# FILE. Without --env-file, the server reads .env in its start directory if only you can have
# written it, and takes numbers and harmless settings from it, but no programs, sandbox,
# credentials or paths (docs/settings.md). Each line shows the default.
"""


def help_texts() -> dict[str, dict[str, str]]:
    """The string below each field of each section, by class and field."""
    files = sorted({inspect.getsourcefile(kind) or "" for kind in SECTIONS.values()})
    classes = [one for file in files for one in ast.parse(Path(file).read_text("utf-8")).body]
    return {
        one.name: {
            field.target.id: " ".join(text.value.value.split())
            for field, text in zip(one.body, one.body[1:], strict=False)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            if isinstance(text.value.value, str)
        }
        for one in classes
        if isinstance(one, ast.ClassDef)
    }


def variables() -> Iterator[tuple[str, list[tuple[str, object, str]]]]:
    """For each section its title and its variables: name, default and help text."""
    texts = help_texts()
    for kind in SECTIONS.values():
        rows = [
            (field.alias.upper(), field.default, texts[kind.__name__][name])
            for name, field in kind.model_fields.items()
            if field.alias in VARIABLES
        ]
        yield inspect.getdoc(kind) or "", rows


def settings_tables() -> str:
    """The tables of docs/settings.md: a row for each variable."""
    lines = []
    for title, rows in variables():
        lines.append(f"\n## {title.rstrip('.')}\n")
        lines += ["| setting | default | meaning |", "|---|---|---|"]
        for name, default, text in rows:
            value = f"`{shown(default)}`" if shown(default) else ""
            lines.append(f"| `{name}` | {value} | {text} |")
    return "\n".join(lines) + "\n"


def env_example() -> str:
    """The whole of .env.example."""
    blocks = [HEAD]
    for title, rows in variables():
        blocks.append(f"# --- {title.rstrip('.')} ---\n")
        for name, default, text in rows:
            lines = textwrap.wrap(text, 96, initial_indent="# ", subsequent_indent="# ")
            blocks.append("\n".join([*lines, f"#{name}={shown(default)}", ""]))
    return "\n".join(blocks)


def shown(default: object) -> str:
    """A default as it is written in an environment variable."""
    if default is None or default == ():
        return ""
    if isinstance(default, tuple):
        return ", ".join(default)
    return str(default).lower() if isinstance(default, bool) else str(default)


def with_settings(settings: str) -> str:
    """`settings` with today's tables of settings."""
    return _with(settings, {"settings": settings_tables()})


def with_matrix(agents: str) -> str:
    """`agents` with today's matrix of CLIs."""
    return _with(agents, {"matrix": matrix.table(matrix.promised())})


def with_version(deploy: str) -> str:
    """`deploy` with the version of Claude Code that the tests drive, for the image."""
    package = CLAUDE_CODE.package
    return re.sub(rf"{package}@[\d.]+", f"{package}@{CLAUDE_CODE.version}", deploy)


def with_blast_radius(security: str) -> str:
    """`security` with the generated tables: the attempts of a hostile CLI that succeed, and the
    paths of the home that agents read."""
    return _with(security, {"blast radius": blast_radius.table(True), "shown": shown_paths()})


def with_attempts(evidence: str) -> str:
    """`evidence` with the attempts of a hostile CLI that fail in a sandbox."""
    return _with(evidence, {"blast radius": blast_radius.table(False)})


def shown_paths() -> str:
    """The table of the private paths that agents read."""
    lines = ["| shown | paths |", "|---|---|"]
    for row in SHOWN:
        paths = ", ".join(f"`{resolve(one, {'HOME': '~'})}`" for one in row.paths)
        lines.append(f"| {row.what} | {paths} |")
    return "\n".join(lines) + "\n"


def with_calls(page: str) -> str:
    """`page` with today's table of system calls."""
    return _with(page, {"calls": system_calls.table()})


def with_metrics(metrics: str) -> str:
    """`metrics` with today's table of metrics."""
    return _with(metrics, {"metrics": metrics_table.table()})


def with_clients(clients: str) -> str:
    """`clients` with today's matrix of clients."""
    return _with(clients, {"matrix": client_matrix.table()})


def with_compliance(page: str) -> str:
    """`page` with today's table of the client's compliance."""
    return _with(page, {"compliance": client_compliance.table()})


def with_mcp(mcp: str) -> str:
    """`mcp` with today's configurations and matrix of MCP clients, and the scenarios of the
    conformance suite."""
    tables = {
        "configurations": mcp_clients.configurations(),
        "matrix": mcp_clients.table(),
        "conformance": mcp_conformance.table(),
    }
    return _with(mcp, tables)


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
    METRICS.write_text(with_metrics(METRICS.read_text("utf-8")), "utf-8")
    MCP.write_text(with_mcp(MCP.read_text("utf-8")), "utf-8")
    CLIENTS.write_text(with_clients(CLIENTS.read_text("utf-8")), "utf-8")
    SECURITY.write_text(with_blast_radius(SECURITY.read_text("utf-8")), "utf-8")
    ATTEMPTS.write_text(with_attempts(ATTEMPTS.read_text("utf-8")), "utf-8")
    CALLS.write_text(with_calls(CALLS.read_text("utf-8")), "utf-8")
    DEPLOY.write_text(with_version(DEPLOY.read_text("utf-8")), "utf-8")
    page = client_compliance.PAGE
    page.write_text(with_compliance(page.read_text("utf-8")), "utf-8")
    client_compliance.REPORT.write_text(client_compliance.report(), "utf-8")
