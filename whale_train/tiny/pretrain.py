"""Trains a bundled model from scratch: `python -m whale_train.tiny.pretrain --domain search-qa --out DIR`.

The data are demonstrations that a scripted expert makes in freshly generated worlds, clean for the first part and
with mistakes after it, so that the result solves some tasks and fails others: what RSFT and harness search start
from. A checkpoint every `CHUNK` steps; the same command goes on from the last one, to the same weights.
"""

from __future__ import annotations

import importlib
import itertools
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from whale_envs.errors import UserError, unknown
from whale_envs.harness.helpers import Message
from whale_train.tiny import MODELS
from whale_train.tiny.model import build_model, build_tokenizer, encode


@dataclass(frozen=True)
class Recipe:
    """What differs between domains: the module of the demonstrations, optimiser steps, and the size of the
    byte-level BPE vocabulary before whole-word tokens are added."""

    demos: str
    steps: int
    vocab: int


RECIPES = {
    "search-qa": Recipe("whale_train.tiny.demos_search", 2200, 1280),
    "math": Recipe("whale_train.tiny.demos_math", 1000, 1280),
    "chess": Recipe("whale_train.tiny.demos_chess", 1000, 512),
}
#: Tokens in a step, padding included.
BATCH_TOKENS = 4096
#: Peak learning rate of AdamW: warm-up over 50 steps, flat to 35 %, cosine to zero.
PEAK_LR = 2e-3
#: Share of the steps after which demonstrations have mistakes.
NOISY_FROM = 0.7
#: Steps between checkpoints; each chunk has demonstrations of its own seed.
CHUNK = 100
#: Weight of the loss on what the model reads. Names come back there again and again, so that copying is learned
#: from every passage; on the assistant's words alone the loss stays on a plateau for long.
READ = 0.3


@dataclass(frozen=True)
class PretrainConfig:
    """How a bundled model is trained."""

    domain: str
    """search-qa, math or chess."""
    out: Path | None = None
    """Where the model goes (default: its place in the package)."""
    seed: int = 0
    """Seed of the weights and of the demonstrations."""


def learning_rate(step: int, steps: int) -> float:
    """The learning rate at one of `steps` steps."""
    if step < 50:
        return PEAK_LR * (step + 1) / 50
    share = step / steps
    return PEAK_LR if share < 0.35 else PEAK_LR * 0.5 * (1 + math.cos(math.pi * (share - 0.35) / 0.65))


def batches(
    demos: Iterator[list[Message]], tokenizer: PreTrainedTokenizerFast, tokens: int, draw: random.Random
) -> Iterator[dict[str, torch.Tensor]]:
    """Batches of about `tokens` tokens, rows of like length together, in random order.

    `ids` and `weights` are (rows, longest). A token's weight is 1 where the assistant speaks, `READ` where it
    reads, 0 on the padding at the right, which causal attention keeps out of sight.
    """
    while True:
        rows = sorted((encode(tokenizer, m) for m in itertools.islice(demos, 512)), key=lambda row: len(row[0]))
        groups: list[list[tuple[list[int], list[bool]]]] = [[]]
        for row in rows:
            if (len(groups[-1]) + 1) * len(row[0]) > tokens and groups[-1]:
                groups.append([])
            groups[-1].append(row)
        draw.shuffle(groups)
        for group in groups:
            longest = max(len(ids) for ids, _ in group)
            ids = torch.zeros(len(group), longest, dtype=torch.long)
            weights = torch.zeros(len(group), longest)
            for i, (row, learned) in enumerate(group):
                ids[i, : len(row)] = torch.tensor(row)
                weights[i, : len(row)] = torch.tensor([1.0 if said else READ for said in learned])
            yield {"ids": ids, "weights": weights}


def pretrain(config: PretrainConfig, say: Callable[[str], None] = print) -> Path:
    """Train, or go on training, and save the model; returns its folder.

    Raises `UserError` for an unknown domain or a checkpoint of another configuration.
    """
    if config.domain not in RECIPES:
        raise unknown("domain", config.domain, RECIPES)
    recipe = RECIPES[config.domain]
    module = importlib.import_module(recipe.demos)
    out = config.out or MODELS / config.domain
    checkpoint = out / "pretrain.pt"
    sample = itertools.islice(module.demos(config.seed, False), 4000)
    texts = (f"{m['role']}\n{m['content']}" for conversation in sample for m in conversation)
    tokenizer = build_tokenizer(texts, module.TOKENS, recipe.vocab)
    model = build_model(len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id, config.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=0.05)
    say(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens")
    identity = f"{config} {recipe}"
    done = _resume(checkpoint, identity, model, optimizer)
    began = time.perf_counter()
    for first in range(done, recipe.steps, CHUNK):
        noise = first >= NOISY_FROM * recipe.steps
        stream = module.demos(config.seed * 10_000 + 1 + first // CHUNK, noise)
        feed = batches(stream, tokenizer, BATCH_TOKENS, random.Random(f"{config.seed}/{first}"))
        losses = [
            _step(model, optimizer, next(feed), learning_rate(s, recipe.steps))
            for s in range(first, min(first + CHUNK, recipe.steps))
        ]
        out.mkdir(parents=True, exist_ok=True)
        state = {
            "config": identity,
            "step": first + CHUNK,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
        }
        torch.save(state, checkpoint.with_suffix(".tmp"))
        checkpoint.with_suffix(".tmp").replace(checkpoint)
        left = (time.perf_counter() - began) / (first + CHUNK - done) * (recipe.steps - first - CHUNK)
        say(
            f"step {first + CHUNK}/{recipe.steps} · loss {sum(losses) / len(losses):.4f}{' · noisy' if noise else ''}"
            f" · {left / 60:.0f} min left"
        )
    model.to(torch.float16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    checkpoint.unlink(missing_ok=True)
    return out


def _step(
    model: Qwen3ForCausalLM, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor], lr: float
) -> float:
    """One optimiser step; returns the mean loss on what the assistant says."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    targets, weights = batch["ids"][:, 1:], batch["weights"][:, 1:]
    logits = model(input_ids=batch["ids"]).logits[:, :-1]
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(
        weights
    )
    ((losses * weights).sum() / weights.sum()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    said = weights == 1
    return losses[said].mean().item()


def _resume(checkpoint: Path, identity: str, model: Any, optimizer: Any) -> int:
    """Load a checkpoint if there is one; returns the steps done."""
    if not checkpoint.exists():
        return 0
    state = torch.load(checkpoint, weights_only=True)
    if state["config"] != identity:
        raise UserError(f"{checkpoint} belongs to {state['config']}: give another --out or delete it")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


if __name__ == "__main__":
    pretrain(tyro.cli(PretrainConfig, description=__doc__))
