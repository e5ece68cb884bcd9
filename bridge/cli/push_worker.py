"""`coding-agent-bridge push-worker`: send the notifications of servers with
BRIDGE_PUSH_RELAY=redis."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from aiohttp import web

from bridge.errors import ConfigurationError
from bridge.server.extras import push_worker
from bridge.server.operate.log_output import log_as
from bridge.server.settings.load import Loaded

log = logging.getLogger(__name__)


async def work(loaded: Loaded, metrics: str | None) -> int:
    """Send notifications until SIGTERM or SIGINT, and finish those in hand. `metrics`: HOST:PORT of
    /metrics. Returns the exit status. Raises ConfigurationError."""
    settings = loaded.settings
    log_as(loaded)
    for warning in loaded.warnings:
        log.warning(warning)
    place = _place(metrics) if metrics else None
    worker = push_worker(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=worker.metrics(), content_type="text/plain", charset="utf-8")

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        line = f"push worker  {worker.shown}, prefix {settings.redis.prefix}"
        if place:
            site = web.TCPSite(runner, *place)
            try:
                await site.start()
            except OSError as error:
                raise ConfigurationError(f"--metrics {metrics}: {error.strerror}") from error
            host, port = runner.addresses[0][:2]
            line += f"; metrics http://{host}:{port}/metrics"
        print(line, file=sys.stderr, flush=True)
        await worker.run()
    finally:
        await runner.cleanup()
    return 0


def _place(given: str) -> tuple[str, int]:
    """Host and port of HOST:PORT. Raises ConfigurationError."""
    host, _, port = given.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigurationError(f"--metrics {given}: HOST:PORT is expected.")
    return host.strip("[]"), int(port)
