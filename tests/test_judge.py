"""The judge: asked once for what needs asking, its cost counted, its failures bounded and said in one line."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from judge_server import KEY, JudgeServer, Status

import whale_envs
from whale_envs import EpisodeError, UserError
from whale_envs.verifiers import Judge, load_judge
from whale_envs.verifiers import judge as judging
from whale_envs.verifiers import judge_services as services

GOLDS = ["Abraham Lincoln"]
Say = Callable[[dict[str, Any]], str | Status]


def lenient(asked: dict[str, Any]) -> str:
    return "Yes." if "Lincoln" in asked["answer to grade"] else "No."


@pytest.fixture(params=["anthropic", "openai"])
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[Say], JudgeServer]]:
    """Starts a server and points both SDKs, without proxies and waits, and the cache at where a test wants them."""
    started: list[JudgeServer] = []
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(services, "PATIENCE", replace(services.PATIENCE, backoff=0.0))
    monkeypatch.setenv("WHALE_CACHE", str(tmp_path))

    def start(say: Say = lenient) -> JudgeServer:
        server = JudgeServer(say)
        started.append(server)
        server.__enter__()
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        return server

    yield start
    for server in started:
        server.__exit__()


def make(provider: str) -> Judge:
    return Judge(provider, "m", price=(1.0, 5.0))


def test_a_judge_is_asked_at_temperature_0_and_its_tokens_are_paid(serve, provider):
    server = serve()
    judge = make(provider)
    right = judge.verdict("Who was the 16th president?", "President Lincoln", GOLDS)
    wrong = judge.verdict("Who was the 16th president?", "Grant", GOLDS)
    assert (right.score, wrong.score) == (1.0, 0.0)
    assert right.dollars == pytest.approx((200 * 1 + 4 * 5) / 1e6)
    assert judge.dollars == pytest.approx(2 * right.dollars)
    assert [r["temperature"] for r in server.requests] == [0, 0]
    assert all(KEY in key for key in server.keys)
    judge.close()


def test_what_was_asked_once_is_never_asked_again_by_this_judge_or_the_next(serve, provider):
    server = serve()
    for _ in range(2):
        judge = make(provider)
        for _ in range(2):
            assert judge.verdict("Who?", "Mr Lincoln", GOLDS).score == 1.0
    assert len(server.requests) == 1
    assert judge.dollars == judge.verdict("Who?", "Mr Lincoln", GOLDS).dollars == 0.0
    other = Judge(provider, "another", price=(1.0, 5.0))
    for args in (("Who else?", "Mr Lincoln", GOLDS), ("Who?", "Mr Lincoln", ["Lincoln, Abe"])):
        judge.verdict(*args)
    other.verdict("Who?", "Mr Lincoln", GOLDS)
    assert len(server.requests) == 4  # another question, other golds, another model


def test_what_needs_no_judge_is_not_asked(serve):
    server = serve()
    judge = make("openai")
    assert judge.verdict("Who?", "the abraham LINCOLN!", GOLDS).score == 1.0
    for answer in (None, "", "  ", "*", "the", "Lincoln " * 50):
        assert judge.verdict("Who?", answer, GOLDS).score == 0.0
        assert judge.verdict("Who?", answer, ["*", "the", ""]).score == 0.0
    assert server.requests == []


def test_threads_that_ask_the_same_pay_once_and_others_do_not_wait_for_each_other(serve):
    server = serve(lambda asked: time.sleep(0.2) or lenient(asked))
    judge = make("openai")
    answers = [f"Lincoln {n % 8}" for n in range(64)]
    threads = [threading.Thread(target=judge.verdict, args=("Who?", answer, GOLDS)) for answer in answers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.requests) == 8
    assert server.most_open > 1
    assert judge.dollars == pytest.approx(8 * 220 / 1e6)


@pytest.mark.parametrize(
    "said, right",
    [("yes", True), ("No", False), ("**Yes**", True), ("YES.", True), ("no, it names another", False),
     ("<think>yes? no.</think>\n\nYes", True), ("The answer is: no", False)],
)  # fmt: skip
def test_a_verdict_is_read_from_the_first_or_the_last_word(serve, said, right):
    serve(lambda _: said)
    assert make("openai").verdict("Who?", "Lincoln", GOLDS).score == right


@pytest.mark.parametrize("said", ["", "maybe", "yesterday", "<think>it is yes", "1"])
def test_a_judge_that_gives_no_verdict_fails_its_episode_which_has_cost_something_and_is_not_kept(serve, said):
    server = serve(lambda _: said)
    judge = make("openai")
    for _ in range(2):
        with pytest.raises(EpisodeError, match="neither yes nor no") as error:
            judge.verdict("Who?", "Lincoln", GOLDS)
    assert error.value.owner == "verifier"
    assert error.value.dollars > 0
    assert len(server.requests) == 2


@pytest.mark.parametrize("code", [429, 500, 503, 529])
def test_what_asking_again_can_mend_is_asked_again(serve, provider, code):
    broken = [Status(code), Status(code, headers={"retry-after": "0"}), Status(code, body=b"<html>")]
    serve(lambda asked: broken.pop() if broken else lenient(asked))
    assert make(provider).verdict("Who?", "Lincoln", GOLDS).score == 1.0


def test_a_judge_that_is_down_fails_episodes_and_then_stops_the_run_in_one_line(serve, provider):
    server = serve(lambda _: Status(503, f"overloaded\n{KEY}"))
    judge = make(provider)
    for _ in range(judging.FAILURES - 1):
        with pytest.raises(EpisodeError, match=r"HTTP 503 .*asked 5 times") as failure:
            judge.verdict("Who?", "Lincoln", GOLDS)
        assert KEY not in str(failure.value)
    with pytest.raises(UserError, match="8 times in a row") as error:
        judge.verdict("Who?", "Lincoln", GOLDS)
    assert "\n" not in str(error.value) and KEY not in str(error.value)
    assert len(server.requests) == judging.FAILURES * (services.PATIENCE.retries + 1)


def test_a_success_in_between_starts_the_count_of_failures_anew(serve):
    serve(lambda asked: Status(400) if asked["question"] == "bad" else "yes")
    judge = make("openai")
    for number in range(3 * judging.FAILURES):
        with pytest.raises(EpisodeError):
            judge.verdict("bad", "Lincoln", GOLDS)
        if number % 4 == 0:
            judge.verdict("good", f"Lincoln {number}", GOLDS)


@pytest.mark.parametrize("code, said", [(401, "set a valid one"), (403, "set another"), (404, "BASE_URL")])
def test_what_the_user_must_mend_is_said_at_once_in_one_line(serve, provider, code, said):
    server = serve(lambda _: Status(code, f"no\nsuch {KEY}"))
    with pytest.raises(UserError, match=said) as error:
        make(provider).verdict("Who?", "Lincoln", GOLDS)
    assert "\n" not in str(error.value) and KEY not in str(error.value)
    assert len(server.requests) == 1


def test_a_request_that_is_refused_is_not_sent_again(serve, provider):
    server = serve(lambda _: Status(400, "`temperature` is deprecated for this model"))
    with pytest.raises(EpisodeError, match="temperature"):
        make(provider).verdict("Who?", "Lincoln", GOLDS)
    assert len(server.requests) == 1


def test_a_server_that_is_not_there_is_a_failure_in_one_line(serve, provider):
    serve().__exit__()
    with pytest.raises(EpisodeError, match="asked 5 times"):
        make(provider).verdict("Who?", "Lincoln", GOLDS)


@pytest.mark.parametrize("body", [b"{}", b"[]", b"nonsense", b'{"choices": []}', b"null"])
def test_a_body_of_another_kind_fails_the_episode(serve, body):
    serve(lambda _: Status(200, body=body))
    with pytest.raises(EpisodeError):
        make("openai").verdict("Who?", "Lincoln", GOLDS)


@given(st.text(max_size=40))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_answer_reaches_the_judge_as_data(serve, answer):
    asked: list[dict[str, Any]] = []
    server = serve(lambda question: asked.append(question) or "no")
    verdict = make("openai").verdict("Who?", answer, GOLDS)
    if asked:
        assert asked[0]["answer to grade"] == answer.encode(errors="replace").decode()
        assert server.requests[0]["messages"][0]["content"] == judging.PROMPT
    assert verdict.score == 0.0 or whale_envs.verifiers.exact_match(answer, GOLDS).score == 1.0


def test_a_torn_cache_file_says_what_to_do(serve, tmp_path):
    serve()
    make("openai").verdict("Who?", "Lincoln", GOLDS)
    (kept,) = tmp_path.glob("judge/*/*.json")
    assert json.loads(kept.read_bytes())["answer"] == "Lincoln"
    kept.write_text("{")
    with pytest.raises(UserError, match="remove the file"):
        make("openai").verdict("Who?", "Lincoln", GOLDS)


def test_the_reward_function_judges_a_batch_at_once_and_a_failure_scores_0(serve):
    def say(asked: dict[str, Any]) -> str | Status:
        time.sleep(0.1)
        assert asked["question"] in ("Who?", "Who else?")
        return Status(400) if asked["answer to grade"] == "Grant" else lenient(asked)

    server = serve(say)
    judge = make("openai")
    answers = ["Lincoln", "Grant", "Abraham Lincoln", None, "Obama", "Lincoln"]
    completions = [f"I think <answer>{a}</answer>" if a else "I do not know" for a in answers]
    golds = [GOLDS] * len(answers)
    assert judge.reward_func(["Who?"] * 6, completions, answers=golds) == [1, 0, 1, 0, 0, 1]
    assert len(server.requests) == 3 and server.most_open > 1
    chats = [[{"role": "user", "content": "Who else?"}]] * 6
    assert judge.reward_func(chats, completions, answers=golds, trainer_state=None) == [1, 0, 1, 0, 0, 1]
    assert judge.reward_func(chats, completions, answers=golds, question=["Who?"] * 6) == [1, 0, 1, 0, 0, 1]
    with pytest.raises(UserError, match="5 golds for 6 completions"):
        judge.reward_func(["Who?"] * 6, completions, answers=golds[1:])
    assert len(server.requests) == 3 + 3 + 1  # the failure is asked for again, the rest are kept


# as the verifier of an environment


def test_an_environment_takes_a_judge_by_name_and_its_episode_says_what_it_cost(serve):
    server = serve(lambda asked: "yes" if asked["answer to grade"] == "something like it" else "no")
    env = gymnasium.make("whale/SearchQA", verifier="judge:openai:m@1/5", split="test")
    scores = []
    for reply in ("something like it", "something else", "something like it"):
        _, info = env.reset(seed=3)
        question = info["ask"].messages[-1]["content"]
        while True:
            _, reward, ended, cut, info = env.step(f"<answer>{reply}</answer>")
            if ended or cut:
                break
        scores.append((reward, info["verdict"].dollars))
        asked = json.loads(server.requests[-1]["messages"][-1]["content"])
        assert asked["question"] in question
    assert scores == [(1.0, pytest.approx(220 / 1e6)), (0.0, pytest.approx(220 / 1e6)), (1.0, 0.0)]
    env.close()


def test_a_judge_that_fails_is_an_episodes_failure_with_an_owner_and_a_cost(serve):
    serve(lambda _: "perhaps")
    env = whale_envs.HarnessEnv("search-qa", verifier="judge:openai:m2@1/5")
    env.reset(seed=1)
    while not env.done:
        _, reward, *_ = env.step("<answer>something</answer>")
    assert reward == 0.0
    assert env.episode.failure.owner == "verifier"
    assert env.episode.verdict.dollars > 0
    env.close()


@pytest.mark.parametrize(
    "spec, said",
    [
        ("judge:openai:gpt-none", "price of judge 'gpt-none' is not known"),
        ("judge:anthropic", "expected judge:PROVIDER:MODEL"),
        ("judge:", "expected judge:PROVIDER:MODEL"),
        ("judge:openai:m@", "expected judge:PROVIDER:MODEL"),
        ("judge:openai:m@1", "expected judge:PROVIDER:MODEL"),
        ("judge:openai:m@1/.", "expected judge:PROVIDER:MODEL"),
        ("judge:opnai:m@1/2", "did you mean 'openai'"),
        ("judg", "expected one of"),
    ],
)
def test_a_judge_that_cannot_be_had_is_one_clear_line(serve, spec, said):
    serve()
    with pytest.raises(UserError, match=said) as error:
        whale_envs.load_domain("search-qa", None, spec)
    assert "\n" not in str(error.value)


def test_a_key_is_needed_but_for_a_server_of_ones_own(serve, monkeypatch):
    serve()
    for value in ("", "café"):
        monkeypatch.setenv("ANTHROPIC_API_KEY", value)
        with pytest.raises(UserError, match="ANTHROPIC_API_KEY"):
            load_judge("judge:anthropic:claude-haiku-4-5")
    monkeypatch.delenv("OPENAI_API_KEY")
    assert load_judge("judge:openai:Qwen/Qwen3-8B@0/0").verdict("Who?", "Lincoln", GOLDS).dollars == 0.0
    monkeypatch.delenv("OPENAI_BASE_URL")
    with pytest.raises(UserError, match="OPENAI_API_KEY is not set"):
        load_judge("judge:openai:m@1/2")


def test_the_judge_leaves_the_global_random_state_alone(serve):
    serve(lambda _: Status(503))
    random.seed(7)
    before = random.getstate()
    with pytest.raises(EpisodeError):
        make("openai").verdict("Who?", "Lincoln", GOLDS)
    assert random.getstate() == before
