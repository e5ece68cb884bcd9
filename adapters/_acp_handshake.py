"""The handshake of ACP: from `initialize` to a session in the requested mode and model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import orjson

from bridge.adapter import CONFIGURATION, SessionOptions, model_failure
from bridge.adapter.fields import Json, Said, as_dict, as_list, as_word
from bridge.adapter.jsonrpc import METHOD_NOT_FOUND, Peer, Response, RpcError
from bridge.adapter.modes import PLAN
from bridge.task.events import AgentEvent, Failed, Started

from ._acp_agent import AcpAgent

PROTOCOL = 1
CLIENT = "coding-agent-bridge"
NOTHING = "_coding-agent-bridge/nothing"
"""A method that no agent has. Each answers it with an error (ACP v1, Extensibility)."""
AUTH_REQUIRED = -32000
NOT_FOUND = -32002


class Handshake:
    """`ready` is called once after the last step, `failed` each time the handshake fails; after
    that, begin() starts it again."""

    def __init__(
        self,
        agent: AcpAgent,
        peer: Peer[AgentEvent],
        *,
        ready: Callable[[], Said],
        failed: Callable[[Failed], Said],
    ) -> None:
        self.session_id: str | None = None  # as the requests have it
        self.facts: dict[str, str | None] = {}  # model and mode of the session
        self.done = False
        self.opened = False  # it was done once
        self._offers: Json = {}  # the answer that opened the session
        self.loading = False  # the answer to session/resume or session/load is awaited
        self._agent = agent
        self._peer = peer
        self._ready = ready
        self._failed = failed
        self._initialized: Json | None = None  # the answer to `initialize`
        self._running = False
        self._tried_login = False

    def begin(self) -> None:
        if self._running or self.done:
            return
        self._running = True
        if self._initialized is not None:
            self._open_session()
            return
        # No fs, no terminal: see acp.py.
        capabilities = {
            "fs": {"readTextFile": False, "writeTextFile": False},
            "terminal": False,
            "elicitation": {"form": {}, "url": {}},
            "session": {"notices": {}},  # else Claude and Codex write warnings into their answers
        }
        params = {
            "protocolVersion": PROTOCOL,
            "clientCapabilities": capabilities,
            "clientInfo": {"name": CLIENT, "version": "1"},
        }
        self._peer.request("initialize", params, self._on_initialized)

    def change(self, wanted: SessionOptions) -> None:
        """Set the mode and the model of the open session. `ready` or `failed` is called after that;
        a session that does not take them stays as it was."""
        self.done = False
        steps = [(name, getattr(wanted, name)) for name in self._agent.changes]
        differing = [(name, one) for name, one in steps if one and one != self.facts.get(name)]
        self._configure(self._offers, differing)

    def report(self, mode: str | None) -> bool:
        """Whether the mode that the agent reports is another one."""
        before, self.facts["mode"] = self.facts.get("mode"), mode or self.facts.get("mode")
        return self.facts["mode"] != before

    def started(self) -> Started:
        info = as_dict((self._initialized or {}).get("agentInfo"))
        version, mode = as_word(info.get("version")), self.facts.get("mode")
        conversation = (self.session_id or "").removeprefix(self._agent.load_prefix) or None
        return Started(conversation, self.facts.get("model"), version, mode)

    def can(self, group: str, name: str) -> bool:
        """Whether the agent has a capability; an object as its value counts as yes."""
        capabilities = as_dict((self._initialized or {}).get("agentCapabilities"))
        value = (as_dict(capabilities.get(group)) if group else capabilities).get(name)
        return value is True or isinstance(value, dict)

    def not_logged_in(self, error: RpcError) -> Failed:
        hints = [
            ": ".join(filter(None, (as_word(one.get("name")), as_word(one.get("description")))))
            for one in self._methods()
        ]
        text = f"{self._agent.title} is not logged in on the server, or its key is not accepted."
        if any(hints):
            text += f" It offers: {'; '.join(filter(None, hints))}."
        return Failed(f"{text} It said: {reason_of(error)}", "auth", {"code": error.code})

    # --- initialize, authenticate ----------------------------------------------------------------

    def _on_initialized(self, response: Response) -> Said:
        if response.error:
            return self._refused(response.error)
        version = response.members.get("protocolVersion")
        if version not in (None, PROTOCOL):
            text = f"{self._agent.title} speaks version {version} of ACP, the bridge {PROTOCOL}."
            return self._give_up(Failed(text, "protocol"))
        self._initialized = response.members
        if not (self._agent.login_first and self._authenticates()):
            self._open_session()
        return ()

    def _methods(self) -> list[Json]:
        return [as_dict(one) for one in as_list((self._initialized or {}).get("authMethods"))]

    def _authenticates(self) -> bool:
        """Begin an offered login that works without a person. False: there is none."""
        offered = [one.get("id") for one in self._methods()]
        for variable, method in self._agent.logins:
            if method in offered and (not variable or self._agent.config.env.get(variable)):
                self._tried_login = True
                self._peer.request("authenticate", {"methodId": method}, self._on_authenticated)
                return True
        return False

    def _on_authenticated(self, response: Response) -> Said:
        if response.error:
            return self._give_up(self.not_logged_in(response.error))
        self._open_session()
        return ()

    # --- the session -----------------------------------------------------------------------------

    def _open_session(self) -> None:
        if not self._agent.start.resume:
            self._request("session/new")
        elif self._agent.list_first and self.can("sessionCapabilities", "list"):
            self._list({})
        else:
            self._resume()

    def _request(self, method: str, **members: Any) -> None:
        start = self._agent.start
        params = {"cwd": start.cwd, "mcpServers": [], **members}
        if start.folder and self.can("sessionCapabilities", "additionalDirectories"):
            params["additionalDirectories"] = [start.folder]
        options = dict(self._agent.session_options)
        if not self._agent.config.project_config:
            options |= self._agent.shut_options
        if options:
            params["_meta"] = {"claudeCode": {"options": options}}
        self._peer.request(method, params, partial(self._on_opened, method))

    def _list(self, cursor: Json) -> None:
        params = {"cwd": self._agent.start.cwd, **cursor}
        self._peer.request("session/list", params, self._on_listed)

    def _on_listed(self, response: Response) -> Said:
        sessions = as_list(response.members.get("sessions"))
        cursor = response.members.get("nextCursor")
        if self._agent.start.session_id in [as_dict(one).get("sessionId") for one in sessions]:
            self._resume()
        elif cursor and not response.error:
            self._list({"cursor": cursor})
        else:
            return self._give_up(self._agent.conversation_lost())
        return ()

    def _resume(self) -> None:
        if self.can("sessionCapabilities", "resume"):
            self.loading = True
            self._request("session/resume", sessionId=self._agent.start.session_id)
        else:  # even if it is not offered: the error names the problem
            self._load()

    def _load(self) -> None:
        self.loading = True
        self._request("session/load", sessionId=self._loaded_id())

    def _loaded_id(self) -> str:
        return self._agent.load_prefix + self._agent.start.session_id

    def _on_opened(self, method: str, response: Response) -> Said:
        self.loading = False
        error, result = response.error, response.members
        if error and error.code == METHOD_NOT_FOUND and method == "session/resume":
            self._load()  # qwen
            return ()
        if error:
            return self._not_opened(error, resumed=method != "session/new")
        if method == "session/new":
            session_id = result.get("sessionId")
        elif method == "session/load":
            session_id = self._loaded_id()
        else:
            session_id = self._agent.start.session_id
        if not isinstance(session_id, str):
            return self._give_up(Failed(f"{self._agent.title} began no session.", "protocol"))
        self.session_id, self._offers = session_id, result
        self.facts = {name: current(result, name) for name in ("model", "mode")}
        if method == "session/load":
            # The answer to a request that changes nothing comes after the rest of the history.
            mode = self.facts["mode"]
            request = _setting(result, "mode", mode) if mode else None
            barrier, params = request or (NOTHING, {})
            then = partial(self._on_history, result)
            self._peer.request(barrier, {"sessionId": session_id, **params}, then)
            return ()
        if method == "session/new" and self.can("sessionCapabilities", "title"):
            # Without a title, codex-acp asks its model for one after the first turn.
            title = {"sessionId": session_id, "title": CLIENT}
            self._peer.request("session/set_title", title, lambda response: ())
        return self._configure(result, list(self._wishes(result)))

    def _on_history(self, session: Json, response: Response) -> Said:
        """The history of session/load has ended. Its end is all that the answer means."""
        return self._configure(session, list(self._wishes(session)))

    def _not_opened(self, error: RpcError, *, resumed: bool) -> Said:
        if error.code == AUTH_REQUIRED and not self._tried_login and self._authenticates():
            return ()
        if resumed and error.code != AUTH_REQUIRED:
            problem = "" if _means_lost(error) else reason_of(error)
            return self._give_up(self._agent.conversation_lost(problem))
        return self._refused(error)

    # --- mode and model --------------------------------------------------------------------------

    def _wishes(self, session: Json) -> Iterator[tuple[str, str]]:
        """The settings that differ from those of the session and of the command line."""
        asks, mode = self._agent.asks, self._agent.mode
        if mode:
            yield "mode", mode
        elif self.facts["mode"] not in (asks, PLAN) and asks in _offered(session, "mode"):
            yield "mode", asks
        if self._agent.model and not self._agent.model_flag:
            yield "model", self._agent.model

    def _configure(self, session: Json, steps: Sequence[tuple[str, str]]) -> Said:
        """Request the first setting; after the last one, the session is ready."""
        if not steps:
            self._running, self.done, self.opened = False, True, True
            return self._ready()
        what, value = steps[0]
        request = _setting(session, what, value)
        if request is None and self.opened:  # the answer is the failure: prompt() has no events
            request = f"session/set_{what}", {f"{what}Id": value}
        if request is None:
            text = f"{self._agent.title} does not let its {what} be chosen over ACP ({value})."
            return self._give_up(Failed(text, CONFIGURATION))
        method, params = request
        then = partial(self._on_configured, session, steps)
        self._peer.request(method, {"sessionId": self.session_id, **params}, then)
        return ()

    def _on_configured(
        self, session: Json, steps: Sequence[tuple[str, str]], response: Response
    ) -> Said:
        what, value = steps[0]
        if response.error:
            problem = reason_of(response.error)
            text = f"{self._agent.title} did not take the {what} {value}: {problem}"
            offered = ", ".join(filter(None, map(as_word, _offered(session, what))))
            text += f" (it offers: {offered})" if offered else ""
            return self._give_up(Failed(text, CONFIGURATION))
        self.facts[what] = value
        return self._configure(session, steps[1:])

    # --- failures --------------------------------------------------------------------------------

    def _refused(self, error: RpcError) -> Said:
        if error.code == AUTH_REQUIRED:
            return self._give_up(self.not_logged_in(error))
        failed = model_error(error)
        text = f"{self._agent.title} could not begin: {failed.text}"
        return self._give_up(replace(failed, text=text))

    def _give_up(self, failed: Failed) -> Said:
        self._running = self._tried_login = False
        self.done = self.opened
        return self._failed(failed)


# --- settings of a session -----------------------------------------------------------------------


def _setting(session: Json, what: str, value: str) -> tuple[str, Json] | None:
    """The request that sets mode or model, in the form that the session offers."""
    if what == "mode" and isinstance(session.get("modes"), dict):
        return "session/set_mode", {"modeId": value}
    if what == "model" and isinstance(session.get("models"), dict):
        return "session/set_model", {"modelId": value}
    option = _config_option(session, what)
    if option:
        return "session/set_config_option", {"configId": option.get("id"), "value": value}
    return None


def _config_option(session: Json, what: str) -> Json | None:
    options = map(as_dict, as_list(session.get("configOptions")))
    return next((one for one in options if what in (one.get("category"), one.get("id"))), None)


def current(session: Json, what: str) -> str | None:
    offered = as_dict(session.get(f"{what}s"))
    option = _config_option(session, what) or {}
    return as_word(offered.get(f"current{what.capitalize()}Id")) or as_word(
        option.get("currentValue")
    )


def _offered(session: Json, what: str) -> list[Any]:
    """The modes or the models of the session."""
    listed = as_list(as_dict(session.get(f"{what}s")).get(f"available{what.capitalize()}s"))
    options = as_list((_config_option(session, what) or {}).get("options"))
    ids = [as_dict(one).get("id") or as_dict(one).get("modelId") for one in listed]
    return ids + [as_dict(one).get("value") for one in options]


# --- errors --------------------------------------------------------------------------------------


def _means_lost(error: RpcError) -> bool:
    """Whether an error of session/load means that the session does not exist. The codes differ:
    -32002 by the standard, -32602 and -32603 of gemini."""
    words = reason_of(error).casefold()
    known = (
        "not found",
        "invalid session",
        "no such",
        "unknown session",
        "does not exist",
        "no previous sessions",
    )
    return error.code in (NOT_FOUND, -32602, METHOD_NOT_FOUND) or any(one in words for one in known)


def model_error(error: RpcError, resets_at: Any = None) -> Failed:
    """The failure for an error. Gemini's codes are those of HTTP; `resets_at`: see AcpTurn."""
    data = as_dict(error.data)
    kinds = [data.get("errorKind"), data.get("errorName")]
    kinds += ["auth"] if error.code == AUTH_REQUIRED else []
    return model_failure(
        reason_of(error),
        kinds=kinds,
        status=error.code,
        resets_at=resets_at,
        details={"code": error.code},
        otherwise="agent-error",
    )


def reason_of(error: RpcError) -> str:
    """The message, and the text in `data` if the message does not contain it."""
    data = error.data
    details = data.get("details") or data.get("message") if isinstance(data, dict) else data
    if isinstance(details, str) and details not in error.message:
        return f"{error.message}: {details}"
    if details and not isinstance(details, str):
        return f"{error.message}: {orjson.dumps(details).decode()}"
    return error.message
