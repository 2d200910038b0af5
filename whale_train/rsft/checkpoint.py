"""Checkpoints on disk: folders that are there whole or not at all, in an output folder that belongs to one run."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from transformers.trainer import SCHEDULER_NAME, TRAINER_STATE_NAME

from whale_envs import UserError
from whale_envs.episode import read_json, write_atomic

#: Where a checkpoint is written before it counts, and what says whose folder it is.
DRAFT, CLAIM = ".draft", "rsft.json"


def checkpoints(out: Path) -> list[Path]:
    """The checkpoints that were committed under `out`, in order."""
    found = [path for path in out.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted(found, key=lambda path: int(path.name.removeprefix("checkpoint-")))


def latest(out: Path) -> Path | None:
    """The last checkpoint that was committed under `out`."""
    return checkpoints(out)[-1] if checkpoints(out) else None


def steps_done(folder: Path) -> int:
    """How many steps led to a checkpoint; `UserError` when the folder is none."""
    return int(_state(folder)["global_step"])


def check_resumable(folder: Path) -> None:
    """`UserError` when a checkpoint has weights alone: the Trainer would begin with a fresh optimiser, silently."""
    # FSDP calls it optimizer.bin or optimizer_0, and DeepSpeed keeps it in global_step<n>
    alone = not (any(folder.glob("optimizer*")) and (folder / SCHEDULER_NAME).exists())
    if alone and not any(folder.glob("global_step*")):
        raise UserError(
            f"{folder} has no state of the optimiser or of its schedule, as with save_only_model=True, so that "
            "training cannot go on as it was: give it as the model of a new run, with another output folder"
        )


def rewards(folder: Path, after: int) -> list[float]:
    """The mean reward of each step that led to a checkpoint, from the one that came after so many; `UserError` when the
    folder is none."""
    logs = _state(folder)["log_history"]
    return [log["reward"] for log in logs if "reward" in log and log["step"] > after]


def _state(folder: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = msgspec.json.decode((folder / TRAINER_STATE_NAME).read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"{folder} is no checkpoint: expected {TRAINER_STATE_NAME} in it ({error})") from None
    return state


def claim(out: Path, identity: Mapping[str, Any]) -> None:
    """Write down whose folder `out` is, or check that it is this run's; `UserError` when it is another's."""
    path = out / CLAIM
    if not path.exists():
        write_atomic(path, msgspec.json.format(msgspec.json.encode(identity)) + b"\n")
        return
    there = read_json(path, dict[str, Any])
    for name, value in msgspec.to_builtins(dict(identity)).items():
        if there.get(name) != value:
            raise UserError(
                f"{out} holds training with {name}={there.get(name)!r}, not {value!r}: "
                "go on with the same settings, or give another output folder"
            )


def commit(draft: Path, final: Path) -> None:
    """Make a draft a checkpoint by one rename, in place of one of that name."""
    for path in [*draft.rglob("*"), draft]:
        _sync(path)
    shutil.rmtree(final, ignore_errors=True)
    os.replace(draft, final)
    _sync(final.parent)


def tidy(out: Path, keep: int | None) -> None:
    """Remove drafts, and all but the last `keep` checkpoints."""
    shutil.rmtree(out / DRAFT, ignore_errors=True)
    for path in checkpoints(out)[:-keep] if keep else []:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failed write (a full disk, say) into a `UserError`."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        # torch.save says of a full disk no more than this
        if isinstance(error, RuntimeError) and "PytorchStreamWriter" not in str(error):
            raise
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise UserError(
            f"cannot write {path}: {reason}; free some space or give another output folder, then run the same again"
        ) from error


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Turn a checkpoint that is damaged, or of another model than this one, into a `UserError`."""
    try:
        yield
    except (OSError, EOFError, LookupError, ValueError, RuntimeError, SafetensorError, UnpicklingError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise UserError(
            f"cannot go on from {folder}: {' '.join(str(error).split())[:200]}. It is damaged, or of another model or "
            "other adapters: give those that it was saved with, or remove it to go on from the one before"
        ) from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
