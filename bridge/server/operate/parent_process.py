"""The parent process as the only client of a server, on stdin and stdout."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from bridge.auth.principal import OPERATOR, Principal
from bridge.errors import ConfigurationError
from bridge.server.app.sites import ServedAgent
from bridge.server.operate.parent_pipes import ParentPipes
from bridge.server.settings.root import Settings
from bridge.transports.envelope.answers import EnvelopeAgent, OwnAnswers

log = logging.getLogger(__name__)

ADDRESS = "http://localhost"


class ParentProcess:
    """The parent process as the client. `pipes`: the descriptors of its requests and its answers;
    `agent`: the id of its agent; `principal`: the name in [tokens.NAME] of its rights; `version`:
    of requests that name none. Raises ConfigurationError."""

    def __init__(
        self,
        settings: Settings,
        pipes: tuple[int, int],
        *,
        agent: str | None,
        principal: str | None,
        version: str | None,
    ) -> None:
        server = settings.server
        self._agent = agent
        self._principal = _principal(settings, principal)
        self._pipes = ParentPipes(
            pipes,
            version,
            longest=server.max_body_bytes,
            stall=server.stall_timeout_ms / 1000,
            wait=0.0 if server.on_stop == "keep" else server.drain_ms / 1000,
        )
        self.left = self._pipes.left
        self.end = self._pipes.end

    async def begin(self, root: ServedAgent, agents: Sequence[ServedAgent]) -> None:
        """Serve its requests from now on. Raises ConfigurationError."""
        served = root
        if self._agent is not None:
            found = {one.id: one for one in agents}
            if self._agent not in found:
                names = ", ".join(found)
                raise ConfigurationError(f"--agent {self._agent}: the agents are {names}.")
            served = found[self._agent]
        log.info("serving the parent process", extra={"agent": served.id})
        agent = EnvelopeAgent(served.operations, ADDRESS)
        self._pipes.serve(OwnAnswers(agent, self._identify, "stdio"))

    async def _identify(self) -> Principal:
        return self._principal


def _principal(settings: Settings, name: str | None) -> Principal:
    """The operator, or the principal of [tokens.NAME]. Raises ConfigurationError."""
    if name is None:
        return OPERATOR
    token = settings.auth.tokens.get(name)
    if token is None:
        raise ConfigurationError(f"--as {name}: there is no [tokens.{name}] in CONFIG_FILE.")
    return token.principal(name)
