"""Schedules: which phases an arm runs, in order. All arms of a run get the same budget of rollouts."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

ARMS = ("whale", "weights-only", "harness-only")
Kind = Literal["weights", "harness"]


@dataclass(frozen=True)
class Costs:
    """What the units of work cost in rollouts: an RSFT step, a search's baseline, a search round, and old harnesses
    under new weights, where there are any (see `rescore` in `whale_train.config.RunConfig`)."""

    step: int
    baseline: int
    round: int
    rescore: int = 0


@dataclass(frozen=True)
class Phase:
    """One phase: `amount` is RSFT steps or search rounds."""

    cycle: int
    kind: Kind
    amount: int

    @property
    def name(self) -> str:
        """Its name in ledgers, logs and folders."""
        return f"cycle {self.cycle} {self.kind}"


def schedule(arm: str, steps: int, rounds: int, cycles: int, costs: Costs) -> list[Phase]:
    """The phases of an arm.

    "whale" alternates `steps` RSFT steps with `rounds` search rounds, `cycles` times. The other two spend the same
    rollouts on one kind alone, in a phase a cycle, so that their curves have points.
    """
    if arm == "whale":
        return [p for c in range(1, cycles + 1) for p in (Phase(c, "weights", steps), Phase(c, "harness", rounds))]
    budget = cycles * (steps * costs.step + costs.baseline + rounds * costs.round) + (cycles - 1) * costs.rescore
    if arm == "weights-only":
        shares = _shares(round(budget / costs.step), cycles)
        return [Phase(c, "weights", share) for c, share in enumerate(shares, 1)]
    # under unchanged weights the baseline is scored once
    shares = _shares(round((budget - costs.baseline) / costs.round), cycles)
    return [Phase(c, "harness", share) for c, share in enumerate(shares, 1)]


def _shares(total: int, parts: int) -> list[int]:
    """`total` in `parts` whole parts that differ by at most one, none empty."""
    cuts = [round(total * i / parts) for i in range(parts + 1)]
    return [b - a for a, b in itertools.pairwise(cuts) if b > a]


def planned_rollouts(phases: list[Phase], costs: Costs) -> int:
    """How many rollouts the phases plan to spend; a search that refuses candidates spends less."""
    spent, weights_changed, searched = 0, True, False
    for phase in phases:
        if phase.kind == "weights":
            spent += phase.amount * costs.step
            weights_changed = True
        else:
            spent += phase.amount * costs.round + (costs.baseline + costs.rescore * searched) * weights_changed
            weights_changed, searched = False, True
    return spent
