"""One env, as Gymnasium wants it."""

from __future__ import annotations

import itertools
import sys
import warnings
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_domain import H0, Toy, ToyWorld, toy_harness

from whale_envs import DOMAINS, EpisodeError, Harness, HarnessEnv, Reply, UserError, Verdict, load_harness
from whale_envs.contract import play, record, replies
from whale_envs.episode import Failure
from whale_envs.harness.jail import JailedSession

IDS = [place.id for place in DOMAINS.values()]


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


HARNESS = """
from whale_envs.harness import user

def run(task, tools):
    reply = yield [user("Say it.")]
    return reply.text
"""


@pytest.mark.parametrize("id", IDS)
def test_a_spec_survives_json_with_each_way_to_name_a_harness(
    id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spec_harness.py").write_text(HARNESS)
    monkeypatch.syspath_prepend(tmp_path)
    for harness in ("h0", "strong", str(tmp_path / "spec_harness.py"), "spec_harness:run"):
        made = gymnasium.make(f"whale_envs:{id}", harness=harness, split="test", max_episode_steps=3)
        spec = EnvSpec.from_json(made.spec.to_json())  # type: ignore[union-attr]
        again = gymnasium.make(spec)
        assert again.spec == made.spec and spec.kwargs["harness"] == harness
        (one, _), (other, _) = made.reset(seed=1), again.reset(seed=1)
        assert one == other and again.observation_space.contains(other)
        overridden = gymnasium.make(spec, harness=Harness(HARNESS, "given", trusted=True))
        assert overridden.reset(seed=1)[0] == ({"role": "user", "content": "Say it."},)
        for env in (made, again, overridden):
            env.close()
    monkeypatch.delitem(sys.modules, "spec_harness")


@pytest.mark.parametrize(
    ("harness", "message"),
    [
        ("no_such_module:run", "No module named 'no_such_module'"),
        ("json:run", "module 'json' has no attribute 'run'"),
        ("json:dumps", "expected the `run` of a module"),
        ("json:decoder", "expected a name, a path"),
        (":run", "expected module:attribute"),
        (5, "expected a name, a path"),
    ],
)
def test_what_names_no_harness_is_refused(harness: object, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load_harness(harness, "toy")  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("id", IDS)
def test_gymnasiums_statistics_and_time_limit_wrap_it(id: str) -> None:
    source = HARNESS.replace("reply = yield", "while True:\n        yield [user('More.')]\n    reply = yield")
    env = RecordEpisodeStatistics(gymnasium.make(id, harness=Harness(source, "endless", True), max_episode_steps=2))
    for _ in range(2):  # what the limit cut off is dropped by the next reset
        env.reset(seed=0)
        assert env.step("a")[2:4] == (False, False)
        _, reward, terminated, truncated, info = env.step("b")
        assert (reward, terminated, truncated) == (0.0, False, True)
        assert (info["episode"]["l"], info["episode"]["r"]) == (2, 0.0)
    env.close()
    env = RecordEpisodeStatistics(gymnasium.make(id, harness=Harness(HARNESS, "once", True)))
    env.reset(seed=0)
    info = env.step("x")[4]
    assert info["episode"]["l"] == len(info["record"].calls) == 1
    env.close()


def test_an_envs_own_limit_truncates_with_a_verdict_and_a_record() -> None:
    source = "while True:\n    yield [user('again')]"
    env = RecordEpisodeStatistics(HarnessEnv(Toy(), harness=toy_harness(source), max_asks=2))
    for _ in range(2):
        env.reset(seed=0)
        assert env.step("a")[2:4] == (False, False)
        _, _, terminated, truncated, info = env.step("b")
        assert (terminated, truncated, info["episode"]["l"]) == (False, True, 2)
        assert info["record"].verdict == info["verdict"] == Verdict(0.0, "cut off after 2 model calls")
    assert HarnessEnv(Toy(), harness=toy_harness(), max_asks=99).max_asks == Toy.max_asks  # the domain's stays the most
    spec = EnvSpec.from_json(gymnasium.make("whale/Math", max_asks=2).spec.to_json())  # type: ignore[union-attr]
    assert gymnasium.make(spec).unwrapped.max_asks == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("end", ["reset", "close"])
def test_what_gymnasiums_time_limit_cut_off_is_dropped_with_its_process(end: str) -> None:
    closed: list[ToyWorld] = []

    class Closing(ToyWorld):
        def close(self) -> None:
            closed.append(self)

    inner = HarnessEnv(Toy(Closing), harness=toy_harness("while True:\n    yield [user('again')]", trusted=False))
    env = TimeLimit(inner, 2)
    env.reset(seed=0)
    env.step("a")
    assert env.step("b")[2:4] == (False, True)
    session = inner._session
    assert isinstance(session, JailedSession) and session.pid is not None and not closed
    getattr(env, end)()
    assert session.pid is None and len(closed) == 1
    env.close()


def test_an_env_whose_episode_could_not_begin_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(harness: Harness) -> None:
        raise UserError("no isolation here")

    env = HarnessEnv(Toy(), harness=toy_harness(trusted=False))
    with monkeypatch.context() as patch:
        patch.setattr("whale_envs.env.Jail", refused)
        for _ in range(2):
            with pytest.raises(UserError, match="no isolation here"):
                env.reset(seed=0)
            with pytest.raises(UserError, match="call reset"):
                env.step("x")
            assert env.render() is None
    env.reset(seed=0)
    env.step("x")
    env.close()


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(IDS),
    st.sampled_from(["h0", "strong"]),
    st.lists(st.text(st.characters(exclude_categories=())), min_size=1, max_size=4),
)
def test_any_text_keeps_every_envs_observations_in_their_space(id: str, harness: str, texts: list[str]) -> None:
    env = gymnasium.make(id, harness=harness).unwrapped
    assert isinstance(env, HarnessEnv)
    tags = ("{}", "<search>{}</search>", "<answer>{}</answer>", "<move>{}</move>", "\\boxed{{{}}}")
    play(env, 0, itertools.chain((t.format(text) for text in texts for t in tags[:4]), itertools.repeat("")))
    env.close()


def test_render_prints_or_returns_the_transcript(capsys: pytest.CaptureFixture[str]) -> None:
    for mode in (None, "ansi", "human"):
        env = HarnessEnv(Toy(), harness=toy_harness(), render_mode=mode)
        with pytest.raises(UserError, match="call reset"):
            env.render()
        env.reset(seed=0, options={"task": "weight-1"})
        env.step("<answer>GOLD-weight-1</answer>")
        shown = env.render()
        printed = capsys.readouterr().out
        text = shown if mode == "ansi" else printed
        assert isinstance(text, str) and "[user] weight 1?" in text and "score 1" in text
        assert (shown is None, printed == "") == ((False, True) if mode == "ansi" else (True, False))
        assert text.count("score 1") == (2 if mode == "human" else 1)  # by itself at the end, and when asked


def test_an_episode_from_reset_to_verdict(env: HarnessEnv) -> None:
    observation, info = env.reset(seed=5, options={"task": "weight-2"})
    assert [m["content"] for m in observation] == ["Guess.", "weight 2?"] and info["task_id"] == "weight-2"
    observation, reward, terminated, truncated, info = env.step("look around")
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert observation[-1] == {"role": "tool", "content": "look around\nlook 1 \ufffd\nlook around\nlook 1 \ufffd"}
    observation, reward, terminated, truncated, info = env.step("<answer>GOLD-weight-2</answer>")
    assert (reward, terminated, truncated, observation, info["ask"]) == (1.0, True, False, (), None)
    episode = info["record"]
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
    for odd in ([{"f": {1}}], None, 5):
        with pytest.raises(UserError, match="has to be JSON"):
            env.step(Reply("x", tool_calls=odd))  # type: ignore[arg-type]
    for odd in (np.array([1]), [np.int64(1)], ["1"], 1):
        for name in ("prompt_ids", "completion_ids", "logprobs"):
            with pytest.raises(UserError, match=f"a Reply's {name} are a list of Python's numbers, not"):
                env.step(Reply("x", **{name: odd}))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="larger than 600,000 characters"):
        env.step("x" * 600_001)
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
    first = record(info["record"])
    env.reset(seed=seed, options={"task": task})
    for text in ("a", "<answer>b</answer>"):
        *_, info = env.step(text)
    assert record(info["record"]) == first


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"domain": "serach-qa"}, "unknown domain 'serach-qa'.*did you mean 'search-qa'"),
        (
            {"domain": Toy(), "harness": toy_harness(), "split": "train"},
            "unknown split 'train': expected one of harness, test, weight",
        ),
        (
            {"domain": Toy(), "harness": toy_harness(), "max_asks": 0},
            "max_asks is 0: expected a whole number from 1 up",
        ),
        (
            {"domain": Toy(), "harness": toy_harness(), "render_mode": "htlm"},
            "unknown render mode 'htlm': expected one of ansi, html, human; did you mean 'html'",
        ),
        ({"domain": Toy(), "harness": "h9"}, "unknown harness of toy 'h9'"),
        ({"domain": "math", "dataset": Path("nowhere.csv")}, "no file nowhere.csv"),
        ({"domain": "search-qa", "dataset": Path("q.csv")}, "dataset 'q.csv' names no corpus"),
        ({"domain": "math", "dataset": 5}, "dataset is a int: expected a path"),
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
        *(
            (source.replace("RUN", "def run(task, tools):\n    yield 1\n"), "line [0-9]+ defines `run` again")
            for source in (
                "RUNRUN",
                "RUNrun = lambda task, tools: [1]",
                "RUNdel run",
                "RUNif 1:\n  def run(a, b): yield",
                "RUNfor run in []: pass",
                "RUNimport json as run",
                "RUNfrom re import sub as run",
                "RUNclass run: pass",
                "RUNx = [run := max]",
                "RUNdef f():\n    global run\n    run = max",
                "async def run(a, b): yield\nRUN",
                "RUNtry: pass\nexcept ValueError as run: pass",
                "RUNmatch 1:\n    case run: pass",
                "run: int = 1\nRUN",
            )
        ),
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
    assert steps[-1][4]["record"].verdict.reason == f"cut off after {Toy.max_asks} model calls"


def test_a_failure_before_the_first_ask_ends_the_episode_at_the_next_step() -> None:
    env = HarnessEnv(Toy(), harness=toy_harness("raise ValueError('x')\nyield"))
    observation, info = env.reset(seed=0)
    assert (observation, info["ask"]) == ((), None)
    _, reward, terminated, _, info = env.step("ignored")
    assert (reward, terminated, info["record"].calls) == (0.0, True, [])
    assert info["record"].failure == Failure("harness", "ValueError: x")


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


TALKS = """
from whale_envs.harness import system, tool, user

def run(task, tools):
    messages = [system("Look."), user(task.question)]
    while (reply := (yield messages)).text != "stop":
        messages += [reply.message, tool(str(tools.look(reply.text)))]
"""


def test_a_step_costs_the_same_however_long_the_episode_is() -> None:
    """Counted in bytecodes, which no busy machine changes."""
    env = HarnessEnv(Toy(), harness=Harness(TALKS, trusted=True))
    env.max_asks = 200
    env.reset(seed=0)
    counted: list[int] = []

    def count(frame: FrameType, event: str, arg: object) -> Any:
        frame.f_trace_opcodes = True
        counted[-1] += event == "opcode"
        return count

    for _ in range(100):
        counted.append(0)
        tracing = sys.gettrace()  # a debugger's or a coverage tool's
        sys.settrace(count)
        try:
            env.step("look")
        finally:
            sys.settrace(tracing)
    assert len(env.episode.calls if env.episode else []) == 100
    assert counted[5] == counted[50] == counted[99] > 0
