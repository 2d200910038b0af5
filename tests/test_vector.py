"""Many episodes side by side: which they are follows from seed and replies, and each is what it is by itself."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_domain import Toy, toy_harness

from whale_envs import DOMAINS, Episode, Harness, HarnessEnv, HarnessVectorEnv, Reply, UserError, load_domain
from whale_envs.contract import record
from whale_envs.vector import Infos, stacked

IDS = [place.id for place in DOMAINS.values()]
#: Ends an episode of the toy domain's harness at once, or lets it go on.
END, GO_ON = "<answer>x</answer>", "look"


def toy(num_envs: int, tasks: int = 4, trusted: bool = True, **kwargs: Any) -> HarnessVectorEnv:
    return HarnessVectorEnv(num_envs, Toy(tasks=tasks), harness=toy_harness(trusted=trusted), **kwargs)


def ended(infos: dict[str, Any]) -> list[Episode]:
    """The records of the episodes that a step ended."""
    final = infos.get("final_info", {})
    return [final["record"][at] for at in np.flatnonzero(final.get("_record", []))]


def drive(envs: HarnessVectorEnv, seed: int, choices: Iterator[str], steps: int) -> tuple[list[str], list[Episode]]:
    """Take steps with autoreset; returns the task of every episode that began, and the records of those that ended."""
    _, infos = envs.reset(seed=seed)
    begun, records = list(infos["task_id"]), []
    for _ in range(steps):
        *_, infos = envs.step([next(choices) for _ in range(envs.num_envs)])
        records += ended(infos)
        begun += [t for t, new in zip(infos["task_id"], infos.get("_final_info", []), strict=False) if new]
    return begun, records


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 7), st.integers(0, 2**32), st.randoms(use_true_random=False))
def test_tasks_come_once_an_epoch_and_follow_from_seed_and_replies(
    num_envs: int, tasks: int, seed: int, chance: Any
) -> None:
    choices = [chance.choice([END, GO_ON]) for _ in range(8 * num_envs)]
    one, other = toy(num_envs, tasks), toy(num_envs, tasks)
    other.reset(seed=seed + 1)
    other.step([END] * num_envs)  # what went before leaves no trace
    begun, records = drive(one, seed, iter(choices), 8)
    again, records_again = drive(other, seed, iter(choices), 8)
    assert begun == again and list(map(record, records)) == list(map(record, records_again))
    for start in range(0, len(begun), tasks):
        epoch = Counter(begun[start : start + tasks])
        assert set(epoch.values()) == {1} and epoch.keys() <= {t.id for t in one.tasks}


def test_the_order_is_the_seeds_and_reset_goes_on_with_it() -> None:
    envs = toy(2, tasks=8)
    orders = []
    for seed in (0, 1, 0):
        order = [*envs.reset(seed=seed)[1]["task_id"]]
        for _ in range(3):
            order += envs.reset()[1]["task_id"].tolist()
        assert len(set(order)) == 8
        orders.append(order)
    assert orders[0] == orders[2] != orders[1]


@pytest.mark.parametrize("trusted", [True, False])
def test_every_episode_can_be_had_by_itself(trusted: bool) -> None:
    envs = toy(5, tasks=7, trusted=trusted)
    choices = iter([END, GO_ON, GO_ON, "other", END, GO_ON] * 20)
    _, records = drive(envs, 3, choices, 8)
    alone = HarnessEnv(Toy(tasks=7), harness=toy_harness())
    assert len(records) > 5
    for kept in records:
        alone.reset(seed=kept.seed, options={"task": kept.task_id})
        for call in kept.calls:
            *_, info = alone.step(call.reply)
        assert record(info["record"]) == record(kept)
    envs.close()


def test_a_jail_is_shared_and_ended() -> None:
    envs = toy(6, trusted=False)
    envs.reset(seed=0)
    (jail,) = {env._jail for env in envs.envs}
    assert jail is not None and jail.pid is not None
    envs.close()
    envs.close()
    assert jail.pid is None
    with pytest.raises(UserError, match=r"reset"):
        envs.step([END] * 6)


@pytest.mark.parametrize("id", IDS)
def test_make_vec_gives_64_that_stay_in_their_spaces(id: str) -> None:
    envs = gymnasium.make_vec(id, num_envs=64, harness="strong", split="test")
    assert isinstance(envs, HarnessVectorEnv) and envs.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    observations, infos = envs.reset(seed=1)
    assert len(set(infos["task_id"])) == 64
    envs.action_space.seed(0)
    for _ in range(3):
        assert observations in envs.observation_space and len(observations) == 64
        actions = envs.action_space.sample()
        assert actions in envs.action_space
        observations, rewards, terminations, truncations, infos = envs.step(actions)
        assert [a.shape for a in (rewards, terminations, truncations)] == [(64,)] * 3
        for shown, ask, most in zip(observations, infos["ask"], infos["max_tokens"], strict=True):
            assert list(shown) == ask.messages and 1 <= most <= envs.envs[0].domain.max_tokens
    envs.close()


def test_same_step_returns_the_next_ask_and_the_ended_episodes_info() -> None:
    envs = toy(3)
    first, infos = envs.reset(seed=0)
    task = envs.tasks.by_id(infos["task_id"][1])
    observations, rewards, terminations, truncations, infos = envs.step([GO_ON, f"<answer>{task.gold}</answer>", GO_ON])
    assert rewards.tolist() == [0, 1, 0] and terminations.tolist() == [False, True, False] and not truncations.any()
    assert infos["_final_info"].tolist() == [False, True, False] and infos["final_obs"][1] == ()
    final = infos["final_info"]
    assert final["task_id"][1] == task.id != infos["task_id"][1]
    assert (final["verdict"][1].score, final["failure"][1], final["behaviours"]["looked"][1]) == (1.0, None, False)
    assert len(observations[1]) == 2 != len(observations[0]) and observations[1] != first[1]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.none()
        | st.fixed_dictionaries(
            {},
            optional={
                "n": st.integers(0, 9),
                "yes": st.booleans(),
                "x": st.floats(0, 1),
                "any": st.none() | st.tuples(st.integers()) | st.text(max_size=2),
                "facts": st.dictionaries(st.sampled_from("ab"), st.booleans()),
                "final_obs": st.tuples(st.text(max_size=1)),
            },
        ),
        min_size=1,
        max_size=5,
    )
)
def test_infos_are_stacked_as_gymnasium_stacks_them(infos: Infos) -> None:
    base: Any = gymnasium.vector.VectorEnv()
    base.num_envs = len(infos)
    want: dict[str, Any] = {}
    for at, info in enumerate(infos):
        want = base._add_info(want, info or {}, at)
    check_same(stacked(infos), want)


def check_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for key, value in other.items():
        if isinstance(value, dict):
            check_same(one[key], value)
        else:
            assert one[key].dtype == value.dtype and one[key].tolist() == value.tolist()


def test_disabled_autoreset_waits_for_the_reset_of_those_that_ended() -> None:
    envs = toy(3, autoreset_mode=AutoresetMode.DISABLED)
    _, infos = envs.reset(seed=0)
    tasks = infos["task_id"].tolist()
    observations, _, terminations, _, infos = envs.step([END, GO_ON, END])
    assert terminations.tolist() == [True, False, True] and infos["record"][0].answer == "x"
    with pytest.raises(UserError, match=r"episodes \[0, 2\] have ended"):
        envs.step([GO_ON] * 3)
    after, infos = envs.reset(options={"reset_mask": terminations})
    assert infos["_task_id"].tolist() == [True, False, True]
    assert after[1] == observations[1] and len({*tasks, infos["task_id"][0]}) == 4
    assert not envs.step([GO_ON] * 3)[2].any()


@pytest.mark.parametrize(
    "limits", [{"max_episode_steps": 2}, {"max_asks": 2}, {"max_asks": 2, "max_episode_steps": 3}, {"max_asks": None}]
)
def test_a_limit_on_steps_truncates_with_a_record(limits: dict[str, int | None]) -> None:
    source = "def run(task, tools):\n  while 1: yield [{'role':'user','content':'x'}]"
    envs = gymnasium.make_vec("whale/Math", 2, harness=Harness(source), **limits)  # type: ignore[arg-type]
    if limits == {"max_asks": None}:
        assert {env.max_asks for env in envs.envs} == {load_domain("math").max_asks}  # type: ignore[attr-defined]
        envs.close()
        return
    envs.reset(seed=0)
    assert not envs.step(["a", "b"])[3].any()
    *_, terminations, truncations, infos = envs.step(["a", "b"])
    assert truncations.all() and not terminations.any()
    assert [e.verdict.reason for e in ended(infos)] == ["cut off after 2 model calls"] * 2
    envs.close()


def test_one_bad_action_steps_no_episode() -> None:
    envs = toy(3)
    envs.reset(seed=0)
    for actions, message in (
        ([GO_ON] * 2, "2 actions for 3"),
        (None, "actions are a list of 3 actions, not a NoneType"),
        ({GO_ON, "b", "c"}, "not a set"),
        ("abc", "not a str"),
        ([GO_ON, GO_ON, 5], "an action is a string"),
        ([GO_ON, Reply(5), GO_ON], "a Reply has a text"),  # type: ignore[arg-type]
    ):
        with pytest.raises(UserError, match=message):
            envs.step(actions)  # type: ignore[arg-type]
    assert all(env.episode is not None and env.episode.calls == [] for env in envs.envs)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_envs": 0}, "num_envs is 0: expected a whole number"),
        ({"num_envs": None}, "num_envs is None: expected a whole number"),
        ({"num_envs": 2, "max_episode_steps": 0}, "max_episode_steps is 0"),
        ({"num_envs": 2, "max_asks": True}, "max_asks is True: expected a whole number"),
        ({"num_envs": 2, "autoreset_mode": AutoresetMode.NEXT_STEP}, "unknown autoreset mode 'NextStep'"),
        ({"num_envs": 2, "autoreset_mode": "SameSteps"}, "did you mean 'SameStep'"),
        ({"num_envs": 2, "split": "train"}, "unknown split"),
        ({"num_envs": 2, "render_mode": "rgb_array"}, "unknown render mode 'rgb_array'"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        HarnessVectorEnv(domain=Toy(), harness=toy_harness(), **kwargs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reset_mask": [True, False]}, "reset_mask is"),
        ({"reset_mask": np.array([True])}, r"expected a boolean array of shape \(2,\)"),
        ({"reset_mask": np.array([1, 0])}, "reset_mask is"),
        ({"mask": 1}, "unknown reset option 'mask'"),
    ],
)
def test_reset_options_that_cannot_be_used_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        toy(2).reset(options=options)
    with pytest.raises(UserError, match="unknown reset option"):
        toy(2).envs[0].reset(options=options)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize(
    "vector", [SyncVectorEnv, functools.partial(AsyncVectorEnv, shared_memory=False)], ids=["sync", "async"]
)
def test_gymnasiums_own_vector_envs_play_the_same_episodes(vector: Any, mode: AutoresetMode) -> None:
    made = functools.partial(gymnasium.make, "whale/Chess", split="test")
    envs = vector([made, made], autoreset_mode=mode)
    observations, infos = envs.reset(seed=5)
    assert observations in envs.observation_space
    *_, terminations, _, infos = envs.step(("<move>a1a1</move>", "no"))
    while not terminations.all():
        *_, terminations, _, infos = envs.step(("<move>a1a1</move>", "no"))
    records = (infos["final_info"] if mode == AutoresetMode.SAME_STEP else infos)["record"]
    alone = made()
    for at, kept in enumerate(records):
        alone.reset(seed=5 + at)
        for call in kept.calls:
            *_, info = alone.step(call.reply)
        assert info["record"] == kept
    envs.close()


def test_make_vec_takes_gymnasiums_modes_by_name() -> None:
    for mode, kwargs in (("sync", {}), ("async", {"shared_memory": False})):
        envs = gymnasium.make_vec("whale/Math", 2, mode, vector_kwargs=kwargs)
        envs.reset(seed=0)
        assert envs.step(("a", "b"))[2].all()
        envs.close()


def test_a_spec_survives_json() -> None:
    made = gymnasium.make_vec("whale/Chess", 2, harness="strong", split="test", autoreset_mode="Disabled")
    assert made.spec is not None
    spec = EnvSpec.from_json(made.spec.to_json())
    assert json.loads(made.spec.to_json())["kwargs"]["harness"] == "strong"
    again = gymnasium.make_vec(spec)
    assert isinstance(again, HarnessVectorEnv) and again.autoreset_mode == AutoresetMode.DISABLED
    assert made.reset(seed=1)[0] == again.reset(seed=1)[0]
    for envs in (made, again):
        envs.close()


def test_gymnasiums_statistics_wrap_it_when_a_step_begins_the_next_episode_too() -> None:
    envs = RecordEpisodeStatistics(toy(2))
    _, infos = envs.reset(seed=0)
    golds = [envs.env.tasks.by_id(task).gold for task in infos["task_id"]]  # type: ignore[attr-defined]
    seen = []
    for replies in ([GO_ON, f"<answer>{golds[1]}</answer>"], [GO_ON, END], [END, GO_ON]):
        *_, infos = envs.step(replies)
        for at in np.flatnonzero(infos["_episode"]):
            final = infos["final_info"]["record"][at]
            assert infos["episode"]["l"][at] == len(final.calls) and infos["episode"]["r"][at] == final.score
            seen.append((int(at), len(final.calls), final.score))
    assert seen == [(1, 1, 1.0), (1, 1, 0.0), (0, 3, 0.0)]


def test_gymnasiums_statistics_wrap_it() -> None:
    envs = RecordEpisodeStatistics(toy(2, autoreset_mode="Disabled"))
    envs.reset(seed=0)
    envs.step([GO_ON, GO_ON])
    *_, infos = envs.step([END, GO_ON])
    assert infos["episode"]["l"][0] == 2 and infos["_episode"].tolist() == [True, False]


def test_all_have_one_domain_and_every_domain_the_same_tasks() -> None:
    envs = gymnasium.make_vec("whale/Math", num_envs=2)
    assert isinstance(envs, HarnessVectorEnv)
    (domain,) = {env.domain for env in envs.envs}
    assert domain.splits is load_domain("math").splits is load_domain("math", None, "math-verify").splits
    envs.close()


def test_each_renders() -> None:
    envs = toy(2, render_mode="ansi")
    envs.reset(seed=0)
    rendered = envs.render()
    assert rendered is not None and len(rendered) == 2 and "[user]" in rendered[0]
