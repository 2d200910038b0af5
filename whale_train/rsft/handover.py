"""Weights on their way to an engine, and the check that it samples from them.

An engine keeps its copy of the weights in layouts and types of its own, behind caches: a copy that stays as it was, or
arrives in part, shows in no error, only in a curve that goes wrong. So after each handing over, engine and trainer
score the same tokens, and what they find has to be the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from transformers import PreTrainedTokenizerBase

from whale_envs import UserError
from whale_train.policies.base import Engine
from whale_train.rsft.weights import Model, merged_weights

#: The most by which the two may differ in a token's log-probability, on average, by the bits that they compute with.
#: Seen between transformers and vLLM on the bundled models, on a CPU: 2e-6 in float32, 0.03 to 0.04 in bfloat16.
TOLERANCE = {32: 1e-3, 16: 0.1}
#: Tokens of each probe.
LENGTH = 48
PROBES = (
    "Question: Which river flows through the city in which the treaty was signed? Let me think. The treaty was signed "
    "in a town on the Meuse, so I will search for the town first and then for its river. Answer: the Meuse.",
    "Solve for x: 3x + 7 = 40. We have 3x = 33, and so x = 11. The answer is \\boxed{11}. To check it with code:\n"
    "print(3 * 11 + 7)\nwhich prints 40, as it has to.",
    "White to move. FEN: r1bqkbnr/pppp1ppp/2n5/4p3/2B1P3/5Q2/PPPP1PPP/RNB1K1NR w KQkq - 2 3. The queen takes on f7 "
    "and it is mate: <move>f3f7</move>",
)


class Handover:
    """Hands a trainer's weights to an engine, each time with a check.

    Args:
        engine: what samples.
        tokenizer: that of the model, for the probes.
    """

    def __init__(self, engine: Engine, tokenizer: PreTrainedTokenizerBase) -> None:
        self._engine = engine
        self._rows: list[list[int]] = [tokenizer.encode(text, add_special_tokens=False)[:LENGTH] for text in PROBES]
        self._before: tuple[list[float], list[float]] | None = None

    def to_engine(self, model: Model) -> None:
        """Hand over. Raises `UserError` when the engine does not score as the model does afterwards."""
        self._engine.load_weights(merged_weights(model))
        theirs = list(chain(*self._engine.logprobs(self._rows)))
        ours = list(chain(*score(model, self._rows)))
        self._check(theirs, ours, _bits(model))
        self._before = theirs, ours

    def make_room(self) -> None:
        """Let the engine sleep while the model trains."""
        self._engine.sleep()

    def _check(self, theirs: list[float], ours: list[float], bits: int) -> None:
        apart = sum(abs(a - b) for a, b in zip(theirs, ours, strict=True)) / len(ours)
        limit = TOLERANCE[min(bits, self._engine.bits)]
        if not apart <= limit:
            raise UserError(
                f"policy {self._engine.name} samples from other weights than those that are trained: after handing "
                f"them over, its log-probabilities are {apart:.2g} a token away from the trainer's, expected at most "
                f"{limit:g}. The last checkpoint is good: run the same again, or without the engine"
            )
        if self._before is not None and theirs == self._before[0] and _moved(ours, self._before[1]):
            # closer than the tolerance, as the steps of a small learning rate are, yet the old weights to the bit
            raise UserError(
                f"policy {self._engine.name} still samples from the weights before: the trainer's log-probabilities "
                "have changed since, the engine's in no bit. The last checkpoint is good: run the same again, or "
                "without the engine"
            )


@torch.no_grad()
def score(model: Model, rows: Sequence[Sequence[int]]) -> list[list[float]]:
    """The log-probability of each row's tokens but the first, given those before."""
    training = model.training
    model.eval()
    found = []
    for row in rows:
        ids = torch.tensor([row], device=model.device)
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
        found.append(logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0].tolist())
    model.train(training)
    return found


def _bits(model: Model) -> int:
    return int(torch.finfo(next(model.parameters()).dtype).bits)


def _moved(now: list[float], before: list[float]) -> bool:
    """Whether most tokens' figures have changed; a few may by an update that rounds away elsewhere."""
    return 2 * sum(a != b for a, b in zip(now, before, strict=True)) > len(now)
