"""Checkpoints of the weight phase: a folder a step, committed by one rename, the one before it removed.

`step-0003/` is a Hugging Face model directory (config, weights, tokenizer) that holds besides `optimizer.pt` and
`rsft.json`, the `State`: what to go on with, and the records of the steps so far.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging

from whale_envs import UserError
from whale_train.rsft.select import Summary
from whale_train.rsft.trainer import RSFTTrainer, Update

STATE, OPTIMIZER = "rsft.json", "optimizer.pt"


class Place(msgspec.Struct, frozen=True):
    """Where in the deal of D_weight's tasks the next step begins: epoch, and task within it."""

    epoch: int = 0
    at: int = 0


class StepRecord(msgspec.Struct, frozen=True):
    """What one step did: `step` counts from 1 within the phase, `place` is where its tasks were dealt from.

    `rows` were trained on, `dropped` were longer than the limit. `update` is None when nothing was left to train
    on. `seconds` by part: "sampling", "training", "saving".
    """

    step: int
    place: Place
    summary: Summary
    rows: int
    dropped: int
    prompt_tokens: int
    sampled_tokens: int
    update: Update | None
    seconds: dict[str, float]


class State(msgspec.Struct, frozen=True):
    """What a phase goes on with: steps done, the next step's place in the deal, and a record a step."""

    step: int = 0
    place: Place = Place()
    records: list[StepRecord] = []


def latest(out: Path) -> Path | None:
    """The checkpoint of the last step that was committed under `out`."""
    found = [path for path in out.glob("step-*") if re.fullmatch(r"step-\d+", path.name)]
    return max(found, key=lambda path: int(path.name.removeprefix("step-")), default=None)


def read_state(folder: Path) -> State:
    """The state in a checkpoint; `UserError` when the folder is none of a weight phase."""
    try:
        return msgspec.json.decode((folder / STATE).read_bytes(), type=State)
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"{folder} is no checkpoint of a weight phase: expected {STATE} in it ({error})") from None


def load(folder: Path, trainer: RSFTTrainer) -> State:
    """Put a checkpoint's weights and optimiser state into `trainer`, bit for bit; returns its state."""
    state = read_state(folder)
    model = trainer.model
    with _no_progress_bars():
        loaded = type(model).from_pretrained(folder, dtype=model.dtype)
    model.load_state_dict(loaded.state_dict())
    if (folder / OPTIMIZER).exists():
        trainer.load_optimizer((folder / OPTIMIZER).read_bytes())
    return state


def draft(out: Path, step: int, trainer: RSFTTrainer) -> Path:
    """Write weights and optimiser state to a folder that does not count until `commit`."""
    folder = out / f".step-{step:04d}.tmp"
    with _writing(folder), _no_progress_bars():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        trainer.model.save_pretrained(folder)
        trainer.processing_class.save_pretrained(folder)
        if (optimizer := trainer.optimizer_state()) is not None:
            (folder / OPTIMIZER).write_bytes(optimizer)
    return folder


def commit(folder: Path, out: Path, state: State) -> Path:
    """Make a draft the checkpoint of `state.step` by one rename, then remove the one before it."""
    final = out / f"step-{state.step:04d}"
    with _writing(final):
        (folder / STATE).write_bytes(msgspec.json.encode(state))
        for path in [*folder.rglob("*"), folder]:
            _sync(path)
        os.replace(folder, final)
        _sync(out)
    tidy(out)
    return final


def tidy(out: Path) -> None:
    """Remove every checkpoint but the latest, and drafts."""
    last = latest(out)
    for path in [*out.glob("step-*"), *out.glob(".step-*")]:
        if path != last:
            shutil.rmtree(path, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn a failed write (a full disk, say) into a `UserError`."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"cannot write {path}: {reason}; free some space or give another --out, then run the same command again"
        ) from error


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """transformers draws a bar for every load and save."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
