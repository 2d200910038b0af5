"""Metrics: means and intervals that a person could check by hand, and that cover as often as they claim."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_envs.errors import UserError
from whale_train.metrics import mean_at_k, paired_difference, t_quantile

SCORES = st.dictionaries(st.text(min_size=1, max_size=4), st.lists(st.sampled_from([0.0, 1.0]), min_size=4, max_size=4))


# the 97.5 % quantiles as printed in tables
@pytest.mark.parametrize(
    ("df", "expected"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (10, 2.228), (30, 2.042), (99, 1.984)],
)
def test_t_quantile_is_the_tables(df: int, expected: float) -> None:
    assert t_quantile(df) == pytest.approx(expected, rel=0.004)


def test_mean_and_interval_by_hand() -> None:
    estimate = mean_at_k({"a": [1, 1], "b": [0, 0], "c": [1, 0]})
    # task means 1, 0, 0.5: mean 0.5, standard deviation 0.5, t(2) = 4.303
    assert (estimate.mean, estimate.tasks) == (0.5, 3)
    assert (estimate.low, estimate.high) == (0.0, 1.0)  # 0.5 ± 1.24, cut to the possible range


def test_repeats_of_one_task_do_not_narrow_the_interval() -> None:
    few = mean_at_k({str(t): [float(t % 2)] for t in range(20)})
    many = mean_at_k({str(t): [float(t % 2)] * 50 for t in range(20)})
    assert (few.low, few.high) == pytest.approx((many.low, many.high))


@given(SCORES.filter(bool))
def test_interval_holds_the_mean_and_stays_possible(scores: dict[str, list[float]]) -> None:
    estimate = mean_at_k(scores)
    assert 0 <= estimate.low <= estimate.mean <= estimate.high <= 1


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_all_alike_still_has_width(value: float) -> None:
    estimate = mean_at_k({str(t): [value] * 8 for t in range(30)})
    assert estimate.mean == value
    assert estimate.high - estimate.low == pytest.approx(1 - 0.025 ** (1 / 30))


@given(SCORES.filter(bool), st.randoms(use_true_random=False))
def test_order_of_tasks_and_repeats_does_not_matter(scores: dict[str, list[float]], rng: random.Random) -> None:
    shuffled = [(task, rng.sample(values, len(values))) for task, values in scores.items()]
    rng.shuffle(shuffled)
    assert mean_at_k(dict(shuffled)).mean == pytest.approx(mean_at_k(scores).mean)


def test_interval_covers_about_as_often_as_it_says() -> None:
    rng, covered = random.Random(0), 0
    for _ in range(400):
        solvable = [rng.random() for _ in range(40)]  # the population mean is 0.5
        estimate = mean_at_k({str(t): [float(rng.random() < p) for _ in range(8)] for t, p in enumerate(solvable)})
        covered += estimate.low <= 0.5 <= estimate.high
    assert 0.92 <= covered / 400 <= 0.98


@given(SCORES.filter(bool))
def test_difference_to_itself_is_zero(scores: dict[str, list[float]]) -> None:
    assert paired_difference(scores, scores).mean == 0


@given(SCORES.filter(bool), st.data())
def test_difference_changes_sign_with_order(scores: dict[str, list[float]], data: st.DataObject) -> None:
    other = {t: data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=4, max_size=4)) for t in scores}
    there, back = paired_difference(scores, other), paired_difference(other, scores)
    assert there.mean == pytest.approx(-back.mean)
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low))


def test_pairing_narrows_the_interval_of_a_steady_gain() -> None:
    rng = random.Random(1)
    hard = {str(t): rng.random() for t in range(50)}
    a = {t: [float(rng.random() < 0.8 * p) for _ in range(8)] for t, p in hard.items()}
    b = {t: [float(rng.random() < 0.8 * p + 0.15) for _ in range(8)] for t, p in hard.items()}
    gain = paired_difference(a, b)
    apart = mean_at_k(b).high - mean_at_k(b).low + mean_at_k(a).high - mean_at_k(a).low
    assert gain.low > 0
    assert gain.high - gain.low < apart


def test_nothing_to_average_is_one_clear_line() -> None:
    with pytest.raises(UserError, match="no episode"):
        mean_at_k({})
    with pytest.raises(UserError, match="share no task"):
        paired_difference({"a": [1.0]}, {"b": [1.0]})


def test_one_task_says_nothing_of_the_spread() -> None:
    estimate = mean_at_k({"a": [0.0, 1.0]})
    assert (estimate.low, estimate.high) == (0.0, 1.0)
    assert not math.isnan(estimate.mean)
