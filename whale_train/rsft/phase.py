"""The weight phase: sampling and training in turn, each step a unit that a kill cannot half-do.

A step is committed by one rename, that of its checkpoint (see `checkpoint`). What it writes before that (its
episodes in `episodes/step-0003.jsonl`, its two lines in the ledger) is the same when the step has to be done again.
"""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from whale_envs import Domain, Episode, Harness, Task, UserError, read_episodes, write_episodes
from whale_envs.episode import write_atomic
from whale_train.ledger import Ledger, Spent, judged, tokens
from whale_train.policies.base import Policy
from whale_train.progress import Progress
from whale_train.rollout import rollout
from whale_train.rsft import checkpoint
from whale_train.rsft.checkpoint import Place, State, StepRecord
from whale_train.rsft.rows import fit, rows
from whale_train.rsft.select import select, summarise
from whale_train.rsft.trainer import RSFTTrainer


class TrainablePolicy(Policy, Protocol):
    """A policy that samples from weights which are in this process."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    def weights_changed(self) -> None:
        """The weights of `model` were changed in place: drop whatever was derived from them."""


@dataclass(frozen=True)
class WeightPhaseConfig:
    """What a weight phase does. The defaults are the paper's (section on RSFT) where it gives one.

    Raises `UserError` for a value that cannot be meant.
    """

    steps: int = 1
    """RSFT steps: sample, select, train one epoch, hand the weights to the sampler."""
    prompts: int = 256
    """Tasks sampled in a step; an epoch is as many whole steps as D_weight has tasks for."""
    group: int = 8
    """Episodes sampled of each task."""
    minibatch: int = 64
    """Sequences in one optimiser step."""
    micro_batch: int = 8
    """Sequences in one forward pass, a divisor of `minibatch`; decides memory and speed, not the result."""
    lr: float = 1e-6
    """Learning rate of AdamW: constant, no warm-up, no weight decay."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm (TRL's default); 0 leaves them as they are."""
    max_row_tokens: int = 32_768
    """A row with more tokens is dropped and counted, never cut."""

    def __post_init__(self) -> None:
        for name in ("steps", "prompts", "group", "minibatch", "micro_batch", "max_row_tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UserError(f"{name}={value!r}: expected a whole number of at least 1")
        if not 0 < self.lr < math.inf:
            raise UserError(f"lr={self.lr!r}: expected a number above 0, such as 1e-6")
        if not 0 <= self.max_grad_norm < math.inf:
            raise UserError(f"max_grad_norm={self.max_grad_norm!r}: expected 0 (no clipping) or a number above it")
        if self.minibatch % self.micro_batch:
            raise UserError(
                f"micro_batch={self.micro_batch} does not divide minibatch={self.minibatch}: "
                f"give a divisor, such as {math.gcd(self.micro_batch, self.minibatch)}"
            )


def weight_phase(
    policy: TrainablePolicy,
    domain: Domain,
    harness: Harness,
    config: WeightPhaseConfig,
    out: Path,
    ledger: Ledger,
    progress: Progress,
    seed: int,
    key: str,
    start: Path | None = None,
) -> Path:
    """Train `policy` in place for `config.steps` steps; returns the final checkpoint, a Hugging Face model directory.

    Killed anywhere and called again in the same way, it goes on and ends with the same weights, bit for bit; called
    with more steps, it adds them. `out` is its folder; `key` begins its lines in the ledger and names it to people.
    `start` is an earlier phase's checkpoint, whose weights, optimiser state and place in the deal of tasks are taken
    on. `seed` (the run's, the same in each phase) decides tasks, sampling and order.

    Raises `UserError` for a policy whose weights are elsewhere, too few tasks, an `out` that another configuration
    wrote, a full disk, memory that runs out, and a loss that is not finite. The folder can be resumed after each;
    the weights in memory are then those of no checkpoint.
    """
    if not hasattr(policy, "model") or not hasattr(policy, "weights_changed"):
        raise UserError(f"policy {policy.name} has its weights elsewhere, and they cannot be trained: use hf:<dir>")
    tasks = domain.splits.weight
    if config.prompts > len(tasks):
        raise UserError(f"prompts={config.prompts}, but {tasks.name} has {len(tasks)} tasks: give at most as many")
    _claim(out, _identity(config, harness, tasks.hash, seed, key))
    trainer = RSFTTrainer(
        policy.model,
        policy.tokenizer,
        lr=config.lr,
        minibatch=config.minibatch,
        micro_batch=config.micro_batch,
        max_grad_norm=config.max_grad_norm,
        folder=out,
    )
    phase = _Phase(policy, domain, harness, config, out, ledger, progress, seed, key, trainer)
    try:
        state = phase.begin(start)
        while state.step < config.steps:
            state = phase.step(state)
    finally:
        trainer.close()
    last = checkpoint.latest(out)
    assert last is not None
    return last


def read_records(out: Path) -> list[StepRecord]:
    """The records of a phase's steps so far, in order; none before its first step is done."""
    last = checkpoint.latest(out)
    return checkpoint.read_state(last).records if last else []


@dataclass
class _Phase:
    """A running phase: what `weight_phase` was given, and the trainer."""

    policy: TrainablePolicy
    domain: Domain
    harness: Harness
    config: WeightPhaseConfig
    out: Path
    ledger: Ledger
    progress: Progress
    seed: int
    key: str
    trainer: RSFTTrainer

    def begin(self, start: Path | None) -> State:
        """Load the last step's checkpoint, or `start`, or go on with the weights as they are."""
        checkpoint.tidy(self.out)
        if last := checkpoint.latest(self.out):
            state = checkpoint.load(last, self.trainer)
        elif start:
            state = State(place=checkpoint.load(start, self.trainer).place)
        else:
            return State()
        self.policy.weights_changed()
        return state

    def step(self, state: State) -> State:
        """One RSFT step, committed."""
        number, config = state.step + 1, self.config
        place = _place(state.place, config.prompts, len(self.domain.splits.weight))
        dealt = self.domain.splits.weight.deal(place.epoch, self.seed)[place.at : place.at + config.prompts]
        seed = _step_seed(self.seed, place)
        self.progress.begin(f"{self.key} step {number}/{config.steps}", len(dealt) * config.group)
        episodes = self.sample(number, dealt, seed)

        kept, dropped = fit([row for episode in select(episodes) for row in rows(episode)], config.max_row_tokens)
        began = time.perf_counter()
        update = self.trainer.step(kept, seed) if kept else None
        if update:
            self.policy.weights_changed()
        trained = time.perf_counter()
        draft = checkpoint.draft(self.out, number, self.trainer)
        saved = time.perf_counter()

        spent = self.ledger.lines[self._ledger_key(number, "sampling")]
        self.ledger.add(
            Spent(
                self._ledger_key(number, "training"),
                "training",
                trained_tokens=update.tokens if update else 0,
                seconds=saved - began,
            )
        )
        record = StepRecord(
            step=number,
            place=place,
            summary=summarise(episodes),
            rows=len(kept),
            dropped=dropped,
            prompt_tokens=spent.prompt_tokens,
            sampled_tokens=spent.sampled_tokens,
            update=update,
            seconds={"sampling": spent.seconds, "training": trained - began, "saving": saved - trained},
        )
        state = State(number, Place(place.epoch, place.at + config.prompts), [*state.records, record])
        checkpoint.commit(draft, self.out, state)
        self.progress.score(record.summary.reward)
        self.progress.say(_line(self.key, config.steps, record))
        return state

    def sample(self, number: int, dealt: list[Task], seed: int) -> list[Episode]:
        """The step's episodes: from disk if they were sampled before a kill, by the weights as they are now."""
        path = self.out / "episodes" / f"step-{number:04d}.jsonl"
        if path.exists() and self._ledger_key(number, "sampling") in self.ledger.lines:
            episodes = list(read_episodes(path))
            if {e.weights for e in episodes if e.weights} <= {self.policy.weights_hash}:
                self.progress.advance(len(episodes))
                return episodes
        began = time.perf_counter()
        episodes = rollout(
            self.policy, self.domain, self.harness, dealt, "weight", seed, self.config.group, self.progress.advance
        )
        prompt, sampled = tokens(episodes)
        self.ledger.add(
            Spent(
                self._ledger_key(number, "sampling"),
                "sampling",
                len(episodes),
                prompt,
                sampled,
                seconds=time.perf_counter() - began,
                dollars=judged(episodes),
            )
        )
        write_episodes(path, episodes)
        return episodes

    def _ledger_key(self, number: int, kind: str) -> str:
        return f"{self.key}/step-{number:04d}/{kind}"


def _place(place: Place, prompts: int, tasks: int) -> Place:
    """Where a step of `prompts` tasks begins: a new epoch when the old one has too few left."""
    return place if place.at + prompts <= tasks else Place(place.epoch + 1, 0)


def _step_seed(seed: int, place: Place) -> int:
    """A step's seed, from the run's and its place in the deal, which no other step of the run shares."""
    return int.from_bytes(hashlib.sha256(f"rsft/{seed}/{place.epoch}/{place.at}".encode()).digest()[:6], "big")


def _identity(config: WeightPhaseConfig, harness: Harness, tasks: str, seed: int, key: str) -> dict[str, Any]:
    """What must stay the same for a phase to be resumed: all that decides its result but the number of steps."""
    fields = asdict(config)
    for free in ("steps", "micro_batch", "max_row_tokens"):  # may be changed, to go on after memory ran out
        del fields[free]
    return {"key": key, "seed": seed, "harness": harness.hash, "tasks": tasks, **fields}


def _claim(out: Path, identity: dict[str, Any]) -> None:
    """Write down whose folder `out` is, or check that it is this phase's."""
    path = out / "phase.json"
    if not path.exists():
        write_atomic(path, msgspec.json.format(msgspec.json.encode(identity)) + b"\n")
        return
    there = msgspec.json.decode(path.read_bytes())
    for name, value in identity.items():
        if there.get(name) != value:
            raise UserError(
                f"{out} holds a weight phase with {name}={there.get(name)!r}, not {value!r}: "
                "go on with the same settings, or give another --out"
            )


def _line(key: str, steps: int, record: StepRecord) -> str:
    """A step for people."""
    summary, update = record.summary, record.update
    head = f"{key} step {record.step}/{steps}: reward {summary.reward:.3f}, {summary.accepted:.0%} accepted"
    failed = "".join(f", {n} failed ({owner})" for owner, n in summary.failures.items())
    if record.dropped:
        failed += f", {record.dropped} rows too long"
    if update is None:
        return f"{head}{failed}; nothing to train on, weights unchanged"
    return f"{head}{failed}; loss {update.loss:.3f} on {update.tokens:,} tokens of {record.rows} rows"
