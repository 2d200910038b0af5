"""`results.json`: one line an arm and seed, and beside the lines what they were made with."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
from study import ARMS, SIZES, START

from whale_envs import sandbox
from whale_envs.episode import read_json, write_atomic
from whale_envs.errors import UserError
from whale_train.run_folder import versions

#: What a line has to be again, number for number: all but the time it took.
SAME = ("rollouts", "mean", "ci95", "by_task", "behaviours", "phases", "curve")


#: Domain, arm, seed and budget.
Key = tuple[str, str, int, int]


class Row(msgspec.Struct, frozen=True, rename={"mean": "mean@8", "by_task": "by task"}):
    """A line of `results.json`: one arm of one seed, tested once at its end.

    `rollouts` is what it spent of its `budget`. `whale` is the same arm as a plain `whale run`. `by_task` has a digit
    for each test task, in their order: how many of its 8 episodes were right. `phases` has [kind, units, rollouts, why
    it ended before its planned end], units of weights in epochs, of harness in rounds. `curve` has [rollouts, score] of
    points before the end, at one episode a task. `seconds` is what the parts of the arm and its tests took, each on one
    core.
    """

    domain: str
    arm: str
    seed: int
    budget: int
    rollouts: int
    mean: float
    ci95: tuple[float, float]
    command: str
    whale: str
    by_task: str
    behaviours: dict[str, float]
    phases: list[tuple[str, float, int, str]]
    curve: list[tuple[int, float]]
    seconds: float

    @property
    def key(self) -> Key:
        """What it is a line of; one line has it."""
        return self.domain, self.arm, self.seed, self.budget


class Done(msgspec.Struct, frozen=True):
    """What a finished arm leaves in its folder: its line, and the hashes of harness, data and weights it began with."""

    row: Row
    hashes: dict[str, str]


class Results(msgspec.Struct):
    """`results.json`. `versions` and `tier` are those of all lines; `sizes` and `arms` are what `study.py` has;
    `hashes` are of the harness, data and weights that the lines of a domain began with."""

    command: str
    versions: dict[str, str]
    tier: str
    sizes: dict[str, dict[str, int]]
    arms: dict[str, dict[str, Any]]
    hashes: dict[str, dict[str, str]] = {}
    results: list[Row] = []

    def add(self, done: Done) -> None:
        """Put a line in, in place of what is there of its key.

        Raises `UserError` where other lines of its domain began with another harness, data or model.
        """
        row = done.row
        there = self.hashes.setdefault(row.domain, done.hashes)
        if there != done.hashes:
            raise UserError(
                f"lines of {row.domain} in results.json began with {there}, this one with {done.hashes}: remove them"
            )
        others = [r for r in self.results if r.key != row.key]
        order = list(SIZES), [START, *ARMS]
        self.results = sorted(
            [*others, row], key=lambda r: (r.budget, order[0].index(r.domain), order[1].index(r.arm), r.seed)
        )


def current() -> Results:
    """Results without a line, as this machine and these sizes would make them."""
    sizes = {domain: dataclasses.asdict(size) for domain, size in SIZES.items()}
    return Results("python benchmarks/recipe/run.py", versions(), sandbox.tier(), sizes, ARMS)


def load(path: Path) -> Results:
    """The results in a file; without a line where there is none.

    Raises `UserError` where the sizes, or an arm that it has lines of, have changed since.
    """
    now = current()
    there = read_json(path, Results) if path.exists() else now
    if there.sizes != now.sizes:
        raise UserError(
            f"{path} has lines of other sizes ({there.sizes}, now {now.sizes}): remove it, or put them back"
        )
    for arm in {row.arm for row in there.results} - {START}:
        if there.arms.get(arm) != ARMS.get(arm):
            raise UserError(f"{path} has lines of {arm} as {there.arms.get(arm)}, now {ARMS.get(arm)}: remove them")
    there.arms = now.arms
    return there


def save(results: Results, path: Path) -> None:
    """Write them, a line of the file for each line of the study."""
    head = msgspec.to_builtins(results)
    rows = ",\n".join("    " + msgspec.json.encode(row).decode() for row in results.results)
    del head["results"]
    text = msgspec.json.format(msgspec.json.encode(head)).decode().rstrip().removesuffix("}").rstrip()
    write_atomic(path, f'{text},\n  "results": [\n{rows}\n  ]\n}}\n'.encode())


def lacking(there: Results, wanted: list[Key]) -> list[Key]:
    """The lines that are wanted and not there."""
    return sorted(set(wanted) - {row.key for row in there.results})


def changes(here: Results, there: Results) -> list[str]:
    """What differs between lines that were run again and those that are there, a sentence each."""
    kept = {row.key: row for row in there.results}
    return [
        f"{' '.join(map(str, row.key))}: {name} is {getattr(row, name)}, and was {getattr(kept[row.key], name)}"
        for row in here.results
        for name in SAME
        if getattr(row, name) != getattr(kept[row.key], name)
    ]
