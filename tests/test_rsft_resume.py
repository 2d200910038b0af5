"""A checkpoint from which training cannot go on as it was says so in a line, and is not gone on from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_agent
import torch
from peft import LoraConfig
from rsft_runs import OnRows, apart, curve, make_rows, trainer
from trl import SFTTrainer

from whale_envs import UserError

# peft 0.21 asks transformers by a name that this has given up
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

STEPS = [make_rows(8, seed=at) for at in range(2)]
LORA, WIDER = (LoraConfig(r=r, target_modules=["q_proj"], task_type="CAUSAL_LM") for r in (2, 4))


def go_on(folder: Path, **changes: Any) -> None:
    """Train for another step, or for the first one."""
    there = (folder / "checkpoint-1").exists()
    made = OnRows(STEPS[: 1 + there], folder, minibatch_size=8, save_strategy="steps", **changes)
    made.train(resume_from_checkpoint=True)


def of_16_bits() -> dict[str, Any]:
    return {"model": tiny_agent.model().to(torch.bfloat16), "bf16": False}


@pytest.mark.parametrize("name", ["optimizer.pt", "model.safetensors", "rng_state.pth", "trainer_state.json"])
def test_a_file_that_is_damaged(name: str, tmp_path: Path) -> None:
    go_on(tmp_path)
    damaged = tmp_path / "checkpoint-1" / name
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.raises(
        UserError, match=r"checkpoint-1(: .*\. It is damaged, or of another model| is no checkpoint)"
    ) as e:
        go_on(tmp_path)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (dict, of_16_bits, "its optimiser trained weights of 32 bits, and these have 16"),
        (of_16_bits, dict, "its optimiser trained weights of 16 bits, and these have 32"),
        (lambda: {"peft_config": LORA}, dict, "Can't find"),
        (dict, lambda: {"peft_config": LORA}, "parameter group"),
        (lambda: {"peft_config": LORA}, lambda: {"peft_config": WIDER}, "size mismatch"),
    ],
)
def test_weights_of_another_kind(before: Any, after: Any, said: str, tmp_path: Path) -> None:
    go_on(tmp_path, **before())
    with pytest.raises(UserError, match=rf"cannot go on from .*checkpoint-1: .*{said}"):
        go_on(tmp_path, **after())


def test_weights_alone(tmp_path: Path) -> None:
    """The Trainer begins with a fresh optimiser then, and says nothing."""
    go_on(tmp_path, save_only_model=True)
    with pytest.raises(UserError, match="checkpoint-1 has no state of the optimiser"):
        go_on(tmp_path)


class _BrokenOff(Exception):
    """As Ctrl-C is, somewhere within an update."""


@pytest.mark.parametrize("at", [2, 4])
def test_a_trainer_that_was_broken_off_within_an_update_goes_on_itself(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"minibatch_size": 8, "save_strategy": "steps", "per_device_train_batch_size": 3}
    whole = OnRows(STEPS, tmp_path / "whole", **settings)
    whole.train()
    made, honest, passes = OnRows(STEPS, tmp_path / "w", **settings), SFTTrainer.training_step, 0

    def breaks_off(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        nonlocal passes
        loss, passes = honest(self, *args, **kwargs), passes + 1
        if passes == at:
            raise _BrokenOff
        return loss

    with monkeypatch.context() as patch, pytest.raises(_BrokenOff):
        patch.setattr(SFTTrainer, "training_step", breaks_off)
        made.train()
    if at < 4:  # before the first checkpoint
        with pytest.raises(UserError, match="the weights in memory are those of no step: make the trainer again"):
            made.train(resume_from_checkpoint=True)
        made = OnRows(STEPS, tmp_path / "w", **settings)
    made.train(resume_from_checkpoint=True)
    assert (curve(made), apart(made.model, whole.model)) == (curve(whole), 0)


def test_a_run_that_has_ended_still_has_its_curve(tmp_path: Path) -> None:
    first = trainer(tmp_path, max_steps=1)
    first.train()
    again = trainer(tmp_path, max_steps=1)
    again.train(resume_from_checkpoint=True)
    assert (curve(again), again.state.global_step) == (curve(first), 1)
