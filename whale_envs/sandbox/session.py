"""A program in the sandbox that goes on from call to call."""

from __future__ import annotations

import os
import resource
import socket
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from whale_envs.harness.helpers import ExecResult
from whale_envs.sandbox.job import STATUSES, Job
from whale_envs.sandbox.launch import Zygote, ZygoteEnded

if TYPE_CHECKING:
    from whale_envs.sandbox.pool import Pool

#: Processor time of one session's process in seconds: a backstop, since the clock bounds each cell.
CPU_SECONDS = 3600
#: Each session holds four descriptors here, and hundreds of episodes may have one each.
DESCRIPTORS = 8192
_LOST = "the session ended, and its names are gone; the next call starts anew\n"


class Session:
    """Cells that share their names, as at a prompt; for one thread at a time.

    The process is forked for the first cell, and again after one that had to be stopped or that ended it, which says
    that the names are gone. Between cells the process is stopped, whatever threads it has.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._running: Job | None = None
        self._owner = os.getpid()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, source: str, timeout: float, memory_mb: int) -> ExecResult:
        """Run one cell. `memory_mb` counts when a process is started, and then for all its cells together.

        Raises `UserError` where this machine offers no isolation, `SandboxError` when the sandbox does not work.
        """
        with self._pool.slots:
            try:
                if self._running is None:
                    self._owner = os.getpid()
                    self._running = self._pool.using(partial(self._fork, memory_mb))
                elif self._owner != os.getpid():  # in a forked copy of the process that it belongs to
                    raise ZygoteEnded
                return self._cell(self._running, source, timeout)
            except ZygoteEnded:
                self.close()
                return ExecResult("", _LOST, "killed")
            except BaseException:  # interrupted in the middle of an exchange
                self.close()
                raise

    def close(self) -> None:
        """End the process and forget the names; the next cell starts anew."""
        if self._running is not None:
            self._running.close()
            self._running = None

    @staticmethod
    def _fork(memory_mb: int, zygote: Zygote) -> Job:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < min(hard, DESCRIPTORS):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, DESCRIPTORS), hard))
        job = Job(zygote, memory_mb, CPU_SECONDS, session=True)
        try:
            job.start()
        except BaseException:
            job.close()
            raise
        return job

    def _cell(self, job: Job, source: str, timeout: float) -> ExecResult:
        job.begin()
        code = self._exchange(job, source, timeout)
        if code is None:
            if job.exit is None:
                job.kill("killed")
                job.follow(timeout)
            result = job.result(timeout)
            self.close()
            return replace(result, stderr=result.stderr + _LOST)
        job.pause()
        return ExecResult(*job.texts(), STATUSES[code], time.perf_counter() - job.started)

    @staticmethod
    def _exchange(job: Job, source: str, timeout: float) -> int | None:
        """Send a cell; how it went, or None when the process has ended or has to be given up."""
        job.socket.setblocking(False)
        try:
            with suppress(BlockingIOError):
                job.socket.recv(1, socket.MSG_PEEK)
                return None  # it has ended since the last cell, or speaks without being asked
            job.send(source, timeout)
        except (TimeoutError, BrokenPipeError, ConnectionResetError):  # it does not read, or ended with a cell unread
            return None
        reply = job.follow(timeout, replies=True)
        return reply[0] if reply and reply[0] in STATUSES else None
