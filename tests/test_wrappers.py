"""Prompts as text and as token ids: what the policies make, in spaces that hold, whatever is said."""

from __future__ import annotations

import copy
import functools
import itertools
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_models import tiny_tokenizer
from toy_domain import Toy, toy_harness

from whale_envs import DOMAINS, HarnessEnv, Reply, UserError
from whale_envs.contract import record
from whale_envs.episode import Episode
from whale_envs.wrappers import PromptText, TokenPrompt

IDS = [place.id for place in DOMAINS.values()]
END = tiny_tokenizer().eos_token_id


def encode(text: str) -> list[int]:
    ids: list[int] = tiny_tokenizer()(text, add_special_tokens=False)["input_ids"]
    return ids


def toy(source: str | None = None) -> HarnessEnv:
    return HarnessEnv(Toy(), harness=toy_harness(source) if source else toy_harness())


@pytest.mark.parametrize("wrapper", [PromptText, TokenPrompt])
@pytest.mark.parametrize("id", IDS)
def test_gymnasium_finds_nothing_to_say_of_the_wrapped_env(
    wrapper: Any, id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*is different from the unwrapped version")  # it is wrapped
        env = wrapper(gymnasium.make(id), tiny_tokenizer())
        check_env(env)
        env.close()


def test_the_text_is_what_the_chat_template_gives() -> None:
    env, tokenizer = PromptText(toy(), tiny_tokenizer()), tiny_tokenizer()
    text, info = env.reset(seed=0)
    for reply in ("look", Reply("further")):
        messages = info["ask"].messages
        assert text == tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        text, *_, info = env.step(reply)
    text, _, terminated, _, info = env.step("<answer>x</answer>")
    assert (text, terminated, info["record"].answer) == ("", True, "x")


def test_ids_keep_what_was_shown_and_sampled_and_the_record_holds_them() -> None:
    env = TokenPrompt(toy(), tiny_tokenizer())
    prompt, info = env.reset(seed=0)
    shown, said = [prompt.tolist()], []
    for text in ("loo", "k again", "<answer>x</answer>"):
        ids = [i for letter in text for i in encode(letter)]  # other ids than encoding the text gives
        assert ids != encode(text)
        said.append([*ids, END])
        prompt, _, _, _, info = env.step(np.array(said[-1]))
        assert info["ask"] is None or prompt[: len(shown[-1] + said[-1])].tolist() == shown[-1] + said[-1]
        shown.append(prompt.tolist())
    episode: Episode = info["record"]
    assert shown[-1] == [] and episode.answer == "x"
    assert [c.reply.prompt_ids for c in episode.calls] == shown[:-1]
    assert [c.reply.completion_ids for c in episode.calls] == said
    assert [c.reply.text for c in episode.calls] == ["loo", "k again", "<answer>x</answer>"]
    texts = [c.reply.text for c in episode.calls]
    assert record(play(toy(), texts)) == record(without_ids(episode))


def play(env: HarnessEnv, texts: list[str]) -> Episode:
    env.reset(seed=0)
    for text in texts:
        *_, info = env.step(text)
    episode: Episode = info["record"]
    return episode


def without_ids(episode: Episode) -> Episode:
    bare = copy.copy(episode)
    bare.calls = [type(c)(c.messages, Reply(c.reply.text), c.max_tokens) for c in episode.calls]
    return bare


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=())), min_size=1, max_size=3), st.sampled_from(IDS))
def test_any_text_keeps_prompts_in_their_spaces(texts: list[str], id: str) -> None:
    for wrapper in (PromptText, TokenPrompt):
        env: Any = wrapper(gymnasium.make(id, harness="strong"), tiny_tokenizer())
        observation, _ = env.reset(seed=0)
        for text in itertools.chain(texts, itertools.repeat("")):
            assert observation in env.observation_space
            action: Any = (
                text if wrapper is PromptText else np.array([*encode(text.encode(errors="replace").decode()), END])
            )
            assert action in env.action_space
            observation, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                break
        assert observation in env.observation_space
        env.close()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, len(tiny_tokenizer()) - 1), max_size=12))
def test_any_ids_are_a_reply(ids: list[int]) -> None:
    env = TokenPrompt(toy(), tiny_tokenizer())
    env.reset(seed=0)
    prompt, _, done, *_ = env.step(ids)
    assert done or prompt in env.observation_space
    reply = env.unwrapped.episode.calls[0].reply  # type: ignore[attr-defined]
    assert reply.completion_ids == ids and reply.finish_reason == "stop"


def test_a_reply_that_fills_the_cap_without_an_end_was_cut_off() -> None:
    env = TokenPrompt(toy("while True:\n    yield Ask([user('a')], max_tokens=3)"), tiny_tokenizer())
    _, info = env.reset(seed=0)
    assert info["max_tokens"] == 3
    letter = encode("a")
    for ids in (letter * 2, [*letter * 2, END], letter * 3):
        env.step(np.array(ids))
    finished = [c.reply.finish_reason for c in env.unwrapped.episode.calls]  # type: ignore[attr-defined]
    assert finished == ["stop", "stop", "length"]


@pytest.mark.parametrize("action", ["text", [0.5], [[1]], [-1], [10**6], None, np.zeros((1, 1), int), [None]])
def test_what_are_no_token_ids_is_refused(action: Any) -> None:
    env = TokenPrompt(toy(), tiny_tokenizer())
    env.reset(seed=0)
    with pytest.raises(UserError, match=r"an action is an array of token ids of TokenIds\(\d+\), not"):
        env.step(action)
    env.step([])


def test_a_harness_that_never_asks_gives_an_empty_prompt() -> None:
    for wrapper, empty, action in ((PromptText, "", ""), (TokenPrompt, [], [])):
        env: Any = wrapper(toy("return 'x'\nyield"), tiny_tokenizer())
        observation, _ = env.reset(seed=0)
        assert list(observation) == list(empty)
        assert env.step(action)[2]


def test_what_cannot_be_used_is_refused_in_one_line() -> None:
    bare = copy.deepcopy(tiny_tokenizer())
    bare.chat_template = None
    with pytest.raises(UserError, match="no chat template"):
        PromptText(toy(), bare)
    for named in ("Qwen/Qwen3-0.6B", None):
        with pytest.raises(UserError, match="is no tokenizer: expected one of transformers"):
            TokenPrompt(toy(), named)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="TokenPrompt wraps a HarnessEnv, not CartPoleEnv"):
        TokenPrompt(gymnasium.make("CartPole-v1"), tiny_tokenizer())
    env = PromptText(toy("yield Ask([user('a')], tools=[{'name': 'f'}])"), tiny_tokenizer())
    with pytest.raises(UserError, match=r"shows no tool schemas.*give another tokenizer or harness") as caught:
        env.reset(seed=0)
    assert "\n" not in str(caught.value)


def test_a_time_limit_inside_or_outside_and_vector_envs_take_it() -> None:
    inside = TokenPrompt(gymnasium.wrappers.TimeLimit(toy(), 1), tiny_tokenizer())
    outside = gymnasium.wrappers.TimeLimit(TokenPrompt(toy(), tiny_tokenizer()), 1)
    for env in (inside, outside):
        env.reset(seed=0)
        assert env.step(np.array(encode("x")))[3]
    wrappers = [functools.partial(TokenPrompt, tokenizer=tiny_tokenizer())]
    envs = gymnasium.make_vec("whale/Math", 2, "sync", wrappers=wrappers)
    ids, _ = envs.reset(seed=0)
    assert ids in envs.observation_space and ids[0].tolist() != ids[1].tolist()
    assert envs.step((np.array([5]), np.array([6, END])))[2].all()
    envs.close()
