"""Attention within each of the rows that `padding_free` puts one behind the other.

Without FlashAttention, transformers keeps such rows apart by a mask over all of them together, whose cost grows with
the square of their joint length: eight rows take eight times the work of attention, and training is two to three times
slower than with padding. Here each row attends to itself alone, causally and without a mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

#: The name by which transformers knows it.
NAME = "sdpa_row_by_row"


def _attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    *,
    cu_seq_lens_q: torch.Tensor,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of rows that end at `cu_seq_lens_q` [rows + 1]; query, key and value are [1, heads, tokens, size]."""
    lengths = cu_seq_lens_q.diff().tolist()
    rows = zip(*(tensor.split(lengths, dim=2) for tensor in (query, key, value)), strict=True)
    return torch.cat([sdpa_attention_forward(module, *row, None, **kwargs)[0] for row in rows], dim=1), None


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)


@contextmanager
def row_by_row(model: PreTrainedModel) -> Iterator[None]:
    """Within it a model's attention is row by row, where it is PyTorch's own and looks at whole rows."""
    config = model.config.get_text_config()
    windows = {kind for kind in getattr(config, "layer_types", None) or () if "sliding" in kind or "chunked" in kind}
    if config._attn_implementation != "sdpa" or windows:
        yield
        return
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation("sdpa")
