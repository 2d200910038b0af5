"""What an agent is bound by: the rule as it is stated, on tables of scores made for it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_envs.errors import UserError
from whale_train.bounds import FEWEST, diagnosis, needed
from whale_train.metrics import Scores, paired_difference, sums_by_task

Table = dict[str, list[float]]


def table(chances: Sequence[float], seed: int, repeats: int = 8) -> Table:
    """Scores of tasks that are each solved with a chance of its own."""
    solved = np.random.default_rng(seed).random((len(chances), repeats)) < np.asarray(chances)[:, None]
    return {f"task-{i}": scores for i, scores in enumerate(solved.astype(float).tolist())}


def chances(mean: float, tasks: int = 96, seed: int = 0) -> np.ndarray:
    """How hard each task is; the same ones are hard at every mean."""
    return np.clip(mean + np.random.default_rng(seed).normal(0, 0.15, tasks), 0, 1)


def agents(*means: float, tasks: int = 96) -> list[Table]:
    """An agent of each mean, on the same tasks."""
    return [table(chances(mean, tasks), seed) for seed, mean in enumerate(means)]


@pytest.mark.parametrize(
    ("means", "bound", "why"),
    [
        ((0.2, 0.25, 0.5), "harness", "the search gains really, and really more than the training"),
        ((0.2, 0.5, 0.25), "model", "the training gains really, and really more than the search"),
        ((0.2, 0.2, 0.5), "harness", "the search gains really"),
        ((0.3, 0.1, 0.5), "harness", "the search gains really"),  # training may even do harm
        ((0.2, 0.45, 0.455), "both", "either helps: both gain really, and which of them gains more may be chance"),
        ((0.3, 0.3, 0.3), "undecided", "may be chance"),
        ((0.4, 0.3, 0.2), "undecided", "neither training nor search gained anything"),
        ((0.3, 0.2, 0.31), "undecided", "the search gained more, and even that may be chance"),
    ],
)
def test_verdict_on_agents_of_given_means(means: tuple[float, ...], bound: str, why: str) -> None:
    found = diagnosis(*agents(*means))
    assert found.bound == bound and why in found.why, found
    assert found.training == paired_difference(*agents(*means)[:2])


def test_a_gain_that_is_real_beside_one_that_is_not_needs_a_real_lead() -> None:
    start = {f"t{i}": [0.0] for i in range(12)}
    searched = start | {f"t{i}": [1.0] for i in range(4)}
    trained = start | {f"t{i}": [1.0] for i in range(2, 5)}
    found = diagnosis(start, trained, searched)
    assert found.search.low > 0 and found.training.low <= 0 and found.difference.low <= 0 <= found.difference.high
    assert found.bound == "undecided"
    assert "gains really and the training does not, but the difference between them may be chance" in found.why
    assert found.needed == needed(trained, searched), "what is open is the lead"


MEANS = st.sampled_from([0.0, 0.1, 0.3, 0.4, 0.9, 1.0])


@given(st.tuples(MEANS, MEANS, MEANS), st.integers(FEWEST, 30), st.integers(0, 2**32), st.integers(1, 3))
def test_the_rule_is_the_one_that_is_stated(
    means: tuple[float, float, float], tasks: int, seed: int, repeats: int
) -> None:
    start, trained, searched = (table([mean] * tasks, seed + i, repeats) for i, mean in enumerate(means))
    found = diagnosis(start, trained, searched)
    search, training, more = found.search, found.training, found.difference
    assert (found.bound == "harness") == (search.low > 0 and more.low > 0)
    assert (found.bound == "model") == (training.low > 0 and more.high < 0)
    assert (found.bound == "both") == (search.low > 0 and training.low > 0 and more.low <= 0 <= more.high)
    mirrored = diagnosis(start, searched, trained)
    swapped = {"harness": "model", "model": "harness"}
    assert mirrored.bound == swapped.get(found.bound, found.bound)
    assert mirrored.difference.mean == pytest.approx(-more.mean)
    assert (found.needed is not None) <= (found.bound in ("both", "undecided"))


def test_few_tasks_tell_nothing_however_clear_they_look() -> None:
    few = [{f"t{i}": [score] * 8 for i in range(FEWEST - 1)} for score in (0.0, 0.0, 1.0)]
    found = diagnosis(*few)
    assert found.bound == "undecided" and found.why == "5 tasks tell nothing: it takes 6 at least"
    assert diagnosis(*({**t, "one more": [t["t0"][0]] * 8} for t in few)).bound == "harness"


def test_agents_that_share_no_task_cannot_be_compared() -> None:
    with pytest.raises(UserError, match="share no task"):
        diagnosis({"a": [1.0]}, {"a": [1.0]}, {"b": [1.0]})


def test_where_nothing_gains_a_bound_is_claimed_in_few_of_many_diagnoses() -> None:
    seeds = itertools.count(100)
    level = chances(0.3, 24)
    claims = [diagnosis(*(table(level, next(seeds), 4) for _ in range(3))).bound for _ in range(200)]
    # at most 2.5 % each; 5 % of 200 and three standard errors
    assert sum(claim != "undecided" for claim in claims) <= 19


def test_as_many_tasks_as_are_said_to_be_needed_tell_four_times_in_five() -> None:
    seen = agents(0.4, 0.45)
    wanted, differences = needed(*seen), np.asarray(sums_by_task([(-1, seen[0]), (1, seen[1])]))
    assert wanted is not None and differences.mean() > 0
    drawn = np.random.default_rng(0).choice(differences, (2000, wanted.tasks))  # as different as those that were seen
    low = drawn.mean(1) - 1.96 * drawn.std(1, ddof=1) / np.sqrt(wanted.tasks)
    assert 0.77 <= (low > 0).mean() <= 0.83


def test_as_many_episodes_of_each_task_as_are_said_to_be_needed_do_so_too() -> None:
    hard = chances(0.4, 60)
    seen = [[table(hard + gain, 2 * seed + i, 4) for i, gain in enumerate((0.0, 0.1))] for seed in range(100)]
    # where what was seen is what there is
    asked = [needed(*pair) for pair in seen if abs(paired_difference(*pair).mean - 0.1) < 0.01]
    repeats = sorted(wanted.repeats for wanted in asked if wanted is not None and wanted.repeats is not None)
    assert len(repeats) > len(asked) / 2 > 5
    enough = repeats[len(repeats) // 2]
    told = [
        paired_difference(table(hard, 2 * seed, enough), table(hard + 0.1, 2 * seed + 1, enough)).low > 0
        for seed in range(1000, 1100)
    ]
    assert enough > 4 and 0.68 <= sum(told) / len(told) <= 0.92


def test_no_number_of_episodes_helps_where_tasks_themselves_differ() -> None:
    a: Scores = {f"t{i}": [0.0] * 8 for i in range(20)}
    b: Scores = {f"t{i}": [float(i % 2), *[1.0 if i % 3 else 0.0] * 7] for i in range(20)}
    wavering = {task: [1 - s for s in scores] if int(task[1:]) % 2 else list(scores) for task, scores in b.items()}
    wanted = needed(wavering, b)
    assert wanted is not None and wanted.repeats is None and wanted.tasks > 20
    assert needed(a, a) is None


def test_one_episode_of_each_task_says_nothing_of_more() -> None:
    a = {f"t{i}": [float(i % 2)] for i in range(20)}
    b = {f"t{i}": [float(i % 3 == 0)] for i in range(20)}
    wanted = needed(a, b)
    assert wanted is not None and wanted.repeats is None and wanted.tasks > 20
