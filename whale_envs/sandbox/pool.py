"""Jobs of the code tool: one call, one confined process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

from whale_envs.harness.helpers import ExecResult
from whale_envs.processors import processors
from whale_envs.sandbox import launch
from whale_envs.sandbox.job import Job
from whale_envs.sandbox.launch import Zygote
from whale_envs.sandbox.supervisor import Supervisor

_HUGE_PAGES = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}  # one page table entry for 2 MB


class Pool(Supervisor):
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
        self._workers = workers or processors()
        options = {"preload": preload, "packages": packages, "prepare": prepare}
        super().__init__("whale_envs.sandbox.runner", options, True, _HUGE_PAGES if huge_pages else {})

    def after_fork(self) -> None:
        """See `Supervisor.after_fork`."""
        super().after_fork()
        #: Held while a job or a cell runs.
        self.slots = threading.Semaphore(self._workers)

    def run(self, source: str, timeout: float, memory_mb: int) -> ExecResult:
        """Run Python source in a fresh child.

        Raises `UserError` where this machine offers no isolation, `SandboxError` when the sandbox does not work.
        """

        def once(zygote: Zygote) -> ExecResult:
            job = Job(zygote, memory_mb, int(timeout) + 2, session=False)
            try:
                with contextlib.suppress(TimeoutError, ConnectionError):  # `start` will say why
                    job.send(source, launch.HUNG_SECONDS)
                job.start()
                job.follow(timeout)
                return job.result(timeout)
            finally:
                job.close()

        with self.slots:
            return self.using(once)
