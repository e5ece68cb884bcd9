"""The arguments of the commands of the server. Those of the client: bridge/cli/client/arguments.py.
It imports no library, so that help and usage errors are quick."""

from __future__ import annotations

import argparse

from bridge import __version__
from bridge.cli.client.arguments import EXAMPLES as CLIENT_EXAMPLES
from bridge.cli.client.arguments import add_commands
from bridge.cli.client.parser import PROGRAM, ExamplesFormatter, PlainParser

EXAMPLES = f"""\
examples:
  AGENT_ADAPTER=claude-code coding-agent-bridge          serve Claude Code in this directory
  coding-agent-bridge --adapter replay                   try it without any CLI or key
  coding-agent-bridge --adapter jsonl                    serve your own program (AGENT_BINARY)
  coding-agent-bridge doctor                             check this machine and its CLIs
  coding-agent-bridge adapters                           list the adapters and their abilities
  coding-agent-bridge card verify http://127.0.0.1:41242 --keys trusted.json
  coding-agent-bridge record talk.jsonl -- claude -p …   record a CLI, to replay it later

commands for tasks (`coding-agent-bridge help` lists all):
{CLIENT_EXAMPLES}
commands for operators:
  coding-agent-bridge health --ready                     ask whether the server takes new tasks
  coding-agent-bridge token ci --expires 90d             make a token
  coding-agent-bridge reload                             apply a changed configuration
  coding-agent-bridge servers                            list the running servers
  coding-agent-bridge stop                               stop the one for this directory
  coding-agent-bridge backup DIR                         save the tasks, also while they run
  coding-agent-bridge install-service                    write the units of systemd

All settings are environment variables; docs/settings.md and .env.example list them.
docs/deploy.md describes a server for other people: tokens, systemd, containers, proxies.
"""


def server_parser(complete: bool = False) -> PlainParser:
    """The parser of the server's commands. `complete`: also of the client's, for help only."""
    parser = PlainParser(prog=PROGRAM)
    commands = parser.add_subparsers(dest="command", metavar="command", required=True, prog=PROGRAM)
    if complete:
        add_commands(commands)

    settings = _settings_parser()
    run = commands.add_parser(
        "serve",
        help="serve agents (the default command)",
        prog="coding-agent-bridge [serve]",
        description="Coding-agent CLIs behind the Agent2Agent protocol (0.3 and 1.0).",
        epilog=EXAMPLES,
        formatter_class=ExamplesFormatter,
        parents=[settings],
    )
    run.add_argument("-v", "--version", action="version", version=__version__)
    run.add_argument(
        "--until-idle",
        nargs="?",
        type=float,
        const=30.0,
        metavar="MINUTES",
        help="end after so long without tasks, questions and clients [30]",
    )

    check = commands.add_parser(
        "doctor",
        help="check this machine and its CLIs",
        description="Check the machine, the folders, the port, and each CLI that is installed or "
        "that settings name: version, flags, login, and a handshake without a model request. Each "
        "failure is printed with its remedy. Exit status: 0 if all necessary checks pass, 1 if one "
        "fails, 2 for invalid settings.",
        parents=[settings],
    )
    check.add_argument(
        "--all", action="store_true", help="also list the known CLIs without a check"
    )
    check.add_argument("--agent", help="check only this agent (an id of CONFIG_FILE) or adapter")
    check.add_argument(
        "--live", action="store_true", help="send a test prompt (may incur API cost)"
    )
    check.add_argument("--json", action="store_true", help="print one JSON object")
    check.add_argument(
        "--migrate", action="store_true", help="migrate a copy of the tasks, before an upgrade"
    )
    _add_keeping(commands, settings)
    _add_stdio(commands, settings)
    table = commands.add_parser(
        "adapters",
        help="list the adapters",
        description="List all adapters with their abilities and limitations.",
    )
    table.add_argument("--json", action="store_true", help="print one JSON object")
    worker = commands.add_parser(
        "push-worker",
        help="send the push notifications of servers with BRIDGE_PUSH_RELAY=redis",
        description="Send the push notifications that servers with BRIDGE_PUSH_RELAY=redis put "
        "into Redis. It reads BRIDGE_REDIS_*, BRIDGE_PUSH_KEY and "
        "BRIDGE_PUSH_ALLOW_PRIVATE. SIGTERM finishes the notifications in hand.",
        parents=[settings],
    )
    worker.add_argument("--metrics", metavar="HOST:PORT", help="serve /metrics there")
    alive = commands.add_parser(
        "health",
        help="ask the running server for its health",
        description="Ask the server with these settings, over loopback or its Unix socket, and "
        "print its status. Exit status: 0 if it serves, with --ready if it takes new tasks; else "
        "1.",
        parents=[settings],
    )
    alive.add_argument("--ready", action="store_true", help="ask whether it takes new tasks")
    _add_tools(commands, signing=not complete)
    return parser


def _add_stdio(commands: argparse._SubParsersAction[PlainParser], settings: PlainParser) -> None:
    parent = commands.add_parser(
        "stdio",
        help="serve the parent process on stdin and stdout",
        description="Serve A2A on stdin and stdout, without a listener (docs/bindings.md). With "
        "--url or --local, a running server answers, and tasks continue after the end. "
        "Exit status: 0 after the end of stdin, 1 if the reader of stdout has exited, 2 for "
        "invalid settings, 3 without a server.",
        parents=[settings],
    )
    parent.add_argument("--url", help="forward to the server at this address, or unix:PATH")
    parent.add_argument(
        "--local", action="store_true", help="forward to the local server for this directory"
    )
    parent.add_argument("--agent", metavar="ID", help="serve this agent [the default one]")
    parent.add_argument(
        "--as", dest="principal", metavar="NAME", help="with the rights of [tokens.NAME]"
    )
    parent.add_argument(
        "--a2a-version", metavar="V", help="version of requests that name none [0.3]"
    )


def _add_keeping(commands: argparse._SubParsersAction[PlainParser], settings: PlainParser) -> None:
    """The commands that keep the state of a server."""
    backup = commands.add_parser(
        "backup",
        help="back up the state of a server",
        description="Write the tasks, attached files and audit log of the local server into a new "
        "folder, while it runs or while it is stopped (docs/backup.md).",
        parents=[settings],
    )
    backup.add_argument("folder", metavar="DIR", help="the backup; it must not exist")
    restore = commands.add_parser(
        "restore",
        help="make a state folder from a backup",
        description="Check a backup, and make a new state folder from it (docs/backup.md).",
    )
    restore.add_argument("folder", metavar="DIR", help="the backup")
    restore.add_argument("--state", metavar="NEW", required=True, help="the new state folder")
    restore.add_argument(
        "--same-id", action="store_true", help="it replaces a folder that was lost"
    )
    rollback = commands.add_parser(
        "rollback",
        help="return to the tasks before an upgrade",
        description="Put the tasks of before the last upgrade back, with the server stopped. Later "
        "tasks are lost (docs/backup.md).",
        parents=[settings],
    )
    for one in (backup, rollback):
        one.add_argument("--state", metavar="FOLDER", help="state folder of the server [settings]")


def _add_tools(commands: argparse._SubParsersAction[PlainParser], signing: bool) -> None:
    """The commands that neither serve nor check agents. `signing`: also those of signed cards."""
    tape = commands.add_parser(
        "record",
        help="record a CLI, to replay it later",
        usage="coding-agent-bridge record [--adapter NAME] FILE -- COMMAND …",
        description="Run a CLI and record its input and output. Use this command in place of the "
        "CLI in a bridge to record a session with a client.",
    )
    tape.add_argument("file", help="path of the recording")
    tape.add_argument("--adapter", help="adapter for this CLI")
    token = commands.add_parser(
        "token",
        help="make, list or revoke bearer tokens",
        usage="coding-agent-bridge token {NAME [--expires 90d] [--scopes run,read] | list | "
        "revoke NAME [--cancel]}",
        description="Make a bearer token: its table for CONFIG_FILE, which contains only the "
        "SHA-256, on stdout, and the token, once, on stderr. `list` prints the tokens of the "
        "running server. `revoke` reloads the server after you removed the table.",
    )
    token.add_argument("name", help="name of the principal; tasks belong to it")
    token.add_argument("principal", nargs="?", help="the principal, after `revoke`")
    token.add_argument("--expires", help="end of the token: 90d, 12h or 30m from now")
    token.add_argument("--scopes", help="run, read, cancel, approve, metrics, admin; by commas")
    token.add_argument("--cancel", action="store_true", help="with revoke: end its open tasks")
    token.add_argument("--url", help="address of the server, if several run")
    again = commands.add_parser(
        "reload",
        help="let the running server read its configuration again",
        description="Let the running server of this user read its configuration again, and print "
        "the changes. Exit status: 0, or 1 if the server keeps its present configuration.",
    )
    again.add_argument("--url", help="address of the server, if several run")
    listing = commands.add_parser(
        "servers",
        help="list the running servers of this user",
        description="List the running servers of this user: directories, agents, pid, start, open "
        "tasks and address.",
    )
    listing.add_argument("--json", action="store_true", help="print one JSON object")
    stop = commands.add_parser(
        "stop",
        help="stop a server of this user",
        description="Stop the server for a directory, as SIGTERM does: its tasks have time to end "
        "(BRIDGE_DRAIN_MS). Exit status: 0, 1 if it still waits, 3 without a server.",
    )
    stop.add_argument("root", nargs="?", metavar="ROOT", help="the directory [this one]")
    stop.add_argument("--all", action="store_true", help="all servers of this user")
    service = commands.add_parser(
        "install-service",
        help="write the units of systemd",
        description="Write the units of systemd with the path of this program, and print their "
        "paths and the next steps (docs/deploy.md).",
    )
    service.add_argument("--user", action="store_true", help="a unit for the systemd of this user")
    service.add_argument("--keep", action="store_true", help="CLIs survive a restart of the server")
    service.add_argument("--to", metavar="DIR", help="write the files to this folder")
    if not signing:
        return
    card = commands.add_parser(
        "card",
        usage="coding-agent-bridge card {get | verify CARD --keys FILE | new-key KIND NAME}",
        description="Verify the signatures of an agent card, or create a private key to sign cards "
        "(KIND: ES256). Store the key in a file with mode 0600: umask 077.",
    )
    card.add_argument("action", choices=("verify", "new-key"))


def _settings_parser() -> PlainParser:
    """The flags that override settings, for all commands that read the settings."""
    parser = PlainParser(add_help=False)
    parser.add_argument("--host", help="address to listen on [HOST, 127.0.0.1]")
    parser.add_argument("--port", help="port to listen on, 0 for a free one [PORT, 41242]")
    parser.add_argument("--adapter", help="the agent: claude-code, jsonl, replay … [AGENT_ADAPTER]")
    parser.add_argument("--root", help="workspace of the agent [AGENT_REPO_PATH, this directory]")
    parser.add_argument(
        "--token-file", help="file with the token that clients must send [BRIDGE_TOKEN_FILE]"
    )
    parser.add_argument("--token", action=_Removed, help=argparse.SUPPRESS)
    parser.add_argument("--config", help="TOML file with settings [CONFIG_FILE]")
    parser.add_argument("--env-file", help="file of variables, instead of ./.env")
    return parser


class _Removed(argparse.Action):
    """A removed flag: every user of the machine could read its value in the process list."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.error("--token was removed: use --token-file FILE, or BRIDGE_TOKEN_FILE")
