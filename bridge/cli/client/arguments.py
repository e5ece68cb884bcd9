"""The command line of the client. Nothing here needs a library, so that help and usage errors are
quick."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence

from bridge.cli.client.parser import (
    PROGRAM,
    MediaTypeAction,
    Parser,
    PartAction,
    Switch,
    group,
    sentence,
)
from bridge.client import values
from bridge.client.failure import usage
from bridge.errors.program import command

TYPE_CHECKING = False  # a name that type checkers know: the module typing takes long to import
if TYPE_CHECKING:
    from bridge.cli.client.parser import Commands

EXAMPLES = """\
  coding-agent-bridge run "Describe this project"        start a task, and answer by keys
  coding-agent-bridge send "Describe this project"       send a message and wait for the answer
  coding-agent-bridge task list                          list the tasks
  coding-agent-bridge answer TASK OPTION                 answer the question of a task
  coding-agent-bridge help send                          show the flags of a command
"""


def is_client(arguments: Sequence[str]) -> bool:
    """Whether a command line is for the client."""
    first, second = (*arguments[:2], "", "")[:2]
    return second == "get" if first == "card" else first in BUILDERS


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a command of the client; `command` is its name, such as `task get`. Raises
    ClientError."""
    root = Parser(prog=PROGRAM)
    commands = root.add_subparsers(metavar="COMMAND", required=True, prog=PROGRAM)
    BUILDERS[arguments[0]](commands)
    options: argparse.Namespace
    options, unknown = root.parse_known_args(list(arguments))
    if unknown:
        hint = f"{command(*options.command.split())} --help"
        raise usage(f"unrecognized arguments: {' '.join(unknown)}", hint)
    return options


def add_commands(commands: Commands) -> None:
    """Add the parsers of all commands of the client."""
    for add in BUILDERS.values():
        add(commands)


def _add_card(commands: Commands) -> None:
    card = group(commands, "card", "agent cards (also: card verify, card new-key)")
    get = _command(card, "card get", "show the agent card, and the chosen binding and version")
    get.add_argument("--validate", action="store_true", help="compare the card with the schema")
    get.add_argument("--extended", action="store_true", help="the card for authenticated clients")


def _add_config(commands: Commands) -> None:
    config = group(commands, "config", "the settings of the client")
    _command(config, "config show", "show each setting with its source")


def _add_completion(commands: Commands) -> None:
    completion = commands.add_parser("completion", help="print a completion script of a shell")
    completion.add_argument("shell", choices=("bash", "zsh", "fish", "tcsh"))
    completion.set_defaults(command="completion")


def _add_skill(commands: Commands) -> None:
    skill = commands.add_parser("skill", help="print the skill for agents that use this program")
    skill.add_argument(
        "--install", action="store_true", help="copy it into .agents/skills of this directory"
    )
    skill.add_argument("--force", action="store_true", help="overwrite a changed copy")
    skill.set_defaults(command="skill")


def _add_help(commands: Commands) -> None:
    help_ = commands.add_parser("help", help="show the usage of a command")
    help_.add_argument("words", nargs="*", metavar="COMMAND")
    help_.set_defaults(command="help")


def _add_run(commands: Commands) -> None:
    _add_sending(
        commands,
        "run",
        "send a message, show the answer as it arrives, and answer questions by single keys; "
        "without a terminal it is `send`",
    )


def _add_send(commands: Commands) -> None:
    _add_sending(
        commands,
        "send",
        "send a message and wait until the task ends or asks: a new task, or with --task-id the "
        "answer to a question, or with --context-id the next task of a conversation",
    )


def _add_sending(commands: Commands, word: str, what: str) -> None:
    send = _command(commands, word, what)
    send.add_argument("message", nargs="?", metavar="TEXT", help="the text; - reads stdin")
    for flag, old, about in (
        ("--text", "--text-part", "a text part"),
        ("--file", "--file-part", "a file, or the URL of one"),
        ("--data", "--data-part", "a JSON file, or - for stdin"),
    ):
        kind = flag.removeprefix("--")
        metavar = "TEXT" if kind == "text" else "PATH"
        send.add_argument(
            flag, old, action=PartAction, dest="parts", const=kind, metavar=metavar, help=about
        )
    send.add_argument(
        "--media-type", action=MediaTypeAction, metavar="TYPE", help="the type of the part before"
    )
    send.add_argument("--message-id", metavar="ID", help="id of the message; a repetition resumes")
    _add_choices(send)
    _add_waiting(send)


def _add_choices(parser: Parser) -> None:
    """The choices of a new conversation with an agent of a bridge."""
    parser.add_argument(
        "--no-start",
        action="store_false",
        dest="start",
        help="do not start a server for this directory if there is none",
    )
    own = parser.add_argument_group("for agents of a coding-agent-bridge")
    own.add_argument("--agent", metavar="ID", help="the agent; `agents` lists them")
    own.add_argument("--role", metavar="R", help="role of a server that begins the conversation")
    own.add_argument("--cwd", metavar="DIR", help="working directory [this one, if local]")
    own.add_argument("--model", metavar="M")
    own.add_argument("--mode", metavar="M", help="permission mode")
    own.add_argument("--budget", metavar="2usd", type=values.budget, help="cost limit")


def _add_waiting(parser: Parser) -> None:
    parser.add_argument("-q", "--quiet", action="store_true", help="print only the answer's bytes")
    _add_plain(parser)
    parser.add_argument(
        "--exit-state",
        action="store_true",
        help="exit with 10 (failed), 11 (waits), 12 (canceled), 13 (rejected)",
    )
    parser.add_argument(
        "--on-question",
        metavar="stop|deny|allow:RULE",
        default="stop",
        help="answer permissions; RULE: tool=NAME, command=PATTERN or path=PATTERN [stop]",
    )
    parser.add_argument(
        "--on-interrupt", choices=("cancel", "detach"), help="what Ctrl-C does to the task"
    )


def _add_plain(parser: Parser) -> None:
    parser.add_argument(
        "--plain", action="store_true", help="at a terminal: show the answer as it is"
    )


def _add_task(commands: Commands) -> None:
    task = group(commands, "task", "the tasks of an agent")
    get = _command(task, "task get", "show the state, the artifacts and the history of a task")
    get.add_argument("task", metavar="TASK")
    get.add_argument("--history", type=int, metavar="N", help="messages of the history [0]")
    cancel = _command(task, "task cancel", "cancel tasks; a second cancel changes nothing")
    cancel.add_argument("tasks", nargs="*", metavar="TASK")
    cancel.add_argument("--all", action="store_true", help="all tasks that have not ended")
    cancel.add_argument("--yes", action="store_true", help="do not ask")
    listing = _command(task, "task list", "list tasks: those that wait for an answer first")
    listing.add_argument("--status", metavar="S", help="state, such as working or input-required")
    listing.add_argument("--limit", type=int, metavar="N", default=50, help="page size [50]")
    listing.add_argument(
        "--watch", action="store_true", help="show changes until Ctrl-C; JSON Lines in a pipe"
    )
    listing.set_defaults(read_only=False, after=None, message=None, plain=False)  # of `attach`
    listing.add_argument("--page-token", metavar="T", help="nextPageToken of the page before")
    subscribe = _command(task, "task subscribe", "follow the updates of a task")
    subscribe.add_argument("task", metavar="TASK")
    subscribe.add_argument(
        "--from", dest="after", metavar="N", help="begin after event N; 0 is the beginning"
    )
    _add_waiting(subscribe)
    download = _command(task, "task download", "save the artifacts of a task as files")
    download.add_argument("task", metavar="TASK")
    download.add_argument("--artifact", metavar="NAME", help="only this one, by name or id")
    download.add_argument("-d", "--directory", default=".", metavar="DIR", help="- is stdout [.]")
    download.add_argument("--force", action="store_true", help="overwrite files")
    what = "write a task or a whole conversation as one document"
    export = _command(task, "task export", what, formats=False)
    export.add_argument("task", metavar="TASK|CONTEXT")
    export.add_argument(
        "--format", choices=("markdown", "json"), help="json has the tasks of A2A 1.0 [markdown]"
    )
    export.add_argument("-o", dest="file", metavar="FILE", default="-", help="- is stdout [-]")
    export.set_defaults(output=None)
    _add_push(task)


def _add_push(task: Commands) -> None:
    push = group(task, "push-config", "configs of push notifications", "task push-config")
    create = _command(push, "task push-config create", "notify a URL of the updates of a task")
    create.add_argument("task", metavar="TASK")
    create.add_argument("--url", required=True)
    create.add_argument("--id", dest="config_id", metavar="ID")
    create.add_argument("--push-token", metavar="TOKEN", help="sent with each notification")
    create.add_argument("--auth-scheme", metavar="SCHEME", help="such as Bearer")
    create.add_argument(
        "--auth-credentials-stdin", action="store_true", help="read the credentials from stdin"
    )
    for word, what in (("get", "show a config"), ("delete", "delete a config")):
        parser = _command(push, f"task push-config {word}", what)
        parser.add_argument("task", metavar="TASK")
        parser.add_argument("config_id", metavar="ID")
    listing = _command(push, "task push-config list", "list the configs of a task")
    listing.add_argument("task", metavar="TASK")


def _add_answer(commands: Commands) -> None:
    answer = _command(commands, "answer", "answer the open question of a task, and wait")
    answer.add_argument("task", metavar="TASK")
    answer.add_argument("option", nargs="?", metavar="OPTION", help="id or name of an option")
    answer.add_argument("--text", metavar="T", help="own words")
    answer.add_argument("--question", metavar="ID", help="refuse if another question is open")
    answer.add_argument("--reason", metavar="R", help="the reason of a refusal")
    _add_waiting(answer)


def _add_wait(commands: Commands) -> None:
    wait = _command(commands, "wait", "wait until all tasks have ended or one asks")
    wait.add_argument("tasks", nargs="+", metavar="TASK")
    wait.add_argument("--exit-state", action="store_true", help="as in `send`, of the last task")


def _add_attach(commands: Commands) -> None:
    attach = _command(
        commands,
        "attach",
        "show a conversation and take part in it: a line is a message, questions are answered by "
        "keys, Ctrl-C cancels the running task, Ctrl-D leaves; without a terminal it is `task "
        "subscribe`",
    )
    attach.add_argument("task", metavar="TASK|CONTEXT")
    attach.add_argument("--read-only", action="store_true", help="send nothing")
    attach.add_argument("--from", dest="after", metavar="N", help="begin after event N of the task")
    _add_plain(attach)
    attach.set_defaults(message=None)


def _add_chat(commands: Commands) -> None:
    chat = _command(commands, "chat", "begin a conversation at a terminal; then as `attach`")
    chat.add_argument("message", nargs="?", metavar="TEXT", help="the first message")
    _add_choices(chat)
    _add_plain(chat)
    chat.set_defaults(read_only=False, after=None)


def _add_agents(commands: Commands) -> None:
    _command(commands, "agents", "list the agents of a server")


def _add_auth(commands: Commands) -> None:
    auth = group(commands, "auth", "tokens by origin")
    login = _command(auth, "auth login", "store a bearer token for the origin of an agent")
    login.add_argument("url", nargs="?", metavar="URL")
    login.add_argument("--token-stdin", action="store_true", help="read the token from stdin")
    logout = _command(auth, "auth logout", "remove the stored token of an origin")
    logout.add_argument("url", nargs="?", metavar="URL")
    _command(auth, "auth status", "show the origins with a stored token")


def _add_mcp(commands: Commands) -> None:
    mcp = commands.add_parser(
        "mcp",
        help="serve an MCP client on stdin and stdout",
        description="Forward the messages of an MCP client on stdin and stdout to this user's "
        "bridge for the current directory. If there is none, one is started, and ends when idle.",
    )
    mcp.set_defaults(command="mcp")
    mcp.add_argument("--url", help="address of the bridge [BRIDGE_URL, the local one]")
    mcp.add_argument("--no-start", action="store_true", help="do not start a bridge")
    mcp.add_argument(
        "--print-config",
        metavar="CLIENT",
        choices=values.MCP_CLIENTS,
        help=f"print the configuration of a client: {', '.join(values.MCP_CLIENTS)}",
    )
    mcp.add_argument("--http", action="store_true", help="print the configuration for HTTP")


# --- the parts of a parser ---------------------------------------------------------------------


def _command(commands: Commands, name: str, what: str, *, formats: bool = True) -> Parser:
    """`formats`: the command has the flag -o for the format of its output."""
    parser: Parser = commands.add_parser(
        name.rpartition(" ")[2], help=what, description=sentence(what), allow_abbrev=False
    )
    parser.set_defaults(command=name)
    _add_settings(parser, formats)
    return parser


def _add_settings(parser: Parser, formats: bool) -> None:
    """The settings: each has a variable A2ACLI_NAME, too. Defaults are in brackets."""
    group = parser.add_argument_group(
        "settings", "Each has a variable, too: --agent-card is A2ACLI_AGENT_CARD."
    )
    add = group.add_argument
    add("-a", "--agent-card", metavar="REF", help="host, URL, file, unix:PATH [the local server]")
    if formats:
        add("-o", "--output", type=values.output, metavar="text|json", help="format [text]")
    add("--stream", action="store_true", help="print updates as they arrive; JSON Lines with json")
    add("--async", "--no-wait", "--return-immediately", action=Switch, help="do not wait [wait]")
    add("--wait", action=Switch, help="wait for the end of the task or for its question")
    add("--timeout", type=values.duration, metavar="DUR", help="give up after 90s, 5m … [never]")
    add("--poll-interval", type=values.duration, metavar="DUR", help="between two polls [2s]")
    add("--context-id", metavar="ID", help="conversation")
    add("--task-id", metavar="ID", help="existing task")
    add("--metadata", metavar="JSON", help="metadata of the request")
    add("--svc-param", type=values.parameter, action="append", metavar="K:V", help="HTTP header")
    add("--bearer", metavar="TOKEN", help="token; other programs can see it: prefer A2ACLI_BEARER")
    add("--api-key", metavar="KEY", help="key; other programs can see it: prefer A2ACLI_API_KEY")
    add("--a2a-version", type=values.version, metavar="V", help="1.0 or 0.3 [1.0]")
    add(
        "--transport",
        type=values.transport,
        action="append",
        metavar="T",
        help="jsonrpc or http+json; the first one that the card has [order of the card]",
    )
    add("--insecure", action=Switch, help="do not verify TLS certificates [verify]")
    add("--config", metavar="FILE", help="file with variables A2ACLI_… [none]")
    add("--verbose", action=Switch, help="show every part and the metadata [concise]")
    add("--debug", action=Switch, help="print each request as a curl command")


BUILDERS: Mapping[str, Callable[[Commands], None]] = {
    "run": _add_run,
    "send": _add_send,
    "answer": _add_answer,
    "task": _add_task,
    "wait": _add_wait,
    "attach": _add_attach,
    "chat": _add_chat,
    "agents": _add_agents,
    "card": _add_card,
    "auth": _add_auth,
    "mcp": _add_mcp,
    "config": _add_config,
    "completion": _add_completion,
    "skill": _add_skill,
    "help": _add_help,
}
"""The first word of each command, and the function that adds its parser."""
