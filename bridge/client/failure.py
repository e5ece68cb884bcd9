"""The failure of a command: its code, its text, and the exit status that follows from the code."""

from __future__ import annotations

from collections.abc import Mapping

from bridge.errors import BridgeError

USAGE = "A2ACLI_ERR_USAGE"
CARD_NOT_FOUND = "A2ACLI_ERR_CARD_NOT_FOUND"
CARD_INVALID = "A2ACLI_ERR_CARD_INVALID"
UNREACHABLE = "A2ACLI_ERR_UNREACHABLE"
CREDENTIALS_MISSING = "A2ACLI_ERR_CREDENTIALS_MISSING"
AUTH_FAILED = "A2ACLI_ERR_AUTH_FAILED"
TIMEOUT = "A2ACLI_ERR_TIMEOUT"
INTERNAL = "A2ACLI_ERR_INTERNAL"
NEEDS_EXTENSION = "CAB_ERR_EXTENSION"
QUESTION_CLOSED = "CAB_ERR_QUESTION_CLOSED"
SEVERAL_SERVERS = "CAB_ERR_SEVERAL_SERVERS"
NOT_A_TERMINAL = "CAB_ERR_NOT_A_TERMINAL"
NO_SERVER = "CAB_ERR_NO_SERVER"

STATUS: Mapping[str, int] = {
    USAGE: 2,
    CARD_NOT_FOUND: 3,
    UNREACHABLE: 3,
    CREDENTIALS_MISSING: 4,
    AUTH_FAILED: 4,
    TIMEOUT: 5,
    NEEDS_EXTENSION: 2,
    SEVERAL_SERVERS: 2,
    NOT_A_TERMINAL: 2,
    NO_SERVER: 3,
}
"""The exit status of each code; 1 for the others."""

# The A2A name of each JSON-RPC code, and of each reason of an ErrorInfo (1.0 §5.4).
NAMES: Mapping[int, str] = {
    -32001: "TaskNotFoundError",
    -32002: "TaskNotCancelableError",
    -32003: "PushNotificationNotSupportedError",
    -32004: "UnsupportedOperationError",
    -32005: "ContentTypeNotSupportedError",
    -32006: "InvalidAgentResponseError",
    -32007: "ExtendedAgentCardNotConfiguredError",
    -32008: "ExtensionSupportRequiredError",
    -32009: "VersionNotSupportedError",
    -32700: "JSONParseError",
    -32600: "InvalidRequestError",
    -32601: "MethodNotFoundError",
    -32602: "InvalidParamsError",
    -32603: "InternalError",
}
REASONS: Mapping[str, str] = {
    "TASK_NOT_FOUND": "TaskNotFoundError",
    "TASK_NOT_CANCELABLE": "TaskNotCancelableError",
    "PUSH_NOTIFICATION_NOT_SUPPORTED": "PushNotificationNotSupportedError",
    "UNSUPPORTED_OPERATION": "UnsupportedOperationError",
    "CONTENT_TYPE_NOT_SUPPORTED": "ContentTypeNotSupportedError",
    "INVALID_AGENT_RESPONSE": "InvalidAgentResponseError",
    "EXTENDED_AGENT_CARD_NOT_CONFIGURED": "ExtendedAgentCardNotConfiguredError",
    "EXTENSION_SUPPORT_REQUIRED": "ExtensionSupportRequiredError",
    "VERSION_NOT_SUPPORTED": "VersionNotSupportedError",
    "PARSE_ERROR": "JSONParseError",
    "METHOD_NOT_FOUND": "MethodNotFoundError",
    "INVALID_PARAMS": "InvalidParamsError",
}


class ClientError(BridgeError):
    """`code`: a name of A2A, or one of the codes above. `hint`: a command to paste, if there is
    one. `a2a_code`: the code of the binding."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        hint: str | None = None,
        a2a_code: str | int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint
        self.a2a_code = a2a_code

    @property
    def status(self) -> int:
        return STATUS.get(self.code, 1)


class ConnectionLost(ClientError):
    """The server cannot be reached, or a response ended early: a retry may succeed."""

    def __init__(self, message: str) -> None:
        super().__init__(UNREACHABLE, message)


def usage(message: str, hint: str | None = None) -> ClientError:
    return ClientError(USAGE, message, hint=hint)


def needs_extension(flag: str) -> ClientError:
    text = f"{flag} requires an agent with the extension of coding-agent-bridge"
    return ClientError(NEEDS_EXTENSION, text)
