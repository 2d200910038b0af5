"""Racing: a candidate stops playing as soon as it is very unlikely that it would come out best.

It is looked at every `LOOK` tasks, and dropped for one of two reasons.

It is behind. It is compared with the best so far, task by task. The question is not whether it is worse in general but
whether, over all tasks that a search has, it would still come out higher: the tasks played are a random part of those
(their order comes from their ids), so if it won just one task more than it lost on the whole, the tasks that it alone
has won would be a draw without replacement from the tasks that one of the two alone wins. That is Fisher's exact test,
one-sided; how many such tasks there are in all is taken in proportion to what was seen, and one more. It is sharper
than a sign test, since it knows how many tasks are left to catch up on. (Racing: Maron and Moore, Advances in Neural
Information Processing Systems 6, 1994; with paired tests: Birattari et al., GECCO 2002.)

It makes no difference. On all tasks so far, `ALIKE` at least, the policy has said the same under it, word for word, as
under a harness that has played all of them, and the same came of it: a change of what is never shown, say. One that
matters in a task of 40 is seen by then four times in five; one that matters less often could lead by as little.

`LEVEL` bounds the chance that one look drops the best as being behind, for one that leads by a single task; the best of
a search mostly leads by more. What races save and lose is measured on recorded searches (benchmarks/search).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from whale_train.meta_harness.records import Outcome

Outcomes = Mapping[str, Outcome]

#: Tasks between two looks.
LOOK = 16
#: The level of the test at each look.
LEVEL = 0.05
#: Tasks on which a candidate has to make no difference before it is dropped for it.
ALIKE = 64


def stages(tasks: int) -> list[tuple[int, int]]:
    """The stretches in which so many tasks are played, as (first, one after the last)."""
    return list(itertools.pairwise([*range(0, tasks, LOOK), tasks]))


@dataclass(frozen=True)
class Race:
    """What a candidate runs against: the outcomes of the best so far, and those of all that have played all tasks."""

    best: Outcomes
    others: Sequence[Outcomes]
    tasks: int

    def lost(self, played: Sequence[Outcome]) -> bool:
        """Whether one that has played a part of the tasks is dropped."""
        twin = len(played) >= ALIKE and any(alike(played, other) for other in self.others)
        return twin or behind(played, self.best, self.tasks)


def behind(played: Sequence[Outcome], best: Outcomes, tasks: int, level: float = LEVEL) -> bool:
    """Whether a candidate is very unlikely to come out higher than the best."""
    pairs = [(outcome.score, best[outcome.task].score) for outcome in played]
    return catch_up(sum(a > b for a, b in pairs), sum(a < b for a, b in pairs), len(pairs) / tasks) <= level


def alike(played: Sequence[Outcome], other: Outcomes) -> bool:
    """Whether a candidate has made no difference so far; not where what was said is not on file, as in archives of
    before it was kept."""
    return all(o.said and (o.said, o.score) == (other[o.task].said, other[o.task].score) for o in played)


@functools.cache
def catch_up(wins: int, losses: int, share: float) -> float:
    """The chance of so few wins or fewer among the first tasks, a share of all, if on the whole there is one win more
    than there are losses (two where they are an even number); 1 where nothing is known."""
    seen = wins + losses
    total = math.ceil((seen + 1) / share)
    won = total // 2 + 1
    if won > total:
        return 1.0
    few = range(max(0, seen - (total - won)), min(wins, won) + 1)
    return sum(math.comb(won, k) * math.comb(total - won, seen - k) for k in few) / math.comb(total, seen)
