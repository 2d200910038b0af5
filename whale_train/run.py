"""`whale run`, `train` and `search`: the arms side by side, then the sealed test set, then the report.

runs/<name>/run.json, result.json, report.html, report.png
            start/<harness>.py           the harness that it starts from, where that does not ship
            arms/<arm>/{state.json, ledger.jsonl, curve.jsonl, progress.json, weights/, archive/}
            test/<weights>-<harness>/    one evaluation, shared by the arms that pass through it
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from whale_envs import Harness, sandbox
from whale_envs.episode import write_atomic
from whale_envs.errors import UserError
from whale_envs.processors import processors
from whale_train.config import SearchConfig
from whale_train.console import Display, FileProgress
from whale_train.evaluate import Evaluation, evaluate, load_evaluation
from whale_train.ledger import Ledger
from whale_train.meta_harness.archive import Archive
from whale_train.meta_harness.evaluate import score_shadow
from whale_train.metrics import paired_difference
from whale_train.policies.base import Policy
from whale_train.pool import Pool, pool
from whale_train.preflight import preflight
from whale_train.progress import Progress
from whale_train.report import write_report
from whale_train.run_folder import RunFolder
from whale_train.whale import Experiment, Snapshot, harness_of, measured, model_of, plan_of, run_arm, snapshots

E = TypeVar("E", bound=Experiment)


def run(config: Experiment) -> Path:
    """Run every arm to its end, test what each has been through, and write the report; returns the run folder."""
    config = config.resolved()
    with at_work(config) as (folder, workers):
        _run(with_own_start(config), folder, workers)
        return folder.path


@contextmanager
def at_work(config: Experiment) -> Iterator[tuple[RunFolder, Pool]]:
    """The run folder, and workers to play the arms and their tests: a core for each arm, two at least.

    Raises `UserError` where the folder is another run's, or policy and harness do not work together.
    """
    cores = min(processors(), max(2, len(config.arms)))
    with RunFolder(config, sandbox.tier()) as folder, pool(cores, config.unsafe) as workers:
        weights, unfit = workers.call(_first_look, config, not folder.finished)
        folder.starts_from(weights)
        if unfit is not None:
            raise unfit
        yield folder, workers


def with_own_start(config: E) -> E:
    """The same, with a copy of the harness in the run folder: the file may be edited while the run goes on."""
    start = config.start()
    if start.trusted:
        return config
    path = config.folder / "start" / f"{start.name}.py"
    path.parent.mkdir(exist_ok=True)
    write_atomic(path, start.source.encode())
    return replace(config, harness=str(path))


def _run(config: Experiment, folder: RunFolder, workers: Pool) -> None:
    shadow = _run_arms(config, folder.path, workers)
    tests = {arm: _write_curve(config, folder.path, arm) for arm in config.arms}
    start, end = tests[config.arms[0]][0], tests[config.arms[0]][-1]
    result: dict[str, Any] = {
        "initial": start.summary(),
        "final": end.summary(),
        "arms": {arm: found[-1].summary() for arm, found in tests.items()},
        "rollouts": _ledger(folder.path, config.arms[0]).rollouts(),
        "seconds": folder.seconds(),
    }
    if shadow is not None:
        before, after = shadow
        gain = paired_difference(before.scores, after.scores)
        result["shadow"] = {
            **after.summary(),
            "tasks": after.score.tasks,
            "initial": before.summary(),
            "gain": gain.plain(),
        }
        archive = Archive(arm_folder(folder.path, config.arms[0]) / "archive", config.domain)
        last = archive.rounds[-1]
        result["search"] = {"mean@1": last.accepted_mean, "optimism": last.optimism, "confirmed": last.confirmed}
    folder.write_result(**result)
    write_report(folder.path)


def _run_arms(config: Experiment, folder: Path, workers: Pool) -> tuple[Evaluation, Evaluation] | None:
    """The arms, and after each one the tests of its snapshots, on all cores; a search's shadow scores."""
    progress = {arm: arm_folder(folder, arm) / "progress.json" for arm in config.arms}
    shadow: list[tuple[Evaluation, Evaluation]] = []
    with Display(list(config.arms)) as display:
        asked: set[str] = set()
        for arm in config.arms:
            workers.submit(play_arm, config, arm, then=lambda _, arm=arm: _ask_tests(config, arm, workers, asked))
        workers.run(between=lambda: display.follow(progress))
        if isinstance(config, SearchConfig):
            workers.submit(_shadow, config, then=shadow.append)
            workers.run(between=lambda: display.follow(progress))
        display.follow(progress)
    return shadow[0] if shadow else None


def _ask_tests(config: Experiment, arm: str, workers: Pool, asked: set[str]) -> None:
    """Queue the tests of an arm that has ended; its choices are made, so the seal may be broken. Its curve grows with
    them, so that a report can be written meanwhile."""
    for snapshot in measured(config, snapshots(arm_folder(config.folder, arm))):
        name = test_name(snapshot)
        if name not in asked:
            asked.add(name)
            workers.submit(_test, config, arm, snapshot, then=lambda _: _write_curve(config, config.folder, arm))


def test_name(snapshot: Snapshot) -> str:
    """The folder under `test/` of a snapshot's evaluation."""
    return f"{snapshot.weights}-{snapshot.harness}"


def policy_of(spec: str, config: Experiment) -> Policy:
    """A worker's policy. Only workers load torch: the process that waits for them needs neither its time nor memory."""
    from whale_train.policies.load import load_policy

    return load_policy(spec, config.domain)


def policy_at(config: Experiment, arm: str, snapshot: Snapshot) -> Policy:
    """A worker's policy with the weights of a snapshot."""
    return policy_of(model_of(config, arm_folder(config.folder, arm), snapshot), config)


def _first_look(config: Experiment, tried: bool) -> tuple[str, UserError | None]:
    """A worker's job: the hash of the weights that the run starts from and, if it is to be `tried`, why policy and
    harness do not work together."""
    policy = policy_of(config.policy, config)
    try:
        if tried:
            preflight(policy, config.load_domain(), config.start())
    except UserError as error:  # after the hash, which says whether the folder is this run's at all
        return policy.weights_hash, error
    return policy.weights_hash, None


def play_arm(config: Experiment, arm: str) -> None:
    """A worker's job: one arm."""
    folder = arm_folder(config.folder, arm)
    domain = config.load_domain()
    total, spent = plan_of(config, arm, domain).rollouts(), Ledger(folder / "ledger.jsonl").rollouts()
    run_arm(config, arm, folder, FileProgress(folder / "progress.json", total, spent))


def _test(config: Experiment, arm: str, snapshot: Snapshot) -> None:
    """A worker's job: the test of one snapshot."""
    progress = FileProgress(arm_folder(config.folder, arm) / "progress.json")
    play_test(config, arm, snapshot, policy_at(config, arm, snapshot), test_name(snapshot), progress)


def play_test(
    config: Experiment, arm: str, snapshot: Snapshot, policy: Policy, name: str, progress: Progress
) -> Evaluation:
    """Test a snapshot of an arm, whose weights `policy` has; kept in the folder `name` under `test/`."""
    domain, harness = config.load_domain(), harness_of(config, arm_folder(config.folder, arm), snapshot)
    where, phase = config.folder / "test" / name, f"testing {snapshot.phase}"
    found, _ = evaluate(
        policy, domain, harness, "test", config.repeats, config.limit, config.seed, progress, where, phase
    )
    return found


def _shadow(config: SearchConfig) -> tuple[Evaluation, Evaluation]:
    """A worker's job: the first and the accepted harness of a search on the tasks that no proposer sees."""
    (arm,) = config.arms
    folder = arm_folder(config.folder, arm)
    last = snapshots(folder)[-1]
    domain, ledger = config.load_domain(), Ledger(folder / "ledger.jsonl")
    policy, progress = policy_at(config, arm, last), FileProgress(folder / "progress.json")

    def score(harness: Harness) -> Evaluation:
        share, seed, out = config.search.shadow, config.seed, config.folder / "shadow"
        return score_shadow(policy, domain, harness, share, seed, ledger, progress, last.phase, out)

    return score(config.start()), score(harness_of(config, folder, last))


def _write_curve(config: Experiment, folder: Path, arm: str) -> list[Evaluation]:
    """Write `curve.jsonl` of an arm that has ended, as far as it is tested, and the cost of its tests; returns those,
    the start's first."""
    path = arm_folder(folder, arm)
    done = measured(config, snapshots(path))
    tests = (load_evaluation(folder / "test" / test_name(s)) for s in done)
    found = [test for test in itertools.takewhile(lambda test: test is not None, tests) if test]
    lines = [
        msgspec.json.encode(msgspec.structs.asdict(s) | t.summary() | {"test": test_name(s)})
        for s, t in zip(done, found, strict=False)
    ]
    write_atomic(path / "curve.jsonl", b"".join(line + b"\n" for line in lines))
    write_atomic(path / "harness.py", harness_of(config, path, done[-1]).source.encode())
    ledger = _ledger(folder, arm)
    for snapshot, test in zip(done, found, strict=False):
        ledger.add(test.spent(f"test {test_name(snapshot)}"))
    return found


def arm_folder(folder: Path, arm: str) -> Path:
    return folder / "arms" / arm


def _ledger(folder: Path, arm: str) -> Ledger:
    return Ledger(arm_folder(folder, arm) / "ledger.jsonl")
