"""Sampling speed of TransformersPolicy beside `model.generate`, on the prompts that real episodes ask.

Plays a domain's tasks once to collect the requests of all turns, then times both on them: the policy call by call
as rollouts make them (a later turn goes on from the earlier one's keys and values), `generate` on each call's prompts
padded to one length, until its last row has ended. CPU seconds are those of this process.

    OMP_NUM_THREADS=1 python benchmarks/rollout/run.py --policy tiny --domain search-qa --tasks 64 --repeats 4
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import tyro

from whale_envs import load_domain, load_harness
from whale_envs.episode import Reply
from whale_train.policies import PolicyError, Request
from whale_train.policies.load import load_policy
from whale_train.policies.transformers import TransformersPolicy
from whale_train.rollout import rollout


def main(policy: str = "tiny", domain: str = "search-qa", tasks: int = 64, repeats: int = 4, seed: int = 0) -> None:
    """Run the benchmark and write results.json beside this file."""
    sampler, loaded = load_policy(policy, domain), load_domain(domain)
    turns: list[tuple[list[Request], list[Reply | PolicyError]]] = []
    generate = sampler.generate

    def watched(requests: list[Request]) -> list[Reply | PolicyError]:
        turns.append((list(requests), generate(requests)))
        return turns[-1][1]

    sampler.generate = watched  # type: ignore[method-assign]
    harness = load_harness("h0", domain)
    episodes, whole = timed(
        lambda: rollout(sampler, loaded, harness, loaded.splits["harness"][:tasks], "harness", seed, repeats)
    )
    replies = [r for _, out in turns for r in out if isinstance(r, Reply)]
    sampled = sum(len(r.completion_ids or ()) for r in replies)
    _, ours = timed(lambda: [generate(requests) for requests, _ in turns])
    theirs_sampled, theirs = timed(lambda: sum(hf_generate(sampler, requests, out) for requests, out in turns))
    results = {
        "command": " ".join(["python", "benchmarks/rollout/run.py", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, device {sampler.model.device}",
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


def hf_generate(sampler: TransformersPolicy, requests: list[Request], out: list[Reply | PolicyError]) -> int:
    """Sample the same prompts with `model.generate`; returns how many tokens came before the rows' ends."""
    prompts = [reply.prompt_ids or [] for reply in out if isinstance(reply, Reply)]
    batch = sampler.tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt").to(
        sampler.model.device
    )
    width = batch["input_ids"].shape[1]
    ids = sampler.model.generate(
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"],
        do_sample=True,
        temperature=sampler.sampling.temperature,
        top_k=sampler.sampling.top_k,
        max_new_tokens=max(r.max_tokens for r in requests),
        pad_token_id=sampler.tokenizer.pad_token_id,
        eos_token_id=sorted(sampler.prompts.ends),
    )
    return int((ids[:, width:] != sampler.tokenizer.pad_token_id).sum())


if __name__ == "__main__":
    tyro.cli(main)
