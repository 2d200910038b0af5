"""One env, as Gymnasium wants it."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_domain import H0, Toy, ToyWorld, toy_harness

from whale_envs import DOMAINS, EpisodeError, HarnessEnv, Reply, UserError, Verdict
from whale_envs.contract import play, record, replies
from whale_envs.episode import Failure

IDS = [id for _, _, id in DOMAINS.values()]


@pytest.fixture
def env() -> HarnessEnv:
    return HarnessEnv(Toy(), harness=toy_harness())


@pytest.mark.parametrize("id", IDS)
def test_gymnasium_finds_nothing_to_say(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = gymnasium.make(id)
        check_env(made.unwrapped)
        made.close()


@pytest.mark.parametrize("id", IDS)
def test_an_id_works_by_module_and_from_a_saved_spec(id: str) -> None:
    by_module = gymnasium.make(f"whale_envs:{id}")
    spec = by_module.spec
    assert spec is not None
    by_module.close()
    again = gymnasium.make(EnvSpec.from_json(spec.to_json()))
    observation, _ = again.reset(seed=0)
    assert again.observation_space.contains(observation)
    again.close()
    strong = gymnasium.make(id, harness="strong", split="test")
    assert EnvSpec.from_json(strong.spec.to_json()).kwargs == strong.spec.kwargs
    strong.close()


def test_render_prints_or_returns_the_transcript(capsys: pytest.CaptureFixture[str]) -> None:
    for mode in (None, "ansi", "human"):
        env = HarnessEnv(Toy(), harness=toy_harness(), render_mode=mode)
        before = env.render()
        env.reset(seed=0, options={"task": "weight-1"})
        env.step("<answer>GOLD-weight-1</answer>")
        shown = env.render()
        printed = capsys.readouterr().out
        text = shown if mode == "ansi" else printed
        assert isinstance(text, str) and "[user] weight 1?" in text and "score 1" in text
        assert (shown is None, printed == "") == ((False, True) if mode == "ansi" else (True, False))
        assert before is None or "reset" in before
        assert text.count("score 1") == (2 if mode == "human" else 1)  # by itself at the end, and when asked


def test_an_episode_from_reset_to_verdict(env: HarnessEnv) -> None:
    observation, info = env.reset(seed=5, options={"task": "weight-2"})
    assert [m["content"] for m in observation] == ["Guess.", "weight 2?"] and info["task_id"] == "weight-2"
    observation, reward, terminated, truncated, info = env.step("look around")
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert observation[-1] == {"role": "tool", "content": "look around\nlook 1 \ufffd\nlook around\nlook 1 \ufffd"}
    observation, reward, terminated, truncated, info = env.step("<answer>GOLD-weight-2</answer>")
    assert (reward, terminated, truncated, observation, info["ask"]) == (1.0, True, False, (), None)
    episode = info["episode"]
    assert (episode.seed, episode.task_id, episode.harness) == (5, "weight-2", env.harness.hash)
    assert [call.after for call in episode.tool_calls] == [1]
    assert episode.behaviours == {"looked": True} and episode.failure is None and env.done


def test_a_finished_or_unbegun_env_says_so(env: HarnessEnv) -> None:
    with pytest.raises(UserError, match="call reset"):
        env.step("x")
    env.reset(seed=0)
    env.step("<answer></answer>")
    with pytest.raises(UserError, match=r"has ended.*call reset"):
        env.step("x")
    with pytest.raises(UserError, match="nothing to fail"):
        env.fail(Failure("policy", "x"))
    env.reset(seed=0)
    env.close()
    env.close()
    with pytest.raises(UserError, match="call reset"):
        env.step("x")
    env.reset(seed=0)
    env.step("x")


@pytest.mark.parametrize("action", [None, 5, b"x", ["x"], {"text": "x"}, Reply(None), Reply("x", "tired")])  # type: ignore[arg-type]
def test_what_is_no_reply_is_refused_and_costs_nothing(env: HarnessEnv, action: object) -> None:
    env.reset(seed=0)
    with pytest.raises(UserError, match=r"^an action is|^a Reply has"):
        env.step(action)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="has to be JSON"):
        env.step(Reply("x", tool_calls=[{"f": {1}}]))
    assert env.episode is not None and env.episode.calls == []
    env.step("x")


def test_every_task_is_dealt_once_an_epoch(env: HarnessEnv) -> None:
    env.reset(seed=3)
    dealt = [env.reset()[1]["task_id"] for _ in range(11)]
    first = env.reset(seed=3)[1]["task_id"]
    assert Counter([first, *dealt[:3]]) == Counter(t.id for t in env.tasks)
    assert set(Counter(dealt[3:]).values()) == {2}
    assert [env.reset()[1]["task_id"] for _ in range(11)] == dealt


def test_an_unseeded_reset_still_records_the_seed_that_repeats_it(env: HarnessEnv) -> None:
    env.reset()
    assert env.episode is not None
    seed, task = env.episode.seed, env.episode.task_id
    for text in ("a", "<answer>b</answer>"):
        *_, info = env.step(text)
    first = record(info["episode"])
    env.reset(seed=seed, options={"task": task})
    for text in ("a", "<answer>b</answer>"):
        *_, info = env.step(text)
    assert record(info["episode"]) == first


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"domain": "serach-qa"}, "unknown domain 'serach-qa'.*did you mean 'search-qa'"),
        (
            {"domain": Toy(), "harness": toy_harness(), "split": "train"},
            "unknown split 'train': expected one of harness, test, weight",
        ),
        ({"domain": Toy(), "harness": "h9"}, "unknown harness of toy 'h9'"),
        ({"domain": Toy(), "harness": "/nowhere/h.py"}, "cannot read harness /nowhere/h.py"),
    ],
)
def test_a_users_mistake_is_one_line(kwargs: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        HarnessEnv(**kwargs)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def run(task, tools)\n  yield", "does not parse at line 1"),
        ("x = '\\ud800'\x00", "does not parse"),
        ("def walk(task, tools):\n    yield 1", "has no function `run"),
        ("def run(task):\n    yield 1", r"`run` takes \(task, tools\), not 1 arguments"),
        ("def run(task, tools):\n    return 1", "never yields"),
        ("def run(task, tools):\n    def inner():\n        yield 1\n    return 1", "never yields"),
        ("def run(task, tools):\n    return (" * 150 + "1", "does not parse"),
        ("#" * 300_000, "expected at most 200,000"),
    ],
)
def test_a_harness_that_breaks_the_contract_is_refused(source: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "h.py"
    path.write_text(source)
    with pytest.raises(UserError, match=message):
        HarnessEnv(Toy(), harness=path)


def test_a_harness_from_a_path_and_from_a_module_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_harness.py").write_text(H0)
    monkeypatch.syspath_prepend(tmp_path)
    import my_harness  # type: ignore[import-not-found]

    by_path = HarnessEnv(Toy(), harness=tmp_path / "my_harness.py")
    by_module = HarnessEnv(Toy(), harness=my_harness.run)
    assert record(play(by_path, 1, replies(1))) == record(play(by_module, 1, replies(1)))


def test_the_domains_limit_on_calls_truncates() -> None:
    env = HarnessEnv(Toy(), harness=toy_harness("while True:\n    yield [user('again')]"))
    env.reset(seed=0)
    steps = [env.step("x") for _ in range(Toy.max_asks)]
    assert [(s[2], s[3]) for s in steps] == [(False, False)] * (Toy.max_asks - 1) + [(False, True)]
    assert steps[-1][4]["episode"].verdict.reason == f"cut off after {Toy.max_asks} model calls"


def test_a_failure_before_the_first_ask_ends_the_episode_at_the_next_step() -> None:
    env = HarnessEnv(Toy(), harness=toy_harness("raise ValueError('x')\nyield"))
    observation, info = env.reset(seed=0)
    assert (observation, info["ask"]) == ((), None)
    _, reward, terminated, _, info = env.step("ignored")
    assert (reward, terminated, info["episode"].calls) == (0.0, True, [])
    assert info["episode"].failure == Failure("harness", "ValueError: x")


def test_a_policys_failure_is_recorded_as_its_own(env: HarnessEnv) -> None:
    env.reset(seed=0)
    env.step("a")
    episode = env.fail(Failure("policy", "no answer"))
    assert episode.failure == Failure("policy", "no answer")
    assert (episode.score, len(episode.calls), env.done) == (0.0, 1, True)


def test_a_verifier_that_fails_at_its_work_is_an_episodes_failure() -> None:
    class Broken(ToyWorld):
        def verdict(self, answer: object) -> Verdict:
            raise EpisodeError("tool", "the verifier ran out of time")

    env = HarnessEnv(Toy(Broken), harness=toy_harness())
    episode = play(env, 0, iter(["<answer>x</answer>"]))
    assert episode.failure == Failure("tool", "the verifier ran out of time") and episode.score == 0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=())), min_size=1, max_size=4))
def test_any_text_keeps_observations_in_their_space(texts: list[str]) -> None:
    env = HarnessEnv(Toy(), harness=toy_harness())
    play(env, 0, iter([*texts, "", "", "", ""]))


def test_a_changed_observation_changes_no_record(env: HarnessEnv) -> None:
    observation, _ = env.reset(seed=0)
    env.step("a")
    before = record(env.episode) if env.episode else b""
    observation[0]["content"] = "changed"
    assert env.episode is not None and record(env.episode) == before
