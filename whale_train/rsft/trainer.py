"""One optimiser over many RSFT steps: TRL's `SFTTrainer`, given new rows again and again.

`SFTTrainer.train()` may be called repeatedly: it keeps its optimiser and rebuilds the (constant) scheduler. So a
step is a new `train_dataset` and a call of `train()`. TRL's loss is the sum over labelled tokens divided by their
number in the whole minibatch, which is the paper's, whatever the micro-batch.
"""

from __future__ import annotations

import gc
import io
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback
from trl import SFTConfig, SFTTrainer

from whale_envs import UserError
from whale_train.rsft.rows import Row


class Update(msgspec.Struct, frozen=True):
    """What training on one step's rows did.

    `updates` is the number of optimiser steps, `tokens` that of labelled tokens, `loss` the mean negative
    log-probability over them (each under the weights before its own minibatch's update), `grad_norm` (before
    clipping) and `entropy` the means over minibatches, `lr` the learning rate.
    """

    updates: int
    tokens: int
    loss: float
    grad_norm: float
    entropy: float
    lr: float


def minibatches(rows: Sequence[Row], size: int, seed: int) -> list[list[Row]]:
    """Rows shuffled by `seed` and cut in minibatches of `size` (the last may be smaller).

    Within one, rows go by length, so that little of a micro-batch is padding; that changes no sum.
    """
    order = list(rows)
    random.Random(seed).shuffle(order)
    return [sorted(order[i : i + size], key=len) for i in range(0, len(order), size)]


class RSFTTrainer(SFTTrainer):
    """TRL's `SFTTrainer` whose optimiser lives on from one set of rows to the next.

    Args:
        model: a causal language model in this process; it is trained in place.
        tokenizer: its tokenizer (for its padding token).
        lr: learning rate of AdamW, constant.
        minibatch: sequences in one optimiser step.
        micro_batch: sequences in one forward pass, a divisor of `minibatch`.
        max_grad_norm: gradients are scaled down to this norm; 0 leaves them as they are.
        folder: where TRL may write; nothing is written in fact.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        lr: float,
        minibatch: int,
        micro_batch: int,
        max_grad_norm: float,
        folder: Path,
    ) -> None:
        args = SFTConfig(
            output_dir=str(folder),
            learning_rate=lr,
            lr_scheduler_type="constant",
            num_train_epochs=1,
            per_device_train_batch_size=micro_batch,
            gradient_accumulation_steps=minibatch // micro_batch,
            max_grad_norm=max_grad_norm,
            max_length=None,  # rows are never cut
            train_sampling_strategy="sequential",  # `step` decides the order
            dataset_kwargs={"skip_prepare_dataset": True},  # rows are ready
            remove_unused_columns=False,
            activation_checkpointing=False,
            bf16=False,  # the model's own dtype
            use_cpu=model.device.type == "cpu",
            dataloader_pin_memory=model.device.type != "cpu",
            logging_steps=1,
            logging_nan_inf_filter=False,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        )
        # SFTTrainer looks at a first row when it is made; the rows of a step replace it
        first = Dataset.from_dict({"input_ids": [[0, 0]], "labels": [[-100, 0]]})
        self._plain_forward = model.__dict__.get("forward")
        super().__init__(model=model, args=args, train_dataset=first, processing_class=tokenizer)
        self.remove_callback(PrinterCallback)

    def step(self, rows: Sequence[Row], seed: int) -> Update:
        """Train one epoch on `rows` in minibatches, each one optimiser step; leaves the model in eval mode.

        `seed` decides which rows share a minibatch, and dropout. Raises `UserError` when memory runs out or the loss
        or gradient is not finite; the weights in memory are then not to be used.
        """
        micro_batch = self.args.per_device_train_batch_size
        batches = minibatches(rows, micro_batch * self.args.gradient_accumulation_steps, seed)
        self.train_dataset = [msgspec.structs.asdict(row) for batch in batches for row in batch]
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            gc.freeze()  # `train` collects garbage each time, which takes 0.5 s over everything that is imported
            try:
                self.train()
            except (MemoryError, RuntimeError) as error:
                if not _out_of_memory(error):
                    raise
                raise UserError(
                    f"out of memory on {micro_batch} rows of up to {max(map(len, rows))} tokens at a time: give a "
                    f"smaller {'micro_batch' if micro_batch > 1 else 'max_row_tokens'}, then run the same command again"
                ) from error
            finally:
                gc.unfreeze()
        self.model.eval()
        return self._update([sum(row.trained for row in batch) for batch in batches])

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """See `SFTTrainer`; stops before the optimiser uses a loss that is not finite."""
        loss = super().training_step(*args, **kwargs)
        _check(float(loss), "loss")
        return loss

    def _update(self, tokens: list[int]) -> Update:
        logs = [entry for entry in self.state.log_history if "loss" in entry]
        assert len(logs) == len(tokens)
        for entry in logs:
            _check(entry["grad_norm"], "gradient norm")
        return Update(
            updates=len(logs),
            tokens=sum(tokens),
            loss=sum(entry["loss"] * n for entry, n in zip(logs, tokens, strict=True)) / sum(tokens),
            grad_norm=sum(entry["grad_norm"] for entry in logs) / len(logs),
            entropy=sum(entry["entropy"] for entry in logs) / len(logs),
            lr=logs[-1]["learning_rate"],
        )

    def optimizer_state(self) -> bytes | None:
        """The optimiser's state, None before the first step."""
        if self.optimizer is None:
            return None
        file = io.BytesIO()
        torch.save(self.optimizer.state_dict(), file)
        return file.getvalue()

    def load_optimizer(self, state: bytes) -> None:
        """Go on with the optimiser state that `optimizer_state` gave, at this trainer's learning rate."""
        self.create_optimizer()
        assert self.optimizer is not None
        self.optimizer.load_state_dict(torch.load(io.BytesIO(state), map_location=self.args.device, weights_only=True))
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] = self.args.learning_rate

    def close(self) -> None:
        """Give the model its own `forward` back, which TRL replaced by one with a fused head."""
        if self._plain_forward is None:
            self.model.__dict__.pop("forward", None)
        else:
            self.model.forward = self._plain_forward


def _out_of_memory(error: Exception) -> bool:
    # on the CPU, torch's allocator raises a plain RuntimeError
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _check(value: float, what: str) -> None:
    if not math.isfinite(value):
        raise UserError(
            f"training diverged: the {what} is {value}; the weights before this step are kept. "
            "Give a smaller lr under another --out, or the same command again if the machine was at fault"
        )
