"""A free TCP port for a program that cannot take port 0.

The ports are below the range from which the kernel gives ports to connections and to port 0, so
that no other program gets one between this call and the start of the test's program.
"""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

LOWEST = 10_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_random = random.Random(os.getpid())  # parallel runs begin at different ports


def free_port() -> int:
    above = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    while True:
        port = _random.randrange(LOWEST, above)
        try:
            with socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True):
                return port
        except OSError:
            continue
