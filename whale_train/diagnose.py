"""`whale diagnose`: a short training and a short search from the same start, and what the agent is bound by.

    run.json, result.json
    start/<harness>.py             the harness that it starts from, where that does not ship
    arms/<arm>/{state.json, ledger.jsonl, progress.json, weights/, archive/}    weights-only and harness-only
    arms/harness-only/harness.py   the harness that the search accepted
    shadow/<weights>-<harness>/    the start and both ends, measured on the shadow tasks

They are two arms of a run, each with phases of one kind and the same budget, and they are taken up again as a run's
are. The test split is not loaded: a diagnosis is made before there is anything to test. The rule is in
`whale_train.bounds`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.markup import escape
from rich.table import Table

from whale_envs import Episode
from whale_envs.episode import read_episodes, write_atomic
from whale_train.bounds import Diagnosis, diagnosis
from whale_train.config import DiagnoseConfig
from whale_train.console import Display, FileProgress
from whale_train.evaluate import Evaluation, read_evaluation
from whale_train.ledger import Ledger
from whale_train.meta_harness.evaluate import score_shadow
from whale_train.metrics import Estimate, Scores, paired_difference
from whale_train.pool import Pool
from whale_train.run import arm_folder, at_work, play_arm, policy_at, test_name, with_own_start
from whale_train.run_folder import RunFolder
from whale_train.tables import change, level, output, table
from whale_train.whale import Snapshot, harness_of, snapshots

TRAINED, SEARCHED = "weights-only", "harness-only"
#: What they are called: the arms, and what binds the agent.
ENDS = {TRAINED: "after training", SEARCHED: "after search"}
BOUND = {
    "harness": "bound by its harness",
    "model": "bound by its model",
    "both": "bound by both harness and model",
    "undecided": "not to be told at this budget",
}


class Behaviour(msgspec.Struct, frozen=True):
    """How often a behaviour was seen, over the episodes that state it, at the start and at each arm's end; and each
    change, paired over the tasks whose episodes state it at both. None where none does."""

    start: float | None
    ends: dict[str, float | None]
    changes: dict[str, Estimate | None]


class Findings(msgspec.Struct, frozen=True):
    """All that a diagnosis says. `rollouts` are those of each arm, what measured them not counted."""

    diagnosis: Diagnosis
    start: Evaluation
    ends: dict[str, Evaluation]
    rollouts: dict[str, int]
    behaviours: dict[str, Behaviour]


def diagnose(config: DiagnoseConfig) -> tuple[Path, Findings]:
    """Train and search, measure, and judge; returns the run folder and what was found."""
    config = config.resolved()
    with at_work(config) as (folder, workers):
        config = with_own_start(config)
        _play(config, workers)
        found = _findings(config)
        last = snapshots(arm_folder(config.folder, SEARCHED))[-1]
        harness = harness_of(config, arm_folder(config.folder, SEARCHED), last)
        write_atomic(arm_folder(config.folder, SEARCHED) / "harness.py", harness.source.encode())
        _write(folder, found)
        return folder.path, found


def _play(config: DiagnoseConfig, workers: Pool) -> None:
    """Both arms, side by side, and after each one what is measured of it."""
    progress = {arm: arm_folder(config.folder, arm) / "progress.json" for arm in config.arms}
    asked: set[str] = set()

    def measure(arm: str, _: None) -> None:
        done = snapshots(arm_folder(config.folder, arm))
        for snapshot in (done[0], done[-1]):
            if test_name(snapshot) not in asked:
                asked.add(test_name(snapshot))
                workers.submit(_measure, config, arm, snapshot)

    with Display(list(config.arms)) as display:
        for arm in config.arms:
            workers.submit(play_arm, config, arm, then=functools.partial(measure, arm))
        workers.run(between=lambda: display.follow(progress))
        display.follow(progress)


def _measure(config: DiagnoseConfig, arm: str, snapshot: Snapshot) -> None:
    """A worker's job: a snapshot's mean@k on the shadow tasks."""
    folder = arm_folder(config.folder, arm)
    score_shadow(
        policy_at(config, arm, snapshot),
        config.load_domain(),
        harness_of(config, folder, snapshot),
        config.search.shadow,
        config.seed,
        Ledger(folder / "ledger.jsonl"),
        FileProgress(folder / "progress.json"),
        snapshot.phase,
        config.folder / "shadow",
        config.repeats,
        config.limit,
    )


def _findings(config: DiagnoseConfig) -> Findings:
    folders = {arm: arm_folder(config.folder, arm) for arm in config.arms}
    done = {arm: snapshots(folder) for arm, folder in folders.items()}
    places = {"start": done[TRAINED][0], **{arm: phases[-1] for arm, phases in done.items()}}
    shadow = {name: config.folder / "shadow" / test_name(snapshot) for name, snapshot in places.items()}
    found = {name: read_evaluation(folder) for name, folder in shadow.items()}
    seen = {name: _by_task(list(read_episodes(folder / "episodes.jsonl"))) for name, folder in shadow.items()}
    return Findings(
        diagnosis(found["start"].scores, found[TRAINED].scores, found[SEARCHED].scores),
        found["start"],
        {arm: found[arm] for arm in config.arms},
        {arm: phases[-1].rollouts for arm, phases in done.items()},
        _behaviours(found, seen),
    )


def _by_task(episodes: Sequence[Episode]) -> dict[str, dict[str, list[float]]]:
    """By behaviour, then by task: what the episodes that state it say."""
    seen: dict[str, dict[str, list[float]]] = {}
    for episode in episodes:
        for name, value in episode.behaviours.items():
            seen.setdefault(name, {}).setdefault(episode.task_id, []).append(float(value))
    return seen


def _behaviours(
    found: dict[str, Evaluation], seen: dict[str, dict[str, dict[str, list[float]]]]
) -> dict[str, Behaviour]:
    arms = [name for name in found if name != "start"]
    names = dict.fromkeys(name for evaluation in found.values() for name in evaluation.behaviours)
    return {
        name: Behaviour(
            found["start"].behaviours.get(name),
            {arm: found[arm].behaviours.get(name) for arm in arms},
            {arm: _change(seen["start"].get(name, {}), seen[arm].get(name, {})) for arm in arms},
        )
        for name in names
    }


def _change(a: Scores, b: Scores) -> Estimate | None:
    return paired_difference(a, b) if a.keys() & b.keys() else None


def _write(folder: RunFolder, found: Findings) -> None:
    said = found.diagnosis
    gains = {TRAINED: said.training, SEARCHED: said.search}
    arms = {
        arm: {**end.summary(), "gain": gains[arm].plain(), "rollouts": found.rollouts[arm]}
        for arm, end in found.ends.items()
    }
    folder.write_result(
        seconds=folder.seconds(),
        bound_by=said.bound,
        why=said.why,
        needed=said.needed,
        start=found.start.summary(),
        arms=arms,
        search_less_training=said.difference.plain(),
        tasks=said.difference.tasks,
        behaviours={name: _behaviour(behaviour) for name, behaviour in found.behaviours.items()},
    )


def _behaviour(seen: Behaviour) -> dict[str, Any]:
    changes = {arm: paired.plain() if paired else None for arm, paired in seen.changes.items()}
    return {"start": seen.start, **{arm: {"rate": r, "change": changes[arm]} for arm, r in seen.ends.items()}}


def show(config: DiagnoseConfig, found: Findings) -> None:
    """Print what was found, for people."""
    console, said, k = output(), found.diagnosis, config.repeats
    agent = escape(f"{config.policy} on {config.domain} under {config.harness}")
    console.print(f"[bold]{agent}: {BOUND[said.bound]}[/]")
    console.print(f"{said.why}{_would_tell(found, k)}\n", soft_wrap=True)
    console.print(_scores(found, k))
    console.print()
    console.print(_rates(found))
    console.print(
        f"\nOn {said.difference.tasks} shadow tasks, {k} episodes each. Changes are paired by task, with 95 % intervals"
        " over the tasks, and real where these do not hold 0. What another --seed would come to is not in them.",
        soft_wrap=True,
    )


def _would_tell(found: Findings, repeats: int) -> str:
    """What to do about what was not told."""
    said = found.diagnosis
    if said.needed is None:
        return ""
    more = f", or --repeats {said.needed.repeats}" if said.needed.repeats and said.needed.repeats > repeats else ""
    return (
        f". A difference of this size takes about {said.needed.tasks:,} tasks to tell ({said.difference.tasks} here)"
        f"{more}; a larger --budget-rollouts may make it larger"
    )


def _scores(found: Findings, repeats: int) -> Table:
    said, rows = found.diagnosis, table("", "rollouts", f"mean@{repeats}, %", "gain, points")
    rows.add_row("start", "", level(found.start.score))
    for arm, gain in ((TRAINED, said.training), (SEARCHED, said.search)):
        rows.add_row(ENDS[arm], f"{found.rollouts[arm]:,}", level(found.ends[arm].score), change(gain))
    rows.add_row("search less training", "", "", change(said.difference))
    return rows


def _rates(found: Findings) -> Table:
    heads = [head for arm in found.ends for head in (ENDS[arm], "change")]
    rows = table("behaviours, % of episodes", "start", *heads)
    for name, seen in found.behaviours.items():
        ends = [cell for arm in found.ends for cell in (_rate(seen.ends[arm]), change(seen.changes[arm]))]
        rows.add_row(name, _rate(seen.start), *ends)
    return rows


def _rate(rate: float | None) -> str:
    return "–" if rate is None else f"{100 * rate:.1f}"
