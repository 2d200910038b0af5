"""The vLLM policy samples what the transformers policy does, from the weights that it was last given.

Runs in an environment of its own: `make test-vllm`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from whale_envs import UserError, load_domain, load_harness, read_episodes
from whale_envs.episode import Call, Reply
from whale_envs.harness.helpers import Ask, tool, user
from whale_train.policies.base import PolicyError, Request, Sampling
from whale_train.policies.load import load_model, load_policy, open_model
from whale_train.policies.transformers import TransformersPolicy
from whale_train.policies.vllm import VLLMPolicy
from whale_train.rollout import rollout
from whale_train.rsft.handover import PROBES, Handover, score
from whale_train.tiny import MODELS

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),  # of which a loaded machine takes most to import vLLM
    pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning"),  # vLLM's, of messages
]

MATH = str(MODELS / "math")
GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def engine() -> Iterator[VLLMPolicy]:
    """An engine with the bundled model's weights, greedy; who changes them gives them back."""
    policy = VLLMPolicy(MATH, GREEDY, "vllm", max_batch=16)
    yield policy
    policy.close()


@pytest.fixture(scope="module")
def plain() -> TransformersPolicy:
    return load_model(f"hf:{MATH}", "math", GREEDY, device="cpu")


def asks(count: int) -> list[Ask]:
    tasks = load_domain("math").splits.weight[:count]
    return [Ask([user(f"{task.shown['question']}\nPut the answer in \\boxed{{}}.")]) for task in tasks]


def requests(count: int, cap: int = 40) -> list[Request]:
    return [Request(ask, seed, 1 + 7 * seed % cap) for seed, ask in enumerate(asks(count))]


def tokens(replies: list[Reply | PolicyError]) -> list[list[int] | None]:
    assert all(isinstance(reply, Reply) for reply in replies), replies
    return [reply.completion_ids for reply in replies if isinstance(reply, Reply)]


def same(ours: list[Reply | PolicyError], theirs: list[Reply | PolicyError]) -> None:
    """The same replies, but for the last bits of log-probabilities."""
    for a, b in zip(ours, theirs, strict=True):
        assert isinstance(a, Reply) and isinstance(b, Reply)
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-3)
        assert (a.text, a.finish_reason, a.prompt_ids, a.completion_ids, a.tool_calls) == (
            *(b.text, b.finish_reason, b.prompt_ids, b.completion_ids, b.tool_calls),
        )


def test_greedy_replies_are_those_of_the_transformers_policy(engine: VLLMPolicy, plain: TransformersPolicy) -> None:
    asked = requests(40)
    replies = plain.generate(asked)
    same(engine.generate(asked), replies)
    assert {reply.finish_reason for reply in replies if isinstance(reply, Reply)} == {"stop", "length"}


def test_later_turns_append_tokens(engine: VLLMPolicy, plain: TransformersPolicy) -> None:
    first = requests(12, cap=9)
    replies = engine.generate(first)
    second = []
    for request, reply in zip(first, replies, strict=True):
        assert isinstance(reply, Reply)
        more = Ask([*request.ask.messages, reply.view().message, tool("Output: 7")])
        second.append(Request(more, 5, 12, Call(request.ask.messages, reply)))
    later = engine.generate(second)
    same(later, plain.generate(second))
    for before, after in zip(replies, later, strict=True):
        assert isinstance(before, Reply) and isinstance(after, Reply) and after.prompt_ids
        past = [*(before.prompt_ids or []), *(before.completion_ids or [])]
        assert after.prompt_ids[: len(past)] == past


def test_stop_strings_end_a_reply(engine: VLLMPolicy, plain: TransformersPolicy) -> None:
    (free,) = engine.generate([Request(asks(1)[0], 0, 30)])
    assert isinstance(free, Reply) and len(free.text) > 8
    stops = [free.text[3:5], free.text[4:8]]
    asked = [Request(Ask(asks(1)[0].messages, stop=(stop, "never")), 0, 30) for stop in stops]
    replies = engine.generate(asked)
    same(replies, plain.generate(asked))
    assert all(isinstance(r, Reply) and r.finish_reason == "stop" for r in replies)


def test_a_reply_is_decided_by_its_seed_whatever_else_is_sampled(
    engine: VLLMPolicy, plain: TransformersPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "sampling", Sampling(temperature=2.0))
    ask = asks(1)[0]
    asked = [Request(ask, seed, 12) for seed in (1, 2, 3, 1, 2**40, 2**40 + 2**32)]
    together = tokens(engine.generate([*asked, *requests(9)]))[:6]
    assert together[0] == together[3]
    assert len({tuple(ids or []) for ids in together}) == 5
    assert [tokens(engine.generate([request]))[0] for request in asked] == together
    # top-k 20 at temperature 2: of each token, as many as its probability says
    many = engine.generate([Request(ask, seed, 1) for seed in range(400)])
    first = [reply.completion_ids[0] for reply in many if isinstance(reply, Reply) and reply.completion_ids]
    prompt = many[0].prompt_ids if isinstance(many[0], Reply) else None
    with torch.no_grad():
        top = plain.model(torch.tensor([prompt])).logits[0, -1].topk(20)
    assert set(first) <= set(top.indices.tolist())
    likely, p = int(top.indices[0]), float((top.values / 2).softmax(-1)[0])
    assert first.count(likely) / 400 == pytest.approx(p, abs=0.1)


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (Request(Ask([user("x " * 9000)]), 0, 5), "expected 1 to 2047"),
        (Request(Ask([user("x")]), 0, 0), "max_tokens is 0"),
        (Request(Ask([user("\ud800")]), 0, 5), "surrogate"),
        (Request(Ask([user("x")], stop=("",)), 0, 5), "vLLM refused the request"),
    ],
)
def test_a_request_that_cannot_be_answered_fails_alone(engine: VLLMPolicy, request_: Request, says: str) -> None:
    bad, good = engine.generate([request_, requests(1)[0]])
    assert isinstance(bad, PolicyError) and says in str(bad) and "\n" not in str(bad)
    assert isinstance(good, Reply)


def test_a_reply_ends_with_the_context(engine: VLLMPolicy) -> None:
    long = Ask([user("3 + 4 = 7. " * 180)])
    (prompt,) = engine.prompts.ids([(long, None)])
    assert isinstance(prompt, list) and 1000 < len(prompt) < 2048
    (reply,) = engine.generate([Request(long, 0, 10_000)])
    assert isinstance(reply, Reply) and reply.completion_ids
    assert reply.finish_reason == "stop" or len(prompt) + len(reply.completion_ids) == 2048


def test_samplers_do_not_get_each_others_replies_and_drop_theirs(engine: VLLMPolicy) -> None:
    one, two = engine.sampler(), engine.sampler()
    asked = requests(6, cap=30)
    first, second = one.submit(asked[:3]), two.submit(asked[3:])
    assert two.collect()
    one.close()
    got = []
    while len(got) < 2:
        got += two.collect()
    assert first == second == [0, 1, 2] and two.collect() == []
    assert engine._live == {}
    assert not engine._engine.has_unfinished_requests()


def test_weights_that_are_handed_over_are_sampled_from(engine: VLLMPolicy, plain: TransformersPolicy) -> None:
    asked = requests(20)
    before, start, rows = engine.generate(asked), engine.weights_hash, [engine.tokenizer.encode(PROBES[1])[:40]]
    model, tokenizer = open_model(MATH, "cpu")
    handover = Handover(engine, tokenizer)
    handover.to_engine(model)
    same(engine.generate(asked), before)
    assert engine.weights_hash == start
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    handover.make_room()
    handover.to_engine(model)
    changed = engine.generate(asked)
    assert tokens(changed) != tokens(before)
    same(changed, TransformersPolicy(model, tokenizer, GREEDY).generate(asked))
    assert engine.logprobs(rows)[0] == pytest.approx(score(model, rows)[0], abs=1e-3)
    assert engine.weights_hash != start
    engine.load_weights(plain.model.state_dict())
    assert engine.weights_hash == start
    same(engine.generate(asked), before)


def test_a_stale_engine_is_an_error(engine: VLLMPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = open_model(MATH, "cpu")
    handover = Handover(engine, tokenizer)
    handover.to_engine(model)
    # as vLLM's own `model.load_weights` does on a CPU, where layers keep packed copies
    monkeypatch.setattr(VLLMPolicy, "load_weights", lambda self, weights: None)
    for size, says in ((1e-6, "still samples from the weights before"), (0.02, "samples from other weights")):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * size)
        with pytest.raises(UserError, match=says):
            handover.to_engine(model)


def test_keys_and_values_of_old_weights_are_not_used(engine: VLLMPolicy, plain: TransformersPolicy) -> None:
    long = Ask([user("3 + 4 = 7. " * 60)])  # of more than one block
    engine.generate([Request(long, 0, 8)])
    model, tokenizer = open_model(MATH, "cpu")
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(0.5)
    engine.load_weights(model.state_dict())
    asked = [Request(long, 0, 8)]
    same(engine.generate(asked), TransformersPolicy(model, tokenizer, GREEDY).generate(asked))
    engine.load_weights(plain.model.state_dict())


def test_the_next_engine_ends_the_one_before(engine: VLLMPolicy) -> None:
    policy = VLLMPolicy(str(MODELS / "chess"), GREEDY)
    try:
        with pytest.raises(UserError, match="policy vllm was ended: a process has one vLLM engine"):
            engine.generate(requests(1))
        assert tokens(policy.generate(requests(2)))
    finally:
        policy.close()


def test_an_engine_that_stops_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = VLLMPolicy(MATH, GREEDY)
    try:
        runner = policy._engine.model_executor.driver_worker.model_runner

        def dies(*args: Any, **kwargs: Any) -> None:
            raise RuntimeError("CUDA error: an illegal\nmemory access was encountered")

        monkeypatch.setattr(runner, "execute_model", dies)
        domain = load_domain("math")
        with pytest.raises(
            UserError, match=r"the vLLM engine of vllm stopped.*illegal memory.*run the same again"
        ) as info:
            rollout(policy, domain, load_harness("h0", "math"), domain.splits.weight[:2], "weight", 0)
        assert "\n" not in str(info.value)
    finally:
        policy.close()


def test_what_vllm_cannot_open_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = open_model(MATH, "cpu")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["NoSuchModel"], "model_type": "x"}))
    with pytest.raises(UserError, match="vLLM cannot open") as info:
        load_policy(f"vllm:{tmp_path}", "math")
    assert "\n" not in str(info.value)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="vLLM samples in one process"):
        VLLMPolicy(MATH)


def whale(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [str(Path(sys.executable).with_name("whale")), *arguments, "--out", str(folder)],
        env=env, capture_output=True, text=True, timeout=800,
    )  # fmt: skip


def test_whale_eval_samples_with_vllm(tmp_path: Path) -> None:
    done = whale(
        tmp_path / "run", "eval", "--domain", "math", "--policy", f"vllm:{MATH}", "--limit", "8", "--repeats", "2"
    )
    assert done.returncode == 0, done.stderr
    assert "mean@2" in done.stdout
    episodes = list(read_episodes(tmp_path / "run" / "test" / "episodes.jsonl"))
    assert len(episodes) == 16 and not any(e.failure for e in episodes)
    for call in (call for e in episodes for call in e.calls):
        assert call.reply.logprobs and len(call.reply.logprobs) == len(call.reply.completion_ids or [])
    assert "Traceback" not in done.stderr


def test_whale_train_hands_its_weights_to_vllm(tmp_path: Path) -> None:
    small = ["--steps", "2", "--prompts", "8", "--group", "4", "--lr", "1e-3", "--repeats", "1", "--limit", "4"]
    done = whale(tmp_path / "run", "train", "--domain", "math", "--policy", f"vllm:{MATH}", *small)
    assert done.returncode == 0, done.stderr
    (arm,) = (tmp_path / "run" / "arms").iterdir()
    played = [list(read_episodes(path)) for path in sorted(arm.glob("weights/*/episodes/*.jsonl"))]
    assert [len(episodes) for episodes in played] == [32, 32]
    hashes = [{e.weights for e in episodes} for episodes in played]
    assert hashes[0] != hashes[1] and all(len(found) == 1 for found in hashes)
    state = json.loads((arm / "state.json").read_text())
    assert state[0]["weights"] in hashes[0]  # the engine's copy of the start is the folder's, to the bit
    tested = [
        json.loads(p.read_text())["key"]["weights"] for p in (tmp_path / "run" / "test").glob("*/evaluation.json")
    ]
    assert sorted(tested) == sorted(s["weights"] for s in state)  # and that of the end is the checkpoint's
