"""Mean@k with its interval, and paired differences. Pure functions over scores; a cluster is a task.

The k repeats of one task are not independent, so a task's mean is one observation: intervals are 95 % Student t
intervals over the tasks' means, n - 1 degrees of freedom, cut to the possible range. Where every task has the same
mean of 0 or of 1, t would give an interval of no width; there the exact binomial bound over n tasks stands in.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from whale_envs import Episode
from whale_envs.errors import UserError

#: The 97.5 % quantile of the standard normal distribution.
Z = 1.959963984540054

Scores = Mapping[str, Sequence[float]]


class Estimate(msgspec.Struct, frozen=True):
    """A mean with its 95 % interval [low, high], over `tasks` tasks."""

    mean: float
    low: float
    high: float
    tasks: int

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}]"

    def plain(self) -> dict[str, object]:
        """As result files have it: {"mean": x, "ci95": [low, high]}."""
        return {"mean": self.mean, "ci95": [self.low, self.high]}


def binomial_tail(wins: int, losses: int) -> float:
    """The exact one-sided sign test: the chance of as many wins or more, if a win is as likely as a loss."""
    total = wins + losses
    return float(sum(math.comb(total, k) for k in range(wins, total + 1)) / 2**total)


def scores_by_task(episodes: Iterable[Episode]) -> dict[str, list[float]]:
    """Each task's scores, tasks and repeats in the order of the episodes."""
    scores: dict[str, list[float]] = {}
    for episode in episodes:
        scores.setdefault(episode.task_id, []).append(episode.score)
    return scores


def mean_at_k(scores: Scores) -> Estimate:
    """Mean over tasks of the mean over a task's k repeats. Raises `UserError` when there is no score."""
    means = [statistics.fmean(repeats) for repeats in scores.values() if repeats]
    if not means:
        raise UserError("no episode to average over: expected at least one task with one repeat")
    n, mean = len(means), statistics.fmean(means)
    if max(means) == 0.0:
        return Estimate(0.0, 0.0, 1 - 0.025 ** (1 / n), n)
    if min(means) == 1.0:
        return Estimate(1.0, 0.025 ** (1 / n), 1.0, n)
    half = _half_width(means)
    return Estimate(mean, max(0.0, mean - half), min(1.0, mean + half), n)


def mean_by_set(scores: Scores, sets: Mapping[str, str]) -> dict[str, Estimate]:
    """`mean_at_k` of each data set, by name; `sets` has each task's. Empty where all are of one."""
    parts: dict[str, dict[str, Sequence[float]]] = {}
    for task, repeats in scores.items():
        parts.setdefault(sets[task], {})[task] = repeats
    return {name: mean_at_k(part) for name, part in sorted(parts.items())} if len(parts) > 1 else {}


def paired_difference(a: Scores, b: Scores) -> Estimate:
    """Mean of b minus a over the tasks that both have, with its interval over the tasks' differences.

    Raises `UserError` when they share no task.
    """
    return contrast([(-1.0, a), (1.0, b)])


def contrast(terms: Sequence[tuple[float, Scores]]) -> Estimate:
    """Mean of a weighted sum of scores over the tasks that all have, with its interval over the tasks' sums.

    With weights 1, -1, -1, 1 it is the interaction of two factors. Raises `UserError` when they share no task.
    """
    sums = sums_by_task(terms)
    if not sums:
        raise UserError("nothing to compare: the evaluations share no task, so run them on one test set")
    least, most = (sum(w for w, _ in terms if w * side > 0) for side in (-1, 1))
    mean, half = statistics.fmean(sums), _half_width(sums)
    return Estimate(mean, max(least, mean - half), min(most, mean + half), len(sums))


def sums_by_task(terms: Sequence[tuple[float, Scores]]) -> list[float]:
    """The weighted sum of the means over repeats, for each task that all the terms have."""
    shared = [task for task in terms[0][1] if all(scores.get(task) for _, scores in terms)]
    return [math.fsum(weight * statistics.fmean(scores[task]) for weight, scores in terms) for task in shared]


def behaviour_rates(episodes: Iterable[Episode]) -> dict[str, float]:
    """How often each behaviour was true, over the episodes that state it (one given another states it at times)."""
    seen: dict[str, list[bool]] = {}
    for episode in episodes:
        for name, value in episode.behaviours.items():
            seen.setdefault(name, []).append(value)
    return {name: statistics.fmean(values) for name, values in seen.items()}


def _half_width(values: Sequence[float]) -> float:
    """Half the t interval's width; infinite for one value, since one value says nothing of its spread."""
    if len(values) < 2:
        return math.inf
    return t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def t_quantile(df: int) -> float:
    """The 97.5 % quantile of Student's t with `df` degrees of freedom, to about 0.2 % (exact for 1 and 2).

    The expansion around the normal quantile: Abramowitz and Stegun, 26.7.5.
    """
    if df == 1:
        return math.tan(math.pi * 0.475)
    if df == 2:
        return 0.95 * math.sqrt(2 / (4 * 0.975 * 0.025))
    terms = (
        (Z**3 + Z) / 4,
        (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96,
        (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / 384,
        (79 * Z**9 + 776 * Z**7 + 1482 * Z**5 - 1920 * Z**3 - 945 * Z) / 92160,
    )
    return Z + sum(term / df ** (power + 1) for power, term in enumerate(terms))
