"""The estimated optimism of a winner: near what simulated winners owe to luck, and the same for the same scores."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_runs import rewording, run

from whale_envs import load_domain
from whale_train.archive_commands import show_archive
from whale_train.meta_harness.archive import Archive
from whale_train.meta_harness.optimism import estimated_optimism, optimism
from whale_train.meta_harness.proposers.scripted import ScriptedProposer
from whale_train.meta_harness.search import SearchSettings

rows = st.integers(1, 12).flatmap(
    lambda tasks: st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=tasks, max_size=tasks), min_size=1)
)


@given(rows)
def test_it_is_the_same_each_time_and_between_nothing_and_a_whole_task_set(scores: list[list[float]]) -> None:
    found = optimism(scores)
    assert 0 <= found <= 1
    assert found == optimism(scores)


def test_one_candidate_and_candidates_that_are_alike_owe_nothing_to_luck() -> None:
    scores = [[0.0, 1.0] * 64]
    assert optimism(scores) == 0
    assert optimism(scores * 5) < 0.003
    assert optimism([[1.0] * 128, [0.0] * 128, [0.0] * 128]) == 0


@pytest.mark.parametrize("spread", [0.0, 0.03, 0.1])
def test_on_average_it_is_what_winners_owe_to_their_tasks(spread: float) -> None:
    """Tasks differ in how hard they are, candidates in what they add, so that their scores go together."""
    rng = np.random.default_rng(1)
    owed, estimates = [], []
    for _ in range(25):
        hard, skill = rng.uniform(-0.25, 0.25, 128), rng.normal(0, spread, 12)
        chance = np.clip(0.4 + hard + skill[:, None], 0, 1)
        scores = (rng.random(chance.shape) < chance).astype(float)
        best = scores.mean(1).argmax()
        owed.append(scores.mean(1)[best] - np.clip(0.4 + np.linspace(-0.25, 0.25, 2001) + skill[best], 0, 1).mean())
        estimates.append(optimism(scores.tolist()))
    assert 0.5 < np.mean(estimates) / np.mean(owed) < 1.3


def test_each_round_states_it_and_the_archive_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    run(
        load_domain("search-qa"),
        tmp_path,
        ScriptedProposer(rewording("A"), rewording("B")),
        SearchSettings(1, 2, 24, refills=0),
    )
    archive = Archive(tmp_path / "archive", "search-qa")
    assert archive.phase is not None
    last = archive.rounds[-1]
    assert last.optimism == estimated_optimism(archive, archive.phase.score_key)
    show_archive(tmp_path / "archive")
    assert f"{100 * last.optimism:.1f} points too high" in capsys.readouterr().out
