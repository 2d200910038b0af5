"""Properties of the transformers policy: exact prompts, exact sampling, errors that stay with their request."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_models import tiny_model, tiny_tokenizer

from whale_envs.episode import Call, Reply
from whale_envs.harness.helpers import Ask, assistant, system, tool, user
from whale_train.policies.base import PolicyError, Request, Sampling
from whale_train.policies.continuous import SlotSampler
from whale_train.policies.sampling import sample, stream, uniforms
from whale_train.policies.slots import Slots
from whale_train.policies.transformers import TransformersPolicy
from whale_train.policies.waves import WaveSampler

KINDS = ("qwen3", "llama", "sliding", "qwen3.5")


def policy_of(kind: str = "qwen3", **settings: object) -> TransformersPolicy:
    model = tiny_model(kind, layers=4 if kind == "qwen3.5" else 2)
    return TransformersPolicy(model, tiny_tokenizer(), **settings)


def ask(text: str, n: int = 1) -> Ask:
    return Ask([system("Answer. Search when you need to."), *[user(f"Question: {text}")] * n])


def requests(n: int, cap: int = 12) -> list[Request]:
    return [Request(ask("abc def " * (i % 5) + str(i // 2)), seed=i, max_tokens=1 + (cap + i) % cap) for i in range(n)]


def sampled(reply: Reply | PolicyError) -> list[int]:
    assert isinstance(reply, Reply), reply
    assert reply.completion_ids
    return reply.completion_ids


def alone(policy: TransformersPolicy, request: Request, prompt: list[int]) -> tuple[list[int], list[float]]:
    """Sampling as written in a textbook: no cache, no batch, float64 softmax over the filtered vocabulary."""
    ids, completion, logprobs = list(prompt), [], []
    for k in range(request.max_tokens):
        with torch.inference_mode():
            logits = policy.model(torch.tensor([ids])).logits[0, -1].float()
        kept, order = logits.topk(policy.sampling.top_k)
        p = (kept / policy.sampling.temperature).softmax(-1).double().numpy()
        u = uniforms(stream([request.seed]), k)[0]
        token = int(order[min(int(np.searchsorted(p.cumsum(), u * p.sum(), side="right")), len(p) - 1)])
        logprobs.append(float(logits.log_softmax(-1)[token]))
        completion.append(token)
        ids.append(token)
        if token in policy.prompts.ends:
            break
    return completion, logprobs


@pytest.mark.parametrize("kind", KINDS)
def test_batched_sampling_is_textbook_sampling(kind: str) -> None:
    policy = policy_of(kind)
    assert isinstance(policy.sampler(), WaveSampler if kind in ("sliding", "qwen3.5") else SlotSampler)
    asked = requests(24)
    for request, reply in zip(asked, policy.generate(asked), strict=True):
        assert isinstance(reply, Reply) and reply.prompt_ids and reply.logprobs
        completion, logprobs = alone(policy, request, reply.prompt_ids)
        assert reply.completion_ids == completion
        np.testing.assert_allclose(reply.logprobs, logprobs, atol=1e-4)
        ended = completion[-1] in policy.prompts.ends
        assert reply.finish_reason == ("stop" if ended else "length")
        assert ended or len(completion) == request.max_tokens


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_turn_is_sampled_as_if_its_whole_prompt_were_new(kind: str) -> None:
    policy = policy_of(kind)
    asked = requests(20)
    first = policy.generate(asked)
    second = [
        Request(Ask([*q.ask.messages, r.view().message, tool("found " * (i % 4))]), i, 8, Call(q.ask.messages, r))
        for i, (q, r) in enumerate(zip(asked, first, strict=True))
        if isinstance(r, Reply)
    ]
    for request, reply in zip(second, policy.generate(second), strict=True):
        assert isinstance(reply, Reply) and reply.prompt_ids and request.previous
        past = [*(request.previous.reply.prompt_ids or []), *sampled(request.previous.reply)]
        assert reply.prompt_ids[: len(past)] == past
        completion, logprobs = alone(policy, request, reply.prompt_ids)
        assert reply.completion_ids == completion
        np.testing.assert_allclose(reply.logprobs or [], logprobs, atol=1e-4)


@pytest.mark.parametrize("max_batch", [1, 3, 256])
def test_a_reply_does_not_depend_on_the_rest_of_the_batch(max_batch: int) -> None:
    asked = requests(17)
    want = [sampled(r) for r in policy_of().generate(asked)]
    policy = policy_of(max_batch=max_batch)
    assert [sampled(r) for r in policy.generate(asked[::-1])][::-1] == want
    assert [sampled(policy.generate([q])[0]) for q in asked] == want


def test_seeds_differ_and_repeat() -> None:
    policy = policy_of()
    same = [Request(ask("same"), seed, 10) for seed in (1, 2, 3, 1)]
    a, b, c, d = (sampled(r) for r in policy.generate(same))
    assert a == d and len({tuple(a), tuple(b), tuple(c)}) == 3


@given(st.lists(st.integers(0, 2**48), min_size=1, max_size=20), st.integers(0, 5000))
def test_random_numbers_are_functions_of_seed_and_step(seeds: list[int], k: int) -> None:
    together = uniforms(stream(seeds), k)
    assert ((together >= 0) & (together < 1)).all()
    assert [uniforms(stream([s]), k)[0] for s in seeds] == together.tolist()


def test_random_numbers_are_uniform_over_near_seeds_and_steps() -> None:
    u = np.array([uniforms(stream(list(range(0, 7919 * 200, 7919))), k) for k in range(50)])
    assert abs(u.mean() - 0.5) < 0.01 and abs(u.var() - 1 / 12) < 0.003
    assert abs(np.corrcoef(u[0], u[1])[0, 1]) < 0.2 and abs(np.corrcoef(u[:, 0], u[:, 1])[0, 1]) < 0.4


@pytest.mark.parametrize(
    "sampling", [Sampling(1, 0, 1), Sampling(0.7, 5, 1), Sampling(1.3, 0, 0.6), Sampling(1, 4, 0.5)]
)
def test_tokens_are_drawn_with_the_filtered_probabilities(sampling: Sampling) -> None:
    logits = torch.tensor([2.0, -1, 0.5, 1.5, 0, 0.4, -3, 1])
    order = logits.argsort(descending=True)
    p = (logits[order[: sampling.top_k or 8]] / sampling.temperature).softmax(-1)
    p[p.cumsum(0) - p >= sampling.top_p] = 0
    want = torch.zeros(8).index_put_((order[: len(p)],), p / p.sum())
    n = 20_000
    tokens, logprobs = sample(logits.expand(n, 8), (np.arange(n) + 0.5) / n, sampling)
    torch.testing.assert_close(tokens.bincount(minlength=8) / n, want, atol=2e-4, rtol=0)
    torch.testing.assert_close(logprobs, logits.log_softmax(-1)[tokens])


def test_temperature_zero_is_greedy() -> None:
    logits = torch.randn(50, 30, generator=torch.Generator().manual_seed(0))
    tokens, _ = sample(logits, np.full(50, 0.99), Sampling(temperature=0))
    assert tokens.tolist() == logits.argmax(-1).tolist()


def test_logits_that_are_not_finite_fail_their_own_request_only() -> None:
    policy = policy_of()
    asked = requests(8)
    want = [sampled(r) for r in policy.generate(asked)]
    # the token of a letter that only one prompt holds: its embedding is tied to the output, so give it own logits
    odd = Request(ask("é"), 0, 5)
    letter = (set(sampled_prompt(policy, odd)) - {t for q in asked for t in sampled_prompt(policy, q)}).pop()
    with torch.no_grad():
        policy.model.lm_head.weight = torch.nn.Parameter(policy.model.lm_head.weight.clone())
        policy.model.model.embed_tokens.weight[letter] = float("nan")
    replies = policy.generate([*asked[:4], odd, *asked[4:]])
    error = replies.pop(4)
    assert isinstance(error, PolicyError) and "not finite" in str(error)
    assert [sampled(r) for r in replies] == want


def sampled_prompt(policy: TransformersPolicy, request: Request) -> list[int]:
    (prompt,) = policy.prompts.ids([(request.ask, request.previous)])
    assert isinstance(prompt, list)
    return prompt


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (Request(ask("x" * 9000), 0, 5), "expected 1 to 511"),
        (Request(ask("x"), 0, 0), "max_tokens is 0"),
        (Request(ask("\ud800"), 0, 5), "surrogate"),
        (Request(Ask([user("x")], tools=[{"type": "function", "function": {"name": "f"}}]), 0, 5), "no tool schemas"),
        (Request(Ask([user("x")], template_kwargs={"tokenize": True}), 0, 5), "refused"),
    ],
)
def test_a_request_that_cannot_be_answered_fails_alone(request_: Request, says: str) -> None:
    bad, good = policy_of().generate([request_, Request(ask("x"), 0, 3)])
    assert isinstance(bad, PolicyError) and says in str(bad) and "\n" not in str(bad)
    assert isinstance(good, Reply)


def test_a_reply_ends_with_the_context() -> None:
    (reply,) = policy_of().generate([Request(ask("xyz " * 100), 0, 10_000)])
    assert isinstance(reply, Reply) and reply.prompt_ids and reply.completion_ids
    assert reply.finish_reason == "stop" or len(reply.prompt_ids) + len(reply.completion_ids) == 512


def test_stop_strings_end_a_reply() -> None:
    policy = policy_of()
    (free,) = policy.generate([Request(ask("stop"), 5, 30)])
    assert isinstance(free, Reply)
    for stop in {free.text[i : i + 2] for i in range(4, len(free.text) - 2, 3)}:
        (reply,) = policy.generate([Request(Ask(ask("stop").messages, stop=(stop, "never")), 5, 30)])
        assert isinstance(reply, Reply) and reply.finish_reason == "stop"
        assert stop in reply.text and stop not in policy.prompts.decode(sampled(reply)[:-1])
        assert sampled(free)[: len(sampled(reply))] == sampled(reply)


def test_weights_are_hashed_and_changed_in_place() -> None:
    policy, other = policy_of(), TransformersPolicy(tiny_model(seed=1), tiny_tokenizer())
    asked = requests(6)
    before, first = policy.generate(asked), policy.weights_hash
    assert policy_of().weights_hash == first != other.weights_hash
    assert policy_of(sampling=Sampling(top_k=3)).weights_hash != first
    policy.load_weights(other.model)
    assert policy.weights_hash == other.weights_hash
    assert (
        [sampled(r) for r in policy.generate(asked)]
        == [sampled(r) for r in other.generate(asked)]
        != [sampled(r) for r in before]
    )
    policy.load_weights(tiny_model().state_dict())
    assert policy.weights_hash == first


def test_keys_and_values_of_old_weights_are_not_used() -> None:
    policy, other = policy_of(), tiny_model(seed=1)
    (first,) = policy.generate([Request(ask("a"), 0, 6)])
    assert isinstance(first, Reply)
    policy.load_weights(other)
    request = Request(Ask([*ask("a").messages, first.view().message, user("b")]), 3, 6, Call(ask("a").messages, first))
    (reply,) = policy.generate([request])
    assert isinstance(reply, Reply) and reply.prompt_ids
    assert reply.completion_ids == alone(policy, request, reply.prompt_ids)[0]


def test_a_model_in_training_goes_on_training() -> None:
    policy = policy_of()
    policy.model.train()
    policy.generate(requests(2))
    assert policy.model.training


def test_no_requests_no_replies() -> None:
    assert policy_of().generate([]) == []


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_requests_may_come_and_go_in_any_order(data: st.DataObject) -> None:
    """Episodes of several turns, handed in whenever, in few slots of little memory: each reply is the one alone."""
    policy = POLICY
    rows, per_token = policy._rows, policy._rows.bytes_per_token
    sampler = SlotSampler(rows, data.draw(st.integers(1, 4)), data.draw(st.sampled_from([1, 150 * per_token, 2**30])))
    todo = requests(data.draw(st.integers(1, 7)), cap=7)
    todo += todo[:2]  # the same again
    live: dict[int, tuple[Request, int]] = {}
    while todo or live:
        now = [todo.pop() for _ in range(data.draw(st.integers(0 if live else 1, 3))) if todo]
        live |= dict(zip(sampler.submit(now), [(request, 0) for request in now], strict=True))
        for ticket, reply in sampler.collect():
            request, turn = live.pop(ticket)
            assert isinstance(reply, Reply)
            key = (str(request.ask.messages), request.seed)
            if key not in ALONE:
                ALONE[key] = alone(policy, request, reply.prompt_ids or [])[0]
            assert reply.completion_ids == ALONE[key]
            if turn < 2 and data.draw(st.booleans()):
                more = Ask([*request.ask.messages, reply.view().message, tool("found " * data.draw(st.integers(0, 2)))])
                follow = Request(more, request.seed, 5, Call(request.ask.messages, reply))
                live[sampler.submit([follow])[0]] = follow, turn + 1
    assert sampler.collect() == []


POLICY = policy_of()
ALONE: dict[tuple[str, int], list[int]] = {}


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_slot_sees_its_own_tokens_only(data: st.DataObject) -> None:
    """What is computed for a slot is what the model computes for its tokens alone, whatever is copied or swapped."""
    model, n = POLICY.model, data.draw(st.integers(2, 5))
    texts = [data.draw(st.lists(st.integers(0, 500), min_size=1, max_size=9)) for _ in range(n)]
    with torch.inference_mode():
        slots = Slots(model, n, 12)
        slots.prefill(data.draw(st.permutations(range(n))), texts, [0] * n)  # overwritten by what comes
        held = dict(zip(order := data.draw(st.permutations(range(n))), texts, strict=True))
        for row, got in zip(texts, slots.prefill(order, texts, [0] * n), strict=True):
            torch.testing.assert_close(got, model(torch.tensor([row])).logits[0, -1], atol=1e-4, rtol=1e-3)
        for step in range(4):
            a, b = data.draw(st.permutations(range(n)))[:2]
            if data.draw(st.booleans()):
                slots.copy([a], [b])
                held[b] = list(held[a])
            else:
                slots.swap([a], [b])
                held[a], held[b] = held[b], held[a]
            slots.resize(n, 12 + step)
            held = {slot: [*held[slot], 7 * step + slot] for slot in range(n)}
            logits = slots.step(torch.tensor([held[slot][-1] for slot in range(n)]))
            slots.lengths += 1
            for slot, got in enumerate(logits):
                torch.testing.assert_close(got, model(torch.tensor([held[slot]])).logits[0, -1], atol=1e-4, rtol=1e-3)


def test_assistant_messages_of_the_harness_are_history() -> None:
    prompt = policy_of().prompts.render(Ask([user("x"), assistant("Sure.")]))
    assert prompt.endswith("Sure.<|im_end|>\n<|im_start|>assistant\n")
