"""The weight phase of the loop: an `RSFTTrainer` that keeps the run's ledger and shows the run's progress.

A step is committed by one rename, that of its checkpoint. What it writes before that (its episodes in
`episodes/step-0003.jsonl`, its two lines in the ledger) is the same when the step has to be done again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging as transformers_logging

from whale_envs import Domain, Harness, UserError
from whale_train.ledger import Ledger, Spent
from whale_train.options import WeightOptions
from whale_train.policies.base import Policy
from whale_train.policies.load import best_device, open_model
from whale_train.policies.transformers import TransformersPolicy
from whale_train.policies.vllm import VLLMPolicy
from whale_train.progress import Progress
from whale_train.rsft import checkpoint
from whale_train.rsft.config import RSFTConfig
from whale_train.rsft.trainer import RSFTTrainer

#: Says why a phase ends after steps with these rewards; "" when it goes on.
Over = Callable[[Sequence[float]], str]


def weight_phase(
    policy: Policy,
    domain: Domain,
    harness: Harness,
    options: WeightOptions,
    steps: int,
    out: Path,
    ledger: Ledger,
    progress: Progress,
    key: str,
    start: Path | None = None,
    over: Over = lambda rewards: "",
    skip: int = 0,
) -> tuple[Path, list[float]]:
    """Train `policy` in place for `steps` steps, fewer where the rewards of those so far are `over`.

    Returns the final checkpoint, a Hugging Face model directory, and the mean reward of each step.

    Killed anywhere and called again in the same way, it goes on and ends with the same weights, bit for bit; called
    with more steps, it adds them. `out` is its folder; `key` begins its lines in the ledger and names it to people.
    `start` is an earlier phase's checkpoint, whose weights, optimiser state and place in the deal of tasks are taken
    on; `skip` steps were dealt since, by phases that were given up: to play those again would be to learn the same.

    Raises `UserError` for a policy whose weights are elsewhere, and what `RSFTTrainer` raises. The folder can be
    resumed afterwards; the weights in memory are then those of no checkpoint.
    """
    if isinstance(policy, TransformersPolicy):
        model = policy.model
    elif isinstance(policy, VLLMPolicy):
        model = open_model(str(policy.folder), best_device())[0].to(best_device())  # type: ignore[arg-type]
    else:
        raise UserError(f"policy {policy.name} has its weights elsewhere, and they cannot be trained: use hf:<dir>")
    before = checkpoint.steps_done(start) if start else 0
    last = checkpoint.latest(out) or start
    if last and over(checkpoint.rewards(last, before)):  # it had ended before it was killed
        steps = checkpoint.steps_done(last) - before
    cpu = model.device.type == "cpu"
    args = RSFTConfig(
        output_dir=str(out),
        seed=options.seed,
        max_steps=before + steps,
        prompts_per_step=options.prompts,
        num_generations=options.group,
        minibatch_size=options.minibatch,
        per_device_train_batch_size=options.micro_batch,
        learning_rate=options.lr,
        save_total_limit=1,
        kl_sequences=0,  # a second model and its passes, for a figure that no report shows
        activation_checkpointing=False,
        bf16=False,  # the model's own dtype
        use_cpu=cpu,
        dataloader_pin_memory=not cpu,
        disable_tqdm=True,
    )
    with _no_progress_bars():
        watch = _Watch(ledger, progress, key, before, steps, options.prompts * options.group, over)
        trainer = RSFTTrainer(model, domain, harness, args, policy.tokenizer, callbacks=[watch], policy=policy)
        trainer.remove_callback(PrinterCallback)
        trainer.progress, trainer.deal = progress, replace(trainer.deal, skip=skip)
        try:
            trainer.train(resume_from_checkpoint=str(last) if last else None)
        finally:
            trainer.close()
    last = checkpoint.latest(out)
    assert last is not None
    return last, checkpoint.rewards(last, before)


class _Watch(TrainerCallback):
    """Tells people and the ledger what a phase does. It began after `before` steps of earlier phases."""

    def __init__(
        self, ledger: Ledger, progress: Progress, key: str, before: int, steps: int, episodes: int, over: Over
    ) -> None:
        self._ledger, self._progress, self._key = ledger, progress, key
        self._before, self._steps, self._episodes, self._over = before, steps, episodes, over

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """A step is about to sample."""
        self._progress.begin(self._name(state.global_step + 1), self._episodes)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """A step has trained, and is about to be saved."""
        logs = state.log_history[-1]
        if "reward" not in logs:  # the last line of all, about the whole of training
            return
        unit = f"{self._key}/step-{state.global_step - self._before:04d}"
        self._ledger.add(
            Spent(
                f"{unit}/sampling",
                "sampling",
                rollouts=int(logs["episodes"]),
                prompt_tokens=int(logs["tokens/prompt"]),
                sampled_tokens=int(logs["tokens/sampled"]),
                seconds=logs["seconds/sampling"],
                dollars=logs["dollars"],
                judge=logs["dollars"],  # weights that are trained are behind no API, so nobody else asks for money
            )
        )
        self._ledger.add(
            Spent(
                f"{unit}/training",
                "training",
                trained_tokens=int(logs["tokens/trained"]),
                seconds=logs["seconds/training"],
            )
        )

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """A step is done."""
        steps = [logs for logs in state.log_history if "reward" in logs and logs["step"] > self._before]
        self._progress.score(steps[-1]["reward"])
        self._progress.say(_line(self._name(state.global_step), steps[-1]))
        if self._over([logs["reward"] for logs in steps]):
            control.should_training_stop = True

    def _name(self, step: int) -> str:
        return f"{self._key} step {step - self._before}/{self._steps}"


def _line(name: str, logs: dict[str, Any]) -> str:
    """A step for people."""
    head = f"{name}: reward {logs['reward']:.3f}, {logs['accepted']:.0%} accepted"
    failures = {key.removeprefix("failures/"): int(n) for key, n in logs.items() if key.startswith("failures/") and n}
    head += "".join(f", {n} failed ({owner})" for owner, n in failures.items())
    if logs["rows/too_long"]:
        head += f", {logs['rows/too_long']:.0f} rows too long"
    if not logs["updates"]:
        return f"{head}; nothing to train on, weights unchanged"
    return f"{head}; loss {logs['loss']:.3f} on {logs['tokens/trained']:,.0f} tokens of {logs['rows/trained']:.0f} rows"


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """transformers draws a bar for every load and save."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
