"""Weights in 16 bits learn at the paper's learning rate, and what is learnt survives a checkpoint to the last bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_agent
import torch
from rsft_runs import OnRows, make_rows
from torch import nn

from whale_train.policies.transformers import hash_weights
from whale_train.rsft.masters import MasterAdamW

STEPS = [make_rows(16, seed=at) for at in range(4)]


def model() -> nn.Module:
    return tiny_agent.model().to(torch.bfloat16)


def trained(folder: Path, steps: int, made: nn.Module, resume: bool = False, **changes: object) -> OnRows:
    trainer = OnRows(
        STEPS[:steps],
        folder,
        model=made,
        learning_rate=1e-5,
        bf16=False,
        minibatch_size=8,
        save_strategy="steps",
        **changes,
    )
    trainer.train(resume_from_checkpoint=resume or None)
    return trainer


def pulled(optimiser: type[torch.optim.Optimizer], dtype: torch.dtype, lr: float, steps: int = 1000) -> torch.Tensor:
    """Weights after so many steps, each with a gradient that says up."""
    weights = nn.Parameter(torch.linspace(-0.1, 0.1, 1001).to(dtype))
    made = optimiser([weights], lr=lr, weight_decay=0.0)
    for _ in range(steps):
        weights.grad = torch.full_like(weights, -0.3)
        made.step()
    return weights.detach().float()


def test_small_steps_add_up_which_are_rounded_away_otherwise() -> None:
    start = torch.linspace(-0.1, 0.1, 1001).bfloat16().float()
    lost, kept = (pulled(kind, torch.bfloat16, 1e-6) - start for kind in (torch.optim.AdamW, MasterAdamW))
    assert (lost != 0).float().mean() < 0.05  # those next to 0 alone
    assert kept.mean() == pytest.approx(1000e-6, rel=0.1)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_in_32_bits_it_is_adamw(decay: float) -> None:
    draw = torch.Generator().manual_seed(0)
    one, other = (nn.Parameter(torch.ones(5, 7)) for _ in range(2))
    a = torch.optim.AdamW([one], lr=1e-2, weight_decay=decay)
    b = MasterAdamW([other], lr=1e-2, weight_decay=decay)
    for _ in range(20):
        one.grad = torch.randn(5, 7, generator=draw)
        other.grad = one.grad.clone()
        a.step()
        b.step()
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_trainer_takes_it_for_16_bits_alone(tmp_path: Path) -> None:
    half, whole = trained(tmp_path / "a", 1, model()), trained(tmp_path / "b", 1, tiny_agent.model())
    kinds = [type(getattr(t.optimizer, "optimizer", t.optimizer)) for t in (half, whole)]
    assert kinds == [MasterAdamW, torch.optim.AdamW]
    assert next(half.model.parameters()).dtype == torch.bfloat16


def test_a_run_that_was_cut_ends_as_one_that_was_not(tmp_path: Path) -> None:
    whole = trained(tmp_path / "a", 4, model())
    trained(tmp_path / "b", 2, model())
    cut = trained(tmp_path / "b", 4, model(), resume=True)
    assert hash_weights(cut.model) == hash_weights(whole.model) != hash_weights(model())
