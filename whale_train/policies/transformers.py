"""A policy over any causal language model of transformers: batched sampling that keeps what was sampled.

Covers: exact prompts (`whale_envs.prompts`), requests that join as others end (`continuous.py`; in batches with
models that allow no better, `waves.py`), seeds of their own (`sampling.py`), errors that stay with their request. Does
not cover: beams, images.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from whale_envs.prompts import Prompts
from whale_train.policies.base import Policy, Sampler, Sampling
from whale_train.policies.continuous import SlotSampler
from whale_train.policies.row import Rows
from whale_train.policies.slots import fits
from whale_train.policies.waves import WaveSampler, bytes_per_row, bytes_per_token

#: The keys and values of a sampler are held under this many bytes (estimated from prompts and caps).
CACHE_BYTES = 2 * 2**30


class TransformersPolicy(Policy):
    """Samples replies from a causal language model.

    A reply's `completion_ids` are all tokens that were sampled, the turn-ending token among them (finish reason
    "stop"); a reply that reaches its cap, or the end of the model's context, has "length". One of an ask's `stop`
    strings ends a reply too ("stop"), and stays in the text. `logprobs` are the sampled tokens' log-probabilities
    under the plain model: temperature 1, no top-k, no top-p. `text` is the completion decoded, special tokens
    shown, without the turn-ending token; where the ask has tools, `tool_calls` are those that are in it.

    A reply is decided by weights, prompt and `Request.seed`; what else is in the batch changes logits in the last
    bits only. The model may be one that a trainer in the same process trains: call `weights_changed()` after each
    optimiser step.

    Args:
        model: any causal language model of transformers.
        tokenizer: its tokenizer, with a chat template.
        sampling: temperature, top-k, top-p.
        name: how people call the policy.
        max_batch: most rows decoded at once.
        device: where to run; None leaves the model where it is.

    Raises `UserError` for a tokenizer without a usable chat template.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        sampling: Sampling | None = None,
        name: str = "transformers",
        max_batch: int = 256,
        device: str | torch.device | None = None,
    ) -> None:
        self.name = name
        self.model = model if device is None else model.to(device)
        self.tokenizer = tokenizer
        self.sampling = sampling or Sampling()
        self.max_batch = max_batch
        self.prompts = Prompts(tokenizer, end_tokens(model.generation_config, tokenizer))
        self._continuous = fits(model)
        self._rows = Rows(model, self.prompts, self.sampling, bytes_per_token(model), bytes_per_row(model))
        self._hash: str | None = None

    @property
    def weights_hash(self) -> str:
        """12 hex digits of a hash of the parameters and the sampling."""
        if self._hash is None:
            self._hash = hashlib.sha256(f"{hash_weights(self.model)} {self.sampling}".encode()).hexdigest()[:12]
        return self._hash

    def weights_changed(self) -> None:
        """Say that the model's parameters were changed in place; samplers from before are of no use any more."""
        self._hash = None

    def load_weights(self, source: nn.Module | Mapping[str, Tensor]) -> None:
        """Take over the weights of another module of the same shape, or a state dict."""
        if source is not self.model:
            self.model.load_state_dict(source.state_dict() if isinstance(source, nn.Module) else source)
        self.weights_changed()

    def sampler(self) -> Sampler:
        """See `Policy.sampler`."""
        kind = SlotSampler if self._continuous else WaveSampler
        return kind(self._rows, self.max_batch, CACHE_BYTES)


def hash_weights(model: nn.Module) -> str:
    """12 hex digits of a hash of a module's parameters: names, types, shapes and values."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        data = parameter.detach().cpu().contiguous()
        digest.update(f"{name} {data.dtype} {tuple(data.shape)}".encode())
        digest.update(data.flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:12]


def end_tokens(generation: GenerationConfig | None, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The end tokens that a model's way of generating and its tokenizer name."""
    named = generation.eos_token_id if generation else None
    ids = named if isinstance(named, list) else [named]
    return [i for i in [*ids, tokenizer.eos_token_id] if i is not None]
