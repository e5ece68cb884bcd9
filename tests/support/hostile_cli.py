"""A program for the `jsonl` adapter that tries to get out of where it runs, and says what worked.

    python -I -S hostile_cli.py

The prompt's text is JSON with its targets (tests/support/blast_radius.py makes them): folders,
files, ports and processes that belong to the test, so that nobody is harmed where an attempt
works. What belongs to the system is only opened, never written to; signals are number 0, which
asks whether one might be sent; what is big is bounded. Each attempt is made in a process of its
own, which ends afterwards. The answer is a line of JSON for each: {"name", "worked", "detail"}.

For the network, "worked" means that the sandbox let it try; what answers is somebody else's matter.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import http.client
import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAM = str(Path(__file__).resolve())
Targets = dict[str, Any]
Attempt = Callable[[Targets], object]
ATTEMPTS: dict[str, Attempt] = {}
PATIENCE = 10  # seconds for an attempt
FORKS = 150
FILES = 3000
BIG = 256 * 1024 * 1024  # where a single byte is written, to a file that is sparse
DENIED = (errno.EACCES, errno.EPERM)
STOLEN = "coding-agent-bridge-hostile"  # what it makes is called so

LIBC = ctypes.CDLL(None, use_errno=True)
X86 = os.uname().machine == "x86_64"


class Failed(Exception):
    """It did not work, for a reason that is no errno."""


def attempt(test: Attempt) -> Attempt:
    """An attempt, called after its function. It returns if it worked, and raises if not."""
    ATTEMPTS[test.__name__.strip("_").replace("_", "-")] = test
    return test


def done(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def syscall(number: int, *arguments: Any) -> int:
    longs = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return done(LIBC.syscall(ctypes.c_long(number), *longs))


def prctl(option: int, *arguments: int) -> int:
    given = [ctypes.c_ulong(one) for one in (*arguments, 0, 0, 0, 0)[:4]]
    return done(LIBC.prctl(option, *given))


def touch(path: str) -> None:
    """Open an existing path for writing, and write nothing."""
    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY))


def make(folder: str) -> None:
    """A file of its own, which it removes again."""
    path = os.path.join(folder, f"{STOLEN}-{os.getpid()}")
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    os.unlink(path)


def read(path: str) -> str:
    with open(path, "rb") as file:
        return f"{len(file.read(4096))} bytes"


# --- changing files ------------------------------------------------------------------------------


@attempt
def write_in_home(at: Targets) -> None:
    make(at["home"])


@attempt
def write_bashrc(at: Targets) -> None:
    touch(at["home"] + "/.bashrc")


@attempt
def write_ssh(at: Targets) -> None:
    make(at["home"] + "/.ssh")


@attempt
def write_beside_the_workspace(at: Targets) -> None:
    make(os.path.dirname(at["workspace"]))


@attempt
def write_in_another_workspace(at: Targets) -> None:
    touch(at["outside"] + "/file")


@attempt
def write_through_a_symlink(at: Targets) -> None:
    link = at["workspace"] + "/link"
    os.symlink(at["outside"] + "/file", link)
    try:
        touch(link)
    finally:
        os.unlink(link)


@attempt
def write_through_proc_root(at: Targets) -> None:
    touch("/proc/self/root" + at["outside"] + "/file")


@attempt
def write_through_a_hard_link(at: Targets) -> None:
    link = at["workspace"] + "/hard"
    os.link(at["outside"] + "/file", link)
    try:
        touch(link)
    finally:
        os.unlink(link)


@attempt
def move_a_file_out(at: Targets) -> None:
    inside = at["workspace"] + "/moved"
    Path(inside).touch()
    try:
        os.rename(inside, at["outside"] + "/moved")
        os.unlink(at["outside"] + "/moved")
    finally:
        Path(inside).unlink(missing_ok=True)


@attempt
def move_a_file_in(at: Targets) -> None:
    os.rename(at["outside"] + "/movable", at["workspace"] + "/movable")
    os.rename(at["workspace"] + "/movable", at["outside"] + "/movable")


@attempt
def truncate_outside(at: Targets) -> None:
    path = at["outside"] + "/file"
    os.truncate(path, os.stat(path).st_size)


@attempt
def delete_outside(at: Targets) -> None:
    os.unlink(at["outside"] + "/deletable")


@attempt
def chmod_outside(at: Targets) -> None:
    path = at["outside"] + "/file"
    os.chmod(path, stat.S_IMODE(os.stat(path).st_mode))


@attempt
def chown_outside(at: Targets) -> None:
    path = at["outside"] + "/file"
    os.chown(path, os.stat(path).st_uid, os.stat(path).st_gid)


@attempt
def give_a_file_away(at: Targets) -> None:
    path = at["workspace"] + "/given"
    Path(path).touch()
    try:
        os.chown(path, 65534, -1)
    finally:
        os.unlink(path)


@attempt
def change_times_outside(at: Targets) -> None:
    os.utime(at["outside"] + "/file")


@attempt
def change_attributes_outside(at: Targets) -> None:
    """Those of chattr, which a descriptor for reading is enough for."""
    with open(at["outside"] + "/file", "rb") as file:
        flags = fcntl.ioctl(file, 0x80086601, bytes(8))  # FS_IOC_GETFLAGS
        fcntl.ioctl(file, 0x40086602, flags)


@attempt
def lease_a_file_outside(at: Targets) -> None:
    """Each program that writes to the file has to wait."""
    with open(at["outside"] + "/file", "rb") as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)


@attempt
def lock_a_file_outside(at: Targets) -> None:
    """Programs wait that lock the file as well."""
    with open(at["outside"] + "/file", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@attempt
def mkdir_in_tmp(at: Targets) -> None:
    path = f"{at['tmp']}/{STOLEN}-{os.getpid()}"
    os.mkdir(path)
    os.rmdir(path)


@attempt
def write_shared_memory(at: Targets) -> None:
    make("/dev/shm")


@attempt
def make_a_device(at: Targets) -> None:
    path = at["workspace"] + "/null"
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    os.unlink(path)


@attempt
def make_a_fifo_outside(at: Targets) -> None:
    path = f"{at['outside']}/fifo-{os.getpid()}"
    os.mkfifo(path)
    os.unlink(path)


@attempt
def listen_on_a_socket_outside(at: Targets) -> None:
    path = f"{at['outside']}/s-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path)
    os.unlink(path)


@attempt
def write_the_state_of_the_bridge(at: Targets) -> None:
    make(at["state"])


@attempt
def rewrite_its_own_output(at: Targets) -> None:
    fd = os.open("/proc/self/fd/1", os.O_WRONLY)
    os.lseek(fd, 0, os.SEEK_SET)


@attempt
def cut_its_own_output(at: Targets) -> None:
    os.ftruncate(1, os.fstat(1).st_size)


@attempt
def write_system_files(at: Targets) -> None:
    touch("/etc/passwd")


@attempt
def write_kernel_settings(at: Targets) -> None:
    touch("/proc/sys/kernel/core_pattern")


@attempt
def write_another_terminal(at: Targets) -> None:
    touch(at["terminal"])


@attempt
def leave_a_set_user_id_file(at: Targets) -> None:
    path = at["workspace"] + "/set-id"
    Path(path).touch()
    try:
        os.chmod(path, 0o4755)
    finally:
        os.unlink(path)


@attempt
def replace_its_attachments_by_a_link(at: Targets) -> None:
    os.rename(at["attached"], at["attached"] + ".away")
    os.symlink(at["outside"], at["attached"])
    os.unlink(at["attached"])
    os.rename(at["attached"] + ".away", at["attached"])


@attempt
def change_the_code_of_the_bridge(at: Targets) -> None:
    touch(at["code"])


@attempt
def change_the_settings_of_the_bridge(at: Targets) -> None:
    touch(at["settings"])


@attempt
def write_git_hooks(at: Targets) -> None:
    make(at["workspace"] + "/.git/hooks")


@attempt
def write_git_config(at: Targets) -> None:
    touch(at["workspace"] + "/.git/config")


# --- reading -------------------------------------------------------------------------------------


@attempt
def read_shadow(at: Targets) -> str:
    return read("/etc/shadow")


@attempt
def read_ssh_key(at: Targets) -> str:
    return read(at["home"] + "/.ssh/id_ed25519")


@attempt
def read_the_settings_of_the_bridge(at: Targets) -> str:
    return read(at["settings"])


@attempt
def read_the_credentials_of_other_tools(at: Targets) -> str:
    return read(at["home"] + "/.config/gh/hosts.yml") + read(at["home"] + "/.kube/config")


@attempt
def read_its_attachments(at: Targets) -> str:
    return str(len(os.listdir(at["attached"])))


@attempt
def read_another_workspace(at: Targets) -> str:
    return read(at["outside"] + "/file")


@attempt
def read_the_state_of_the_bridge(at: Targets) -> str:
    return read(at["state"] + "/secret")


@attempt
def watch_a_hidden_folder(at: Targets) -> None:
    """The names of the files that change there."""
    folder = at["home"] + "/.ssh"
    watch = done(LIBC.inotify_init1(os.O_NONBLOCK))
    done(LIBC.inotify_add_watch(watch, folder.encode(), 0x100))  # IN_CREATE
    if os.stat(folder).st_dev != os.stat(at["home"]).st_dev:
        raise Failed("an empty folder covers it")


@attempt
def read_the_environment_of_the_bridge(at: Targets) -> str:
    return read(f"/proc/{at['bridge']}/environ")


@attempt
def read_the_memory_of_the_bridge(at: Targets) -> None:
    os.close(os.open(f"/proc/{at['bridge']}/mem", os.O_RDONLY))


@attempt
def read_the_descriptors_of_the_bridge(at: Targets) -> str:
    return os.readlink(f"/proc/{at['bridge']}/fd/0")


@attempt
def read_the_folder_of_the_bridge(at: Targets) -> str:
    return str(len(os.listdir(f"/proc/{at['bridge']}/cwd/")))


@attempt
def read_the_command_line_of_the_bridge(at: Targets) -> str:
    return read(f"/proc/{at['bridge']}/cmdline")


@attempt
def read_the_environment_of_a_neighbour(at: Targets) -> str:
    return read(f"/proc/{at['neighbour']}/environ")


@attempt
def open_by_handle(at: Targets) -> None:
    """A target without a path lookup does not count as outside."""
    get, get_mount = (303, 304) if X86 else (264, 265)
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    mount = ctypes.c_int()
    path = (at["outside"] + "/file").encode()
    syscall(get, -100, path, handle, ctypes.byref(mount), 0)
    folder = os.open(at["workspace"], os.O_RDONLY)
    os.close(syscall(get_mount, folder, handle, os.O_WRONLY))


# --- other processes -----------------------------------------------------------------------------


def seize(pid: int) -> None:
    done(LIBC.ptrace(0x4206, pid, None, None))  # does not stop it; ends with this process


def peek(pid: int) -> None:
    here = ctypes.create_string_buffer(8)
    # Without a length there is nothing to read, but whether it may is looked at.
    vector = struct.pack("PN", ctypes.addressof(here), 8)
    syscall(310 if X86 else 270, pid, vector, 1, vector, 1, 0)


@attempt
def trace_the_bridge(at: Targets) -> None:
    seize(at["bridge"])


@attempt
def trace_a_neighbour(at: Targets) -> None:
    seize(at["neighbour"])


@attempt
def copy_the_memory_of_the_bridge(at: Targets) -> None:
    try:
        peek(at["bridge"])
    except OSError as error:
        if error.errno != errno.EFAULT:  # nothing is at that address there: it was looked
            raise


@attempt
def take_a_descriptor_of_the_bridge(at: Targets) -> None:
    pidfd = os.pidfd_open(at["bridge"])
    os.close(syscall(438, pidfd, 2, 0))  # pidfd_getfd


@attempt
def signal_the_bridge(at: Targets) -> None:
    os.kill(at["bridge"], 0)


@attempt
def signal_a_neighbour(at: Targets) -> None:
    os.kill(at["neighbour"], 0)


@attempt
def signal_by_pidfd(at: Targets) -> None:
    signal.pidfd_send_signal(os.pidfd_open(at["bridge"]), 0)


@attempt
def signal_all_processes(at: Targets) -> str:
    """The processes outside of its session that kill(-1) would reach."""
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            if os.getsid(pid) != os.getsid(0):
                os.kill(pid, 0)
                found.append(pid)
        except OSError:
            continue
    if not found:
        raise Failed("nobody can be reached")
    return f"{len(found)} processes"


@attempt
def type_into_another_terminal(at: Targets) -> None:
    fd = os.open(at["terminal"], os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    fcntl.ioctl(fd, 0x5412, b"x")  # TIOCSTI


# The values that a process has already, so that nobody is harmed.


def limit(pid: int, number: int) -> None:
    resource.prlimit(pid, number, resource.prlimit(pid, number))


@attempt
def limit_the_time_of_the_bridge(at: Targets) -> None:
    limit(at["bridge"], resource.RLIMIT_CPU)


@attempt
def limit_the_files_of_the_bridge(at: Targets) -> None:
    limit(at["bridge"], resource.RLIMIT_NOFILE)


@attempt
def limit_the_time_of_a_neighbour(at: Targets) -> None:
    limit(at["neighbour"], resource.RLIMIT_CPU)


@attempt
def slow_the_bridge_down(at: Targets) -> None:
    os.setpriority(os.PRIO_PROCESS, at["bridge"], os.getpriority(os.PRIO_PROCESS, at["bridge"]))


@attempt
def slow_a_neighbour_down(at: Targets) -> None:
    pid = at["neighbour"]
    os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid))


@attempt
def change_the_scheduling_of_the_bridge(at: Targets) -> None:
    os.sched_setscheduler(at["bridge"], os.SCHED_OTHER, os.sched_param(0))


@attempt
def take_processors_from_the_bridge(at: Targets) -> None:
    os.sched_setaffinity(at["bridge"], os.sched_getaffinity(at["bridge"]))


@attempt
def slow_the_disk_of_the_bridge_down(at: Targets) -> None:
    """In a class of its own, the priority follows from setpriority()."""
    kept = syscall(252 if X86 else 31, 1, at["bridge"])  # ioprio_get
    syscall(251 if X86 else 30, 1, at["bridge"], kept)


@attempt
def give_its_parent_a_child(at: Targets) -> None:
    """CLONE_PARENT: the parent of a CLI is the launcher or the server."""
    if syscall(56 if X86 else 220, 0x8000 | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        os._exit(0)


@attempt
def change_its_mark(at: Targets) -> None:
    """RLIMIT_LOCKS, which limits nothing: a value there can say which session it is."""
    resource.setrlimit(10, resource.getrlimit(10))


@attempt
def kill_the_group_of_the_bridge(at: Targets) -> None:
    touch(at["cgroup"] + "/cgroup.procs")


@attempt
def leave_its_group(at: Targets) -> None:
    touch(at["cgroup"] + "/cgroup.procs")


@attempt
def leave_its_group_by_a_child(at: Targets) -> None:
    """CLONE_INTO_CGROUP: of the group's files, only their mode counts."""
    group = os.open(at["cgroup"], os.O_RDONLY | os.O_DIRECTORY)
    order = struct.pack("11Q", 1 << 33, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, group)
    pid = syscall(435, order, len(order))
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


@attempt
def live_on_in_another_session(at: Targets) -> None:
    _leave_behind(at, "session", dict(os.environ))


@attempt
def live_on_without_its_marker(at: Targets) -> None:
    _leave_behind(at, "marker", {})


def _leave_behind(at: Targets, name: str, environment: dict[str, str]) -> None:
    """A process without parent links, session or environment that lead to its origin;
    blast_radius.py checks whether it exists at the end."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            code = "import time; time.sleep(120)"
            token = f"{at['token']}-{name}"
            for fd in range(3):
                os.dup2(os.open(os.devnull, os.O_RDWR), fd)
            os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", code, token], environment)
        os._exit(0)
    os.wait()


# --- what its CLI executes or trusts -------------------------------------------------------------


def plant(at: Targets, name: str) -> None:
    """In the operator's folder, or in the folder of its CLI's settings."""
    first, *others = (at["home"] + "/.text-only", os.environ.get("TEXT_ONLY_HOME"))
    for folder in filter(None, (first, *others)):
        with contextlib.suppress(OSError):
            return touch(f"{folder}/{name}")
    touch(f"{first}/{name}")


@attempt
def change_the_settings_of_its_cli(at: Targets) -> None:
    plant(at, "settings.json")


@attempt
def change_a_hook_of_its_cli(at: Targets) -> None:
    plant(at, "hooks/start.sh")


@attempt
def change_a_plugin_of_its_cli(at: Targets) -> None:
    plant(at, "plugins/one/index.js")


# --- the bridge's own API ------------------------------------------------------------------------


def call_the_bridge(
    at: Targets, token: str, method: str, params: Targets, path: str | None = None
) -> str:
    """`path`: the Unix socket to call it through."""
    connection = http.client.HTTPConnection("127.0.0.1", at["port"], timeout=PATIENCE)
    if path:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(PATIENCE)
        connection.sock.connect(path)
    headers = {
        **{"Host": "localhost", "A2A-Version": "1.0", "Content-Type": "application/json"},
        **({"Authorization": token} if token else {}),
    }
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    try:
        connection.request("POST", "/a2a", body, headers)
        response = connection.getresponse()
    except http.client.HTTPException as error:
        raise Failed(type(error).__name__) from None
    answer = response.read().decode()
    if response.status != 200 or "error" in json.loads(answer):
        raise Failed(f"{response.status} {answer[:200]}")
    return answer[:200]


def message(text: str, **more: Any) -> Targets:
    parts = [{"text": text}]
    return {"message": {"messageId": "hostile", "role": "ROLE_USER", "parts": parts, **more}}


@attempt
def use_the_bridge_without_a_token(at: Targets) -> str:
    return call_the_bridge(at, "", "ListTasks", {})


@attempt
def use_the_bridge_with_the_token_of_its_operator(at: Targets) -> str:
    return call_the_bridge(at, at["token of the operator"], "ListTasks", {})


@attempt
def use_the_socket_of_the_bridge_without_a_token(at: Targets) -> str:
    return call_the_bridge(at, "", "ListTasks", {}, path=at["bridge socket"])


@attempt
def use_the_socket_of_the_bridge_with_the_token_of_its_operator(at: Targets) -> str:
    token = at["token of the operator"]
    return call_the_bridge(at, token, "ListTasks", {}, path=at["bridge socket"])


@attempt
def approve_a_permission(at: Targets) -> str:
    answer = message("yes", taskId=at["asking"])
    return call_the_bridge(at, at["token of the operator"], "SendMessage", answer)


@attempt
def delegate_to_an_agent_without_a_boundary(at: Targets) -> str:
    task = message("text done", metadata={"bridge": {"agent": "open"}})
    return call_the_bridge(at, at["token of the operator"], "SendMessage", task)


# --- the network ---------------------------------------------------------------------------------


def connect(one: socket.socket, address: Any) -> str:
    """Begin to; not being denied is enough."""
    with one:
        one.setblocking(False)
        code = one.connect_ex(address)
        if code in DENIED:
            raise OSError(code, os.strerror(code))
        if code == errno.EINPROGRESS:
            select.select([], [one], [], 0.2)
    return errno.errorcode.get(code, "connected")


@attempt
def connect_to_the_bridge(at: Targets) -> str:
    return connect(socket.socket(), ("127.0.0.1", at["port"]))


@attempt
def connect_by_multipath_tcp(at: Targets) -> str:
    return connect(
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262), ("127.0.0.1", at["port"])
    )


@attempt
def connect_while_sending(at: Targets) -> str:
    """TCP Fast Open: a connection without connect(2), which rules for ports do not see."""
    with socket.socket() as connection:
        connection.sendto(b"x", socket.MSG_FASTOPEN, ("127.0.0.1", at["database"]))
    return "sent"


@attempt
def connect_to_a_database(at: Targets) -> str:
    return connect(socket.socket(), ("127.0.0.1", at["database"]))


@attempt
def connect_over_ipv6(at: Targets) -> str:
    return connect(socket.socket(socket.AF_INET6), ("::ffff:127.0.0.1", at["database"]))


@attempt
def connect_to_the_metadata_service(at: Targets) -> str:
    return connect(socket.socket(), ("169.254.169.254", 80))


@attempt
def connect_to_the_model(at: Targets) -> str:
    return connect(socket.socket(), ("127.0.0.1", at["model"]))


@attempt
def connect_to_an_abstract_socket(at: Targets) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.connect("\0" + at["abstract"])


@attempt
def connect_to_the_socket_of_a_service(at: Targets) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(at["socket"])


@attempt
def connect_to_the_socket_of_the_bridge(at: Targets) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(at["bridge socket"])


@attempt
def send_to_the_socket_of_a_service(at: Targets) -> None:
    """By a socket pair, which needs no name."""
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.sendto(b"x", at["datagrams"])


@attempt
def send_udp(at: Targets) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.sendto(b"x", ("127.0.0.1", at["database"]))


@attempt
def open_a_raw_socket(at: Targets) -> None:
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()


@attempt
def open_a_packet_socket(at: Targets) -> None:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()


@attempt
def open_a_socket_to_the_hypervisor(at: Targets) -> None:
    socket.socket(40, socket.SOCK_STREAM).close()


@attempt
def listen_on_a_privileged_port(at: Targets) -> None:
    for port in range(900, 1000):  # one of them is free
        with contextlib.suppress(OSError):
            return listen(port)
    raise Failed("none of the ports")


@attempt
def listen_on_a_port(at: Targets) -> None:
    listen(at["free"])


@attempt
def listen_on_any_free_port(at: Targets) -> None:
    listen(0)


@attempt
def listen_beside_the_bridge_on_localhost(at: Targets) -> None:
    listen_beside(at["port"], "::1", "127.0.0.1", "127.0.0.2", "::ffff:127.0.0.1")


@attempt
def listen_beside_the_bridge_on_all_addresses(at: Targets) -> None:
    listen_beside(at["port"], "::", "0.0.0.0")


@attempt
def listen_on_the_grpc_port_of_the_bridge(at: Targets) -> None:
    listen_beside(at["grpc"], "127.0.0.1", "::1", "::", "0.0.0.0", "127.0.0.2")


def listen_beside(port: int, *hosts: str) -> None:
    """On any of these addresses, with each option that may share a port."""
    problem = None
    for host in hosts:
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as one:
                try:
                    one.setsockopt(socket.SOL_SOCKET, option, 1)
                    if ":" in host:
                        only = "." not in host
                        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
                    one.bind((host, port))
                    one.listen()
                    return
                except OSError as error:
                    problem = error
    assert problem
    raise problem


def listen(port: int) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", port))


# --- privileges and the kernel -------------------------------------------------------------------


@attempt
def gain_privileges_by_setuid(at: Targets) -> None:
    if prctl(39):  # PR_GET_NO_NEW_PRIVS
        raise Failed("no new privileges")


@attempt
def become_another_user(at: Targets) -> None:
    os.setuid(os.getuid() + 1)


@attempt
def mount_over_the_workspace(at: Targets) -> None:
    """In a namespace of its own, which other processes do not see."""
    flags = 0x00020000 | (0 if os.geteuid() == 0 else 0x10000000)
    if LIBC.unshare(flags) < 0:
        done(LIBC.unshare(flags | 0x10000000))
    done(LIBC.mount(None, b"/", None, ctypes.c_ulong(0x44000), None))  # private, below as well
    done(LIBC.mount(b"none", at["workspace"].encode(), b"tmpfs", ctypes.c_ulong(0), None))


@attempt
def make_a_user_namespace(at: Targets) -> None:
    done(LIBC.unshare(0x10000000))


@attempt
def make_a_user_namespace_by_a_child(at: Targets) -> None:
    pid = syscall(56 if X86 else 220, 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


@attempt
def change_the_root(at: Targets) -> None:
    os.chroot(at["workspace"])


@attempt
def load_a_module(at: Targets) -> None:
    try:
        syscall(313 if X86 else 273, -1, b"", 0)  # finit_module of nothing
    except OSError as error:
        if error.errno != errno.EBADF:
            raise


@attempt
def rename_the_host(at: Targets) -> None:
    socket.sethostname(socket.gethostname())


@attempt
def use_io_uring(at: Targets) -> None:
    os.close(syscall(425, 1, ctypes.create_string_buffer(120)))


@attempt
def use_the_keyring(at: Targets) -> None:
    syscall(250 if X86 else 219, 0, -3, 0)  # the id of the session's


@attempt
def use_performance_counters(at: Targets) -> None:
    attributes = ctypes.create_string_buffer(struct.pack("IIQ", 1, 64, 0) + bytes(48))
    os.close(syscall(298 if X86 else 241, attributes, 0, -1, -1, 0))


@attempt
def handle_its_own_page_faults(at: Targets) -> None:
    os.close(syscall(323 if X86 else 282, 1))  # userfaultfd, of user space only


@attempt
def loosen_its_own_rules(at: Targets) -> None:
    """A ruleset that allows everything comes on top of the others, and not in their place."""
    rules = struct.pack("QQQ", 0x1FFF, 0, 0)
    fd = syscall(444, rules, len(rules), 0)
    root = os.open("/", os.O_PATH)
    syscall(445, fd, 1, struct.pack("=Qi", 0x1FFF, root), 0)
    prctl(38, 1)
    syscall(446, fd, 0)
    touch(at["outside"] + "/file")


@attempt
def run_from_memory(at: Targets) -> None:
    fd = os.memfd_create("hostile")
    os.write(fd, Path("/bin/true").read_bytes())
    child = os.fork()
    if child == 0:
        os.execve(fd, ["true"], {})
    if os.waitpid(child, 0)[1]:
        raise Failed("did not run")


@attempt
def adopt_orphans(at: Targets) -> None:
    prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


# --- what all programs of a user share -----------------------------------------------------------


@attempt
def make_shared_memory_of_system_v(at: Targets) -> None:
    made = done(LIBC.shmget(0, ctypes.c_size_t(4096), 0o600))
    done(LIBC.shmctl(made, 0, None))  # IPC_RMID


@attempt
def make_a_semaphore_of_system_v(at: Targets) -> None:
    made = done(LIBC.semget(0, 1, 0o600))
    done(LIBC.semctl(made, 0, 0))


@attempt
def make_a_queue_of_system_v(at: Targets) -> None:
    made = done(LIBC.msgget(0, 0o600))
    done(LIBC.msgctl(made, 0, None))


@attempt
def make_a_message_queue(at: Targets) -> None:
    name = f"{STOLEN}-{os.getpid()}".encode()
    os.close(syscall(240 if X86 else 180, name, os.O_RDWR | os.O_CREAT, 0o600, 0))
    syscall(241 if X86 else 181, name)


@attempt
def use_up_asynchronous_input(at: Targets) -> None:
    """io_setup: the number of events is limited for the whole machine."""
    context = ctypes.c_ulong(0)
    syscall(206 if X86 else 0, 1, ctypes.byref(context))


# --- using things up -----------------------------------------------------------------------------


@attempt
def fork_many(at: Targets) -> str:
    children: list[int] = []
    try:
        for _ in range(FORKS):
            pid = os.fork()
            if pid == 0:
                signal.pause()
            children.append(pid)
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return f"{FORKS} processes"


@attempt
def open_many_files(at: Targets) -> str:
    for _ in range(FILES):
        os.open(os.devnull, os.O_RDONLY)
    return f"{FILES} files"


@attempt
def write_a_big_file(at: Targets) -> str:
    path = at["workspace"] + "/big"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.unlink(path)
    os.pwrite(fd, b"x", BIG)
    return f"{BIG} bytes"


@attempt
def dump_core(at: Targets) -> None:
    resource.setrlimit(
        resource.RLIMIT_CORE, (1, max(1, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    )


@attempt
def raise_its_limits(at: Targets) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard >= int(Path("/proc/sys/fs/nr_open").read_text()):
        return  # as high as it can be
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard + 1))


# --- reporting -----------------------------------------------------------------------------------


def outcome(test: Attempt, at: Targets) -> tuple[bool, str]:
    try:
        return True, str(test(at) or "")
    except Failed as failed:
        return False, str(failed)
    except OSError as error:
        return False, errno.errorcode.get(error.errno or 0, str(error))
    except ValueError as error:  # what setrlimit() says instead of EPERM
        return False, str(error)


def separately(test: Attempt, at: Targets) -> tuple[bool, str]:
    """In a child, which may change its own state."""
    ours, its = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        signal.alarm(PATIENCE)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # EFBIG tells more
        try:
            result = outcome(test, at)
        except BaseException as error:
            result = False, f"{type(error).__name__}: {error}"
        os.write(its, json.dumps(result).encode())
        os._exit(0)
    os.close(its)
    with open(ours, "rb") as told:
        answer = told.read()
    os.waitpid(child, 0)
    worked, detail = json.loads(answer or '[false, "it did not come back"]')
    return bool(worked), str(detail)


def turn(at: Targets) -> None:
    for name in at.get("only") or ATTEMPTS:
        worked, detail = separately(ATTEMPTS[name], at)
        line = json.dumps({"name": name, "worked": worked, "detail": detail})
        say(type="text", text=line + "\n")
    say(type="done")


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def main() -> None:
    for text in sys.stdin:
        line = json.loads(text)
        if line["type"] != "prompt":
            continue
        if line["text"] == "wait":  # a neighbour, which only lives
            time.sleep(600)
        at = json.loads(line["parts"][0]["text"])
        at["attached"] = os.path.dirname(line["parts"][1]["url"].removeprefix("file://"))
        turn(at)


if __name__ == "__main__":
    main()
