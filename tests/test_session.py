"""Trusted and jailed, a harness gives the same episode byte for byte, whatever it does."""

from __future__ import annotations

from collections.abc import Iterator
from html import unescape
from itertools import chain
from pathlib import Path

import msgspec
import pytest
from harness_zoo import ASK, BODIES, FILES, in_one_file
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_domain import Toy, toy_harness

from whale_envs import Episode, HarnessEnv, Reply
from whale_envs.contract import REPLIES, play, record, replies
from whale_envs.episode import read_episodes, write_episodes
from whale_envs.render import page
from whale_train.meta_harness.proposers.archive_views import tool_lines


def envs(source: str) -> list[HarnessEnv]:
    return [HarnessEnv(Toy(), harness=toy_harness(source, trusted)) for trusted in (True, False)]


@pytest.fixture(scope="module")
def zoo() -> Iterator[list[HarnessEnv]]:
    pair = envs(in_one_file(BODIES))
    yield pair
    for env in pair:
        env.close()


def check_alike(pair: list[HarnessEnv], prefix: list[str]) -> Episode:
    trusted, jailed = (play(env, 7, chain(prefix, replies(7))) for env in pair)
    assert record(trusted) == record(jailed)
    assert trusted.failure is None or trusted.failure.owner in ("harness", "tool")
    assert trusted.failure is None or len(trusted.failure.message) <= 501
    return trusted


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # "yields when closed" goes on doing so
@pytest.mark.parametrize("name", BODIES)
def test_jailed_is_trusted_byte_for_byte(zoo: list[HarnessEnv], name: str) -> None:
    episode = check_alike(zoo, [str(list(BODIES).index(name))])
    assert "IndentationError" not in str(episode.failure)


@settings(max_examples=60, deadline=None)
@given(st.data())
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_jailed_is_trusted_whatever_the_model_says(zoo: list[HarnessEnv], data: st.DataObject) -> None:
    body = data.draw(st.integers(0, len(BODIES) - 1), "body")
    said = data.draw(st.lists(st.sampled_from(REPLIES) | st.text(max_size=50), min_size=6, max_size=6), "replies")
    seed = data.draw(st.integers(0, 2**48), "seed")
    trusted, jailed = (play(env, seed, iter([str(body), *said])) for env in zoo)
    assert record(trusted) == record(jailed)


@pytest.mark.parametrize("name", FILES)
def test_jailed_is_trusted_for_a_whole_file(name: str) -> None:
    pair = envs(FILES[name])
    check_alike(pair, [])
    for env in pair:
        env.close()


@pytest.fixture(scope="module")
def echo() -> Iterator[list[HarnessEnv]]:
    source = (
        ASK + "again = yield [user(r.text), r.message]\nreturn [r.text, again.text, tools.double(r.text), len(r.text)]"
    )
    pair = envs(source)
    yield pair
    for env in pair:
        env.close()


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_categories=())), st.integers(0, 2**48))
def test_any_reply_text_goes_through_both_alike(echo: list[HarnessEnv], text: str, seed: int) -> None:
    one, other = (play(env, seed, iter([text, text])) for env in echo)
    assert record(one) == record(other)
    assert one.failure is None


def test_a_bug_of_ours_comes_out_of_both_whatever_the_harness_makes_of_it() -> None:
    for source in ("tools.bug()\n" + ASK, "try:\n    tools.bug()\nexcept Exception: pass\n" + ASK):
        for trusted in (True, False):
            env = HarnessEnv(Toy(), harness=toy_harness(source, trusted))
            with pytest.raises(RuntimeError, match="a bug of ours"):
                env.reset(seed=0)
            env.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # "yields when closed" goes on doing so
@pytest.mark.parametrize("name", BODIES)
def test_an_episode_survives_the_disk(zoo: list[HarnessEnv], name: str, tmp_path: Path) -> None:
    episode = play(zoo[0], 1, chain([str(list(BODIES).index(name))], replies(1)))
    write_episodes(tmp_path / "e.jsonl", [episode])
    (read,) = read_episodes(tmp_path / "e.jsonl")
    assert record(read) == record(episode)
    assert (read.score, read.failure, read.truncated) == (episode.score, episode.failure, episode.truncated)


def test_tool_calls_and_model_calls_are_given_to_a_reply_with_tool_calls() -> None:
    source = ASK + "yield [user('a'), r.message]\nreturn [list(r.tool_calls), r.finish_reason]"
    reply = Reply("x", "length", [{"name": "f", "arguments": {"a": "\ud800", "b": (1,)}}])
    records = []
    for trusted in (True, False):
        env = HarnessEnv(Toy(), harness=toy_harness(source, trusted))
        episode = play(env, 1, iter([reply, "b"]))
        env.close()
        records.append(record(episode))
        assert episode.answer == [[{"name": "f", "arguments": {"a": "\ufffd", "b": [1]}}], "length"]
    assert records[0] == records[1]


EVERY_CALL = """
def tried(call, *args, **kwargs):
    try:
        return call(*args, **kwargs)
    except ValueError:
        return None

tried(tools.look, "a")
tried(tools.look, 5)
tried(tools.look, "a", colour="red")
tried(tools.nothing, ["x"])
yield Ask([user("well?")], stop=("\\n", "end"))
tools.down()
"""


@pytest.mark.parametrize("trusted", [True, False])
def test_every_tool_call_is_recorded_whatever_came_of_it(trusted: bool, tmp_path: Path) -> None:
    env = HarnessEnv(Toy(), harness=toy_harness(EVERY_CALL, trusted))
    episode = play(env, 1, iter(["x"]))
    env.close()
    assert [(c.name, c.after, bool(c.error), c.result is None) for c in episode.tool_calls] == [
        ("look", 0, False, False),
        ("look", 0, True, True),
        ("look", 0, True, True),
        ("nothing", 0, True, True),
        ("down", 1, True, True),
    ]
    assert episode.failure is not None and episode.failure.message == episode.tool_calls[-1].error
    assert episode.calls[0].stop == ("\n", "end")
    write_episodes(tmp_path / "e.jsonl", [episode])
    (read,) = read_episodes(tmp_path / "e.jsonl")
    assert [c.error for c in read.tool_calls] == [c.error for c in episode.tool_calls] and read.calls == episode.calls
    for shown in (read.transcript(), unescape(page(read)), "\n".join(tool_lines(read))):
        said = [
            "look takes a word",
            "got an unexpected keyword argument 'colour'",
            "no tool 'nothing'",
            "the tool is down",
        ]
        assert all(line in shown for line in said), shown


def test_what_was_recorded_of_a_call_does_not_change_the_json_of_one_that_went_well() -> None:
    episode = play(HarnessEnv(Toy(), harness=toy_harness()), 1, chain(["look"], replies(1)))
    (call, *_) = episode.tool_calls
    assert set(msgspec.to_builtins(call)) == {"name", "args", "kwargs", "result", "seconds", "after"}
