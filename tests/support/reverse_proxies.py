"""Real reverse proxies with the configurations of deploy/, on ports and with a certificate of the
test. scripts/install unpacks the programs."""

from __future__ import annotations

import datetime
import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests import CHECKOUT
from tests.support import programs
from tests.support.free_port import free_port

TOOLS = CHECKOUT / ".venvs/tools"
WITHIN = 30.0  # seconds for a start and a stop
NONE: Mapping[str, str] = {}


def tool(name: str, path: str) -> str:
    """The path of a program of a Debian package that scripts/install unpacks. Skips the test if it
    is missing."""
    found = TOOLS / name / path
    if not found.exists():
        pytest.skip(programs.missing(name))
    return str(found)


def certificate(folder: Path) -> tuple[Path, Path]:
    """The files of a certificate for localhost, and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(IPv4Address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "bridge.pem", folder / "bridge.key"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    paths[1].write_bytes(private)
    return paths


def replaced(text: str, changes: Mapping[str, str]) -> str:
    """`text` with each key replaced. Each must be there: otherwise the test would not run the file
    that is shipped."""
    for before, after in changes.items():
        assert before in text, before
        text = text.replace(before, after)
    return text


class ReverseProxy:
    """A proxy with a configuration of deploy/. `check`, `run` and `reload` are its command lines;
    `end` is the signal that ends it at once."""

    def __init__(
        self,
        folder: Path,
        port: int,
        *,
        check: list[str],
        run: list[str],
        reload: list[str],
        end: signal.Signals,
    ) -> None:
        self.port = port
        self._end = end
        self.url = f"https://localhost:{port}"
        self.check = check
        self._run = run
        self._reload = reload
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self._folder / "bridge.pem"))

    @property
    def root(self) -> bytes:
        return (self._folder / "bridge.pem").read_bytes()

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        with (self._folder / "proxy.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._run, cwd=self._folder, env=self._env, stdout=log, stderr=log
            )
        deadline = time.monotonic() + WITHIN
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                log_text = (self._folder / "proxy.log").read_text(errors="replace")
                assert self._process.poll() is None and time.monotonic() < deadline, log_text
                time.sleep(0.01)

    @property
    def _env(self) -> dict[str, str]:
        return {"HOME": str(self._folder), "XDG_DATA_HOME": str(self._folder)}

    def reload(self) -> None:
        """Let it read its configuration again, as an operator does after a change."""
        subprocess.run(
            self._reload,
            cwd=self._folder,
            env=self._env,
            capture_output=True,
            timeout=WITHIN,
            check=True,
        )

    def stop(self) -> None:
        """End it at once, with all connections."""
        if self._process:
            self._process.send_signal(self._end)
            self._process.wait(WITHIN)
            self._process = None


def nginx(
    folder: Path, http: str, grpc: int, changes: Mapping[str, str] = NONE, user: str = "root"
) -> ReverseProxy:
    """nginx on a free port, in front of the server at `http` and its port for gRPC. `changes` of
    the configuration are for a test; `user` is that of its workers, if this one is root."""
    program, port = tool("nginx", "usr/sbin/nginx"), free_port()
    cert, key = certificate(folder)
    shipped = (CHECKOUT / "deploy/nginx/bridge.conf").read_text()
    included = replaced(
        shipped,
        {
            "listen 443 ssl http2;": f"listen 127.0.0.1:{port} ssl http2;",
            "    listen [::]:443 ssl http2;\n": "",
            "server_name bridge.example.org": "server_name localhost",
            "/etc/ssl/certs/bridge.pem": str(cert),
            "/etc/ssl/private/bridge.key": str(key),
            "127.0.0.1:41242": http,
            "127.0.0.1:41243": f"127.0.0.1:{grpc}",
            **changes,
        },
    )
    places = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    who = f"user {user};\n" if os.geteuid() == 0 else ""  # else it cannot write to this folder
    (folder / "nginx.conf").write_text(
        f"{who}daemon off; pid {folder}/pid; error_log stderr;\nevents {{ }}\n"
        f"http {{\naccess_log off;\n{places}{included}\n}}\n"
    )
    line = [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]
    reload = [*line, "-s", "reload"]
    return ReverseProxy(
        folder, port, check=[*line, "-t"], run=line, reload=reload, end=signal.SIGTERM
    )


def caddy(
    folder: Path, http: str, grpc: int, changes: Mapping[str, str] = NONE, user: str = "root"
) -> ReverseProxy:
    """The same with Caddy, which has one user."""
    program, port = tool("caddy", "usr/bin/caddy"), free_port()
    cert, key = certificate(folder)
    shipped = (CHECKOUT / "deploy/caddy/Caddyfile").read_text()
    made = replaced(
        shipped,
        {
            "\nbridge.example.org {\n": f"\nhttps://localhost:{port} {{\n\ttls {cert} {key}\n",
            "127.0.0.1:41242": http,
            "127.0.0.1:41243": f"127.0.0.1:{grpc}",
            **changes,
        },
    )
    options = f"{{\n\tadmin unix/{folder}/admin\n\tauto_https disable_redirects\n}}\n"
    (folder / "Caddyfile").write_text(options + made)
    line = ["--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]
    return ReverseProxy(
        folder,
        port,
        check=[program, "validate", *line],
        run=[program, "run", *line],
        reload=[program, "reload", "--force", *line],
        end=signal.SIGKILL,  # else it waits for all streams
    )


PROXIES: dict[str, Callable[..., ReverseProxy]] = {"nginx": nginx, "caddy": caddy}


@contextmanager
def running(proxy: ReverseProxy) -> Iterator[ReverseProxy]:
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
