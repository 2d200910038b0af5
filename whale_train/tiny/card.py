"""Measures a bundled model and writes its card: `python -m whale_train.tiny.card --domain search-qa`."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
import tyro

from whale_envs import load_domain, load_harness
from whale_envs.episode import write_atomic
from whale_envs.harness.load import seed_names
from whale_train.evaluate import Evaluation, evaluate
from whale_train.policies.load import load_model
from whale_train.tiny import MODELS

CARD = """---
license: apache-2.0
library_name: transformers
---
# The bundled model for {domain}

A Qwen3 of {parameters:,} parameters with a byte-level BPE vocabulary of {vocabulary:,} tokens, trained from scratch on
demonstrations that `whale_train.tiny` generates from freshly drawn worlds (no outside data). It exists so that the
whole loop runs offline on two cores; it knows nothing but its mini world, and makes mistakes on purpose.

    python -m whale_train.tiny.pretrain --domain {domain}     # how it was made
    python -m whale_train.tiny.card --domain {domain}         # how this card was made

What it does on the test split of the bundled world ({tasks} tasks, {repeats} episodes each, temperature 1, top-k 20),
with 95 % intervals over tasks:

| harness | mean@{repeats} | {facts} |
|---|---|{bars}|
{rows}

torch {torch}, transformers {transformers}, Python {python}, data {data}, weights {weights}.
"""


@dataclass(frozen=True)
class CardConfig:
    """What to measure."""

    domain: str
    """search-qa, math or chess."""
    repeats: int = 8
    """Episodes for each test task."""


def write_card(config: CardConfig) -> Path:
    """Measure the model under every harness that ships for its domain, and write README.md beside its weights."""
    torch.set_num_threads(1)
    domain, policy = load_domain(config.domain), load_model("tiny", config.domain)
    results: dict[str, Evaluation] = {}
    for name in seed_names(config.domain):
        results[name], _ = evaluate(policy, domain, load_harness(name, config.domain), "test", config.repeats)
        print(name, results[name].score, flush=True)
    facts = sorted({fact for result in results.values() for fact in result.behaviours})
    shape = json.loads((MODELS / config.domain / "config.json").read_text())
    card = CARD.format(
        domain=config.domain,
        parameters=sum(p.numel() for p in policy.model.parameters()),
        vocabulary=shape["vocab_size"],
        tasks=len(domain.splits.test),
        repeats=config.repeats,
        facts=" | ".join(facts),
        bars="|".join("---" for _ in facts),
        rows="\n".join(_row(name, result, facts) for name, result in results.items()),
        torch=metadata.version("torch"),
        transformers=metadata.version("transformers"),
        python=platform.python_version(),
        data=domain.splits.test.hash,
        weights=policy.weights_hash,
    )
    path = MODELS / config.domain / "README.md"
    write_atomic(path, card.encode())
    return path


def _row(name: str, result: Evaluation, facts: list[str]) -> str:
    shares = (f"{100 * result.behaviours[f]:.0f} %" if f in result.behaviours else "" for f in facts)
    return f"| {name} | {result.score} | {' | '.join(shares)} |"


if __name__ == "__main__":
    print(write_card(tyro.cli(CardConfig, description=__doc__)))
