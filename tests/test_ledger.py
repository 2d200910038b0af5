"""The ledger: what is written once is counted once, whatever was killed in between."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_envs.errors import UserError
from whale_train.ledger import Ledger, Spent

SPENT = st.builds(
    Spent,
    key=st.text(min_size=1, max_size=6),
    kind=st.sampled_from(["sampling", "training", "search", "proposer", "test"]),
    rollouts=st.integers(0, 1000),
    sampled_tokens=st.integers(0, 10**6),
    dollars=st.integers(0, 100).map(float),
)


@given(st.lists(SPENT, unique_by=lambda s: s.key), st.data())
def test_a_run_killed_anywhere_ends_with_the_same_totals(
    tmp_path_factory: pytest.TempPathFactory, lines: list[Spent], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    whole = Ledger(path)
    for spent in lines:
        whole.add(spent)
    written = path.read_bytes() if path.exists() else b""
    cut = data.draw(st.integers(0, len(written)))
    path.write_bytes(written[:cut])  # a kill in the middle of a write
    again = Ledger(path)
    for spent in lines:  # the same command does the same work again
        again.add(spent)
    assert again.lines == whole.lines
    assert Ledger(path).by_kind() == whole.by_kind()


def test_a_unit_is_counted_once(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.add(Spent("step 1", "sampling", 10))
    ledger.add(Spent("step 1", "sampling", 10))
    Ledger(ledger.path).add(Spent("step 1", "sampling", 10))
    assert Ledger(ledger.path).rollouts() == 10


def test_test_rollouts_are_kept_out_of_the_budget(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for key, kind, rollouts in (("a", "sampling", 5), ("b", "search", 7), ("c", "test", 100)):
        ledger.add(Spent(key, kind, rollouts))
    assert (ledger.rollouts(), ledger.rollouts("test"), ledger.rollouts("search", "test")) == (12, 100, 107)
    assert ledger.by_kind()["test"].rollouts == 100


def test_full_disk_is_one_line_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.add(Spent("a", "sampling", 5))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(UserError, match="No space left on device") as error:
        patch.setattr(os, "fsync", full)
        ledger.add(Spent("b", "sampling", 7))
    assert "\n" not in str(error.value)
    again = Ledger(ledger.path)
    again.add(Spent("b", "sampling", 7))
    assert again.rollouts() == 12
