"""The study of benchmarks/recipe: its arms differ and cost the same, its lines are kept, its intervals hold."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inline_pool import InlinePool, inline_pool

from whale_envs.errors import UserError
from whale_train.arguments import parse
from whale_train.config import RunConfig
from whale_train.whale import plan_of

HOME = Path(__file__).parents[1] / "benchmarks" / "recipe"
sys.path.insert(0, str(HOME))

import figures  # noqa: E402
import findings  # noqa: E402
import matrices  # noqa: E402
import results  # noqa: E402
import run  # noqa: E402
import study  # noqa: E402
from play import play  # noqa: E402

TINY = study.Sizes(prompts=8, group=2, candidates=1, tasks=8, test=4)
BUDGET = 48


def row(domain: str = "math", arm: str = "fst", seed: int = 0, by_task: str = "0408", **more: Any) -> results.Row:
    """A line of the results."""
    mean = sum(map(int, by_task)) / (8 * len(by_task))
    line = results.Row(
        domain, arm, seed, study.BUDGET, 100, mean, (0.0, 1.0), "", "", by_task, {"moved": 0.5}, [], [], 1.0
    )
    return msgspec.structs.replace(line, **more)


@pytest.mark.parametrize("domain", study.SIZES)
def test_each_arm_fits_its_budget_and_each_fixed_schedule_alternates_twice(domain: str, tmp_path: Path) -> None:
    shapes, tasks = set(), study.arm_config(domain, "fst", 0, tmp_path).load_domain()
    for arm in study.ARMS:
        config = study.arm_config(domain, arm, 0, tmp_path)
        assert parse(shlex.split(study.whale_command(config, arm))[1:]) == dataclasses.replace(config, out=None)
        plan = plan_of(config, config.arms[0], tasks)
        assert plan.least <= plan.budget == study.BUDGET
        shapes.add((plan.schedule, plan.steps, plan.rounds, config.edits))
        if arm.startswith("fixed"):
            phases = [phase.amount for phase, _ in plan.played()]
            assert phases[:3] == [plan.steps, plan.rounds, plan.steps] and phases[3] > 1
            assert plan.steps == round(5 * config.epochs), "whole fifths of an epoch"
    assert len(shapes) == len(study.ARMS)


@pytest.mark.parametrize(("domain", "arm"), [("maths", "fst"), ("math", "fts")])
def test_a_name_that_is_none_is_answered_in_one_line(domain: str, arm: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean"):
        study.arm_config(domain, arm, 0, tmp_path)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A study of seconds, in this process."""
    monkeypatch.setitem(study.SIZES, "search-qa", TINY)
    yield


def test_an_arm_runs_once_and_comes_out_the_same_again(
    tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def jobs(work: str, *arms: str) -> list[tuple[RunConfig, str]]:
        return run.jobs(run.Options(("search-qa",), arms, (3,), BUDGET, tmp_path / work))

    path, arms = tmp_path / "results.json", ("start", "fixed-0.2-2")
    kept = results.current()
    run.run_all(jobs("a", *arms), InlinePool(), kept, path)  # type: ignore[arg-type]
    start, end = results.load(path).results
    assert (start.arm, start.rollouts, start.phases) == ("start", 0, [])
    assert 0 < end.rollouts <= end.budget == BUDGET and end.phases[0][0] == "weights"
    assert end.mean == sum(map(int, end.by_task)) / (8 * TINY.test)
    assert json.loads(path.read_bytes())["results"][1]["mean@8"] == end.mean
    monkeypatch.setattr("play.play_arm", None)  # what is done is not done again
    run.run_all(jobs("a", *arms), InlinePool(), kept, path)  # type: ignore[arg-type]
    monkeypatch.undo()
    again = results.current()
    monkeypatch.setitem(study.SIZES, "search-qa", TINY)
    run.run_all(jobs("b", "fixed-0.2-2"), InlinePool(), again, tmp_path / "again.json")  # type: ignore[arg-type]
    assert results.changes(again, kept) == []


def test_the_matrix_of_a_run_comes_with_its_figure_and_a_missing_run_says_what_makes_it(
    tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="--seeds 0 makes it"):
        matrices.main(("search-qa",), BUDGET, tmp_path, tmp_path)
    monkeypatch.setattr("whale_train.matrix.pool", inline_pool)
    config = study.arm_config("search-qa", findings.WHALE, 0, tmp_path, BUDGET)
    play(config, findings.WHALE)
    matrices.main(("search-qa",), BUDGET, tmp_path, tmp_path)
    assert (tmp_path / "figures" / "matrix-search-qa.png").stat().st_size > 1000
    found = findings.kept_matrices(tmp_path / "matrices.json")
    assert len(found["search-qa"]["cells"]) == len(found["search-qa"]["weights"])
    assert findings.gains_table(found).count("SearchQA") == 1 and "Math" not in findings.gains_table(found)


#: A study of one arm, in processes of its own.
ALONE = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(HOME)!r})
import run, study
study.SIZES["search-qa"] = study.{TINY}
out = Path(sys.argv[1])
run.run(run.Options(("search-qa",), ("fixed-0.2-2",), (3,), {BUDGET}, out / "runs", out / "results.json", workers=1))
"""


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_study_that_is_killed_goes_on_from_there_to_the_same_line(tmp_path: Path) -> None:
    def start(out: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", ALONE, str(out)], env=os.environ | {"OMP_NUM_THREADS": "1"})

    def line(out: Path) -> dict[str, Any]:
        with start(out) as process:
            assert process.wait() == 0
        (found,) = json.loads((out / "results.json").read_bytes())["results"]
        return {name: value for name, value in found.items() if name != "seconds"}

    rough = tmp_path / "rough"
    state = rough / f"runs/{BUDGET}/search-qa/fixed-0.2-2/3/arms/whale/state.json"
    with start(rough) as process:
        while process.poll() is None and not (state.exists() and b"cycle 1 weights" in state.read_bytes()):
            time.sleep(0.01)
        process.kill()
    assert not (rough / "results.json").exists()
    assert line(rough) == line(tmp_path / "calm")


def test_a_line_takes_the_place_of_the_one_before_it() -> None:
    hashes = {"weights": "a"}
    kept = results.current()
    for line in (row(arm="adaptive"), row(), row(domain="search-qa"), row(by_task="8888")):
        kept.add(results.Done(line, hashes))
    assert [(r.domain, r.arm, r.mean) for r in kept.results] == [
        ("search-qa", "fst", 0.1875 * 2),
        ("math", "fst", 1.0),
        ("math", "adaptive", 0.1875 * 2),
    ]
    with pytest.raises(UserError, match="began with"):
        kept.add(results.Done(row(seed=1), {"weights": "b"}))


def test_the_lines_of_another_budget_stand_beside_those_of_the_study() -> None:
    kept = results.current()
    for line in (row(arm="start"), row(), row(budget=study.LARGE, by_task="8888"), row(arm="adaptive")):
        kept.add(results.Done(line, {}))
    assert [(r.arm, r.mean) for r in findings.within(kept.results, study.LARGE)] == [("start", 0.375), ("fst", 1.0)]
    assert [r.arm for r in findings.within(kept.results, study.BUDGET)] == ["start", "fst", "adaptive"]


def test_results_are_read_as_they_were_written_and_other_sizes_or_arms_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, kept = tmp_path / "results.json", results.current()
    kept.add(results.Done(row(phases=[("weights", 0.2, 204, "")], curve=[(204, 0.1)]), {"weights": "a"}))
    results.save(kept, path)
    assert results.load(path) == kept
    monkeypatch.setitem(study.SIZES, "math", TINY)
    with pytest.raises(UserError, match="other sizes"):
        results.load(path)
    monkeypatch.undo()
    monkeypatch.setitem(study.ARMS, "fst", {"epochs": 0.2})
    with pytest.raises(UserError, match="lines of fst"):
        results.load(path)


def test_a_number_that_changed_is_named_and_time_is_none() -> None:
    here, there = results.current(), results.current()
    there.add(results.Done(row(), {}))
    here.add(results.Done(row(seconds=9.0), {}))
    assert results.changes(here, there) == []
    here.add(results.Done(row(rollouts=99), {}))
    assert results.changes(here, there) == ["math fst 0 3500: rollouts is 99, and was 100"]
    assert results.lacking(there, [("math", "fst", s, study.BUDGET) for s in (0, 1)]) == [
        ("math", "fst", 1, study.BUDGET)
    ]


@settings(max_examples=20)
@given(st.integers(2, 6), st.integers(2, 40), st.integers(0, 1000))
def test_an_interval_holds_its_mean_and_is_wider_than_either_alone(seeds: int, tasks: int, state: int) -> None:
    values = np.random.default_rng(state).random((seeds, tasks))
    found = findings.crossed(values)
    half = found.high - found.mean
    assert found.low < found.mean < found.high and found.mean == pytest.approx(values.mean())
    for axis, count in ((1, seeds), (0, tasks)):
        assert half > 1.95 * math.sqrt(values.mean(axis=axis).var(ddof=1) / count)


def test_an_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng, held = np.random.default_rng(0), 0
    for _ in range(400):
        chance = np.clip(0.4 + rng.normal(0, 0.05, (5, 1)) + rng.normal(0, 0.25, (1, 64)), 0, 1)
        found = findings.crossed(rng.binomial(8, chance) / 8)
        held += found.low < 0.4 < found.high
    assert held / 400 >= 0.94


def test_differences_are_paired_by_seed_and_task_and_one_seed_has_no_interval() -> None:
    lines = [row(arm=arm, seed=s, by_task=t) for s, a, b in [(0, "0448", "1558"), (1, "8080", "8180"), (2, "88", "")]
             for arm, t in (("fst", a), ("adaptive", b)) if t]  # fmt: skip
    table = findings.scores(lines, "math")
    found = findings.difference(table, "adaptive", "fst")
    assert found is not None and found.mean == pytest.approx((3 + 1) / 8 / 8)
    one = findings.difference(findings.scores(lines[:2], "math"), "adaptive", "fst")
    assert one is not None and math.isinf(one.low) and findings.above(one) == "one seed"
    assert findings.difference(table, "adaptive", "stagewise") is None


def test_the_tables_stand_between_their_markers_however_often_they_are_written(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{findings.BEGIN}\nold\n{findings.END}\nafter\n")
    lines = [row(domain, arm, seed) for domain in study.SIZES for arm in ("start", *study.ARMS) for seed in (0, 1)]
    findings.write(readme, lines, {})
    once = readme.read_text()
    findings.write(readme, lines, {})
    assert readme.read_text() == once and "\nold\n" not in once
    assert once.startswith("before\n") and once.endswith("after\n")
    assert "(0.6, 6) is above stagewise" in once


def test_a_figure_is_drawn_of_each_budget_that_has_lines(tmp_path: Path) -> None:
    kept, home = results.current(), tmp_path / "figures"
    for domain in study.SIZES:
        for arm in ("start", *study.ARMS):
            phases, curve = [("weights", 0.4, 50, "why"), ("harness", 6.0, 50, "")], [(50, 0.4)]
            kept.add(results.Done(row(domain, arm, phases=phases, curve=curve), {}))
    results.save(kept, tmp_path / "results.json")
    figures.main(tmp_path / "results.json", home)
    small = {"curves.png", "schedules.png", "phases.png", "behaviours.png"}
    assert {path.name for path in home.iterdir()} == small
    kept.add(results.Done(row("chess", budget=study.LARGE), {}))
    results.save(kept, tmp_path / "results.json")
    figures.main(tmp_path / "results.json", home)
    assert {path.name for path in home.iterdir()} - small == {"curves-7000.png", "schedules-7000.png"}
    assert all(path.stat().st_size > 5000 for path in home.iterdir())


def test_the_committed_tables_are_those_of_the_committed_results() -> None:
    if not (HOME / "results.json").exists():
        pytest.skip("no results yet")
    rows = results.load(HOME / "results.json").results
    assert findings.section(rows, findings.kept_matrices()) in (HOME / "README.md").read_text(), (
        "python benchmarks/recipe/findings.py"
    )
