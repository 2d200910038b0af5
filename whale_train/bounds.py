"""What an agent is bound by, as a rule over scores: its harness, its model, both, or not to be told.

Given are the scores of three agents on the same tasks: the start, the start after a training of its weights, and the
start after a search for a harness, both at the same cost. Three differences are looked at, each paired by task with its
95 % interval (`whale_train.metrics`): what the training gains, what the search gains, and the one less the other.

A gain is *real* when its interval lies above 0. Whichever of the two gained more is the leader. Then:

1. The leader's gain is real and its lead is real, too: the agent is bound by what the leader improves, the *harness* or
   the *model*.
2. Both gains are real and the lead is not: bound by *both*, and either helps.
3. Anything else is not to be told (*undecided*): the leader's gain is not real, or it is, but neither are the other's
   gain and the lead. What it would take to tell a difference of the size seen is stated.

So each claim needs two intervals that both say so, and is made with a chance of 2.5 % at most where it is false: no
correction for looking at three differences is due. Fewer than `FEWEST` tasks never tell: that all of them go one way
happens more often than that by chance.

The intervals are over tasks. That another seed would train and search otherwise is not in them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec

from whale_train.metrics import Estimate, Scores, Z, paired_difference, sums_by_task

Bound = Literal["harness", "model", "both", "undecided"]
#: 2**-5 is more than 2.5 %, 2**-6 is less.
FEWEST = 6
#: The 80 % quantile of the standard normal distribution: what is there is to be seen four times in five.
POWER = 0.8416212335729143


class Needed(msgspec.Struct, frozen=True):
    """What would tell a difference of the size seen, in four cases of five: so many `tasks`, with as many episodes of
    each as now; or so many episodes of each of the tasks (`repeats`), None where no number of them would do, or where
    one episode of each does not say how much they vary."""

    tasks: int
    repeats: int | None


class Diagnosis(msgspec.Struct, frozen=True):
    """What the rule says, the three differences that it looked at, and why in plain words.

    `difference` is the search's gain less the training's. `needed` is what would tell what was not told, None where
    nothing was left open, or where no difference was seen that more tasks could tell.
    """

    bound: Bound
    training: Estimate
    search: Estimate
    difference: Estimate
    why: str
    needed: Needed | None = None


def diagnosis(start: Scores, trained: Scores, searched: Scores) -> Diagnosis:
    """What binds the agent, by the rule above. Raises `UserError` when the three share no task."""
    training, search = paired_difference(start, trained), paired_difference(start, searched)
    difference = paired_difference(trained, searched)

    def found(bound: Bound, why: str, open: Needed | None = None) -> Diagnosis:
        return Diagnosis(bound, training, search, difference, why, open)

    if difference.tasks < FEWEST:
        return found("undecided", f"{difference.tasks} tasks tell nothing: it takes {FEWEST} at least")
    if difference.mean >= 0:
        name, end, leader, behind, other = "search", searched, search, "training", training
    else:
        name, end, leader, behind, other = "training", trained, training, "search", search
    if leader.mean <= 0:
        return found("undecided", "neither training nor search gained anything: a larger budget may")
    if leader.low <= 0:
        return found("undecided", f"the {name} gained more, and even that may be chance", needed(start, end))
    if difference.low > 0 or difference.high < 0:
        bound: Bound = "harness" if name == "search" else "model"
        return found(bound, f"the {name} gains really, and really more than the {behind}")
    if other.low > 0:
        why = "either helps: both gain really, and which of them gains more may be chance"
        return found("both", why, needed(trained, searched))
    why = f"the {name} gains really and the {behind} does not, but the difference between them may be chance"
    return found("undecided", why, needed(trained, searched))


def needed(a: Scores, b: Scores) -> Needed | None:
    """What would tell the mean difference of b and a, if it is what was seen here; None where it is 0.

    The variance of a task's difference is that between tasks plus that of its episodes, and more episodes of each task
    make only the second smaller. Both are estimated from the scores, of two tasks at least.
    """
    differences = sums_by_task([(-1, a), (1, b)])
    mean = statistics.fmean(differences)
    if mean == 0:
        return None
    wanted = (mean / (Z + POWER)) ** 2  # the variance of the mean that would do
    shared = [(a[task], b[task]) for task in a if a.get(task) and b.get(task)]
    total, repeats = statistics.variance(differences), statistics.fmean(len(one) for one, _ in shared)
    within = statistics.fmean(_variance_of_mean(one) + _variance_of_mean(other) for one, other in shared)
    left = wanted * len(differences) - max(0.0, total - within)
    return Needed(
        tasks=max(FEWEST, math.ceil(total / wanted)),
        repeats=math.ceil(within * repeats / left) if within > 0 and left > 0 else None,
    )


def _variance_of_mean(scores: Sequence[float]) -> float:
    return statistics.variance(scores) / len(scores) if len(scores) > 1 else 0.0
