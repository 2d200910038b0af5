"""The caller's side: starts a zygote when first needed, and supervises one job per call.

Each process has its own zygote, started on first use and again should it end; it leaves when the process does, also
when that is killed. Calls may come from any thread.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from whale_envs.errors import UserError
from whale_envs.harness.helpers import ExecResult
from whale_envs.sandbox import isolation, probes
from whale_envs.sandbox.child import Child
from whale_envs.sandbox.launch import SandboxError, ZygoteEnded, ZygoteProcess

#: The probes as a program that prints those that were not stopped. The canary is a file that bubblewrap shows too.
_SELF_TEST = f"{Path(probes.__file__).read_text()}\nprint(*escapes({__file__!r}), sep=', ', end='')"

T = TypeVar("T")


class Pool:
    """Jobs forked from one zygote with `preload` imported and `packages` (besides the standard library) importable.

    At most `workers` (default: the processors of this process) run at once; further calls wait for their turn, which
    does not count against their time limit. `huge_pages` makes the fork of a large zygote (sympy: 60 MB) half as dear,
    and allocation in the job a little slower. `prepare` is source of ours that the zygote runs after its imports, so
    that jobs find the caches of those modules filled.
    """

    def __init__(
        self,
        preload: Sequence[str] = (),
        packages: Sequence[str] = (),
        workers: int | None = None,
        huge_pages: bool = False,
        prepare: str = "",
    ) -> None:
        self._preload = tuple(preload)
        self._packages = tuple(packages)
        self._huge_pages = huge_pages
        self._prepare = prepare
        self._workers = workers or _processors()
        self._forget()
        _pools.add(self)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        #: Held while a job or a cell runs.
        self.slots = threading.Semaphore(self._workers)
        self._zygote: ZygoteProcess | None = None

    def run(self, source: str, timeout: float, memory_mb: int) -> ExecResult:
        """Run Python source in a fresh child.

        Raises `UserError` where this machine offers no isolation, `SandboxError` when the sandbox does not work.
        """
        with self.slots:
            return self.using(lambda zygote: _job(zygote, source, timeout, memory_mb))

    def using(self, function: Callable[[ZygoteProcess], T]) -> T:
        """Call `function` with a running zygote, twice if the first one was killed from outside meanwhile."""
        for _ in range(2):
            zygote = self._running()
            try:
                return function(zygote)
            except ZygoteEnded:
                self._drop(zygote)
        raise SandboxError("the sandbox process ended twice during one job")

    def _running(self) -> ZygoteProcess:
        with self._lock:
            if self._zygote is None:
                zygote = ZygoteProcess(self._preload, self._packages, self._huge_pages, self._prepare)
                try:
                    if not zygote.unsafe:
                        _self_test(zygote)
                except BaseException:
                    zygote.close()
                    raise
                self._zygote = zygote
            return self._zygote

    def _drop(self, zygote: ZygoteProcess) -> None:
        with self._lock:
            if self._zygote is zygote:
                self._zygote = None
                zygote.close()

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


def _job(zygote: ZygoteProcess, source: str, timeout: float, memory_mb: int) -> ExecResult:
    text = os.memfd_create("source")
    try:
        with open(text, "wb", closefd=False) as file:
            file.write(source.encode("utf-8", "surrogatepass"))
        os.lseek(text, 0, os.SEEK_SET)
        child = Child(zygote, text, memory_mb, int(timeout) + 2, session=False)
    finally:
        os.close(text)
    try:
        child.follow(timeout)
        return child.result(timeout)
    finally:
        child.close()


def _self_test(zygote: ZygoteProcess) -> None:
    """Probes that must fail, before any job runs: raises `UserError` when one does not."""
    result = _job(zygote, _SELF_TEST, 30.0, 256)
    if result.status != "ok" or result.stdout:
        failed = result.stdout or result.stderr.strip().rpartition("\n")[2]
        raise UserError(
            f"the sandbox does not hold on this machine ({isolation.tier()}): a probe {failed}; "
            "nothing untrusted is run; use a current Linux kernel (5.13 or later) with seccomp"
        )


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _close_all() -> None:
    for pool in list(_pools):
        pool.close()


def _after_fork() -> None:
    for pool in list(_pools):
        pool.after_fork()


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork)
