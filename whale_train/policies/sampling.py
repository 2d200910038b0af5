"""Sampling of tokens from logits by seeds of their own: the same request gets the same reply in any batch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from whale_train.policies.base import Sampling

# Constants of splitmix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators", figure 16).
_GAMMA, _MIX1, _MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def stream(seeds: list[int]) -> npt.NDArray[np.uint64]:
    """The start of each seed's stream of random numbers, shape [rows]. Near seeds give far-apart streams."""
    return _mix(np.array([seed % 2**64 for seed in seeds], dtype=np.uint64))


def uniforms(streams: npt.NDArray[np.uint64], k: int | npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The k-th number of each stream, in [0, 1), shape [rows]: a pure function of (seed, k)."""
    step = (np.full_like(streams, k) + np.uint64(1)) * np.uint64(_GAMMA)
    return (_mix(streams + step) >> np.uint64(11)) * 2.0**-53


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX2)
    return z ^ (z >> np.uint64(31))


def sample(logits: Tensor, u: npt.NDArray[np.float64], sampling: Sampling) -> tuple[Tensor, Tensor]:
    """One token a row by inverse CDF. `logits` [rows, vocab] float32, `u` [rows] in [0, 1).

    Returns the tokens [rows] and their log-probabilities [rows] under the model itself: temperature 1, all tokens
    kept, whatever `sampling` says. A row whose logits are not finite gets a log-probability that is not finite.
    """
    tokens = logits.argmax(-1) if sampling.temperature == 0 else _draw(logits, u, sampling)
    logprobs = logits.gather(-1, tokens[:, None])[:, 0] - logits.logsumexp(-1)
    return tokens, logprobs


def _draw(logits: Tensor, u: npt.NDArray[np.float64], sampling: Sampling) -> Tensor:
    vocab = logits.shape[-1]
    if not sampling.top_k and sampling.top_p >= 1:
        kept, ids = logits, None
    else:
        kept, ids = logits.topk(min(sampling.top_k or vocab, vocab), sorted=True)
    p = (kept / sampling.temperature).softmax(-1).double()
    if sampling.top_p < 1:
        # the smallest set of most likely tokens that holds top_p: those before which less than top_p is gathered
        p = p.masked_fill(p.cumsum(-1) - p >= sampling.top_p, 0.0)
    cdf = p.cumsum(-1)
    target = torch.from_numpy(u).to(cdf.device)[:, None] * cdf[:, -1:]
    at = (cdf <= target).sum(-1, keepdim=True).clamp_(max=cdf.shape[-1] - 1)
    return (at if ids is None else ids.gather(-1, at))[:, 0]
