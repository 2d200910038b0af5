"""Evaluation: kept on disk with its episodes, and the same whether or not it was killed on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_run import scripted

from whale_envs import load_domain, load_harness, read_episodes
from whale_envs.errors import UserError
from whale_train import evaluate as module
from whale_train.evaluate import evaluate, load_evaluation, read_evaluation
from whale_train.metrics import mean_at_k, scores_by_task
from whale_train.policies.base import Policy, PolicyError
from whale_train.policies.scripted import ScriptedPolicy

DOMAIN, H0 = load_domain("search-qa"), load_harness("h0", "search-qa")


def play(policy: Policy, folder: Path | None, **options: object) -> module.Evaluation:
    arguments = {"repeats": 4, "limit": 8, "seed": 3} | options
    return evaluate(policy, DOMAIN, H0, "test", folder=folder, **arguments)[0]  # type: ignore[arg-type]


def timeless(found: module.Evaluation) -> module.Evaluation:
    return msgspec.structs.replace(found, seconds=0.0)


@pytest.mark.parametrize("dies_after", [1, 3, 5, 7])
def test_killed_anywhere_it_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_after: int) -> None:
    monkeypatch.setattr(module, "CHUNK", 8)  # two tasks between writes
    whole = play(scripted(0.5, "p"), tmp_path / "whole")
    policy = scripted(0.5, "p")
    calls, answers = iter(range(1000)), policy._answers

    def mortal(requests: object) -> object:
        if next(calls) == dies_after:
            raise KeyboardInterrupt
        return answers(requests)  # type: ignore[arg-type]

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(policy, "_answers", mortal)
        play(policy, tmp_path / "killed")
    assert load_evaluation(tmp_path / "killed") is None
    again = play(policy, tmp_path / "killed")
    assert timeless(again) == timeless(whole)
    assert sorted(p.name for p in (tmp_path / "killed").iterdir()) == ["episodes.jsonl", "evaluation.json"]
    assert len(policy.requests) <= 2 * 4 * 8 + 2 * 4 * 2  # two calls an episode, and at most a chunk twice


def test_finished_evaluation_is_read_back(tmp_path: Path) -> None:
    policy = scripted(0.5, "p")
    first = play(policy, tmp_path)
    asked = len(policy.requests)
    assert play(policy, tmp_path) == first
    assert len(policy.requests) == asked


def test_every_number_comes_from_the_episodes(tmp_path: Path) -> None:
    found = play(scripted(0.5, "p"), tmp_path)
    episodes = list(read_episodes(tmp_path / "episodes.jsonl"))
    assert mean_at_k(scores_by_task(episodes)) == found.score
    assert scores_by_task(episodes) == found.scores
    assert len(episodes) == found.rollouts == 32
    assert len({e.seed for e in episodes}) == 32
    summary = found.summary()
    assert summary.pop("sets").keys() == found.sets.keys()  # type: ignore[attr-defined]
    assert summary == {"mean@4": found.score.mean, "ci95": [found.score.low, found.score.high]}


def test_scores_of_each_data_set_make_up_the_score(tmp_path: Path) -> None:
    found, hops = play(scripted(0.5, "p"), tmp_path, limit=None), {t.id: t.source for t in DOMAIN.splits.test}
    assert set(found.sets) == set(hops.values()) == {"1-hop", "2-hop"}
    for name, part in found.sets.items():
        assert part == mean_at_k({task: s for task, s in found.scores.items() if hops[task] == name})
    assert sum(e.mean * e.tasks for e in found.sets.values()) / found.score.tasks == pytest.approx(found.score.mean)
    sets: Any = found.summary()["sets"]
    assert sets["2-hop"]["mean@4"] == found.sets["2-hop"].mean and sets["2-hop"]["tasks"] == found.sets["2-hop"].tasks
    assert read_evaluation(tmp_path) == found


def test_tasks_of_one_data_set_have_no_scores_by_set(tmp_path: Path) -> None:
    found = play(scripted(0.5, "p"), tmp_path, limit=2)
    assert found.sets == {} and "sets" not in found.summary()


def test_limit_takes_the_first_tasks_and_changes_no_score(tmp_path: Path) -> None:
    few, all_of_them = play(scripted(0.5, "p"), None, limit=3), play(scripted(0.5, "p"), None, limit=8)
    assert list(few.scores) == list(all_of_them.scores)[:3]
    assert all(few.scores[task] == all_of_them.scores[task] for task in few.scores)


@pytest.mark.parametrize(
    ("field", "options"), [("seed", {"seed": 4}), ("repeats", {"repeats": 2}), ("limit", {"limit": 2})]
)
def test_another_evaluation_in_the_same_folder_is_refused(
    tmp_path: Path, field: str, options: dict[str, object]
) -> None:
    play(scripted(0.5, "p"), tmp_path)
    with pytest.raises(UserError, match=f"holds another evaluation \\({field}"):
        play(scripted(0.5, "p"), tmp_path, **options)
    with pytest.raises(UserError, match="weights"):
        play(scripted(0.5, "another"), tmp_path)


def test_failed_episodes_count_as_zero_with_their_owner() -> None:
    found = play(ScriptedPolicy(lambda request: PolicyError("down")), None)
    assert found.failures == {"policy": 32}
    assert found.score.mean == 0
