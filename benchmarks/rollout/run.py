"""Sampling speed of TransformersPolicy beside `model.generate`, on the prompts that real episodes ask.

Plays a domain's tasks once, and keeps the requests of all turns; then times both on them, turn by turn: the policy,
in which requests join as others end, and `generate` in lock-step, each batch padded to one length until its last row
has ended. The time of the rollout itself, with environment and harness, stands beside. CPU seconds are those of this
process.

    OMP_NUM_THREADS=1 python benchmarks/rollout/run.py --policy tiny --domain search-qa --tasks 64 --repeats 4
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import tyro

from whale_envs import load_domain, load_harness
from whale_envs.episode import Reply
from whale_train.policies import PolicyError, Request
from whale_train.policies.base import Ended, Sampler
from whale_train.policies.load import load_model
from whale_train.policies.transformers import TransformersPolicy
from whale_train.rollout import CONCURRENT, rollout

Calls = list[tuple[Request, Reply | PolicyError]]


class Watched(Sampler):
    """A sampler that keeps what it was asked and what came of it."""

    def __init__(self, sampler: Sampler, calls: Calls) -> None:
        self._sampler, self._calls, self._asked = sampler, calls, dict[int, Request]()

    def submit(self, requests: Sequence[Request]) -> list[int]:
        """See `Sampler.submit`."""
        tickets = self._sampler.submit(requests)
        self._asked |= zip(tickets, requests, strict=True)
        return tickets

    def collect(self) -> list[Ended]:
        """See `Sampler.collect`."""
        ended = self._sampler.collect()
        self._calls += [(self._asked.pop(ticket), reply) for ticket, reply in ended]
        return ended


def main(policy: str = "tiny", domain: str = "search-qa", tasks: int = 64, repeats: int = 4, seed: int = 0) -> None:
    """Run the benchmark and write results.json beside this file."""
    loaded, opened = load_domain(domain), load_model(policy, domain)
    calls: Calls = []
    open_sampler = opened.sampler
    opened.sampler = lambda: Watched(open_sampler(), calls)  # type: ignore[method-assign]
    harness = load_harness("h0", domain)
    episodes, whole = timed(
        lambda: rollout(opened, loaded, harness, loaded.splits["harness"][:tasks], "harness", seed, repeats)
    )
    opened.sampler = open_sampler  # type: ignore[method-assign]
    turns: dict[int, Calls] = {}
    for call in calls:
        turns.setdefault(sum(m["role"] == "assistant" for m in call[0].ask.messages), []).append(call)
    replies = [r for _, r in calls if isinstance(r, Reply)]
    sampled = sum(len(r.completion_ids or ()) for r in replies)
    _, ours = timed(lambda: [opened.generate([request for request, _ in turn]) for turn in turns.values()])
    batches = [turn[at : at + CONCURRENT] for turn in turns.values() for at in range(0, len(turn), CONCURRENT)]
    theirs_sampled, theirs = timed(lambda: sum(hf_generate(opened, batch) for batch in batches))
    results = {
        "command": " ".join(["python", "benchmarks/rollout/run.py", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, device {opened.model.device}",
        "versions": {p: version(p) for p in ("torch", "transformers")},
        "episodes": len(episodes),
        "calls": len(replies),
        "prompt_tokens_per_call": sum(len(r.prompt_ids or ()) for r in replies) / len(replies),
        "sampled_tokens_per_call": sampled / len(replies),
        "rollout": whole,
        "policy": {**ours, "sampled_tokens_per_cpu_second": sampled / ours["cpu_seconds"]},
        "model.generate": {**theirs, "sampled_tokens_per_cpu_second": theirs_sampled / theirs["cpu_seconds"]},
    }
    Path(__file__).with_name("results.json").write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


def timed(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """The result of `work` and what it took."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = work()
    return result, {"cpu_seconds": time.process_time() - cpu, "seconds": time.perf_counter() - wall}


def hf_generate(policy: TransformersPolicy, calls: Calls) -> int:
    """Sample the same prompts with `model.generate`; returns how many tokens came before the rows' ends."""
    prompts = [reply.prompt_ids or [] for _, reply in calls if isinstance(reply, Reply)]
    batch = policy.tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt").to(
        policy.model.device
    )
    width = batch["input_ids"].shape[1]
    ids = policy.model.generate(
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"],
        do_sample=True,
        temperature=policy.sampling.temperature,
        top_k=policy.sampling.top_k,
        max_new_tokens=max(r.max_tokens for r, _ in calls),
        pad_token_id=policy.tokenizer.pad_token_id,
        eos_token_id=sorted(policy.prompts.ends),
    )
    return int((ids[:, width:] != policy.tokenizer.pad_token_id).sum())


if __name__ == "__main__":
    tyro.cli(main)
