"""The caller's side: starts a zygote when first needed, and supervises one job per call.

Each process has its own zygote, started on first use and again should it end; it leaves when the process does, also
when that is killed. Calls may come from any thread.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

from whale_envs.errors import UserError
from whale_envs.harness.helpers import ExecResult
from whale_envs.sandbox import isolation

OUTPUT_BYTES = 64 * 1024  # of standard output and standard error each
START_SECONDS = 300.0  # importing sympy takes three, and forty on a machine that is busy with other things
_EXITED = struct.Struct("<cid")
_EXIT_STATUS = {0: "ok", 3: "memory"}  # `runner`'s exit codes; all others are errors
_HERE = Path(__file__).parent
_HUGE_PAGES = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}  # one page table entry for 2 MB

_PROBES = """
import ctypes, os, signal, socket
libc = ctypes.CDLL(None, use_errno=True)
def contained(what, probe):
    try:
        probe()
    except (OSError, ValueError):
        return
    print(what)
def raw(*call):
    if libc.syscall(*call) == -1:
        raise OSError(ctypes.get_errno())
contained("reads a file", lambda: open({canary!r}))
contained("starts a process", os.fork)
contained("opens a socket", socket.socket)
contained("signals its parent", lambda: os.kill(os.getppid(), 0))
contained("traces its parent", lambda: raw(101, 16, os.getppid(), 0, 0))
contained("undoes a limit", lambda: __import__("resource").setrlimit(0, (-1, -1)))
"""


class SandboxError(RuntimeError):
    """The sandbox itself does not work; never the fault of the code that was to run."""


class _Ended(Exception):
    """The zygote is gone."""


class _Zygote:
    """A running zygote process: its control socket and process id."""

    def __init__(self, preload: Sequence[str], packages: Sequence[str], huge_pages: bool) -> None:
        found = isolation.require()
        self.unsafe = not found.seccomp
        config = {"preload": preload, "packages": packages, "own_user": found.own_user, "seccomp": found.seccomp.hex()}
        command = isolation.command(_HERE / "zygote.py", json.dumps(config))
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.pidfd_open(os.getpid())
        # moved out of the way of the numbers that the zygote expects them at
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (theirs.fileno(), parent)]
        try:
            self.pid = os.posix_spawn(
                command[0],
                command,
                isolation.ENVIRONMENT | (_HUGE_PAGES if huge_pages else {}),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, high[0], 3),
                    (os.POSIX_SPAWN_DUP2, high[1], 4),
                ],
                setsid=True,  # Ctrl-C is for the caller
            )
        finally:
            theirs.close()
            for fd in (parent, *high):
                os.close(fd)
        self.control.settimeout(START_SECONDS)
        try:
            said = self.control.recv(64)
        except TimeoutError:
            said = b""
        if said != b"ready":
            self.close()
            raise SandboxError(f"the sandbox process did not start ({isolation.tier()}); its message is above")
        self.control.settimeout(None)

    def close(self) -> None:
        """Close the control socket, on which the process leaves, and reap it."""
        self.control.close()
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            if not poller.poll(5000):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except ChildProcessError:  # reaped by somebody else's wait
            pass
        finally:
            os.close(pidfd)


class _Job:
    """One job: what it has written so far, how it ended."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.output = (bytearray(), bytearray())
        self.pidfd = -1
        self.confined = False
        self.killed = ""  # the status for which it was killed
        self.exit: tuple[int, float] | None = None  # wait status, processor seconds
        self.started = time.perf_counter()

    def kill(self, status: str) -> None:
        """Kill the job, once, for a reason."""
        if not self.killed and self.pidfd >= 0 and self.exit is None:
            self.killed = status
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def heard(self, message: bytes, fds: Sequence[int]) -> None:
        """Take a message of the zygote or of the child that is not running the source yet."""
        kind = message[:1]
        if kind == b"P":
            self.pidfd, self.started = fds[0], time.perf_counter()
        elif kind == b"R":
            self.confined = True
        elif kind == b"F":
            raise SandboxError(message[1:].decode())
        elif kind == b"X":
            _, status, cpu = _EXITED.unpack(message)
            self.exit = (status, cpu)
        else:
            raise _Ended

    def follow(self, status: socket.socket, out: int, err: int) -> None:
        """Read until the job has ended, killing it at its deadline or when it writes too much."""
        poller = select.poll()
        for fd in (status.fileno(), out, err):
            poller.register(fd, select.POLLIN)
        streams = {out: self.output[0], err: self.output[1]}
        while self.exit is None:
            left = self.timeout - (time.perf_counter() - self.started)
            if left <= 0:
                self.kill("timeout")
            for fd, _ in poller.poll(1000.0 if self.killed else max(1.0, left * 1000)):
                if fd == status.fileno():
                    message, fds, _, _ = socket.recv_fds(status, 4096, 1)
                    self.heard(message, fds)
                elif not self.read(fd, streams[fd]):
                    poller.unregister(fd)
        for fd, stream in streams.items():  # what was left in the pipes
            while self.read(fd, stream):
                pass

    def read(self, fd: int, stream: bytearray) -> bool:
        """Take what a pipe holds; False at its end, or when it is empty."""
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return False
        stream += data[: OUTPUT_BYTES - len(stream)]
        if len(stream) >= OUTPUT_BYTES and data:
            self.kill("output")
            self.killed = self.killed or "output"
        return bool(data)

    def result(self) -> ExecResult:
        """How it ended, in the words of `ExecResult`."""
        seconds = time.perf_counter() - self.started
        assert self.exit is not None
        code, cpu = os.waitstatus_to_exitcode(self.exit[0]), self.exit[1]
        if not self.confined and not self.killed:
            raise SandboxError(f"a job ended (exit code {code}) before its source was started")
        status = self.killed or _EXIT_STATUS.get(code, "killed" if code < 0 else "error")
        if code == -signal.SIGKILL and not self.killed and cpu >= self.timeout:
            status = "timeout"  # its processor time ran out: several threads use it up faster than the clock
        note = {
            "timeout": f"stopped after {self.timeout:g} s\n",
            "output": f"stopped: more than {OUTPUT_BYTES} bytes of output\n",
            "killed": f"stopped by signal {-code}\n",
        }.get(status, "")
        stdout, stderr = (bytes(stream).decode("utf-8", "replace") for stream in self.output)
        return ExecResult(_without_paths(stdout), _without_paths(stderr) + note, status, seconds)


class Pool:
    """Jobs forked from one zygote with `preload` imported and `packages` (besides the standard library) importable.

    At most `workers` (default: the processors of this process) run at once; further calls wait for their turn, which
    does not count against their time limit. `huge_pages` makes the fork of a large zygote (sympy: 60 MB) half as dear,
    and allocation in the job a little slower.
    """

    def __init__(
        self,
        preload: Sequence[str] = (),
        packages: Sequence[str] = (),
        workers: int | None = None,
        huge_pages: bool = False,
    ) -> None:
        self._preload = tuple(preload)
        self._packages = tuple(packages)
        self._huge_pages = huge_pages
        self._workers = workers or len(os.sched_getaffinity(0))
        self._forget()
        _pools.add(self)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._slots = threading.Semaphore(self._workers)
        self._zygote: _Zygote | None = None

    def run(self, source: str, timeout: float, memory_mb: int) -> ExecResult:
        """Run Python source in a fresh child.

        Raises `UserError` where this machine offers no isolation, `SandboxError` when the sandbox does not work.
        """
        with self._slots:
            for _ in range(2):  # a zygote that was killed from outside is replaced
                zygote = self._running()
                try:
                    return self._job(zygote, source, timeout, memory_mb)
                except _Ended:
                    self._drop(zygote)
        raise SandboxError("the sandbox process ended twice during one job")

    def _running(self) -> _Zygote:
        with self._lock:
            if self._zygote is None:
                zygote = _Zygote(self._preload, self._packages, self._huge_pages)
                try:
                    if not zygote.unsafe:
                        self._self_test(zygote)
                except BaseException:
                    zygote.close()
                    raise
                self._zygote = zygote
            return self._zygote

    def _self_test(self, zygote: _Zygote) -> None:
        """Probes that must fail, before any job runs."""
        canary = __file__
        result = self._job(zygote, _PROBES.format(canary=canary), 30.0, 256)
        if result.status != "ok" or result.stdout:
            failed = result.stdout.split("\n")[0] or result.stderr.strip().rpartition("\n")[2]
            raise UserError(
                f"the sandbox does not hold on this machine ({isolation.tier()}): a probe {failed}; "
                "nothing untrusted is run; use a current Linux kernel (5.13 or later) with seccomp"
            )

    def _drop(self, zygote: _Zygote) -> None:
        with self._lock:
            if self._zygote is zygote:
                self._zygote = None
                zygote.close()

    def _job(self, zygote: _Zygote, source: str, timeout: float, memory_mb: int) -> ExecResult:
        job = _Job(timeout)
        text = os.memfd_create("source")
        out, their_out = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        err, their_err = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        status, their_status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            try:
                os.set_blocking(their_out, True)
                os.set_blocking(their_err, True)
                with open(text, "wb", closefd=False) as file:
                    file.write(source.encode("utf-8", "surrogatepass"))
                os.lseek(text, 0, os.SEEK_SET)
                request = json.dumps({"memory_mb": memory_mb, "cpu_seconds": int(timeout) + 2}).encode()
                socket.send_fds(zygote.control, [request], [text, their_out, their_err, their_status.fileno()])
            except (BrokenPipeError, ConnectionResetError):
                raise _Ended from None
            finally:
                their_status.close()
                for fd in (text, their_out, their_err):
                    os.close(fd)
            try:
                job.follow(status, out, err)
            except ConnectionResetError:
                raise _Ended from None
            return job.result()
        finally:
            job.kill("killed")  # the caller was interrupted
            status.close()
            for fd in (out, err, job.pidfd):
                if fd >= 0:
                    os.close(fd)

    def close(self) -> None:
        """End the zygote and whatever it runs; the next call starts another."""
        with self._lock:
            if self._zygote is not None:
                self._zygote.close()
                self._zygote = None

    def after_fork(self) -> None:
        """In a forked copy of this process: leave the zygote to the original."""
        if self._zygote is not None:
            self._zygote.control.close()
        self._forget()


def _paths() -> list[tuple[str, str]]:
    roots = {sys.prefix: "/python", sys.base_prefix: "/python", str(_HERE.parent): "/whale_envs"}
    return sorted(((path, name) for path, name in roots.items() if path != "/usr"), key=lambda p: -len(p[0]))


def _without_paths(text: str) -> str:
    """The text with the directories of this installation renamed: they say nothing to a model, and differ elsewhere."""
    for path, name in _paths():
        text = text.replace(path, name)
    return text


def _close_all() -> None:
    for pool in list(_pools):
        pool.close()


def _after_fork() -> None:
    for pool in list(_pools):
        pool.after_fork()


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork)
