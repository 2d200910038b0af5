"""Training steps are exact: settings that must not matter do not, and TRL's own trainer gives the same weights."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import tiny_agent
import torch
from datasets import Dataset
from torch import nn
from trl import SFTConfig, SFTTrainer

from whale_envs import UserError
from whale_train.rsft.rows import IGNORE, Row
from whale_train.rsft.trainer import RSFTTrainer, minibatches


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


def make_trainer(folder: Path, micro_batch: int = 8, lr: float = 1e-3, seed: int = 0) -> RSFTTrainer:
    return RSFTTrainer(
        tiny_agent.model(seed),
        tiny_agent.tokenizer(),
        lr=lr,
        minibatch=64,
        micro_batch=micro_batch,
        max_grad_norm=1.0,
        folder=folder,
    )


def apart(one: nn.Module, other: nn.Module) -> float:
    """The largest difference between two models' weights."""
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


def test_the_loss_is_the_mean_over_the_minibatchs_sampled_tokens(tmp_path: Path) -> None:
    rows, model = make_rows(20, seed=1), tiny_agent.model()
    total, count = 0.0, 0
    with torch.no_grad():
        for row in rows:
            logprobs = model(torch.tensor([row.input_ids])).logits[0].log_softmax(-1)
            for at, label in enumerate(row.labels):
                if label != IGNORE:
                    total, count = total - float(logprobs[at - 1, label]), count + 1
    update = make_trainer(tmp_path).step(rows, seed=0)
    assert (update.updates, update.tokens, update.lr) == (1, count, 1e-3)
    assert update.loss == pytest.approx(total / count, abs=1e-5)


def test_the_micro_batch_does_not_matter(tmp_path: Path) -> None:
    # a small lr, since AdamW makes a step of lr even of a gradient that is all rounding
    trainers = {size: make_trainer(tmp_path, micro_batch=size, lr=3e-4) for size in (64, 8, 1)}
    first, second = make_rows(80, seed=1), make_rows(20, seed=2)  # whole and partial minibatches
    losses = {size: [t.step(first, seed=1).loss, t.step(second, seed=2).loss] for size, t in trainers.items()}
    for size in (8, 1):
        assert losses[size] == pytest.approx(losses[64], abs=1e-5)
        assert apart(trainers[size].model, trainers[64].model) < 1e-5
    assert apart(trainers[64].model, tiny_agent.model()) > 3e-4


def test_steps_equal_one_plain_sft_run_on_the_same_rows(tmp_path: Path) -> None:
    steps = [make_rows(64, seed=1), make_rows(128, seed=2)]
    ours = make_trainer(tmp_path / "ours")
    for seed, rows in enumerate(steps):
        ours.step(rows, seed)
    order = [row for seed, rows in enumerate(steps) for batch in minibatches(rows, 64, seed) for row in batch]
    args = SFTConfig(
        output_dir=str(tmp_path / "plain"),
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        num_train_epochs=1,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=4,
        max_length=None,
        train_sampling_strategy="sequential",
        activation_checkpointing=False,
        bf16=False,
        use_cpu=True,
        dataloader_pin_memory=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    data = Dataset.from_dict({"input_ids": [r.input_ids for r in order], "labels": [r.labels for r in order]})
    plain = SFTTrainer(model=tiny_agent.model(), args=args, train_dataset=data, processing_class=tiny_agent.tokenizer())
    plain.train()
    assert apart(ours.model, plain.model) < 1e-5
    assert apart(ours.model, tiny_agent.model()) > 1e-3


def test_optimiser_state_goes_on_bit_for_bit(tmp_path: Path) -> None:
    first, second = make_rows(20, seed=1), make_rows(20, seed=2)
    whole = make_trainer(tmp_path)
    assert whole.optimizer_state() is None
    whole.step(first, seed=1)
    halfway, state = {k: v.clone() for k, v in whole.model.state_dict().items()}, whole.optimizer_state()
    whole.step(second, seed=2)

    assert state is not None
    resumed, forgetful = make_trainer(tmp_path, seed=5), make_trainer(tmp_path, seed=6)
    for trainer in (resumed, forgetful):
        trainer.model.load_state_dict(halfway)
    resumed.load_optimizer(state)
    for trainer in (resumed, forgetful):
        trainer.step(second, seed=2)
    assert apart(whole.model, resumed.model) == 0
    assert apart(whole.model, forgetful.model) > 1e-5


def test_a_loaded_optimiser_takes_this_trainers_learning_rate(tmp_path: Path) -> None:
    before = make_trainer(tmp_path, lr=1e-3)
    before.step(make_rows(4, seed=1), seed=1)
    after = make_trainer(tmp_path, lr=1e-4)
    after.load_optimizer(before.optimizer_state() or b"")
    assert after.step(make_rows(4, seed=1), seed=1).lr == 1e-4


def test_training_says_nothing_writes_nothing_and_gives_the_model_back(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(tmp_path)
    state = torch.get_rng_state()
    trainer.step(make_rows(10, seed=1), seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []
    assert not trainer.model.training
    assert all(parameter.grad is None for parameter in trainer.model.parameters())
    trainer.close()
    assert "forward" not in trainer.model.__dict__


def test_a_loss_that_is_not_finite_is_never_used(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    with torch.no_grad():
        trainer.model.model.norm.weight[0] = torch.nan
    before = {k: v.clone() for k, v in trainer.model.state_dict().items()}
    with pytest.raises(UserError, match="training diverged: the loss is nan"):
        trainer.step(make_rows(4, seed=1), seed=1)
    assert all(torch.equal(v, before[k]) or bool(v.isnan().any()) for k, v in trainer.model.state_dict().items())


def test_running_out_of_memory_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(tmp_path)

    def too_much(*args: object, **kwargs: object) -> torch.Tensor:
        return torch.empty(2**60)  # what torch raises on the CPU

    monkeypatch.setattr(SFTTrainer, "training_step", too_much)
    with pytest.raises(UserError, match=r"out of memory on 8 rows of up to .* smaller micro_batch"):
        trainer.step(make_rows(4, seed=1), seed=1)
