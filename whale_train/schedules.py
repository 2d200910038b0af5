"""Schedules: which phase an arm runs next, and what ends it. All arms of a run get the same budget of rollouts."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

Kind = Literal["weights", "harness"]
Schedule = Literal["fixed", "adaptive", "bandit", "stagewise", "weights-only", "harness-only"]
#: The adaptive schedule (arXiv 2609.00196, section on schedules): the share of an epoch that a weight phase runs at
#: least, that its reward is averaged over, and that it goes on without a better one. A full window has to come before
#: the share without a better one, so that no phase ends before 0.4 epochs. The paper's median of 0.24 to 0.29 can
#: only come from windows that are not full: of those one lucky step would set the record ...
ADAPTIVE_EPOCHS = 0.2
#: ... and of a harness phase the fewest rounds, the rounds without a better harness, and the most.
ADAPTIVE_ROUNDS, ADAPTIVE_PATIENCE, ADAPTIVE_MOST = 6, 2, 15
#: By how many standard errors the reward has to fall below that of a phase's start to count as a collapse: where
#: nothing has changed, one look in a thousand says so.
COLLAPSE = 3.1


@dataclass(frozen=True)
class Costs:
    """What the units of work cost in rollouts: an RSFT step, a search's baseline, a search round, and old harnesses
    under new weights, where there are any (see `rescore` in `whale_train.config.RunConfig`)."""

    step: int
    baseline: int
    round: int
    rescore: int = 0


@dataclass(frozen=True)
class Patience:
    """Ends a phase when its training signal rises no more.

    Units are RSFT steps (the signal is their reward) or search rounds (the accepted harness's mean). The signal is
    averaged over full windows only, so that one lucky unit sets no record. A phase ends after `minimum` units at the
    earliest, when the best window ended `patience` units ago or more.
    """

    minimum: int
    patience: int
    window: int

    @property
    def earliest(self) -> int:
        """The units after which a phase can end at the earliest."""
        return max(self.minimum, self.window + self.patience)

    def over(self, signal: Sequence[float]) -> str:
        """Why a phase ends after these units; "" when it goes on."""
        means = [statistics.fmean(signal[end - self.window : end]) for end in range(self.window, len(signal) + 1)]
        if len(signal) < self.minimum or not means:
            return ""
        best = means.index(max(means))
        since = len(means) - 1 - best
        if since < self.patience:
            return ""
        return f"no better than {means[best]:.3f} since {since} of {len(signal)}"


@dataclass(frozen=True)
class Phase:
    """One phase: at most `amount` RSFT steps or search rounds, fewer where `patience` says so."""

    cycle: int
    kind: Kind
    amount: int
    patience: Patience | None = None

    @property
    def name(self) -> str:
        """Its name in ledgers, logs and folders."""
        return f"cycle {self.cycle} {self.kind}"

    def over(self, signal: Sequence[float]) -> str:
        """Why it ends after these units, before its `amount`; "" when it goes on."""
        return self.patience.over(signal) if self.patience else ""


class Past(NamedTuple):
    """A phase that is done, or the start: its cycle (0 for the start) and kind, the rollouts spent at its end, and what
    it gained (see `gain_of_weights` and `gain_of_harness`)."""

    cycle: int
    kind: str
    spent: int
    gain: float = 0.0


#: Where every arm begins.
START = Past(0, "start", 0)


@dataclass(frozen=True)
class Plan:
    """What an arm is to do.

    Attributes:
        schedule: "fixed" alternates `steps` and `rounds`; "adaptive" alternates phases that end by `Patience`; "bandit"
            has phases of `steps` or of `rounds`, each of the kind that gained more a rollout when it last ran;
            "stagewise" spends the share of a cycle of "fixed" that goes to weights on them in one go, then the rest on
            the search; the other two spend all on one kind, in a phase a cycle, so that their curves have points.
        steps, rounds: RSFT steps and search rounds in a cycle of the fixed schedule.
        cycles: how many cycles.
        costs: what a step and a round cost.
        limit: the rollouts that the arm may spend; None: what the cycles of the fixed schedule plan.
        window: RSFT steps in 0.2 epochs.
        final_search: whether a search follows the last weight phase: without it the last cycle ends there, or where
            the budget decides which is the last, none of it is kept back for a search.
    """

    schedule: Schedule
    steps: int
    rounds: int
    cycles: int
    costs: Costs
    limit: int | None = None
    window: int = 1
    final_search: bool = True

    @property
    def budget(self) -> int:
        """The rollouts that the arm may spend."""
        if self.limit:
            return self.limit
        whole = self.cycles * self._cycle + (self.cycles - 1) * self.costs.rescore
        if self.final_search:
            return whole
        return whole - self._cycle + self.steps * self.costs.step - (self.cycles > 1) * self.costs.rescore

    @property
    def _cycle(self) -> int:
        return self.steps * self.costs.step + self.costs.baseline + self.rounds * self.costs.round

    @property
    def least(self) -> int:
        """The rollouts of a unit of each kind of phase that it has: with fewer it does nothing."""
        step, search = self.costs.step, self.costs.baseline + self.costs.round
        return {"weights-only": step, "harness-only": search}.get(self.schedule, step + search)

    @property
    def open_ended(self) -> bool:
        """Whether the phases go on for as long as the budget lasts."""
        return self.schedule in ("adaptive", "bandit") or (self.schedule != "weights-only" and self.limit is not None)

    def phases(self) -> Iterator[Phase]:
        """The phases in order; without an end where the plan is open-ended. A bandit's come as it goes: see `rest`."""
        if self.schedule == "fixed":
            return self._alternating(Phase(1, "weights", self.steps), Phase(1, "harness", self.rounds))
        if self.schedule == "adaptive":
            weights = Patience(self.window, self.window, self.window)
            rounds = Patience(ADAPTIVE_ROUNDS, ADAPTIVE_PATIENCE, 1)
            most = max(1, self.budget // self.costs.step)
            return self._alternating(Phase(1, "weights", most, weights), Phase(1, "harness", ADAPTIVE_MOST, rounds))
        if self.schedule == "stagewise":
            most = (self.budget - self.costs.baseline - self.costs.round) // self.costs.step
            steps = max(1, min(most, self._whole(self.budget * self.steps / self._cycle)))
            return itertools.chain([Phase(1, "weights", steps)], self._searches(2, [max(1, self._rounds_for(steps))]))
        if self.schedule == "weights-only":
            shares = _shares(self._whole(self.budget / self.costs.step), self.cycles)
            return (Phase(c, "weights", share) for c, share in enumerate(shares, 1))
        return self._searches(1, _shares(self._rounds_for(0), self.cycles))

    def _alternating(self, weights: Phase, harness: Phase) -> Iterator[Phase]:
        phases = (replace(phase, cycle=c) for c in itertools.count(1) for phase in (weights, harness))
        return phases if self.open_ended else itertools.islice(phases, 2 * self.cycles - (not self.final_search))

    def _searches(self, cycle: int, rounds: list[int]) -> Iterator[Phase]:
        """Searches of so many rounds, from a cycle on. Candidates that are refused cost less than was planned, so under
        a limit others follow for as long as it lasts."""
        more = itertools.repeat(rounds[-1]) if rounds and self.open_ended else []
        return (Phase(c, "harness", r) for c, r in enumerate(itertools.chain(rounds, more), cycle))

    def _rounds_for(self, steps: int) -> int:
        """The rounds that the budget has room for beside so many steps; a baseline is scored once."""
        return self._whole((self.budget - steps * self.costs.step - self.costs.baseline) / self.costs.round)

    def _whole(self, units: float) -> int:
        """Whole units: no more where there is a limit, otherwise the nearest, so that arms are alike."""
        return math.floor(units) if self.limit is not None else round(units)

    def fitting(self, phase: Phase, past: Sequence[Past]) -> Phase | None:
        """A phase after those that are done, as far as what is left of the budget goes; None when nothing of it does.

        In an open-ended plan, a weight phase leaves room for the search that follows the last one. A plan with an end
        fits as it is.
        """
        if not self.open_ended:
            return phase
        left, costs = self.budget - past[-1].spent, self.costs
        if phase.kind == "harness":
            most = (left - self._opening(past)) // costs.round
        else:
            after = self._opening([*past, Past(phase.cycle, phase.kind, 0)]) + costs.round
            most = (left - (after if self.final_search else 0)) // costs.step
        return replace(phase, amount=min(phase.amount, most)) if most > 0 else None

    def _opening(self, past: Sequence[Past]) -> int:
        """What a search that follows these phases plays before its first round. Under weights that were searched under
        before, all of it is on file."""
        trained = False
        for phase in reversed(past):
            if phase.kind == "harness":
                return self.costs.baseline + self.costs.rescore if trained else 0
            trained = trained or phase.kind == "weights"
        return self.costs.baseline

    def rest(self, done: Callable[[], Sequence[Past]]) -> Iterator[Phase]:
        """The phases that are not done, each as far as it fits; `done` gives those that are, the start first."""
        if self.schedule == "bandit":
            yield from self._bandit(done)
            return
        missed, before = 0, {(past.cycle, past.kind) for past in done()}
        for phase in self.phases():
            past = done()
            if (phase.cycle, phase.kind) in before:
                missed = 0
                continue
            if self.open_ended and len(past) > 2 and past[-1].spent == past[-3].spent:
                return  # a whole cycle has spent nothing (a proposer that fails, say), and so would the next
            fits = self.fitting(phase, past)
            missed = 0 if fits else missed + 1
            if missed == 2:  # neither weights nor harness
                return
            if fits:
                yield fits

    def _bandit(self, done: Callable[[], Sequence[Past]]) -> Iterator[Phase]:
        """A phase at a time, of the kind that is worth more where it fits, else of the other one."""
        while True:
            past = done()
            if len(past) > 2 and past[-1].spent == past[-3].spent:
                return
            order = sorted(("weights", "harness"), key=lambda kind: _worth(past, kind), reverse=True)
            fits = (self.fitting(self._next(past[-1], kind), past) for kind in order)
            phase = next((phase for phase in fits if phase), None)
            if phase is None:
                return
            yield phase

    def _next(self, last: Past, kind: str) -> Phase:
        """A phase of a kind after the last one. Two steps are the fewest that can show a gain."""
        cycle = last.cycle + (last.kind != "weights" or kind == "weights")
        if kind == "weights":
            return Phase(cycle, "weights", max(2, self.steps))
        return Phase(cycle, "harness", self.rounds)

    def played(self) -> Iterator[tuple[Phase, int]]:
        """The phases that the arm plans to play, each with its rollouts; a search that refuses candidates spends less.

        Phases that end by their signals are as short as they can be, so that there are as many as there can be.
        """
        past = [START]
        for phase in self.rest(lambda: past):
            if phase.patience:
                phase = replace(phase, amount=min(phase.amount, phase.patience.earliest))
            if phase.kind == "weights":
                spent = phase.amount * self.costs.step
            else:
                spent = phase.amount * self.costs.round + self._opening(past)
            past.append(Past(phase.cycle, phase.kind, past[-1].spent + spent))
            yield phase, spent

    def rollouts(self) -> int:
        """How many rollouts the arm plans to spend; a search that refuses candidates spends less."""
        return self.budget if self.open_ended else sum(spent for _, spent in self.played())


def collapsed(rewards: Sequence[float], window: int, tasks: int) -> str:
    """Whether the reward of a phase's last `window` steps lies below that of its first by more than noise, in words; ""
    if not. Of fewer steps than two windows, the halves are held against each other.

    The noise is that of the tasks: `tasks` of them a step, each one draw, as if all of its episodes agreed.
    """
    size = min(window, len(rewards) // 2)
    if not size:
        return ""
    first, last = statistics.fmean(rewards[:size]), statistics.fmean(rewards[-size:])
    share = first if first < 1 else (first + last) / 2  # of a window without a miss, which would have no noise at all
    noise = math.sqrt(2 * share * (1 - share) / (tasks * size))
    if first - last <= COLLAPSE * noise:
        return ""
    return f"the reward has collapsed from {first:.3f} to {last:.3f}"


def gain_of_weights(rewards: Sequence[float], window: int) -> float:
    """What a weight phase with these rewards gained: the mean of its last window less that of its first, which are of
    `window` steps, or half of all where there are fewer than two such. A step's reward is that of the weights before
    it, so that what the last window's updates gained is not in it: of two steps, half of all."""
    size = min(window, len(rewards) // 2)
    return statistics.fmean(rewards[-size:]) - statistics.fmean(rewards[:size]) if size else 0.0


def gain_of_harness(before: float, after: float, optimism: float) -> float:
    """What a harness phase gained that replaced a harness of mean `before` by one of mean `after`: less how much of the
    latter is estimated to be luck."""
    return after - before - optimism


def _worth(past: Sequence[Past], kind: str) -> tuple[float, int]:
    """What a kind of phase is worth: its gain a rollout when it last ran, first of all what has not been tried; of two
    that gain nothing the one that ran longer ago."""
    at = next((at for at in reversed(range(len(past))) if past[at].kind == kind), None)
    if at is None:
        return math.inf, kind == "weights"
    spent = past[at].spent - past[at - 1].spent
    return (max(0.0, past[at].gain) / spent if spent else 0.0), -at


def _shares(total: int, parts: int) -> list[int]:
    """`total` in `parts` whole parts that differ by at most one, none empty."""
    cuts = [round(total * i / parts) for i in range(parts + 1)]
    return [b - a for a, b in itertools.pairwise(cuts) if b > a]
