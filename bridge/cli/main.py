"""The command line: `coding-agent-bridge [serve]` and the other commands."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from bridge import __version__
from bridge.cli.client.arguments import EXAMPLES as CLIENT_EXAMPLES
from bridge.cli.client.arguments import (
    PROGRAM,
    ExamplesFormatter,
    PlainParser,
    add_commands,
    is_client,
    parse,
)
from bridge.cli.client.failures import report, wants_json
from bridge.client.failure import ClientError, usage
from bridge.errors import ConfigurationError

TYPE_CHECKING = False  # a name that type checkers know: the module typing takes long to import
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from bridge.server.settings.load import Loaded

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
All settings are environment variables; docs/settings.md and .env.example list them.
docs/deploy.md describes a server for other people: tokens, systemd, containers, proxies.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit status: 0 after an orderly stop, 1 if the server cannot run,
    2 for invalid settings. Of the doctor: 0 if all necessary checks pass, 1 if one fails, 2 for
    invalid settings. 141 (SIGPIPE) if the reader of the output has exited: `… adapters | head`."""
    try:
        try:
            return _run(argv)
        finally:
            if sys.stdout:
                sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter must not write the rest of the buffer at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _run(argv: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if is_client(arguments):
        return _client(arguments)
    if not arguments or arguments[0].startswith("-"):
        arguments.insert(0, "serve")
    # The arguments after `--` are the command line of another program.
    end = arguments.index("--") if "--" in arguments else len(arguments)
    if arguments[0] == "card":
        end = min(end, 2)  # the subcommand parses the rest
    options = _parser().parse_args(arguments[:end])
    try:
        if options.command == "card":
            return _card(options, arguments[2:])
        if options.command in TOOLS:
            return TOOLS[options.command](options)
        if options.command == "record":
            return _record(options, arguments[end + 1 :])
        return _serve(options)
    except ConfigurationError as error:
        print(f"coding-agent-bridge: {error}", file=sys.stderr)
        return 2


def _client(arguments: Sequence[str]) -> int:
    """Run a command of the client. Help and usage errors import no library."""
    try:
        options = parse(arguments)
        if options.command == "help":
            return _help(options.words)
        if options.command == "completion":
            return _completion(options.shell)
        if options.command == "skill":
            return _skill(options)
        if options.command == "mcp":
            return _mcp(options)
    except ClientError as error:
        return report(error, wants_json(arguments))
    from bridge.cli.client.command import run

    return run(options)


def _help(words: Sequence[str]) -> int:
    """Print the usage of a command, or the list of all commands."""
    if words:
        parser = parse if is_client(words) else _parser().parse_args
        parser([*words, "--help"])
    _parser(complete=True).print_help()
    return 0


def _mcp(options: argparse.Namespace) -> int:
    """Serve an MCP client, or print its configuration."""
    if options.print_config:
        from bridge.cli.mcp.configs import config_of, own_program

        line = own_program()
        text, place = config_of(options.print_config, options.url, http=options.http, program=line)
        print(f"{place}:", file=sys.stderr)
        print(text)
        return 0
    if options.http:
        raise usage("--http requires --print-config")
    from bridge.cli.mcp.command import run

    return run(options)


def _completion(shell: str) -> int:
    try:
        import shtab
    except ModuleNotFoundError:
        hint = "pip install 'coding-agent-bridge[client]'"
        raise usage("completion requires the package shtab", hint) from None
    print(shtab.complete(_parser(complete=True), shell=shell))
    return 0


def _skill(options: argparse.Namespace) -> int:
    from bridge.cli.client.skill_file import show_skill

    return show_skill(install=options.install, force=options.force)


def _serve(options: argparse.Namespace) -> int:
    import asyncio

    from bridge.server.lifecycle.serve import serve
    from bridge.server.operate.systemd import SystemdService

    def read() -> Loaded:
        return _loaded(options, service.sockets.settings)

    service = SystemdService.take()
    return asyncio.run(serve(read(), service, read))


def _stdio(options: argparse.Namespace) -> int:
    if options.url or options.local:
        from bridge.cli.stdio_proxy import run_proxy

        try:
            return run_proxy(options)
        except ClientError as error:
            return report(error, as_json=False)
    from bridge.cli.stdio import run

    return run(options)


def _operate(options: argparse.Namespace) -> int:
    """The commands for a running server."""
    if options.command == "reload":
        from bridge.cli.operate.reload import reload

        return reload(options.url)
    from bridge.cli.operate import token

    name, further = options.name, options.principal
    if name == "list" and further is None:
        return token.show_all(options.url)
    if name == "revoke" and further is not None:
        return token.revoke(further, options.url, cancel=options.cancel)
    if further is not None or name in ("list", "revoke"):
        raise ConfigurationError("Use: token NAME, token list, or token revoke NAME [--cancel].")
    return token.make(name, options.expires, options.scopes)


def _keep(options: argparse.Namespace) -> int:
    """Back up, restore, roll back, or try a migration. Exit status 1 if that fails."""
    from functools import partial

    load = partial(_loaded, options)
    try:
        if options.command == "doctor":
            from bridge.cli.operate.migrate import migrate

            return migrate(load, for_programs=options.json)
        if options.command == "backup":
            from bridge.cli.operate.backup import backup

            return backup(options.folder, options.state, load)
        if options.command == "rollback":
            from bridge.cli.operate.rollback import rollback

            return rollback(options.state, load)
        from bridge.cli.operate.restore import restore_command

        return restore_command(options.folder, options.state, same_id=options.same_id)
    except ClientError as error:
        return report(error, as_json=False)
    except ConfigurationError as error:
        print(f"coding-agent-bridge: {error}", file=sys.stderr)
        return 1


def _install_service(options: argparse.Namespace) -> int:
    from bridge.cli.operate.install_service import install_service

    return install_service(user=options.user, keep=options.keep, folder=options.to)


def _loaded(options: argparse.Namespace, inherited: Mapping[str, Any] | None = None) -> Loaded:
    """`inherited`: settings of sockets that another program has made; they have precedence."""
    from bridge.server.settings.load import load

    flags: dict[str, Any] = {
        "host": options.host,
        "port": options.port,
        "agent_adapter": options.adapter,
        "agent_repo_path": options.root,
        "bridge_token_file": options.token_file,
        "config_file": options.config,
        **(inherited or {}),
    }
    return load(flags, options.env_file)


def _adapters(options: argparse.Namespace) -> int:
    from bridge.cli.doctor.adapters import adapters

    return adapters(options.json)


def _doctor(options: argparse.Namespace) -> int:
    import asyncio

    if options.migrate:
        return _keep(options)
    from bridge.cli.doctor.command import doctor

    loaded = _loaded(options)
    work = doctor(loaded, options.agent, live=options.live, for_programs=options.json)
    return int(asyncio.run(work))


def _push_worker(options: argparse.Namespace) -> int:
    import asyncio

    from bridge.cli.push_worker import work

    return asyncio.run(work(_loaded(options), options.metrics))


def _health(options: argparse.Namespace) -> int:
    from bridge.cli.health import health

    return health(_loaded(options).settings, ready=options.ready)


def _card(options: argparse.Namespace, argv: Sequence[str]) -> int:
    import json

    from bridge.a2a.signing import new_key
    from bridge.cli.card import verify_command

    if options.action == "verify":
        return verify_command(argv)
    if len(argv) != 2:
        raise ConfigurationError("card new-key requires a kind and a name: new-key ES256 NAME")
    print(json.dumps({"keys": [new_key(*argv)]}))
    return 0


def _record(options: argparse.Namespace, argv: Sequence[str]) -> int:
    if not argv:
        raise ConfigurationError("record requires a command: record FILE -- claude -p …")
    from bridge.server.recording import record

    return record(options.file, argv, options.adapter)


TOOLS = {
    "adapters": _adapters,
    "backup": _keep,
    "doctor": _doctor,
    "health": _health,
    "install-service": _install_service,
    "push-worker": _push_worker,
    "reload": _operate,
    "restore": _keep,
    "rollback": _keep,
    "stdio": _stdio,
    "token": _operate,
}
"""Commands that need only their options."""


def _parser(complete: bool = False) -> PlainParser:
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

    check = commands.add_parser(
        "doctor",
        help="check this machine and its CLIs",
        description="Check the machine, the folders, the port, and each known CLI: version, flags, "
        "login, and a handshake without a model request. Each failure is printed with its remedy. "
        "Exit status: 0 if all necessary checks pass, 1 if one fails, 2 for invalid settings.",
        parents=[settings],
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
        "into Redis. It reads BRIDGE_REDIS_*, BRIDGE_PUSH_KEY, BRIDGE_PUSH_LEASE_MS and "
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
        description="Serve A2A on stdin and stdout, without a listener (docs/transports.md). With "
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
