"""Starting and ending the zygote, from the caller's side."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from whale_envs.sandbox import isolation, layers

#: Seconds for a zygote to answer, and past a deadline to report an end; one that is stopped or hangs does neither.
HUNG_SECONDS = 20.0
START_SECONDS = 300.0  # importing sympy takes three, and forty on a machine that is busy with other things
_ZYGOTE = Path(__file__).with_name("zygote.py")
_HUGE_PAGES = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}  # one page table entry for 2 MB


class SandboxError(RuntimeError):
    """The sandbox itself does not work; never the fault of the code that was to run."""


class ZygoteEnded(Exception):
    """The zygote is gone."""


class ZygoteProcess:
    """A running zygote (see `zygote.py`): its control socket and process id.

    Raises `UserError` where this machine offers no isolation, `SandboxError` when it does not start.
    """

    def __init__(self, preload: Sequence[str], packages: Sequence[str], huge_pages: bool, prepare: str) -> None:
        found = isolation.require()
        self.unsafe = not found.seccomp
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as given:
            self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.enter_context(self.control)
            given.enter_context(theirs)
            passed = [theirs.fileno(), os.pidfd_open(os.getpid())]
            given.callback(os.close, passed[1])
            if found.seccomp and (rules := layers.no_rights()) >= 0:
                given.callback(os.close, rules)
                passed.append(rules)
            high = []  # out of the way of the numbers that the zygote expects them at
            for fd in passed:
                high.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10))
                given.callback(os.close, high[-1])
            confinement = {"own_user": found.own_user, "seccomp": found.seccomp.hex(), "landlock": len(passed) == 3}
            config = {"preload": preload, "packages": packages, "prepare": prepare, **confinement}
            command = isolation.command(_ZYGOTE, json.dumps(config))
            self.pid = os.posix_spawn(
                command[0],
                command,
                isolation.ENVIRONMENT | (_HUGE_PAGES if huge_pages else {}),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    *((os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(high, 3)),
                ],
                setsid=True,  # Ctrl-C is for the caller
            )
            ours.pop_all()
        self.control.settimeout(START_SECONDS)
        try:
            said = self.control.recv(64)
        except TimeoutError:
            said = b""
        if said != b"ready":
            self.close()
            raise SandboxError(f"the sandbox process did not start ({isolation.tier()}); its message is above")
        self.control.settimeout(HUNG_SECONDS)

    def close(self) -> None:
        """Close the control socket, on which the process leaves with all its children, and reap it."""
        self.control.close()
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            if not poller.poll(5000):
                os.killpg(self.pid, signal.SIGKILL)  # what is inside bubblewrap too; not reaped, so the number is its
            os.waitpid(self.pid, 0)
        except ChildProcessError:  # reaped by somebody else's wait
            pass
        finally:
            os.close(pidfd)
