"""The parsers of command lines: their help, their errors, and the actions of their flags. Nothing
here needs a library."""

from __future__ import annotations

import argparse

from bridge.client.failure import usage

TYPE_CHECKING = False  # a name that type checkers know: the module typing takes long to import
if TYPE_CHECKING:
    from typing import Any, NoReturn

    Commands = Any  # the result of add_subparsers(): its class is private

PROGRAM = "coding-agent-bridge"


class Formatter(argparse.HelpFormatter):
    """Help of a fixed width. A parser makes a formatter for each argument; the base class asks the
    terminal each time, which takes longer than everything else here."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=98)


class ExamplesFormatter(Formatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of descriptions."""


class PlainParser(argparse.ArgumentParser):
    """Its help has a fixed width."""

    def __init__(self, **members: Any) -> None:
        super().__init__(**{"formatter_class": Formatter, **members})


class Parser(PlainParser):
    """Raises ClientError for an invalid command line."""

    def __init__(self, **members: Any) -> None:
        self._mixing = False
        super().__init__(**{"allow_abbrev": False, **members})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Positional arguments may stand behind flags: `answer TASK --question ID OPTION`."""
        if self._subparsers is not None or self._mixing:
            return super().parse_known_args(args, namespace)
        self._mixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._mixing = False

    def error(self, message: str) -> NoReturn:
        raise usage(message, f"{self.prog} --help")


def group(commands: Commands, word: str, what: str, name: str | None = None) -> Commands:
    """The commands below a word, such as `task`."""
    parser = commands.add_parser(word, help=what, description=sentence(what))
    return parser.add_subparsers(metavar="COMMAND", required=True, prog=f"{PROGRAM} {name or word}")


def sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


class Switch(argparse.Action):
    """A flag without a value. Unset, it is None, so that a variable can set it."""

    def __init__(self, **members: Any) -> None:
        super().__init__(**members, nargs=0)

    def __call__(self, parser: Any, namespace: Any, given: Any, option: Any = None) -> None:
        setattr(namespace, self.dest, True)


class PartAction(argparse.Action):
    """Appends a part of a message: its kind, its value, and its media type."""

    def __call__(self, parser: Any, namespace: Any, given: Any, option: Any = None) -> None:
        parts = getattr(namespace, "parts", None) or []
        namespace.parts = [*parts, (self.const, given, None)]


class MediaTypeAction(argparse.Action):
    """Sets the media type of the part before it."""

    def __call__(self, parser: Any, namespace: Any, given: Any, option: Any = None) -> None:
        parts = getattr(namespace, "parts", None)
        if not parts or parts[-1][2] is not None:
            raise usage("--media-type must follow --text, --file or --data")
        kind, value, _ = parts[-1]
        namespace.parts = [*parts[:-1], (kind, value, given)]
