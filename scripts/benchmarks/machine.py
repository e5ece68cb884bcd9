"""The machine of the figures."""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bridge
from scripts.benchmarks.servers import BRIDGE_SETTINGS, CHECKOUT, SDK_PYTHON, Agent, has_sdk

OURS = ("aiohttp", "orjson", "pydantic")
THEIRS = ("a2a-sdk", "uvicorn", "uvloop", "httptools", "starlette", "sse-starlette", "protobuf")
ADDITIONS = 300_000
FILES_PER_STREAM = 5  # the server has these open for each live task
_VERSIONS = (
    "import importlib.metadata as m, json, sys; "
    "print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
)


def facts(folder: Path, agent: Agent) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": {
            "cpu": _field("/proc/cpuinfo", "model name") or platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_mib": int(_field("/proc/meminfo", "MemTotal").split()[0]) // 1024,
            "kernel": platform.release(),
            "file_system": _file_system(folder),
            "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            "load": round(os.getloadavg()[0], 2),
        },
        "versions": {
            "bridge": bridge.__version__,
            "revision": _output("git", "-C", str(CHECKOUT), "describe", "--always", "--dirty"),
            "python": platform.python_version(),
            "ours": _versions(sys.executable, OURS),
            "sdk": _versions(str(SDK_PYTHON), THEIRS) if has_sdk() else {},
        },
        "agent": agent.language,
        "settings": {**BRIDGE_SETTINGS, "BRIDGE_TOKEN": "a random one, which clients send"},
    }


def raise_open_files(live: int) -> int:
    """Raise the limit of open files of this process and the servers. Returns the number of streams,
    at most `live`, that this limit allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return live if most < 0 else min(live, (most - 500) // FILES_PER_STREAM)


def spin() -> float:
    """Milliseconds for ADDITIONS in Python: the current speed of this machine, which may share its
    processors with other guests."""
    began = time.perf_counter()
    total = 0
    for number in range(ADDITIONS):
        total += number
    return (time.perf_counter() - began) * 1000


def _field(file: str, name: str) -> str:
    for line in Path(file).read_text().splitlines():
        found, _, value = line.partition(":")
        if found.strip() == name:
            return value.strip()
    return ""


def _file_system(folder: Path) -> str:
    return _output("stat", "--file-system", "--format", "%T", str(folder))


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _versions(python: str, names: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = json.loads(_output(python, "-c", _VERSIONS, *names))
    return found
