"""What `run.py` measures: four ways to sample the same calls, and rollouts of a given size."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from transformers import GenerationConfig

from whale_envs import Harness, load_domain, load_harness
from whale_envs.episode import Reply
from whale_train.policies import Request
from whale_train.policies.base import Ended, Sampler
from whale_train.policies.load import load_model
from whale_train.policies.transformers import TransformersPolicy
from whale_train.rollout import CONCURRENT, rollout

SYSTEMS = ("rollout", "bare", "lock-step", "trl")
Call = tuple[Request, Reply]
#: The calls of one episode, in order.
Chain = list[Call]
#: (sampled tokens of the result, what is timed)
Work = tuple[Callable[[Any], int], Callable[[], Any]]
SEED = 0
#: A chat template without a token that ends a turn.
ENDLESS = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
TURNS = """
from whale_envs.harness import Ask, user

def run(task, tools):
    messages = [user(task.question)]
    for _ in range({turns}):
        reply = yield Ask(messages, max_tokens={tokens})
        messages += [reply.message, user("Go on.")]
"""


class Watched(Sampler):
    """A sampler that keeps what it was asked and what came of it, episode by episode."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler, self._asked = sampler, dict[int, Request]()
        self.chains: dict[int, Chain] = {}
        self._episode: dict[int, int] = {}  # id of the last call of an episode: its number

    def submit(self, requests: Sequence[Request]) -> list[int]:
        """See `Sampler.submit`."""
        tickets = self._sampler.submit(requests)
        self._asked |= zip(tickets, requests, strict=True)
        return tickets

    def collect(self) -> list[Ended]:
        """See `Sampler.collect`."""
        ended = self._sampler.collect()
        for ticket, reply in ended:
            request = self._asked.pop(ticket)
            assert isinstance(reply, Reply)
            before = id(request.previous.reply) if request.previous else None
            number = self._episode.pop(before) if before in self._episode else len(self.chains)
            self._episode[id(reply)] = number
            self.chains.setdefault(number, []).append((request, reply))
        return ended


def play(system: str, spec: str, domain: str, tasks: int, repeats: int, chains: list[Chain] | None) -> Work:
    """The work of one system. Without `chains`, a rollout that returns them."""
    policy = load_model(spec, domain, max_batch=CONCURRENT)
    if system == "rollout":
        return _rollout(policy, domain, tasks, repeats, record=chains is None)
    assert chains is not None
    if system == "bare":
        return sampled, lambda: bare(policy, chains)
    batches = list(_batches(chains))
    generate = in_lock_step(policy) if system == "lock-step" else by_trl(policy, chains)
    return sum, lambda: [generate(batch) for batch in batches]


def _rollout(policy: TransformersPolicy, name: str, tasks: int, repeats: int, record: bool) -> Work:
    domain, harness = load_domain(name), load_harness("h0", name)
    dealt = domain.splits["harness"][:tasks]
    rollout(policy, domain, harness, domain.splits["weight"][:2], "weight", SEED)  # tools start with their first use

    def work() -> Any:
        if not record:
            return rollout(policy, domain, harness, dealt, "harness", SEED, repeats)
        watched = Watched(policy.sampler())
        policy.sampler = lambda: watched  # type: ignore[method-assign]
        rollout(policy, domain, harness, dealt, "harness", SEED, repeats)
        return list(watched.chains.values())

    def tokens(episodes: Any) -> int:
        return sum(len(call.reply.completion_ids or ()) for e in episodes for call in e.calls)

    return tokens, work


def bare(policy: TransformersPolicy, chains: list[Chain]) -> list[Reply]:
    """Sample each episode's recorded calls, the next as soon as the last has ended, 64 episodes at a time."""
    sampler, waiting = policy.sampler(), iter(chains)
    live: dict[int, Iterator[Call]] = {}
    replies: list[Reply] = []
    following: list[Iterator[Call]] = []
    while True:
        while len(live) + len(following) < CONCURRENT and (chain := next(waiting, None)):
            following.append(iter(chain))
        calls = [(calls, next(calls, None)) for calls in following]
        ready = [(chain, call[0]) for chain, call in calls if call]
        live |= zip(sampler.submit([request for _, request in ready]), (chain for chain, _ in ready), strict=True)
        if not live:
            sampler.close()
            return replies
        following = []
        for ticket, reply in sampler.collect():
            assert isinstance(reply, Reply)
            replies.append(reply)
            following.append(live.pop(ticket))


def sampled(replies: list[Reply]) -> int:
    """How many tokens replies have."""
    return sum(len(reply.completion_ids or ()) for reply in replies)


def _batches(chains: list[Chain]) -> Iterator[Chain]:
    """The calls turn by turn, 64 at a time."""
    for turn in range(max(map(len, chains))):
        calls = [chain[turn] for chain in chains if len(chain) > turn]
        for at in range(0, len(calls), CONCURRENT):
            yield calls[at : at + CONCURRENT]


def in_lock_step(policy: TransformersPolicy) -> Callable[[Chain], int]:
    """`model.generate` on a padded batch; gives the number of tokens up to each row's end."""
    pad, ends = policy.tokenizer.pad_token_id, sorted(policy.prompts.ends)

    def generate(calls: Chain) -> int:
        prompts = [reply.prompt_ids or [] for _, reply in calls]
        batch = policy.tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
        ids = policy.model.generate(
            **batch.to(policy.model.device),
            do_sample=True,
            temperature=policy.sampling.temperature,
            top_k=policy.sampling.top_k,
            max_new_tokens=max(request.max_tokens for request, _ in calls),
            pad_token_id=pad,
            eos_token_id=ends,
        )
        return _until_end(ids[:, batch["input_ids"].shape[1] :], ends)

    return generate


def by_trl(policy: TransformersPolicy, chains: list[Chain]) -> Callable[[Chain], int]:
    """TRL's way from the prompts of a GRPO step to its completions."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    ends = sorted(policy.prompts.ends)
    policy.model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=policy.tokenizer.pad_token_id)
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], num_generations=2,
        per_device_train_batch_size=2, max_completion_length=max(r.max_tokens for c in chains for r, _ in c),
        temperature=policy.sampling.temperature, top_k=policy.sampling.top_k or 0,
    )  # fmt: skip
    data = Dataset.from_dict({"prompt": ["a"] * 4})
    trainer = GRPOTrainer(policy.model, lambda completions, **_: [0.0] * len(completions), args, data,
                          processing_class=policy.tokenizer)  # fmt: skip

    def generate(calls: Chain) -> int:
        ids = trainer._generate_single_turn([reply.prompt_ids or [] for _, reply in calls], None, {}, 1)[0]
        return sum(map(len, ids))

    return generate


def _until_end(ids: torch.Tensor, ends: list[int]) -> int:
    """Tokens of each row [rows, new] up to and with its end."""
    is_end = torch.isin(ids, torch.tensor(ends, device=ids.device))
    first = torch.where(is_end.any(1), is_end.int().argmax(1) + 1, ids.shape[1])
    return int(first.sum())


def steady(episodes: int, turns: int, tokens: int) -> Work:
    """A rollout of the bundled model in which every reply has the same number of tokens."""
    domain = load_domain("search-qa")
    made = load_model("tiny", "search-qa")
    made.tokenizer.chat_template, made.tokenizer.eos_token = ENDLESS, made.tokenizer.pad_token  # which it never says
    made.model.generation_config = GenerationConfig(eos_token_id=made.tokenizer.eos_token_id)
    made.model.config.max_position_embeddings = 1 << 16
    policy = TransformersPolicy(made.model, made.tokenizer, made.sampling, max_batch=CONCURRENT)
    harness = Harness(TURNS.format(turns=turns, tokens=tokens), "steady", trusted=True)
    domain.max_tokens, domain.max_asks = tokens, turns + 1
    dealt = domain.splits["weight"][:episodes]

    def check(played: Any) -> int:
        lengths = [len(call.reply.completion_ids or ()) for e in played for call in e.calls]
        assert lengths == [tokens] * (episodes * turns), "a reply has ended before it should"
        return sum(lengths)

    return check, lambda: rollout(policy, domain, harness, dealt, "weight", SEED)
