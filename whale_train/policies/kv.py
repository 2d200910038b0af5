"""Key/value caches for batched decoding: prefill once, then a token a row at a time, rows leaving as they end.

Two kinds, one interface (`prefill`, `step`, `keep`, `prefix`). `BufferDecoder` serves models whose layers all cope
with plain keys and values (Llama, Qwen3, most others): it writes in place, shares what prompts have in common, and
gives out the keys and values of a finished row for that episode's next turn. `GenericDecoder` serves the rest
(sliding windows, linear attention) through transformers' own caches.

Columns of a batch are tokens, rows are requests. A row's tokens stand in order with gaps between: [gap, what was
known before, gap, what is new], so that all rows end at one column. Gaps are masked, and positions count tokens
only, so a row sees just what it would see alone. Callers hold `torch.inference_mode()`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

#: Tokens in one prefill pass: small enough that a small model's activations stay in a CPU's cache (on two cores,
#: 4,096 ran 1.2 to 1.6 times as many tokens a second as 38,400), large enough to feed a GPU.
PREFILL_TOKENS = 4096


@dataclass(frozen=True)
class Prefix:
    """Keys and values of the first `length` tokens of a prompt, each [layers, kv heads, length, head dim]."""

    keys: Tensor
    values: Tensor

    @property
    def length(self) -> int:
        """How many tokens it covers."""
        return self.keys.shape[2]

    @property
    def nbytes(self) -> int:
        """Its size in memory."""
        return self.keys.nbytes + self.values.nbytes


class _BufferLayer(DynamicLayer):
    """One layer's view of a buffer: writes new states in place and returns all states up to them."""

    def __init__(self, keys: Tensor, values: Tensor, length: int) -> None:
        super().__init__()
        self._buffers = keys, values
        self._length = length
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append states [rows, kv heads, new, head dim]."""
        start, end = self._length, self._length + key_states.shape[2]
        keys, values = self._buffers
        keys[:, :, start:end] = key_states
        values[:, :, start:end] = value_states
        self._length = end
        return keys[:, :, :end], values[:, :, :end]

    def get_seq_length(self) -> int:
        """Columns written."""
        return self._length


class BufferDecoder:
    """Decodes with keys and values in one buffer for all layers, [layers, rows, kv heads, columns, head dim]."""

    def __init__(self, model: PreTrainedModel, like: Prefix) -> None:
        self._model, self._like = model, like
        self.bytes_per_token = like.nbytes

    def prefill(self, prompts: list[list[int]], prefixes: list[Prefix | None], copies: list[int], room: int) -> Tensor:
        """Take in prompts; returns the logits [rows, vocab] of what follows them.

        `prefixes` are known beginnings, of at most all tokens but the last. Row i of the batch is prompt number
        `copies[i]`; `room` columns are set aside for new tokens (more are found when needed). Prompts of one length
        side by side save time.
        """
        prefixes = self._with_common(prompts, prefixes)
        known = [p.length if p else 0 for p in prefixes]
        new = [len(ids) - k for ids, k in zip(prompts, known, strict=True)]
        self._end = max(known) + max(new)
        self._allocate(max(len(copies), len(prompts)), self._end + room)
        for row, prefix in enumerate(prefixes):
            if prefix:
                columns = slice(max(known) - prefix.length, max(known))
                self._keys[:, row, :, columns], self._values[:, row, :, columns] = prefix.keys, prefix.values
                self._mask[row, columns] = 1
        logits = torch.cat([self._prefill_rows(prompts, known, rows) for rows in _chunks(new)])
        index = torch.tensor(copies, device=self._mask.device)
        if copies != list(range(len(prompts))):
            for buffer in (self._keys, self._values):
                buffer[:, : len(copies), :, : self._end] = buffer[:, index, :, : self._end]
            self._mask[: len(copies)] = self._mask[index]
        self._positions = torch.tensor([len(prompts[c]) for c in copies], device=self._mask.device)
        self._shrink(len(copies))
        return logits[index]

    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token a row [rows]; returns the logits [rows, vocab] of the next."""
        if self._end == self._keys.shape[3]:
            self._grow()
        self._mask[:, self._end] = 1
        cache = self._cache(self._keys, self._values, self._end)
        self._end += 1
        logits = forward(self._model, tokens[:, None], self._mask[:, : self._end], self._positions[:, None], cache)
        self._positions += 1
        return logits

    def keep(self, rows: Tensor) -> Tensor:
        """Drop all rows but `rows` (ascending). Returns the order in which they stand from now on.

        Only as many rows move as have gone: the last ones take their places.
        """
        count = len(rows)
        stay, move = rows[rows < count], rows[rows >= count]
        free = torch.ones(count, dtype=torch.bool, device=rows.device).index_fill_(0, stay, False).nonzero()[:, 0]
        if len(move):
            for buffer in (self._keys, self._values):
                buffer[:, free, :, : self._end] = buffer[:, move, :, : self._end]
            self._mask[free], self._positions[free] = self._mask[move], self._positions[move]
        self._shrink(count)
        order = torch.arange(count, device=rows.device)
        order[free] = move
        return order

    def prefix(self, row: int) -> Prefix:
        """A copy of what is known of a row's tokens so far, all that have been fed."""
        columns = self._mask[row, : self._end].nonzero()[:, 0]
        return Prefix(self._keys[:, row].index_select(2, columns), self._values[:, row].index_select(2, columns))

    def _with_common(self, prompts: list[list[int]], prefixes: list[Prefix | None]) -> list[Prefix | None]:
        """Give the prompts that have no prefix the beginning that they all share, computed once."""
        bare = [ids for ids, prefix in zip(prompts, prefixes, strict=True) if prefix is None]
        if len(bare) < 2:
            return prefixes
        low, high = min(bare), max(bare)  # all lists between the two in order share what these two share
        limit = min(len(ids) for ids in bare) - 1
        common = next((i for i in range(limit) if low[i] != high[i]), limit)
        if not common:
            return prefixes
        self._allocate(1, common)
        cache = self._cache(self._keys, self._values, 0)
        ids = torch.tensor([low[:common]], device=self._mask.device)
        forward(self._model, ids, torch.ones_like(ids), torch.arange(common, device=ids.device)[None], cache)
        shared = Prefix(self._keys[:, 0], self._values[:, 0])
        return [prefix or shared for prefix in prefixes]

    def _prefill_rows(self, prompts: list[list[int]], known: list[int], rows: slice) -> Tensor:
        width = max(len(ids) - k for ids, k in zip(prompts[rows], known[rows], strict=True))
        start = self._end - width
        ids = torch.zeros(rows.stop - rows.start, width, dtype=torch.long)
        positions = torch.zeros_like(ids)
        for i, (prompt, k) in enumerate(zip(prompts[rows], known[rows], strict=True)):
            gap = width - (len(prompt) - k)
            ids[i, gap:] = torch.tensor(prompt[k:])
            positions[i, gap:] = torch.arange(k, len(prompt))
            self._mask[rows.start + i, start + gap : self._end] = 1
        cache = self._cache(self._keys[:, rows], self._values[:, rows], start)
        device = self._mask.device
        return forward(self._model, ids.to(device), self._mask[rows, : self._end], positions.to(device), cache)

    def _allocate(self, rows: int, columns: int) -> None:
        # zeros, since a masked column still takes part as 0 * value, and what was in memory may be NaN
        layers, heads, _, _ = self._like.keys.shape
        self._keys = self._like.keys.new_zeros(layers, rows, heads, columns, self._like.keys.shape[3])
        self._values = self._like.values.new_zeros(layers, rows, heads, columns, self._like.values.shape[3])
        self._mask = torch.zeros(rows, columns, dtype=torch.long, device=self._keys.device)

    def _grow(self) -> None:
        more = self._end // 2 + 16
        self._keys = torch.nn.functional.pad(self._keys, (0, 0, 0, more))
        self._values = torch.nn.functional.pad(self._values, (0, 0, 0, more))
        self._mask = torch.nn.functional.pad(self._mask, (0, more))

    def _shrink(self, rows: int) -> None:
        self._keys, self._values, self._mask = self._keys[:, :rows], self._values[:, :rows], self._mask[:rows]
        self._positions = self._positions[:rows]

    @staticmethod
    def _cache(keys: Tensor, values: Tensor, length: int) -> Cache:
        return Cache(layers=[_BufferLayer(k, v, length) for k, v in zip(keys, values, strict=True)])


def _chunks(widths: list[int]) -> list[slice]:
    """Neighbouring rows in groups of at most PREFILL_TOKENS tokens, padding counted; one row is always allowed."""
    chunks, start = [], 0
    for row in range(1, len(widths) + 1):
        if row == len(widths) or (row + 1 - start) * max(widths[start : row + 1]) > PREFILL_TOKENS:
            chunks.append(slice(start, row))
            start = row
    return chunks


class GenericDecoder:
    """Decodes with the model's own kind of cache, prompts padded on the left; nothing is kept between calls."""

    def __init__(self, model: PreTrainedModel, bytes_per_token: int) -> None:
        self._model = model
        self.bytes_per_token = bytes_per_token

    def prefill(self, prompts: list[list[int]], prefixes: list[Prefix | None], copies: list[int], room: int) -> Tensor:
        """See `BufferDecoder.prefill`; takes no prefixes."""
        assert not any(prefixes)
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=self._model.device)
        self._mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=self._model.device)
        self._cache = DynamicCache(config=self._model.config)
        positions = (self._mask.cumsum(1) - 1).clamp_(min=0)
        logits = forward(self._model, ids, self._mask, positions, self._cache)
        index = torch.tensor(copies, device=ids.device)
        self._select(index)
        return logits[index]

    def step(self, tokens: Tensor) -> Tensor:
        """See `BufferDecoder.step`."""
        positions = self._mask.sum(1, keepdim=True)
        self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=1)
        return forward(self._model, tokens[:, None], self._mask, positions, self._cache)

    def keep(self, rows: Tensor) -> Tensor:
        """See `BufferDecoder.keep`; rows stay in order."""
        self._select(rows)
        return rows

    def prefix(self, row: int) -> Prefix | None:
        """Nothing: such a cache cannot be cut apart."""
        return None

    def _select(self, index: Tensor) -> None:
        self._cache.reorder_cache(index)
        self._mask = self._mask[index]


def forward(model: PreTrainedModel, ids: Tensor, mask: Tensor, positions: Tensor, cache: Cache) -> Tensor:
    """Logits [rows, vocab] in float32 after the last column of `ids` [rows, columns]."""
    out = model(
        input_ids=ids, attention_mask=mask, position_ids=positions, cache=cache, use_cache=True, logits_to_keep=1
    )
    logits: Tensor = out.logits[:, -1].float()
    return logits


@torch.inference_mode()
def decoder(model: PreTrainedModel) -> BufferDecoder | GenericDecoder:
    """The decoder that fits the model, found out by feeding it one token."""
    cache = DynamicCache(config=model.config)
    one = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    forward(model, one, one + 1, one, cache)
    states = [(layer.keys, layer.values) for layer in cache.layers if type(layer) is DynamicLayer]
    if len(states) == len(cache.layers) and len({(keys.shape, values.shape) for keys, values in states}) == 1:
        keys, values = (torch.cat(tensors) for tensors in zip(*states, strict=True))
        return BufferDecoder(model, Prefix(keys, values))
    known = [t for layer in cache.layers for t in (getattr(layer, "keys", None), getattr(layer, "values", None))]
    return GenericDecoder(model, sum(t.nbytes for t in known if t is not None))
