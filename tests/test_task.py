"""Task sets: found by id, dealt in epochs."""

from __future__ import annotations

import pytest

from whale_envs import Splits, Task, TaskSet, UserError


def tasks(count: int = 5) -> list[Task]:
    return [Task(f"t{i}", {"question": f"{i}?"}, f"gold {i}") for i in range(count)]


def test_tasks_are_found_and_counted() -> None:
    found = TaskSet(tasks(), "five")
    assert len(found) == 5 and found[1] == found.by_id("t1") and [t.id for t in found] == [f"t{i}" for i in range(5)]
    with pytest.raises(UserError, match="no task 'x' in five: its ids look like 't0'"):
        found.by_id("x")
    with pytest.raises(UserError, match=r"no task \['t1'\] in five"):
        found.by_id(["t1"])  # type: ignore[arg-type]
    with pytest.raises(UserError, match="holds no task"):
        TaskSet([], "none")
    with pytest.raises(UserError, match="two rows with one id"):
        TaskSet([*tasks(), tasks()[0]])


def test_an_epoch_deals_each_task_once_in_an_order_of_its_own() -> None:
    found = TaskSet(tasks(20))
    orders = [[t.id for t in found.deal(epoch, seed)] for epoch in range(3) for seed in range(2)]
    assert all(sorted(order) == sorted(t.id for t in found) for order in orders)
    assert len({tuple(order) for order in orders}) == len(orders)
    assert [t.id for t in found.deal(0, 0)] == orders[0]


def test_the_hash_follows_the_content() -> None:
    assert TaskSet(tasks()).hash == TaskSet(tasks(), "another name").hash
    assert TaskSet(tasks()).hash != TaskSet(tasks()[::-1]).hash
    assert TaskSet(tasks()).hash != TaskSet([*tasks()[:4], Task("t4", {"question": "4?"}, "other")]).hash


def test_splits_are_found_by_name() -> None:
    splits = Splits(TaskSet(tasks(1)), TaskSet(tasks(2)), TaskSet(tasks(3)))
    assert [len(splits[name]) for name in ("weight", "harness", "test")] == [1, 2, 3]
    with pytest.raises(UserError, match=r"unknown split 'tset'.*did you mean 'test'"):
        splits["tset"]
