"""From rows to tasks: what every domain's reader does, and the pool of tasks that a source comes to.

Every row is a task, or is counted in `Pool.dropped` under its reason:
`len(pool.tasks) + sum(pool.dropped.values()) == pool.rows`.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from whale_envs.data.files import Layout, Row, read_rows
from whale_envs.errors import UserError
from whale_envs.task import Task

DUPLICATE = "a duplicate"
CONFLICT = "the same content with different answers"
SAME_ID = "an id that another row has"
EMPTY_LINE = "an empty line"
SHORT_ROW = "too few columns"

#: Told how many rows have been read since it was last called.
Progress = Callable[[int], None]
#: Told that a source with so many rows (None: not known) is read now; returns whom to tell how many have been.
Watch = Callable[[str, int | None], Progress]
#: Rows between two calls of a `Progress`.
REPORT_EVERY = 500


class Dropped(Exception):
    """Why a row is not kept."""


@dataclass
class Pool:
    """The tasks of a source by their normalised content, where each stands, and what became of the other rows."""

    tasks: dict[str, Task] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)
    rows: int = 0
    dropped: Counter[str] = field(default_factory=Counter)


class TaskReader(ABC):
    """How a domain's rows become tasks."""

    #: The domain's name, and what its files look like.
    domain: ClassVar[str]
    layout: ClassVar[Layout]
    #: The verifiers whose tasks it reads from a prepared folder, its own first; "" where all take the same rows.
    verifiers: ClassVar[tuple[str, ...]] = ("",)
    #: The type of `Task.gold`, which comes back from JSON as this.
    gold: ClassVar[Any]

    @abstractmethod
    def task(self, row: Row) -> tuple[str, Task]:
        """A row's normalised content and its task. Raises `Dropped`, and `UserError` for a malformed row."""

    @abstractmethod
    def merge(self, tasks: Sequence[Task]) -> Task | None:
        """One task for different rows with the same content; None when their answers differ.

        They come in an order of their own, whatever the source's: the first may stand for all.
        """

    def cell(self, row: Row, column: int) -> tuple[str, Any]:
        """The name and value of a needed column, by its place in `layout.columns`.

        Raises `Dropped` for a table's row that is too short, and `UserError` for a row that has no such column.
        """
        names = self.layout.columns[column]
        for name in names:
            if name in row.cells:
                return name, row.cells[name]
        if row.table:
            raise Dropped(SHORT_ROW if row.cells else EMPTY_LINE)
        has = ", ".join(row.cells) or "none"
        raise UserError(f"{row.where} has no {names[0]}: expected a column {' or '.join(names)}; it has {has}")

    def read(self, path: Path) -> Iterator[Row]:
        """The rows of a file (see `whale_envs.data.files.read_rows`)."""
        return read_rows(path, self.layout)

    def pool(self, rows: Iterable[Row], progress: Progress | None = None) -> Pool:
        """Read, check and merge rows. Raises `UserError` for a malformed row."""
        pool = Pool()
        found: dict[str, list[tuple[str, Task]]] = {}  # the different tasks of each content
        copies: Counter[str] = Counter()
        for row in rows:
            pool.rows += 1
            if progress is not None and pool.rows % REPORT_EVERY == 0:
                progress(REPORT_EVERY)
            try:
                key, task = self.task(row)
            except Dropped as reason:
                pool.dropped[str(reason)] += 1
                continue
            except RecursionError:
                raise UserError(f"{row.where} is nested too deeply: expected {self.layout.expected}") from None
            copies[key] += 1
            same = found.setdefault(key, [])
            if all(task != other for _, other in same):
                same.append((row.where, task))
        if progress is not None:
            progress(pool.rows % REPORT_EVERY)
        self._merge_all(pool, found, copies)
        return pool

    def _merge_all(self, pool: Pool, found: dict[str, list[tuple[str, Task]]], copies: Counter[str]) -> None:
        merged = {key: self._merged([task for _, task in same]) for key, same in found.items()}
        whose: dict[str, str] = {}  # of two contents with one id the lesser keeps it, in whatever order they came
        for key, task in merged.items():
            if task is not None:
                whose[task.id] = min(key, whose.get(task.id, key))
        for key, task in merged.items():
            if task is None:
                pool.dropped[CONFLICT] += copies[key]
            elif whose[task.id] != key:
                pool.dropped[SAME_ID] += copies[key]
            else:
                pool.tasks[key], pool.where[key] = task, found[key][0][0]
                pool.dropped[DUPLICATE] += copies[key] - 1
        pool.dropped = +pool.dropped  # without the zeros

    def _merged(self, same: list[Task]) -> Task | None:
        return self.merge(sorted(same, key=msgspec.json.encode)) if len(same) > 1 else same[0]


@functools.cache
def reader_of(domain: str, verifier: str = "") -> TaskReader:
    """The reader of a domain's rows: of those that `verifier`, or the domain's own, can use."""
    from whale_envs.data.chess_lichess import PuzzleReader
    from whale_envs.data.math_files import ExpressionReader, ProblemReader
    from whale_envs.data.search_files import QuestionReader

    if verifier == "math-verify":
        return ExpressionReader()
    return {r.domain: r for r in (QuestionReader(), ProblemReader(), PuzzleReader())}[domain]
