"""`whale run --curve`: more points for the curves, after all choices, and nothing else is changed by it."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from inline_pool import inline_pool

from whale_envs import Harness, load_domain
from whale_envs.errors import UserError
from whale_train import cli, run, whale
from whale_train.config import RunConfig, SearchConfig
from whale_train.ledger import Ledger, Spent
from whale_train.policies import load
from whale_train.policies.base import Request
from whale_train.policies.scripted import ScriptedPolicy
from whale_train.report.data import read_report
from whale_train.rsft import phase as rsft
from whale_train.whale import Snapshot, cycle_ends, measured

ARGV = "run --out run --limit 6 --repeats 2 --steps 1 --rounds 1".split()
ARMS = ("whale", "weights-only", "harness-only")
TESTS = {t.shown["question"] for t in load_domain("search-qa").splits.test}


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens, in order: "weights", "search" or "test"; runs go on here, without processes and training."""
    happened: list[str] = []

    def policy(spec: str, domain: str) -> ScriptedPolicy:
        def reply(request: Request) -> str:
            if any(question in m["content"] for m in request.ask.messages for question in TESTS):
                happened.append("test")
            return "<answer>x</answer>"

        return ScriptedPolicy(reply, "start" if spec == "tiny" else Path(spec.removeprefix("hf:")).parent.name)

    def weight_phase(
        policy: Any, domain: Any, harness: Any, options: Any, steps: int, out: Path, ledger: Ledger, progress: Any,
        key: str, start: Path | None, over: Callable[[Sequence[float]], str], skip: int,
    ) -> tuple[Path, list[float]]:  # fmt: skip
        (out / "step").mkdir(parents=True, exist_ok=True)
        policy.name = out.name
        happened.append("weights")
        ledger.add(Spent(key, "sampling", rollouts=options.prompts * options.group * steps))
        return out / "step", [0.2] * steps

    def search(policy: Any, domain: Any, harness: Harness, *_: Any) -> Harness:
        happened.append("search")
        return harness

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rsft, "weight_phase", weight_phase)
    monkeypatch.setattr(whale, "search", search)
    monkeypatch.setattr(load, "load_policy", policy)
    monkeypatch.setattr(run, "pool", inline_pool)
    monkeypatch.setattr(run, "write_report", lambda folder: None)
    return happened


def play(monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
    """The command, as a shell gives it."""
    monkeypatch.setattr(sys, "argv", ["whale", *ARGV, *more])
    assert cli.main() == 0


def points(arm: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("run/arms", arm, "curve.jsonl").read_text().splitlines()]


def files() -> dict[str, bytes]:
    """What says how the arms fared: states, curves, tests."""
    kept = [*Path("run").glob("arms/*/*"), *Path("run").glob("test/*/episodes.jsonl")]
    return {str(path): path.read_bytes() for path in kept if path.name in ("state.json", "curve.jsonl")}


def test_a_curve_has_a_point_for_each_phase_and_a_run_without_it_one_for_each_cycle(
    history: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch)
    assert [p["phase"] for p in points("whale")] == ["start", "cycle 1 harness", "cycle 2 harness"]
    before, tests, plain = history[:], {p.name for p in Path("run/test").iterdir()}, files()
    play(monkeypatch, "--curve")
    assert [p["phase"] for p in points("whale")] == [
        "start", "cycle 1 weights", "cycle 1 harness", "cycle 2 weights", "cycle 2 harness"
    ]  # fmt: skip
    assert history[len(before) :].count("weights") == history[len(before) :].count("search") == 0, "nothing is redone"
    assert tests <= {p.name for p in Path("run/test").iterdir()}
    for arm in ("weights-only", "harness-only"):
        assert [p["cycle"] for p in points(arm)] == [0, 1, 2], "a phase of theirs is a cycle"
    assert json.loads(Path("run/result.json").read_bytes())["command"].endswith("--curve")
    assert json.loads(Path("run/run.json").read_bytes())["command"].endswith("--rounds 1")
    play(monkeypatch)
    assert files() == plain, "and without it, all is as it was"


def test_no_test_task_is_seen_before_an_arm_has_made_its_choices(
    history: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, "--curve", "--no-baselines")
    assert history.count("weights") == history.count("search") == 2
    assert "test" not in history[: max(i for i, what in enumerate(history) if what != "test")]


def test_a_run_that_goes_on_can_be_reported_as_far_as_it_is_tested(
    history: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def test(*args: Any) -> Any:
        with contextlib.suppress(UserError):  # nothing is tested yet
            seen.append(sum(len(arm.curve) for arm in read_report(Path("run")).arms))
        return play_test(*args)

    play_test = run.play_test
    monkeypatch.setattr(run, "play_test", test)
    play(monkeypatch)
    assert seen == sorted(seen) and set(seen) >= {1, 2, 3}, "a point after the other"
    assert read_report(Path("run")).result


def test_a_test_is_paid_for_once_in_an_arm_however_many_phases_share_it(
    history: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for more in ((), ("--curve",)):
        play(monkeypatch, *more)
        for arm in ARMS:
            tests = {p["test"] for p in points(arm)}
            spent = Ledger(Path("run/arms", arm, "ledger.jsonl")).by_kind()["test"]
            assert spent.rollouts == 12 * len(tests)


def test_what_is_tested_is_a_phase_or_a_cycle_and_a_single_phase_is_both() -> None:
    done = [Snapshot(f"phase {i}", cycle, "weights", 0, "h", "w") for i, cycle in enumerate((0, 1, 1, 2, 2))]
    assert measured(RunConfig(), done) == cycle_ends(done) == [done[0], done[2], done[4]]
    assert measured(RunConfig(curve=True), done) == done
    assert measured(SearchConfig(), done[:2]) == done[:2]


def test_it_is_no_other_run_with_it() -> None:
    assert RunConfig(curve=True).identity() == RunConfig().identity()
