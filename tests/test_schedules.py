"""Schedules: every arm gets the same budget, and phases alternate as the paper says."""

from hypothesis import given
from hypothesis import strategies as st

from whale_envs import load_domain
from whale_train.config import TrainConfig
from whale_train.schedules import ARMS, Costs, planned_rollouts, schedule
from whale_train.whale import phases

sizes = {"step": 2048, "baseline": 256, "round": 768}
costs = st.builds(Costs, rescore=st.integers(0, 512), **{name: st.integers(1, most) for name, most in sizes.items()})


@given(steps=st.integers(1, 50), rounds=st.integers(1, 12), cycles=st.integers(1, 8), costs=costs)
def test_the_arms_of_a_run_plan_the_same_rollouts_to_within_half_a_unit(steps, rounds, cycles, costs):
    planned = {arm: planned_rollouts(schedule(arm, steps, rounds, cycles, costs), costs) for arm in ARMS}
    assert abs(planned["weights-only"] - planned["whale"]) <= costs.step / 2
    assert abs(planned["harness-only"] - planned["whale"]) <= costs.round / 2


@given(steps=st.integers(1, 50), rounds=st.integers(1, 12), cycles=st.integers(1, 8), costs=costs)
def test_whale_alternates_and_the_others_keep_to_their_kind(steps, rounds, cycles, costs):
    whale = schedule("whale", steps, rounds, cycles, costs)
    assert [p.kind for p in whale] == ["weights", "harness"] * cycles
    assert {p.kind for p in schedule("weights-only", steps, rounds, cycles, costs)} == {"weights"}
    assert {p.kind for p in schedule("harness-only", steps, rounds, cycles, costs)} <= {"harness"}


@given(steps=st.integers(1, 50), rounds=st.integers(1, 12), cycles=st.integers(1, 8), costs=costs)
def test_no_phase_is_empty_and_every_name_is_its_own(steps, rounds, cycles, costs):
    for arm in ARMS:
        phases = schedule(arm, steps, rounds, cycles, costs)
        assert all(p.amount >= 1 for p in phases)
        assert len({p.name for p in phases}) == len(phases)


@given(steps=st.integers(1, 50), epochs=st.floats(0.01, 4))
def test_steps_are_as_many_as_asked_for_or_as_many_as_the_epochs_take(steps, epochs):
    domain = load_domain("math")
    (phase,) = phases(TrainConfig(domain="math", steps=steps, epochs=epochs), "weights-only", domain)
    assert phase.amount == steps
    (phase,) = phases(TrainConfig(domain="math", epochs=epochs), "weights-only", domain)
    assert abs(phase.amount * 64 - epochs * len(domain.splits.weight)) <= 64
