"""A `whale_train.pool.Pool` without processes: jobs run here, one by one, so that tests can patch what they use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class InlinePool:
    """Runs jobs in the order in which they were queued."""

    def __init__(self) -> None:
        self._jobs: list[tuple[Callable[..., Any], tuple[Any, ...], Callable[[Any], None]]] = []

    def submit(self, job: Callable[..., Any], *args: Any, then: Callable[[Any], None] = lambda result: None) -> None:
        """See `Pool.submit`."""
        self._jobs.append((job, args, then))

    def call(self, job: Callable[..., Any], *args: Any) -> Any:
        """See `Pool.call`."""
        return job(*args)

    def run(self, between: Callable[[], None] = lambda: None) -> None:
        """See `Pool.run`."""
        while self._jobs:
            job, args, then = self._jobs.pop(0)
            then(job(*args))
            between()


@contextmanager
def inline_pool(workers: int, unsafe: bool) -> Iterator[InlinePool]:
    """In the place of `whale_train.pool.pool`."""
    yield InlinePool()
