"""The WHALE loop (arXiv 2609.00196): a weight phase, then a harness phase, over again.

    theta(k+1) = ModelUpdate(theta(k); h(k), D_weight)      h(k+1) = HarnessSearch(h(k); theta(k+1), D_harness)

One arm of a run lives in one folder. Its state is the list of phases done; each phase can itself be taken up where
a kill left it, so the same call goes on from anywhere to the same end. The test split is not touched here.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import msgspec

from whale_envs import Domain, Harness
from whale_envs.episode import read_json, write_atomic
from whale_train.config import RunConfig, SearchConfig, SearchOptions, TrainConfig, WeightOptions
from whale_train.ledger import Ledger
from whale_train.meta_harness.archive import Archive
from whale_train.meta_harness.proposers import load_proposer
from whale_train.meta_harness.search import search, split_tasks
from whale_train.policies.find import moved
from whale_train.progress import Progress
from whale_train.schedules import Costs, Phase, schedule

#: What `run_arm` runs; a `TrainConfig` or `SearchConfig` is an arm with one phase.
Experiment = RunConfig | TrainConfig | SearchConfig


class Snapshot(msgspec.Struct, frozen=True):
    """Where an arm stands after a phase. `model` is its weights' folder within the arm's, None for the weights that
    the run started from; `harness` and `weights` are hashes, `rollouts` what was spent so far."""

    phase: str
    cycle: int
    kind: str
    rollouts: int
    harness: str
    weights: str
    model: str | None = None


def costs(config: Experiment, domain: Domain) -> Costs:
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


def phases(config: Experiment, arm: str, domain: Domain) -> list[Phase]:
    """The phases of an arm of a run."""
    if isinstance(config, SearchConfig):
        return [Phase(1, "harness", config.rounds)]
    steps = config.steps or max(1, round(config.epochs * len(domain.splits.weight) / config.prompts))
    if isinstance(config, TrainConfig):
        return [Phase(1, "weights", steps)]
    return schedule(arm, steps, config.rounds, config.cycles, costs(config, domain))


def snapshots(folder: Path) -> list[Snapshot]:
    """What an arm has been through, the start first; empty when it has not begun. Where weights have gone since, what
    led to them counts as not done."""
    path = folder / "state.json"
    done = read_json(path, list[Snapshot]) if path.exists() else []
    return list(itertools.takewhile(lambda s: s.model is None or (folder / s.model).is_dir(), done))


def cycle_ends(done: list[Snapshot]) -> list[Snapshot]:
    """The snapshots that are tested: the start, and where each cycle ends."""
    return [s for s, after in zip(done, [*done[1:], None], strict=True) if after is None or after.cycle != s.cycle]


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
    # not above: they bring torch, which the process that only waits for its workers does without
    from whale_train.policies.load import load_policy
    from whale_train.rsft.phase import weight_phase

    domain = config.load_domain()
    ledger, archive = Ledger(folder / "ledger.jsonl"), Archive(folder / "archive", domain.name)
    proposer = load_proposer(config.proposer, domain, config.limits) if isinstance(config, SearchOptions) else None
    done = snapshots(folder)
    policy = load_policy(model_of(config, folder, done[-1]) if done else config.policy, domain.name)
    harness = harness_of(config, folder, done[-1]) if done else config.start()
    if not done:
        done.append(Snapshot("start", 0, "start", 0, harness.hash, policy.weights_hash))
        _save(folder, done)
    for number, phase in enumerate(phases(config, arm, domain), 1):
        if number < len(done):
            continue
        model = done[-1].model
        if phase.kind == "weights":
            assert isinstance(config, WeightOptions)
            out, start = folder / "weights" / f"{number:02d}", folder / model if model else None
            last = weight_phase(policy, domain, harness, config, phase.amount, out, ledger, progress, phase.name, start)
            model = str(last.relative_to(folder))
        else:
            assert isinstance(config, SearchOptions) and proposer is not None
            # the run's seed in each phase: what was scored under the same weights before is not played again
            search_settings = replace(config.search, rounds=phase.amount)
            harness = search(
                policy, domain, harness, search_settings, archive, proposer, ledger, progress, config.seed, phase.name
            )
        done.append(
            Snapshot(phase.name, phase.cycle, phase.kind, ledger.rollouts(), harness.hash, policy.weights_hash, model)
        )
        _save(folder, done)


def _save(folder: Path, done: list[Snapshot]) -> None:
    write_atomic(folder / "state.json", msgspec.json.format(msgspec.json.encode(done)))
