"""Replays of recorded searches: the same candidates in the same order, under other rules and other draws of tasks.

A recorded search has an outcome for each candidate and task. A replay takes the tasks in a random order, so that the
first 32 are others each time, and lets a rule decide what is played and what is accepted.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from whale_train.meta_harness import racing
from whale_train.meta_harness.archive import read_archive
from whale_train.metrics import binomial_tail

Table = NDArray[np.float64]
catch_up = functools.cache(racing.catch_up)
sign_test = functools.cache(binomial_tail)


@dataclass(frozen=True)
class Recorded:
    """A search phase on file: a row for each candidate, the start first, and a column for each task."""

    name: str
    scores: Table
    rounds: list[int]  # the round that each candidate is of, 0 for the start

    @property
    def means(self) -> Table:
        """Each candidate's mean over all tasks."""
        return self.scores.mean(1)


def read(folder: Path, name: str) -> Recorded:
    """The last phase of an archive, of candidates that played all tasks and were not refused."""
    archive = read_archive(folder)
    assert archive.phase is not None
    key = archive.phase.score_key
    kept = [c for c in archive.candidates if c in archive.scored(key)]
    played = [archive.outcomes(c.hash, key) for c in kept]
    number = {t.hash: r.round for r in archive.rounds for t in r.tried}
    scores = np.array([[outcomes[t].score for t in played[0]] for outcomes in played])
    return Recorded(name, scores, [number.get(c.hash, 0) for c in kept])


def beaten(rival: Table, best: Table, level: float) -> int:
    """The tasks that a rival plays before it is dropped; all of them where it is not."""
    for _, end in racing.stages(len(rival))[:-1]:
        wins, losses = _apart(rival[:end], best[:end])
        if catch_up(wins, losses, end / len(rival)) <= level:
            return end
    return len(rival)


@dataclass(frozen=True)
class Race:
    """What came of a replayed race: the share of the candidates' rollouts that it saved, whether it ended with another
    than the best, and how much lower that one's mean is, in points."""

    saved: float
    lost: bool
    points: float


def race(scores: Table, level: float) -> Race:
    """A search by `best` whose candidates race at a level."""
    means, best, played = scores.mean(1), 0, 0
    for rival in range(1, len(scores)):
        tasks = beaten(scores[rival], scores[best], level)
        played += tasks
        if tasks == scores.shape[1] and means[rival] > means[best]:
            best = rival
    behind = float(means.max() - means[best])
    return Race(1 - played / (scores[1:].size), behind > 1e-9, 100 * behind)


def search(recorded: Recorded, order: NDArray[np.int64], rule: str, level: float = 0.1) -> Iterator[tuple[int, int]]:
    """(rollouts so far, the accepted candidate) after each round, of a search that sees the first half of the tasks in
    an order. Fresh seeds are not on file: the second half stands in for them, which is harder to confirm on."""
    half = len(order) // 2
    seen, fresh = recorded.scores[:, order[:half]], recorded.scores[:, order[half : 2 * half]]
    means, now, spent = seen.mean(1), 0, half
    full, denied, again = [0], set[int](), set[int]()
    yield spent, now
    for number in range(1, max(recorded.rounds) + 1):
        for rival in (i for i, r in enumerate(recorded.rounds) if r == number):
            best = max(full, key=lambda i: means[i])
            tasks = beaten(seen[rival], seen[best], racing.LEVEL) if "racing" in rule else half
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
