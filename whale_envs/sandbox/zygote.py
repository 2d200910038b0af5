"""A clean process that has everything imported and forks one child per job: `python -P -s zygote.py CONFIG`.

Descriptor 3 is the control socket (one datagram a job), 4 a pidfd of the process that started this one, 5 the Landlock
rules (where the kernel has Landlock), 0 the null device. A datagram is a JSON object
`{"memory_mb": int, "cpu_seconds": int, "session": bool}` with four descriptors: the source (for a session, the socket
that its cells come from), where standard output and standard error go, and the job's status socket, on which follow

    P + a pidfd        the child was forked (the other side can now kill it)
    R                  the child has confined itself and is about to run the source
    F message          the child was not forked or could not confine itself; the source did not run
    X + status, CPU    the child has ended: wait status, processor seconds

When the other side closes the status socket, the child is killed.
The child has only the source, so nothing of another job or of the process that asked is in its memory.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whale_envs.sandbox.archive import Archive
    from whale_envs.sandbox.layers import Confinement, ConfinementError, Limits
    from whale_envs.sandbox.runner import run, serve
else:  # the files beside this one, without the package around them
    sys.path.insert(0, str(Path(__file__).parent))
    from archive import Archive
    from layers import Confinement, ConfinementError, Limits
    from runner import run, serve

    del sys.path[0]
    for _name in ("archive", "layers", "runner"):
        del sys.modules[_name]

CONTROL, PARENT, RULES = 3, 4, 5
EXITED = struct.Struct("<cid")


class Zygote:
    """The loop: fork on a datagram, reap on a child's end, leave when the parent is gone."""

    def __init__(self, own_user: bool, seccomp: bytes, rules: int) -> None:
        self.own_user = own_user
        self.confinement = Confinement(seccomp, rules) if seccomp else None  # None: the user said --unsafe
        self.limits = Limits()
        self.control = socket.socket(fileno=CONTROL)
        self.poller = select.poll()
        self.poller.register(CONTROL, select.POLLIN)
        self.poller.register(PARENT, select.POLLIN)
        self.children: dict[int, tuple[int, int]] = {}  # pidfd: pid, status socket
        self.asked: dict[int, int] = {}  # status socket: pidfd

    def serve(self) -> None:
        """Serve jobs until the parent closes its end or ends."""
        while True:
            # the control socket last: what it brings may take the numbers of descriptors that are closed before
            for fd, _ in sorted(self.poller.poll(), key=lambda event: event[0] == CONTROL):
                if fd == PARENT:
                    return
                if fd in self.children:
                    self.reap(fd)
                    continue
                if fd in self.asked:  # whoever asked is gone
                    self.poller.unregister(fd)
                    signal.pidfd_send_signal(self.asked.pop(fd), signal.SIGKILL)
                    continue
                if fd != CONTROL:  # reaped in this round
                    continue
                message, fds, _, _ = socket.recv_fds(self.control, 4096, 4)
                if not message:
                    return
                self.start(json.loads(message), fds)

    def start(self, job: dict[str, Any], fds: list[int]) -> None:
        """Fork the job's child and hand its pidfd over."""
        source, out, err, status = fds
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            os.write(status, f"Fcannot fork: {error}".encode())
            os.close(status)
        else:
            if pid == 0:
                self.child(job, fds, parent)
            pidfd = os.pidfd_open(pid)
            with socket.socket(fileno=os.dup(status)) as peer, contextlib.suppress(ConnectionError):
                socket.send_fds(peer, [b"P"], [pidfd])
            self.children[pidfd], self.asked[status] = (pid, status), pidfd
            self.poller.register(pidfd, select.POLLIN)
            self.poller.register(status, 0)  # tells of a hang-up
        for fd in (source, out, err):
            os.close(fd)

    def child(self, job: dict[str, Any], fds: list[int], parent: int) -> None:
        """Confine this process, run the source, and end."""
        source, out, err, status = fds
        code, end = 1, os._exit  # kept here, since the job may put another function in its place
        try:
            os.dup2(out, 1)
            os.dup2(err, 2)
            keep = {source, status, 0, 1, 2}
            if self.confinement is None:
                os.setsid()
                self.limits.apply(keep, job["memory_mb"], job["cpu_seconds"])
            else:
                self.confinement.apply(keep, job["memory_mb"], job["cpu_seconds"], self.own_user, parent)
            os.write(status, b"R")
            os.close(status)
            code = serve(source) if job["session"] else run(source)
        except ConfinementError as error:
            os.write(status, f"F{error}".encode())
        finally:
            end(code)

    def reap(self, pidfd: int) -> None:
        """Report a child's end."""
        pid, status = self.children.pop(pidfd)
        self.poller.unregister(pidfd)
        if self.asked.pop(status, None) is not None:
            self.poller.unregister(status)
        if self.confinement is None:  # nothing kept it from starting processes; its number is still taken
            self.kill_group(pid)
        _, wait_status, usage = os.wait4(pid, 0)
        with contextlib.suppress(OSError):  # whoever asked is gone
            os.write(status, EXITED.pack(b"X", wait_status, usage.ru_utime + usage.ru_stime))
        os.close(status)
        os.close(pidfd)

    @staticmethod
    def kill_group(pid: int) -> None:
        """Kill the process group that an unconfined child leads."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill what still runs."""
        for pidfd, (pid, _) in self.children.items():
            if self.confinement is None:
                self.kill_group(pid)
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def main() -> None:
    """Import what jobs may need, say that it is ready, and serve."""
    config = json.loads(sys.argv[1])
    os.closerange(RULES + 1, 1 << 16)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # two a session; children have a limit of their own
    os.chdir("/")
    for name in config["preload"]:
        importlib.import_module(name)
    exec(compile(config["prepare"], "prepare.py", "exec"), {})
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(0)  # as `runner` does with `random`
    archive = Archive(config["packages"])
    zygote = Zygote(config["own_user"], bytes.fromhex(config["seccomp"]), RULES if config["landlock"] else -1)
    sys.meta_path[:] = [*sys.meta_path[:2], archive]  # built-in and frozen modules stay
    sys.path[:] = []
    sys.path_importer_cache.clear()
    sys.argv[:] = [""]
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=True)  # what was printed before a time limit is kept
    gc.collect()
    gc.disable()
    gc.freeze()  # a collection in a child would otherwise copy every page
    with contextlib.suppress(BrokenPipeError):  # the caller is gone already, which `serve` will find
        zygote.control.send(b"ready")
    try:
        zygote.serve()
    finally:
        zygote.close()


if __name__ == "__main__":
    main()
