"""`RSFTConfig`: what an `RSFTTrainer` does, as TRL's users write it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import TrainingArguments
from trl import SFTConfig  # type: ignore[attr-defined]

from whale_envs.errors import UserError

#: Fields that have one value here, and why, or what to give instead.
_FIXED: dict[str, tuple[Any, str]] = {
    "gradient_accumulation_steps": (1, "it follows from minibatch_size and per_device_train_batch_size"),
    "max_length": (None, "rows are never cut: give max_row_tokens"),
    "packing": (False, "give padding_free=True, which packs each micro-batch"),
    "fp16": (False, "give bf16=True, or neither"),
    "eval_strategy": ("no", "training looks at its own episodes only: evaluate a checkpoint with whale eval"),
    "load_best_model_at_end": (False, "nothing is evaluated: the last checkpoint is the one that was trained longest"),
    "assistant_only_loss": (False, "the loss is on the tokens that were sampled, always"),
    "completion_only_loss": (None, "the loss is on the tokens that were sampled, always"),
    "loss_type": ("nll", "the loss is minus the tokens' mean log-probability, always"),
    "label_smoothing_factor": (0.0, "the loss is minus the tokens' mean log-probability, always"),
    "eval_on_start": (False, "training looks at its own episodes only: evaluate the model with whale eval"),
}


def _field(default: Any, help: str) -> Any:
    """A field as `HfArgumentParser` reads it: with a default and its explanation."""
    return field(default=default, metadata={"help": help})


@dataclass
class RSFTConfig(SFTConfig):
    """Settings of an `RSFTTrainer`: those of `trl.SFTConfig`, and what online rejection sampling adds.

    A step is one round of sampling and training, and `max_steps`, `save_steps`, `logging_steps`, `warmup_steps` count
    such steps; an epoch deals every task of the weight split once, but for the rest that fills no step. Defaults are
    the paper's (arXiv 2609.00196, section on RSFT) where it gives one. Fields of `SFTConfig` with another default or
    meaning here:

    - `learning_rate` 1e-6 and constant; `logging_steps` 1; `save_steps` 1 and `save_total_limit` 2, since a step takes
      long.
    - `per_device_train_batch_size` is the number of sequences in one forward pass: it decides memory and speed, not
      the result. `gradient_accumulation_steps` follows from it and `minibatch_size`, and cannot be given.
    - `bf16` is on where there is an accelerator; on a CPU, computations are in the model's own type.
    - `max_length` cannot be given: a row is never cut. `max_row_tokens` is the limit here.
    - `packing` cannot be given; `padding_free` puts each micro-batch in one row without padding.
    - `router_aux_loss_coef` is 0, whatever a mixture of experts has in its config: RSFT's loss has no such term. Where
      it is given, that term is the mean over micro-batches, and these then change the result a little.

    Raises `UserError` for a value that cannot be meant.
    """

    prompts_per_step: int = _field(256, "Tasks sampled in a step.")
    num_generations: int = _field(8, "Episodes sampled of each task in a step: the size G of its group.")
    minibatch_size: int = _field(64, "Sequences in one optimiser step, over all processes.")
    max_row_tokens: int = _field(32_768, "A row with more tokens is dropped and counted, never cut.")
    temperature: float = _field(1.0, "Temperature of sampling.")
    top_k: int = _field(20, "Sample from so many of the most likely tokens; 0 keeps all.")
    top_p: float = _field(1.0, "Sample from the smallest set of tokens with this probability.")
    sampling_batch_size: int = _field(256, "Most sequences that a process decodes at once.")
    drop_all_correct: bool = _field(False, "Leave out the groups in which every episode was accepted.")
    max_per_question: int | None = _field(None, "Train on at most so many episodes of each task, the first ones.")
    drop_duplicates: bool = _field(False, "Of episodes of a task with the same tokens, train on the first only.")
    kl_sequences: int = _field(
        64, "Model calls of a step on which the KL to the start is estimated; 0 keeps no copy of the start's weights."
    )

    learning_rate: float = _field(1e-6, "Learning rate of AdamW.")
    lr_scheduler_type: str = _field("constant", "How the learning rate goes on over the steps.")
    logging_steps: float = _field(1, "Log every so many steps.")
    save_steps: float = _field(1, "Save a checkpoint every so many steps.")
    save_total_limit: int | None = _field(2, "How many checkpoints are kept.")
    activation_checkpointing: bool | None = _field(True, "Compute activations again in the backward pass: less memory.")
    max_length: int | None = _field(None, "Not used: a row is never cut. See max_row_tokens.")
    router_aux_loss_coef: float | None = _field(0.0, "Weight of the load balancing loss of a mixture of experts.")

    def __post_init__(self) -> None:
        self._check()
        if self.bf16 is None:
            self.bf16 = not self.use_cpu and torch.accelerator.is_available()
        if not hasattr(TrainingArguments, "activation_checkpointing"):  # transformers 5.19, which vLLM wants
            self.gradient_checkpointing = bool(self.activation_checkpointing)
        self.dataset_kwargs = {"skip_prepare_dataset": True}  # rows come ready
        self.remove_unused_columns = False
        try:
            super().__post_init__()  # type: ignore[no-untyped-call]
        except ValueError as error:
            raise UserError(" ".join(str(error).split())) from error

    def _check(self) -> None:
        for name in ("prompts_per_step", "num_generations", "minibatch_size", "max_row_tokens", "sampling_batch_size"):
            self._whole(name, 1)
        self._whole("kl_sequences", 0)
        self._whole("top_k", 0)
        self._whole("per_device_train_batch_size", 1)
        if self.max_per_question is not None:
            self._whole("max_per_question", 1)
        for name in ("learning_rate", "max_grad_norm", "temperature", "top_p", "num_train_epochs"):
            self._number(name)
        if not isinstance(self.max_steps, int):
            raise UserError(f"max_steps={self.max_steps!r}: expected a whole number of steps, or -1 to train in epochs")
        if self.max_steps <= 0 and not 0 < self.num_train_epochs < math.inf:
            raise UserError(f"num_train_epochs={self.num_train_epochs!r}: expected a number above 0, or max_steps")
        if not 0 < self.learning_rate < math.inf:
            raise UserError(f"learning_rate={self.learning_rate!r}: expected a number above 0, such as 1e-6")
        if not 0 <= self.max_grad_norm < math.inf:
            raise UserError(f"max_grad_norm={self.max_grad_norm!r}: expected 0 (no clipping) or a number above it")
        if not 0 <= self.temperature < math.inf or not 0 < self.top_p <= 1:
            raise UserError(
                f"temperature={self.temperature!r}, top_p={self.top_p!r}: expected a temperature of at least 0 "
                "and a top_p above 0 and at most 1"
            )
        for name, (value, instead) in _FIXED.items():
            if getattr(self, name) != value:
                raise UserError(f"{name}={getattr(self, name)!r}: {instead}")
        if self.save_strategy == "best":
            raise UserError("save_strategy='best': nothing is evaluated: give 'steps', 'epoch' or 'no'")

    def _whole(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise UserError(f"{name}={value!r}: expected a whole number of at least {least}")

    def _number(self, name: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise UserError(f"{name}={value!r}: expected a number")
