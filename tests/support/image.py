"""The image of deploy/Containerfile: built by buildah on a base that debootstrap makes, and run by
bubblewrap as a container is: another user, a read-only root, no capabilities, the server as PID 1.

Mounts are made in mount namespaces that end with the commands. Folders are removed on one file
system only."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from tests import CHECKOUT
from tests.support.agent import PROGRAM
from tests.support.bridge_process import BridgeProcess
from tests.support.client import Json
from tests.support.debian import CERTIFICATES, LONGEST, debootstrap
from tests.support.reverse_proxies import tool

UID = 12345
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
NAME, BASE = "localhost/coding-agent-bridge", "localhost/base"


class Image:
    """An image in a storage below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._buildah = Path(tool("buildah", "usr/bin/buildah")).resolve()
        self.root = folder / "root"

    def build(self) -> None:
        debootstrap(self._folder / "base")
        self._run(["from", "--name", "base", "scratch"])
        self._run(["add", "-q", "base", str(self._folder / "base"), "/"])
        self._run(["config", "--env", f"PIP_CERT={CERTIFICATES}", "base"])
        self._run(["commit", "-q", "base", BASE])
        options = ["--isolation", "chroot", "--format", "docker", "--pull-never"]
        source = ["--build-arg", f"BASE={BASE}", "-f", "deploy/Containerfile", "."]
        self._run(["bud", *options, "-t", NAME, *source])
        self.unpack()

    def unpack(self) -> None:
        """The file system of the image in `root`."""
        self._run(["from", "--pull-never", "--name", "made", NAME])
        mounted = 'cp -a --one-file-system "$(%s mount made)" "%s"'
        self._run([], mounted % (" ".join(self._line()), self.root))

    def configuration(self) -> Json:
        """The configuration in the format of Docker."""
        found: Json = json.loads(self._run(["inspect", "--type", "image", NAME]))["Docker"]
        return found

    def _line(self) -> list[str]:
        return [
            *(str(self._buildah), "--root", str(self._folder / "storage")),
            *("--runroot", str(self._folder / "run"), "--storage-driver", "overlay"),
        ]

    def _run(self, arguments: list[str], script: str = "") -> str:
        """Run buildah, or a script with it, in a mount namespace where the loader finds its
        libraries."""
        package = self._buildah.parents[2]
        lower = f"{package}{LIBRARIES}:{LIBRARIES}"
        words = self._line()
        if arguments:
            policy = ["--signature-policy", str(package / "etc/containers/policy.json")]
            takes = arguments[0] in ("from", "commit", "bud")
            words += [arguments[0], *(policy if takes else []), *arguments[1:]]
        env = f"CONTAINERS_REGISTRIES_CONF={package}/etc/containers/registries.conf"
        mount = f'mount -t overlay overlay -o lowerdir="{lower}" {LIBRARIES} && '
        inner = script or 'exec "$@"'
        line = ["unshare", "--mount", "--propagation", "private", "env", env, "sh", "-c"]
        done = subprocess.run(
            [*line, mount + inner, "sh", *words],
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    @asynccontextmanager
    async def running(self, volumes: Path, port: int, **env: str) -> AsyncIterator[BridgeProcess]:
        """A container with the configuration of the image; `volumes` has the folders `state`,
        `home` and `workspace`. Its process is bubblewrap, and `token_file` a path on this
        machine."""
        config = self.configuration()["config"]
        variables = dict(one.split("=", 1) for one in config["Env"])
        variables |= {"PORT": str(port), **env}
        places = {"state": "/state", "home": "/home/agent", "workspace": "/workspace"}
        mounts = [one for name, at in places.items() for one in ("--bind", str(volumes / name), at)]
        process = await asyncio.create_subprocess_exec(
            *("setpriv", f"--reuid={UID}", "--regid=0", "--clear-groups", "--"),
            *("bwrap", "--unshare-user", "--unshare-pid", "--as-pid-1", "--die-with-parent"),
            *("--ro-bind", str(self.root), "/", "--proc", "/proc", "--dev", "/dev"),
            *("--tmpfs", "/tmp", "--tmpfs", "/run", *mounts, "--tmpfs", "/mnt"),
            *("--ro-bind", PROGRAM, "/mnt/agent.py", "--chdir", config["WorkingDir"]),
            "--clearenv",
            *(one for name, value in variables.items() for one in ("--setenv", name, value)),
            *config["Entrypoint"],
            *config["Cmd"],
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        server = BridgeProcess(process)
        try:
            await server.listening()
            server.token_file = volumes / server.token_file.relative_to("/")
            yield server
        finally:
            if process.returncode is None:
                process.kill()
            await server.ended()


@contextmanager
def storage(folder: Path) -> Iterator[Image]:
    yield Image(folder)
    subprocess.run(["rm", "-rf", "--one-file-system", str(folder)], check=False, timeout=LONGEST)
