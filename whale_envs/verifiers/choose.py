"""Verifiers by name, as the option `verifier` of a domain takes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from whale_envs.episode import Verdict
from whale_envs.errors import unknown
from whale_envs.verifiers.exact_match import exact_match, f1, sub_em
from whale_envs.verifiers.judge import load_judge
from whale_envs.verifiers.math_answer import integer_match
from whale_envs.verifiers.math_equivalence import math_equivalent

#: (question, answer, golds) to a verdict.
ShortAnswerVerifier = Callable[[str, str | None, Sequence[str]], Verdict]
#: (answer, gold) to a verdict.
MathVerifier = Callable[[Any, str], Verdict]

#: The default of each domain comes first.
SHORT_ANSWER = {"exact-match": exact_match, "f1": f1, "sub-em": sub_em}
MATH: dict[str, MathVerifier] = {"integer": integer_match, "math-verify": math_equivalent}


def short_answer_verifier(name: str) -> ShortAnswerVerifier:
    """What scores short answers: one of `SHORT_ANSWER`, or "judge:PROVIDER:MODEL" (see `load_judge`).

    Raises `UserError` for another name, and for a judge that cannot be asked.
    """
    if name.startswith("judge:"):
        return load_judge(name).verdict
    if name not in SHORT_ANSWER:
        raise unknown("verifier of search-qa", name, [*SHORT_ANSWER, "judge:PROVIDER:MODEL"])
    verify = SHORT_ANSWER[name]
    return lambda question, answer, golds: verify(answer, golds)


def math_verifier(name: str) -> MathVerifier:
    """What scores answers to problems: one of `MATH`. Raises `UserError` for another name."""
    if name not in MATH:
        raise unknown("verifier of math", name, MATH)
    return MATH[name]
