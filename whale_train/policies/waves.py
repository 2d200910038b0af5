"""Sampling in waves, for models whose caches cannot be cut apart (sliding windows, linear attention).

A batch of requests is sampled to its end before the next begins, with the model's own kind of cache and prompts padded
on the left; rows that end leave the batch at once.
"""

from __future__ import annotations

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel

from whale_train.policies.row import Row, RowSampler
from whale_train.policies.sampling import sample, uniforms
from whale_train.policies.slots import forward, one_token


class WaveSampler(RowSampler):
    """A sampler of one batch after the other."""

    def _advance(self) -> None:
        if not self._ended and self._waiting:
            self._waiting.sort(key=lambda row: len(row.prompt))
            batch = self._waiting[: self._fitting()]
            del self._waiting[: len(batch)]
            self._run(batch)
            self._ended = [self._rows.ended(row) for row in batch]

    def _fitting(self) -> int:
        """How many of the rows that wait make a batch; one always does."""
        widest = 0
        for at, row in enumerate(self._waiting[: self._max_batch]):
            widest = max(widest, len(row.prompt) + row.cap)
            each = widest * self._rows.bytes_per_token + self._rows.bytes_per_row
            if at and (at + 1) * each > self._cache_bytes:
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
    cache = one_token(model)
    known = [t for layer in cache.layers for t in (getattr(layer, "keys", None), getattr(layer, "values", None))]
    return sum(t.nbytes for t in known if t is not None)


@torch.inference_mode()
def bytes_per_row(model: PreTrainedModel) -> int:
    """The size of what a model's own cache keeps of a sequence however long it is: states of linear attention, which
    outweigh the keys and values of many tokens (Qwen3.5-2B: 18 layers of 262,144 numbers each)."""
    layers = one_token(model).layers
    states = [getattr(layer, name, {}) for layer in layers for name in ("conv_states", "recurrent_states")]
    return sum(t.nbytes for of_layer in states for t in of_layer.values() if t is not None)
