"""Sampling in waves, for models whose caches cannot be cut apart (sliding windows, linear attention).

A batch of requests is sampled to its end before the next begins, with the model's own kind of cache and prompts padded
on the left; rows that end leave the batch at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel

from whale_train.policies.base import Ended, Request, Sampler
from whale_train.policies.row import Row, Rows
from whale_train.policies.sampling import sample, uniforms
from whale_train.policies.slots import forward


class WaveSampler(Sampler):
    """A sampler of batches of at most `max_batch` rows, whose caches are estimated to stay under `cache_bytes`."""

    def __init__(self, rows: Rows, max_batch: int, cache_bytes: int) -> None:
        self._rows, self._max_batch, self._cache_bytes = rows, max_batch, cache_bytes
        self._tickets = count()
        self._waiting: list[Row] = []
        self._ended: list[Ended] = []

    def submit(self, requests: Sequence[Request]) -> list[int]:
        """See `Sampler.submit`."""
        tickets = [next(self._tickets) for _ in requests]
        for row in self._rows.make(requests, tickets):
            if row.error:
                self._ended.append(self._rows.ended(row))
            else:
                self._waiting.append(row)
        return tickets

    @torch.inference_mode()
    def collect(self) -> list[Ended]:
        """See `Sampler.collect`."""
        if not self._ended and self._waiting:
            self._waiting.sort(key=lambda row: len(row.prompt))
            batch = self._waiting[: self._fitting()]
            del self._waiting[: len(batch)]
            with self._rows.evaluating():
                self._run(batch)
            self._ended = [self._rows.ended(row) for row in batch]
        ended, self._ended = self._ended, []
        return ended

    def _fitting(self) -> int:
        """How many of the rows that wait make a batch; one always does."""
        widest = 0
        for at, row in enumerate(self._waiting[: self._max_batch]):
            widest = max(widest, len(row.prompt) + row.cap)
            if at and (at + 1) * widest * self._rows.bytes_per_token > self._cache_bytes:
                return at
        return min(len(self._waiting), self._max_batch)

    def _run(self, rows: list[Row]) -> None:
        """Sample all rows to their ends."""
        model = self._rows.model
        width = max(len(row.prompt) for row in rows)
        gaps = [width - len(row.prompt) for row in rows]
        ids = [[0] * gap + row.prompt for gap, row in zip(gaps, rows, strict=True)]
        mask = torch.tensor([[0] * gap + [1] * (width - gap) for gap in gaps], device=model.device)
        cache = DynamicCache(config=model.config)
        positions = (mask.cumsum(1) - 1).clamp_(min=0)
        logits = forward(model, torch.tensor(ids, device=model.device), mask, positions, cache)
        streams = np.array([row.stream for row in rows])
        for k in range(max(row.cap for row in rows)):
            drawn, logprobs = sample(logits, uniforms(streams, k), self._rows.sampling)
            ended = set(self._rows.append(rows, drawn.cpu().numpy(), logprobs.cpu().numpy()))
            if len(ended) == len(rows):
                return
            if ended:
                stay = [at for at in range(len(rows)) if at not in ended]
                rows, streams = [rows[at] for at in stay], streams[stay]
                kept = torch.tensor(stay, device=model.device)
                cache.reorder_cache(kept)
                mask, drawn = mask[kept], drawn[kept]
            positions = mask.sum(1, keepdim=True)
            mask = torch.nn.functional.pad(mask, (0, 1), value=1)
            logits = forward(model, drawn[:, None], mask, positions, cache)


@torch.inference_mode()
def bytes_per_token(model: PreTrainedModel) -> int:
    """The size of what a model's own cache keeps of one token."""
    cache = DynamicCache(config=model.config)
    one = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    forward(model, one, one + 1, one, cache)
    known = [t for layer in cache.layers for t in (getattr(layer, "keys", None), getattr(layer, "values", None))]
    return sum(t.nbytes for t in known if t is not None)
