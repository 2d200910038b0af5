"""What a policy is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from whale_envs.episode import Call, Reply
from whale_envs.harness.helpers import Ask


class Sampling(msgspec.Struct, frozen=True):
    """How completions are sampled (the paper's values, section on RSFT: temperature 1.0, top-p 1, top-k 20).

    `temperature` 0 is greedy; `top_k` 0 keeps every token.
    """

    temperature: float = 1.0
    top_k: int = 20
    top_p: float = 1.0


class Request(msgspec.Struct, frozen=True):
    """One model call to be made.

    `seed` decides the sampling of this call alone, whatever else is in the batch. `previous` is the same episode's
    last call: when `ask.messages` extends its messages and reply, the prompt is its token ids with new ones
    appended, so that what the model saw and sampled is kept token for token.
    """

    ask: Ask
    seed: int
    max_tokens: int
    previous: Call | None = None


class PolicyError(Exception):
    """A request that a policy could not answer; the episode it belongs to fails with owner "policy"."""


class Policy(Protocol):
    """Answers asks."""

    @property
    def name(self) -> str:
        """How people call it."""

    @property
    def weights_hash(self) -> str:
        """A hash of what decides its replies (weights, sampling)."""

    def generate(self, requests: Sequence[Request]) -> list[Reply | PolicyError]:
        """One reply (or error) a request, in order. Never raises for a single request's failure."""
