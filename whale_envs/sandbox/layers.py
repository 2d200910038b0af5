"""The layers that a process puts around itself before it runs code that nobody trusts.

In this order: every file descriptor closed but those named, resource limits, an unprivileged user when root,
NO_NEW_PRIVS, Landlock (no file, no TCP port, no signal and no abstract socket outside), and a seccomp allow-list
without file system, fork, exec, sockets, signals to others or tracing. What is left: compute, memory up to the limit,
threads, clocks, random bytes, and reading and writing on the descriptors that were kept.

There is no file system on purpose, also where Landlock could offer part of one: the same code then gives the same
result on every machine. Whatever the code may import has to be imported before.

Loaded by path in processes that do not import the rest of the package: the standard library, landlockpy and
pyseccomp (which needs the system's libseccomp) are all that is used here.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
from collections.abc import Collection

#: System calls that a confined process may make with any arguments. What else it asks for fails with EPERM.
ALLOWED = (
    "read readv write writev close close_range dup dup2 dup3 lseek fstat shutdown "
    "poll ppoll select pselect6 "
    "brk mmap munmap mremap mprotect mincore membarrier set_robust_list rseq sched_yield set_tid_address "
    "rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend sigaltstack pause "
    "alarm setitimer getitimer nanosleep gettimeofday time times "
    "getrusage getrandom getpid gettid getppid getuid geteuid getgid getegid getpgrp getcwd "
    "restart_syscall exit exit_group"
).split()

THREADS = 64  # at most, where the kernel counts them for this job alone (a user or a user namespace of its own)
DESCRIPTORS = 64
#: A user id per job, so that no two jobs share one: the process id, above a number that each `Confinement` draws, since
#: process ids start anew in each bubblewrap. Nobody's (65534) where it is not mapped.
_JOB_UIDS, _PID_BITS, _DRAWN = 0x5A000000, 22, 512
_NOBODY = 65534

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER = 1, 22, 38, 2
_CLONE_THREAD = 0x00010000
_CLONE_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_TCGETS = 0x5401
_FUTEX_PRIVATE, _MSG_OOB, _LAST_CLOCK, _LAST_ADVICE = 128, 1, 15, 25
_LANDLOCK_RESTRICT_SELF = 446  # the number on every architecture; landlockpy's own call takes five times as long


class ConfinementError(RuntimeError):
    """A layer could not be put in place; the process must not run what it was to contain."""


class _Program(ctypes.Structure):
    """`struct sock_fprog`: a BPF program as seccomp takes it."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


class Confinement:
    """The layers, made ready once (30 ms), so that each forked child puts them on in half a millisecond.

    What a child runs here is the least that does it, since each page of memory that it is the first to write to has to
    be copied for it: ready arguments for system calls.

    Args:
        program: what `compile_filter` gave, if that is at hand.
        rules: descriptor of what `no_rights` gave, if that is at hand; it is closed with all others.

    Raises `ConfinementError` where seccomp is missing, since nothing else keeps the kernel away.
    """

    def __init__(self, program: bytes | None = None, rules: int | None = None) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._prctl = libc.prctl
        self._prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
        self._syscall = libc.syscall
        self._syscall.argtypes, self._syscall.restype = [ctypes.c_long] * 3, ctypes.c_long
        self._program = program or compile_filter()
        self._filter = _Program(len(self._program) // 8, self._program)
        self._rules = no_rights() if rules is None else rules
        self.limits = Limits()
        self._users = _JOB_UIDS + (int.from_bytes(os.urandom(2), "big") % _DRAWN << _PID_BITS)

    def apply(
        self, keep: Collection[int], memory_mb: int, cpu_seconds: int, own_user: bool = False, parent: int | None = None
    ) -> None:
        """Confine the calling process, which must have one thread only, for the rest of its life.

        Args:
            keep: file descriptors that stay open; all others are closed.
            memory_mb: address space in MiB beyond what was mapped when this object was made.
            cpu_seconds: processor time in seconds from the process's start, summed over threads; then SIGKILL.
            own_user: the process is alone (with its siblings) in a user namespace, so that its threads can be counted.
            parent: process id of the parent with which this process must die, if any.

        Raises:
            ConfinementError: a layer could not be put in place.
        """
        try:
            self.limits.apply({*keep, self._rules}, memory_mb, cpu_seconds)
            if _drop_user(self._users + os.getpid()) or own_user:
                resource.setrlimit(resource.RLIMIT_NPROC, _lowered(resource.RLIMIT_NPROC, THREADS))
            if parent is not None:  # after the change of user, which would clear it
                self._check(self._prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
                if os.getppid() != parent:
                    os._exit(1)
            self._check(self._prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
            if self._rules >= 0:
                self._check(self._syscall(_LANDLOCK_RESTRICT_SELF, self._rules, 0))
                os.close(self._rules)
            self._check(self._prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(self._filter), 0, 0))
        except (OSError, ValueError) as error:
            raise ConfinementError(f"cannot confine this process: {error}") from error

    @staticmethod
    def _check(result: int) -> None:
        if result != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def confine(keep: Collection[int], *, memory_mb: int, cpu_seconds: int) -> None:
    """Confine the calling process (one thread) for the rest of its life: `Confinement().apply(...)`.

    For a process that serves one peer over an inherited descriptor. Import everything first. Afterwards `os.read`,
    `os.write`, `socket.recv`, `socket.send`, `select` work on the descriptors in `keep`, and on nothing else;
    `open`, `import` of what is not yet imported, `fork` and `exec` fail with `PermissionError` (an import with
    `ModuleNotFoundError` if `sys.path` is emptied).

    Args:
        keep: file descriptors that stay open (name 0, 1, 2 too if they are wanted); all others are closed.
        memory_mb: address space in MiB beyond what the process has mapped already; then `MemoryError`.
        cpu_seconds: processor time in seconds from the process's start, summed over its life; then SIGKILL.

    Raises:
        ConfinementError: a layer could not be put in place (seccomp missing, no libseccomp): do not go on.
            A kernel without Landlock is no error, since the seccomp filter alone opens no file and no socket.
    """
    Confinement().apply(keep, memory_mb, cpu_seconds)


def landlock_abi() -> int:
    """The kernel's Landlock version by its system call; 0 where there is none."""
    import landlockpy  # which is there on Linux only

    try:
        return landlockpy.abi_version()
    except landlockpy.LandlockError:
        return 0


def no_rights() -> int:
    """A descriptor of Landlock rules that allow nothing, for the caller to close; -1 where the kernel has none."""
    abi = landlock_abi()
    if not abi:
        return -1
    import landlockpy

    with landlockpy.Ruleset(scoped=landlockpy.scope_for_abi(abi)) as rules:  # no rule is added: nothing is allowed
        return os.dup(rules.fileno())


def compile_filter(threads: bool = True) -> bytes:
    """The allow-list as a BPF program, 8 bytes an instruction; `threads` says whether threads may be started.

    Raises `ConfinementError` where pyseccomp finds no libseccomp.
    """
    try:
        import pyseccomp as seccomp
    except (ImportError, RuntimeError, OSError) as error:
        raise ConfinementError(f"no libseccomp ({error}); install libseccomp (Debian: libseccomp2)") from error
    denied = seccomp.ERRNO(errno.EPERM)
    rules = seccomp.SyscallFilter(denied)
    rules.set_attr(seccomp.Attr.CTL_OPTIMIZE, 2)  # a binary tree: the kernel tries the filter on each call there is
    rules.set_attr(seccomp.Attr.ACT_BADARCH, seccomp.KILL_PROCESS)  # int 0x80 and x32: other numbers, other calls
    for name in ALLOWED:
        rules.add_rule(seccomp.ALLOW, name)
    # Threads, no processes. glibc first tries clone3, whose flags a filter cannot see: "not there" sends it to clone.
    rules.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")
    if threads:
        flags = _CLONE_THREAD | _CLONE_NAMESPACES
        rules.add_rule(seccomp.ALLOW, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, flags, _CLONE_THREAD))
    rules.add_rule(seccomp.ALLOW, "prlimit64", seccomp.Arg(0, seccomp.EQ, 0), seccomp.Arg(2, seccomp.EQ, 0))  # reading
    rules.add_rule(seccomp.ALLOW, "ioctl", seccomp.Arg(1, seccomp.EQ, _TCGETS))  # isatty()
    for command in (1, 2, 3):  # F_GETFD, F_SETFD, F_GETFL: not F_SETOWN, which sends signals
        rules.add_rule(seccomp.ALLOW, "fcntl", seccomp.Arg(1, seccomp.EQ, command))
    # Private ones: others are found by their file, and the pages of libc are every process's, so that one could wake
    # another that waits there, a word between two jobs or episodes.
    rules.add_rule(seccomp.ALLOW, "futex", seccomp.Arg(1, seccomp.MASKED_EQ, _FUTEX_PRIVATE, _FUTEX_PRIVATE))
    for name in ("sendto", "recvfrom"):  # MSG_OOB is a part of local sockets of its own, known for its holes
        rules.add_rule(seccomp.ALLOW, name, seccomp.Arg(3, seccomp.MASKED_EQ, _MSG_OOB, 0))
    rules.add_rule(seccomp.ALLOW, "sched_getaffinity", seccomp.Arg(0, seccomp.EQ, 0))  # another's: whether it is there
    for name in ("clock_gettime", "clock_getres", "clock_nanosleep"):  # above are clocks of processes: what each used
        rules.add_rule(seccomp.ALLOW, name, seccomp.Arg(0, seccomp.LE, _LAST_CLOCK))
    rules.add_rule(seccomp.ALLOW, "madvise", seccomp.Arg(2, seccomp.LE, _LAST_ADVICE))  # not to poison a page, as root
    with open(os.memfd_create("filter"), "rb") as file:
        try:
            rules.export_bpf(file)
        except OSError as error:  # a limit on the size of files counts for what is in memory, too
            raise ConfinementError(f"the seccomp filter cannot be written ({error.strerror}; see ulimit -f)") from error
        file.seek(0)
        return file.read()


def mapped_bytes() -> int:
    """The address space that this process has mapped. Raises `ConfinementError` where no /proc says that."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except FileNotFoundError:
        raise ConfinementError("there is no /proc; mount it") from None


class Limits:
    """The part of the layers that contains accidents only: descriptors closed, resource limits."""

    def __init__(self) -> None:
        self._mapped = mapped_bytes()
        self._descriptors = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 1 << 20)
        fixed = {
            resource.RLIMIT_NOFILE: DESCRIPTORS,
            resource.RLIMIT_FSIZE: 0,
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_MEMLOCK: 0,
            resource.RLIMIT_MSGQUEUE: 0,
        }
        self._fixed = [(what, _lowered(what, value)) for what, value in fixed.items()]

    def apply(self, keep: Collection[int], memory_mb: int, cpu_seconds: int) -> None:
        """Put them on the calling process; see `Confinement.apply`."""
        start = 0
        for fd in sorted(keep):
            if start < fd:  # an empty range would close everything: it is passed on to close_range(start, -1)
                os.closerange(start, fd)
            start = fd + 1
        os.closerange(start, self._descriptors)
        for what, value in self._fixed:
            resource.setrlimit(what, value)
        # soft = hard: a handler for SIGXCPU would never be reached
        resource.setrlimit(resource.RLIMIT_CPU, _lowered(resource.RLIMIT_CPU, cpu_seconds))
        resource.setrlimit(resource.RLIMIT_AS, _lowered(resource.RLIMIT_AS, self._mapped + (memory_mb << 20)))


def _lowered(what: int, value: int) -> tuple[int, int]:
    hard = resource.getrlimit(what)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    return value, value


def _drop_user(own: int) -> bool:
    """Become an unprivileged user, `own` where it is mapped, if this process is root and may; whether it did.

    Root without the capability to change user (some containers) stays what it is: the filter has no call for which
    being root matters.
    """
    if os.geteuid() != 0:
        return False
    for uid in (own, _NOBODY):
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        except PermissionError:
            return False
        except OSError as error:  # EINVAL: not mapped in this user namespace
            if error.errno != errno.EINVAL:
                raise
        else:
            return uid != _NOBODY
    raise ConfinementError("cannot leave root: no unprivileged user is mapped in this user namespace")
