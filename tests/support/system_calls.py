"""Every system call of Linux, and why a confined program changes no foreign process with it.

A process is foreign if it belongs to the same user and not to the session. `python -m
tests.support.documents` writes docs/evidence/system-calls.md from this table; tests/unit/sandbox
compares it with the filter (bridge/sandbox/seccomp.py).
"""

from __future__ import annotations

from collections.abc import Iterator

# In the order of their numbers; @NUMBER continues with another one.
_X86_64 = """
    read write open close stat fstat lstat poll lseek mmap mprotect munmap brk rt_sigaction
    rt_sigprocmask rt_sigreturn ioctl pread64 pwrite64 readv writev access pipe select
    sched_yield mremap msync mincore madvise shmget shmat shmctl dup dup2 pause nanosleep
    getitimer alarm setitimer getpid sendfile socket connect accept sendto recvfrom sendmsg
    recvmsg shutdown bind listen getsockname getpeername socketpair setsockopt getsockopt
    clone fork vfork execve exit wait4 kill uname semget semop semctl shmdt msgget msgsnd
    msgrcv msgctl fcntl flock fsync fdatasync truncate ftruncate getdents getcwd chdir fchdir
    rename mkdir rmdir creat link unlink symlink readlink chmod fchmod chown fchown lchown
    umask gettimeofday getrlimit getrusage sysinfo times ptrace getuid syslog getgid setuid
    setgid geteuid getegid setpgid getppid getpgrp setsid setreuid setregid getgroups
    setgroups setresuid getresuid setresgid getresgid getpgid setfsuid setfsgid getsid capget
    capset rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_sigsuspend sigaltstack utime mknod
    uselib personality ustat statfs fstatfs sysfs getpriority setpriority sched_setparam
    sched_getparam sched_setscheduler sched_getscheduler sched_get_priority_max
    sched_get_priority_min sched_rr_get_interval mlock munlock mlockall munlockall vhangup
    modify_ldt pivot_root _sysctl prctl arch_prctl adjtimex setrlimit chroot sync acct
    settimeofday mount umount2 swapon swapoff reboot sethostname setdomainname iopl ioperm
    create_module init_module delete_module get_kernel_syms query_module quotactl nfsservctl
    getpmsg putpmsg afs_syscall tuxcall security gettid readahead setxattr lsetxattr fsetxattr
    getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr
    fremovexattr tkill time futex sched_setaffinity sched_getaffinity set_thread_area io_setup
    io_destroy io_getevents io_submit io_cancel get_thread_area lookup_dcookie epoll_create
    epoll_ctl_old epoll_wait_old remap_file_pages getdents64 set_tid_address restart_syscall
    semtimedop fadvise64 timer_create timer_settime timer_gettime timer_getoverrun
    timer_delete clock_settime clock_gettime clock_getres clock_nanosleep exit_group
    epoll_wait epoll_ctl tgkill utimes vserver mbind set_mempolicy get_mempolicy mq_open
    mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr kexec_load waitid add_key
    request_key keyctl ioprio_set ioprio_get inotify_init inotify_add_watch inotify_rm_watch
    migrate_pages openat mkdirat mknodat fchownat futimesat newfstatat unlinkat renameat
    linkat symlinkat readlinkat fchmodat faccessat pselect6 ppoll unshare set_robust_list
    get_robust_list splice tee sync_file_range vmsplice move_pages utimensat epoll_pwait
    signalfd timerfd_create eventfd fallocate timerfd_settime timerfd_gettime accept4
    signalfd4 eventfd2 epoll_create1 dup3 pipe2 inotify_init1 preadv pwritev rt_tgsigqueueinfo
    perf_event_open recvmmsg fanotify_init fanotify_mark prlimit64 name_to_handle_at
    open_by_handle_at clock_adjtime syncfs sendmmsg setns getcpu process_vm_readv
    process_vm_writev kcmp finit_module sched_setattr sched_getattr renameat2 seccomp
    getrandom memfd_create kexec_file_load bpf execveat userfaultfd membarrier mlock2
    copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc pkey_free statx io_pgetevents
    rseq uretprobe uprobe @424 pidfd_send_signal io_uring_setup io_uring_enter
    io_uring_register open_tree move_mount fsopen fsconfig fsmount fspick pidfd_open clone3
    close_range openat2 pidfd_getfd faccessat2 process_madvise epoll_pwait2 mount_setattr
    quotactl_fd landlock_create_ruleset landlock_add_rule landlock_restrict_self memfd_secret
    process_mrelease futex_waitv set_mempolicy_home_node cachestat fchmodat2 map_shadow_stack
    futex_wake futex_wait futex_requeue statmount listmount lsm_get_self_attr
    lsm_set_self_attr lsm_list_modules mseal setxattrat getxattrat listxattrat removexattrat
    open_tree_attr file_getattr file_setattr listns rseq_slice_yield
"""
_AARCH64 = """
    io_setup io_destroy io_submit io_cancel io_getevents setxattr lsetxattr fsetxattr getxattr
    lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr
    getcwd lookup_dcookie eventfd2 epoll_create1 epoll_ctl epoll_pwait dup dup3 fcntl
    inotify_init1 inotify_add_watch inotify_rm_watch ioctl ioprio_set ioprio_get flock mknodat
    mkdirat unlinkat symlinkat linkat renameat umount2 mount pivot_root nfsservctl statfs
    fstatfs truncate ftruncate fallocate faccessat chdir fchdir chroot fchmod fchmodat
    fchownat fchown openat close vhangup pipe2 quotactl getdents64 lseek read write readv
    writev pread64 pwrite64 preadv pwritev sendfile pselect6 ppoll signalfd4 vmsplice splice
    tee readlinkat newfstatat fstat sync fsync fdatasync sync_file_range timerfd_create
    timerfd_settime timerfd_gettime utimensat acct capget capset personality exit exit_group
    waitid set_tid_address unshare futex set_robust_list get_robust_list nanosleep getitimer
    setitimer kexec_load init_module delete_module timer_create timer_gettime timer_getoverrun
    timer_settime timer_delete clock_settime clock_gettime clock_getres clock_nanosleep syslog
    ptrace sched_setparam sched_setscheduler sched_getscheduler sched_getparam
    sched_setaffinity sched_getaffinity sched_yield sched_get_priority_max
    sched_get_priority_min sched_rr_get_interval restart_syscall kill tkill tgkill sigaltstack
    rt_sigsuspend rt_sigaction rt_sigprocmask rt_sigpending rt_sigtimedwait rt_sigqueueinfo
    rt_sigreturn setpriority getpriority reboot setregid setgid setreuid setuid setresuid
    getresuid setresgid getresgid setfsuid setfsgid times setpgid getpgid getsid setsid
    getgroups setgroups uname sethostname setdomainname getrlimit setrlimit getrusage umask
    prctl getcpu gettimeofday settimeofday adjtimex getpid getppid getuid geteuid getgid
    getegid gettid sysinfo mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify
    mq_getsetattr msgget msgctl msgrcv msgsnd semget semctl semtimedop semop shmget shmctl
    shmat shmdt socket socketpair bind listen accept connect getsockname getpeername sendto
    recvfrom setsockopt getsockopt shutdown sendmsg recvmsg readahead brk munmap mremap
    add_key request_key keyctl clone execve mmap fadvise64 swapon swapoff mprotect msync mlock
    munlock mlockall munlockall mincore madvise remap_file_pages mbind get_mempolicy
    set_mempolicy migrate_pages move_pages rt_tgsigqueueinfo perf_event_open accept4 recvmmsg
    @260 wait4 prlimit64 fanotify_init fanotify_mark name_to_handle_at open_by_handle_at
    clock_adjtime syncfs setns sendmmsg process_vm_readv process_vm_writev kcmp finit_module
    sched_setattr sched_getattr renameat2 seccomp getrandom memfd_create bpf execveat
    userfaultfd membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc
    pkey_free statx io_pgetevents rseq kexec_file_load @424 pidfd_send_signal io_uring_setup
    io_uring_enter io_uring_register open_tree move_mount fsopen fsconfig fsmount fspick
    pidfd_open clone3 close_range openat2 pidfd_getfd faccessat2 process_madvise epoll_pwait2
    mount_setattr quotactl_fd landlock_create_ruleset landlock_add_rule landlock_restrict_self
    memfd_secret process_mrelease futex_waitv set_mempolicy_home_node cachestat fchmodat2
    map_shadow_stack futex_wake futex_wait futex_requeue statmount listmount lsm_get_self_attr
    lsm_set_self_attr lsm_list_modules mseal setxattrat getxattrat listxattrat removexattrat
    open_tree_attr file_getattr file_setattr listns rseq_slice_yield
"""


def _numbered(names: str) -> Iterator[tuple[str, int]]:
    number = 0
    for word in names.split():
        if word.startswith("@"):
            number = int(word[1:])
        else:
            yield word, number
            number += 1


NUMBERS = {"x86_64": dict(_numbered(_X86_64)), "aarch64": dict(_numbered(_AARCH64))}

# What the filter does: it refuses the call with any arguments, or with some, or never.
ALWAYS, SOMETIMES, NEVER = "refused", "by its arguments", "allowed"

# For each reason: what the filter does, and the calls.
REASONS: dict[str, tuple[str, str]] = {
    "EPERM. No coding tool needs it": (
        ALWAYS,
        """
        add_key request_key keyctl bpf perf_event_open userfaultfd io_uring_setup
        open_by_handle_at fanotify_init memfd_secret init_module finit_module delete_module
        kexec_load kexec_file_load pidfd_getfd file_setattr setns
        """,
    ),
    (
        "ENOSYS. Its flags or its mode are behind a pointer, which a filter cannot read; "
        "libraries call `clone` and `openat`"
    ): (
        ALWAYS,
        "clone3 openat2",
    ),
    "ENOSYS. All programs of the machine share one limit": (
        ALWAYS,
        "io_setup",
    ),
    (
        "ENOSYS, unless `BRIDGE_SANDBOX_SYSTEM_V=allow`. All programs of the user share these "
        "objects. Under `bwrap` allowed: its namespace has its own ones"
    ): (
        ALWAYS,
        """
        shmget shmat shmctl semget semop semtimedop semctl msgget msgsnd msgrcv msgctl mq_open
        mq_unlink
        """,
    ),
    "EPERM, unless the pid is 0, the caller itself": (
        SOMETIMES,
        """
        sched_setaffinity sched_setscheduler sched_setparam sched_setattr migrate_pages
        move_pages
        """,
    ),
    "EPERM, unless it is about a process (no group, no user) with the pid 0": (
        SOMETIMES,
        "setpriority ioprio_set",
    ),
    (
        "EPERM with new limits, unless the pid is 0 and the limit is not RLIMIT_LOCKS, which "
        "marks a session. Reading is allowed: /proc/PID/limits shows the same"
    ): (
        SOMETIMES,
        "prlimit64",
    ),
    "EPERM with RLIMIT_LOCKS. Other limits: the caller itself": (
        SOMETIMES,
        "setrlimit",
    ),
    (
        "EPERM with a new namespace (CLONE_NEW…), in which a program has capabilities, and "
        "with CLONE_PARENT, which makes a child of the launcher"
    ): (
        SOMETIMES,
        "clone",
    ),
    "EPERM with a new namespace": (
        SOMETIMES,
        "unshare",
    ),
    (
        "EPERM for F_SETLEASE, F_SETDELEG (others wait when they open the file) and F_NOTIFY. "
        "F_SETOWN: Landlock checks the signals (ABI 6). Locks: see `flock`"
    ): (
        SOMETIMES,
        "fcntl",
    ),
    (
        "EPERM for typing into terminals, attributes of files, fs-verity, subvolumes. "
        "FIOSETOWN, SIOCSPGRP: as F_SETOWN. Devices: Landlock (ABI 5)"
    ): (
        SOMETIMES,
        "ioctl",
    ),
    (
        "EPERM with a set-user-id or set-group-id bit. Paths outside: Landlock, except for "
        "the mode of an existing file"
    ): (
        SOMETIMES,
        "open openat creat mknod mknodat mkdir mkdirat chmod fchmod fchmodat fchmodat2",
    ),
    "EOPNOTSUPP with MSG_FASTOPEN. The socket decides who gets it": (
        SOMETIMES,
        "sendto sendmsg sendmmsg",
    ),
    "EAFNOSUPPORT and others, for kinds that Landlock does not limit": (
        SOMETIMES,
        "socket socketpair",
    ),
    (
        "Landlock keeps signals inside (ABI 6). Before it, a gap that the banner names. Under "
        "`bwrap` the pids of others do not exist"
    ): (
        NEVER,
        "kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_send_signal",
    ),
    (
        "It needs the right to trace the process, which Landlock refuses outside of the "
        "session (ABI 1)"
    ): (
        NEVER,
        "process_vm_readv process_vm_writev kcmp get_robust_list process_madvise",
    ),
    (
        "The same. PTRACE_TRACEME makes the launcher the tracer of a CLI: such a CLI is killed "
        "when it stops"
    ): (
        NEVER,
        "ptrace",
    ),
    "The caller itself; PR_SCHED_CORE with a pid needs the right to trace the process": (
        NEVER,
        "prctl",
    ),
    "It frees memory of a process that has been killed already": (
        NEVER,
        "process_mrelease",
    ),
    "Landlock limits the paths (ABI 3)": (
        NEVER,
        """
        rename renameat renameat2 link linkat symlink symlinkat unlink unlinkat rmdir truncate
        execve execveat uselib
        """,
    ),
    (
        "Landlock does not know owners, times and attributes of files: a gap in the table of "
        "docs/security.md; under `bwrap` such a file is on a read-only mount"
    ): (
        NEVER,
        """
        chown fchown lchown fchownat utime utimes futimesat utimensat setxattr lsetxattr
        fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat
        """,
    ),
    (
        "It tells the names of files that change, also in hidden folders: a gap that the "
        "banner names"
    ): (
        NEVER,
        "inotify_init inotify_init1 inotify_add_watch inotify_rm_watch",
    ),
    (
        "It can lock a file that the program can read, so that others wait for the lock: a "
        "gap that the banner names"
    ): (
        NEVER,
        "flock",
    ),
    (
        "The memory decides: a program that maps a file for reading can wake those who wait "
        "there, and move them (FUTEX_REQUEUE): a gap for programs with locks in files that "
        "the program can read"
    ): (
        NEVER,
        "futex futex_waitv futex_wake futex_wait futex_requeue",
    ),
    "TCP: Landlock limits the ports, if BRIDGE_SANDBOX_PORTS is set. UDP is open": (
        NEVER,
        "bind connect",
    ),
    "It needs a capability, and there is none inside": (
        NEVER,
        """
        acct adjtimex clock_adjtime clock_settime settimeofday reboot swapon swapoff sethostname
        setdomainname mount umount2 pivot_root chroot move_mount open_tree open_tree_attr fsopen
        fsconfig fsmount fspick mount_setattr quotactl quotactl_fd iopl ioperm vhangup setuid
        setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups capset
        """,
    ),
    "It reads a fact that /proc or the file system shows every process of the user": (
        NEVER,
        """
        getpgid getsid getpriority ioprio_get sched_getaffinity sched_getattr sched_getparam
        sched_getscheduler sched_rr_get_interval capget pidfd_open statmount listmount listns
        sysinfo uname ustat sysfs statfs fstatfs stat lstat fstat newfstatat statx access
        faccessat faccessat2 readlink readlinkat getcwd chdir fchdir getxattr lgetxattr
        fgetxattr getxattrat listxattr llistxattr flistxattr listxattrat name_to_handle_at
        file_getattr syslog lookup_dcookie lsm_list_modules getrandom times getrusage getrlimit
        cachestat
        """,
    ),
    "A clock or a timer; with the clock of another process, it reads that process's time": (
        NEVER,
        """
        time gettimeofday clock_gettime clock_getres clock_nanosleep nanosleep alarm getitimer
        setitimer timer_create timer_settime timer_gettime timer_getoverrun timer_delete
        timerfd_create timerfd_settime timerfd_gettime
        """,
    ),
    "Its own children; setpgid also itself, in its session": (
        NEVER,
        "wait4 waitid setpgid",
    ),
    "It costs time of the disk or of processors, as reading and computing do": (
        NEVER,
        "sync syncfs membarrier readahead fadvise64",
    ),
    "Only stricter: a further filter or ruleset comes on top": (
        NEVER,
        """
        seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self
        lsm_set_self_attr
        """,
    ),
    "Its own process and threads": (
        NEVER,
        """
        fork vfork exit exit_group getpid getppid gettid getpgrp setsid getuid geteuid getgid
        getegid getresuid getresgid getgroups umask personality arch_prctl modify_ldt
        set_thread_area get_thread_area set_tid_address set_robust_list rseq rseq_slice_yield
        sched_yield sched_get_priority_max sched_get_priority_min pause rt_sigaction
        rt_sigprocmask rt_sigpending rt_sigtimedwait rt_sigsuspend rt_sigreturn sigaltstack
        signalfd signalfd4 restart_syscall getcpu uretprobe uprobe lsm_get_self_attr
        """,
    ),
    "Its own memory, and that of files and descriptors that it has": (
        NEVER,
        """
        brk mmap munmap mremap mprotect madvise msync mincore mlock mlock2 mlockall munlock
        munlockall remap_file_pages mbind get_mempolicy set_mempolicy set_mempolicy_home_node
        pkey_mprotect pkey_alloc pkey_free map_shadow_stack mseal memfd_create shmdt
        """,
    ),
    "Descriptors that it has: opening them was checked": (
        NEVER,
        """
        read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek close
        close_range dup dup2 dup3 pipe pipe2 poll ppoll select pselect6 epoll_create
        epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd eventfd2 sendfile
        splice tee vmsplice copy_file_range fsync fdatasync sync_file_range ftruncate fallocate
        getdents getdents64 io_destroy io_submit io_cancel io_getevents io_pgetevents
        io_uring_enter io_uring_register mq_timedsend mq_timedreceive mq_notify mq_getsetattr
        accept accept4 listen shutdown getsockname getpeername getsockopt setsockopt recvfrom
        recvmsg recvmmsg fanotify_mark
        """,
    ),
    "The kernel does not have it any more": (
        NEVER,
        """
        _sysctl afs_syscall create_module epoll_ctl_old epoll_wait_old get_kernel_syms getpmsg
        nfsservctl putpmsg query_module security tuxcall vserver
        """,
    ),
}
VERDICTS = {name: verdict for verdict, names in REASONS.values() for name in names.split()}


def table() -> str:
    lines = ["| the filter | why no foreign process is changed | calls |", "|---|---|---|"]
    for why, (verdict, names) in REASONS.items():
        calls = " ".join(f"`{name}`" for name in sorted(names.split()))
        lines.append(f"| {verdict} | {why} | {calls} |")
    return "\n".join(lines) + "\n"
