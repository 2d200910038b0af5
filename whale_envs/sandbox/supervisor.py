"""Keeps one zygote of a kind running in each process that needs it.

It is started on first use and again should it end; it leaves when the process does, also when that is killed. A forked
copy of the process starts its own. Calls may come from any thread.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from whale_envs.sandbox import launch
from whale_envs.sandbox.launch import SandboxError, Zygote, ZygoteEnded

T = TypeVar("T")


class Supervisor:
    """One zygote, with the arguments of `launch.start`."""

    def __init__(
        self, payload: str, options: Mapping[str, Any], threads: bool, environment: Mapping[str, str] | None = None
    ) -> None:
        self._start = payload, options, threads, environment or {}
        self.after_fork()
        _supervisors.add(self)

    def after_fork(self) -> None:
        """In a forked copy of the process: leave what runs to the original."""
        self._lock = threading.Lock()
        self._zygote: Zygote | None = None

    def using(self, function: Callable[[Zygote], T]) -> T:
        """Call `function` with a running zygote, twice if the first one was killed from outside meanwhile.

        Raises `UserError` where this machine offers no isolation, `SandboxError` when the sandbox does not work.
        """
        for _ in range(2):
            zygote = self._running()
            try:
                return function(zygote)
            except ZygoteEnded:
                self._drop(zygote)
        raise SandboxError("the sandbox process ended twice during one job")

    def _running(self) -> Zygote:
        with self._lock:
            if self._zygote is None:
                self._zygote = launch.start(*self._start)
            return self._zygote

    def _drop(self, zygote: Zygote) -> None:
        with self._lock:
            if self._zygote is zygote:
                self._zygote = None
                zygote.close()

    def close(self) -> None:
        """End the zygote and whatever it runs; the next use starts another."""
        with self._lock:
            if self._zygote is not None:
                self._zygote.close()
                self._zygote = None


def _close_all() -> None:
    for supervisor in list(_supervisors):
        supervisor.close()


def _after_fork() -> None:
    for supervisor in list(_supervisors):
        supervisor.after_fork()


_supervisors: weakref.WeakSet[Supervisor] = weakref.WeakSet()
atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork)
