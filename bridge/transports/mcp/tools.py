"""The tools of a server, and the check of their arguments."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.exceptions import best_match

from bridge.errors import InvalidParams
from bridge.task.text import readable
from bridge.transports.mcp.announced import load_tools

SHOWN = 300  # characters of an error about an argument


class ToolList:
    """The tools of a server, and their arguments."""

    def __init__(self) -> None:
        self.tools = load_tools()
        self._checks = {
            tool["name"]: Draft202012Validator(tool["inputSchema"]) for tool in self.tools
        }

    @property
    def names(self) -> Collection[str]:
        return self._checks.keys()

    def __contains__(self, name: str) -> bool:
        return name in self._checks

    def schema(self, name: str) -> Mapping[str, Any] | None:
        """The schema of the arguments of a tool; None for an unknown tool."""
        return next((tool["inputSchema"] for tool in self.tools if tool["name"] == name), None)

    def check(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Raises InvalidParams with one sentence about the first wrong argument."""
        problem = best_match(self._checks[name].iter_errors(arguments))
        if problem:
            raise InvalidParams(readable(_sentence(name, problem), SHOWN))


def _sentence(tool: str, problem: ValidationError) -> str:
    where = ".".join(map(str, problem.absolute_path)) or "The arguments"
    match problem.validator:
        case "required":
            missing = [one for one in problem.validator_value if one not in problem.instance]
            return f"{tool} needs {', '.join(missing)}."
        case "additionalProperties":
            known = problem.schema["properties"]
            unknown = [one for one in problem.instance if one not in known]
            return f"{tool} has no argument {unknown[0]}; it takes {', '.join(known) or 'none'}."
        case "enum":
            return f"{where} must be one of: {', '.join(problem.validator_value)}."
        case "type":
            return f"{where} must be of the type {problem.validator_value}."
        case "minimum" | "maximum" | "maxLength" | "maxItems" as keyword:
            return f"{where} has the {keyword} {problem.validator_value}."
    return f"{where} is not valid."
