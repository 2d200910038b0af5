"""Pools of tasks in three sets that are disjoint by content: D_weight, D_harness and the test set."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from whale_envs.data.files import KINDS, Row, kind_of
from whale_envs.data.reader import Pool, TaskReader
from whale_envs.errors import UserError
from whale_envs.task import SPLITS, Splits, Task, TaskSet

#: Most tasks that D_harness and the test set get of a file, and the share of a small file. The paper has 256 each;
#: D_harness also holds the tasks that no proposer sees.
HELD_OUT, SHARE = {"test": 256, "harness": 384}, 0.25
#: The split that a folder's file holds, by the first word of its name.
SPLIT_NAMES = {
    "weight": "weight", "train": "weight", "training": "weight",
    "harness": "harness", "dev": "harness", "val": "harness", "valid": "harness", "validation": "harness",
    "test": "test",
}  # fmt: skip
NOT_DRAWN = "not drawn"
#: How many leaked rows a message names.
NAMED = 5


def read_splits(reader: TaskReader, path: Path, seed: int = 0) -> Splits:
    """The tasks of a file, dealt by their content; or those of a folder's files, whose names say which split each is.

    A folder holds `train.csv`, `test.jsonl` and the like (see `SPLIT_NAMES`). D_harness and the test set are drawn
    from D_weight where no file holds them (see `draw`). The result does not depend on the rows' order, but on the
    seed. Raises `UserError` for files that cannot be used, and for a leak between the files of different splits.
    """
    pools = {split: reader.pool(read_all(reader, files)) for split, files in split_files(path).items()}
    return deal(pools, seed, str(path))


def read_all(reader: TaskReader, files: list[Path]) -> Iterator[Row]:
    """The rows of several files, one after the other."""
    for file in files:
        yield from reader.read(file)


def deal(pools: Mapping[str, Pool], seed: int, name: str) -> Splits:
    """Task sets of pools by split, of which "weight" is there; the others are drawn from it where they are not.

    Raises `UserError` when a set comes out empty, and for a leak between two pools.
    """
    check_leaks(pools, name)
    share = max(1, int(SHARE * len(pools["weight"].tasks)))
    sizes = {split: min(most, share) for split, most in HELD_OUT.items() if split not in pools}
    parts = draw(pools["weight"], sizes, seed)
    parts |= {split: in_order(pool, seed) for split, pool in pools.items() if split != "weight"}
    dropped: Counter[str] = sum((pool.dropped for pool in pools.values()), Counter())
    return make_splits(parts, dropped, name)


def in_order(pool: Pool, seed: int) -> list[Task]:
    """A pool's tasks in the order of the hashes of seed and content, whatever the order of the rows."""
    ranked = sorted(pool.tasks, key=lambda content: hashlib.sha256(f"{seed}/{content}".encode()).digest())
    return [pool.tasks[content] for content in ranked]


def draw(pool: Pool, sizes: Mapping[str, int], seed: int) -> dict[str, list[Task]]:
    """Deal a pool: `sizes` tasks to each split of them, "weight" last, and all others to D_weight if it has no size.

    What no split gets is counted in `pool.dropped` as `NOT_DRAWN`.
    """
    order = in_order(pool, seed)
    parts: dict[str, list[Task]] = {}
    for split in ("test", "harness"):
        if split in sizes:
            parts[split], order = order[: sizes[split]], order[sizes[split] :]
    parts["weight"] = order[: sizes.get("weight")]
    if rest := len(order) - len(parts["weight"]):
        pool.dropped[NOT_DRAWN] += rest
    return parts


def make_splits(parts: Mapping[str, list[Task]], dropped: Mapping[str, int], name: str) -> Splits:
    """Task sets of these tasks. Raises `UserError` when one is empty."""
    if empty := [split for split in SPLITS if not parts[split]]:
        kept = sum(map(len, parts.values()))
        if not kept and not dropped:
            raise UserError(f"{name} holds no row: expected 3 or more, one a split")
        reasons = ", ".join(f"{n} x {reason}" for reason, n in Counter(dropped).most_common()) or "none"
        raise UserError(
            f"{name} keeps {kept} rows, none for {', '.join(empty)}: expected 3 or more, one a split; "
            f"dropped: {reasons}"
        )
    sets = {split: TaskSet(parts[split], f"{name} ({split})") for split in SPLITS}
    return Splits(**sets, dropped=dict(dropped))


def check_leaks(pools: Mapping[str, Pool], name: str) -> None:
    """Raise `UserError` that names the rows when two of the pools share content."""
    order = [split for split in reversed(SPLITS) if split in pools]
    for i, one in enumerate(order):
        for other in order[i + 1 :]:
            shared = [content for content in pools[one].tasks if content in pools[other].tasks]
            if shared:
                rows = [f"{pools[one].where[c]} = {pools[other].where[c]}" for c in shared[:NAMED]]
                more = f" and {len(shared) - NAMED} more" if len(shared) > NAMED else ""
                raise UserError(
                    f"{name}: {len(shared)} of the {one} tasks are in {other} too ({', '.join(rows)}{more}): "
                    "take them out of one of the two"
                )


def split_files(path: Path) -> dict[str, list[Path]]:
    """The files of each split: a folder's by their names and in their order, a file as D_weight's only one."""
    if not path.is_dir():
        return {"weight": [path]}
    found: dict[str, list[Path]] = {}
    for file in sorted(path.iterdir()):
        first = re.match("[a-z]+", file.name.lower())
        if first and kind_of(file) in KINDS and (split := SPLIT_NAMES.get(first[0])):
            found.setdefault(split, []).append(file)
    if "weight" not in found:
        raise UserError(
            f"{path} holds no file whose name starts with train or weight: expected a folder that "
            "`whale data prepare` wrote, or one with train.csv, test.csv and the like"
        )
    return {split: found[split] for split in SPLITS if split in found}
