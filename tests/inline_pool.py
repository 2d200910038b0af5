"""Runs without processes: the jobs of a pool run here, one by one, so that tests can patch what they use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from whale_envs import Harness
from whale_train.meta_harness.archive import Archive


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


def unjailed(archive: Archive, hash: str) -> Harness:
    """In the place of `Archive.harness`: what the tests wrote themselves needs no process of its own."""
    return Harness(archive.source(hash), hash, trusted=True)


@contextmanager
def inline_pool(workers: int, unsafe: bool) -> Iterator[InlinePool]:
    """In the place of `whale_train.pool.pool`."""
    yield InlinePool()
