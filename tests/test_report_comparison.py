"""Comparisons of runs: what differs only in seeds is pooled as one says, and what cannot be compared is refused."""

from __future__ import annotations

import json
import re
import shutil
import statistics
from pathlib import Path

import pytest
from fake_run import make_run
from hypothesis import given
from hypothesis import strategies as st
from mistakes import one_line

from whale_envs.errors import UserError
from whale_train import cli, report
from whale_train.metrics import mean_at_k, paired_difference, t_quantile
from whale_train.report import write_comparison
from whale_train.report.data import Arm, Point, Run, read_report
from whale_train.report.elements import difference, span
from whale_train.report.pooling import FITS, Group, Series, difference_over_seeds, difference_over_tasks, pooled
from whale_train.run_folder import RunInfo


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two seeds of one configuration, and another configuration."""
    folder = tmp_path_factory.mktemp("runs")
    first = [make_run(folder / f"seed-{seed}", tasks=5, seed=seed) for seed in (0, 1)]
    return [*first, make_run(folder / "alone", tasks=5, arms=("whale",), schedule="adaptive")]


@pytest.fixture
def runs(made: list[Path], tmp_path: Path) -> list[Path]:
    return [Path(shutil.copytree(run, tmp_path / run.name)) for run in made]


def arm(curve: dict[int, float]) -> Arm:
    """An arm that was tested after so many rollouts with such means."""
    points = [Point(x, y, y, y, 8, "p", "start", 0, "h", "w", "t") for x, y in curve.items()]
    return Arm("whale", Path("nowhere"), points, {})


@pytest.mark.parametrize("count", [2, 26, 30])
def test_no_configuration_is_left_out_however_many_there_are(count: int) -> None:
    given = [RunInfo("run", "", {"dataset": f"{'x' * FITS}{i}"}, {}, {}, 0, "") for i in range(count)]
    groups, series = pooled([Run(Path(str(i)), info, [arm({0: 0.1})], {}) for i, info in enumerate(given)])
    assert len({group.name for group in groups}) == len(groups) == len(series) == count


CURVES = st.dictionaries(st.integers(1, 5000), st.floats(0, 1), min_size=1, max_size=5)


@given(st.lists(CURVES, min_size=2, max_size=4))
def test_a_pooled_curve_is_the_mean_of_the_seeds_lines_and_ends_at_the_mean_of_their_ends(
    curves: list[dict[int, float]],
) -> None:
    curves = [{0: 0.1} | dict(sorted(curve.items())) for curve in curves]
    series = Series(Group("", "", []), {seed: arm(curve) for seed, curve in enumerate(curves)})
    points = series.curve()
    x, mean, low, high = zip(*points, strict=True)
    assert list(x) == sorted(x) and mean[0] == pytest.approx(0.1)
    assert all(0 <= lo <= m + 1e-12 and m - 1e-12 <= hi <= 1 for m, lo, hi in zip(mean, low, high, strict=True))
    ends = [list(curve.values())[-1] for curve in curves]
    assert x[-1] == statistics.fmean(max(curve) for curve in curves)
    assert mean[-1] == pytest.approx(statistics.fmean(ends))
    for at, value in zip(x[:-1], mean, strict=False):
        tested = [curve[at] for curve in curves if at in curve]
        assert tested, "a point is where some seed was tested"
        if len(tested) == len(curves):
            assert value == pytest.approx(statistics.fmean(tested))


def test_intervals_are_over_seeds_and_over_tasks_as_one_computes_them_by_hand(runs: list[Path]) -> None:
    found = [read_report(run) for run in runs[:2]]
    _, series = pooled(found)
    whale, weights, _ = series
    assert [s.name for s in series] == ["whale", "weights-only", "harness-only"] and list(whale.arms) == [0, 1]
    ends = [run.arms[0].curve[-1].mean for run in found]
    over = whale.over_seeds(-1)
    assert over is not None and over.mean == pytest.approx(statistics.fmean(ends))
    half = t_quantile(1) * statistics.stdev(ends) / 2**0.5
    assert (over.low, over.high) == pytest.approx((max(0, over.mean - half), min(1, over.mean + half)))
    each = [run.arms[0].scores(-1) for run in found]
    together = {task: [*each[0][task], *each[1][task]] for task in each[0]}
    assert whale.over_tasks(-1) == mean_at_k(together) and len(together) == 5
    assert all(len(repeats) == 16 for repeats in together.values())
    assert difference_over_tasks(whale, weights) == paired_difference(weights.scores(-1), together)
    seeds = difference_over_seeds(whale, weights)
    assert seeds is not None and seeds.tasks == 2
    assert seeds.mean == pytest.approx(whale.mean(-1) - weights.mean(-1))


def test_one_seed_has_no_interval_over_seeds_and_its_own_points(runs: list[Path]) -> None:
    found = read_report(runs[2])
    _, (series,) = pooled([found])
    assert series.over_seeds(-1) is None
    assert series.curve() == [(p.rollouts, p.mean, p.low, p.high) for p in found.arms[0].curve]
    assert series.label == "WHALE", "one configuration needs no name"


def test_runs_group_by_all_but_their_seeds_and_are_called_by_what_differs(runs: list[Path]) -> None:
    groups, series = pooled([read_report(run) for run in runs])
    assert [[run.info.seed for run in group.runs] for group in groups] == [[0, 1], [0]]
    assert [s.label for s in series] == [
        "WHALE · schedule fixed",
        "weights only · schedule fixed",
        "harness only · schedule fixed",
        "WHALE · schedule adaptive",
    ]
    assert difference_over_seeds(series[0], series[3]) is None, "one shared seed tells no spread"


def test_the_page_says_the_numbers_on_disk(runs: list[Path], tmp_path: Path) -> None:
    page = write_comparison(runs, tmp_path / "out")
    assert page == tmp_path / "out" / "comparison.html"
    html = page.read_text()
    assert (tmp_path / "out" / "comparison.png").read_bytes().startswith(b"\x89PNG")
    text = re.sub(r"<[^>]+>", "", html)
    ends = [json.loads((run / "arms/whale/curve.jsonl").read_text().splitlines()[-1])["mean@8"] for run in runs]
    assert f"{50 * (ends[0] + ends[1]):.1f}" in text and f"{100 * ends[2]:.1f}" in text
    assert all(str(run) in text for run in runs)
    assert html == write_comparison(runs, tmp_path / "again").read_text(), "the same runs give the same bytes"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"config": {"domain": "chess"}}, "--domain search-qa there, chess here"),
        ({"config": {"limit": 3}}, "--limit None there, 3 here"),
        ({"config": {"repeats": 4}}, "--repeats 8 there, 4 here"),
        ({"config": {"verifier": "f1"}}, "--verifier None there, f1 here"),
        ({"hashes": {"data": "a-b-c"}}, "the test set"),
    ],
)
def test_what_was_tested_otherwise_is_refused_in_one_line(
    runs: list[Path], capsys: pytest.CaptureFixture[str], change: dict[str, dict[str, object]], expected: str
) -> None:
    path = runs[2] / "run.json"
    info = json.loads(path.read_text())
    for part, values in change.items():
        info[part] |= values
    path.write_text(json.dumps(info))
    if info["config"]["domain"] == "chess":
        shutil.rmtree(runs[2] / "arms/whale/archive")  # of another domain
    line = one_line(capsys, "report", *map(str, runs))
    assert expected in line and f"{runs[0]} and {runs[2]} cannot be compared" in line


def test_one_seed_twice_is_refused(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="have one configuration and seed 0: give one of them"):
        write_comparison([runs[0], runs[1], Path(shutil.copytree(runs[0], tmp_path / "copy"))], tmp_path)


def test_a_missing_test_leaves_a_dash(runs: list[Path]) -> None:
    shutil.rmtree(runs[0] / "test" / "weights-only-2")
    _, (whale, weights, _) = pooled([read_report(run) for run in runs[:2]])
    assert weights.over_tasks(-1) is None and difference_over_tasks(whale, weights) is None
    assert (span(None), difference(None)) == ("–", "–")


def test_one_run_is_reported_in_its_folder_and_several_in_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, Path | None]] = []
    monkeypatch.setattr(report, "write_report", lambda run, out: asked.append((run, out)))
    monkeypatch.setattr(report, "write_comparison", lambda runs, out: asked.append((runs, out)))
    a, b = Path("a"), Path("b")
    for argv in ("a", "a --out there", "a b", "a b --out there"):
        assert cli.main(["report", *argv.split()]) == 0
    assert asked == [(a, None), (a, Path("there")), ((a, b), Path()), ((a, b), Path("there"))]
