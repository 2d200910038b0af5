"""Short answers against a list of accepted ones: exact match, token F1, and whether a gold is in the answer.

All three compare after SQuAD normalisation (Rajpurkar et al. 2016, the official evaluation script), and in all three
a gold that normalises to nothing ("*", "the") matches no answer, least of all an empty one.
"""

from __future__ import annotations

import functools
import re
import string
from collections import Counter
from collections.abc import Sequence

from whale_envs.episode import Verdict

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
#: The same for ASCII of nothing but words, signs and white space, as bytes: a tenth of the time.
_SIGNS, _ARTICLES = string.punctuation.encode(), frozenset((b"a", b"an", b"the"))
_PLAIN = (string.ascii_lowercase + string.digits + string.punctuation + " \t\n\r").encode()


def normalise(text: str) -> str:
    """Lower case, without ASCII punctuation, articles and extra white space."""
    text = text.lower()
    if text.isascii() and not (raw := text.encode()).translate(None, _PLAIN):
        words = raw.translate(None, _SIGNS).split()
        if not _ARTICLES.isdisjoint(words):
            words = [word for word in words if word not in _ARTICLES]
        return b" ".join(words).decode()
    return " ".join(_ARTICLE.sub(" ", text.translate(_PUNCTUATION)).split())


#: The golds of a task come back with each of its rollouts.
_gold = functools.lru_cache(maxsize=4096)(normalise)


def exact_match(answer: str | None, golds: Sequence[str]) -> Verdict:
    """1 when the answer equals one of the golds after normalisation, else 0."""
    given = _normalised(answer)
    if isinstance(given, Verdict):
        return given
    for gold in golds:
        if given == _gold(gold):
            return Verdict(1.0, "exact match")
    return _none_of_them(given)


def f1(answer: str | None, golds: Sequence[str]) -> Verdict:
    """The best F1 over the golds: harmonic mean of precision and recall over the normalised tokens, from 0 to 1."""
    given = _normalised(answer)
    if isinstance(given, Verdict):
        return given
    tokens = given.split()
    best = max((_token_f1(tokens, normalise(gold).split()) for gold in golds), default=0.0)
    return Verdict(best, f"F1 {best:.2f}") if best else _none_of_them(given)


def sub_em(answer: str | None, golds: Sequence[str]) -> Verdict:
    """1 when the answer contains one of the golds after normalisation, else 0 ("sub-EM", the accuracy of FlashRAG).

    It contains whole words, where FlashRAG looks for any substring: "Kentucky" does not contain "Kent".
    """
    given = _normalised(answer)
    if isinstance(given, Verdict):
        return given
    if any(f" {wanted} " in f" {given} " for gold in golds if (wanted := normalise(gold))):
        return Verdict(1.0, "the answer contains a gold")
    return _none_of_them(given)


def _normalised(answer: str | None) -> str | Verdict:
    """The normalised answer, or the verdict on one that is missing or empty."""
    if answer is None:
        return Verdict(0.0, "no answer")
    return normalise(answer) or Verdict(0.0, "the answer is empty after normalisation")


def _none_of_them(given: str) -> Verdict:
    return Verdict(0.0, f"{given[:80]!r} is none of the accepted answers")


def _token_f1(given: list[str], wanted: list[str]) -> float:
    common = sum((Counter(given) & Counter(wanted)).values())
    return 2 * common / (len(given) + len(wanted))
