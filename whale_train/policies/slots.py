"""A key/value cache in which requests come and go: a slot a request, a column a token.

For models whose layers all cope with plain keys and values (Llama, Qwen3, most others); `fits` finds out. A request's
tokens stand in the columns of its slot from the first one on, so that a token's column is its position: whatever else
is in the batch, it sees the tokens before it in its own slot and nothing else. A slot that has ended keeps its keys
and values for the episode's next turn until another request needs it. Callers hold `torch.inference_mode()`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

#: Tokens in one prefill pass: small enough that a small model's activations stay in a CPU's cache (on two cores,
#: 4,096 ran 1.2 to 1.6 times as many tokens a second as 38,400), large enough to feed a GPU.
PREFILL_TOKENS = 4096
#: Tokens that prompts have to share beyond what is known to be shared, for it to be worth a pass of its own.
WORTH_SHARING = 32
#: What models call the cache; with transformers 5.19, which vLLM 0.32 wants, it is past_key_values.
_CACHE = next(
    name for name in ("cache", "past_key_values") if name in inspect.signature(LlamaForCausalLM.forward).parameters
)


class _Layer(DynamicLayer):
    """One layer's view of the cache: writes new states where they belong and returns all that may be looked at."""

    def __init__(self, keys: Tensor, values: Tensor, slots: Tensor | None, columns: Tensor, end: int) -> None:
        super().__init__()
        self._keys, self._values, self._slots, self._columns, self._end = keys, values, slots, columns, end
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Add states [rows, kv heads, new, head dim]; returns keys and values [rows, kv heads, end, head dim]."""
        return self._put(self._keys, key_states), self._put(self._values, value_states)

    def _put(self, buffer: Tensor, states: Tensor) -> Tensor:
        rows = len(states)
        if self._slots is None:  # the first `rows` slots, a token each
            buffer[torch.arange(rows, device=buffer.device), :, self._columns[:, 0]] = states[:, :, 0]
            return buffer[:rows, :, : self._end]
        buffer[self._slots[:, None], :, self._columns] = states.transpose(1, 2)
        return buffer[:, :, : self._end].index_select(0, self._slots)

    def get_seq_length(self) -> int:
        """Columns in use."""
        return self._end


class Slots:
    """Keys and values [layers, slots, kv heads, columns, head dim] of a model, and how many tokens each slot holds."""

    def __init__(self, model: PreTrainedModel, slots: int, columns: int) -> None:
        self._model = model
        self._common: list[int] = []  # the beginning that fresh prompts share, and its keys and values, no slot's own
        self._common_kv: tuple[Tensor, Tensor] | None = None
        self.lengths = np.zeros(slots, dtype=np.int64)
        self._keys, self._values = (self._new(like, slots, columns) for like in _states(model))

    @staticmethod
    def _new(like: Tensor, slots: int, columns: int) -> Tensor:
        # zeros, since a masked column still takes part as 0 * value, and what was in memory may be NaN;
        # one column more, for the padding of prompts
        layers, _, heads, _, size = like.shape
        return like.new_zeros(layers, slots, heads, columns + 1, size)

    @property
    def columns(self) -> int:
        """How many tokens a slot has room for."""
        return self._keys.shape[3] - 1

    def resize(self, slots: int, columns: int) -> None:
        """Make room for so many slots, or keep only the first ones, of so many tokens at least."""
        old, kept, width = (self._keys, self._values), min(slots, len(self.lengths)), self.columns
        columns = max(columns, width)
        if (slots, columns) == (len(self.lengths), width):
            return
        self._keys, self._values = (self._new(buffer, slots, columns) for buffer in old)
        for new, buffer in zip((self._keys, self._values), old, strict=True):
            new[:, :kept, :, :width] = buffer[:, :kept, :, :width]
        self.lengths = np.pad(self.lengths[:kept], (0, slots - kept))

    def prefill(self, slots: Sequence[int], prompts: Sequence[list[int]], known: Sequence[int]) -> Tensor:
        """Take in prompts of which `known` tokens are in their slots already: 0, or fewer than all.

        Returns the logits [prompts, vocab] of what follows them. Prompts of one length side by side save time.
        """
        known = self._with_common(slots, prompts, known)
        new = [len(prompt) - k for prompt, k in zip(prompts, known, strict=True)]
        parts = [self._prefill(slots[c], prompts[c], known[c], max(new[c])) for c in _chunks(new)]
        self.lengths[list(slots)] = [len(prompt) for prompt in prompts]
        return torch.cat(parts)

    def _prefill(self, slots: Sequence[int], prompts: Sequence[list[int]], known: Sequence[int], width: int) -> Tensor:
        ids, positions = torch.zeros(len(slots), width, dtype=torch.long), torch.zeros(len(slots), width).long()
        columns = torch.full_like(ids, self.columns)  # padding, on the left, goes where nobody looks
        for i, (prompt, k) in enumerate(zip(prompts, known, strict=True)):
            gap = width - (len(prompt) - k)
            ids[i, gap:] = torch.tensor(prompt[k:])
            columns[i, gap:] = positions[i, gap:] = torch.arange(k, len(prompt))
        return self._forward(torch.tensor(slots), ids, positions, columns, max(map(len, prompts)))

    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token to each of the first slots [rows]; returns the logits [rows, vocab] of the next.

        Lengths are the caller's to move on: what a slot that has ended is fed is overwritten by what comes next.
        """
        lengths = self.lengths[: len(tokens)]
        positions = torch.from_numpy(lengths[:, None].copy())
        return self._forward(None, tokens[:, None], positions, positions, int(lengths.max()) + 1)

    def _forward(self, slots: Tensor | None, ids: Tensor, positions: Tensor, columns: Tensor, end: int) -> Tensor:
        device = self._keys.device
        slots, columns = None if slots is None else slots.to(device), columns.to(device)
        cache = Cache(layers=[_Layer(k, v, slots, columns, end) for k, v in zip(self._keys, self._values, strict=True)])
        positions = positions.to(device)
        hidden = torch.arange(end, device=device) > positions[:, None, :, None]
        mask = torch.zeros(hidden.shape, dtype=self._keys.dtype, device=device).masked_fill_(hidden, -torch.inf)
        return forward(self._model, ids.to(device), mask, positions, cache)

    def copy(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Give slots what others hold."""
        end = int(self.lengths[list(source)].max())
        for buffer in (self._keys, self._values):
            buffer[:, list(target), :, :end] = buffer[:, list(source), :, :end]
        self.lengths[list(target)] = self.lengths[list(source)]

    def swap(self, one: Sequence[int], other: Sequence[int]) -> None:
        """Exchange what slots hold, pair by pair."""
        self_, others = [*one, *other], [*other, *one]
        end = int(self.lengths[self_].max())
        for buffer in (self._keys, self._values):
            buffer[:, self_, :, :end] = buffer[:, others, :, :end]
        self.lengths[self_] = self.lengths[others]

    def _with_common(self, slots: Sequence[int], prompts: Sequence[list[int]], known: Sequence[int]) -> list[int]:
        """Give fresh prompts the beginning that they share with each other or with earlier ones, computed once."""
        fresh = [i for i, k in enumerate(known) if not k]
        if not fresh:
            return list(known)
        low, high = min(prompts[i] for i in fresh), max(prompts[i] for i in fresh)
        shared = _shared(low, high)  # all lists between the two in order share what these two share
        length = min(_shared(low, self._common), _shared(high, self._common))
        if len(fresh) > 1 and shared >= length + WORTH_SHARING:
            self._common, length = low[:shared], shared
            self._prefill([slots[fresh[0]]], [low[:shared]], [0], shared)
            self._common_kv = tuple(b[:, slots[fresh[0]], :, :shared].clone() for b in (self._keys, self._values))
        if length and self._common_kv:
            for buffer, kept in zip((self._keys, self._values), self._common_kv, strict=True):
                buffer[:, [slots[i] for i in fresh], :, :length] = kept[:, None, :, :length]
        return [k or min(length, len(p) - 1) for k, p in zip(known, prompts, strict=True)]


def _shared(a: list[int], b: list[int]) -> int:
    """How many tokens two lists have in common at their beginning."""
    limit = min(len(a), len(b))
    return next((i for i in range(limit) if a[i] != b[i]), limit)


def _chunks(widths: list[int]) -> list[slice]:
    """Neighbouring rows in groups of at most PREFILL_TOKENS tokens, padding counted; one row is always allowed."""
    chunks, start = [], 0
    for row in range(1, len(widths) + 1):
        if row == len(widths) or (row + 1 - start) * max(widths[start : row + 1]) > PREFILL_TOKENS:
            chunks.append(slice(start, row))
            start = row
    return chunks


def forward(model: PreTrainedModel, ids: Tensor, mask: Tensor, positions: Tensor, cache: Cache) -> Tensor:
    """Logits [rows, vocab] in float32 after the last column of `ids` [rows, columns]."""
    given = {_CACHE: cache}
    out = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1, **given)
    logits: Tensor = out.logits[:, -1].float()
    return logits


def one_token(model: PreTrainedModel) -> DynamicCache:
    """The model's own cache after one token."""
    cache = DynamicCache(config=model.config)
    one = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    forward(model, one, one + 1, one, cache)
    return cache


def _states(model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """Keys and values of one token, each [layers, 1, kv heads, 1, head dim].

    Raises `ValueError` if the layers are not all of one shape and kind.
    """
    cache = one_token(model)
    states = [(layer.keys, layer.values) for layer in cache.layers if type(layer) is DynamicLayer]
    if len(states) < len(cache.layers) or len({(keys.shape, values.shape) for keys, values in states}) != 1:
        raise ValueError("not every layer keeps plain keys and values")
    keys, values = (torch.stack(tensors) for tensors in zip(*states, strict=True))
    return keys, values


@torch.inference_mode()
def fits(model: PreTrainedModel) -> bool:
    """Whether slots give what the model gives without a cache, found out by trying on a few tokens."""
    prompts = [[5, 3, 7, 2, 4], [1, 6]]
    training = model.training
    model.eval()
    try:
        slots = Slots(model, 2, 8)
        slots.prefill([1, 0], prompts, [0, 0])
        got = slots.step(torch.tensor([8, 9], device=model.device))
        ids = [torch.tensor([prompt], device=model.device) for prompt in ([1, 6, 8], [5, 3, 7, 2, 4, 9])]
        want = torch.cat([model(input_ids=i).logits[:, -1].float() for i in ids])
    except (ValueError, RuntimeError):
        return False  # a mask of four dimensions or a cache of ours is not for every model
    finally:
        model.train(training)
    return bool((got - want).abs().max() <= 0.02 * want.abs().max() + 1e-3) or not bool(want.isfinite().all())
