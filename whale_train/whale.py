"""The WHALE loop (arXiv 2609.00196): a weight phase, then a harness phase, over again.

    theta(k+1) = ModelUpdate(theta(k); h(k), D_weight)      h(k+1) = HarnessSearch(h(k); theta(k+1), D_harness)

One arm of a run lives in one folder. Its state is the list of phases done; each phase can itself be taken up where
a kill left it, so the same call goes on from anywhere to the same end. The test split is not touched here.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from whale_envs import Domain, Harness, Splits
from whale_envs.episode import read_json, write_atomic
from whale_envs.errors import UserError
from whale_train.config import DiagnoseConfig, RunConfig, SearchConfig, TrainConfig
from whale_train.ledger import Ledger
from whale_train.meta_harness.archive import Archive
from whale_train.meta_harness.evaluate import split_tasks
from whale_train.meta_harness.proposers import load_proposer
from whale_train.meta_harness.proposers.base import Proposer
from whale_train.meta_harness.search import search
from whale_train.options import SearchOptions, WeightOptions
from whale_train.policies.base import Policy
from whale_train.policies.find import moved
from whale_train.progress import Progress
from whale_train.schedules import ADAPTIVE_EPOCHS, Costs, Past, Phase, Plan, collapsed, gain_of_harness, gain_of_weights

#: What `run_arm` runs; a `TrainConfig` or `SearchConfig` is an arm with one phase.
Experiment = RunConfig | TrainConfig | SearchConfig | DiagnoseConfig


class Snapshot(msgspec.Struct, frozen=True):
    """Where an arm stands after a phase. `model` is its weights' folder within the arm's, None for the weights that
    the run started from; `harness` and `weights` are hashes, `rollouts` what was spent so far. `why` says what ended
    the phase before its planned end, if anything did; `signal` is its training signal, the reward of each step or
    the accepted harness's mean after each round, and `gain` what it gained by it."""

    phase: str
    cycle: int
    kind: str
    rollouts: int
    harness: str
    weights: str
    model: str | None = None
    why: str = ""
    gain: float = 0.0
    signal: list[float] = []


class Seen(NamedTuple):
    """What a phase saw: its training signal, what it gained by that, and why it ended early."""

    signal: list[float]
    gain: float
    why: str


class Data(Protocol):
    """What a plan has to know of a domain: how many tasks there are."""

    @property
    def splits(self) -> Splits:
        """Its task sets."""


def costs(config: Experiment, domain: Data) -> Costs:
    """What the units of work of a run cost in rollouts at most; 0 for one that its command does not do."""
    step = tasks = candidates = confirmed = 0
    if isinstance(config, WeightOptions):
        step = config.prompts * config.group
    if isinstance(config, SearchOptions):
        tasks = len(split_tasks(domain.splits.harness, config.search.shadow, config.search.tasks)[0])
        candidates, confirmed = config.candidates, config.acceptance == "paired"
    # to confirm, the accepted harness plays again once, and in each round one rival at most
    rescore = config.rescore * tasks if isinstance(config, RunConfig) else 0
    return Costs(step, (1 + confirmed) * tasks, (candidates + confirmed) * tasks, rescore)


def plan_of(config: Experiment, arm: str, domain: Data) -> Plan:
    """What an arm of a run is to do."""
    spend = costs(config, domain)
    if isinstance(config, SearchConfig):
        return Plan("harness-only", 0, config.rounds, 1, spend)
    epoch = len(domain.splits.weight) / config.prompts
    window = max(1, round(ADAPTIVE_EPOCHS * epoch))
    if isinstance(config, DiagnoseConfig):
        return Plan(arm, 0, 0, 1, spend, config.budget_rollouts, window)  # type: ignore[arg-type]
    steps = config.steps or max(1, round(config.epochs * epoch))
    if isinstance(config, TrainConfig):
        return Plan("weights-only", steps, 0, 1, spend, window=window)
    name = config.schedule if arm == config.arms[0] else arm
    limit, last = config.budget_rollouts, config.final_search
    return Plan(name, steps, config.rounds, config.cycles, spend, limit, window, last)  # type: ignore[arg-type]


def snapshots(folder: Path) -> list[Snapshot]:
    """What an arm has been through, the start first; empty when it has not begun. Where weights have gone since, what
    led to them counts as not done."""
    path = folder / "state.json"
    done = read_json(path, list[Snapshot]) if path.exists() else []
    return list(itertools.takewhile(lambda s: s.model is None or (folder / s.model).is_dir(), done))


def given_up(done: list[Snapshot]) -> set[str]:
    """The names of the weight phases whose weights were given up."""
    return {s.phase for before, s in itertools.pairwise(done) if s.kind == "weights" and s.model == before.model}


def cycle_ends(done: list[Snapshot]) -> list[Snapshot]:
    """The start, and where each cycle ends."""
    return [s for s, after in zip(done, [*done[1:], None], strict=True) if after is None or after.cycle != s.cycle]


def measured(config: Experiment, done: list[Snapshot]) -> list[Snapshot]:
    """The snapshots that are tested: where each cycle ends or, with --curve, each phase; the start first."""
    return done if isinstance(config, RunConfig) and config.curve else cycle_ends(done)


def model_of(config: Experiment, folder: Path, snapshot: Snapshot) -> str:
    """The policy of a snapshot, as `load_policy` takes it."""
    return moved(config.policy, folder / snapshot.model) if snapshot.model else config.policy


def harness_of(config: Experiment, folder: Path, snapshot: Snapshot) -> Harness:
    """The harness of a snapshot: the one that the run started from, or one of the arm's archive."""
    start = config.start()
    return (
        start
        if snapshot.harness == start.hash
        else Archive(folder / "archive", config.domain).harness(snapshot.harness)
    )


def run_arm(config: Experiment, arm: str, folder: Path, progress: Progress) -> None:
    """Run an arm to its end, from wherever it stands."""
    # not above: it brings torch, which the process that only waits for its workers does without
    from whale_train.policies.load import load_policy

    domain = config.load_domain()
    ledger, archive = Ledger(folder / "ledger.jsonl"), Archive(folder / "archive", domain.name)
    done, plan = snapshots(folder), plan_of(config, arm, domain)
    _check_ledger(ledger, done)
    policy = load_policy(model_of(config, folder, done[-1]) if done else config.policy, domain.name)
    harness = harness_of(config, folder, done[-1]) if done else config.start()
    if not done:
        done.append(Snapshot("start", 0, "start", 0, harness.hash, policy.weights_hash))
        _save(folder, done)
    work = _Work(config, domain, folder, ledger, archive, progress, plan)
    for phase in plan.rest(lambda: [Past(s.cycle, s.kind, s.rollouts, s.gain) for s in done]):
        model = done[-1].model
        if phase.kind == "weights":
            model, seen = work.weights(policy, harness, phase, len(done), model, given_up(done))
            if model == done[-1].model:  # the trained ones are given up
                policy = load_policy(model_of(config, folder, done[-1]), domain.name)
        else:
            harness, seen = work.search(policy, harness, phase)
        if seen.why:
            progress.say(f"{phase.name} ends: {seen.why}")
        spent, hashes = ledger.rollouts(), (harness.hash, policy.weights_hash)
        ended = Snapshot(phase.name, phase.cycle, phase.kind, spent, *hashes, model, seen.why, seen.gain, seen.signal)
        done.append(ended)
        _save(folder, done)


@dataclass
class _Work:
    """What the phases of an arm share."""

    config: Experiment
    domain: Domain
    folder: Path
    ledger: Ledger
    archive: Archive
    progress: Progress
    plan: Plan

    def weights(
        self, policy: Policy, harness: Harness, phase: Phase, number: int, model: str | None, given_up: set[str]
    ) -> tuple[str | None, Seen]:
        """A weight phase, which trains `policy` in place: (the folder of its weights, what it saw).

        Weights whose reward has collapsed are given up for those of `model`; the tasks of the phases in `given_up`
        are not dealt again.
        """
        from whale_train.rsft.phase import weight_phase

        config, out = self.config, self.folder / "weights" / f"{number:02d}"
        assert isinstance(config, WeightOptions)
        start = self.folder / model if model else None
        steps = (line.key.split("/")[0] for line in self.ledger.lines.values() if line.kind == "sampling")

        def collapse(rewards: Sequence[float]) -> str:
            return collapsed(rewards, self.plan.window, config.prompts)

        last, rewards = weight_phase(
            policy, self.domain, harness, config, phase.amount, out, self.ledger, self.progress, phase.name, start,
            lambda rewards: collapse(rewards) or phase.over(rewards), sum(step in given_up for step in steps),
        )  # fmt: skip
        gain = gain_of_weights(rewards, self.plan.window)
        if why := collapse(rewards):
            return model, Seen(rewards, gain, f"{why}; back to the weights that it began with")
        return str(last.relative_to(self.folder)), Seen(rewards, gain, phase.over(rewards))

    @functools.cached_property
    def proposer(self) -> Proposer:
        """The proposer of all searches of the arm: one may remember what it has handed in."""
        assert isinstance(self.config, SearchOptions)
        return load_proposer(self.config.proposer, self.domain, self.config.limits)

    def search(self, policy: Policy, harness: Harness, phase: Phase) -> tuple[Harness, Seen]:
        """A harness phase: (the accepted harness, what it saw)."""
        config = self.config
        assert isinstance(config, SearchOptions)
        # the run's seed in each phase: what was scored under the same weights before is not played again
        settings = replace(config.search, rounds=phase.amount)
        found = search(
            policy, self.domain, harness, settings, self.archive, self.proposer, self.ledger, self.progress,
            config.seed, phase.name, phase.over,
        )  # fmt: skip
        rounds = [r for r in self.archive.rounds if r.phase == phase.name]
        gain = 0.0
        if found.hash != harness.hash:
            assert self.archive.phase is not None  # this one
            before = self.archive[harness.hash].scores[str(self.archive.phase.score_key)].mean
            gain = gain_of_harness(before, rounds[-1].accepted_mean, rounds[-1].optimism)
        means = [r.accepted_mean for r in rounds]
        return found, Seen(means, gain, phase.over(means))


def _check_ledger(ledger: Ledger, done: list[Snapshot]) -> None:
    """Raise `UserError` for a ledger that has lost lines: the budget would be spent twice."""
    if done and ledger.rollouts() < done[-1].rollouts:
        raise UserError(
            f"{ledger.path} has {ledger.rollouts():,} rollouts, but by the end of {done[-1].phase} "
            f"{done[-1].rollouts:,} were spent: put it back, or run again in another folder"
        )


def _save(folder: Path, done: list[Snapshot]) -> None:
    write_atomic(folder / "state.json", msgspec.json.format(msgspec.json.encode(done)))
