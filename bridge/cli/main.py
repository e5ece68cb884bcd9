"""The command line: `coding-agent-bridge [serve]` and the other commands."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from bridge.cli.arguments import server_parser
from bridge.cli.client.arguments import is_client, parse
from bridge.cli.client.failures import report, wants_json
from bridge.client.failure import ClientError, usage
from bridge.errors import ConfigurationError

TYPE_CHECKING = False  # a name that type checkers know: the module typing takes long to import
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from bridge.server.settings.constants import Constants
    from bridge.server.settings.load import Loaded


def main(argv: Sequence[str] | None = None, constants: Constants | None = None) -> int:
    """Run a command. `constants`: of a server. Returns the exit status: 0 after an orderly stop, 1
    if the server cannot run, 2 for invalid settings. Of the doctor: 0 if all necessary checks pass,
    1 if one fails, 2 for invalid settings. 141 (SIGPIPE) if the reader of the output has exited:
    `… adapters | head`."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # it is closed: no other file may get its number
            setattr(sys, name, open(os.devnull, mode))
    try:
        try:
            return _run(argv, constants)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter must not write the rest of the buffer at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _run(argv: Sequence[str] | None, constants: Constants | None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if is_client(arguments):
        return _client(arguments)
    if not arguments and os.path.basename(sys.argv[0]) == "cab":
        return _help(())  # it is the name of the client; `cab serve` is a server
    if not arguments or arguments[0].startswith("-"):
        arguments.insert(0, "serve")
    # The arguments after `--` are the command line of another program.
    end = arguments.index("--") if "--" in arguments else len(arguments)
    if arguments[0] == "card":
        end = min(end, 2)  # the subcommand parses the rest
    options = server_parser().parse_args(arguments[:end])
    try:
        if options.command == "card":
            return _card(options, arguments[2:])
        if options.command in TOOLS:
            return TOOLS[options.command](options)
        if options.command == "record":
            return _record(options, arguments[end + 1 :])
        return (_stdio if options.command == "stdio" else _serve)(options, constants)
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
        parser = parse if is_client(words) else server_parser().parse_args
        parser([*words, "--help"])
    server_parser(complete=True).print_help()
    return 0


def _mcp(options: argparse.Namespace) -> int:
    """Serve an MCP client, or print its configuration."""
    if options.print_config:
        from bridge.cli.mcp.configs import config_of
        from bridge.errors.program import absolute

        line = absolute()
        text, place = config_of(options.print_config, options.url, http=options.http, program=line)
        print(f"{place}:", file=sys.stderr)
        print(text)
        return 0
    if options.http:
        raise usage("--http requires --print-config")
    from bridge.cli.mcp.command import run

    return run(options)


def _completion(shell: str) -> int:
    import shtab

    print(shtab.complete(server_parser(complete=True), shell=shell))
    return 0


def _skill(options: argparse.Namespace) -> int:
    from bridge.cli.client.skill_file import show_skill

    return show_skill(install=options.install, force=options.force)


def _serve(options: argparse.Namespace, constants: Constants | None) -> int:
    import asyncio

    from bridge.server.lifecycle.serve import serve
    from bridge.server.operate.systemd import SystemdService

    def read() -> Loaded:
        return _loaded(options, service.sockets.settings, constants=constants)

    service = SystemdService.take()
    within = options.until_idle
    seconds = None if within is None else within * 60
    return asyncio.run(serve(read(), service, read, until_idle=seconds))


def _stdio(options: argparse.Namespace, constants: Constants | None) -> int:
    if options.url or options.local:
        from bridge.cli.stdio_proxy import run_proxy

        try:
            return run_proxy(options)
        except ClientError as error:
            return report(error, as_json=False)
    from bridge.cli.stdio import run

    return run(options, constants)


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

    load = partial(_loaded_aloud, options)
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


def _servers(options: argparse.Namespace) -> int:
    from bridge.cli.operate import servers

    try:
        if options.command == "servers":
            return servers.servers(as_json=options.json)
        return servers.stop(options.root, every=options.all)
    except ClientError as error:
        return report(error, as_json=False)


def _loaded(
    options: argparse.Namespace,
    inherited: Mapping[str, Any] | None = None,
    *,
    anywhere: bool = False,
    constants: Constants | None = None,
) -> Loaded:
    """`inherited`: settings of sockets that another program has made; they have precedence.
    `anywhere`: the command starts no agent."""
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
    return load(flags, options.env_file, constants, anywhere=anywhere)


def _loaded_aloud(options: argparse.Namespace) -> Loaded:
    """The settings of a command that starts no agent, with their warnings on stderr."""
    loaded = _loaded(options, anywhere=True)
    for warning in loaded.warnings:
        print(f"coding-agent-bridge: {warning}", file=sys.stderr)
    return loaded


def _adapters(options: argparse.Namespace) -> int:
    from bridge.cli.doctor.adapters import adapters

    return adapters(options.json)


def _doctor(options: argparse.Namespace) -> int:
    import asyncio

    if options.migrate:
        return _keep(options)
    from bridge.cli.doctor.command import doctor

    loaded = _loaded(options)
    work = doctor(
        loaded, options.agent, live=options.live, whole=options.all, for_programs=options.json
    )
    return int(asyncio.run(work))


def _push_worker(options: argparse.Namespace) -> int:
    import asyncio

    from bridge.cli.push_worker import work

    return asyncio.run(work(_loaded(options, anywhere=True), options.metrics))


def _health(options: argparse.Namespace) -> int:
    from bridge.cli.health import health

    return health(_loaded_aloud(options).settings, ready=options.ready)


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
    "servers": _servers,
    "stop": _servers,
    "token": _operate,
}
"""Commands that need only their options."""
