#!/usr/bin/python3
"""A stand-in for `systemctl` in a folder that is a machine: it runs a unit as systemd does.

It reads the unit and its drop-ins, makes the directories and the credentials, and starts the
program as the unit's user with its environment, without capabilities, with only the writable places
of ProtectSystem=strict, and waits for READY=1. `reload` runs ExecReload. The kernel filters
(SystemCallFilter=, Restrict…=) are not applied. nginx has commands of its own. The start of a
timer starts its service. All other commands go to the real systemctl. It imports nothing but the
standard library, because it runs in the machine.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

UNITS = Path("/etc/systemd/system")
RUN = Path("/run/units")
WITHIN = 60.0  # seconds for a start and a stop
PARENT = 'for one in "$@"; do [ "$one" = -- ] && break; mount --bind "$one" "$one"; done\n'
STRICT = (
    PARENT
    + "mount -t tmpfs -o mode=1777 tmpfs /tmp; mount -o remount,bind,ro /\n"
    + 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"'
)


class Unit:
    """A unit of systemd: `NAME@INSTANCE`."""

    def __init__(self, name: str) -> None:
        self.name = f"{name.removesuffix('.service')}.service"
        template, _, rest = self.name.partition("@")
        self.instance = rest.removesuffix(".service")
        self._values: dict[str, list[str]] = {}
        self.credentials = Path("/run/credentials") / self.name
        self.pid_file = RUN / f"{self.name}.pid"
        self.log = RUN / f"{self.name}.log"
        self._read(UNITS / f"{template}@.service")
        for folder in (f"{template}@.service.d", f"{self.name}.d"):
            for path in sorted((UNITS / folder).glob("*.conf")):
                self._read(path)
        self.user = pwd.getpwnam(self.one("User"))

    def _read(self, path: Path) -> None:
        section = ""
        for line in path.read_text().splitlines():
            if line.startswith("["):
                section = line
            name, equals, value = line.partition("=")
            if section != "[Service]" or not equals or line.startswith("#"):
                continue
            if not value:
                self._values[name] = []
            else:
                self._values.setdefault(name, []).append(self._expanded(value))

    def _expanded(self, value: str) -> str:
        known = {"i": self.instance, "S": "/var/lib", "d": str(self.credentials), "%": "%"}
        return re.sub(r"%(.)", lambda found: known[found[1]], value)

    def one(self, name: str) -> str:
        return self._values[name][-1]

    def words(self, name: str) -> list[str]:
        return [word for value in self._values.get(name, []) for word in shlex.split(value)]

    def pid(self) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            pid = int(self.pid_file.read_text())
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z":  # no init collects it here
                return pid
        return None

    def start(self) -> None:
        RUN.mkdir(exist_ok=True)
        writable = self._directories()
        if self.one("Type") == "oneshot":
            line = self._line("ExecStart", writable)
            subprocess.run(line, env=self._environment(), check=True, cwd="/", timeout=WITHIN)
            return
        address = RUN / "notify"
        address.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.bind(str(address))
            address.chmod(0o777)
            notify.settimeout(WITHIN)
            env = self._environment(NOTIFY_SOCKET=str(address))
            with self.log.open("ab") as log:
                line = self._line("ExecStart", writable)
                process = subprocess.Popen(
                    line, env=env, stdin=subprocess.DEVNULL, stderr=log, stdout=log,
                    cwd=self.one("WorkingDirectory"), start_new_session=True,
                )  # fmt: skip
            self.pid_file.write_text(str(process.pid))
            while True:
                try:
                    said = notify.recv(4096).decode()
                except TimeoutError:
                    process.kill()
                    sys.exit(f"no READY=1:\n{self.log.read_text()}")
                if "READY=1" in said.split("\n"):
                    return

    def stop(self) -> None:
        pid = self.pid()
        if pid is None:
            return
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + WITHIN
        while self.pid() is not None:
            if time.monotonic() > deadline:
                sys.exit("it does not stop")
            time.sleep(0.05)

    def reload(self) -> None:
        env = self._environment()
        subprocess.run(self._line("ExecReload", []), env=env, check=True, cwd="/", timeout=WITHIN)

    def _environment(self, **more: str) -> dict[str, str]:
        user = self.user
        base = {"PATH": "/usr/local/bin:/usr/bin:/bin", "USER": user.pw_name, "HOME": user.pw_dir}
        base["CREDENTIALS_DIRECTORY"] = str(self.credentials)
        own = dict(word.split("=", 1) for word in self.words("Environment"))
        return {**base, **own, **more}

    def _directories(self) -> list[str]:
        """Make the unit's directories and credentials. Returns the places that it may write."""
        places = [f"/var/lib/{one}" for one in self.words("StateDirectory")]
        runtime = [f"/run/{one}" for one in self.words("RuntimeDirectory")]
        modes = [*((one, self.one("StateDirectoryMode")) for one in places)]
        modes += [(one, self.one("RuntimeDirectoryMode")) for one in runtime]
        for place, mode in modes:
            Path(place).mkdir(parents=True, exist_ok=True)
            os.chmod(place, int(mode, 8))
            os.chown(place, self.user.pw_uid, self.user.pw_gid)
        self.credentials.mkdir(parents=True, exist_ok=True)
        for one in self.words("LoadCredential"):
            name, _, source = one.partition(":")
            target = self.credentials / name
            target.unlink(missing_ok=True)
            shutil.copyfile(source, target)
            os.chown(target, self.user.pw_uid, self.user.pw_gid)
            target.chmod(0o400)
        return [*places, *runtime, *self.words("ReadWritePaths")]

    def _line(self, name: str, writable: list[str]) -> list[str]:
        user = self.user
        drop = ("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
        own = ("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--init-groups")
        umask = ("sh", "-c", f'umask {self.one("UMask")}; exec "$@"', "sh")
        line = [*own, *drop, *umask, *shlex.split(self.one(name).replace("$$", "$"))]
        if not writable:
            return line
        return ["unshare", "--mount", "sh", "-ec", STRICT, "sh", *writable, "--", *line]


def nginx() -> None:
    pid = Path("/run/nginx.pid")
    running = pid.exists() and pid.read_text().strip()  # `nginx -t` makes an empty file
    subprocess.run(["nginx", *(["-s", "reload"] if running else [])], check=True, timeout=WITHIN)


def main(command: str, names: list[str]) -> int:
    if command not in ("start", "stop", "restart", "reload", "reload-or-restart"):
        line = ["/usr/bin/systemctl", command, *names]
        env = {**os.environ, "SYSTEMD_OFFLINE": "1"}
        return subprocess.run(line, env=env, check=False).returncode
    for name in names:
        if name == "nginx":
            nginx()
            continue
        unit = Unit(name.replace(".timer", ".service"))
        if command in ("stop", "restart"):
            unit.stop()
        if command in ("start", "restart"):
            unit.start()
        if command in ("reload", "reload-or-restart"):
            unit.reload()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
