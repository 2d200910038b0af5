"""A policy over any causal language model of transformers: batched sampling that keeps what was sampled.

Covers: exact prompts (`whale_envs.prompts`), a key/value cache from which finished rows leave at once (`kv.py`),
seeds of their own (`sampling.py`), errors that stay with their request. Does not cover: admission of new requests
while a batch runs (rollouts hand in all live episodes at once), beams, images.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from whale_envs.episode import FinishReason, Reply
from whale_envs.prompts import PromptError, Prompts
from whale_train.policies.base import PolicyError, Request, Sampling
from whale_train.policies.kv import Prefix, decoder
from whale_train.policies.sampling import sample, stream, uniforms

#: Keys and values kept of the last call's rows for the next turn, and those of a running batch, are each held
#: under this many bytes (a batch's are estimated from prompt and cap).
CACHE_BYTES = 2 * 2**30


@dataclass
class _Row:
    """One request on its way: `prefix` is what is known of its prompt from the last turn."""

    request: Request
    prompt: list[int]
    cap: int
    prefix: Prefix | None
    completion: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: FinishReason = "length"
    error: str | None = None

    @property
    def fresh(self) -> int:
        """Prompt tokens that the model has yet to see."""
        return len(self.prompt) - (self.prefix.length if self.prefix else 0)


class TransformersPolicy:
    """Samples replies from a causal language model.

    A reply's `completion_ids` are all tokens that were sampled, the turn-ending token among them (finish reason
    "stop"); a reply that reaches its cap, or the end of the model's context, has "length". One of an ask's `stop`
    strings ends a reply too ("stop"), and stays in the text. `logprobs` are the sampled tokens' log-probabilities
    under the plain model: temperature 1, no top-k, no top-p. `text` is the completion decoded, special tokens
    shown, without the turn-ending token.

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
        self.prompts = Prompts(tokenizer, _eos(model, tokenizer))
        self._context: int = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 2**31
        self._ends = np.array(sorted(self.prompts.ends))
        self._decoder = decoder(model)
        self._kept: dict[tuple[int, ...], Prefix] = {}
        self._kept_bytes = 0
        self._hash: str | None = None

    @property
    def weights_hash(self) -> str:
        """12 hex digits of a hash of the parameters and the sampling."""
        if self._hash is None:
            self._hash = hashlib.sha256(f"{hash_weights(self.model)} {self.sampling}".encode()).hexdigest()[:12]
        return self._hash

    def weights_changed(self) -> None:
        """Say that the model's parameters were changed in place: what was computed from the old ones is dropped."""
        self._hash = None
        self._kept, self._kept_bytes = {}, 0

    def load_weights(self, source: nn.Module | Mapping[str, Tensor]) -> None:
        """Take over the weights of another module of the same shape, or a state dict."""
        if source is not self.model:
            self.model.load_state_dict(source.state_dict() if isinstance(source, nn.Module) else source)
        self.weights_changed()

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request]) -> list[Reply | PolicyError]:
        """One reply or `PolicyError` a request, in order."""
        prompts = self.prompts.ids([(r.ask, r.previous) for r in requests])
        rows = [self._row(r, p) for r, p in zip(requests, prompts, strict=True)]
        self._kept, self._kept_bytes = {}, 0
        good = sorted((row for row in rows if isinstance(row, _Row)), key=lambda row: (row.fresh, row.prompt))
        training = self.model.training
        self.model.eval()
        try:
            for batch in self._batches(good):
                self._run(batch)
        finally:
            self.model.train(training)
        return [row if isinstance(row, PolicyError) else self._reply(row) for row in rows]

    def _row(self, request: Request, prompt: list[int] | PromptError) -> _Row | PolicyError:
        if isinstance(prompt, PromptError):
            return PolicyError(str(prompt))
        room = self._context - len(prompt)
        if not prompt or room < 1:
            return PolicyError(
                f"a prompt of {len(prompt)} tokens, expected 1 to {self._context - 1} (the model's context)"
            )
        if request.max_tokens < 1:
            return PolicyError(f"max_tokens is {request.max_tokens}, expected at least 1")
        prefix = None
        if request.previous and request.previous.reply.prompt_ids and request.previous.reply.completion_ids:
            past = (*request.previous.reply.prompt_ids, *request.previous.reply.completion_ids)
            if len(past) <= len(prompt) and tuple(prompt[: len(past)]) == past:
                prefix = self._kept.get(past)
        return _Row(request, prompt, min(request.max_tokens, room), prefix)

    def _batches(self, rows: list[_Row]) -> list[list[_Row]]:
        """Rows, in order, in batches of at most `max_batch` whose keys and values fit in CACHE_BYTES."""
        per_token = self._decoder.bytes_per_token
        batches: list[list[_Row]] = []
        widest = 0
        for row in rows:
            widest = max(widest, len(row.prompt) + row.cap)
            full = batches and (len(batches[-1]) + 1) * widest * per_token > CACHE_BYTES
            if not batches or full or len(batches[-1]) == self.max_batch:
                batches.append([])
                widest = len(row.prompt) + row.cap
            batches[-1].append(row)
        return batches

    def _run(self, rows: list[_Row]) -> None:
        """Sample all rows to their ends."""
        unique: dict[tuple[int, ...], int] = {}
        copies = [unique.setdefault(tuple(row.prompt), len(unique)) for row in rows]
        first = [copies.index(i) for i in range(len(unique))]
        prompts, prefixes = [rows[i].prompt for i in first], [rows[i].prefix for i in first]
        room = min(max(row.cap for row in rows), 64)
        logits = self._decoder.prefill(prompts, prefixes, copies, room)
        live, streams = rows, stream([row.request.seed for row in rows])
        for k in range(max(row.cap for row in rows)):
            tokens, logprobs = sample(logits, uniforms(streams, k), self.sampling)
            ended = self._append(live, tokens.cpu().numpy(), logprobs.cpu().numpy())
            if len(ended) == len(live):
                break
            if ended:
                stay = sorted(set(range(len(live))) - set(ended))
                order = self._decoder.keep(torch.tensor(stay, device=tokens.device))
                tokens = tokens[order]
                live, streams = [live[i] for i in order.tolist()], streams[order.cpu().numpy()]
            logits = self._decoder.step(tokens)

    def _append(self, live: list[_Row], tokens: np.ndarray, logprobs: np.ndarray) -> list[int]:
        """Write down one sampled token a row; returns the places of the rows that have ended."""
        stops = np.isin(tokens, self._ends)
        ended = []
        for at, (row, token, logprob, stop) in enumerate(
            zip(live, tokens.tolist(), logprobs.tolist(), stops.tolist(), strict=True)
        ):
            if not -float("inf") < logprob <= 1e-3:
                row.error = f"the model's logits are not finite after {len(row.completion)} sampled tokens"
            else:
                row.completion.append(token)
                row.logprobs.append(logprob)
            if stop or (row.request.ask.stop and self._stopped(row)):
                row.finish = "stop"
            if row.error or row.finish == "stop" or len(row.completion) == row.cap:
                ended.append(at)
                self._keep_prefix(row, at)
        return ended

    def _keep_prefix(self, row: _Row, at: int) -> None:
        if row.error is None and self._kept_bytes < CACHE_BYTES and (prefix := self._decoder.prefix(at)):
            self._kept[*row.prompt, *row.completion] = prefix
            self._kept_bytes += prefix.nbytes

    def _stopped(self, row: _Row) -> bool:
        """Whether the last token has completed a stop string; a string of n bytes lies in n tokens or fewer."""
        longest = max(len(stop.encode()) for stop in row.request.ask.stop)
        tail = self.prompts.decode(row.completion[-longest - 4 :])
        return any(stop in tail for stop in row.request.ask.stop)

    def _reply(self, row: _Row) -> Reply | PolicyError:
        if row.error:
            return PolicyError(row.error)
        return Reply(self.prompts.text(row.completion), row.finish, [], row.prompt, row.completion, row.logprobs)


def hash_weights(model: nn.Module) -> str:
    """12 hex digits of a hash of a module's parameters: names, types, shapes and values."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        data = parameter.detach().cpu().contiguous()
        digest.update(f"{name} {data.dtype} {tuple(data.shape)}".encode())
        digest.update(data.flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:12]


def _eos(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The end tokens that model and tokenizer name."""
    named = model.generation_config.eos_token_id if model.generation_config else None
    ids = named if isinstance(named, list) else [named]
    return [i for i in [*ids, tokenizer.eos_token_id] if i is not None]
