"""Tasks: rows with what may be shown and the hidden answer, in sets that are disjoint by content."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from whale_envs.errors import UserError, unknown

#: The three splits: what weights are trained on, what harnesses are searched on, and what is sealed until the end.
SPLITS = ("weight", "harness", "test")


class Task(msgspec.Struct, frozen=True):
    """One row. `shown` is all that a harness may see; `gold` never enters a harness's process. `source` says where it
    is from, and begins with the name of its data set, which has one or two parts ("nq", "mini/shared")."""

    id: str
    shown: dict[str, Any]
    gold: Any
    source: str = ""

    @property
    def data_set(self) -> str:
        """The data set that it is from, "" where none is known: the first two parts of its source."""
        return "/".join(self.source.split("/")[:2])


class TaskSet(Sequence[Task]):
    """Tasks in a fixed order, found by position or by id, with a content hash.

    Raises `UserError` when two rows share an id or there are none.
    """

    def __init__(self, tasks: Sequence[Task], name: str = "tasks") -> None:
        self.name = name
        self._tasks = tuple(tasks)
        self._by_id = {t.id: t for t in self._tasks}
        if not self._tasks:
            raise UserError(f"{name} holds no task: expected at least one row that passes the checks")
        if len(self._by_id) != len(self._tasks):
            raise UserError(f"{name} holds two rows with one id: give every row an id of its own")
        self.hash = hashlib.sha256(msgspec.json.encode(self._tasks)).hexdigest()[:12]

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, at: Any) -> Any:
        return self._tasks[at]

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks)

    def by_id(self, task_id: str) -> Task:
        """The task with this id; `UserError` if there is none."""
        try:
            return self._by_id[task_id]
        except (KeyError, TypeError):  # the latter for a list, say
            raise UserError(f"no task {task_id!r} in {self.name}: its ids look like {self._tasks[0].id!r}") from None

    def deal(self, epoch: int, seed: int) -> list[Task]:
        """All tasks in the order of one epoch: each once, shuffled by (seed, epoch)."""
        order = list(self._tasks)
        random.Random(f"{seed}/{epoch}").shuffle(order)
        return order


class Splits(msgspec.Struct, frozen=True):
    """The task sets of a domain, and how many source rows were dropped for which reason."""

    weight: TaskSet
    harness: TaskSet
    test: TaskSet
    dropped: dict[str, int] = {}

    def __getitem__(self, split: str) -> TaskSet:
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        found: TaskSet = getattr(self, split)
        return found
