"""The numbers of the system calls that sandbox/seccomp.py knows by name, for each machine.

Nothing but the standard library: the programs that use it run without anything else.
"""

from __future__ import annotations

# AUDIT_ARCH of each machine.
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# The newest call whose effect on other processes is known. A later one does not exist inside: it
# may reach them in a way that the filter does not know.
LAST = 471

# By name, in the order of MACHINES; None: the machine does not have the call.
NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chmod": (90, None),
    "clone": (56, 220),
    "clone3": (435, 435),
    "creat": (85, None),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fcntl": (72, 25),
    "fchmodat2": (452, 452),
    "file_setattr": (469, 469),
    "finit_module": (313, 273),
    "init_module": (175, 105),
    "io_setup": (206, 0),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioprio_set": (251, 30),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "msgctl": (71, 187),
    "msgget": (68, 186),
    "msgrcv": (70, 188),
    "msgsnd": (69, 189),
    "open": (2, None),
    "open_by_handle_at": (304, 265),
    "openat": (257, 56),
    "openat2": (437, 437),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "prlimit64": (302, 261),
    "request_key": (249, 218),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "semctl": (66, 191),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "sendmmsg": (307, 269),
    "sendmsg": (46, 211),
    "sendto": (44, 206),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "setrlimit": (160, 164),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmget": (29, 194),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
