r"""The strict verifier of integer answers: the answer, as written in `\boxed{}`, is the gold integer or it is wrong.

What is an integer is decided on the text alone (`integer`), so that an answer of a million digits costs nothing and
meets no limit of `int()`. Notation is forgiven, value never is:

- covered: white space, `$` around the number or `\$` before it, signs (`+`, `-`, U+2212), leading zeros ("025"),
  thousands in groups of three (`1,234`, `1{,}234`, `1,\!234`, `1\,234`), zeros after the point ("70.0"), a degree sign
  (`336^\circ`).
- not covered, and so wrong: fractions, radicals, units in words, percentages, expressions that evaluate to an integer,
  digits of other scripts. For those there is math-verify; the paper's rule is this one (section "Math": exact match of
  `\boxed` with the integer).
"""

from __future__ import annotations

import re
from typing import Any

from whale_envs.episode import Verdict
from whale_envs.harness.helpers import boxed

_SEPARATOR = r"(?:,|\{,\}|,\\!\s*|\\,)"
_NUMBER = re.compile(
    rf"(?:\\?\$)?\s*(?:(?P<sign>[+-])\s*)?(?:\\\$)?(?P<digits>[0-9]+|[0-9]{{1,3}}(?:{_SEPARATOR}[0-9]{{3}})+)"
    r"(?:\.0*)?(?:\s*(?:\^\\circ|\^\{\\circ\}|°))?\s*\$?",
    re.ASCII,
)


def integer(text: str) -> str | None:
    r"""The integer that `text` writes, as "-"? and digits without leading zeros; None when it writes no integer.

    >>> integer(" 025 "), integer(r"336^\circ"), integer("-1,000.00"), integer("7.5")
    ('25', '336', '-1000', None)
    """
    if text.isascii() and text.isdigit():  # as most are
        return text.lstrip("0") or "0"
    found = _NUMBER.fullmatch(text.strip().replace("\u2212", "-"))
    if found is None:
        return None
    digits = re.sub(r"[^0-9]", "", found["digits"]).lstrip("0") or "0"
    return f"-{digits}" if found["sign"] == "-" and digits != "0" else digits


def stated(solution: str) -> str:
    r"""The answer that a solution states: after the last "####" (GSM8K), in the last `\boxed{}` (MATH), or it all."""
    if "####" in solution:
        return solution.rpartition("####")[2].strip()
    inner = boxed(solution)
    return (solution if inner is None else inner).strip()


def integer_match(answer: Any, gold: str) -> Verdict:
    r"""Score an answer, the content of `\boxed{}`, against a gold that `integer` understands.

    `answer` is whatever the harness returned: None when it gave none, any JSON value otherwise. Raises `ValueError`
    for a gold that is no integer, since such a row is dropped when data is loaded.
    """
    wanted = integer(gold)
    if wanted is None:
        raise ValueError(f"gold {gold[:80]!r} is no integer")
    if answer is None:
        return Verdict(0.0, "no answer")
    if not isinstance(answer, str):
        return Verdict(0.0, f"the answer is {type(answer).__name__}, not a string")
    given = integer(answer)
    if given is None:
        return Verdict(0.0, f"the answer is no integer: {answer[:40]!r}")
    if given != wanted:
        return Verdict(0.0, f"wrong: {given[:40]}")
    return Verdict(1.0, "right")
