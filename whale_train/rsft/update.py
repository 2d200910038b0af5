"""One optimiser step: which rows share it, what it did, and what may go wrong in it."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import torch

from whale_envs import UserError
from whale_train.rsft.rows import IGNORE, Row


class Update(msgspec.Struct, frozen=True):
    """What one optimiser step did.

    `tokens` is the number of labelled tokens in its minibatch, `loss` their mean negative log-probability, `entropy`
    the mean entropy of the distributions that they are from, both under the weights before the step, and `grad_norm`
    the gradient's norm before clipping.
    """

    tokens: int
    loss: float
    entropy: float
    grad_norm: float


def averages(updates: Sequence[Update]) -> dict[str, float]:
    """`loss` and `entropy` as means over all tokens, `grad_norm` as the mean over updates; empty without updates."""
    if not updates:
        return {}
    tokens = sum(update.tokens for update in updates)
    return {
        "loss": sum(update.loss * update.tokens for update in updates) / tokens,
        "entropy": sum(update.entropy * update.tokens for update in updates) / tokens,
        "grad_norm": sum(update.grad_norm for update in updates) / len(updates),
    }


def minibatches(rows: Sequence[Row], size: int, seed: int) -> list[list[Row]]:
    """Rows shuffled by `seed` and cut in minibatches of `size` (the last may be smaller).

    Within one, rows go by length, so that little of a micro-batch is padding; that changes no sum.
    """
    order = list(rows)
    random.Random(seed).shuffle(order)
    return [sorted(order[i : i + size], key=len) for i in range(0, len(order), size)]


def blank(rows: Sequence[Row]) -> Row:
    """A row without labels, for a process that has none of a micro-batch's rows: every process must take part."""
    return Row(rows[0].input_ids[:2], [IGNORE, IGNORE])


def check_finite(value: float, what: str) -> None:
    """Raise `UserError` for a loss or a gradient that is not a number."""
    if not math.isfinite(value):
        raise UserError(
            f"training diverged: the {what} is {value}; the weights before this step are kept. Give a smaller learning "
            "rate and another output folder, or run the same again if the machine was at fault"
        )


@contextmanager
def kept_apart() -> Iterator[None]:
    """Turn what a model of linear attention says to rows without padding between them into a `UserError`."""
    try:
        yield
    except ValueError as error:
        if "packed sequences apart" not in str(error):
            raise
        raise UserError(f"padding_free=True: {error} Or leave padding_free out") from error


@contextmanager
def memory_for(what: str, smaller: str) -> Iterator[None]:
    """Turn memory that runs out into a `UserError` that says what to make smaller."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # on the CPU, torch's allocator raises a plain RuntimeError
        known = isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
        if not known:
            raise
        raise UserError(f"out of memory {what}: give a smaller {smaller}, then run the same again") from error
