"""How the paper's tasks are drawn from the hub's sets.

The sizes are the paper's (section "The domains"): 18,946 / 256 / 700 for SearchQA, 17,917 / 256 / 60 for math and
16,384 / 256 / 256 for chess. How it samples within a set the paper does not say; here every row is as likely as any
other, and the seed decides. D_harness is taken out of D_weight's pool and not left in it. Where the row checks leave
fewer rows than D_weight asks for, it gets them all: the 17,917 rows of DAPO-Math-17K hold some problems twice.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from whale_envs.data.chess_lichess import PuzzleReader
from whale_envs.data.files import Row
from whale_envs.data.folder import Source
from whale_envs.data.hub import SETS, Hub, HubSet
from whale_envs.data.reader import Pool, Progress, TaskReader, Watch
from whale_envs.data.splits import NOT_DRAWN, draw, make_splits
from whale_envs.errors import UserError
from whale_envs.task import Splits, Task

if TYPE_CHECKING:
    from datasets import Dataset

SIZES = {
    "search-qa": {"weight": 18_946, "harness": 256, "test": 700},
    "math": {"weight": 17_917, "harness": 256, "test": 60},
    "chess": {"weight": 16_384, "harness": 256, "test": 256},
}
#: Longest line of a puzzle, in plies from the solver's first move (the paper).
MAX_PLIES = 9
IN_TEST = "also in the test set"

RECIPES = {
    "search-qa": "Questions of NQ and HotpotQA; tested on 100 each of NQ, TriviaQA, PopQA, HotpotQA, 2Wiki, MuSiQue "
    "and Bamboogle.",
    "math": "Problems of DAPO-Math-17K; tested on AIME 2024 and 2025.",
    "chess": f"Puzzles of the Lichess database whose line is at most {MAX_PLIES} plies long.",
}


def described(domain: str, splits: Splits) -> str:
    """The recipe in words, with the number of D_weight's tasks where that is not the paper's."""
    wanted, has = SIZES[domain]["weight"], len(splits.weight)
    fewer = f" D_weight holds {has:,} tasks, not the paper's {wanted:,}: no others of its pool pass the checks once "
    fewer += f"the {len(splits.harness)} of D_harness and those of the test set are taken out of it."
    return RECIPES[domain] + (fewer if has < wanted else "")


def draw_from_hub(reader: TaskReader, hub: Hub, seed: int, watch: Watch) -> tuple[Splits, list[Source]]:
    """The task sets of a reader's domain as in the paper, and where their rows come from.

    Raises `UserError` for a set that cannot be loaded, or that keeps too few rows for the test set or D_harness.
    """
    sizes = SIZES[reader.domain]
    if reader.domain == "chess":
        return _draw_puzzles(hub, sizes, seed, watch)
    train, *tests = SETS[reader.domain]
    pools = [reader.pool(*_watched(hub, part, watch)) for part in tests]
    test, dropped = _draw_test(pools, tests, sizes["test"] // len(tests), seed)
    pool = reader.pool(*_watched(hub, train, watch))
    for content in test.keys() & pool.tasks.keys():
        del pool.tasks[content]
        pool.dropped[IN_TEST] += 1
    parts = draw(pool, {"harness": sizes["harness"], "weight": sizes["weight"]}, seed) | {"test": list(test.values())}
    _check_size(parts["harness"], sizes["harness"], train.repo)
    sources = [hub.source(part, p.rows) for part, p in zip((train, *tests), (pool, *pools), strict=True)]
    return make_splits(parts, dropped + pool.dropped, train.repo), sources


def _draw_test(pools: list[Pool], sets: list[HubSet], each: int, seed: int) -> tuple[dict[str, Task], Counter[str]]:
    """So many tasks of each set by content, none of them twice, and what became of the other rows."""
    found: dict[str, Task] = {}
    dropped: Counter[str] = Counter()
    for pool, part in zip(pools, sets, strict=True):
        for content in found.keys() & pool.tasks.keys():
            del pool.tasks[content]
            pool.dropped[IN_TEST] += 1
        content_of = {task.id: content for content, task in pool.tasks.items()}
        drawn = draw(pool, {"test": each, "weight": 0}, seed)["test"]
        _check_size(drawn, each, f"{part.repo}/{part.files}")
        found |= {content_of[task.id]: task for task in drawn}
        dropped += pool.dropped
    return found, dropped


def _draw_puzzles(hub: Hub, sizes: Mapping[str, int], seed: int, watch: Watch) -> tuple[Splits, list[Source]]:
    """Random rows of millions, so many that enough are kept; the others are not looked at."""
    reader, (part,) = PuzzleReader(MAX_PLIES), SETS["chess"]
    rows, wanted = hub.load(part), sum(sizes.values())
    looked_at = wanted + wanted // 20
    while True:
        looked_at = min(looked_at, len(rows))
        order = list(itertools.islice(random_order(len(rows), seed), looked_at))
        pool = reader.pool(_rows(rows.select(order), part, order), watch(part.repo, looked_at))
        if len(pool.tasks) >= wanted or looked_at == len(rows):
            break
        looked_at *= 2
    pool.dropped[NOT_DRAWN] += len(rows) - looked_at
    parts = draw(pool, sizes, seed)
    for split in ("test", "harness"):
        _check_size(parts[split], sizes[split], part.repo)
    return make_splits(parts, +pool.dropped, part.repo), [hub.source(part, len(rows))]


def random_order(n: int, seed: int) -> Iterator[int]:
    """The numbers below `n`, each once, in a random order; the first few of millions cost no more than those few."""
    rng, seen = random.Random(f"rows/{seed}"), set[int]()
    while len(seen) < n:
        at = rng.randrange(n)
        if at not in seen:
            seen.add(at)
            yield at


def _watched(hub: Hub, part: HubSet, watch: Watch) -> tuple[Iterator[Row], Progress]:
    """A set's rows, and who is told how many were read."""
    rows = hub.load(part)
    return _rows(rows, part, range(len(rows))), watch(f"{part.repo}/{part.files}", len(rows))


def _rows(rows: Dataset, part: HubSet, numbers: Iterable[int]) -> Iterator[Row]:
    """A set's rows; `numbers` says which they are. In batches, which takes a fifth of the time of one by one."""
    batches = rows.with_format("arrow").iter(batch_size=1000)
    for number, row in zip(numbers, (row for batch in batches for row in batch.to_pylist()), strict=True):
        cells = {name.lower(): value for name, value in row.items()}
        yield Row(f"{part.repo}/{part.files}:{number + 1}", {"data_source": part.label} | cells)


def _check_size(tasks: list[Task], size: int, name: str) -> None:
    if len(tasks) < size:
        raise UserError(f"{name} keeps {len(tasks)} rows: expected {size} or more; is it another revision, or a part?")
