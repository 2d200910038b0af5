"""Where the gain of one run a domain comes from: (0.6, 6) of seed 0, each of its weights under each of its harnesses.

The runs have to be in the work folder, where `run.py` leaves them. Cells that are there are not played again.

    python benchmarks/recipe/matrices.py       # writes figures/matrix-DOMAIN.png and matrices.json
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec
import tyro
from findings import WHALE, kept_matrices
from study import BUDGET, SIZES, arm_config, command

from whale_envs.episode import read_json, write_atomic
from whale_envs.errors import UserError
from whale_train.matrix import matrix

HERE = Path(__file__).parent
#: Episodes of each test task in a cell, of which there are some thirty: their intervals are over tasks.
CELL_REPEATS = 2


def main(
    domains: tuple[str, ...] = tuple(SIZES), budget: int = BUDGET, work: Path = HERE / "runs", out: Path = HERE
) -> None:
    """Play the matrices, and write them and their figures.

    Args:
        domains: which domains; those that are not named stay as they are.
        budget: the rollouts that the runs might spend.
        work: where the run folders are.
        out: where to write.
    """
    path = out / "matrices.json"
    found = kept_matrices(path)
    for domain in domains:
        folder = arm_config(domain, WHALE, 0, work, budget).out
        if not folder.is_dir():
            raise UserError(f"{folder} is not there: {command(domain, WHALE, 0, budget)} makes it")
        matrix(folder, CELL_REPEATS)
        found[domain] = read_json(folder / "matrix.json", dict[str, Any])
        (out / "figures").mkdir(exist_ok=True)
        shutil.copyfile(folder / "matrix.png", out / "figures" / f"matrix-{domain}.png")
        write_atomic(path, msgspec.json.format(msgspec.json.encode(found)) + b"\n")


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except UserError as error:
        print(f"study: {error}", file=sys.stderr)
        sys.exit(2)
