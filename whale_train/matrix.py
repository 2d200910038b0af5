"""`whale matrix`: every checkpoint of a run under every harness that it accepted, and where its gain comes from.

Checkpoints are the weights at the start and where each weight phase ended; harnesses are the first one and those that
any round of a search accepted, also where a later round replaced them.

    matrix.json, matrix.png        the matrix, and the 2x2 of {first, last} weights and harness
                                   (matrix-<arm>.json and .png where it is not the first arm)
    test/<weights>-<harness>/      one cell; those that the run has tested are not played again
    matrix/<cell>.json             what is under way, for the screen

It reads a run that has ended: its choices are made, so the seal of the test set is broken already.

The 2x2: the gain from the start to the end is what the last weights gain under the first harness, plus what the last
harness gains with the first weights, plus what only both together gain (the interaction: both, less either alone, plus
the start). Each is a contrast of four means, paired over the tasks.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from rich.markup import escape

from whale_envs import sandbox
from whale_envs.episode import read_json, write_atomic
from whale_envs.errors import UserError, unknown
from whale_envs.processors import processors
from whale_train.config import RunConfig, SearchConfig, TrainConfig
from whale_train.console import Display, FileProgress
from whale_train.evaluate import Evaluation, load_evaluation, read_evaluation
from whale_train.ledger import Ledger
from whale_train.matrix_figure import draw_matrix
from whale_train.meta_harness.archive import Archive
from whale_train.meta_harness.records import Round
from whale_train.metrics import Estimate, Scores, contrast
from whale_train.options import MOST
from whale_train.pool import pool
from whale_train.report.figures import png
from whale_train.run import arm_folder, play_test, policy_at, test_name
from whale_train.run_folder import RunInfo, command_line, locked, read_run, versions
from whale_train.tables import change, level, output, table
from whale_train.whale import Snapshot, snapshots

Config = RunConfig | TrainConfig | SearchConfig
CONFIGS: dict[str, type[Config]] = {c.kind: c for c in (RunConfig, TrainConfig, SearchConfig)}
#: What the parts of the gain are called.
PARTS = {
    "weights": "weights (last weights, first harness)",
    "harness": "harness (first weights, last harness)",
    "interaction": "interaction (what only both gain)",
    "total": "all of it",
}


class Axis(msgspec.Struct, frozen=True):
    """A row (weights) or a column (harness): its hash, the phase and round that made it, and the rollouts spent by the
    end of that phase."""

    hash: str
    phase: str
    rollouts: int


class Cell(msgspec.Struct, frozen=True):
    """A pair of weights and harness: its mean, whether the run itself went through it, and its folder under `test/`."""

    score: Estimate
    visited: bool
    test: str


class Matrix(msgspec.Struct, frozen=True):
    """The matrix: `cells` has a row for each of `weights` and a column for each of `harnesses`. `gain` has the parts of
    the 2x2, empty where there is but one of either."""

    arm: str
    repeats: int
    tasks: int
    weights: list[Axis]
    harnesses: list[Axis]
    cells: list[list[Cell]]
    gain: dict[str, Estimate]


def matrix(folder: Path, repeats: int | None = None, limit: int | None = None, arm: str | None = None) -> Matrix:
    """Play the cells that are not there yet, and write the matrix; returns it.

    `repeats` and `limit` are the run's own where they are not given; with others, cells go to folders of their own.
    Raises `UserError` for a folder of another kind, a run that has not ended, and one whose data, weights or harnesses
    are no longer those that it had.
    """
    for name, value in (("repeats", repeats), ("limit", limit)):
        if value is not None and not 0 < value <= MOST:
            raise UserError(f"--{name} {value}: expected 1 to {MOST:,}")
    began, info = time.time(), read_run(folder)
    config = _config(folder, info)
    arm = arm or config.arms[0]
    if arm not in config.arms:
        raise unknown("arm", arm, config.arms)
    own = repeats or config.repeats, limit if limit is not None else config.limit
    suffix = "" if own == (config.repeats, config.limit) else f"-{own[0]}x{own[1] or 'all'}"
    config = replace(config, repeats=own[0], limit=own[1])
    with locked(folder):
        done = _phases(folder, config, arm)
        archive = Archive(arm_folder(folder, arm) / "archive", config.domain)
        if any(s.kind == "harness" for s in done) and not archive.rounds:
            raise UserError(f"{archive.folder} has no rounds any more: put it back, or run again in another folder")
        grid = _grid(done, archive.rounds, suffix)
        played = _play(config, arm, grid)
        found = _matrix(arm, done, grid, played)
        _count(folder, arm, grid, played)
        _write(folder, config, info, found, time.time() - began)
    return found


def _config(folder: Path, info: RunInfo) -> Config:
    """What the run was given. Its harness is the copy that the run made, where it made one."""
    if info.kind not in CONFIGS:
        raise UserError(f"{folder} holds a whale {info.kind}: give a folder that `whale run`, train or search made")
    if not (folder / "result.json").exists():
        raise UserError(f"{folder} has not ended, and until then its test set stays sealed: run `{info.command}` first")
    try:
        config = CONFIGS[info.kind](**info.config, out=folder)
    except TypeError as error:
        raise UserError(f"{folder} was made by another version of whale ({error}): use that one") from None
    copies = sorted((folder / "start").glob("*.py"))
    config = replace(config, harness=str(copies[0])) if copies else config
    for name, hash in config.hashes().items():
        if hash != info.hashes[name]:
            raise UserError(f"{folder}: its {name} has changed since ({info.hashes[name]} there, {hash} here)")
    return config


def _phases(folder: Path, config: Config, arm: str) -> list[Snapshot]:
    path = arm_folder(folder, arm) / "state.json"
    if not path.exists():
        raise UserError(f"{folder} has no arm {arm} any more ({path} is gone): the same run again makes it again")
    kept, done = snapshots(arm_folder(folder, arm)), read_json(path, list[Snapshot])
    if not done:
        raise UserError(f"{path} is empty: the same run again writes it")
    if len(kept) < len(done):
        gone = arm_folder(folder, arm) / (done[len(kept)].model or "")
        raise UserError(f"the weights in {gone} are gone: the same run again makes them again")
    return kept


class _Grid(msgspec.Struct, frozen=True):
    """Rows, columns, by (weights, harness) a snapshot that has both with the cell's folder under `test/`, and the pairs
    that the run went through."""

    weights: list[Axis]
    harnesses: list[Axis]
    cells: dict[tuple[str, str], tuple[Snapshot, str]]
    visited: set[tuple[str, str]]


def _grid(done: list[Snapshot], rounds: list[Round], suffix: str) -> _Grid:
    ends, weights = {s.phase: s for s in done}, dict[str, Snapshot]()
    for snapshot in done:
        weights.setdefault(snapshot.weights, snapshot)
    harnesses = {done[0].harness: Axis(done[0].harness, done[0].phase, 0)}
    visited = {(s.weights, s.harness) for s in done}
    for r in rounds:
        end = ends[r.phase]
        harnesses.setdefault(r.accepted, Axis(r.accepted, f"{r.phase}, round {r.round}", end.rollouts))
        visited.add((end.weights, r.accepted))
    cells = {}
    for row in weights.values():
        for harness in harnesses:
            pair = msgspec.structs.replace(row, harness=harness)
            cells[row.weights, harness] = pair, test_name(pair) + suffix
    rows = [Axis(s.weights, s.phase, s.rollouts) for s in weights.values()]
    return _Grid(rows, list(harnesses.values()), cells, visited)


def _play(config: Config, arm: str, grid: _Grid) -> dict[tuple[str, str], Evaluation]:
    """Every cell's evaluation, those that are not on disk played on all cores."""
    test, screen = config.folder / "test", config.folder / "matrix"
    missing = [cell for cell in grid.cells.values() if load_evaluation(test / cell[1]) is None]
    if missing:
        made = {h.hash: h.phase for h in grid.harnesses}
        lines = {f"{s.phase} × {made[s.harness]}": screen / f"{name}.json" for s, name in missing}
        with Display(list(lines)) as display, pool(_workers(config, len(missing)), config.unsafe) as workers:
            for snapshot, name in missing:
                workers.submit(_cell, config, arm, snapshot, name)
            workers.run(between=lambda: display.follow(lines))
            display.follow(lines)
    return {cell: read_evaluation(test / name) for cell, (_, name) in grid.cells.items()}


def _workers(config: Config, cells: int) -> int:
    """Each has a policy of its own: of all but the bundled ones, no more at once than the run had."""
    return min(processors(), cells if config.policy == "tiny" else max(2, len(config.arms)))


def _cell(config: Config, arm: str, snapshot: Snapshot, name: str) -> None:
    """A worker's job: one cell."""
    progress = FileProgress(config.folder / "matrix" / f"{name}.json")
    policy = policy_at(config, arm, snapshot)
    if policy.weights_hash != snapshot.weights:
        raise UserError(
            f"{policy.name} has not the weights that the run had ({policy.weights_hash} here, {snapshot.weights} "
            "there): put them back, or run again in another folder"
        )
    play_test(config, arm, snapshot, policy, name, progress)
    progress.finish()


def _matrix(arm: str, done: list[Snapshot], grid: _Grid, played: dict[tuple[str, str], Evaluation]) -> Matrix:
    one = next(iter(played.values()))
    first, last = done[0], done[-1]
    gain: dict[str, Estimate] = {}
    if first.weights != last.weights and first.harness != last.harness:
        pairs = [(w, h) for w in (first.weights, last.weights) for h in (first.harness, last.harness)]
        gain = parts_of_gain(*(played[pair].scores for pair in pairs))
    return Matrix(
        arm,
        one.key.repeats,
        one.score.tasks,
        grid.weights,
        grid.harnesses,
        [
            [
                Cell(played[pair].score, pair in grid.visited, grid.cells[pair][1])
                for pair in ((w.hash, h.hash) for h in grid.harnesses)
            ]
            for w in grid.weights
        ],
        gain,
    )


def parts_of_gain(start: Scores, harness: Scores, weights: Scores, both: Scores) -> dict[str, Estimate]:
    """What of the gain from `start` to `both` stems from the weights alone, from the harness alone, and from what only
    both together gain; the three add up to the total. By the names of `PARTS`; each paired over the tasks.

    Raises `UserError` when the four share no task.
    """
    return {
        "weights": contrast([(-1.0, start), (1.0, weights)]),
        "harness": contrast([(-1.0, start), (1.0, harness)]),
        "interaction": contrast([(1.0, both), (-1.0, weights), (-1.0, harness), (1.0, start)]),
        "total": contrast([(-1.0, start), (1.0, both)]),
    }


def _count(folder: Path, arm: str, grid: _Grid, played: dict[tuple[str, str], Evaluation]) -> None:
    """Enter the cells in the arm's ledger; those that it has tested are there by the same key."""
    ledger = Ledger(arm_folder(folder, arm) / "ledger.jsonl")
    for cell, found in played.items():
        ledger.add(found.spent(f"test {grid.cells[cell][1]}"))


def _write(folder: Path, config: Config, info: RunInfo, found: Matrix, seconds: float) -> None:
    """`matrix.json` and `matrix.png`."""
    k, stem = found.repeats, "matrix" if found.arm == config.arms[0] else f"matrix-{found.arm}"
    cells = [
        [
            {f"mean@{k}": c.score.mean, "ci95": [c.score.low, c.score.high], "visited": c.visited, "test": c.test}
            for c in row
        ]
        for row in found.cells
    ]
    result: dict[str, Any] = {
        "arm": found.arm,
        "tasks": found.tasks,
        "repeats": k,
        "weights": found.weights,
        "harnesses": found.harnesses,
        "cells": cells,
        "gain": {name: part.plain() for name, part in found.gain.items()},
        "seconds": round(seconds, 1),
        "command": command_line(),
        "run": info.command,
        "versions": versions(),
        "hashes": info.hashes,
        "seed": info.seed,
        "tier": sandbox.tier(),
    }
    write_atomic(folder / f"{stem}.json", msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    title = f"Weights under harnesses: {config.domain}, seed {info.seed}"
    figure = draw_matrix(
        [[100 * c.score.mean for c in row] for row in found.cells],
        [[c.visited for c in row] for row in found.cells],
        [_label(axis) for axis in found.weights],
        [_label(axis) for axis in found.harnesses],
        title,
        f"test mean@{k}",
    )
    png(figure, folder / f"{stem}.png")


def _label(axis: Axis) -> str:
    named = axis.phase.replace(", ", "\n")
    return f"{named}\n{axis.rollouts:,} rollouts" if axis.rollouts else named


def show(folder: Path, found: Matrix) -> None:
    """Print the matrix and the parts of the gain, for people."""
    console = output()
    console.print(
        f"[bold]{escape(str(folder))}, arm {found.arm}[/]: mean@{found.repeats} on {found.tasks} test tasks, %; "
        "weights down, harnesses across, in bold what the run went through\n",
        soft_wrap=True,
    )
    rows = table("", *(_label(axis) for axis in found.harnesses))
    for axis, row in zip(found.weights, found.cells, strict=True):
        rows.add_row(_label(axis), *(level(c.score, "bold" if c.visited else "") for c in row))
    console.print(rows)
    if not found.gain:
        what = "weights" if len(found.weights) == 1 else "harness"
        console.print(f"\nIt ended with the {what} that it began with, so there is no gain to be told apart.")
        return
    total = found.gain["total"]
    rows = table("\nthe gain from the start to the end", "\npoints", "\nshare")
    for name, part in found.gain.items():
        share = f"{100 * part.mean / total.mean:.0f} %" if total.low > 0 else "–"
        rows.add_row(PARTS[name], change(part), share)
    console.print(rows)
    console.print(f"\n{_together(found.gain['interaction'])}; paired by task, with 95 % intervals.")


def _together(interaction: Estimate) -> str:
    if interaction.low > 0:
        return "Weights and harness help each other: together they gain more than the sum of either alone"
    if interaction.high < 0:
        return "Weights and harness do in part the same: together they gain less than the sum of either alone"
    return "What either gains alone adds up, as far as can be told"
