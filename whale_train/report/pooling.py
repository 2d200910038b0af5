"""Runs beside each other: which differ only in their seeds, and what they amount to together.

Two intervals say two things. That over seeds (Student t over the seeds' means) is about the configuration: what to
expect of another run of it on these tasks. That over tasks (Student t over the tasks, each the mean of all its episodes
under all seeds) is about these very runs: what to expect of what they trained on other tasks of the kind.
"""

from __future__ import annotations

import itertools
import json
import statistics
import string
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from whale_envs.errors import UserError
from whale_train.metrics import Estimate, mean_at_k, paired_difference
from whale_train.report.data import Arm, Run, between

#: What of a configuration decides no score of an arm in itself.
ASIDE = ("seed", "unsafe", "baselines")
#: Letters of a name that fits a figure; where what configurations differ in takes more, they are called A, B, ..., and
#: by numbers where there are more of them than letters.
FITS = 28


@dataclass
class Group:
    """Runs that differ only in their seeds, by seed: `name` is "" where there is but one group, `differs` says in what
    its configuration differs from the others'."""

    name: str
    differs: str
    runs: list[Run]


@dataclass
class Series:
    """An arm of a group of runs: `arms` by seed."""

    group: Group
    arms: dict[int, Arm]

    @property
    def name(self) -> str:
        """The arm's name."""
        return next(iter(self.arms.values())).name

    @property
    def label(self) -> str:
        """How people call it."""
        arm = next(iter(self.arms.values())).label
        return f"{arm} · {self.group.name}" if self.group.name else arm

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
    return between(b.scores(-1), a.scores(-1))


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


def pooled(runs: Sequence[Run]) -> tuple[list[Group], list[Series]]:
    """Runs grouped by configuration, and the arms of each group as series.

    Raises `UserError` for two runs of one configuration and seed.
    """
    found: dict[str, dict[int, Run]] = {}
    for run in runs:
        same = found.setdefault(json.dumps(_configuration(run), sort_keys=True), {})
        if (twin := same.setdefault(run.info.seed, run)) is not run:
            raise UserError(
                f"{twin.folder} and {run.folder} have one configuration and seed {run.info.seed}: give one of them"
            )
    members = [[same[seed] for seed in sorted(same)] for same in found.values()]
    differ = _differences([_configuration(runs[0]) for runs in members])
    short = all(len(text) <= FITS for text in differ)
    letters = string.ascii_uppercase if len(differ) <= 26 else map(str, itertools.count(1))
    names = differ if short else letters
    groups = [Group(name, text, runs) for name, text, runs in zip(names, differ, members, strict=short)]
    series: list[Series] = []
    for group in groups:
        for name in dict.fromkeys(arm.name for run in group.runs for arm in run.arms):
            series.append(Series(group, {r.info.seed: arm for r in group.runs for arm in r.arms if arm.name == name}))
    return groups, series


def _configuration(run: Run) -> dict[str, object]:
    """What decides a run but for its seed."""
    info = run.info
    options = {name: value for name, value in info.config.items() if name not in ASIDE}
    return {"whale": info.kind, **{f"{name} hash": value for name, value in info.hashes.items()}, **options}


def _differences(each: Sequence[dict[str, object]]) -> list[str]:
    """What each configuration has where they differ; "" for a single one."""
    names = dict.fromkeys(itertools.chain.from_iterable(each))
    differ = [name for name in names if any(c.get(name) != each[0].get(name) for c in each)]
    differ = [n for n in differ if not n.endswith(" hash")] or differ  # an option says more than what it leads to
    return [", ".join(f"{name.replace('_', '-')} {c.get(name)}" for name in differ) for c in each]
