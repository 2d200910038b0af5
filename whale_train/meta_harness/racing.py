"""Racing: a candidate stops playing as soon as it is very unlikely that it would come out best.

At each of `STAGES` a candidate is compared with the best so far, task by task. The question is not whether it is worse
in general but whether, over all tasks that a search has, it would still score as high: the tasks played are a random
part of those (their order comes from their ids), so if the two were even on the whole, the tasks that the candidate
alone has won would be a draw without replacement from the tasks that either alone wins. That is Fisher's exact test,
one-sided; how many such tasks there are in all is taken in proportion to what was seen. It is sharper than a sign test,
since it knows how many tasks are left to catch up on.

The best of all candidates is never behind on the whole, whoever it is compared with, so `LEVEL` bounds the chance that
a stage drops it. The bound is met by one that is exactly even; the best of a search mostly leads by a margin, and in
races replayed from recorded searches (benchmarks/search) it was lost in 0.5 % of them, where at most 2 % are wanted.
(Racing: Maron and Moore, Advances in Neural Information Processing Systems 6, 1994; with paired tests: Birattari et
al., GECCO 2002.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from whale_envs import Episode
from whale_train.meta_harness.archive import Outcome

#: Tasks after which a candidate is looked at: each look has three times the tasks of the one before, so that what it
#: can tell differs by a factor of about 1.7 in standard error; with 256 tasks they save seven eighths and five eighths.
STAGES = (32, 96)
#: The level of the test at each stage. In the replayed races 0.1 lost the best in 0.5 %, 0.15 in 1.2 %, 0.2 in 2.7 %:
#: half of the 2 % that may be lost is kept for searches that are unlike the recorded ones.
LEVEL = 0.1


def stages(tasks: int) -> list[tuple[int, int]]:
    """The stretches in which so many tasks are played, as (first, one after the last)."""
    return list(itertools.pairwise([0, *(s for s in STAGES if s < tasks), tasks]))


def behind(played: Sequence[Episode], best: Mapping[str, Outcome], tasks: int) -> bool:
    """Whether a candidate that has played a part of the tasks is very unlikely to come out as high as the best."""
    pairs = [(e.score, best[e.task_id].score) for e in played]
    return catch_up(sum(a > b for a, b in pairs), sum(a < b for a, b in pairs), len(pairs) / tasks) <= LEVEL


def catch_up(wins: int, losses: int, share: float) -> float:
    """The chance of so few wins or fewer among the first tasks, a share of all, if on the whole wins and losses are
    even."""
    seen = wins + losses
    total = math.ceil(seen / share)
    even = math.ceil(total / 2)
    few = range(max(0, seen - (total - even)), min(wins, even) + 1)
    return sum(math.comb(even, k) * math.comb(total - even, seen - k) for k in few) / math.comb(total, seen)
