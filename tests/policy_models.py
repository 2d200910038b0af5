"""Random small models and a tokenizer, for tests of policies."""

from __future__ import annotations

import functools
import random

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from whale_train.tiny.model import build_tokenizer


@functools.cache
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE of about 600 tokens with the bundled models' chat template; tests must not change it."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 7))) for _ in range(200)]
    texts = [
        f"Question: {' '.join(rng.choices(words, k=30))}? <search> x</search> <answer> y</answer>" for _ in range(200)
    ]
    return build_tokenizer(texts, [], 600)


def tiny_model(kind: str = "qwen3", kv_heads: int = 2, seed: int = 0, layers: int = 2) -> PreTrainedModel:
    """A random model of that architecture, with logits sharp enough that sampling differs from row to row."""
    tokenizer = tiny_tokenizer()
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": kv_heads,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "initializer_range": 0.15,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
    }
    torch.manual_seed(seed)
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**shape)).eval()
    if kind == "qwen3.5":  # three layers of linear attention, then one of full attention, over again
        linear = {f"linear_{part}_head_dim": 16 for part in ("key", "value")}
        heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
        longer = {"head_dim": 32, "max_position_embeddings": 8192}
        return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**{**shape, **longer}, **linear, **heads)).eval()
    if kind == "sliding":
        layer_types = ["sliding_attention", "full_attention"] * (layers // 2)
        return Qwen3ForCausalLM(
            Qwen3Config(**shape, use_sliding_window=True, sliding_window=8, layer_types=layer_types)
        ).eval()
    return Qwen3ForCausalLM(Qwen3Config(**shape)).eval()
