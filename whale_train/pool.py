"""Worker processes that live as long as a run, one thread of computation each, and die with it."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from whale_envs.errors import UserError

_PR_SET_PDEATHSIG = 1
#: Of glibc's mallopt(3): the memory at the top of the heap that is given back, and how many blocks may be mapped.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


class Pool:
    """Runs jobs in the processes of an executor, and asks for more jobs as jobs end."""

    def __init__(self, executor: ProcessPoolExecutor) -> None:
        self._executor = executor
        self._jobs: dict[Future[Any], Callable[[Any], None]] = {}

    def submit(self, job: Callable[..., Any], *args: Any, then: Callable[[Any], None] = lambda result: None) -> None:
        """Queue `job(*args)`; `then` gets its result, here, and may queue more."""
        with _deaf():
            self._jobs[self._executor.submit(job, *args)] = then

    def call(self, job: Callable[..., Any], *args: Any) -> Any:
        """The result of one job, once all jobs have ended; the other workers start up beside it."""
        for _ in range(self._executor._max_workers - 1):
            self.submit(_nothing)
        results: list[Any] = []
        self.submit(job, *args, then=results.append)
        self.run()
        return results[0]

    def run(self, between: Callable[[], None] = lambda: None) -> None:
        """Wait until no job is left, calling `between` a few times a second.

        A job's exception is raised here. Raises `UserError` when a worker process was killed.
        """
        try:
            while self._jobs:
                ended, _ = wait(self._jobs, timeout=0.25, return_when=FIRST_COMPLETED)
                for job in ended:
                    self._jobs.pop(job)(job.result())
                between()
        except BrokenProcessPool:
            raise UserError(
                "a worker process was killed (out of memory?): the same command goes on from here"
            ) from None


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes that are started here never hear Ctrl-C, from their first line on: it is for this process to heed."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def pool(workers: int, unsafe: bool) -> Iterator[Pool]:
    """A pool that is gone, with all it was doing, when the block is left by an error or by Ctrl-C.

    What the workers do is kept on disk as they go, so ending them at once loses nothing that cannot be done again.
    """
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(os.getpid(), unsafe))
    try:
        yield Pool(executor)
    except BaseException:
        for process in list(executor._processes.values()):
            process.kill()
        raise
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _begin(parent: int, unsafe: bool) -> None:
    """Start a worker: dies with its parent, computes with one thread."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # Caches of keys and values come and go with each turn: memory that is kept needs no clearing by the kernel
        # each time, which took an eighth of the time. (musl has no mallopt.)
        if hasattr(libc, "mallopt"):
            libc.mallopt(_M_MMAP_MAX, 0)
            libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    if os.getppid() != parent:
        os._exit(1)
    import torch
    from tqdm import tqdm

    from whale_envs import sandbox
    from whale_train.console import quieten

    torch.set_num_threads(1)
    # tqdm's own lock is a semaphore that a killed worker would leave behind, with a warning at the end
    tqdm.set_lock(threading.RLock())
    quieten()
    if unsafe:
        sandbox.allow_unsafe()


def _nothing() -> None:
    """A job that starts a worker."""
