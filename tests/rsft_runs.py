"""Trainers on the toy domain, and sources of fixed rows, for tests of RSFT."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tiny_agent
import torch
from torch import nn

from whale_envs import Episode, Reply, Verdict
from whale_envs.episode import Call
from whale_train import RSFTConfig, RSFTTrainer
from whale_train.rsft.rows import IGNORE, Row
from whale_train.rsft.update import Update


def config(folder: Path, **changes: Any) -> RSFTConfig:
    """Small settings for the toy domain on a CPU, silent."""
    small: dict[str, Any] = {
        "max_steps": 2,
        "prompts_per_step": 8,
        "num_generations": 4,
        "minibatch_size": 4,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-3,
        "seed": 3,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "activation_checkpointing": False,
        "disable_tqdm": True,
    }
    return RSFTConfig(output_dir=str(folder), **{**small, **changes})


def trainer(folder: Path, tasks: int = 20, **changes: Any) -> RSFTTrainer:
    """A trainer of a fresh random model; keywords that `RSFTTrainer` takes go there, others to its settings."""
    names = ("model", "env", "harness", "processing_class", "callbacks", "peft_config", "policy")
    given = {name: changes.pop(name) for name in names if name in changes}
    defaults = {
        "model": tiny_agent.model(),
        "env": tiny_agent.Echo(tasks),
        "harness": tiny_agent.TWO_TURNS,
        "processing_class": tiny_agent.tokenizer(),
    }
    return RSFTTrainer(args=config(folder, **changes), **{**defaults, **given})


def curve(trained: RSFTTrainer) -> list[dict[str, float]]:
    """What was logged of each step, but for times."""
    times = ("seconds", "tokens_per_second")
    logs = [entry for entry in trained.state.log_history if "reward" in entry]
    return [{name: value for name, value in entry.items() if not name.startswith(times)} for entry in logs]


def make_rows(count: int, seed: int) -> list[Row]:
    """Rows of uneven length, in which a few stretches carry labels."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        ids = [draw.randrange(2, 15) for _ in range(draw.randint(4, 30))]
        labels = [token if at > 1 and (at // 3) % 2 else IGNORE for at, token in enumerate(ids)]
        labels[-1] = ids[-1]
        made.append(Row(ids, labels))
    return made


def episode_of(row: Row, number: int) -> Episode:
    """An accepted episode whose only row is this one: a call for each stretch of labels."""
    calls, start = [], None
    for at, label in enumerate([*row.labels, IGNORE]):
        if label != IGNORE and start is None:
            start = at
        elif label == IGNORE and start is not None:
            reply = Reply("", "stop", [], row.input_ids[:start], row.input_ids[start:at], [0.0] * (at - start))
            calls.append(Call([], reply))
            start = None
    return Episode(f"t{number}", "d", "h", number, calls=calls, verdict=Verdict(1.0, ""))


class OnRows(RSFTTrainer):
    """An `RSFTTrainer` that is given the rows of each step, and keeps the updates that it made."""

    def __init__(self, steps: Sequence[Sequence[Row]], folder: Path, **changes: Any) -> None:
        self.steps, self.updates = steps, list[Update]()
        model = changes.pop("model", None) or tiny_agent.model()
        defaults: dict[str, Any] = {
            "max_steps": len(steps), "minibatch_size": 64, "kl_sequences": 0, "save_strategy": "no",
        }  # fmt: skip
        peft_config = changes.pop("peft_config", None)
        super().__init__(
            model,
            tiny_agent.Echo(64),
            tiny_agent.ONE_TURN,
            config(folder, **{**defaults, **changes}),
            tiny_agent.tokenizer(),
            peft_config=peft_config,
        )

    def sample(self, step: int) -> list[Episode]:
        """The episodes that the step's rows are from."""
        return [episode_of(row, number) for number, row in enumerate(self.steps[step])]

    def fit(self, model: nn.Module, rows: Sequence[Row], seed: int) -> list[Update]:
        """See `RSFTTrainer`."""
        self.updates += (made := super().fit(model, rows, seed))
        return made


def apart(one: nn.Module, other: nn.Module) -> float:
    """The largest difference between two models' weights."""
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


def norm(model: nn.Module) -> float:
    """How far from 0 a model's weights are."""
    return float(torch.cat([p.flatten() for p in model.parameters()]).norm())
