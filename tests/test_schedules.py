"""Schedules: every arm gets the same budget, and phases alternate and end as the paper says."""

import itertools
import random
import statistics

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from whale_envs import load_domain
from whale_envs.errors import UserError
from whale_train.config import RunConfig, TrainConfig
from whale_train.schedules import START, Costs, Past, Patience, Phase, Plan, collapsed, gain_of_weights
from whale_train.whale import plan_of

CLOSED = ("fixed", "stagewise", "weights-only", "harness-only")
sizes = {"step": 2048, "baseline": 256, "round": 768}
costs = st.builds(Costs, rescore=st.integers(0, 512), **{name: st.integers(1, most) for name, most in sizes.items()})
shapes = st.fixed_dictionaries(
    {"steps": st.integers(1, 50), "rounds": st.integers(1, 12), "cycles": st.integers(1, 8), "costs": costs}
)
signals = st.lists(st.floats(0, 1), max_size=60)


def opening(past, costs):
    """What a search plays before its first round, by what is on file: nothing where these weights were searched under
    before, else the accepted harness, and old ones where there are any."""
    filed = searched = False
    for phase in past:
        filed = phase.kind == "harness"
        searched = searched or filed
    return 0 if filed else costs.baseline + costs.rescore * searched


def play(past, phase, costs, units=None):
    """A phase is played, of so many units or whole."""
    took = (units or phase.amount) * (costs.step if phase.kind == "weights" else costs.round)
    took += opening(past, costs) if phase.kind == "harness" else 0
    past.append(Past(phase.cycle, phase.kind, past[-1].spent + took))


@given(shapes)
def test_the_arms_of_a_run_plan_the_same_rollouts_to_within_a_unit(shape):
    planned = {name: Plan(name, **shape).rollouts() for name in CLOSED}
    step, round = shape["costs"].step, shape["costs"].round
    assert abs(planned["weights-only"] - planned["fixed"]) <= step / 2
    assert abs(planned["harness-only"] - planned["fixed"]) <= round / 2
    # under one set of weights a baseline is scored once; a stage has a unit at least
    most = shape["cycles"] * (shape["costs"].baseline + shape["costs"].rescore)
    assert abs(planned["stagewise"] - planned["fixed"]) <= step + round + most


@given(shapes)
def test_without_the_final_search_fixed_ends_with_its_last_weights_and_all_arms_get_the_less(shape):
    whole = list(Plan("fixed", **shape).played())
    plan = Plan("fixed", **shape, final_search=False)
    assert list(plan.played()) == whole[:-1] and whole[-1][0].kind == "harness"
    assert plan.budget == plan.rollouts() == sum(spent for _, spent in whole[:-1])
    for name in CLOSED:
        assert Plan(name, **shape, final_search=False).budget == plan.budget


@pytest.mark.parametrize("schedule", ["stagewise", "weights-only", "harness-only"])
def test_what_has_no_last_cycle_cannot_leave_its_search_out(schedule):
    with pytest.raises(UserError, match=f"--no-final-search: {schedule} has no last cycle"):
        RunConfig(schedule=schedule, final_search=False)


@given(shapes)
def test_fixed_alternates_and_the_others_keep_to_their_kind(shape):
    kinds = {name: [p.kind for p in Plan(name, **shape).phases()] for name in CLOSED}
    assert kinds["fixed"] == ["weights", "harness"] * shape["cycles"]
    assert kinds["stagewise"] == ["weights", "harness"]
    assert set(kinds["weights-only"]) == {"weights"}
    assert set(kinds["harness-only"]) <= {"harness"}


@given(shapes, st.sampled_from(CLOSED))
def test_no_phase_is_empty_and_every_name_is_its_own(shape, name):
    phases = list(Plan(name, **shape).phases())
    assert all(p.amount >= 1 for p in phases)
    assert len({p.name for p in phases}) == len(phases)


@settings(deadline=None)
@given(shapes, st.sampled_from(["fixed", "adaptive"]), st.integers(1, 100_000), st.booleans(), st.randoms())
def test_an_open_end_is_the_budgets_and_a_search_follows_the_last_weights(shape, name, limit, last, rng):
    plan, costs = Plan(name, **shape, limit=limit, window=rng.randint(1, 5), final_search=last), shape["costs"]
    past = [START]
    for phase in plan.rest(lambda: past):
        play(past, phase, costs, rng.randint(1, phase.amount))  # patience may end it
        assert past[-1].spent <= limit
    assert not (last and past[-1].kind == "weights")
    assert limit - past[-1].spent < opening(past, costs) + costs.round


@settings(deadline=None)
@given(shapes, st.sampled_from(["stagewise", "harness-only"]), st.integers(0, 20_000), st.randoms())
def test_what_refused_candidates_leave_of_a_limit_goes_to_more_search(shape, name, more, rng):
    plan, costs = Plan(name, **shape, limit=Plan(name, **shape).least + more), shape["costs"]
    past = [START]
    for phase in plan.rest(lambda: past):
        play(past, phase, costs, rng.randint(1, phase.amount) if phase.kind == "harness" else None)
        assert past[-1].spent <= plan.limit
    kinds = [phase.kind for phase in past[1:]]
    assert kinds.count("weights") == (name == "stagewise") and kinds[-1] == "harness"
    assert plan.limit - past[-1].spent < costs.round


@given(shapes)
def test_a_search_that_spends_nothing_ends_an_arm_with_a_limit(shape):
    plan = Plan("stagewise", **shape, limit=1_000_000)
    past = [START]
    for phase in plan.rest(lambda: past):
        took = shape["costs"].step if phase.kind == "weights" else 0
        past.append(Past(phase.cycle, phase.kind, past[-1].spent + took))
        assert len(past) < 6


@settings(deadline=None)
@given(shapes, st.sampled_from([*CLOSED, "adaptive"]), st.integers(0, 100_000))
def test_no_arm_plans_more_than_its_cap_and_each_does_something(shape, name, more):
    plan = Plan(name, **shape, limit=Plan(name, **shape).least + more)
    assert sum(spent for _, spent in plan.played()) <= plan.limit
    assert next(plan.rest(lambda: [START]))


def played(plan, past):
    """The phases to come as they are played, whole ones; `past` is kept."""
    past = list(past)
    for phase in plan.rest(lambda: past):
        yield phase
        play(past, phase, plan.costs)


@given(shapes, st.sampled_from([*CLOSED, "adaptive"]), st.integers(0, 12))
def test_a_plan_that_is_taken_up_goes_on_as_it_would_have(shape, name, cut):
    plan, past = Plan(name, **shape), [START]
    whole = list(itertools.islice(played(plan, past), 60))
    assume(cut < len(whole))
    for phase in whole[:cut]:
        play(past, phase, plan.costs)
    assert list(itertools.islice(played(plan, past), 60 - cut)) == whole[cut:]


class Yields:
    """Plays a bandit's phases: what each kind gains a rollout, next time that it runs."""

    def __init__(self, plan, weights, harness):
        self.plan, self.rates = plan, {"weights": iter(weights), "harness": iter(harness)}
        self.past = [START]

    def step(self, phase):
        play(self.past, phase, self.plan.costs)
        took = self.past[-1].spent - self.past[-2].spent
        self.past[-1] = self.past[-1]._replace(gain=next(self.rates[phase.kind], 0.0) * took)

    def play(self):
        """The phases to come, played."""
        for phase in self.plan.rest(lambda: self.past):
            self.step(phase)
            yield phase


rates = st.lists(st.floats(-1, 1), max_size=12)


def bandit(shape, phases, last=True):
    """A bandit with room for a phase of each kind and for so many of the cheaper one."""
    costs = shape["costs"]
    both = max(2, shape["steps"]) * costs.step, costs.baseline + costs.rescore + shape["rounds"] * costs.round
    return Plan("bandit", **shape, limit=sum(both) + costs.round + round(phases * min(both)), final_search=last)


@settings(deadline=None)
@given(shapes, rates, rates, st.floats(0, 15), st.booleans())
def test_a_bandit_tries_both_then_goes_where_more_was_gained_and_keeps_its_budget(shape, weights, harness, more, last):
    plan = bandit(shape, more, last)
    played, yields = [], Yields(plan, weights, harness)
    for phase in yields.play():
        before, played = yields.past[:-1], [*played, phase]
        tried = {p.kind: (p.gain / (p.spent - q.spent), at) for at, (q, p) in enumerate(itertools.pairwise(before))}
        if len(tried) == 2:
            ranks = {kind: (max(0.0, rate), -at) for kind, (rate, at) in tried.items()}
            best = max(ranks, key=ranks.get)
            assert phase.kind == best or plan.fitting(plan._next(before[-1], best), before) is None
    assert [phase.kind for phase in played[:2]] == ["weights", "harness"]
    assert yields.past[-1].spent <= plan.limit
    assert len({phase.name for phase in played}) == len(played)
    assert [phase.cycle for phase in played] == sorted(phase.cycle for phase in played)
    assert not (last and played[-1].kind == "weights")


@settings(deadline=None)
@given(shapes, rates, rates, st.integers(0, 12))
def test_a_bandit_that_is_taken_up_goes_on_as_it_would_have(shape, weights, harness, cut):
    plan = bandit(shape, 8)
    whole = list(Yields(plan, weights, harness).play())
    again = Yields(plan, weights, harness)
    for phase in whole[:cut]:
        again.step(phase)
    assert list(again.play()) == whole[cut:]


def test_a_bandit_without_gains_takes_turns():
    yields = Yields(Plan("bandit", 3, 4, 2, Costs(64, 32, 96), limit=9000), [], [])
    kinds = [phase.kind for phase in yields.play()]
    assert len(kinds) > 6 and kinds == ["weights", "harness"] * (len(kinds) // 2)


@given(st.lists(st.floats(0, 1), max_size=12), st.integers(1, 6))
def test_a_gain_compares_windows_that_do_not_overlap(rewards, window):
    gain = gain_of_weights(rewards, window)
    size = min(window, len(rewards) // 2)
    assert gain == (statistics.fmean(rewards[-size:]) - statistics.fmean(rewards[:size]) if size else 0.0)
    assert gain_of_weights(rewards[::-1], window) == pytest.approx(-gain)
    assert gain_of_weights([0.4] * len(rewards), window) == 0


def test_a_plan_without_an_end_ends_where_a_cycle_takes_nothing():
    plan, past = Plan("adaptive", 3, 4, 2, Costs(64, 32, 96)), [START]
    for phase in plan.rest(lambda: past):
        past.append(Past(phase.cycle, phase.kind, 0))
    assert [(phase.cycle, phase.kind) for phase in past] == [(0, "start"), (1, "weights"), (1, "harness")]


@given(signals, st.integers(1, 6), st.integers(1, 6), st.integers(1, 6))
def test_patience_looks_at_full_windows_and_ends_after_so_many_without_a_better_one(signal, minimum, patience, window):
    rule = Patience(minimum, patience, window)
    means = [statistics.fmean(signal[i : i + window]) for i in range(len(signal) - window + 1)]
    over = len(signal) >= minimum and len(means) > patience and max(means[: len(means) - patience]) >= max(means)
    assert bool(rule.over(signal)) == over


def test_one_lucky_unit_at_the_start_ends_no_phase():
    assert not Patience(3, 3, 3).over([1.0, 0.0])
    assert not Patience(1, 2, 1).over([0.1, 0.2, 0.3, 0.4])
    assert Patience(1, 2, 1).over([0.4, 0.3, 0.2]) == "no better than 0.400 since 2 of 3"
    assert not Phase(1, "weights", 5).over([0.9, 0.1, 0.1])


@pytest.mark.parametrize(("rate", "window", "tasks"), [(0.1, 3, 64), (0.5, 1, 16), (0.9, 5, 256)])
def test_a_reward_that_only_varies_hardly_ever_counts_as_collapsed(rate, window, tasks):
    rng, found = random.Random(0), 0
    for _ in range(2000):
        steps = [statistics.fmean(rng.random() < rate for _ in range(tasks)) for _ in range(2 * window)]
        found += bool(collapsed(steps, window, tasks))
    assert found <= 20  # 2 of 1,000 expected


def test_a_reward_that_falls_to_nothing_has_collapsed():
    assert collapsed([0.4] * 3 + [0.0] * 3, 3, 64) == "the reward has collapsed from 0.400 to 0.000"
    assert collapsed([0.4, 0.4, 0.0, 0.0], 3, 64), "a phase of fewer steps than two windows is looked at in halves"
    assert collapsed([0.4, 0.3, 0.0], 3, 64), "as the default's three steps are"
    assert not collapsed([0.4] * 3 + [0.3] * 2, 3, 64) and not collapsed([0.4], 3, 64)
    assert not collapsed([0.0] * 6, 3, 64)


def test_a_miss_after_none_is_no_collapse_and_a_fall_from_there_is_one():
    assert not collapsed([1.0] * 5 + [1 - 1 / 512], 3, 512)
    assert collapsed([1.0] * 3 + [0.5] * 3, 3, 64) == "the reward has collapsed from 1.000 to 0.500"


@given(steps=st.integers(1, 50), epochs=st.floats(0.01, 4))
def test_steps_are_as_many_as_asked_for_or_as_many_as_the_epochs_take(steps, epochs):
    domain = load_domain("math")
    (phase,) = plan_of(TrainConfig(domain="math", steps=steps, epochs=epochs), "weights-only", domain).phases()
    assert phase.amount == steps
    (phase,) = plan_of(TrainConfig(domain="math", epochs=epochs), "weights-only", domain).phases()
    assert abs(phase.amount * 64 - epochs * len(domain.splits.weight)) <= 64


@pytest.mark.parametrize("name", ["fixed", "adaptive", "stagewise"])
def test_the_first_arm_has_the_schedule_and_the_others_are_what_it_is_held_against(name):
    config, domain = RunConfig(schedule=name), load_domain("search-qa")
    assert [plan_of(config, arm, domain).schedule for arm in config.arms] == [name, "weights-only", "harness-only"]
    assert len({plan_of(config, arm, domain).budget for arm in config.arms}) == 1
