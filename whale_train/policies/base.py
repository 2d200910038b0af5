"""What a policy is: it opens samplers, in which requests come and go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from whale_envs.episode import Call, Reply
from whale_envs.harness.helpers import Ask

if TYPE_CHECKING:
    from torch import Tensor


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


#: A request's ticket and what became of it.
Ended = tuple[int, Reply | PolicyError]


class Sampler(ABC):
    """Requests on their way: hand some in, take those out that have ended, hand in more.

    The same requests, handed in and taken out in the same order, give the same replies in the same order.
    """

    @abstractmethod
    def submit(self, requests: Sequence[Request]) -> list[int]:
        """Hand in requests; their tickets, in order. Never raises for a single request's failure."""

    @abstractmethod
    def collect(self) -> list[Ended]:
        """Those that have ended since the last call, after waiting for at least one; none if none is on its way."""

    def close(self) -> None:  # noqa: B027 - most have nothing to give back
        """Drop what is on its way."""


class Policy(Protocol):
    """Answers asks. Inherit from it: `generate` comes with `sampler`."""

    #: How people call it.
    name: str

    @property
    def weights_hash(self) -> str:
        """A hash of what decides its replies (weights, sampling)."""

    @abstractmethod
    def sampler(self) -> Sampler:
        """A sampler of its own for a set of episodes. The weights may not change while it is used."""

    def generate(self, requests: Sequence[Request]) -> list[Reply | PolicyError]:
        """One reply (or error) a request, in order."""
        sampler = self.sampler()
        try:
            tickets, ended = sampler.submit(requests), dict[int, Reply | PolicyError]()
            while len(ended) < len(tickets):
                ended.update(sampler.collect())
        finally:
            sampler.close()
        return [ended[ticket] for ticket in tickets]


class Engine(Policy):
    """A policy that samples from a copy of a trainer's weights.

    Nothing in what it samples tells when the copy is an old one. So it has to say how likely it finds given tokens,
    too, which the trainer holds against its own figures after each handing over.
    """

    @property
    @abstractmethod
    def bits(self) -> int:
        """How many bits the numbers have that it computes with: 32, or 16."""

    @abstractmethod
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Take over the weights in the state dict of a model of transformers."""

    @abstractmethod
    def logprobs(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """The log-probability of each row's tokens but the first, given those before, at temperature 1."""

    @abstractmethod
    def sleep(self) -> None:
        """Leave what memory it can to the trainer; it wakes when it is given weights or asked for a sampler."""


class AtOnce(Sampler):
    """The sampler of a policy that needs no time, or no more of it for one request than for many together."""

    def __init__(self, answer: Callable[[list[Request]], Sequence[Reply | PolicyError]]) -> None:
        self._answer = answer
        self._waiting: list[tuple[int, Request]] = []
        self._tickets = 0

    def submit(self, requests: Sequence[Request]) -> list[int]:
        """See `Sampler.submit`."""
        tickets = list(range(self._tickets, self._tickets + len(requests)))
        self._tickets += len(requests)
        self._waiting += zip(tickets, requests, strict=True)
        return tickets

    def collect(self) -> list[Ended]:
        """See `Sampler.collect`."""
        waiting, self._waiting = self._waiting, []
        replies = self._answer([request for _, request in waiting])
        return [(ticket, reply) for (ticket, _), reply in zip(waiting, replies, strict=True)]
