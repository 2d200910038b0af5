"""The study: three domains, eleven ways to spend one budget of rollouts on weights and harness, five seeds.

What is done is kept in a work folder and not done again, also after a kill; `results.json` gets a line an arm and seed
as each ends, and lines that are there stay. `findings.py` and `figures.py` then say and draw what came out.

    python benchmarks/recipe/run.py                                                 # all of it
    python benchmarks/recipe/run.py --domains math --arms fst adaptive --seeds 3    # a part
    python benchmarks/recipe/run.py --budget 7000 --arms stagewise fixed-0.6-6      # at twice the budget
    python benchmarks/recipe/run.py --check --domains search-qa --seeds 0           # again, against results.json
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from play import play
from results import Done, Results, changes, current, lacking, load, save
from study import ARMS, BUDGET, SIZES, START, arm_config

from whale_envs.errors import UserError
from whale_train.config import RunConfig
from whale_train.pool import Pool, pool
from whale_train.run_folder import locked

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Options:
    """Run the study, or a part of it."""

    domains: tuple[str, ...] = tuple(SIZES)
    """Which domains."""
    arms: tuple[str, ...] = (START, *ARMS)
    """Which arms; start is the bundled model under h0, tested only."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Which seeds."""
    budget: int = BUDGET
    """Rollouts that each arm may spend."""
    work: Path = HERE / "runs"
    """Where run folders are kept: BUDGET/DOMAIN/ARM/SEED."""
    results: Path = HERE / "results.json"
    """What to write, or to check against."""
    workers: int = 2
    """How many arms run beside each other, a core each."""
    check: bool = False
    """Run the part in a folder of its own, and compare its lines with those of the results, number for number."""


def jobs(options: Options) -> list[tuple[RunConfig, str]]:
    """The arms to run, seed by seed, so that a study which was stopped has whole seeds. Raises `UserError`."""
    return [
        (arm_config(domain, arm, seed, options.work, options.budget), arm)
        for seed in options.seeds
        for domain in options.domains
        for arm in options.arms
    ]


def run_all(todo: Sequence[tuple[RunConfig, str]], workers: Pool, results: Results, path: Path) -> None:
    """Run the arms, and write the results as each ends."""
    began, ended = time.monotonic(), 0

    def took(done: Done) -> None:
        nonlocal ended
        ended += 1
        results.add(done)
        save(results, path)
        row, minutes = done.row, (time.monotonic() - began) / 60
        print(
            f"{row.domain} {row.arm} seed {row.seed}: {100 * row.mean:.1f} % after {row.rollouts:,} rollouts, "
            f"{row.seconds:.0f} s; {ended} of {len(todo)} in {minutes:.0f} min",
            flush=True,
        )

    for config, arm in todo:
        workers.submit(play, config, arm, then=took)
    workers.run()


def run(options: Options) -> None:
    """Run the arms that are asked for, as far as they are not done. Raises `UserError` for results that others made."""
    todo, results = jobs(options), load(options.results)
    if results.versions != (now := current().versions):
        raise UserError(f"{options.results} was made with {results.versions}, here are {now}: give another --results")
    options.work.mkdir(parents=True, exist_ok=True)
    with locked(options.work, ", or give another --work"), pool(options.workers, unsafe=False) as workers:
        run_all(todo, workers, results, options.results)


def check(options: Options) -> list[str]:
    """Run the arms in a folder of their own; how their lines differ from those of the results.

    Raises `UserError` when one of them is not there.
    """
    kept = load(options.results)
    if missing := lacking(kept, [(config.domain, arm, config.seed, options.budget) for config, arm in jobs(options)]):
        raise UserError(f"{options.results} has no line of {missing[0]} to compare with: run it without --check first")
    with tempfile.TemporaryDirectory() as folder:
        again = dataclasses.replace(options, work=Path(folder), results=Path(folder) / "results.json")
        run(again)
        return changes(load(again.results), kept)


def main(options: Options) -> int:
    """Do what is asked for; the exit code, which is 1 where a number is not what it was."""
    if not options.check:
        run(options)
        return 0
    found = check(options)
    print("\n".join(found) or "every number is what it was")
    return int(bool(found))


if __name__ == "__main__":
    try:
        sys.exit(main(tyro.cli(Options)))
    except UserError as error:
        print(f"study: {error}", file=sys.stderr)
        sys.exit(2)
