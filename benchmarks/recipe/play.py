"""One arm of one seed, from start to test, in a folder of its own."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from pathlib import Path

import msgspec
from results import Done, Row
from study import CURVE_POINTS, CURVE_REPEATS, REPEATS, START, command, whale_command

from whale_envs import sandbox
from whale_envs.episode import read_json, write_atomic
from whale_train.config import RunConfig
from whale_train.console import FileProgress
from whale_train.evaluate import Evaluation
from whale_train.ledger import Ledger
from whale_train.meta_harness.archive import Archive
from whale_train.run import arm_folder, play_arm, play_test, policy_at, test_name
from whale_train.run_folder import RunFolder
from whale_train.whale import Snapshot, cycle_ends, snapshots


def play(config: RunConfig, arm: str) -> Done:
    """A worker's job: an arm of a seed, or what is left of it, then its tests.

    Raises `UserError` where the folder holds another configuration, or other data or weights.
    """
    with RunFolder(config, sandbox.tier()) as folder:
        folder.starts_from(_weights(config.policy, config.domain))
        path = folder.path / "done.json"
        if folder.finished:
            return read_json(path, Done)
        home = arm_folder(folder.path, config.arms[0])
        if arm != START:
            play_arm(config, config.arms[0])
        done = Done(_tested(config, arm, home), folder.info.hashes)
        write_atomic(path, msgspec.json.encode(done))
        folder.write_result(final={"mean@8": done.row.mean, "ci95": done.row.ci95}, rollouts=done.row.rollouts)
        return done


def _tested(config: RunConfig, arm: str, home: Path) -> Row:
    """The tests of an arm that has ended: its choices are made, so the seal may be broken."""
    done = snapshots(home)
    if not done:  # nothing but the start
        done = [Snapshot("start", 0, "start", 0, config.start().hash, _weights(config.policy, config.domain))]
    last = _test(config, home, done[-1], REPEATS)
    inner = between(cycle_ends(done))
    points = [_test(config, home, snapshot, CURVE_REPEATS) for snapshot in inner]
    ledger = Ledger(home / "ledger.jsonl")
    return Row(
        domain=config.domain,
        arm=arm,
        seed=config.seed,
        budget=config.budget_rollouts,
        rollouts=ledger.rollouts(),
        mean=last.score.mean,
        ci95=(last.score.low, last.score.high),
        command=command(config.domain, arm, config.seed, config.budget_rollouts),
        whale=whale_command(config, arm),
        by_task="".join(str(round(sum(repeats))) for repeats in last.scores.values()),
        behaviours=last.behaviours,
        phases=phases(config, home, done),
        curve=[(s.rollouts, t.score.mean) for s, t in zip(inner, points, strict=True)],
        seconds=round(sum(s.seconds for s in [*ledger.lines.values(), *points, last]), 1),
    )


def between(points: Sequence[Snapshot], most: int = CURVE_POINTS) -> list[Snapshot]:
    """At most so many of the points between the first and the last, spread over their number."""
    inner = list(points[1:-1])
    if len(inner) <= most:
        return inner
    return [inner[round(i * (len(inner) - 1) / (most - 1))] for i in range(most)]


def phases(config: RunConfig, home: Path, done: Sequence[Snapshot]) -> list[tuple[str, float, int, str]]:
    """What an arm went through, see `Row`."""
    ledger, found = Ledger(home / "ledger.jsonl"), list[tuple[str, float, int, str]]()
    searched = [r.phase for r in Archive(home / "archive", config.domain).rounds] if len(done) > 1 else []
    epoch = len(config.load_domain().splits.weight) / config.prompts
    for before, after in itertools.pairwise(done):
        if after.kind == "weights":
            steps = sum(s.kind == "sampling" and s.key.startswith(f"{after.phase}/") for s in ledger.lines.values())
            units = round(steps / epoch, 2)
        else:
            units = float(searched.count(after.phase))
        found.append((after.kind, units, after.rollouts - before.rollouts, after.why))
    return found


def _test(config: RunConfig, home: Path, snapshot: Snapshot, repeats: int) -> Evaluation:
    name = test_name(snapshot) if repeats == REPEATS else f"{test_name(snapshot)}-at-{repeats}"
    arm, asked = config.arms[0], dataclasses.replace(config, repeats=repeats)
    progress = FileProgress(home / "progress.json")
    return play_test(asked, arm, snapshot, policy_at(config, arm, snapshot), name, progress)


@functools.cache
def _weights(spec: str, domain: str) -> str:
    from whale_train.policies.load import load_policy

    return load_policy(spec, domain).weights_hash
