"""A request on its way through a language model, and what all samplers do with it: wait, prompt, tokens, reply."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from whale_envs.episode import FinishReason, Reply
from whale_envs.prompts import PromptError, Prompts
from whale_train.policies.base import Ended, PolicyError, Request, Sampler, Sampling
from whale_train.policies.sampling import stream


@dataclass(eq=False)
class Row:
    """One request: its prompt, the most tokens of its reply, and what has been sampled of it.

    `past` are the tokens of the episode's last call if the prompt goes on from them; `error` is why it failed.
    """

    ticket: int
    request: Request
    prompt: list[int]
    cap: int
    past: tuple[int, ...] | None
    stream: np.uint64
    completion: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: FinishReason = "length"
    error: str | None = None

    def add(self, token: int, logprob: float) -> None:
        """Write down a sampled token."""
        if not -float("inf") < logprob <= 1e-3:
            self.error = f"the model's logits are not finite after {len(self.completion)} sampled tokens"
        else:
            self.completion.append(token)
            self.logprobs.append(logprob)


class Desk:
    """Makes rows of requests, and replies of rows, for prompts and a model with a context of so many tokens."""

    def __init__(self, prompts: Prompts, context: int) -> None:
        self._prompts, self._context = prompts, context

    def make(self, requests: Sequence[Request], tickets: Sequence[int]) -> list[Row]:
        """A row a request; one that cannot be answered has its error."""
        prompts = self._prompts.ids([(r.ask, r.previous) for r in requests])
        streams = stream([r.seed for r in requests])
        return [self._row(*parts) for parts in zip(tickets, requests, prompts, streams, strict=True)]

    def _row(self, ticket: int, request: Request, prompt: list[int] | PromptError, stream: np.uint64) -> Row:
        ids = [] if isinstance(prompt, PromptError) else prompt
        room = self._context - len(ids)
        row = Row(ticket, request, ids, min(request.max_tokens, room), _past(request, ids), stream)
        if isinstance(prompt, PromptError):
            row.error = str(prompt)
        elif not ids or room < 1:
            row.error = f"a prompt of {len(ids)} tokens, expected 1 to {self._context - 1} (the model's context)"
        elif request.max_tokens < 1:
            row.error = f"max_tokens is {request.max_tokens}, expected at least 1"
        return row

    def ended(self, row: Row) -> Ended:
        """What became of a row."""
        if row.error:
            return row.ticket, PolicyError(row.error)
        text = self._prompts.text(row.completion)
        calls = self._prompts.calls(text, row.prompt, row.request.ask.tools)
        return row.ticket, Reply(text, row.finish, calls, row.prompt, row.completion, row.logprobs)


class Rows(Desk):
    """A desk that adds the tokens of a model of transformers to its rows."""

    def __init__(
        self,
        model: PreTrainedModel,
        prompts: Prompts,
        sampling: Sampling,
        bytes_per_token: int,
        bytes_per_row: int = 0,
    ) -> None:
        super().__init__(prompts, getattr(model.config.get_text_config(), "max_position_embeddings", None) or 2**31)
        self.model, self.sampling = model, sampling
        self.bytes_per_token, self.bytes_per_row = bytes_per_token, bytes_per_row
        self._ends = np.array(sorted(prompts.ends))

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """The model in evaluation mode; as it was, afterwards."""
        if not self.model.training:
            yield
            return
        self.model.eval()
        try:
            yield
        finally:
            self.model.train()

    def append(
        self, rows: Sequence[Row], tokens: npt.NDArray[np.int64], logprobs: npt.NDArray[np.float32]
    ) -> list[int]:
        """Write down one sampled token a row; returns the places of the rows that have ended."""
        stops = np.isin(tokens, self._ends)
        ended = []
        for at, (row, token, logprob, stop) in enumerate(
            zip(rows, tokens.tolist(), logprobs.tolist(), stops.tolist(), strict=True)
        ):
            row.add(token, logprob)
            if stop or (row.request.ask.stop and self._stopped(row)):
                row.finish = "stop"
            if row.error or row.finish == "stop" or len(row.completion) == row.cap:
                ended.append(at)
        return ended

    def _stopped(self, row: Row) -> bool:
        """Whether the last token has completed a stop string; a string of n bytes lies in n tokens or fewer."""
        longest = max(len(stop.encode()) for stop in row.request.ask.stop)
        tail = self._prompts.decode(row.completion[-longest - 4 :])
        return any(stop in tail for stop in row.request.ask.stop)


class RowSampler(Sampler):
    """A sampler of at most `max_batch` rows at once, whose keys and values are estimated to stay under `cache_bytes`.

    Those that wait are in `_waiting`, in order; `_advance` puts the ended ones into `_ended`.
    """

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
        with self._rows.evaluating():
            self._advance()
        ended, self._ended = self._ended, []
        return ended

    @abstractmethod
    def _advance(self) -> None:
        """Sample until some rows have ended, if any are on their way."""


def _past(request: Request, prompt: list[int]) -> tuple[int, ...] | None:
    """The tokens of the episode's last call, prompt and completion, if the prompt goes on from them."""
    if not request.previous or not request.previous.reply.prompt_ids or not request.previous.reply.completion_ids:
        return None
    past = (*request.previous.reply.prompt_ids, *request.previous.reply.completion_ids)
    return past if len(past) <= len(prompt) and tuple(prompt[: len(past)]) == past else None
