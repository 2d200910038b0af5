"""Online rejection-sampling fine-tuning (RSFT) as a trainer of TRL.

    RSFTTrainer(model="Qwen/Qwen3.5-2B", env="whale/Math", harness="h0", args=RSFTConfig(...)).train()

`transformers.Trainer` runs the loop over steps: it counts, schedules the learning rate, logs, saves, resumes, calls
callbacks. One of its steps is here one round of RSFT, `training_step`: play episodes with the weights as they are,
keep the accepted ones, train one epoch on them in minibatches, hand the weights to the sampler. `SFTTrainer` computes
the loss: minus the log-probability of the sampled tokens, summed and divided by their number in the whole minibatch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import torch
from accelerate import DistributedType
from datasets import Dataset
from peft import PeftConfig, PeftModel
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader
from transformers import (
    BitsAndBytesConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import TrainOutput
from trl import SFTTrainer  # type: ignore[attr-defined]

from whale_envs import Domain, Episode, UserError, write_episodes
from whale_train.ledger import tokens
from whale_train.policies.base import Engine, Sampling
from whale_train.policies.transformers import TransformersPolicy
from whale_train.progress import Progress, Silent
from whale_train.rsft import checkpoint, given
from whale_train.rsft.attention import row_by_row
from whale_train.rsft.config import RSFTConfig
from whale_train.rsft.handover import Handover
from whale_train.rsft.kl import Start, some_replies
from whale_train.rsft.masters import MasterAdamW, check_kept, in_16_bits
from whale_train.rsft.play import Deal, HarnessLike, Round, resolve
from whale_train.rsft.rows import Row, fit, rows
from whale_train.rsft.select import select, summarise
from whale_train.rsft.update import Update, averages, blank, check_finite, kept_apart, memory_for, minibatches
from whale_train.rsft.weights import base_of, twin, whole_weights

#: The settings that decide a run's result, which must stay the same when it is resumed.
DECISIVE = (
    *("seed", "prompts_per_step", "num_generations", "temperature", "top_k", "top_p"),
    *("drop_all_correct", "max_per_question", "drop_duplicates", "max_row_tokens", "minibatch_size"),
    *("learning_rate", "lr_scheduler_type", "warmup_steps", "max_grad_norm"),
    *("optim", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay"),
)


class RSFTTrainer(SFTTrainer):
    """Trains a model in an environment, under one harness or several.

    Logged each step: `reward` (mean score), `accepted` (share of episodes), `groups/all_right` and `groups/all_wrong`
    (shares of tasks), `questions` (tasks with an accepted episode), `truncated`, `failures/<owner>`,
    `behaviours/<name>`; `rows/trained`, `rows/too_long`, `updates`, `tokens/prompt`, `tokens/sampled`,
    `tokens/trained`; `loss`, `grad_norm` (before clipping), `entropy` (of the next-token distribution, mean over the
    trained tokens, each under the weights before its own update), `learning_rate`, `kl` (to the weights that `model`
    came with, see `kl.Start.kl`); `tokens_per_second/sampling` (sampled), `tokens_per_second/training` (trained);
    `seconds/<part>` of sampling, kl, training, sync, and saving (of the save before); `staleness`, the number of
    optimiser steps between the weights that sampled and those that training began with, always 0; `dollars` of a judge
    model. In a step in which nothing was accepted, nothing is trained, and what needs an update is not logged.

    Episodes are kept in `output_dir/episodes/step-0001.jsonl`. Killed anywhere and called again with
    `resume_from_checkpoint=True`, a run goes on from its last checkpoint to the same end; with none yet, it begins.

    Args:
        model: a model's id or folder, a model, or a PEFT model. It is trained in place.
        env: a Gymnasium id such as "whale/Math", an env (`gymnasium.make("whale/Math", dataset=...)`), or a `Domain`;
            its weight split is what is trained on.
        harness: a harness (name, path, `Harness`), or several, among which each step's tasks are shared out in turn;
            None takes the env's.
        args: settings.
        processing_class: the tokenizer, or a processor with one; by default that of the model.
        callbacks, optimizers, peft_config, quantization_config: see `SFTTrainer`.
        policy: what samples in place of the model itself, an `Engine` such as `VLLMPolicy`: it is given the weights
            after each step, and has to find the same tokens as likely as the trainer does (see `handover.Handover`).
            It samples as it was made to: temperature, top_k and top_p of `args` are the model's own sampling's.

    Raises `UserError` for what cannot be used: a model that is not there, an env or a harness, too few tasks; and from
    `train` for an output folder of other settings, memory that runs out, a full disk, a loss that is not finite.
    """

    _tag_names = ["trl", "rsft", "whale"]  # noqa: RUF012
    _name = "RSFT"
    _paper = {  # noqa: RUF012
        "title": "WHALE: Weight-Harness Alternating Learning",
        "id": "2609.00196",
        "citation": "@article{kim2026whale, author={Kim, Lee, Lee, Finn and Lee}, journal={arXiv:2609.00196}}",
    }
    loss_is_scaled_for_ga = True  # type: ignore[assignment]
    args: RSFTConfig
    model: PreTrainedModel | PeftModel
    optimizer: torch.optim.Optimizer

    def __init__(
        self,
        model: str | PreTrainedModel | PeftModel,
        env: str | Domain | gymnasium.Env[Any, Any],
        harness: HarnessLike | Sequence[HarnessLike] | None = None,
        args: RSFTConfig | None = None,
        processing_class: PreTrainedTokenizerBase | ProcessorMixin | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LambdaLR | None] = (None, None),
        peft_config: PeftConfig | None = None,
        quantization_config: BitsAndBytesConfig | None = None,
        policy: Engine | TransformersPolicy | None = None,
    ) -> None:
        if args is None:
            name = model if isinstance(model, str) else str(model.config.name_or_path or "model")
            args = RSFTConfig(output_dir=f"{name.rstrip('/').split('/')[-1]}-RSFT")
        given.check(model, args, processing_class, policy)
        self.domain, self.harnesses = resolve(env, harness)
        self.deal = Deal(self.domain.splits.weight, args.prompts_per_step, args.seed)
        #: Hears of episodes that have ended; set it to watch a step.
        self.progress: Progress = Silent()
        self._draft: Path | None = None
        #: Whether an epoch on a step's rows was broken off: the weights in memory are then those of no step.
        self._broken_off = False
        self._plain_forward = None if isinstance(model, str) else model.__dict__.get("forward")
        if args.should_save:
            with checkpoint.writing(Path(str(args.output_dir))):
                Path(str(args.output_dir)).mkdir(parents=True, exist_ok=True)
        with given.making(model):
            super().__init__(
                model=model,
                args=args,
                # SFTTrainer looks at a first row when it is made; each step brings its own
                train_dataset=Dataset.from_dict({"input_ids": [[0, 0]], "labels": [[-100, 0]]}),
                processing_class=processing_class,
                callbacks=callbacks,
                optimizers=optimizers,
                peft_config=peft_config,
                quantization_config=quantization_config,
            )
        self.policy = policy or self._own_policy()
        self._handover = Handover(self.policy, self._tokenizer) if isinstance(self.policy, Engine) else None
        self._start = Start(self.model, self._sharded, args.device) if args.kl_sequences else None
        #: Optimiser steps made so far here, and how many of them the policy's weights have; -1 when that is not known.
        self._made, self._synced = 0, -1

    @property
    def _sharded(self) -> bool:
        """Whether a process holds a part of the weights only."""
        plugin = self.accelerator.state.deepspeed_plugin if self.is_deepspeed_enabled else None
        if plugin is not None and plugin.zero_stage == 3:
            raise UserError("DeepSpeed ZeRO-3: sampling needs whole weights; use ZeRO-2, or FSDP with fsdp_version: 2")
        return bool(self.is_fsdp_enabled)

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: TrainingArguments, model: PreTrainedModel | None = None) -> tuple[Any, Any]:
        """See `Trainer`; AdamW keeps weights of 16 bits in 32, too."""
        kind, settings = SFTTrainer.get_optimizer_cls_and_kwargs(args, model)  # type: ignore[no-untyped-call]
        if kind is torch.optim.AdamW and model is not None and in_16_bits(model):
            return MasterAdamW, {name: value for name, value in settings.items() if name != "fused"}
        return kind, settings

    def _own_policy(self) -> TransformersPolicy:
        """Samples from the model that is trained, or from a copy where that is sharded."""
        tokenizer = self._tokenizer
        if tokenizer.chat_template is None:  # a processor may keep it
            tokenizer.chat_template = getattr(self.processing_class, "chat_template", None)
        args = self.args
        model = twin(self.model, args.device) if self._sharded else self.model
        sampling = Sampling(args.temperature, args.top_k, args.top_p)
        name = model.config.name_or_path or "model"
        return TransformersPolicy(model, tokenizer, sampling, name, args.sampling_batch_size)  # type: ignore[arg-type]

    @property
    def total_steps(self) -> int:
        """Steps until training ends."""
        if self.args.max_steps > 0:
            return int(self.args.max_steps)
        return math.ceil(self.args.num_train_epochs * self.deal.steps)

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train to the end; see `transformers.Trainer.train`.

        `resume_from_checkpoint` is a checkpoint's folder, or True for the last one in `output_dir` (with none there
        yet, training begins).
        """
        out = Path(str(self.args.output_dir))
        resume = self.args.resume_from_checkpoint if resume_from_checkpoint is None else resume_from_checkpoint
        last = (checkpoint.latest(out) if resume is True else Path(resume)) if resume else None
        if not resume and (there := checkpoint.latest(out)):
            raise UserError(
                f"{out} holds {there.name}: give resume_from_checkpoint=True to go on from it, or another output folder"
            )
        if self._broken_off and not last:
            raise UserError(
                "training was broken off within a step, with no checkpoint to go on from, so that the weights in "
                "memory are those of no step: make the trainer again, with the model as it was at the start"
            )
        if self.args.should_save:
            with checkpoint.writing(out):
                checkpoint.claim(out, self._identity())
                checkpoint.tidy(out, self.args.save_total_limit)
        self._metrics["train"].clear()  # of a step that was broken off
        self._synced = -1
        done = checkpoint.steps_done(last) if last else 0
        if last and done >= self.total_steps:
            result = self._only_load(last, done)
        else:
            if last:
                checkpoint.check_resumable(last)
            result = super().train(str(last) if last else None, trial, ignore_keys_for_eval)
        self._sync()
        self.model.eval()
        return result

    def _only_load(self, folder: Path, done: int) -> TrainOutput:
        """What is left of a run that has ended: its weights."""
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise UserError(f"{folder} is the end of a run of {done} steps: give a larger max_steps to go on")
        self._load_from_checkpoint(str(folder))
        self.state = TrainerState.load_from_json(str(folder / TRAINER_STATE_NAME))
        return TrainOutput(done, 0.0, {})

    def get_train_dataloader(self) -> DataLoader[dict[str, int]]:
        """The steps of an epoch, by number; what they train on is made in `training_step`."""
        return DataLoader(range(self.deal.steps), batch_size=1, collate_fn=lambda steps: {"step": steps[0]})  # type: ignore[arg-type]

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """One step of RSFT; returns its loss. The optimiser has no gradient left to use afterwards."""
        step = int(self.state.global_step)
        self._sync()
        self.model.eval()  # no dropout while sampling, and no checkpointing, which allows no cache
        with self._timed("sampling"):
            episodes = self.sample(step)
        if self._start:
            with self._timed("kl"):
                self._note_kl(self._start, episodes)
        self._note({**summarise(episodes), "staleness": self._made - self._synced})
        accepted = [row for episode in self.select(episodes) for row in rows(episode)]
        kept, too_long = fit(accepted, self.args.max_row_tokens)
        model.train()
        began = time.perf_counter()
        with self._timed("training"):
            if self._handover and kept:
                self._handover.make_room()
            updates = self.fit(model, kept, self.deal.seed_of(step)) if kept else []
        trained = sum(update.tokens for update in updates)
        self._note({"rows/trained": len(kept), "rows/too_long": too_long, "updates": len(updates)})
        self._note({"tokens/trained": trained, **averages(updates)})
        if updates:
            self._note({"tokens_per_second/training": trained / (time.perf_counter() - began)})
        with self._timed("sync"):
            self._sync()
        return torch.tensor(averages(updates).get("loss", 0.0), device=self.args.device)

    def sample(self, step: int) -> list[Episode]:
        """The episodes of a step: played, or from disk if they were played before a kill by the weights as they are."""
        args, rank, ranks = self.args, self.accelerator.process_index, self.accelerator.num_processes
        tasks, seed = self.deal.tasks_of(step), self.deal.seed_of(step)
        todo = Round(self.domain, self.harnesses, tasks, seed, args.num_generations)
        path = Path(str(args.output_dir)) / "episodes" / f"step-{step + 1:04d}.jsonl"
        episodes = todo.on_disk(path, self.policy.weights_hash, rank, ranks)
        if episodes is not None:
            self.progress.advance(len(episodes))
            return episodes
        began = time.perf_counter()
        with memory_for("while sampling", "sampling_batch_size"):
            episodes = todo.play(self.policy, rank, ranks, self.progress)
        self._note({"tokens_per_second/sampling": tokens(episodes)[1] / (time.perf_counter() - began)})
        if args.should_save:
            with checkpoint.writing(path):
                write_episodes(path, episodes)
        return episodes

    def select(self, episodes: Sequence[Episode]) -> list[Episode]:
        """The episodes that are trained on."""
        args = self.args
        return select(episodes, args.drop_all_correct, args.max_per_question, args.drop_duplicates)

    def fit(self, model: nn.Module, rows: Sequence[Row], seed: int) -> list[Update]:
        """Train one epoch on `rows` in minibatches, each one optimiser step.

        `seed` decides which rows share a minibatch, and dropout. Raises `UserError` when memory runs out or the loss
        or gradient is not finite; the weights in memory are then not to be used.
        """
        args, longest = self.args, max(map(len, rows))
        size = args.per_device_train_batch_size
        smaller = "per_device_train_batch_size (--micro-batch)" if size > 1 else "max_row_tokens"
        with (
            memory_for(f"on {min(size, len(rows))} rows of up to {longest} tokens at a time", smaller),
            kept_apart(),
            torch.random.fork_rng([args.device] if args.device.type == "cuda" else []),
            row_by_row(base_of(self.model)) if args.padding_free else nullcontext(),
        ):
            torch.manual_seed(seed + self.accelerator.process_index)
            self._broken_off = True
            updates = [self._update(model, batch) for batch in minibatches(rows, args.minibatch_size, seed)]
            self._broken_off = False
            return updates

    def _update(self, model: nn.Module, batch: Sequence[Row]) -> Update:
        """One optimiser step on a minibatch, of which each process computes its share."""
        rank, ranks = self.accelerator.process_index, self.accelerator.num_processes
        size = self.args.per_device_train_batch_size * ranks
        parts = [batch[at : at + size] for at in range(0, len(batch), size)]
        trained = [sum(row.trained for row in part) for part in parts]
        loss, count = torch.zeros((), device=self.args.device), torch.tensor(sum(trained), device=self.args.device)
        self.current_gradient_accumulation_steps = len(parts)  # by which TRL divides what is a mean over each part
        noted = self._metrics["train"].pop("entropy", [])  # of the steps since the last line of the log
        for part in parts:
            last = part is parts[-1]
            self.accelerator.gradient_state._set_sync_gradients(last)
            own = part[rank::ranks] or [blank(part)]  # every process takes part in every pass
            inputs = self.data_collator([msgspec.structs.asdict(row) for row in own])
            together = last or self.accelerator.distributed_type == DistributedType.DEEPSPEED
            with nullcontext() if together else self.accelerator.no_sync(model):
                loss += super().training_step(model, inputs, count)  # type: ignore[no-untyped-call]
        mean = float(self.accelerator.reduce(loss, "mean"))  # each process's loss is scaled up by their number
        check_finite(mean, "loss")
        clipped = self._clip_grad_norm(model) if self.args.max_grad_norm > 0 else None  # type: ignore[no-untyped-call]
        norm = self._get_grad_norm(model, clipped)  # type: ignore[no-untyped-call]
        norm = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        check_finite(norm, "gradient norm")
        self.optimizer.step()
        model.zero_grad()
        self._made += 1
        entropies = self._metrics["train"].pop("entropy")  # means over the parts' tokens
        if noted:
            self._metrics["train"]["entropy"] = noted
        for other in ("mean_token_accuracy", "num_tokens"):  # of a last part alone, and since the last resumption
            self._metrics["train"].pop(other)
        entropy = sum(e * n for e, n in zip(entropies, trained, strict=True)) / sum(trained)
        return Update(sum(trained), mean, entropy, norm)

    def _sync(self) -> None:
        """Give the weights to the policy, if it has others."""
        if self._synced == self._made:
            return
        if self._handover:
            self._handover.to_engine(self.model)
        elif isinstance(self.policy, TransformersPolicy):
            shared = self.policy.model is self.model
            self.policy.load_weights(self.policy.model if shared else whole_weights(self.model))
        self._synced = self._made

    def _note_kl(self, start: Start, episodes: Sequence[Episode]) -> None:
        replies = some_replies([call.reply for e in episodes for call in e.calls], self.args.kl_sequences)
        own = replies[self.accelerator.process_index :: self.accelerator.num_processes]
        with memory_for("while estimating the KL", "per_device_train_batch_size"):
            sums = start.kl(own, self.args.per_device_train_batch_size, self.data_collator)
        total, count = self.accelerator.reduce(torch.tensor(sums, device=self.args.device), "sum").tolist()
        if count:
            self._note({"kl": total / count})

    def _note(self, figures: Mapping[str, float]) -> None:
        """Hand figures to the next `log`, which averages each over the steps since the last."""
        for name, value in figures.items():
            self._metrics["train"][name].append(value)

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._note({f"seconds/{part}": time.perf_counter() - began})

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """See `SFTTrainer`; a step without an update has neither loss nor gradient."""
        if "loss" in logs and "loss" not in self._metrics["train"]:
            logs = {name: value for name, value in logs.items() if name not in ("loss", "grad_norm")}
        super().log(logs, start_time)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        with checkpoint.reading(Path(resume_from_checkpoint)):
            super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[no-untyped-call]

    def _load_optimizer_and_scheduler(self, checkpoint_folder: str | None) -> None:
        with checkpoint.reading(Path(checkpoint_folder or "")):
            super()._load_optimizer_and_scheduler(checkpoint_folder)  # type: ignore[no-untyped-call]
            check_kept(self.optimizer)

    def _load_rng_state(self, checkpoint_folder: str | None) -> None:
        with checkpoint.reading(Path(checkpoint_folder or "")):
            super()._load_rng_state(checkpoint_folder)  # type: ignore[no-untyped-call]

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """See `Trainer`. Raises `UserError` when there is no token, or the hub refuses it."""
        with given.asking_the_hub(token or self.args.hub_token):
            super().init_hf_repo(token, private)  # type: ignore[no-untyped-call]

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """See `Trainer`; the checkpoint is whole or not there."""
        out = Path(str(self.args.output_dir))
        final = out / f"checkpoint-{self.state.global_step}"
        with self._timed("saving"), checkpoint.writing(final):
            self._draft = out / checkpoint.DRAFT
            try:
                super()._save_checkpoint(model, trial)  # type: ignore[no-untyped-call]
            finally:
                self._draft = None
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                checkpoint.commit(out / checkpoint.DRAFT / final.name, final)
                checkpoint.tidy(out, self.args.save_total_limit)
            self.accelerator.wait_for_everyone()
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(final))

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._draft) if self._draft else str(super()._get_output_dir(trial))

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if not self._draft:  # uploads go on in the background, while a draft is about to be renamed
            super()._push_from_checkpoint(checkpoint_folder)

    def _identity(self) -> dict[str, Any]:
        """What decides the result of a run, its length aside."""
        settings = {name: getattr(self.args, name) for name in DECISIVE}
        return {
            "tasks": self.domain.splits.weight.hash,
            "verifier": self.domain.verifier,
            "harness": [harness.hash for harness in self.harnesses],
            **settings,
        }

    def close(self) -> None:
        """Give the model its own `forward` back, which TRL replaced by one with a fused head."""
        base = base_of(self.model)
        if self._plain_forward is None:
            base.__dict__.pop("forward", None)
        else:
            base.forward = self._plain_forward
