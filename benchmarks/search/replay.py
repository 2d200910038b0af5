"""Replays of recorded searches: the same candidates in the same order, under other rules and other draws of tasks.

A recorded search has an outcome for each candidate and task. A replay takes the tasks in a random order, so that the
first 32 are others each time, and lets a rule decide what is played and what is accepted.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from whale_train.meta_harness import racing
from whale_train.meta_harness.archive import read_archive
from whale_train.metrics import binomial_tail

Table = NDArray[np.float64]
sign_test = functools.cache(binomial_tail)


@dataclass(frozen=True)
class Recorded:
    """A search phase on file: a row for each candidate, the start first, and a column for each task."""

    name: str
    scores: Table
    said: NDArray[np.int64]  # what the policy said, each different thing by a number
    rounds: list[int]  # the round that each candidate is of, 0 for the start

    @property
    def means(self) -> Table:
        """Each candidate's mean over all tasks."""
        return self.scores.mean(1)

    def of(self, tasks: NDArray[np.int64]) -> Recorded:
        """The same with these tasks alone, in this order."""
        return replace(self, scores=self.scores[:, tasks], said=self.said[:, tasks])


def read(folder: Path, name: str) -> Recorded:
    """The last phase of an archive, of candidates that played all tasks and were not refused."""
    archive = read_archive(folder)
    assert archive.phase is not None
    key = archive.phase.score_key
    kept = [c for c in archive.candidates if c in archive.scored(key)]
    played = [archive.outcomes(c.hash, key) for c in kept]
    number = {t.hash: r.round for r in archive.rounds for t in r.tried}
    scores = np.array([[outcomes[t].score for t in played[0]] for outcomes in played])
    said = np.unique([[outcomes[t].said for t in played[0]] for outcomes in played], return_inverse=True)[1]
    return Recorded(name, scores, said.reshape(scores.shape), [number.get(c.hash, 0) for c in kept])


def dropped(phase: Recorded, rival: int, full: Sequence[int], level: float) -> int:
    """The tasks that a rival plays against those that have played all, before it is dropped; all where it is not."""
    best = max(full, key=lambda i: phase.means[i])
    tasks = phase.scores.shape[1]
    for _, end in racing.stages(tasks)[:-1]:
        wins, losses = _apart(phase.scores[rival, :end], phase.scores[best, :end])
        alike = (phase.said[rival, :end] == phase.said[full, :end]) & (
            phase.scores[rival, :end] == phase.scores[full, :end]
        )
        twin = end >= racing.ALIKE and alike.all(1).any()
        if twin or racing.catch_up(wins, losses, end / tasks) <= level:
            return end
    return tasks


@dataclass(frozen=True)
class Race:
    """What came of a replayed race: the share of the candidates' rollouts that it saved, whether it ended with another
    than the best, and how much lower that one's mean is, in points."""

    saved: float
    lost: bool
    points: float


def race(phase: Recorded, level: float) -> Race:
    """A search by `best` whose candidates race at a level."""
    means, tasks, full, played = phase.means, phase.scores.shape[1], [0], 0
    for rival in range(1, len(means)):
        looked = dropped(phase, rival, full, level)
        played += looked
        if looked == tasks:
            full.append(rival)
    behind = float(means.max() - means[full].max())
    return Race(1 - played / phase.scores[1:].size, behind > 1e-9, 100 * behind)


def search(recorded: Recorded, order: NDArray[np.int64], rule: str, level: float = 0.1) -> Iterator[tuple[int, int]]:
    """(rollouts so far, the accepted candidate) after each round, of a search that sees the first half of the tasks in
    an order. Fresh seeds are not on file: the second half stands in for them, which is harder to confirm on."""
    half = len(order) // 2
    first, fresh = recorded.of(order[:half]), recorded.scores[:, order[half : 2 * half]]
    seen, means, now, spent = first.scores, first.means, 0, half
    full, denied, again = [0], set[int](), set[int]()
    yield spent, now
    for number in range(1, max(recorded.rounds) + 1):
        for rival in (i for i, r in enumerate(recorded.rounds) if r == number):
            tasks = dropped(first, rival, full, racing.LEVEL) if "racing" in rule else half
            spent += tasks
            if tasks == half:
                full.append(rival)
        for rival in sorted(full, key=lambda i: -means[i]):
            if means[rival] <= means[now]:
                break
            if "paired" not in rule:
                now = rival
                break
            if rival in denied or sign_test(*_apart(seen[rival], seen[now])) > level:
                continue
            spent += half * len({rival, now} - again)
            again |= {rival, now}
            if sign_test(*_apart(fresh[rival], fresh[now])) <= level:
                now = rival
            else:
                denied.add(rival)
            break  # a round pays for one rival
        yield spent, now


def _apart(rival: Table, other: Table) -> tuple[int, int]:
    return int((rival > other).sum()), int((rival < other).sum())
