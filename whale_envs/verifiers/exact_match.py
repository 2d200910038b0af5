"""Exact match after SQuAD normalisation (Rajpurkar et al. 2016, the official evaluation script)."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

from whale_envs.episode import Verdict

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case, without ASCII punctuation, articles and extra white space."""
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_match(answer: str | None, golds: Sequence[str]) -> Verdict:
    """1 when the answer equals one of the golds after normalisation, else 0.

    A gold that normalises to nothing ("*", "the") matches no answer, least of all an empty one.
    """
    if answer is None:
        return Verdict(0.0, "no answer")
    given = normalise(answer)
    if not given:
        return Verdict(0.0, "the answer is empty after normalisation")
    if any(given == normalise(gold) for gold in golds):
        return Verdict(1.0, "exact match")
    return Verdict(0.0, f"{given[:80]!r} is none of the accepted answers")
