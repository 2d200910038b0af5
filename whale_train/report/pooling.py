"""Runs beside each other: which differ only in their seeds, and what they amount to together.

Two intervals say two things. That over seeds (Student t over the seeds' means) is about the configuration: what to
expect of another run of it on these tasks. That over tasks (Student t over the tasks, each the mean of all its episodes
under all seeds) is about these very runs: what to expect of what they trained on other tasks of the kind.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from whale_envs.errors import UserError
from whale_train.metrics import Estimate, mean_at_k, paired_difference
from whale_train.report.data import Arm, Run

#: What of a configuration decides no score of an arm in itself.
ASIDE = ("seed", "unsafe", "baselines")


@dataclass
class Series:
    """An arm of runs that differ only in their seeds: `arms` by seed. `group` is the index of the configuration,
    `configuration` what it is called ("" where there is but one)."""

    group: int
    configuration: str
    arms: dict[int, Arm]

    @property
    def name(self) -> str:
        """The arm's name."""
        return next(iter(self.arms.values())).name

    @property
    def label(self) -> str:
        """How people call it."""
        arm = next(iter(self.arms.values())).label
        return f"{arm} · {self.configuration}" if self.configuration else arm

    def rollouts(self) -> float:
        """What its runs spent, their mean."""
        return statistics.fmean(arm.curve[-1].rollouts for arm in self.arms.values())

    def mean(self, at: int) -> float:
        """The mean over seeds at this index of the curve."""
        return statistics.fmean(arm.curve[at].mean for arm in self.arms.values())

    def means(self, at: int) -> dict[str, list[float]]:
        """Each seed's mean at this index of the curve."""
        return {str(seed): [arm.curve[at].mean] for seed, arm in self.arms.items()}

    def over_seeds(self, at: int) -> Estimate | None:
        """The mean over seeds with its interval over them; None for one seed."""
        return mean_at_k(self.means(at)) if len(self.arms) > 1 else None

    def scores(self, at: int) -> dict[str, list[float]]:
        """Each task's scores under all seeds; empty where a test is not on disk."""
        each = [arm.scores(at) for arm in self.arms.values()]
        return {task: [s for scores in each for s in scores[task]] for task in each[0]} if all(each) else {}

    def over_tasks(self, at: int) -> Estimate | None:
        """The mean with its interval over tasks; None where a test is not on disk."""
        scores = self.scores(at)
        return mean_at_k(scores) if scores else None

    def curve(self) -> list[tuple[float, float, float, float]]:
        """(rollouts, mean, low, high) along the way.

        One seed's points are as tested, with the intervals over tasks. Of several, each seed's points are joined by
        straight lines, which are averaged as far as the shortest goes, with the intervals over seeds; the last point is
        that of the ends.
        """
        arms = list(self.arms.values())
        if len(arms) == 1:
            return [(p.rollouts, p.mean, p.low, p.high) for p in arms[0].curve]
        shortest = min(arm.curve[-1].rollouts for arm in arms)
        at = sorted({p.rollouts for arm in arms for p in arm.curve if p.rollouts < shortest})
        lines = [np.interp(at, [p.rollouts for p in a.curve], [p.mean for p in a.curve]).tolist() for a in arms]
        found = [mean_at_k({str(i): [value] for i, value in enumerate(values)}) for values in zip(*lines, strict=True)]
        found.append(mean_at_k(self.means(-1)))
        return [(x, e.mean, e.low, e.high) for x, e in zip([*at, self.rollouts()], found, strict=True)]


def difference_over_tasks(a: Series, b: Series) -> Estimate | None:
    """The end of `a` minus that of `b`, paired by task."""
    ours, theirs = a.scores(-1), b.scores(-1)
    return paired_difference(theirs, ours) if ours and theirs else None


def difference_over_seeds(a: Series, b: Series) -> Estimate | None:
    """The end of `a` minus that of `b`, paired by seed; None where they share fewer than two."""
    shared = a.arms.keys() & b.arms.keys()
    return paired_difference(b.means(-1), a.means(-1)) if len(shared) > 1 else None


def comparable(runs: Sequence[Run]) -> None:
    """Raise `UserError` for runs that were not tested on the same tasks in the same way."""
    first = _tested(runs[0])
    for run in runs[1:]:
        for name, value in _tested(run).items():
            if value != first[name]:
                raise UserError(
                    f"{runs[0].folder} and {run.folder} cannot be compared: {name} {first[name]} there, {value} here; "
                    "give runs of one domain that were tested on the same tasks"
                )


def _tested(run: Run) -> dict[str, object]:
    config = run.info.config
    asked = {f"--{name}": config.get(name) for name in ("verifier", "limit", "repeats")}
    return {"--domain": config["domain"], "the test set": run.test_set, **asked}


def pooled(runs: Sequence[Run]) -> tuple[list[list[Run]], list[Series]]:
    """Runs grouped by configuration, each group by seed, and the arms of each group as series.

    Raises `UserError` for two runs of one configuration and seed.
    """
    groups: dict[str, dict[int, Run]] = {}
    for run in runs:
        group = groups.setdefault(json.dumps(_configuration(run), sort_keys=True), {})
        if (twin := group.setdefault(run.info.seed, run)) is not run:
            raise UserError(
                f"{twin.folder} and {run.folder} have one configuration and seed {run.info.seed}: give one of them"
            )
    found = [[group[seed] for seed in sorted(group)] for group in groups.values()]
    series: list[Series] = []
    for i, (group, called) in enumerate(zip(found, _names([g[0] for g in found]), strict=True)):
        for name in dict.fromkeys(arm.name for run in group for arm in run.arms):
            arms = {run.info.seed: arm for run in group for arm in run.arms if arm.name == name}
            series.append(Series(i, called, arms))
    return found, series


def _configuration(run: Run) -> dict[str, object]:
    """What decides a run but for its seed."""
    info = run.info
    options = {name: value for name, value in info.config.items() if name not in ASIDE}
    return {"whale": info.kind, **{f"{name} hash": value for name, value in info.hashes.items()}, **options}


def _names(runs: Iterable[Run]) -> list[str]:
    """What the configurations are called: what they differ in."""
    each = [_configuration(run) for run in runs]
    names = dict.fromkeys(itertools.chain.from_iterable(each))
    differ = [n for n in names if any(c.get(n) != each[0].get(n) for c in each)]
    differ = [n for n in differ if not n.endswith(" hash")] or differ  # an option says more than what it leads to
    return [", ".join(f"{name.replace('_', '-')} {c.get(name)}" for name in differ) for c in each]
