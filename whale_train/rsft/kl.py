"""How far training has gone from where it started: the KL divergence on tokens that were sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec
import torch
from peft import PeftModel
from trl.trainer.utils import add_fused_lm_head

from whale_envs import Reply, UserError
from whale_train.rsft.rows import IGNORE, Row
from whale_train.rsft.weights import Model, base_of, twin


class Start:
    """The weights that training starts from: a frozen copy, or the model with its adapters off.

    Args:
        model: the model before its first update, with TRL's fused head.
        copied: whether a copy is made of a model with adapters, too (one that will be sharded cannot be run alone).
        device: where a copy is kept.
    """

    def __init__(self, model: Model, copied: bool, device: torch.device) -> None:
        self._adapted = isinstance(model, PeftModel) and not copied
        self._model = model if self._adapted else twin(model, device)
        if not self._adapted:
            add_fused_lm_head(base_of(self._model), outputs=("log_probs",))

    @torch.no_grad()
    def kl(
        self, replies: Sequence[Reply], batch: int, collate: Callable[[list[dict[str, Any]]], dict[str, Any]]
    ) -> tuple[float, int]:
        """The estimated KL(now || start), summed over the replies' sampled tokens, and the number of these.

        Per token, with r = p_start / p_now of the token that was sampled: r - 1 - log r. It is never negative, its
        mean over samples of p_now is the KL, and it varies less than -log r (Schulman, "Approximating KL Divergence",
        2020, estimator k3; GRPO's, arXiv 2402.03300, equation 4). p_now are the sampler's own log-probabilities, of
        the plain model; where it samples from the top k tokens only, the mean is over these.

        `batch` replies are scored at a time, made one input by `collate`. Raises `UserError` for replies of a policy
        that gives no log-probabilities.
        """
        total, tokens = 0.0, 0
        training = self._model.training
        self._model.eval()
        try:
            for at in range(0, len(replies), batch):
                some = replies[at : at + batch]
                start = self._logprobs(collate([msgspec.structs.asdict(_row(reply)) for reply in some]))
                now = torch.tensor([x for reply in some for x in _logprobs(reply)], dtype=start.dtype)
                log_r = start.cpu() - now
                total += float((log_r.exp() - 1 - log_r).sum())
                tokens += len(now)
        finally:
            self._model.train(training)
        return total, tokens

    def _logprobs(self, inputs: dict[str, Any]) -> torch.Tensor:
        """Log-probabilities of the labels, row by row."""
        device = next(self._model.parameters()).device
        placed = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in inputs.items()}
        off = self._model.disable_adapter() if self._adapted else nullcontext()  # type: ignore[operator]
        with off:
            out = self._model(**placed, fused_lm_head=True, use_cache=False)
        found: torch.Tensor = out.log_probs[out.label_mask].float()
        return found


def some_replies(replies: Sequence[Reply], count: int) -> list[Reply]:
    """At most `count` of the replies with tokens, evenly spread."""
    found = [reply for reply in replies if reply.prompt_ids and reply.completion_ids]
    return [found[i * len(found) // count] for i in range(count)] if len(found) > count else found


def _row(reply: Reply) -> Row:
    prompt, completion = reply.prompt_ids or [], reply.completion_ids or []
    return Row([*prompt, *completion], [*[IGNORE] * len(prompt), *completion])


def _logprobs(reply: Reply) -> list[float]:
    if reply.logprobs is None:
        raise UserError("the policy gives no log-probabilities, so no KL can be estimated: give kl_sequences=0")
    return reply.logprobs
