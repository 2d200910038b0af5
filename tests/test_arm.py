"""An arm goes through its phases by its schedule, and weights that collapse are not kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from whale_envs import Harness
from whale_envs.errors import UserError
from whale_train import whale
from whale_train.config import RunConfig
from whale_train.ledger import Spent
from whale_train.policies import load
from whale_train.progress import Silent
from whale_train.rsft import phase as rsft
from whale_train.whale import plan_of, run_arm, snapshots


class Weights:
    """Stands for a policy: what it has been trained to."""

    def __init__(self, spec: str) -> None:
        self.weights_hash = Path(spec).name if spec != "tiny" else "tiny"


@pytest.fixture
def rewards(monkeypatch: pytest.MonkeyPatch) -> list[list[float]]:
    """What the steps of each weight phase to come are rewarded with; searches find nothing."""
    coming: list[list[float]] = []

    def weight_phase(
        policy: Any,
        domain: Any,
        harness: Any,
        options: Any,
        steps: int,
        out: Path,
        ledger: Any,
        progress: Any,
        key: str,
        start: Path | None,
        over: Callable[[Sequence[float]], str],
        skip: int,
    ) -> tuple[Path, list[float]]:
        given = coming.pop(0)
        (out / "checkpoint").mkdir(parents=True)
        policy.weights_hash = f"from {start.parent.name if start else 'the start'}, {skip} skipped"
        for step in range(len(given)):
            ledger.add(Spent(f"{key}/step-{step:04d}/sampling", "sampling", rollouts=512))
        ends = next((n for n in range(1, len(given) + 1) if over(given[:n])), len(given))
        return out / "checkpoint", given[: min(ends, steps)]

    def search(policy: Any, domain: Any, harness: Harness, *args: Any) -> Harness:
        return harness

    monkeypatch.setattr(rsft, "weight_phase", weight_phase)
    monkeypatch.setattr(whale, "search", search)
    monkeypatch.setattr(load, "load_policy", lambda spec, domain: Weights(spec))
    return coming


class Heard(Silent):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        """See `Progress`."""
        self.lines.append(line)


def test_weights_whose_reward_collapses_are_given_up_and_the_search_goes_on_with_those_before(
    rewards: list[list[float]], tmp_path: Path
) -> None:
    rewards += [[0.4] * 6, [0.4, 0.4, 0.4, 0.0, 0.0, 0.0], [0.5] * 6]
    config, heard = RunConfig(steps=6, cycles=3), Heard()
    run_arm(config, "whale", tmp_path, heard)
    start, first, _, second, after, third, _ = snapshots(tmp_path)
    assert (second.model, second.weights) == (first.model, "checkpoint"), "loaded again from where they were"
    assert second.why == "the reward has collapsed from 0.400 to 0.200; back to the weights that it began with"
    assert heard.lines == [f"cycle 2 weights ends: {second.why}"]
    assert after.model == first.model and after.phase == "cycle 2 harness"
    assert third.weights == "from 01, 6 skipped", "other tasks, and trained on from the weights that were kept"
    assert (start.why, first.why, third.why) == ("", "", "")


def test_an_adaptive_phase_ends_by_its_rewards_and_says_why(rewards: list[list[float]], tmp_path: Path) -> None:
    rewards += [[0.1, 0.2, 0.6, 0.3, 0.1, 0.2, 0.4, 0.9]] * 9
    config, heard = RunConfig(schedule="adaptive"), Heard()
    assert plan_of(config, "whale", config.load_domain()).window == 3
    run_arm(config, "whale", tmp_path, heard)
    first = snapshots(tmp_path)[1]
    # over 3 steps each: 0.3, 0.37, 0.33, 0.2, 0.23, and then 0.5
    assert first.why == "no better than 0.367 since 3 of 7"
    assert heard.lines[0] == f"cycle 1 weights ends: {first.why}"


def test_one_proposer_serves_all_searches_of_an_arm(
    rewards: list[list[float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewards += [[0.4] * 3] * 2
    asked: list[Any] = []

    def search(
        policy: Any, domain: Any, harness: Harness, settings: Any, archive: Any, proposer: Any, *_: Any
    ) -> Harness:
        asked.append(proposer)
        return harness

    monkeypatch.setattr(whale, "search", search)
    run_arm(RunConfig(), "whale", tmp_path, Silent())
    assert len(asked) == 2 and asked[0] is asked[1]


def test_an_arm_whose_ledger_has_lost_lines_is_not_taken_up(rewards: list[list[float]], tmp_path: Path) -> None:
    rewards += [[0.4] * 3] * 2
    config = RunConfig(steps=3, cycles=2)
    run_arm(config, "whale", tmp_path, Silent())
    assert [s.signal for s in snapshots(tmp_path) if s.kind == "weights"] == [[0.4] * 3] * 2
    lines = (tmp_path / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "ledger.jsonl").write_bytes(b"".join(lines[:-1]))
    with pytest.raises(
        UserError, match="2,560 rollouts, but by the end of cycle 2 harness 3,072 were spent: put it back"
    ):
        run_arm(config, "whale", tmp_path, Silent())


def test_the_default_weight_phase_is_looked_at_for_a_collapse(rewards: list[list[float]], tmp_path: Path) -> None:
    rewards += [[0.6, 0.5, 0.1], [0.6] * 3]
    run_arm(RunConfig(), "whale", tmp_path, Silent())
    _, first, _, second, _ = snapshots(tmp_path)
    assert first.model is None and first.why.startswith("the reward has collapsed from 0.600 to 0.100")
    assert second.weights == "from the start, 3 skipped"
