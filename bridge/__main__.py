"""The command line: `coding-agent-bridge [serve]`, `coding-agent-bridge record`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any

from bridge import __version__, registry
from bridge.errors import ConfigurationError
from bridge.recording import record
from bridge.server import serve
from bridge.settings import load

EXAMPLES = """\
examples:
  AGENT_ADAPTER=claude-code coding-agent-bridge          serve Claude Code in this directory
  coding-agent-bridge --adapter replay                   try it without any CLI or key
  coding-agent-bridge --adapter jsonl                    a program of yours (AGENT_BINARY)
  coding-agent-bridge card verify http://127.0.0.1:41242 --keys trusted.json
  coding-agent-bridge record talk.jsonl -- claude -p …   record a CLI, to replay it later

All settings are environment variables; README.md and .env.example list them.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 after an orderly stop, 1 if the server cannot run, 2 for wrong settings."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0].startswith("-"):
        arguments.insert(0, "serve")
    # What follows `--` is somebody else's command line and must not be parsed as ours.
    end = arguments.index("--") if "--" in arguments else len(arguments)
    if arguments[0] == "card":
        end = min(end, 2)  # the rest is the subcommand's
    options = _parser().parse_args(arguments[:end])
    try:
        if options.command == "card":
            return _card(options, arguments[2:])
        if options.command == "record":
            return _record(options, arguments[end + 1 :])
        return _serve(options)
    except ConfigurationError as error:
        print(f"coding-agent-bridge: {error}", file=sys.stderr)
        return 2


def _serve(options: argparse.Namespace) -> int:
    flags: dict[str, Any] = {
        "host": options.host,
        "port": options.port,
        "agent_adapter": options.adapter,
        "agent_repo_path": options.root,
        "bridge_token": options.token,
        "config_file": options.config,
    }
    return asyncio.run(serve(load(flags, options.env_file)))


def _card(options: argparse.Namespace, argv: Sequence[str]) -> int:
    signature = registry.optional("signature")
    if options.action == "verify":
        return int(signature.verify_command(argv))
    if len(argv) != 2:
        raise ConfigurationError("card new-key needs a kind and a name: new-key ES256 NAME")
    print(json.dumps({"keys": [signature.new_key(*argv)]}))
    return 0


def _record(options: argparse.Namespace, argv: Sequence[str]) -> int:
    if not argv:
        raise ConfigurationError("record needs a command: record FILE -- claude -p …")
    return record(options.file, argv, options.adapter)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="coding-agent-bridge")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)

    run = commands.add_parser(
        "serve",
        prog="coding-agent-bridge [serve]",
        description="Coding-agent CLIs behind the Agent2Agent protocol (0.3 and 1.0).",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("--host", help="address to listen on [HOST, 127.0.0.1]")
    run.add_argument("--port", help="port to listen on, 0 for a free one [PORT, 41242]")
    run.add_argument("--adapter", help="the agent: claude-code, jsonl, replay … [AGENT_ADAPTER]")
    run.add_argument("--root", help="workspace of the agent [AGENT_REPO_PATH, this directory]")
    run.add_argument("--token", help="bearer token that clients must send [BRIDGE_TOKEN]")
    run.add_argument("--config", help="TOML file with settings [CONFIG_FILE]")
    run.add_argument("--env-file", help="file with settings instead of ./.env")
    run.add_argument("--version", action="version", version=__version__)

    tape = commands.add_parser(
        "record",
        usage="coding-agent-bridge record [--adapter NAME] FILE -- COMMAND …",
        description="Run a CLI and write down all that passes through it. It takes the CLI's "
        "place, so a bridge can be pointed at it to record a session with a client.",
    )
    tape.add_argument("file", help="where to write the recording")
    tape.add_argument("--adapter", help="adapter that understands this CLI")
    card = commands.add_parser(
        "card",
        usage="coding-agent-bridge card {verify CARD --keys FILE | new-key KIND NAME}",
        description="Verify the signatures of an agent card, or make a key to sign one with "
        "(KIND: ES256 or HS256). Keep keys to yourself: umask 077.",
    )
    card.add_argument("action", choices=("verify", "new-key"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
