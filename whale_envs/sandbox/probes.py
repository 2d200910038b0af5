"""What must fail inside a sandbox, tried at start-up: by a process that has confined itself, and by a zygote's child.

Where containment fails, a probe does as little harm as it can: signal 0 reaches nobody, and PTRACE_SEIZE does not stop
the process that it traces. Run as text in places that import nothing of this package.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import resource
import socket
from collections.abc import Callable

_PTRACE_SEIZE = 0x4206


def escapes(canary: str, threads: bool = True) -> list[str]:
    """The probes that were not stopped, in words: none where the sandbox holds.

    `canary` is a file that exists; `threads` says whether threads may be started.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def traces() -> None:
        if libc.ptrace(_PTRACE_SEIZE, os.getppid(), 0, 0) == -1:
            raise OSError(ctypes.get_errno(), "ptrace")

    def forks() -> None:
        if os.fork() == 0:
            os._exit(0)

    probes: dict[str, Callable[[], object]] = {
        "reads a file": lambda: open(canary).close(),
        "lists a directory": lambda: os.listdir("/"),
        "starts a process": forks,
        "runs a program": lambda: os.execv("/bin/true", ["true"]),
        "opens a socket": lambda: socket.socket().close(),
        "signals its parent": lambda: os.kill(os.getppid(), 0),
        "traces its parent": traces,
        "undoes a limit": lambda: resource.setrlimit(resource.RLIMIT_CPU, (-1, -1)),
    }
    if not threads:
        probes["starts a thread"] = lambda: _thread.start_new_thread(int, ())
    return [what for what, probe in probes.items() if not _refused(probe)]


def _refused(probe: Callable[[], object]) -> bool:
    try:
        probe()
    except (OSError, ValueError, RuntimeError):
        return True
    return False
